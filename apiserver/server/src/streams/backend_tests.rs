//! Names, pods and endpoints to backends.

use serde_json::json;

use super::*;

fn pod() -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "p"},
        "spec": {"containers": [{"name": "a"}, {"name": "b", "ports": [
            {"containerPort": 8080}, {"containerPort": 160, "name": "dest1"}]}]},
        "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
    })
}

fn at(pod: &Value, id: &str) -> Result<(String, Transport, String), (u16, String)> {
    pod_backend(pod, &ProxyName::split(id).unwrap())
        .map(|backend| (backend.peer.authority(), backend.peer.transport, backend.authority))
        .map_err(|error| (error.code, error.message))
}

#[test]
fn names_have_a_scheme_and_a_port_or_not() {
    for (id, name, port, https) in [
        ("p", "p", "", false),
        ("p:", "p", "", false),
        ("p:80", "p", "80", false),
        ("p:dest1", "p", "dest1", false),
        (":p:", "p", "", false),
        ("http:p:80", "p", "80", false),
        ("https:p:", "p", "", true),
        ("https:p:dest1", "p", "dest1", true),
    ] {
        assert_eq!(ProxyName::split(id), Some(ProxyName { name, port, https }), "{id}");
    }
    for id in ["", ":80", "ftp:p:21", "HTTPS:p:1", "a:b:c:d", "http::80"] {
        let error = ProxyName::parse(id, "pod").unwrap_err();
        assert_eq!((error.code, error.message), (400, format!("invalid pod request {id:?}")));
    }
}

#[test]
fn a_pod_is_reached_at_its_first_address() {
    use Transport::{Http, Https};
    for (id, authority, transport) in [
        ("p", "10.0.0.1:8080", Http),
        ("https:p:", "10.0.0.1:8080", Https),
        ("p:1080", "10.0.0.1:1080", Http),
        ("p:dest1", "10.0.0.1:160", Http),
        ("https:p:443", "10.0.0.1:443", Https),
    ] {
        assert_eq!(at(&pod(), id), Ok((authority.to_owned(), transport, authority.to_owned())), "{id}");
    }
    // Its address is another pod's by now.
    for phase in ["Succeeded", "Failed"] {
        let mut ended = pod();
        ended["status"]["phase"] = json!(phase);
        let why = "error trying to reach service: the pod has ended".to_owned();
        assert_eq!(at(&ended, "p:1080"), Err((503, why)));
    }
    let mut portless = pod();
    portless["spec"]["containers"] = json!([{"name": "a"}]);
    portless["status"]["podIPs"] = json!([{"ip": "fd00::1"}]);
    assert_eq!(at(&portless, "p"), Ok(("[fd00::1]:80".to_owned(), Http, "[fd00::1]".to_owned())));
    assert_eq!(at(&portless, "https:p:").unwrap().0, "[fd00::1]:443");
}

#[test]
fn a_pod_without_a_usable_address_or_port_is_refused() {
    let mut without = pod();
    for ips in [Value::Null, json!([]), json!([{"ip": ""}]), json!([{"ip": "localhost"}])] {
        without["status"]["podIPs"] = ips;
        assert_eq!(at(&without, "p"), Err((400, "address not allowed".to_owned())));
    }
    let said = "error trying to reach service: dial tcp: lookup tcp/nope: unknown port";
    assert_eq!(at(&pod(), "p:nope"), Err((503, said.to_owned())));
    let said = "error trying to reach service: dial tcp: address 70000: invalid port";
    assert_eq!(at(&pod(), "p:70000"), Err((503, said.to_owned())));
}

#[test]
fn the_number_of_a_services_port_stands_for_its_name() {
    let service = json!({"spec": {"ports": [{"port": 80, "name": "portname1"}, {"port": 81}]}});
    let asked = ProxyName::split("s:80").unwrap();
    assert_eq!(port_name(&service, &asked, 80).unwrap(), "portname1");
    assert_eq!(port_name(&service, &asked, 81).unwrap(), "");
    let error = port_name(&service, &asked, 82).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (503, "no service port 82 found for service \"s\""));
}

fn endpoints() -> Value {
    let address = |last: u8, namespace: &str| {
        json!({"ip": format!("10.0.0.{last}"), "targetRef": {"kind": "Pod", "namespace": namespace,
            "name": format!("p{last}")}})
    };
    json!({"subsets": [
        {"addresses": [address(1, "ns"), address(2, "ns"), address(3, "kube-system"), {"ip": "10.0.0.4"}],
            "notReadyAddresses": [address(5, "ns")],
            "ports": [{"name": "http", "port": 8080}, {"name": "metrics", "port": 9090}]},
        {"addresses": [address(6, "ns")], "ports": [{"port": 80}, {"name": "http", "port": 8081}]},
        {"ports": [{"name": "http", "port": 8082}]},
    ]})
}

#[test]
fn candidates_are_ready_pods_of_the_same_namespace_with_the_port() {
    let endpoints = endpoints();
    let tried = |port: &str, seed: u64| -> Vec<String> {
        candidates(&endpoints, ("ns", port), seed).map(|c| format!("{} {}:{}", c.pod, c.ip, c.port)).collect()
    };
    assert_eq!(tried("http", 0), ["p1 10.0.0.1:8080", "p2 10.0.0.2:8080", "p6 10.0.0.6:8081"]);
    assert_eq!(tried("http", 1), ["p2 10.0.0.2:8080", "p1 10.0.0.1:8080", "p6 10.0.0.6:8081"]);
    assert_eq!(tried("http", 1 << 32), ["p6 10.0.0.6:8081", "p1 10.0.0.1:8080", "p2 10.0.0.2:8080"]);
    assert_eq!(tried("metrics", 4), ["p1 10.0.0.1:9090", "p2 10.0.0.2:9090"]);
    assert_eq!(tried("", 7), ["p6 10.0.0.6:80"]);
    assert!(tried("nope", 0).is_empty());
    assert_eq!(candidates(&json!({}), ("ns", ""), 9).count(), 0);
}

#[test]
fn an_address_counts_only_if_its_pod_has_it() {
    let endpoints = endpoints();
    let first = candidates(&endpoints, ("ns", "http"), 0).next().unwrap();
    let asked = ProxyName::split("https:s:http").unwrap();
    let found = first.backend(&pod(), &asked).unwrap();
    assert_eq!((found.authority.as_str(), found.peer.transport), ("10.0.0.1:8080", Transport::Https));
    let mut other = pod();
    other["status"]["podIPs"] = json!([{"ip": "10.0.0.9"}]);
    assert_eq!(first.backend(&other, &asked), None);
    assert_eq!(first.backend(&json!({}), &asked), None);
}

#[test]
fn endpoints_that_lead_nowhere_are_tried_a_bounded_number_of_times() {
    let address = json!({"ip": "10.0.0.1", "targetRef": {"namespace": "ns", "name": "gone"}});
    let many = json!({"subsets": [{"addresses": vec![address; 5_000], "ports": [{"port": 80}]}]});
    assert_eq!(candidates(&many, ("ns", ""), 3).count(), limits::ENDPOINT_TRIES);
}
