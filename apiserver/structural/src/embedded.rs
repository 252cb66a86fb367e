//! Objects of the API inside of custom resources: their type and metadata must be valid.

use serde_json::{Value, json};

use super::Structural;
use super::path::{Path, child};
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{metadata, names};

impl Structural {
    /// Errors of embedded objects; of the object itself too if `root`.
    pub fn embedded_errors(&self, value: &Value, root: bool) -> Vec<FieldError> {
        let mut errors = Vec::new();
        walk(self, value, root, &Path::Root, &mut errors);
        errors
    }
}

fn walk(schema: &Structural, value: &Value, root: bool, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            if root || schema.embedded {
                object(value, &path.to_string(), errors);
            }
            for (key, value) in map {
                if let Some(property) = schema.properties.get(key) {
                    walk(property, value, false, &path.field(key), errors);
                } else if let Some(values) = schema.field(key) {
                    walk(values, value, false, &path.key(key), errors);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for (index, item) in list.iter().enumerate() {
                walk(items, item, false, &path.index(index), errors);
            }
        }
        _ => {}
    }
}

fn object(value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for field in ["apiVersion", "kind"] {
        let at = child(path, field);
        match value.get(field) {
            None => errors.push(FieldError::required(at, "")),
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(FieldError::invalid(at, &json!(text), "must not be empty"));
            }
            Some(Value::String(text)) => errors.extend(
                type_fault(field, text).map(|fault| FieldError::invalid(at.as_str(), &json!(text), &fault)),
            ),
            Some(other) => errors.push(FieldError::invalid(at, other, "must be a string")),
        }
    }
    let Some(found) = value.get("metadata") else { return };
    let mut named = json!({"metadata": found});
    if apiserver_schema::meta::name(&named).is_empty() {
        // A name is not needed, and a message about it would be wrong.
        apiserver_schema::meta::set(&mut named, "name", "fakename");
    }
    for mut error in metadata::validate(&named, names::path_segment) {
        error.field = child(path, &error.field);
        errors.push(error);
    }
}

fn type_fault(field: &str, text: &str) -> Option<String> {
    if field == "apiVersion" {
        return (text.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {text}"));
    }
    let faults = names::dns_1035_label(&text.to_lowercase());
    (!faults.is_empty())
        .then(|| format!("may have mixed case, but should otherwise match: {}", faults.join(",")))
}
