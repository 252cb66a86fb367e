//! Tests of several servers over one store, which are one API: their allocations, and their knowledge of each
//! other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use apiserver_server::ServerConfig;
use apiserver_store::Range;
use apiserver_store::Store;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use serde_json::{Value, json};

use crate::api::harness::Api;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

fn config(address: &str, host: &str) -> ServerConfig {
    ServerConfig {
        advertise: Some(format!("{address}:6443").parse().unwrap()),
        identity: Some(host.to_owned()),
        ..ServerConfig::default()
    }
}

async fn two(seed: u64) -> (Api, Api) {
    // Syncs take a moment, so that the servers' writes fall between each other.
    let disk = Arc::new(SimDisk::new(seed).with_sync_time(Duration::from_millis(1)));
    let store: Arc<dyn Store> = Arc::new(Embedded::open(disk, Options::default()).await.unwrap());
    let one = Api::over(config("192.0.2.1", "one"), Arc::clone(&store)).await;
    (one, Api::over(config("192.0.2.2", "two"), store).await)
}

async fn keys(api: &Api, prefix: &str) -> Vec<String> {
    let range = Range { prefix: prefix.to_owned(), ..Range::default() };
    let page = api.store.list(range).await.unwrap();
    page.kvs.iter().map(|kv| kv.key.rsplit('/').next().unwrap().to_owned()).collect()
}

/// Each client creates Services through its server, and deletes every second one.
pub async fn churn(api: &Api, client: usize, rounds: usize) {
    for round in 0..rounds {
        let name = format!("s-{client}-{round}");
        let spec = if round % 3 == 0 {
            json!({"type": "NodePort", "ports": [
                {"name": "t", "port": 53, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}]})
        } else {
            json!({"ports": [{"port": 80}]})
        };
        api.post(SERVICES, json!({"metadata": {"name": name}, "spec": spec})).await.expect(201);
        if round % 2 == 0 {
            api.delete(&format!("{SERVICES}/{name}"), Value::Null).await.expect(200);
        }
    }
}

/// Checks that nothing is held twice, and that the claims are those of the Services.
pub async fn check(api: &Api) {
    let services = api.get(SERVICES).await.expect(200).body;
    let (mut addresses, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for service in services["items"].as_array().unwrap() {
        for ip in service["spec"]["clusterIPs"].as_array().unwrap() {
            assert!(addresses.insert(ip.as_str().unwrap().to_owned()), "{ip} is held twice");
        }
        let own: BTreeSet<i64> = service["spec"]["ports"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|port| port["nodePort"].as_i64())
            .collect();
        for port in own {
            assert!(ports.insert(port), "{port} is held twice");
        }
    }
    let claimed: BTreeSet<String> = keys(api, "/registry/ipaddresses/").await.into_iter().collect();
    assert_eq!(claimed, addresses, "neither missing nor leaked");
    // Every port is free again or taken, as in the Services.
    for port in ports {
        let spec = json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]});
        let probe = json!({"metadata": {"name": "probe"}, "spec": spec});
        api.post(&format!("{SERVICES}?dryRun=All"), probe).await.expect(422);
    }
}

#[tokio::test(start_paused = true)]
async fn no_address_or_port_is_given_out_twice_and_none_is_lost() {
    for seed in 1..=6 {
        let (one, two) = two(seed).await;
        let clients = (0..8).map(|client| churn(if client % 2 == 0 { &one } else { &two }, client, 12));
        futures::future::join_all(clients).await;
        check(&one).await;
        check(&two).await;
        one.server.stop();
        two.server.stop();
    }
}

#[tokio::test(start_paused = true)]
async fn one_address_asked_for_by_many_goes_to_one() {
    let (one, two) = two(9).await;
    let ask = |api: &'static str, number: usize| (api, number);
    let asked: Vec<_> = (0..10).map(|n| ask(if n % 2 == 0 { "one" } else { "two" }, n)).collect();
    let results = futures::future::join_all(asked.into_iter().map(|(which, number)| {
        let api = if which == "one" { &one } else { &two };
        let spec = json!({"type": "NodePort", "clusterIP": "10.96.0.77", "ports": [{"port": 80, "nodePort": 30077}]});
        let name = format!("s{number}");
        async move { api.post(SERVICES, json!({"metadata": {"name": name}, "spec": spec})).await.code }
    }))
    .await;
    assert_eq!(results.iter().filter(|code| **code == 201).count(), 1, "{results:?}");
    assert!(results.iter().all(|code| [201, 422].contains(code)), "{results:?}");
    check(&one).await;
}

async fn endpoints(api: &Api) -> Vec<String> {
    let slice = api.get(SLICE).await.expect(200).body;
    let endpoints = slice["endpoints"].as_array().unwrap();
    let found = endpoints.iter().map(|e| e["addresses"][0].as_str().unwrap().to_owned()).collect();
    let object = api.get("/api/v1/namespaces/default/endpoints/kubernetes").await.expect(200).body;
    let same: Vec<String> = object["subsets"][0]["addresses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["ip"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(same, found);
    found
}

#[tokio::test(start_paused = true)]
async fn the_endpoints_of_kubernetes_are_the_servers_that_are_alive() {
    let (one, two) = two(3).await;
    assert_eq!(endpoints(&one).await, ["192.0.2.1", "192.0.2.2"]);
    assert_eq!(keys(&one, "/registry/masterleases/").await, ["192.0.2.1", "192.0.2.2"]);
    let ip = one.get(&format!("{SERVICES}/kubernetes")).await.expect(200).body;
    assert_eq!(ip["spec"]["clusterIP"], "10.96.0.1");
    // One dies: its key runs out and the other takes its address away.
    one.server.stop();
    tokio::time::sleep(Duration::from_secs(26)).await;
    assert_eq!(endpoints(&two).await, ["192.0.2.2"]);
    // A new server starts, and shuts down in good order: at once.
    let three = Api::over(config("192.0.2.3", "three"), Arc::clone(&two.store)).await;
    assert_eq!(endpoints(&three).await, ["192.0.2.2", "192.0.2.3"]);
    three.server.drain().await;
    assert_eq!(endpoints(&two).await, ["192.0.2.2"]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(endpoints(&two).await, ["192.0.2.2"]);
    // The last one's address stays.
    two.server.drain().await;
    assert_eq!(endpoints(&two).await, ["192.0.2.2"]);
}

/// A server that died after the claim of the address and before the write of the Service.
#[tokio::test(start_paused = true)]
async fn the_own_service_takes_over_a_claim_that_was_left_behind() {
    let api = Api::with(config("192.0.2.1", "one")).await;
    api.server.stop();
    for key in ["services/specs/default/kubernetes", "services/endpoints/default/kubernetes"] {
        let key = format!("/registry/{key}");
        let expected = api.store.get(&key).await.unwrap().kv.unwrap().mod_revision;
        let op = apiserver_store::Op::Delete;
        api.store.write(apiserver_store::Write { key, expected, op }).await.unwrap();
    }
    let again = Api::over(config("192.0.2.1", "one"), Arc::clone(&api.store)).await;
    let service = again.get(&format!("{SERVICES}/kubernetes")).await.expect(200).body;
    assert_eq!(service["spec"]["clusterIP"], "10.96.0.1");
    // The address stays reserved, even while the Service is away.
    again.delete(&format!("{SERVICES}/kubernetes"), Value::Null).await.expect(200);
    let thief =
        json!({"metadata": {"name": "thief"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}});
    again.post(SERVICES, thief).await.expect(422);
}

async fn leases(api: &Api) -> Vec<(String, String)> {
    let selector = "labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?{selector}");
    let list = api.get(&path).await.expect(200).body;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let items = list["items"].as_array().unwrap().iter();
    let mut found: Vec<_> = items
        .map(|l| {
            (text(&l["metadata"]["labels"]["kubernetes.io/hostname"]), text(&l["spec"]["holderIdentity"]))
        })
        .collect();
    found.sort();
    found
}

#[tokio::test(start_paused = true)]
async fn each_server_has_a_lease() {
    let (one, two) = two(4).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let found = leases(&one).await;
    assert_eq!(found.iter().map(|(host, _)| host.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert!(found[0].1.starts_with("apiserver-") && found[0].1.contains('_'), "{found:?}");
    let name = found[0].1.split('_').next().unwrap();
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}");
    let before = one.get(&path).await.expect(200);
    tokio::time::sleep(Duration::from_secs(11)).await;
    let after = one.get(&path).await.expect(200);
    assert_ne!(before.version(), after.version(), "it is renewed");
    assert_eq!(after.body["spec"]["leaseDurationSeconds"], 3600);
    two.server.drain().await;
    two.server.stop();
    assert_eq!(leases(&one).await.len(), 1, "a server that ends takes it back");
    let events = one.get("/api/v1/namespaces/kube-system/events").await.expect(200).body;
    assert_eq!(events["items"][0]["reason"], "TerminationStart");
    assert!(one.get("/livez?verbose").await.text.contains("identity-lease-controller ok"));
}

#[tokio::test(start_paused = true)]
async fn namespaces_of_the_system_come_back_and_three_cannot_be_deleted() {
    let api = Api::start().await;
    for name in ["default", "kube-system", "kube-public"] {
        let reply = api.delete(&format!("/api/v1/namespaces/{name}"), Value::Null).await.expect(403);
        assert!(reply.message().contains("this namespace may not be deleted"), "{}", reply.text);
    }
    let path = "/api/v1/namespaces/kube-node-lease";
    let mut namespace = api.delete(path, Value::Null).await.expect(200).body;
    namespace["spec"]["finalizers"] = json!([]);
    api.put(&format!("{path}/finalize"), namespace).await.expect(200);
    api.get(path).await.expect(404);
    tokio::time::sleep(Duration::from_secs(61)).await;
    api.get(path).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn events_live_as_long_as_they_are_told_to() {
    let api =
        Api::with(ServerConfig { event_ttl: Duration::from_secs(120), ..ServerConfig::default() }).await;
    let event =
        json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "message": "m"});
    api.post("/api/v1/namespaces/default/events", event).await.expect(201);
    tokio::time::sleep(Duration::from_secs(100)).await;
    api.get("/api/v1/namespaces/default/events/e").await.expect(200);
    tokio::time::sleep(Duration::from_secs(30)).await;
    api.get("/api/v1/namespaces/default/events/e").await.expect(404);
}

/// Servers of one machine that differ by their ports have one key: the one that ends leaves it to the
/// other.
#[tokio::test(start_paused = true)]
async fn the_endpoint_of_two_servers_at_one_address_stays_until_both_end() {
    let store: Arc<dyn Store> =
        Arc::new(Embedded::open(Arc::new(SimDisk::new(3)), Options::default()).await.unwrap());
    let one = Api::over(config("192.0.2.1", "one"), Arc::clone(&store)).await;
    let two = Api::over(config("192.0.2.1", "two"), store).await;
    tokio::time::sleep(Duration::from_secs(25)).await;
    one.server.drain().await;
    one.server.stop();
    assert_eq!(keys(&two, "/registry/masterleases/").await, ["192.0.2.1"]);
    // Alone, it takes the key along.
    tokio::time::sleep(Duration::from_secs(25)).await;
    two.server.drain().await;
    assert!(keys(&two, "/registry/masterleases/").await.is_empty());
}
