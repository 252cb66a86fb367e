//! Helpers of the tests of several kinds.

use apiserver_registry::{Resource, Written};
use apiserver_schema::error::FieldError;
use serde_json::{Value, json};

pub(crate) fn apply_defaults(default: fn(&mut Value), mut value: Value) -> Value {
    default(&mut value);
    let once = value.clone();
    default(&mut value);
    assert_eq!(value, once, "defaulting is not idempotent");
    value
}

/// A template's pod spec with nothing but a container, as it is once completed.
pub(crate) fn completed_template_spec() -> Value {
    json!({
        "containers": [{
            "name": "c", "image": "echo:1", "imagePullPolicy": "IfNotPresent", "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
        "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
        "securityContext": {}, "terminationGracePeriodSeconds": 30})
}

pub(crate) fn pod_template() -> Value {
    json!({"spec": {"containers": [{"name": "c", "image": "echo:1"}]}})
}

/// `object` with several fields set: JSON pointers and values.
pub(crate) fn edited(object: &Value, edits: &[(&str, Value)]) -> Value {
    edits.iter().fold(object.clone(), |object, (pointer, value)| with(object, pointer, value.clone()))
}

/// The object as the server stores it.
pub(crate) fn stored(group: &str, plural: &str, mut object: Value) -> Value {
    let registry = crate::registry();
    let resource = registry.iter().find(|r| r.group == group && r.plural == plural).unwrap();
    (resource.behaviour.default)(&mut object);
    object
}

pub(crate) fn resource_at(path: &str) -> Resource {
    let (version, plural) = path.rsplit_once('/').unwrap();
    let (group, version) = version.split_once('/').unwrap();
    let registry = crate::registry();
    Resource::clone(registry.lookup(group, version, plural).unwrap_or_else(|| panic!("{path}")))
}

/// `patch` put over `base`, as a merge patch does it.
pub(crate) fn merge(base: &Value, patch: &Value) -> Value {
    let (Value::Object(base), Value::Object(patch)) = (base, patch) else { return patch.clone() };
    let mut merged = base.clone();
    for (key, value) in patch {
        if value.is_null() {
            merged.remove(key);
        } else {
            let old = merged.get(key).cloned().unwrap_or(Value::Null);
            let old = if old.is_object() { old } else { json!({}) };
            merged.insert(key.clone(), if value.is_object() { merge(&old, value) } else { value.clone() });
        }
    }
    Value::Object(merged)
}

pub(crate) fn defaulted_at(path: &str, object: &Value) -> Value {
    let kind = resource_at(path);
    let mut object = object.clone();
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.clone().into();
    if object["metadata"]["name"].is_null() {
        object["metadata"]["name"] = "test".into();
    }
    (kind.behaviour.default)(&mut object);
    object
}

pub(crate) fn errors_at(path: &str, object: &Value) -> Vec<String> {
    let found = (resource_at(path).behaviour.validate)(&defaulted_at(path, object));
    found.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

/// Errors of a change, and of a write of the status.
pub(crate) fn change_errors_at(path: &str, new: &Value, old: &Value, written: Written) -> Vec<String> {
    let behaviour = resource_at(path).behaviour;
    let (new, old) = (defaulted_at(path, new), defaulted_at(path, old));
    let found = match &behaviour.validate_change {
        Some(check) => check(&new, &old, written),
        None => (behaviour.validate_update)(&new, &old),
    };
    found.into_iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

/// Checks the errors of each patch of a valid object.
#[track_caller]
pub(crate) fn assert_refused(path: &str, base: &Value, cases: &[(Value, &[&str])]) {
    assert_eq!(errors_at(path, base), [""; 0], "{path}");
    for (patch, wanted) in cases {
        assert_eq!(errors_at(path, &merge(base, patch)), *wanted, "{path} {patch}");
    }
}

pub(crate) fn status_errors(group: &str, plural: &str, new: Value, old: Value) -> Vec<String> {
    let errors = crate::table::kind(group, plural).validate_status.unwrap()(&new, &old);
    errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

/// Completes an object of a kind as the server does, and gives its errors as `FIELD: MESSAGE`.
pub(crate) fn errors(group: &str, plural: &str, object: &Value) -> Vec<String> {
    let (registry, mut object) = (crate::registry(), object.clone());
    let resource = registry.iter().find(|r| r.group == group && r.plural == plural).unwrap();
    (resource.behaviour.default)(&mut object);
    texts((resource.behaviour.validate)(&object))
}

/// The errors of a change.
pub(crate) fn update_errors(group: &str, plural: &str, new: &Value, old: &Value) -> Vec<String> {
    let registry = crate::registry();
    let resource = registry.iter().find(|r| r.group == group && r.plural == plural).unwrap();
    let defaulted = |object: &Value| {
        let mut object = object.clone();
        (resource.behaviour.default)(&mut object);
        object
    };
    let (new, old) = (defaulted(new), defaulted(old));
    texts(match &resource.behaviour.validate_change {
        Some(check) => check(&new, &old, Written::Main),
        None => (resource.behaviour.validate_update)(&new, &old),
    })
}

pub(crate) fn texts(errors: Vec<FieldError>) -> Vec<String> {
    errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect()
}

pub(crate) fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[key] = value;
    object
}

pub(crate) const NONE: [&str; 0] = [];

pub(crate) const NOW: &str = "2024-01-01T01:00:00Z";

/// The cells of an object by column name.
pub(crate) fn cells(group: &str, plural: &str, object: &Value) -> Vec<(String, Value)> {
    let registry = crate::registry();
    let resource = registry.iter().find(|r| r.group == group && r.plural == plural).unwrap();
    let row = (resource.cells)(object, NOW.parse().unwrap());
    resource.columns.iter().map(|c| c.name.to_string()).zip(row).collect()
}

/// The row as kubectl would print it.
pub(crate) fn row(group: &str, plural: &str, object: &Value) -> String {
    let text = |v: Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    cells(group, plural, object).into_iter().map(|(_, v)| text(v)).collect::<Vec<_>>().join(" | ")
}

pub(crate) fn warnings(group: &str, plural: &str, object: &Value) -> Vec<String> {
    crate::table::kind(group, plural).warnings.unwrap()(object, None)
}
