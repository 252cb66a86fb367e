//! Query strings and objects to kubelet URLs.

use serde_json::json;

use super::*;

fn node() -> Value {
    json!({
        "metadata": {"name": "a"},
        "status": {
            "addresses": [{"type": "Hostname", "address": "a"}, {"type": "InternalIP", "address": "10.0.0.5"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}},
        },
    })
}

fn pod(containers: &[&str]) -> Value {
    let list: Vec<Value> = containers.iter().map(|name| json!({"name": name})).collect();
    json!({"metadata": {"namespace": "ns", "name": "p"}, "spec": {"nodeName": "a", "containers": list}})
}

fn path(subresource: &str, query: &str) -> Result<String, String> {
    pod_target(subresource, &pod(&["c"]), Some(&node()), query)
        .map(|target| target.unwrap().path_and_query)
        .map_err(|error| error.message)
}

#[test]
fn parameters_are_translated_and_encoded() {
    let target = pod_target("log", &pod(&["c"]), Some(&node()), "").unwrap().unwrap();
    assert_eq!(target.peer.authority(), "10.0.0.5:10251");
    assert_eq!((target.peer.node.as_str(), target.peer.transport), ("a", Transport::Kubelet));
    assert_eq!(target.path_and_query, "/containerLogs/ns/p/c");
    let cases = [
        ("log", "follow=true&tailLines=10&previous=false", "/containerLogs/ns/p/c?follow=true&tailLines=10"),
        (
            "log",
            "sinceTime=2026-11-21T00%3A00%3A00Z",
            "/containerLogs/ns/p/c?sinceTime=2026-11-21T00%3A00%3A00Z",
        ),
        ("log", "follow=yes&previous=0&timestamps=False", "/containerLogs/ns/p/c?follow=true"),
        (
            "exec",
            "command=sh&command=-c&command=echo+%24A%26b&stdin=true&stdout=true&tty=true&container=c",
            "/exec/ns/p/c?input=1&output=1&tty=1&command=sh&command=-c&command=echo%20%24A%26b",
        ),
        ("attach", "stdout=1&stderr=1", "/attach/ns/p/c?output=1&error=1"),
        ("portforward", "ports=80,443&ports=53", "/portForward/ns/p?port=80&port=443&port=53"),
        ("portforward", "", "/portForward/ns/p"),
    ];
    for (subresource, query, expected) in cases {
        assert_eq!(path(subresource, query).unwrap(), expected);
    }
}

#[test]
fn bad_parameters_are_refused() {
    let cases = [
        ("exec", "stdout=true", "you must specify at least one command for the container"),
        ("exec", "command=ls", "you must specify at least 1 of stdin, stdout, stderr"),
        ("attach", "tty=true&stderr=true", "tty and stderr cannot both be true"),
        ("log", "tailLines=x", "strconv.ParseInt: parsing \"x\": invalid syntax"),
        ("log", "sinceSeconds=", "strconv.ParseInt: parsing \"\": invalid syntax"),
        ("log", "container=../../x", "container ../../x is not valid for pod p"),
    ];
    for (subresource, query, expected) in cases {
        assert_eq!(path(subresource, query).unwrap_err(), expected);
    }
}

#[test]
fn log_options_that_make_no_sense_are_invalid() {
    let cases = [
        ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
        (
            "sinceSeconds=0&tailLines=-2",
            "[tailLines: Invalid value: -2: must be greater than or equal to 0, sinceSeconds: Invalid value: 0: \
             must be greater than 0]",
        ),
        (
            "sinceSeconds=1&sinceTime=2026-11-21T00%3A00%3A00Z",
            ": Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
        ),
    ];
    for (query, expected) in cases {
        let error = pod_target("log", &pod(&["c"]), Some(&node()), query).unwrap_err();
        assert_eq!((error.code, error.message), (422, format!("PodLogOptions \"p\" is invalid: {expected}")));
    }
}

#[test]
fn the_container_is_the_only_one_the_annotated_one_or_asked_for() {
    let path = |pod: &Value, query: &str| {
        pod_target("log", pod, Some(&node()), query)
            .map(|t| t.unwrap().path_and_query)
            .map_err(|error| (error.code, error.message))
    };
    let mut two = pod(&["a", "b"]);
    two["spec"]["initContainers"] = json!([{"name": "i"}]);
    let message = "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]";
    assert_eq!(path(&two, "").unwrap_err(), (400, message.to_owned()));
    assert_eq!(path(&two, "container=i").unwrap(), "/containerLogs/ns/p/i");
    two["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/default-container": "b"});
    assert_eq!(path(&two, "").unwrap(), "/containerLogs/ns/p/b");
}

#[test]
fn a_pod_without_a_node_has_an_empty_log_and_nothing_else() {
    let mut pending = pod(&["c"]);
    pending["spec"]["nodeName"] = Value::Null;
    assert_eq!(pod_target("log", &pending, None, ""), Ok(None));
    let error = pod_target("exec", &pending, None, "command=ls&stdout=1").unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (400, "pod p does not have a host assigned"));
    assert_eq!(pod_target("log", &pod(&["c"]), None, "").unwrap_err().code, 404);
    assert_eq!(pod_target("log", &pod(&["c"]), Some(&json!({})), "").unwrap_err().code, 500);
}

#[test]
fn a_nodes_own_paths_keep_their_query() {
    let asked = NodeRequest::parse("a").unwrap();
    let target = node_target(&node(), &asked, "stats/summary", Some("only_cpu_and_memory=true")).unwrap();
    assert_eq!(target.path_and_query, "/stats/summary?only_cpu_and_memory=true");
    let six = Peer { host: "fd00::5".to_owned(), ..target.peer };
    assert_eq!(six.authority(), "[fd00::5]:10251");
}

#[test]
fn the_kubelets_port_alone_is_shown_credentials() {
    for (id, port, transport) in [
        ("a", 10251, Transport::Kubelet),
        ("a:", 10251, Transport::Kubelet),
        ("a:10251", 10251, Transport::Kubelet),
        ("https:a:", 10251, Transport::Kubelet),
        ("http:a:10251", 10251, Transport::Kubelet),
        ("a:9100", 9100, Transport::Http),
        ("http:a:6443", 6443, Transport::Http),
        ("https:a:6443", 6443, Transport::Https),
        // The usual port of kubelets is just another port of this one.
        ("https:a:10250", 10250, Transport::Https),
    ] {
        let asked = NodeRequest::parse(id).unwrap();
        let target = node_target(&node(), &asked, "/", None).unwrap();
        assert_eq!((target.peer.port, target.peer.transport), (port, transport), "{id}");
        assert!(!target.loopback, "{id}");
    }
    for id in ["a:x", "a:70000", ":10250", "ftp:a:21", "HTTPS:a:1", "a:b:c:d", ""] {
        let error = NodeRequest::parse(id).unwrap_err();
        assert_eq!((error.code, error.message), (400, format!("invalid node request {id:?}")));
    }
}

#[test]
fn kubelet_is_called_by_an_address_before_a_name_and_by_an_internal_one_before_others() {
    let host = |addresses: &[(&str, &str)]| {
        let mut node = node();
        node["status"]["addresses"] =
            addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
        kubelet(&node).map(|peer| peer.host).map_err(|error| error.code)
    };
    let all = [
        ("ExternalDNS", "a.example.com"),
        ("InternalDNS", "a.example"),
        ("Hostname", "a"),
        ("ExternalIP", "198.51.100.5"),
        ("InternalIP", "fd00::5"),
        ("InternalIP", "10.0.0.5"),
    ];
    assert_eq!(host(&all).unwrap(), "fd00::5");
    assert_eq!(host(&all[..4]).unwrap(), "198.51.100.5");
    assert_eq!(host(&all[..3]).unwrap(), "a");
    assert_eq!(host(&all[..2]).unwrap(), "a.example");
    assert_eq!(host(&all[..1]).unwrap(), "a.example.com");
    // A name is no address, whatever its node calls it.
    assert_eq!(
        host(&[("InternalIP", "never.example"), ("ExternalIP", "198.51.100.5")]).unwrap(),
        "198.51.100.5"
    );
    assert_eq!(host(&[("InternalIP", "never.example"), ("Hostname", "192.0.2.5")]).unwrap(), "192.0.2.5");
    assert_eq!(host(&[("Pigeon", "192.0.2.5")]), Err(500));
}
