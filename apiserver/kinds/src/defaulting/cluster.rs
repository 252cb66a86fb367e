//! Namespace, Node, Secret, LimitRange, PriorityClass.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{Object, each, fill, fill_absent, is, made};
use apiserver_schema::meta;

/// The label that selects a namespace by its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Defaults of a Namespace: the label that carries its name.
pub fn namespace(value: &mut Value) {
    let name = meta::name(value).to_owned();
    if name.is_empty() {
        return;
    }
    if let Some(labels) = made(meta::metadata_mut(value), "labels") {
        labels.insert(NAME_LABEL.into(), name.into());
    }
}

/// Makes a new Namespace active, and gives it the finalizer that its deletion waits for.
pub fn prepare_create_namespace(value: &mut Value) {
    if let Value::Object(map) = value {
        // Set regardless of the request: only the finalize subresource changes them.
        let mut finalizers = map
            .get("spec")
            .and_then(|s| s.get("finalizers"))
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        if !finalizers.contains(&json!("kubernetes")) {
            finalizers.push(json!("kubernetes"));
        }
        map.insert("spec".into(), json!({"finalizers": finalizers}));
        map.insert("status".into(), json!({"phase": "Active"}));
    }
}

/// `spec.finalizers` is changed by the finalize subresource alone. Arguments: new, old.
pub fn prepare_update_namespace(new: &mut Value, old: &Value) {
    if let (Value::Object(map), Some(spec)) = (new, old.get("spec")) {
        map.insert("spec".into(), spec.clone());
    }
}

/// Secrets of a ServiceAccount are those of its namespace, so their names are all that is kept of them.
pub fn prepare_service_account(value: &mut Value) {
    if let Value::Object(map) = value {
        each(map, "secrets", |secret| secret.retain(|field, _| field == "name"));
    }
}

/// Restores the spec of a CertificateSigningRequest, which cannot change.
pub fn prepare_update_signing_request(new: &mut Value, old: &Value) {
    if let (Value::Object(map), Some(spec)) = (new, old.get("spec")) {
        map.insert("spec".into(), spec.clone());
    }
}

/// Sets defaults of a Node: everything that is not reserved can be allocated; `podCIDR` is the first of
/// `podCIDRs`.
pub fn node(value: &mut Value) {
    super::with_spec(value, |spec| super::singular_and_list(spec, "podCIDR", "podCIDRs", None));
    let capacity = value.pointer("/status/capacity").cloned();
    if let (Some(capacity), Some(Value::Object(status))) = (capacity, value.get_mut("status")) {
        fill(status, "allocatable", capacity);
    }
}

/// A new PriorityClass is the first of its name; no change is counted.
pub fn prepare_create_priority_class(value: &mut Value) {
    meta::set(value, "generation", 1);
}

/// Defaults of a Secret; `stringData`, which is only written, moves into `data`.
pub fn secret(value: &mut Value) {
    let Value::Object(map) = value else { return };
    fill(map, "type", "Opaque");
    if let Some(Value::Object(plain)) = map.remove("stringData")
        && !plain.is_empty()
        && let Some(data) = made(map, "data")
    {
        for (key, text) in plain {
            let encoded = STANDARD.encode(text.as_str().unwrap_or_default());
            data.insert(key, encoded.into());
        }
    }
}

/// Defaults of a LimitRange: `default` is at most `max`, `defaultRequest` is `default` or `min`.
pub fn limit_range(value: &mut Value) {
    super::with_spec(value, |spec| each(spec, "limits", container_limits));
}

fn container_limits(item: &mut Object) {
    if !is(item, "type", "Container") {
        return;
    }
    for (target, source) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
        let Some(Value::Object(amounts)) = item.get(source).cloned() else { continue };
        if let Some(target) = made(item, target) {
            for (name, amount) in amounts {
                target.entry(name).or_insert(amount);
            }
        }
    }
}

/// Defaults of a PriorityClass.
pub fn priority_class(value: &mut Value) {
    if let Value::Object(map) = value {
        fill_absent(map, "preemptionPolicy", "PreemptLowerPriority");
    }
}
