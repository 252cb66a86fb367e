use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::table::message;
use crate::wire::Backward;
use crate::{event, kinds, list};

/// Length-delimited field.
fn part(number: u16, content: &[u8]) -> Vec<u8> {
    let mut out = Backward::default();
    out.bytes(number, content);
    out.finish()
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let named = [part(1, api_version.as_bytes()), part(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), part(1, &named), part(2, raw)].concat()
}

fn encoded<'a>(name: &str, bytes: &'a [u8]) -> Encoded<'a> {
    Encoded { api_version: "", kind: "", message: message(name).unwrap(), bytes }
}

fn value(name: &str, bytes: &[u8]) -> Value {
    encoded(name, bytes).read(Reading::default()).unwrap()
}

#[test]
fn fields_that_a_type_lacks_are_not_decoded() {
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Slim {
        api_version: String,
        spec: Spec,
    }
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        node_name: Option<String>,
        #[serde(default)]
        node_selector: BTreeMap<String, String>,
    }
    // A container and metadata that are no messages, and a text that is not UTF-8.
    let selector = part(7, &[part(1, b"disk"), part(2, b"ssd")].concat());
    let spec = [part(2, b"\xff\xff"), part(3, b"\xff"), selector, part(10, b"n1")].concat();
    let pod = envelope("v1", "Pod", &[part(1, b"\xff"), part(2, &spec)].concat());
    let slim: Slim = Encoded::open(&pod).unwrap().read(Reading::default()).unwrap();
    let spec = Spec {
        node_name: Some("n1".to_owned()),
        node_selector: [("disk".to_owned(), "ssd".to_owned())].into(),
    };
    assert_eq!(slim, Slim { api_version: "v1".to_owned(), spec });
    assert!(Encoded::open(&pod).unwrap().read::<Value>(Reading::default()).is_err());
}

#[test]
fn zeros_are_left_out_unless_json_has_them() {
    let status = value("core/v1.ContainerStatus", &[part(1, b"c"), vec![4 << 3, 0]].concat());
    let expected = json!({"name": "c", "state": {}, "lastState": {}, "ready": false, "restartCount": 0, "image": "",
        "imageID": ""});
    assert_eq!(status, expected);
    // hostNetwork is no pointer, enableServiceLinks (30) is one.
    assert_eq!(
        value("core/v1.PodSpec", &[vec![11 << 3, 0], vec![0xf0, 1, 0]].concat()),
        json!({"enableServiceLinks": false})
    );
    assert_eq!(value("core/v1.PodSpec", &[11 << 3, 1]), json!({"hostNetwork": true}));
}

#[test]
fn inlined_messages_are_members_of_their_parent() {
    let volume = [part(1, b"v"), part(2, &part(2, &part(1, b"Memory")))].concat();
    assert_eq!(value("core/v1.Volume", &volume), json!({"name": "v", "emptyDir": {"medium": "Memory"}}));
    // What follows an inlined message is the parent's again.
    let reference = [part(1, &part(1, b"s")), part(2, b"key")].concat();
    assert_eq!(value("core/v1.SecretKeySelector", &reference), json!({"name": "s", "key": "key"}));
}

#[test]
fn vectors_have_room_for_their_items_alone() {
    let meta = part(14, b"f").repeat(11);
    #[derive(Deserialize)]
    struct Meta {
        finalizers: Vec<String>,
    }
    let meta: Meta = encoded("meta/v1.ObjectMeta", &meta).read(Reading::default()).unwrap();
    assert_eq!((meta.finalizers.len(), meta.finalizers.capacity()), (11, 11));
}

#[test]
fn managed_fields_are_skipped_on_request() {
    let meta = [part(1, b"a"), part(17, &part(1, b"kubectl")), part(17, b"\xff\xff")].concat();
    let how = Reading { without_managed_fields: true, ..Reading::default() };
    let read: Value = encoded("meta/v1.ObjectMeta", &meta).read(how).unwrap();
    assert_eq!(read, json!({"name": "a"}));
}

#[test]
fn unset_times_are_spelled_on_request() {
    let condition = [part(1, b"Ready"), part(4, b"")].concat();
    let how = Reading { with_unset_times: true, ..Reading::default() };
    let read: Value = encoded("meta/v1.Condition", &condition).read(how).unwrap();
    assert_eq!(read["lastTransitionTime"], "0001-01-01T00:00:00Z");
    // Types wrap texts in options and in types of their own.
    #[derive(Deserialize)]
    struct Time(String);
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Wrapped {
        last_transition_time: Option<Time>,
    }
    let read: Wrapped = encoded("meta/v1.Condition", &condition).read(how).unwrap();
    assert_eq!(read.last_transition_time.unwrap().0, "0001-01-01T00:00:00Z");
    assert_eq!(value("meta/v1.Condition", &condition).get("lastTransitionTime"), None);
}

#[test]
fn numbers_may_be_packed_and_scalars_in_any_order() {
    let packed = [part(4, &[1, 2, 0x80, 1]), vec![4 << 3, 7], vec![2 << 3, 5]].concat();
    let security = value("core/v1.PodSecurityContext", &packed);
    assert_eq!(security, json!({"supplementalGroups": [1, 2, 128, 7], "runAsUser": 5}));
}

#[test]
fn items_that_are_not_together_are_refused() {
    let meta = [part(14, b"a"), part(1, b"n"), part(14, b"b")].concat();
    let read = encoded("meta/v1.ObjectMeta", &meta).read::<Value>(Reading::default());
    assert_eq!(read, Err(Error::Malformed(Malformed::Scattered(14))));
}

#[test]
fn embedded_objects_are_read_in_their_own_encoding() {
    #[derive(Deserialize)]
    struct Revision {
        data: Option<Box<serde_json::value::RawValue>>,
    }
    let revision = |raw: &[u8]| part(2, &part(1, raw));
    let text = revision(br#"{"spec": [1]}"#);
    let read: Revision = encoded("apps/v1.ControllerRevision", &text).read(Reading::default()).unwrap();
    assert_eq!(read.data.unwrap().get(), r#"{"spec": [1]}"#);
    let inner = envelope("v1", "ConfigMap", &part(1, &part(1, b"a")));
    let read = value("apps/v1.ControllerRevision", &revision(&inner));
    let expected = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    assert_eq!(read["data"], expected);
    let mut nested = b"{}".to_vec();
    for _ in 0..200 {
        nested = envelope("apps/v1", "ControllerRevision", &revision(&nested));
    }
    let read = Encoded::open(&nested).unwrap().read::<Value>(Reading::default());
    assert!(matches!(read, Err(Error::Malformed(Malformed::Deep))));
}

#[test]
fn errors_name_the_field() {
    #[derive(Debug, Deserialize)]
    struct Pod {
        #[expect(dead_code, reason = "it is never read")]
        spec: BTreeMap<String, u8>,
    }
    let bytes = part(2, &part(10, b"n1"));
    let error = encoded("core/v1.Pod", &bytes).read::<Pod>(Reading::default()).unwrap_err();
    assert_eq!(error.to_string(), "spec.nodeName: invalid type: string \"n1\", expected u8");
}

#[test]
fn lists_and_events_are_opened_without_reading_their_objects() {
    let item = |name: &[u8]| part(2, &part(1, &part(1, name)));
    let bytes = [part(1, &part(2, b"7")), item(b"a"), item(b"b")].concat();
    let bytes = envelope("v1", "ConfigMapList", &bytes);
    let list = list(&bytes).unwrap();
    assert_eq!(list.metadata.read::<Value>(Reading::default()).unwrap(), json!({"resourceVersion": "7"}));
    let names: Vec<Value> = list.items.iter().map(|item| item.read(Reading::default()).unwrap()).collect();
    assert_eq!(names, [json!({"metadata": {"name": "a"}}), json!({"metadata": {"name": "b"}})]);
    assert!(crate::list(&envelope("v1", "ConfigMap", b"")).is_err());
    let object = envelope("v1", "ConfigMap", b"");
    let bytes = [part(1, b"ADDED"), part(2, &part(1, &object))].concat();
    let event = event(&bytes).unwrap();
    assert_eq!((event.event, event.object), ("ADDED", &object[..]));
}

proptest! {
    #[test]
    fn no_bytes_do_harm(raw in proptest::collection::vec(any::<u8>(), 0..300), which in any::<prop::sample::Index>()) {
        let all: Vec<_> = kinds().collect();
        let (version, kind, message) = all[which.index(all.len())];
        let _ = Encoded { api_version: version, kind, message, bytes: &raw }.read::<Value>(Reading::default());
        let _ = list(&envelope(version, kind, &raw));
        let _ = event(&raw);
    }
}
