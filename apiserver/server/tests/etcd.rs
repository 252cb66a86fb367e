//! Tests of the server over a real etcd: others can read what it stores, and it serves what others stored.

use std::sync::Arc;
use std::time::Duration;

use apiserver_server::ServerConfig;
use apiserver_store::{Op, Store, Write, Written};
use bytes::Bytes;
use k8s_pb::api::apps::v1::Deployment;
use k8s_pb::api::autoscaling::{v1 as autoscaling_v1, v2 as autoscaling_v2};
use k8s_pb::api::core::v1::{Container, Event, Namespace, Pod, PodSpec, RangeAllocation, Secret, Service};
use k8s_pb::api::networking::v1::{IPAddress, IPAddressSpec, ParentReference};
use k8s_pb::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prost::Message;
use serde_json::json;

use crate::api::envelope::{open, seal};
use crate::api::harness::{Api, deployment, pod};
use crate::etcd_server::EtcdServer;

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn start() -> (EtcdServer, Api) {
    let etcd = EtcdServer::start().await;
    let store: Arc<dyn Store> = Arc::new(etcd.connect().await.unwrap());
    let api = Api::over(ServerConfig::default(), store).await;
    (etcd, api)
}

/// Returns the value of a key in etcd, as foreign structs read it.
async fn stored<T: Message + Default>(api: &Api, key: &str) -> (String, String, T) {
    let value = api.store.get(key).await.unwrap().kv.unwrap_or_else(|| panic!("no {key}")).value;
    open(&value)
}

async fn lay(api: &Api, key: &str, value: impl Into<Bytes>) {
    let op = Op::Put { value: value.into(), ttl_seconds: 0 };
    let written = api.store.write(Write { key: key.to_owned(), expected: 0, op }).await.unwrap();
    assert!(matches!(written, Written::Done { .. }));
}

fn metadata(name: &str) -> Option<ObjectMeta> {
    let text = |text: &str| Some(text.to_owned());
    Some(ObjectMeta {
        name: text(name),
        namespace: text("default"),
        uid: text("u-1"),
        ..ObjectMeta::default()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_in_etcd_are_readable_by_kubernetes() {
    let (_etcd, api) = start().await;
    api.post(PODS, pod("p")).await.expect(201);
    let (version, kind, object): (_, _, Pod) = stored(&api, "/registry/pods/default/p").await;
    assert_eq!((version.as_str(), kind.as_str()), ("v1", "Pod"));
    assert_eq!(object.metadata.as_ref().unwrap().name(), "p");
    // The revision of the key determines it.
    assert_eq!(object.metadata.as_ref().unwrap().resource_version(), "");
    assert_eq!(object.spec.unwrap().containers[0].image(), "i");
    assert_eq!(object.status.unwrap().phase(), "Pending");

    api.post("/apis/apps/v1/namespaces/default/deployments", deployment("web")).await.expect(201);
    let (version, _, object): (_, _, Deployment) = stored(&api, "/registry/deployments/default/web").await;
    assert_eq!((version.as_str(), object.spec.unwrap().replicas()), ("apps/v1", 2));
    let secret = json!({"metadata": {"name": "s"}, "data": {"k": "AP8="}});
    api.post("/api/v1/namespaces/default/secrets", secret).await.expect(201);
    let (.., object): (_, _, Secret) = stored(&api, "/registry/secrets/default/s").await;
    assert_eq!(object.data["k"], [0, 0xff]);
    let (.., object): (_, _, Namespace) = stored(&api, "/registry/namespaces/kube-system").await;
    assert_eq!(object.status.unwrap().phase(), "Active");
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80, "targetPort": "http"}]}});
    api.post("/api/v1/namespaces/default/services", service).await.expect(201);
    let (.., object): (_, _, Service) = stored(&api, "/registry/services/specs/default/s").await;
    assert_eq!(object.spec.unwrap().ports[0].target_port.as_ref().unwrap().str_val(), "http");

    // Two versions of one kind are kept in one.
    let scaler = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3,
        "targetCPUUtilizationPercentage": 70, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let scalers = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    if api.post(scalers, scaler).await.code == 201 {
        let (version, _, object): (_, _, autoscaling_v2::HorizontalPodAutoscaler) =
            stored(&api, "/registry/horizontalpodautoscalers/default/h").await;
        assert_eq!((version.as_str(), object.spec.unwrap().max_replicas()), ("autoscaling/v2", 3));
    }
    api.server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_stored_by_kubernetes_are_served() {
    let (_etcd, api) = start().await;
    let mut watch = api.watch(&format!("{PODS}?watch=1")).await;
    let text = |text: &str| Some(text.to_owned());
    let container = Container { name: text("c"), image: text("i"), ..Container::default() };
    let spec = PodSpec { containers: vec![container], node_name: text("n1"), ..PodSpec::default() };
    let theirs = Pod { metadata: metadata("theirs"), spec: Some(spec), status: None };
    lay(&api, "/registry/pods/default/theirs", seal("v1", "Pod", &theirs)).await;
    assert_eq!(watch.brief().await, "ADDED theirs");
    let read = api.get(&format!("{PODS}/theirs")).await.expect(200).body;
    assert_eq!(read["metadata"]["uid"], "u-1");
    assert_eq!(read["spec"]["containers"], json!([{"name": "c", "image": "i", "resources": {}}]));
    let selected = api.get(&format!("{PODS}?fieldSelector=spec.nodeName%3Dn1")).await.expect(200);
    assert_eq!(selected.names(), ["theirs"]);
    // A change through the server builds on the stored object.
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    api.patch("merge", &format!("{PODS}/theirs"), patch).await.expect(200);
    let (.., object): (_, _, Pod) = stored(&api, "/registry/pods/default/theirs").await;
    assert_eq!(object.metadata.unwrap().labels["a"], "b");
    assert_eq!(object.spec.unwrap().node_name(), "n1");
    assert_eq!(watch.brief().await, "MODIFIED theirs");

    // JSON, as an earlier version of this server wrote it.
    let old = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "old", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    lay(&api, "/registry/pods/default/old", old.to_string()).await;
    assert_eq!(watch.brief().await, "ADDED old");
    api.get(&format!("{PODS}/old")).await.expect(200);

    // Events are kept as the core group's, autoscalers of old in v1.
    let event = Event { metadata: metadata("e"), message: text("m"), reason: text("r"), ..Event::default() };
    lay(&api, "/registry/events/default/e", seal("v1", "Event", &event)).await;
    let spec = autoscaling_v1::HorizontalPodAutoscalerSpec {
        max_replicas: Some(3),
        target_cpu_utilization_percentage: Some(70),
        ..Default::default()
    };
    let scaler = autoscaling_v1::HorizontalPodAutoscaler {
        metadata: metadata("h"),
        spec: Some(spec),
        ..Default::default()
    };
    let key = "/registry/horizontalpodautoscalers/default/h";
    lay(&api, key, seal("autoscaling/v1", "HorizontalPodAutoscaler", &scaler)).await;
    let read = api.get("/api/v1/namespaces/default/events/e").await.expect(200).body;
    assert_eq!(read["message"], "m");
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h";
    let read = api.get(path).await.expect(200).body;
    assert_eq!(read["apiVersion"], "autoscaling/v2");
    assert_eq!(read["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 70);

    // An unreadable object is an error of its own and harms nothing else.
    lay(&api, "/registry/pods/default/bad", &b"k8s\0\xff\xff"[..]).await;
    api.get(&format!("{PODS}/bad")).await.expect(500);
    assert_eq!(api.get(PODS).await.expect(200).names(), ["old", "theirs"]);
    api.server.stop();
}

/// The answer in time, or the test has found a request that hangs.
async fn soon<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(45), answer).await.expect("an answer within the request's time")
}

/// Creates an object, trying until the store is back, and returns its version.
async fn create_once_available(api: &Api, name: &str) -> String {
    for _ in 0..100 {
        let map = json!({"metadata": {"name": name}});
        let reply = api.post(MAPS, map).await;
        match reply.code {
            201 => return reply.version(),
            // It had happened, and only the answer was lost.
            409 => return api.get(&format!("{MAPS}/{name}")).await.expect(200).version(),
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
    panic!("the server does not find etcd again");
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Checks the answers of a server while etcd is killed or suspended.
async fn without_etcd(api: &Api, version: &str) {
    // Reads that the cache may answer continue.
    let reads = ["?resourceVersion=0".to_owned(), format!("?resourceVersion={version}")];
    for read in &reads {
        soon(api.get(&format!("{MAPS}/a{read}"))).await.expect(200);
        assert_eq!(soon(api.get(&format!("{MAPS}{read}"))).await.expect(200).names(), ["a"]);
    }
    // The rest fails with a Status that tells when to retry; all at the same time.
    let patch = json!({"data": {"a": "2"}});
    let path = format!("{MAPS}/a");
    let (get, list, create, patch, delete) = tokio::join!(
        soon(api.get(&path)),
        soon(api.get(MAPS)),
        soon(api.post(MAPS, json!({"metadata": {"name": "unheard-of"}}))),
        soon(api.patch("merge", &path, patch)),
        soon(api.delete(&path, serde_json::Value::Null)),
    );
    for reply in [get, list, create, patch, delete] {
        assert!(matches!(reply.code, 500 | 503 | 504), "{} {}", reply.code, reply.text);
        assert_eq!((&reply.body["kind"], &reply.body["status"]), (&json!("Status"), &json!("Failure")));
        assert!(!reply.message().is_empty());
        assert!(reply.code != 503 || reply.headers.contains_key("retry-after"), "{}", reply.text);
    }
}

/// Reads that the cache may answer continue, the rest fails soon, watches keep their place, and recovery
/// needs no action when etcd is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_outlives_etcd_that_goes_away() {
    let (mut etcd, api) = start().await;
    let version = api.config_map("a", json!({})).await;
    let mut watch = api.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    // The cache follows etcd a moment later; this read waits until it holds the object.
    api.get(&format!("{MAPS}/a?resourceVersion={version}")).await.expect(200);
    etcd.kill();
    without_etcd(&api, &version).await;
    etcd.start_again().await;
    create_once_available(&api, "b").await;
    assert_eq!(watch.brief().await, "ADDED b");
    let names = api.get(MAPS).await.expect(200);
    assert_eq!(names.names(), ["a", "b"], "what was refused did not happen");

    etcd.pause();
    without_etcd_held_up(&api, &version).await;
    etcd.resume();
    create_once_available(&api, "c").await;
    // A write without an answer may have happened, once; nothing else has, and all of it was watched in
    // order.
    let mut last = version.parse::<i64>().unwrap();
    loop {
        let event = soon(watch.next()).await.expect("the watch goes on");
        let at = event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<i64>().unwrap();
        assert!(at > last, "{event}");
        last = at;
        if event["object"]["metadata"]["name"] == "c" {
            break;
        }
    }
    soon(api.get("/readyz")).await.expect(200);
    api.server.stop();
}

async fn without_etcd_held_up(api: &Api, version: &str) {
    let cached = soon(api.get(&format!("{MAPS}/a?resourceVersion=0"))).await.expect(200);
    assert_eq!(cached.version(), version);
    let reply = soon(api.post(MAPS, json!({"metadata": {"name": "perhaps"}}))).await;
    assert!(matches!(reply.code, 500 | 503 | 504), "{}", reply.text);
    let reply = soon(api.get(MAPS)).await;
    assert!(matches!(reply.code, 500 | 503 | 504), "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_etcd_does_not_take_is_refused_as_kubernetes_does() {
    let (_etcd, api) = start().await;
    // A Deployment's annotations have a limit of their own; the arguments of a container have none.
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let large = |bytes: usize| {
        let mut large = deployment("a");
        large["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["x".repeat(bytes)]);
        large
    };
    for bytes in [1_572_864 - 200, 2 << 20] {
        let reply = api.post(path, large(bytes)).await.expect(500);
        assert_eq!(reply.message(), "etcdserver: request is too large");
        api.get(&format!("{path}/a")).await.expect(404);
    }
    api.post(path, large(1 << 20)).await.expect(201);
    api.server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_versions_that_only_have_another_name_are_served_and_written_anew() {
    use k8s_pb::api::rbac::v1::{PolicyRule, Role};
    let (_etcd, api) = start().await;
    let texts = |text: &str| vec![text.to_owned()];
    let rule = PolicyRule {
        verbs: texts("get"),
        api_groups: texts(""),
        resources: texts("pods"),
        ..PolicyRule::default()
    };
    let role = Role { metadata: metadata("r"), rules: vec![rule] };
    let key = "/registry/roles/default/r";
    lay(&api, key, seal("rbac.authorization.k8s.io/v1beta1", "Role", &role)).await;
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/r";
    let read = api.get(path).await.expect(200).body;
    assert_eq!(read["apiVersion"], "rbac.authorization.k8s.io/v1");
    assert_eq!(read["rules"][0]["resources"], json!(["pods"]));
    api.patch("merge", path, json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    let (version, ..): (_, _, Role) = stored(&api, key).await;
    assert_eq!(version, "rbac.authorization.k8s.io/v1");
    api.server.stop();
}

/// Two servers over one etcd hand out addresses and ports to many clients at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_give_nothing_out_twice() {
    let (etcd, one) = start().await;
    let two = Api::over(ServerConfig::default(), Arc::new(etcd.connect().await.unwrap())).await;
    let clients = (0..8)
        .map(|client| crate::api::several::churn(if client % 2 == 0 { &one } else { &two }, client, 15));
    futures::future::join_all(clients).await;
    crate::api::several::check(&one).await;
    crate::api::several::check(&two).await;
    // The stored value is that of a kube-apiserver.
    let ports = one.store.get("/registry/ranges/servicenodeports").await.unwrap().kv.unwrap().value;
    let (version, kind, range): (_, _, k8s_pb::api::core::v1::RangeAllocation) = open(&ports);
    assert_eq!((version.as_str(), kind.as_str(), range.range()), ("v1", "RangeAllocation", "30000-32767"));
    let set: u32 = range.data().iter().map(|byte| byte.count_ones()).sum();
    let services = one.get("/api/v1/services").await.expect(200).body;
    let held: std::collections::BTreeSet<i64> = services["items"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|service| service["spec"]["ports"].as_array().unwrap())
        .filter_map(|port| port["nodePort"].as_i64())
        .collect();
    assert_eq!(usize::try_from(set).unwrap(), held.len());
    let address = services["items"][0]["spec"]["clusterIP"].as_str().unwrap();
    let (version, _, claim): (_, _, IPAddress) =
        stored(&one, &format!("/registry/ipaddresses/{address}")).await;
    assert_eq!(version, "networking.k8s.io/v1");
    assert_eq!(claim.spec.unwrap().parent_ref.unwrap().resource(), "services");
    one.server.stop();
    two.server.stop();
}

/// An etcd with the data of a kube-apiserver can be served further.
#[tokio::test(flavor = "multi_thread")]
async fn claims_of_a_kube_apiserver_are_honoured() {
    let etcd = EtcdServer::start().await;
    let store: Arc<dyn Store> = Arc::new(etcd.connect().await.unwrap());
    let put = |key: &str, value: Vec<u8>| {
        let op = Op::Put { value: value.into(), ttl_seconds: 0 };
        store.write(Write { key: key.to_owned(), expected: 0, op })
    };
    let text = |text: &str| Some(text.to_owned());
    // Port 30010 is taken: bit 10 of the number.
    let range = RangeAllocation { metadata: None, range: text("30000-32767"), data: Some(vec![4, 0]) };
    put("/registry/ranges/servicenodeports", seal("v1", "RangeAllocation", &range)).await.unwrap();
    let parent = ParentReference {
        resource: text("services"),
        namespace: text("default"),
        name: text("theirs"),
        group: text(""),
    };
    let labels = [
        ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io"),
        ("ipaddress.kubernetes.io/ip-family", "IPv4"),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let address = IPAddress {
        metadata: Some(ObjectMeta {
            name: text("10.96.0.55"),
            labels,
            namespace: None,
            ..metadata("x").unwrap()
        }),
        spec: Some(IPAddressSpec { parent_ref: Some(parent) }),
    };
    put("/registry/ipaddresses/10.96.0.55", seal("networking.k8s.io/v1", "IPAddress", &address))
        .await
        .unwrap();
    let api = Api::over(ServerConfig::default(), Arc::clone(&store)).await;
    let services = "/api/v1/namespaces/default/services";
    let with = |spec: serde_json::Value| json!({"metadata": {"name": "a"}, "spec": spec});
    let address = with(json!({"clusterIP": "10.96.0.55", "ports": [{"port": 80}]}));
    api.post(services, address).await.expect(422);
    let port = with(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30010}]}));
    api.post(services, port).await.expect(422);
    api.post(services, with(json!({"ports": [{"port": 80}]}))).await.expect(201);
    api.server.stop();
}

/// The address of a server that dies is removed with its lease in etcd.
#[tokio::test(flavor = "multi_thread")]
async fn master_leases_are_those_of_kubernetes() {
    let etcd = EtcdServer::start().await;
    let advertise = |ip: &str| ServerConfig {
        advertise: Some(format!("{ip}:6443").parse().unwrap()),
        ..ServerConfig::default()
    };
    let one = Api::over(advertise("192.0.2.1"), Arc::new(etcd.connect().await.unwrap())).await;
    let two = Api::over(advertise("192.0.2.2"), Arc::new(etcd.connect().await.unwrap())).await;
    let (version, kind, lease): (_, _, k8s_pb::api::core::v1::Endpoints) =
        stored(&one, "/registry/masterleases/192.0.2.2").await;
    assert_eq!((version.as_str(), kind.as_str()), ("v1", "Endpoints"));
    assert_eq!(lease.subsets[0].addresses[0].ip(), "192.0.2.2");
    let path = "/api/v1/namespaces/default/endpoints/kubernetes";
    let addresses = async || one.get(path).await.expect(200).body["subsets"][0]["addresses"].clone();
    assert_eq!(addresses().await, json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]));
    two.server.drain().await;
    assert_eq!(addresses().await, json!([{"ip": "192.0.2.1"}]));
    one.server.stop();
    two.server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_etcd_are_passed_on_in_its_words() {
    let etcd = EtcdServer::start_small(2 << 20).await;
    let store: Arc<dyn Store> = Arc::new(etcd.connect().await.unwrap());
    let api = Api::over(ServerConfig::default(), store).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let mut refused = None;
    for number in 0..40 {
        let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"k": "x".repeat(200_000)}});
        let reply = api.post(maps, map).await;
        if reply.code != 201 {
            refused = Some(reply.expect(500));
            break;
        }
    }
    let refused = refused.expect("etcd is not full");
    assert_eq!(refused.message(), "etcdserver: mvcc: database space exceeded");
    assert_eq!(refused.body["kind"], "Status");
    // Existing objects can still be read.
    assert_eq!(api.get(&format!("{maps}/m0")).await.expect(200).body["metadata"]["name"], "m0");
}
