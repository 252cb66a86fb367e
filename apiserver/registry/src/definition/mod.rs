//! `CustomResourceDefinition`: validation, status, and the kinds that definitions add to the registry.

pub(crate) mod columns;
mod custom;
mod defaults;
mod jsonpath;
mod scale;
mod status;
mod validate;
mod versions;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use apiserver_meta::time;
use apiserver_schema::meta;
use apiserver_structural as structural;

pub use custom::{Conversion, Custom, Definition, Source, version_order};
pub use jsonpath::JsonPath;
pub use scale::ScalePaths;
pub use status::{AcceptedNames, Condition, awaits_cleanup, reconcile, set_condition};
pub use validate::{validate, validate_change};

/// The group of definitions.
pub const GROUP: &str = "apiextensions.k8s.io";
/// Holds a definition until its objects are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Fills in names, conversion and the first stored version.
pub fn default(definition: &mut Value) {
    let Some(Value::Object(spec)) = definition.get_mut("spec") else { return };
    if let Some(Value::Object(names)) = spec.get_mut("names") {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut fill = |field: &str, text: String| {
            let empty = names.get(field).is_none_or(|v| v.as_str().is_none_or(str::is_empty));
            if empty && !text.is_empty() {
                names.insert(field.to_owned(), text.into());
            }
        };
        fill("singular", kind.to_lowercase());
        fill("listKind", if kind.is_empty() { String::new() } else { format!("{kind}List") });
    }
    let conversion = spec.entry("conversion").or_insert(Value::Null);
    if conversion.is_null() {
        *conversion = json!({"strategy": "None"});
    }
    if let Some(Value::Object(service)) = conversion.pointer_mut("/webhook/clientConfig/service") {
        service.entry("port").or_insert(json!(443));
    }
    // Old clients send this for a field that no longer exists.
    if spec.get("preserveUnknownFields") == Some(&Value::Bool(false)) {
        spec.remove("preserveUnknownFields");
    }
    // Removing all versions does not mean that nothing was ever stored.
    let stored = storage_version(definition).map(|version| json!([version]));
    if let (Some(stored), Some(Value::Object(status))) = (stored, definition.get_mut("status"))
        && status.get("storedVersions").and_then(Value::as_array).is_none_or(Vec::is_empty)
    {
        status.insert("storedVersions".to_owned(), stored);
    }
}

/// The status of a new definition: the version that its objects will be stored in.
pub fn prepare_create(definition: &mut Value) {
    let stored: Vec<Value> = storage_version(definition).map(Into::into).into_iter().collect();
    if definition.is_object() {
        definition["status"] = json!({
            "conditions": [], "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored,
        });
    }
}

/// A change of the version to store in is noted: objects of both are in the store from now on.
pub fn prepare_update(new: &mut Value, _old: &Value) {
    let Some(version) = storage_version(new).map(str::to_owned) else { return };
    let Some(Value::Object(status)) = new.get_mut("status") else { return };
    let stored = status.entry("storedVersions").or_insert_with(|| json!([]));
    if let Value::Array(list) = stored
        && !list.iter().any(|v| *v == version.as_str())
    {
        list.push(version.into());
    }
}

/// Makes a definition that is being deleted wait for its objects.
pub fn prepare_delete(definition: &mut Value, now: jiff::Timestamp) {
    let mut finalizers: Vec<String> = meta::finalizers(definition).into_iter().map(str::to_owned).collect();
    if !finalizers.iter().any(|f| f == CLEANUP) {
        finalizers.push(CLEANUP.to_owned());
        meta::set_finalizers(definition, finalizers);
    }
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    let condition = Condition::new("Terminating", true, "InstanceDeletionPending", message);
    set_condition(definition, &condition, &time::rfc3339(now));
}

/// Returns the warnings about a definition: formats that are not checked.
pub fn warnings(new: &Value, old: Option<&Value>) -> Vec<String> {
    let formats = |definition: &Value| {
        let mut found = Vec::new();
        for version in meta::list(definition, "/spec/versions") {
            if let Some(schema) = version.pointer("/schema/openAPIV3Schema") {
                unknown_formats(schema, &mut found);
            }
        }
        found
    };
    let before: BTreeSet<String> = old.map(formats).unwrap_or_default().into_iter().collect();
    let mut found = formats(new);
    found.retain(|format| !before.contains(format));
    found.dedup();
    found.into_iter().map(|format| format!("unrecognized format {format:?}")).collect()
}

fn unknown_formats(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            let format = map.get("format").and_then(Value::as_str).unwrap_or_default();
            let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
            if !format.is_empty() && !structural::known_format(format, kind) {
                found.push(format.to_owned());
            }
            for (key, value) in map {
                if !matches!(key.as_str(), "default" | "example" | "enum") {
                    unknown_formats(value, found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| unknown_formats(value, found)),
        _ => {}
    }
}

/// The version that objects are stored in.
pub fn storage_version(definition: &Value) -> Option<&str> {
    meta::list(definition, "/spec/versions").iter().find(|v| v["storage"] == true)?["name"].as_str()
}
