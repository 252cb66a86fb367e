//! Cells of printer columns.

use apiserver_meta::time;
use apiserver_registry::LabelSelector;
use apiserver_schema::meta;
use serde_json::{Value, json};

pub(crate) const NONE: &str = "<none>";

pub(crate) const UNSET: &str = "<unset>";

pub(crate) const UNKNOWN: &str = "<unknown>";

pub(crate) fn name(object: &Value) -> Value {
    json!(meta::name(object))
}

/// Returns the name, with a mark on the default class, which has one of these annotations.
pub(crate) fn marked(object: &Value, annotations: &[&str]) -> Value {
    let default = annotations.iter().any(|key| meta::annotation(object, key) == Some("true"));
    let mark = if default { " (default)" } else { "" };
    json!(format!("{}{mark}", meta::name(object)))
}

pub(crate) fn age(object: &Value, now: jiff::Timestamp) -> Value {
    json!(time::age(meta::creation_timestamp(object), now))
}

/// Text at a pointer, or `otherwise`.
pub(crate) fn text_or(object: &Value, pointer: &str, otherwise: &str) -> Value {
    let text = meta::text(object, pointer);
    json!(if text.is_empty() { otherwise } else { text })
}

/// A number at a pointer, 0 if there is none.
pub(crate) fn number(object: &Value, pointer: &str) -> Value {
    json!(object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0))
}

pub(crate) fn count(object: &Value, pointer: &str) -> usize {
    match object.pointer(pointer) {
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(map)) => map.len(),
        _ => 0,
    }
}

/// Names and images of the containers of the pod spec at a pointer.
pub(crate) fn containers(object: &Value, pointer: &str) -> [Value; 2] {
    let list = meta::list(object, &format!("{pointer}/containers"));
    let joined = |field: &str| {
        list.iter().map(|c| c[field].as_str().unwrap_or_default()).collect::<Vec<_>>().join(",")
    };
    [json!(joined("name")), json!(joined("image"))]
}

/// A `metav1.LabelSelector` as text.
pub(crate) fn selector(object: &Value, pointer: &str) -> Value {
    let parsed = object.pointer(pointer).and_then(|s| LabelSelector::from_meta(s).ok());
    let text = parsed.map(|s| s.to_string()).unwrap_or_default();
    json!(if text.is_empty() { NONE.to_owned() } else { text })
}

/// A map of texts as `a=b,c=d`.
pub(crate) fn pairs(object: &Value, pointer: &str) -> Value {
    let map = object.pointer(pointer).and_then(Value::as_object);
    let mut list: Vec<String> =
        map.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    list.sort();
    json!(if list.is_empty() { NONE.to_owned() } else { list.join(",") })
}

/// The status of a condition: `True`, `False`, `Unknown`, or nothing.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    meta::list(object, "/status/conditions").iter().find(|c| c["type"] == kind)
}

pub(crate) fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|c| c["status"] == "True")
}
