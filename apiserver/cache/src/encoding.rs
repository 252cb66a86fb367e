//! Encoding of objects in the store: JSON or the protobuf envelope; both are accepted on reading.
//!
//! What others read too is written as Kubernetes writes it: built-in kinds in the envelope, custom
//! resources and the kinds that define them as JSON. A store of our own gets JSON, because the cache
//! answers with the very bytes that it reads and splices; an envelope would have to be decoded for
//! every change and at every start, and nobody would gain by it.

use std::borrow::Cow;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::ordered;
use apiserver_schema::ordered::Metadata;
use apiserver_schema::protobuf;
use apiserver_schema::protobuf::{Malformed, Unencodable};
use apiserver_store::limits::VALUE_BYTES;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use crate::{limits, older};

/// A stored value is neither JSON nor the envelope of a known kind.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("it is not JSON")]
    Json(#[from] serde_json::Error),
    #[error("its envelope cannot be read")]
    Protobuf(#[from] Malformed),
}

/// A stored object in the storage version.
pub fn read(stored: &[u8]) -> Result<Value, Unreadable> {
    let mut object: Value = if protobuf::is_envelope(stored) {
        protobuf::from_envelope(&named_as_today(stored)?)?
    } else {
        serde_json::from_slice(stored)?
    };
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    if let Some(today) = older::today(text("apiVersion"), text("kind")) {
        object["apiVersion"] = today.into();
    }
    older::upgrade(&mut object);
    if protobuf::is_envelope(stored) {
        type_of_claims(&mut object);
    }
    Ok(object)
}

/// The kind whose objects contain other objects with types of their own.
const WITH_CLAIMS: &str = "StatefulSet";

/// Restores the types of a StatefulSet's claims, which protobuf leaves out and Kubernetes' conversion
/// restores, so that reading and writing see the same.
fn type_of_claims(object: &mut Value) {
    if object["kind"] != WITH_CLAIMS {
        return;
    }
    let Some(Value::Array(claims)) = object.pointer_mut("/spec/volumeClaimTemplates") else { return };
    for claim in claims.iter_mut().filter_map(Value::as_object_mut) {
        for (field, value) in [("apiVersion", "v1"), ("kind", "PersistentVolumeClaim")] {
            claim.entry(field).or_insert_with(|| value.into());
        }
    }
}

/// `true` if the keys of a text have the order of the types of a built-in kind. Only in that order a text
/// begins with the kind.
fn is_in_order(text: &[u8]) -> bool {
    text.starts_with(ordered::BEGIN)
}

/// Returns the stored object of a built-in kind as JSON text. JSON in the order of its type is not copied.
pub fn json(stored: &[u8]) -> Result<Cow<'_, [u8]>, Unreadable> {
    if !protobuf::is_envelope(stored) {
        // Earlier builds wrote the keys by name.
        return Ok(match is_in_order(stored) {
            true => Cow::Borrowed(stored),
            false => Cow::Owned(ordered::json_text(&serde_json::from_slice(stored)?).into_bytes()),
        });
    }
    let stored = named_as_today(stored)?;
    let (api_version, kind, _) = protobuf::head(&stored)?;
    if kind == WITH_CLAIMS || older::is_older(api_version) {
        return Ok(Cow::Owned(ordered::json_text(&read(&stored)?).into_bytes()));
    }
    Ok(Cow::Owned(protobuf::to_json(&stored)?))
}

/// An envelope with the name that its version has today.
fn named_as_today(stored: &[u8]) -> Result<Cow<'_, [u8]>, Malformed> {
    let (api_version, kind, raw) = protobuf::head(stored)?;
    let Some(today) = older::today(api_version, kind) else { return Ok(Cow::Borrowed(stored)) };
    let mut envelope = protobuf::envelope_head(today, kind, raw.len());
    envelope.extend_from_slice(raw);
    envelope.extend_from_slice(protobuf::ENVELOPE_TAIL);
    Ok(Cow::Owned(envelope))
}

/// Most objects have fewer bytes than this as JSON.
const USUAL: usize = 4096;

/// A value as JSON text, in bytes that take no more memory than they are long: they are kept for as long
/// as the object lives.
pub fn exact(value: &Value) -> Bytes {
    exact_with_metadata(value).0
}

/// Returns the result of [`exact`] and the position of the object's metadata, if it has them.
pub fn exact_with_metadata(value: &Value) -> (Bytes, Option<Metadata>) {
    let mut text = Vec::with_capacity(USUAL);
    let found = ordered::write(&mut text, value);
    // A shrunk buffer keeps its memory with some allocators; a copy takes only what it needs.
    (Bytes::copy_from_slice(&text), found)
}

/// The bytes that Kubernetes would store for an object of the storage version.
pub fn as_kubernetes(resource: &Resource, object: &Value) -> Result<Bytes, Unencodable> {
    // Their servers keep them in the encoding of custom resources.
    let defining = matches!(resource.group.as_str(), "apiextensions.k8s.io" | "apiregistration.k8s.io");
    if defining || protobuf::of_object(object).is_none() {
        return Ok(Bytes::from(ordered::json_text(object)));
    }
    protobuf::to_envelope(object).map(Bytes::from)
}

/// Brings an object of a built-in kind into its normal form.
pub fn normalize(object: &mut Value) {
    if let Some(message) = protobuf::of_object(object) {
        protobuf::normalize(message, object);
    }
}

/// Adds to an object of a built-in kind what Kubernetes' JSON of it always has.
pub fn complete(object: &mut Value) {
    if let Some(message) = protobuf::of_object(object) {
        protobuf::complete(message, object);
    }
}

/// [`complete`], unless the kind is a custom one.
pub fn complete_kind(resource: &Resource, object: &mut Value) {
    if resource.custom.is_none() {
        complete(object);
    }
}

/// Brings an object of a built-in kind into the form in which it is validated, compared and written: its
/// normal form, as after decoding into Go's types. Other values from defaults, admission or an old store are
/// dropped.
pub fn normalize_as(resource: &Resource, object: &mut Value) {
    if let Some(message) = message_of(resource) {
        protobuf::normalize(message, object);
    }
}

/// Does what [`normalize_as`] does, for the comparison that determines owners.
pub fn normalize_sent(resource: &Resource, object: &mut Value) {
    if let Some(message) = message_of(resource) {
        protobuf::normalize_as_sent(message, object);
    }
}

/// Adds to an object of a built-in kind the structs that it always has in Kubernetes: they have defaults
/// although they were not sent.
fn complete_structs(resource: &Resource, object: &mut Value) {
    if let Some(message) = message_of(resource) {
        protobuf::complete_structs(message, object);
    }
}

/// Returns `true` if a value has more than `most` JSON objects. It visits no more than that.
pub fn has_more_objects(value: &Value, most: usize) -> bool {
    let (mut left, mut found) = (vec![value], 0);
    while let Some(value) = left.pop() {
        match value {
            Value::Object(fields) => {
                found += 1;
                if found > most {
                    return true;
                }
                left.extend(fields.values().filter(|value| value.is_object() || value.is_array()));
            }
            Value::Array(items) => {
                left.extend(items.iter().filter(|value| value.is_object() || value.is_array()));
            }
            _ => {}
        }
    }
    false
}

/// Fills in what a client may leave out, and refuses an object that has become too large.
pub fn fill_in(resource: &Resource, object: &mut Value, now: Timestamp) -> Result<(), ApiError> {
    complete_structs(resource, object);
    (resource.behaviour.default)(object);
    if let Some(times) = &resource.behaviour.default_times {
        times(object, now);
    }
    weigh(resource, object)
}

/// Refuses an object with its defaults of which the store would take nothing: what else is done with it
/// would cost many times its bytes. Managed fields do not count, as they can be forgotten.
pub fn weigh(resource: &Resource, object: &mut Value) -> Result<(), ApiError> {
    let Some(message) = message_of(resource) else { return Ok(()) };
    if !has_more_objects(object, limits::OBJECTS_UNWEIGHED) {
        return Ok(());
    }
    let managed = object.pointer_mut("/metadata/managedFields").map(Value::take);
    let encoded = protobuf::encode(message, object);
    if let Some(managed) = managed {
        object["metadata"]["managedFields"] = managed;
    }
    match encoded {
        Ok(bytes) if bytes.len() > VALUE_BYTES => Err(value_too_large()),
        // An object that cannot be encoded is reported where it is stored.
        _ => Ok(()),
    }
}

fn message_of(resource: &Resource) -> Option<protobuf::Message> {
    if resource.custom.is_some() {
        return None;
    }
    protobuf::of_kind(&resource.api_version(), &resource.kind)
}

/// Returns `true` if the objects are the same to Kubernetes: `resources: {}` equals no resources. Kinds without
/// a protobuf form are compared as they are.
pub fn same(one: &Value, other: &Value) -> bool {
    let encoded = |message, object| protobuf::encode(message, object).ok();
    one == other
        || differ_in_empty_values(one, other)
            && protobuf::of_object(one).is_some_and(|message| {
                one["kind"] == other["kind"]
                    && one["apiVersion"] == other["apiVersion"]
                    && encoded(message, one).is_some_and(|bytes| encoded(message, other) == Some(bytes))
            })
}

/// Returns `true` if all differences, except in managed fields, are between a value that is empty and one that
/// is empty or absent: a cheap check that spares most changes the encoding.
fn differ_in_empty_values(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let mut fields = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            fields.all(|key| {
                key == "managedFields"
                    || match (a.get(key), b.get(key)) {
                        (Some(a), Some(b)) => differ_in_empty_values(a, b),
                        (a, b) => a.or(b).is_none_or(is_empty),
                    }
            })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).all(|(a, b)| differ_in_empty_values(a, b))
        }
        _ => one == other || is_empty(one) && is_empty(other),
    }
}

/// Returns `true` for a value that an encoding may leave out.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(set) => !set,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
    }
}

/// etcd's words for an object that no store takes, which Kubernetes passes on.
pub const TOO_LARGE: &str = "etcdserver: request is too large";

/// An object that no store takes.
pub fn value_too_large() -> ApiError {
    ApiError::new(500, "", TOO_LARGE)
}

#[cfg(test)]
mod tests {
    use apiserver_kinds::builtin;
    use serde_json::json;

    use super::*;

    fn resource(group: &str, version: &str, plural: &str) -> Resource {
        (**builtin::registry().lookup(group, version, plural).unwrap()).clone()
    }

    #[test]
    fn built_in_kinds_are_written_in_the_envelope_and_others_as_json() {
        let pods = resource("", "v1", "pods");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "c", "resources": {}}]}, "status": {}});
        let stored = as_kubernetes(&pods, &pod).unwrap();
        assert!(protobuf::is_envelope(&stored));
        assert_eq!(read(&stored).unwrap(), pod);
        assert_eq!(serde_json::from_slice::<Value>(&json(&stored).unwrap()).unwrap(), pod);
        let text = ordered::json_text(&pod);
        assert_eq!(json(&stored).unwrap(), text.as_bytes());
        assert!(matches!(json(text.as_bytes()), Ok(Cow::Borrowed(_))));
        // Texts of earlier builds come out in the order of today.
        assert_eq!(json(pod.to_string().as_bytes()).unwrap(), text.as_bytes());

        let mut frobs = pods.clone();
        (frobs.group, frobs.kind) = ("example.com".to_owned(), "Frob".to_owned());
        let frob = json!({"apiVersion": "example.com/v1", "kind": "Frob", "metadata": {"name": "a"}});
        assert_eq!(as_kubernetes(&frobs, &frob).unwrap(), frob.to_string());
        let mut defining = pods;
        defining.group = "apiextensions.k8s.io".to_owned();
        let (api_version, kind) = ("apiextensions.k8s.io/v1", "CustomResourceDefinition");
        let definition = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}});
        assert_eq!(as_kubernetes(&defining, &definition).unwrap(), ordered::json_text(&definition));
    }

    #[test]
    fn the_text_is_that_of_the_value_and_says_where_a_resource_version_goes() {
        let version = r#""resourceVersion":"7""#;
        for (value, wanted) in [
            (
                json!({"a\"": [1], "metadata": {"name": "a", "uid": "u"}}),
                r##"{"a\"":[1],"metadata":{"name":"a",#,"uid":"u"}}"##,
            ),
            (
                json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"uid": "u", "labels": {"l": "m"}, "name": "a"}}),
                r##"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u",#,"labels":{"l":"m"}}}"##,
            ),
            (json!({"metadata": {"name": "a"}}), r##"{"metadata":{"name":"a",#}}"##),
            (
                json!({"kind": "Pod", "apiVersion": "v1", "metadata": {}}),
                r##"{"kind":"Pod","apiVersion":"v1","metadata":{#}}"##,
            ),
        ] {
            let (text, found) = exact_with_metadata(&value);
            assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), value);
            let put = crate::Entry::answer_at(7, &text, found.unwrap());
            assert_eq!(put, wanted.replace('#', version), "{value}");
        }
        for value in [json!({}), json!([1]), json!({"metadata": null})] {
            assert_eq!(exact_with_metadata(&value).1, None);
        }
    }

    #[test]
    fn versions_that_others_keep_are_brought_to_the_one_served() {
        let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "reason": "r",
            "involvedObject": {"kind": "Pod"}, "message": "m"});
        let stored = protobuf::to_envelope(&event).unwrap();
        assert_eq!(read(&stored).unwrap()["message"], "m");
        let scaler = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 70,
                "scaleTargetRef": {"kind": "Deployment", "name": "d"}}});
        let stored = protobuf::to_envelope(&scaler).unwrap();
        let text = json(&stored).unwrap();
        let object: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(object["apiVersion"], "autoscaling/v2");
        assert_eq!(object["spec"]["metrics"][0]["resource"]["name"], "cpu");
        // A version that differs by its name alone.
        let mut cron_job = protobuf::envelope_head("batch/v1beta1", "CronJob", 0);
        cron_job.extend_from_slice(protobuf::ENVELOPE_TAIL);
        assert_eq!(read(&cron_job).unwrap()["apiVersion"], "batch/v1");
        let object: Value = serde_json::from_slice(&json(&cron_job).unwrap()).unwrap();
        assert_eq!((&object["apiVersion"], &object["kind"]), (&json!("batch/v1"), &json!("CronJob")));
        let old = br#"{"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget"}"#;
        assert_eq!(read(old).unwrap()["apiVersion"], "policy/v1");
        assert!(json(b"k8s\0\xff").is_err());
        assert!(read(b"nonsense").is_err());
    }
}
