//! Patches of objects.

use serde_json::{Value, json};

/// Applies a merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            // The only directive of strategic merge patches that is used.
            if let Some(items) = target[list].as_array_mut() {
                items.retain(|item| !value.as_array().unwrap().contains(item));
            }
        } else if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// Applies a configuration by the only owner of the status, if it has one: what it no longer names there is removed.
pub fn apply(target: &mut Value, configuration: &Value) {
    if !configuration["status"].is_null() {
        target["status"] = json!({});
    }
    merge(target, configuration);
}
