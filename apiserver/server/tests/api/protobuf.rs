//! Protobuf on the wire: what a Go client sends and wants, judged by foreign structs.

use std::sync::Arc;
use std::time::Duration;

use apiserver_kinds::builtin;
use apiserver_registry::Registry;
use apiserver_server::ServerConfig;
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use k8s_pb::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_pb::api::autoscaling::v1::{Scale, ScaleSpec};
use k8s_pb::api::core::v1::{
    Binding, ConfigMap, ConfigMapList, Container, ObjectReference, Pod, PodList, PodSpec,
};
use k8s_pb::api::policy::v1::Eviction;
use k8s_pb::apimachinery::pkg::apis::meta::v1::{
    APIResourceList, DeleteOptions, ObjectMeta, PartialObjectMetadata, PartialObjectMetadataList,
    Preconditions, Status, WatchEvent,
};
use prost::Message;
use serde_json::json;

use crate::api::envelope::{open, seal};
use crate::api::harness::{Api, deployment, pod};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const BOTH: &str = "application/vnd.kubernetes.protobuf,application/json";
const METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

struct Answer {
    code: u16,
    headers: HeaderMap,
    bytes: Bytes,
}

impl Answer {
    #[track_caller]
    fn object<T: Message + Default>(&self, code: u16, api_version: &str, kind: &str) -> T {
        assert_eq!(self.code, code, "{:?}", self.bytes);
        assert_eq!(self.headers["content-type"], PROTOBUF);
        let (found_version, found_kind, object) = open(&self.bytes);
        assert_eq!((found_version.as_str(), found_kind.as_str()), (api_version, kind));
        object
    }

    #[track_caller]
    fn refusal(&self, code: u16, reason: &str) {
        let status: Status = self.object(code, "v1", "Status");
        assert_eq!((status.code, status.reason.as_deref()), (Some(i32::from(code)), Some(reason)));
    }
}

async fn call(api: &Api, method: &str, path: &str, accept: &str, kind: &str, body: Vec<u8>) -> Answer {
    let request = Request::builder().method(method).uri(path).header("accept", accept);
    let request = request.header("content-type", kind).body(Bytes::from(body)).unwrap();
    let (parts, body) = api.send(request).await.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Answer { code: parts.status.as_u16(), headers: parts.headers, bytes }
}

async fn send(api: &Api, method: &str, path: &str, body: Vec<u8>) -> Answer {
    call(api, method, path, BOTH, PROTOBUF, body).await
}

async fn get(api: &Api, path: &str) -> Answer {
    send(api, "GET", path, Vec::new()).await
}

fn named(name: &str) -> Option<ObjectMeta> {
    Some(ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() })
}

fn foreign_pod(name: &str) -> Pod {
    let text = |text: &str| Some(text.to_owned());
    let container = Container { name: text("c"), image: text("i"), ..Container::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    Pod { metadata: named(name), spec: Some(spec), status: None }
}

#[tokio::test(start_paused = true)]
async fn objects_are_sent_and_answered_in_protobuf() {
    let api = Api::start().await;
    let made: Pod =
        send(&api, "POST", PODS, seal("v1", "Pod", &foreign_pod("p"))).await.object(201, "v1", "Pod");
    let metadata = made.metadata.as_ref().unwrap();
    assert!(!metadata.uid().is_empty() && !metadata.resource_version().is_empty());
    assert!(metadata.creation_timestamp.as_ref().unwrap().seconds() > 1_600_000_000);
    let spec = made.spec.as_ref().unwrap();
    assert_eq!((spec.restart_policy(), spec.termination_grace_period_seconds()), ("Always", 30));
    assert_eq!(made.status.as_ref().unwrap().phase(), "Pending");

    let read: Pod = get(&api, &format!("{PODS}/p")).await.object(200, "v1", "Pod");
    assert_eq!(read, made);
    let mut changed = read;
    changed.metadata.as_mut().unwrap().labels.insert("a".to_owned(), "b".to_owned());
    let changed = seal("v1", "Pod", &changed);
    let changed: Pod = send(&api, "PUT", &format!("{PODS}/p"), changed).await.object(200, "v1", "Pod");
    assert_eq!(changed.metadata.unwrap().labels["a"], "b");

    let patch = json!({"metadata": {"labels": {"c": "d"}}}).to_string().into_bytes();
    let kind = "application/merge-patch+json";
    let patched = call(&api, "PATCH", &format!("{PODS}/p"), PROTOBUF, kind, patch).await;
    let patched: Pod = patched.object(200, "v1", "Pod");
    assert_eq!(patched.metadata.unwrap().labels.len(), 2);
    assert_eq!(api.get(&format!("{PODS}/p")).await.expect(200).body["metadata"]["labels"]["c"], "d");

    let dry = seal("v1", "Pod", &foreign_pod("dry"));
    let dry: Pod = send(&api, "POST", &format!("{PODS}?dryRun=All"), dry).await.object(201, "v1", "Pod");
    assert_eq!(dry.metadata.unwrap().name(), "dry");
}

#[tokio::test(start_paused = true)]
async fn refusals_and_answers_of_other_kinds_are_protobuf_too() {
    let api = Api::start().await;
    get(&api, &format!("{PODS}/none")).await.refusal(404, "NotFound");
    send(&api, "POST", PODS, seal("v1", "Pod", &Pod::default())).await.refusal(422, "Invalid");
    send(&api, "POST", PODS, b"k8s\0\xff".to_vec()).await.refusal(400, "BadRequest");
    get(&api, "/api/v1/frobs").await.refusal(404, "NotFound");
    let list: APIResourceList = get(&api, "/apis/apps/v1").await.object(200, "v1", "APIResourceList");
    assert!(
        list.resources
            .iter()
            .any(|r| r.name() == "deployments" && !r.verbs.as_ref().unwrap().items.is_empty())
    );

    api.post(DEPLOYMENTS, deployment("web")).await.expect(201);
    let path = format!("{DEPLOYMENTS}/web/scale");
    let mut scale: Scale = get(&api, &path).await.object(200, "autoscaling/v1", "Scale");
    assert_eq!(scale.status.as_ref().unwrap().selector(), "app=web");
    scale.spec = Some(ScaleSpec { replicas: Some(5) });
    let scale = seal("autoscaling/v1", "Scale", &scale);
    let scale: Scale = send(&api, "PUT", &path, scale).await.object(200, "autoscaling/v1", "Scale");
    assert_eq!(scale.spec.as_ref().unwrap().replicas(), 5);
    // Zero is what Go's JSON would leave out.
    let none = Scale { spec: Some(ScaleSpec { replicas: Some(0) }), ..scale };
    let none = seal("autoscaling/v1", "Scale", &none);
    let none: Scale = send(&api, "PUT", &path, none).await.object(200, "autoscaling/v1", "Scale");
    assert_eq!(none.spec.unwrap().replicas(), 0);

    let attributes = ResourceAttributes {
        verb: Some("get".to_owned()),
        resource: Some("pods".to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec {
        resource_attributes: Some(attributes),
        ..SelfSubjectAccessReviewSpec::default()
    };
    let review = SelfSubjectAccessReview { spec: Some(spec), ..SelfSubjectAccessReview::default() };
    let (version, kind) = ("authorization.k8s.io/v1", "SelfSubjectAccessReview");
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review: SelfSubjectAccessReview =
        send(&api, "POST", path, seal(version, kind, &review)).await.object(201, version, kind);
    assert!(review.status.unwrap().allowed());
}

#[tokio::test(start_paused = true)]
async fn bindings_evictions_and_options_are_read() {
    let api = Api::start().await;
    api.post(PODS, pod("p")).await.expect(201);
    let target = ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some("n".to_owned()),
        ..ObjectReference::default()
    };
    let binding = seal("v1", "Binding", &Binding { metadata: named("p"), target: Some(target) });
    let done = send(&api, "POST", &format!("{PODS}/p/binding"), binding).await;
    let _: Status = done.object(201, "v1", "Status");
    assert_eq!(api.get(&format!("{PODS}/p")).await.expect(200).body["spec"]["nodeName"], "n");

    let wrong = Preconditions { uid: Some("other".to_owned()), ..Preconditions::default() };
    let options = DeleteOptions { preconditions: Some(wrong), ..DeleteOptions::default() };
    let options = seal("v1", "DeleteOptions", &options);
    send(&api, "DELETE", &format!("{PODS}/p"), options).await.refusal(409, "Conflict");
    let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    let eviction = Eviction { metadata: named("p"), delete_options: Some(options) };
    let older = seal("policy/v1beta1", "Eviction", &eviction);
    let done = send(&api, "POST", &format!("{PODS}/p/eviction?dryRun=All"), older).await;
    let _: Status = done.object(201, "v1", "Status");
    let eviction = seal("policy/v1", "Eviction", &eviction);
    let done = send(&api, "POST", &format!("{PODS}/p/eviction"), eviction).await;
    let done: Status = done.object(201, "v1", "Status");
    assert_eq!(done.status(), "Success");
    get(&api, &format!("{PODS}/p")).await.refusal(404, "NotFound");
}

#[tokio::test(start_paused = true)]
async fn lists_are_the_same_as_in_json_small_or_large() {
    let api = Api::start().await;
    for i in 0..40 {
        // The larger ones make pieces of their own, and more than is kept while they are counted.
        let size = if i < 4 { 10 } else { 50_000 };
        let map = json!({"metadata": {"name": format!("m{i:02}")}, "data": {"k": "x".repeat(size)}});
        api.post(MAPS, map).await.expect(201);
        if i != 3 && i != 39 {
            continue;
        }
        // The second time the lengths are known.
        for _ in 0..2 {
            let list: ConfigMapList = get(&api, MAPS).await.object(200, "v1", "ConfigMapList");
            let json = api.get(MAPS).await.expect(200);
            assert_eq!(list.metadata.unwrap().resource_version(), json.version());
            let names: Vec<_> = list.items.iter().map(|m| m.metadata.as_ref().unwrap().name()).collect();
            assert_eq!(names, json.names());
            for (map, other) in list.items.iter().zip(json.body["items"].as_array().unwrap()) {
                assert_eq!(map.data["k"], other["data"]["k"].as_str().unwrap());
                let version = map.metadata.as_ref().unwrap().resource_version();
                assert_eq!(version, other["metadata"]["resourceVersion"].as_str().unwrap());
            }
        }
    }
    let page: ConfigMapList = get(&api, &format!("{MAPS}?limit=3")).await.object(200, "v1", "ConfigMapList");
    assert_eq!((page.items.len(), page.metadata.as_ref().unwrap().remaining_item_count()), (3, 37));
    let token = page.metadata.unwrap().r#continue().to_owned();
    let rest: ConfigMapList =
        get(&api, &format!("{MAPS}?continue={token}")).await.object(200, "v1", "ConfigMapList");
    assert_eq!(rest.items.len(), 37);
    let none: PodList = get(&api, PODS).await.object(200, "v1", "PodList");
    assert!(none.items.is_empty());
    get(&api, &format!("{MAPS}?resourceVersion=x")).await.refusal(400, "BadRequest");
}

#[tokio::test(start_paused = true)]
async fn a_large_list_comes_in_pieces_and_compressed() {
    let api = Api::start().await;
    for i in 0..30 {
        let map = json!({"metadata": {"name": format!("m{i}")}, "data": {"k": "x".repeat(50_000)}});
        api.post(MAPS, map).await.expect(201);
    }
    let request = Request::builder().uri(MAPS).header("accept", PROTOBUF).body(Bytes::new()).unwrap();
    let mut body = api.send(request).await.into_body();
    let (mut pieces, mut whole) = (0, Vec::new());
    while let Some(frame) = body.frame().await {
        let data = frame.unwrap().into_data().unwrap();
        assert!(data.len() < 128 * 1024);
        pieces += 1;
        whole.extend_from_slice(&data);
    }
    assert!(pieces > 20, "{pieces}");
    let (_, _, list): (_, _, ConfigMapList) = open(&whole);
    assert_eq!(list.items.len(), 30);

    let request = Request::builder().uri(MAPS).header("accept", PROTOBUF).header("accept-encoding", "gzip");
    let response = api.send(request.body(Bytes::new()).unwrap()).await;
    assert_eq!(response.headers()["content-encoding"], "gzip");
    let packed = response.into_body().collect().await.unwrap().to_bytes();
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed[..]), &mut unpacked).unwrap();
    assert_eq!(unpacked, whole);
}

#[tokio::test(start_paused = true)]
async fn metadata_alone_and_tables() {
    let api = Api::start().await;
    api.config_map("a", json!({"x": "y"})).await;
    let path = format!("{MAPS}/a");
    let (version, kind) = ("meta.k8s.io/v1", "PartialObjectMetadata");
    let object: PartialObjectMetadata =
        call(&api, "GET", &path, METADATA, PROTOBUF, Vec::new()).await.object(200, version, kind);
    assert_eq!(object.metadata.unwrap().labels["x"], "y");
    let list = call(&api, "GET", MAPS, METADATA_LIST, PROTOBUF, Vec::new()).await;
    let list: PartialObjectMetadataList = list.object(200, version, "PartialObjectMetadataList");
    assert_eq!(list.items.len(), 1);
    assert_eq!(list.items[0].metadata.as_ref().unwrap().name(), "a");
    assert!(!list.metadata.unwrap().resource_version().is_empty());
    let table = "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1";
    // In the refusal nothing of the wish can be met but its encoding.
    assert_eq!(call(&api, "GET", MAPS, table, PROTOBUF, Vec::new()).await.code, 406);
    let both = format!("{table},application/json;as=Table;g=meta.k8s.io;v=v1");
    assert_eq!(api.get_as(MAPS, &both).await.expect(200).body["kind"], "Table");
}

#[tokio::test(start_paused = true)]
async fn custom_resources_have_no_protobuf_but_their_metadata_has() {
    let mut kinds: Vec<_> = builtin::registry().iter().map(|r| (**r).clone()).collect();
    let mut custom = kinds.iter().find(|r| r.plural == "configmaps").unwrap().clone();
    (custom.group, custom.version) = ("example.com".to_owned(), "v1".to_owned());
    (custom.plural, custom.kind) = ("frobs".to_owned(), "Frob".to_owned());
    custom.storage_prefix = "/registry/example.com/frobs".to_owned();
    kinds.push(custom);
    let api = Api::of_kinds(Registry::new(kinds)).await;
    let path = "/apis/example.com/v1/namespaces/default/frobs";
    let body = seal("example.com/v1", "Frob", &ConfigMap { metadata: named("f"), ..ConfigMap::default() });
    send(&api, "POST", path, body).await.refusal(415, "UnsupportedMediaType");
    let frob = json!({"apiVersion": "example.com/v1", "kind": "Frob", "metadata": {"name": "f"}});
    api.post(path, frob).await.expect(201);
    assert_eq!(api.get_as(path, BOTH).await.expect(200).body["kind"], "FrobList");
    assert_eq!(api.get_as(&format!("{path}/f"), BOTH).await.expect(200).body["kind"], "Frob");
    call(&api, "GET", path, PROTOBUF, PROTOBUF, Vec::new()).await.refusal(406, "NotAcceptable");
    let list = call(&api, "GET", path, METADATA_LIST, PROTOBUF, Vec::new()).await;
    let list: PartialObjectMetadataList = list.object(200, "meta.k8s.io/v1", "PartialObjectMetadataList");
    assert_eq!(list.items.len(), 1);
}

/// An empty struct and none, a zero and none: Go cannot distinguish them, so they are not a change.
#[tokio::test(start_paused = true)]
async fn update_equal_in_protobuf_changes_nothing() {
    let api = Api::start().await;
    let made = api.post(DEPLOYMENTS, deployment("web")).await.expect(201).body;
    let mut same = made.clone();
    same["spec"]["minReadySeconds"] = json!(0);
    same["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({});
    let path = format!("{DEPLOYMENTS}/web");
    let put = api.put(&path, same.clone()).await.expect(200).body;
    assert_eq!(put["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    // With a label it is a change, but none of the generation.
    same["metadata"]["labels"] = json!({"a": "b"});
    let put = api.put(&path, same.clone()).await.expect(200).body;
    assert_ne!(put["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    assert_eq!(put["metadata"]["generation"], 1);
    // A pointer to an empty struct means something.
    same["spec"]["template"]["spec"]["securityContext"] = json!(null);
    same["spec"]["template"]["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    same["metadata"]["resourceVersion"] = put["metadata"]["resourceVersion"].clone();
    let put = api.put(&path, same).await.expect(200).body;
    assert_eq!(put["metadata"]["generation"], 2);
}

/// A watch in protobuf.
struct Watch {
    body: apiserver_server::Body,
    buffer: Vec<u8>,
}

impl Watch {
    async fn open(api: &Api, path: &str, accept: &str) -> Self {
        let request = Request::builder().uri(path).header("accept", accept).body(Bytes::new()).unwrap();
        let response = api.send(request).await;
        assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf;stream=watch");
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    async fn next<T: Message + Default>(&mut self) -> (String, String, T) {
        loop {
            if let Some((length, rest)) = self.buffer.split_first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if let Some(event) = rest.get(..length) {
                    let event = WatchEvent::decode(event).unwrap();
                    self.buffer.drain(..4 + length);
                    let (_, kind, object) = open(event.object.unwrap().raw());
                    return (event.r#type.unwrap(), kind, object);
                }
            }
            let frame = tokio::time::timeout(Duration::from_secs(600), self.body.frame());
            let frame = frame.await.expect("an event in time").expect("the watch goes on").unwrap();
            self.buffer.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// The next event about a ConfigMap: type, name and resource version.
    async fn map(&mut self) -> (String, String, i64) {
        let (event, kind, map): (_, _, ConfigMap) = self.next().await;
        assert_eq!(kind, "ConfigMap");
        let metadata = map.metadata.unwrap();
        (event, metadata.name().to_owned(), metadata.resource_version().parse().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn watches_send_frames_of_length_and_event() {
    let api = Api::start().await;
    api.config_map("a", json!({"x": "y"})).await;
    let path = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&labelSelector=x"
    );
    let accept = "application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch";
    let mut watch = Watch::open(&api, &path, accept).await;
    let mut other = Watch::open(&api, &path, accept).await;
    let added = watch.map().await;
    assert_eq!((added.0.as_str(), added.1.as_str()), ("ADDED", "a"));
    let (event, kind, map): (_, _, ConfigMap) = watch.next().await;
    assert_eq!((event.as_str(), kind.as_str()), ("BOOKMARK", "ConfigMap"));
    assert_eq!(map.metadata.unwrap().annotations["k8s.io/initial-events-end"], "true");
    let before = added.2;
    let patch = json!({"data": {"b": "2"}});
    api.patch("merge", &format!("{MAPS}/a"), patch).await.expect(200);
    api.config_map("b", json!({"x": "z"})).await;
    let patch = json!({"metadata": {"labels": {"x": null}}});
    api.patch("merge", &format!("{MAPS}/b"), patch).await.expect(200);
    api.delete(&format!("{MAPS}/a"), serde_json::Value::Null).await.expect(200);
    let mut last = before;
    for wanted in [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "b"), ("DELETED", "a")] {
        let (event, name, revision) = watch.map().await;
        assert_eq!((event.as_str(), name.as_str()), wanted);
        assert!(revision > last, "{revision}");
        last = revision;
    }
    let (event, _, map): (_, _, ConfigMap) = watch.next().await;
    assert_eq!(event, "BOOKMARK");
    assert!(map.metadata.unwrap().resource_version().parse::<i64>().unwrap() >= last);
    // Another watcher gets the same frames.
    let mut events = Vec::new();
    for _ in 0..6 {
        let (event, _, _): (_, _, ConfigMap) = other.next().await;
        events.push(event);
    }
    assert_eq!(events, ["ADDED", "BOOKMARK", "MODIFIED", "ADDED", "DELETED", "DELETED"]);
}

#[tokio::test(start_paused = true)]
async fn watches_of_metadata_and_expired_ones() {
    let api = Api::start().await;
    let version = api.config_map("a", json!({})).await;
    let mut watch = Watch::open(&api, &format!("{MAPS}?watch=1"), METADATA).await;
    let (event, kind, object): (_, _, PartialObjectMetadata) = watch.next().await;
    assert_eq!((event.as_str(), kind.as_str()), ("ADDED", "PartialObjectMetadata"));
    assert_eq!(object.metadata.unwrap().resource_version(), version);
    // A server that has just started knows the history that the store has.
    let now = api.store.revision().await.unwrap();
    api.store.compact(now).await.unwrap();
    let later = Api::over(ServerConfig::default(), Arc::clone(&api.store)).await;
    let mut expired = Watch::open(&later, &format!("{MAPS}?watch=1&resourceVersion=1"), PROTOBUF).await;
    let (event, kind, status): (_, _, Status) = expired.next().await;
    assert_eq!((event.as_str(), kind.as_str(), status.code()), ("ERROR", "Status", 410));
}
