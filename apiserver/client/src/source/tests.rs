use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver_messages::random::Random;
use apiserver_messages::{Encoded, Field, Kind, Message, kinds};
use apiserver_schema::protobuf;
use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::StreamBody;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tower::BoxError;

use super::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const SILENCE: Duration = Duration::from_secs(1);

/// Requests of a client: the `Accept` header, and the query.
type Asked = Arc<Mutex<Vec<(String, String)>>>;

/// Returns ConfigMaps of a server that gives these answers, one after the other: a status, a content type, and pieces of
/// a body.
fn source(answers: Vec<(u16, &'static str, Vec<Vec<u8>>)>) -> (Source<ConfigMap>, Asked) {
    let asked = Asked::default();
    let (log, answers) = (Arc::clone(&asked), Arc::new(Mutex::new(answers.into_iter())));
    let service = tower::service_fn(move |request: Request<Body>| {
        let accept = request.headers()[ACCEPT].to_str().unwrap().to_owned();
        log.lock().unwrap().push((accept, request.uri().query().unwrap().to_owned()));
        let (status, content_type, pieces) = answers.lock().unwrap().next().unwrap();
        // It panics if it is read after its end, as bodies may.
        let pieces = futures::stream::unfold(pieces.into_iter(), |mut pieces| async move {
            let piece = pieces.next()?;
            Some((piece, pieces))
        });
        let frames = pieces.map(|piece| Ok::<_, BoxError>(hyper::body::Frame::data(Bytes::from(piece))));
        let answer = Response::builder().status(status).header(CONTENT_TYPE, content_type);
        let answer = answer.body(StreamBody::new(frames));
        async move { Ok::<_, BoxError>(answer?) }
    });
    let path = ConfigMap::url_path(&(), None);
    (Source::new(Client::new(service, "default"), path, "", ""), asked)
}

fn config_map(name: &str, version: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "resourceVersion": version},
        "data": {"a": "b"}})
}

fn frame(event: &str, object: &Value) -> Vec<u8> {
    let object = protobuf::Object::of(protobuf::of_object(object).unwrap(), object).unwrap();
    protobuf::watch_frame(event, &object).unwrap()
}

fn line(event: &str, object: &Value) -> Vec<u8> {
    format!("{}\n", json!({"type": event, "object": object})).into_bytes()
}

/// Describes events as `+NAME@VERSION`, `-NAME@VERSION` and `=VERSION`.
fn shown(events: Vec<Event<ConfigMap>>) -> Vec<String> {
    let named = |sign: char, object: Readable<ConfigMap>| {
        let meta = object.object().unwrap().metadata;
        format!("{sign}{}@{}", meta.name.unwrap(), meta.resource_version.unwrap())
    };
    let show = |event| match event {
        Event::Applied(object) => named('+', object),
        Event::Deleted(object) => named('-', object),
        Event::Bookmark { version, ends_state } => format!("={version}{}", if ends_state { "!" } else { "" }),
        Event::Failed(status) => format!("failed {}", status.code),
    };
    events.into_iter().map(show).collect()
}

fn bookmark(version: &str, annotations: &Value) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"resourceVersion": version, "annotations": annotations}})
}

#[tokio::test]
async fn events_are_the_same_in_both_encodings_however_the_bytes_arrive() {
    let events = [
        ("ADDED", config_map("a", "5")),
        ("BOOKMARK", bookmark("6", &json!({"k8s.io/initial-events-end": "true"}))),
        ("MODIFIED", config_map("b", "7")),
        ("DELETED", config_map("a", "8")),
        ("BOOKMARK", bookmark("9", &json!({}))),
    ];
    for (media, encode) in [
        ("application/json", line as fn(&str, &Value) -> Vec<u8>),
        ("application/vnd.kubernetes.protobuf;stream=watch", frame),
    ] {
        let bytes: Vec<u8> = events.iter().flat_map(|(event, object)| encode(event, object)).collect();
        for size in [1, 7, 100, bytes.len()] {
            let pieces = bytes.chunks(size).map(<[u8]>::to_vec).collect();
            let (mut source, asked) = source(vec![(200, media, pieces)]);
            let mut stream = source.watch(Begin::State).await.unwrap();
            let mut found = Vec::new();
            while let Some(batch) = stream.batch(SILENCE).await {
                assert!(batch.failure.is_none());
                found.extend(shown(batch.events));
            }
            assert_eq!(found, ["+a@5", "=6!", "+b@7", "-a@8", "=9"], "{media} in pieces of {size}");
            let (accept, query) = asked.lock().unwrap()[0].clone();
            assert_eq!(accept, "application/vnd.kubernetes.protobuf, application/json");
            for part in ["watch=true", "sendInitialEvents=true", "resourceVersionMatch=NotOlderThan"] {
                assert!(query.contains(part), "{query}");
            }
            assert!(query.ends_with("resourceVersion="), "as new as the request: {query}");
        }
    }
}

#[tokio::test]
async fn events_that_have_arrived_together_are_one_batch() {
    let pieces = vec![line("ADDED", &config_map("a", "1")), line("ADDED", &config_map("b", "2"))];
    let (mut source, _) = source(vec![(200, "application/json", pieces)]);
    let mut stream = source.watch(Begin::After("0")).await.unwrap();
    assert_eq!(shown(stream.batch(SILENCE).await.unwrap().events), ["+a@1", "+b@2"]);
    assert!(stream.batch(SILENCE).await.is_none());
}

#[tokio::test]
async fn watch_that_has_ended_is_not_read_again() {
    for pieces in [vec![], vec![line("ADDED", &config_map("a", "3")), line("ADDED", &config_map("b", "4"))]] {
        let sent = pieces.len();
        let (mut source, _) = source(vec![(200, "application/json", pieces)]);
        let mut events = source.watch(Begin::After("1")).await.unwrap();
        let mut seen = 0;
        while let Some(batch) = events.batch(SILENCE).await {
            assert!(batch.failure.is_none());
            seen += batch.events.len();
        }
        assert_eq!(seen, sent);
        assert!(events.batch(SILENCE).await.is_none());
        assert!(!events.is_silent);
    }
}

#[tokio::test]
async fn error_ends_a_batch_behind_the_events_before_it() {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 410,
        "reason": "Expired", "message": "too old"});
    let both = |encode: fn(&str, &Value) -> Vec<u8>| {
        vec![[encode("ADDED", &config_map("a", "1")), encode("ERROR", &status)].concat()]
    };
    for (media, pieces) in [("application/json", both(line)), (PROTOBUF, both(frame))] {
        let (mut source, _) = source(vec![(200, media, pieces)]);
        let batch = source.watch(Begin::After("0")).await.unwrap().batch(SILENCE).await.unwrap();
        assert_eq!(shown(batch.events), ["+a@1"]);
        assert!(batch.failure.unwrap().is_expired());
    }
    let (mut source, _) = source(vec![(200, "application/json", vec![b"nonsense\n".to_vec()])]);
    let batch = source.watch(Begin::After("0")).await.unwrap().batch(SILENCE).await.unwrap();
    assert!(matches!(batch.failure, Some(Error::Undecodable { .. })));
    let (mut source, _) = self::source(vec![(200, PROTOBUF, vec![vec![0xff; 8]])]);
    let batch = source.watch(Begin::After("0")).await.unwrap().batch(SILENCE).await.unwrap();
    let Some(Error::Undecodable { cause, .. }) = batch.failure else { panic!("a length without bounds") };
    assert!(matches!(cause, Undecodable::Large(_)));
}

#[tokio::test]
async fn server_that_refuses_media_types_is_asked_for_json_from_then_on() {
    let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"},
        "items": [config_map("a", "5")]});
    let list = || vec![list.to_string().into_bytes()];
    for refusal in [406, 415] {
        let json = "application/json";
        let (mut source, asked) =
            source(vec![(refusal, "text/plain", vec![]), (200, json, list()), (200, json, list())]);
        for _ in 0..2 {
            let page = source.page(Some(500), None).await.unwrap();
            assert_eq!((page.items.len(), page.version.as_str(), page.next), (1, "7", None));
        }
        let accepted: Vec<_> = asked.lock().unwrap().iter().map(|(accept, _)| accept.clone()).collect();
        assert_eq!(accepted, [media::PROTOBUF_OR_JSON, media::JSON, media::JSON]);
    }
}

#[tokio::test]
async fn pages_and_refusals_are_read_in_protobuf() {
    let list = json!({"kind": "ConfigMapList", "apiVersion": "v1",
        "metadata": {"resourceVersion": "7", "continue": "token"}, "items": [config_map("a", "5")]});
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403,
        "reason": "Forbidden", "message": "no"});
    let body = |object: &Value| vec![protobuf::to_envelope(object).unwrap()];
    let (mut source, _) = source(vec![(200, PROTOBUF, body(&list)), (403, PROTOBUF, body(&status))]);
    let page = source.page(Some(1), None).await.unwrap();
    assert_eq!(page.next.as_deref(), Some("token"));
    let object = page.items.into_iter().next().unwrap().object().unwrap();
    assert_eq!(serde_json::to_value(object).unwrap(), config_map("a", "5"));
    let Err(Error::Refused { status, .. }) = source.page(Some(1), page.next.as_deref()).await else {
        panic!("it was refused")
    };
    assert_eq!((status.code, status.message.as_str(), status.is_forbidden()), (403, "no", true));
}

#[test]
fn custom_resources_are_asked_for_in_json() {
    assert_eq!(media::accept("v1", "Pod"), media::PROTOBUF_OR_JSON);
    assert_eq!(media::accept("example.com/v1", "Pod"), media::JSON);
    assert_eq!(Encoding::of("application/vnd.kubernetes.protobuf;stream=watch"), Encoding::Protobuf);
    assert_eq!(Encoding::of("application/json;charset=utf-8"), Encoding::Json);
}

/// Compares an object that is read from protobuf with the same that is read from JSON.
type Compare = fn(&str, &[u8]) -> bool;

fn compare<K>(json: &str, bytes: &[u8]) -> bool
where
    K: Resource<DynamicType = ()> + DeserializeOwned + PartialEq + serde::Serialize,
{
    let mut of_json = Readable::<K>::from_json(json).unwrap();
    if let Readable::Object(object) = &mut of_json {
        object.meta_mut().managed_fields = None;
    }
    match (of_json, Readable::<K>::from_protobuf(Encoded::open(bytes).unwrap(), None).unwrap()) {
        (Readable::Object(one), Readable::Object(other)) => one == other,
        (Readable::Unreadable { .. }, Readable::Unreadable { .. }) => true,
        _ => false,
    }
}

macro_rules! types {
    ($($($module:ident)::+ => $($kind:ident),+;)+) => {{
        let mut types: Vec<(String, &'static str, Compare)> = Vec::new();
        $({
            use k8s_openapi::$($module)::+ as module;
            $(types.push((
                module::$kind::api_version(&()).into_owned(),
                stringify!($kind),
                compare::<module::$kind>,
            ));)+
        })+
        types
    }};
}

fn types() -> Vec<(String, &'static str, Compare)> {
    types! {
        api::core::v1 => ConfigMap, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolume,
            PersistentVolumeClaim, Pod, PodTemplate, ReplicationController, ResourceQuota, Secret, Service,
            ServiceAccount;
        api::apps::v1 => ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet;
        api::batch::v1 => CronJob, Job;
        api::autoscaling::v2 => HorizontalPodAutoscaler;
        api::policy::v1 => PodDisruptionBudget;
        api::discovery::v1 => EndpointSlice;
        api::events::v1 => Event;
        api::coordination::v1 => Lease;
        api::networking::v1 => Ingress, IngressClass, IPAddress, NetworkPolicy, ServiceCIDR;
        api::node::v1 => RuntimeClass;
        api::rbac::v1 => ClusterRole, ClusterRoleBinding, Role, RoleBinding;
        api::scheduling::v1 => PriorityClass;
        api::storage::v1 => CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
            VolumeAttributesClass;
        api::resource::v1 => DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice;
        api::certificates::v1 => CertificateSigningRequest;
        api::flowcontrol::v1 => FlowSchema, PriorityLevelConfiguration;
        api::admissionregistration::v1 => MutatingWebhookConfiguration, ValidatingAdmissionPolicy,
            ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration;
        apiextensions_apiserver::pkg::apis::apiextensions::v1 => CustomResourceDefinition;
        kube_aggregator::pkg::apis::apiregistration::v1 => APIService;
    }
}

/// Sets the times that the types require, as objects of servers have them.
fn with_times(message: Message, object: &mut Value) {
    let Value::Object(map) = object else { return };
    for field in message.fields() {
        if field.kind == Kind::Time && map.get(field.name()).is_some_and(Value::is_null) && !field.pointer {
            map[field.name()] = "2026-01-02T03:04:05Z".into();
        }
        let inner = |field: &Field| field.kind.message().filter(|_| !field.name().is_empty());
        let Some(inner) = inner(field) else { continue };
        match map.get_mut(field.name()) {
            Some(Value::Array(items)) => items.iter_mut().for_each(|item| with_times(inner, item)),
            Some(value) => with_times(inner, value),
            None => {}
        }
    }
}

#[test]
fn objects_of_all_kinds_are_the_same_from_json_and_from_protobuf() {
    let types = types();
    let mut unknown: Vec<_> = types.iter().map(|(version, kind, _)| format!("{version} {kind}")).collect();
    for (api_version, kind, message) in kinds() {
        let Some((.., compare)) =
            types.iter().find(|(version, name, _)| version == api_version && *name == kind)
        else {
            continue;
        };
        unknown.retain(|name| *name != format!("{api_version} {kind}"));
        for round in 0..12 {
            let mut object = Value::Object(Random::new(90 + round, 1 + round % 8).object(message, 5));
            if round % 3 > 0 {
                with_times(message, &mut object);
            }
            object["apiVersion"] = api_version.into();
            object["kind"] = kind.into();
            let bytes = protobuf::to_envelope(&object).unwrap();
            assert!(compare(&object.to_string(), &bytes), "{api_version} {kind} round {round}: {object}");
        }
    }
    assert!(unknown.is_empty(), "without a message: {unknown:?}");
}
