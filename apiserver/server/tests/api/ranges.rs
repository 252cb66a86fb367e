//! ServiceCIDRs, IPAddresses, node ports: claims, repairs, and Events.

use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::time;
use apiserver_server::ServerConfig;
use apiserver_store::{Op, Write};
use serde_json::{Value, json};

use crate::api::harness::{Api, every_api};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

#[tokio::test(start_paused = true)]
async fn ranges_that_are_none_are_refused() {
    let api = Api::start().await;
    for (cidrs, why) in [
        (json!(["10.1.0.0/24", "10.1.1.0/24"]), "spec.cidrs: Invalid value"),
        (json!(["10.1.0.1/24"]), "spec.cidrs[0]: Invalid value"),
        (json!(["10.1.0.0/24", "fd00::/108", "fd01::/108"]), "spec.cidrs: Invalid value"),
        (json!([]), "spec.cidrs: Required value"),
    ] {
        let object = json!({"metadata": {"name": "more"}, "spec": {"cidrs": cidrs}});
        let refused = api.post(CIDRS, object).await.expect(422);
        assert!(refused.message().contains(why), "{}", refused.text);
    }
    let object = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.1.0.0/24", "fd00::/108"]}});
    api.post(CIDRS, object).await.expect(201);
}

fn service(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    if spec.get("ports").is_none() {
        spec["ports"] = json!([{"port": 80}]);
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn addresses(api: &Api) -> Vec<String> {
    let list = api.get(ADDRESSES).await.expect(200);
    list.names().into_iter().map(str::to_owned).collect()
}

async fn reasons(api: &Api) -> Vec<String> {
    let list = api.get("/api/v1/events").await.expect(200);
    let items = list.body["items"].as_array().unwrap();
    let mut reasons: Vec<String> = items.iter().map(|e| e["reason"].as_str().unwrap().to_owned()).collect();
    reasons.sort();
    reasons
}

async fn minutes(count: u64) {
    tokio::time::sleep(Duration::from_secs(60 * count + 1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_holds_the_ip_address_of_its_name() {
    let api = Api::start().await;
    assert_eq!(addresses(&api).await, Vec::<String>::new());
    let made = api.post(SERVICES, service("a", json!({}))).await.expect(201).body;
    let ip = made["spec"]["clusterIP"].as_str().unwrap();
    let address = api.get(&format!("{ADDRESSES}/{ip}")).await.expect(200).body;
    assert_eq!(
        address["spec"]["parentRef"],
        json!({"group": "", "resource": "services", "namespace": "default", "name": "a"})
    );
    assert_eq!(address["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"], "IPv4");
    assert_eq!(address["metadata"]["labels"]["ipaddress.kubernetes.io/managed-by"], "ipallocator.k8s.io");
    // Refused and dry runs leave nothing behind.
    let mut wrong = service("Bad_Name", json!({}));
    api.post(SERVICES, wrong.clone()).await.expect(422);
    wrong["metadata"]["name"] = "a".into();
    api.post(SERVICES, wrong).await.expect(409);
    let dry = api.post(&format!("{SERVICES}?dryRun=All"), service("b", json!({}))).await.expect(201);
    assert!(dry.body["spec"]["clusterIP"].as_str().unwrap().starts_with("10.96."));
    assert_eq!(addresses(&api).await, [ip]);
    let taken = api.post(SERVICES, service("b", json!({"clusterIP": ip}))).await.expect(422);
    assert!(taken.message().contains("provided IP is already allocated"), "{}", taken.text);
    // A change of type frees it, and so does the end.
    let external = json!({"spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": "", "clusterIPs": null}});
    api.patch("merge", &format!("{SERVICES}/a"), external).await.expect(200);
    assert_eq!(addresses(&api).await, Vec::<String>::new());
    api.post(SERVICES, service("b", json!({"clusterIP": ip}))).await.expect(201);
    api.delete(&format!("{SERVICES}/b"), Value::Null).await.expect(200);
    assert_eq!(addresses(&api).await, Vec::<String>::new());
    assert_eq!(reasons(&api).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn the_default_range_is_an_object_and_others_can_be_added_and_removed() {
    let cidrs = vec!["10.96.0.0/30".parse().unwrap()];
    let api = Api::with(ServerConfig { service_cidrs: cidrs, ..ServerConfig::default() }).await;
    let own = api.get(&format!("{CIDRS}/kubernetes")).await.expect(200).body;
    assert_eq!(own["spec"]["cidrs"], json!(["10.96.0.0/30"]));
    assert_eq!(own["metadata"]["finalizers"], json!(["networking.k8s.io/service-cidr-finalizer"]));
    assert_eq!(own["status"]["conditions"][0]["type"], "Ready");
    api.post(SERVICES, service("a", json!({}))).await.expect(201);
    let full = api.post(SERVICES, service("b", json!({}))).await.expect(500);
    assert!(full.message().contains("failed to allocate a serviceIP: range is full"), "{}", full.text);

    let more = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}});
    api.post(CIDRS, more).await.expect(201);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let object = api.get(&format!("{CIDRS}/more")).await.expect(200).body;
    assert_eq!(object["status"]["conditions"][0]["status"], "True");
    let made = api.post(SERVICES, service("b", json!({}))).await.expect(201).body;
    assert!(made["spec"]["clusterIP"].as_str().unwrap().starts_with("10.97.0."));

    // It stays as long as an address of it is used, and gives out no more.
    api.delete(&format!("{CIDRS}/more"), Value::Null).await.expect(200);
    minutes(1).await;
    let object = api.get(&format!("{CIDRS}/more")).await.expect(200).body;
    assert_eq!(object["status"]["conditions"][0]["reason"], "Terminating");
    api.post(SERVICES, service("c", json!({}))).await.expect(500);
    api.post(SERVICES, service("c", json!({"clusterIP": "10.97.0.77"}))).await.expect(422);
    api.delete(&format!("{SERVICES}/b"), Value::Null).await.expect(200);
    minutes(1).await;
    api.get(&format!("{CIDRS}/more")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_range_that_another_covers_may_go() {
    let api = Api::start().await;
    for (name, range) in [("small", "10.97.1.0/24"), ("large", "10.97.0.0/16")] {
        api.post(CIDRS, json!({"metadata": {"name": name}, "spec": {"cidrs": [range]}})).await.expect(201);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    api.post(SERVICES, service("a", json!({"clusterIP": "10.97.1.5"}))).await.expect(201);
    api.delete(&format!("{CIDRS}/small"), Value::Null).await.expect(200);
    minutes(1).await;
    api.get(&format!("{CIDRS}/small")).await.expect(404);
    api.get(&format!("{ADDRESSES}/10.97.1.5")).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn dual_stack_claims_two_addresses() {
    let cidrs = vec!["10.96.0.0/16".parse().unwrap(), "fd00:96::/112".parse().unwrap()];
    let api = Api::with(ServerConfig { service_cidrs: cidrs, ..ServerConfig::default() }).await;
    let made =
        api.post(SERVICES, service("a", json!({"ipFamilyPolicy": "RequireDualStack"}))).await.expect(201);
    let ips = made.body["spec"]["clusterIPs"].as_array().unwrap().clone();
    assert_eq!(ips.len(), 2);
    let six = api.get(&format!("{ADDRESSES}/{}", ips[1].as_str().unwrap())).await.expect(200).body;
    assert_eq!(six["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"], "IPv6");
    let single = json!({"spec": {"ipFamilyPolicy": "SingleStack"}});
    api.patch("merge", &format!("{SERVICES}/a"), single).await.expect(200);
    assert_eq!(addresses(&api).await, [ips[0].as_str().unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn a_range_of_the_flags_that_has_changed_is_told() {
    let api = Api::start().await;
    api.server.stop();
    let with = |text: &[&str]| ServerConfig {
        service_cidrs: text.iter().map(|t| t.parse().unwrap()).collect(),
        ..ServerConfig::default()
    };
    let second = Api::over(with(&["10.96.0.0/16", "fd00:96::/112"]), Arc::clone(&api.store)).await;
    let own = second.get(&format!("{CIDRS}/kubernetes")).await.expect(200).body;
    assert_eq!(own["spec"]["cidrs"], json!(["10.96.0.0/16", "fd00:96::/112"]));
    assert_eq!(reasons(&second).await, Vec::<String>::new());
    second.server.stop();
    let third = Api::over(with(&["10.98.0.0/16"]), Arc::clone(&api.store)).await;
    let own = third.get(&format!("{CIDRS}/kubernetes")).await.expect(200).body;
    assert_eq!(own["spec"]["cidrs"], json!(["10.96.0.0/16", "fd00:96::/112"]));
    assert_eq!(reasons(&third).await, ["KubernetesDefaultServiceCIDRInconsistent"]);
}

async fn lay(api: &Api, key: &str, value: Value) {
    let op = Op::Put { value: value.to_string().into(), ttl_seconds: 0 };
    let expected = api.store.get(key).await.unwrap().kv.map_or(0, |kv| kv.mod_revision);
    api.store.write(Write { key: key.to_owned(), expected, op }).await.unwrap();
}

async fn remove(api: &Api, key: &str) {
    let expected = api.store.get(key).await.unwrap().kv.unwrap().mod_revision;
    api.store.write(Write { key: key.to_owned(), expected, op: Op::Delete }).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lost_and_leaked_ports_are_repaired_and_reported() {
    let api = Api::start().await;
    let spec =
        json!({"type": "NodePort", "clusterIP": "10.96.1.1", "ports": [{"port": 80, "nodePort": 30080}]});
    api.post(SERVICES, service("a", spec)).await.expect(201);
    // A user deletes the claim of a Service, and a server dies before it writes one.
    api.delete(&format!("{ADDRESSES}/10.96.1.1"), Value::Null).await.expect(200);
    let old = jiff_ago(120);
    let leaked = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": "10.96.1.2", "uid": "u", "creationTimestamp": old,
            "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": "gone"}},
    });
    lay(&api, "/registry/ipaddresses/10.96.1.2", leaked).await;
    minutes(3).await;
    api.get(&format!("{ADDRESSES}/10.96.1.1")).await.expect(200);
    assert_eq!(reasons(&api).await, ["ClusterIPNotAllocated"]);
    minutes(3).await;
    api.get(&format!("{ADDRESSES}/10.96.1.2")).await.expect(404);
    assert_eq!(reasons(&api).await, ["ClusterIPNotAllocated", "IPAddressNotAllocated"]);
    let events = api.get("/api/v1/namespaces/default/events").await.expect(200).body;
    let event =
        events["items"].as_array().unwrap().iter().find(|e| e["reason"] == "ClusterIPNotAllocated").unwrap();
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["involvedObject"]["name"], "a");
    assert_eq!(event["message"], "Cluster IP [IPv4]: 10.96.1.1 is not allocated; repairing");

    // The node port of a Service that vanished from the store is freed as well, after some runs.
    remove(&api, "/registry/services/specs/default/a").await;
    let taken = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]});
    api.post(SERVICES, service("b", taken.clone())).await.expect(422);
    minutes(15).await;
    api.post(SERVICES, service("b", taken)).await.expect(201);
    let page = api.get("/metrics").await.expect(200).text;
    for line in [
        "apiserver_clusterip_repair_ip_errors_total{type=\"leak\"} ",
        "apiserver_clusterip_repair_ip_errors_total{type=\"repair\"} 1\n",
        "apiserver_nodeport_repair_port_errors_total{type=\"leak\"} 1\n",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
}

/// The repair reacts to the deletion at once, as in Kubernetes, and does not wait for the next run.
#[tokio::test(start_paused = true)]
async fn a_claim_that_somebody_deletes_is_written_again_at_once() {
    let api = Api::start().await;
    let held = ["10.96.1.1", "10.96.1.2"];
    for (name, address) in ["a", "b"].iter().zip(held) {
        api.post(SERVICES, service(name, json!({"clusterIP": address}))).await.expect(201);
    }
    let events = |at: &str| format!("{ADDRESSES}?watch=true&resourceVersion={at}");
    let mut watch = api.watch(&events(&api.get(ADDRESSES).await.expect(200).version())).await;
    for address in held {
        api.delete(&format!("{ADDRESSES}/{address}"), Value::Null).await.expect(200);
    }
    let began = tokio::time::Instant::now();
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(watch.brief().await);
    }
    seen.sort();
    assert_eq!(seen, ["ADDED 10.96.1.1", "ADDED 10.96.1.2", "DELETED 10.96.1.1", "DELETED 10.96.1.2"]);
    assert!(began.elapsed().as_secs() < 1, "{:?}", began.elapsed());
    // An address deleted with its Service stays deleted, and is not a finding.
    api.delete(&format!("{SERVICES}/a"), Value::Null).await.expect(200);
    minutes(4).await;
    assert_eq!(addresses(&api).await, ["10.96.1.2"]);
    assert_eq!(reasons(&api).await, ["ClusterIPNotAllocated", "ClusterIPNotAllocated"]);
    let page = api.get("/metrics").await.expect(200).text;
    assert!(page.contains("apiserver_clusterip_repair_ip_errors_total{type=\"repair\"} 2\n"), "{page}");
}

fn jiff_ago(seconds: i64) -> String {
    let now = apiserver_meta::ambient::Ambient::system().now();
    time::rfc3339(jiff::Timestamp::from_second(now.as_second() - seconds).unwrap())
}

#[tokio::test(start_paused = true)]
async fn two_services_with_one_address_or_port_are_told() {
    let api = Api::start().await;
    let spec =
        json!({"type": "NodePort", "clusterIP": "10.96.1.1", "ports": [{"port": 80, "nodePort": 30080}]});
    let mut twin = api.post(SERVICES, service("a", spec)).await.expect(201).body;
    twin["metadata"]["name"] = "twin".into();
    twin["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    lay(&api, "/registry/services/specs/default/twin", twin).await;
    minutes(3).await;
    assert_eq!(reasons(&api).await, ["ClusterIPAlreadyAllocated", "PortAlreadyAllocated"]);
    // Said once.
    minutes(9).await;
    assert_eq!(reasons(&api).await.len(), 2);
}

/// A store of a version that kept claims in memory: they are made before the server is ready.
#[tokio::test(start_paused = true)]
async fn services_without_claims_get_them_at_the_start() {
    let api = Api::start().await;
    let spec =
        json!({"type": "NodePort", "clusterIP": "10.96.1.1", "ports": [{"port": 80, "nodePort": 30080}]});
    api.post(SERVICES, service("a", spec)).await.expect(201);
    api.server.stop();
    remove(&api, "/registry/ipaddresses/10.96.1.1").await;
    remove(&api, "/registry/ranges/servicenodeports").await;
    let again = Api::over(ServerConfig::default(), Arc::clone(&api.store)).await;
    again.get(&format!("{ADDRESSES}/10.96.1.1")).await.expect(200);
    again.post(SERVICES, service("b", json!({"clusterIP": "10.96.1.1"}))).await.expect(422);
    let same = json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]});
    again.post(SERVICES, service("b", same)).await.expect(422);
    assert_eq!(reasons(&again).await, Vec::<String>::new());
}

/// The fault that Kubernetes finds first is reported, and a health check port that cannot be had is a server
/// error.
#[tokio::test(start_paused = true)]
async fn ports_that_cannot_be_had_are_refused_as_kubernetes_refuses_them() {
    let api = Api::with(ServerConfig { node_ports: 30000..=30003, ..every_api() }).await;
    let node = |port: u16| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]});
    let balancer = |health: u16| {
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": health,
            "ports": [{"port": 80, "nodePort": 30001}]})
    };
    let mut held = node(30000);
    held["clusterIP"] = "10.96.1.1".into();
    api.post(SERVICES, service("a", held.clone())).await.expect(201);
    let both = api.post(SERVICES, service("b", held)).await.expect(422);
    let causes = both.body["details"]["causes"].as_array().unwrap();
    assert_eq!((causes.len(), &causes[0]["field"]), (1, &json!("spec.clusterIPs")));
    for (spec, code, why) in [
        (
            node(30000),
            422,
            "spec.ports[0].nodePort: Invalid value: 30000: provided port is already allocated",
        ),
        (
            balancer(30000),
            500,
            "Internal error occurred: failed to allocate requested HealthCheck NodePort 30000: provided port is \
             already allocated",
        ),
        (balancer(30001), 500, "HealthCheck NodePort 30001: provided port is already allocated"),
        (
            balancer(99),
            500,
            "HealthCheck NodePort 99: provided port is not in the valid range. The range of valid",
        ),
    ] {
        let reply = api.post(SERVICES, service("b", spec)).await.expect(code);
        assert!(reply.message().contains(why), "{}", reply.text);
    }
    api.post(SERVICES, service("b", balancer(30002))).await.expect(201);
    // One is left: enough for the port, and not for the check of it.
    let mut any = balancer(0);
    any["ports"] = json!([{"port": 80}]);
    let reply = api.post(SERVICES, service("c", any)).await.expect(500);
    let why = "Internal error occurred: failed to allocate a HealthCheck NodePort 0: range is full";
    assert_eq!((reply.message(), reply.reason()), (why, "InternalError"));
    let any = json!({"type": "NodePort", "ports": [{"port": 80}]});
    api.post(SERVICES, service("c", any.clone())).await.expect(201);
    let reply = api.post(SERVICES, service("d", any)).await.expect(500);
    let why = "Internal error occurred: failed to allocate a nodePort: range is full";
    assert_eq!((reply.message(), reply.reason()), (why, "InternalError"));
}
