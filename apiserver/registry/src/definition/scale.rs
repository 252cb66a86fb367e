//! The subresource `scale` of custom resources: the paths of its numbers in each version.

use serde_json::{Value, json};

use super::Custom;
use crate::behaviour::Written;
use crate::label_selector::LabelSelector;
use apiserver_schema::error::FieldError;

/// The paths of the numbers that `scale` reads and writes, such as `.spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    /// Empty if there is none.
    pub selector: String,
}

impl Custom {
    /// Returns the paths of the `scale` subresource, if the version has it.
    pub fn scale(&self) -> Option<ScalePaths> {
        let scale = self.rest()["subresources"].get("scale").filter(|s| s.is_object())?;
        let text = |field: &str| scale.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(ScalePaths {
            spec_replicas: text("specReplicasPath"),
            status_replicas: text("statusReplicasPath"),
            selector: text("labelSelectorPath"),
        })
    }

    pub(super) fn scale_errors(&self, object: &Value, written: Written) -> Vec<FieldError> {
        let Some(scale) = self.scale() else { return Vec::new() };
        let mut errors = Vec::new();
        let mut number = |path: &str| {
            // Kubernetes shows no number where it found none.
            let (shown, detail) = match read(object, path, "int64", Value::is_i64) {
                Err(why) => (0, why),
                Ok(value) => match value.and_then(Value::as_i64).unwrap_or(0) {
                    n if n < 0 => (n, "should be a non-negative integer".to_owned()),
                    n if n > i64::from(i32::MAX) => {
                        (n, format!("should be less than or equal to {}", i32::MAX))
                    }
                    _ => return,
                },
            };
            errors.push(FieldError::invalid(path, &shown.into(), &detail));
        };
        if written == Written::Main {
            number(&scale.spec_replicas);
        }
        number(&scale.status_replicas);
        if !scale.selector.is_empty()
            && let Err(why) = read(object, &scale.selector, "string", Value::is_string)
        {
            errors.push(FieldError::invalid(scale.selector.as_str(), &"".into(), &why));
        }
        errors
    }

    /// `autoscaling/v1 Scale` of an object; an error if it has no number of replicas.
    pub fn scale_of(&self, object: &Value) -> Result<Value, String> {
        let scale = self.scale().ok_or_else(|| "there is no scale".to_owned())?;
        let count = |path: &str| walk(object, path).and_then(Value::as_i64);
        let replicas = count(&scale.spec_replicas)
            .ok_or_else(|| format!("the spec replicas field {:?} does not exist", scale.spec_replicas))?;
        let mut metadata = json!({});
        for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            if let Some(value) = object["metadata"].get(field) {
                metadata[field] = value.clone();
            }
        }
        let mut status = json!({"replicas": count(&scale.status_replicas).unwrap_or(0)});
        if let Some(selector) =
            walk(object, &scale.selector).and_then(Value::as_str).filter(|s| !s.is_empty())
        {
            // Readers of the scale parse it.
            if LabelSelector::parse(selector).is_ok() {
                status["selector"] = selector.into();
            }
        }
        // No replicas are not written.
        let spec = if replicas == 0 { json!({}) } else { json!({"replicas": replicas}) };
        Ok(json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec,
            "status": status}))
    }

    /// Sets the number of replicas that `scale` wants.
    pub fn set_replicas(&self, object: &mut Value, replicas: i64) {
        let Some(scale) = self.scale() else { return };
        let mut place = object;
        for name in scale.spec_replicas.trim_start_matches('.').split('.') {
            if !place.is_object() {
                *place = json!({});
            }
            place = &mut place[name];
        }
        *place = replicas.into();
    }
}

fn walk<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    path.trim_start_matches('.').split('.').try_fold(object, |value, name| value.get(name))
}

/// Returns the value at a path, or the reason why it cannot be of that type. A missing value is not an error.
fn read<'v>(
    object: &'v Value,
    path: &str,
    wanted: &str,
    holds: fn(&Value) -> bool,
) -> Result<Option<&'v Value>, String> {
    let wrong = |value: &Value, wanted: &str| {
        let shown = value.as_str().map_or_else(|| shown(value), str::to_owned);
        format!("{path} accessor error: {shown} is of the type {}, expected {wanted}", go_type(value))
    };
    let mut place = object;
    for name in path.trim_start_matches('.').split('.') {
        if !place.is_object() {
            return Err(wrong(place, "map[string]interface{}"));
        }
        match place.get(name) {
            None => return Ok(None),
            Some(value) => place = value,
        }
    }
    if place.is_null() || holds(place) { Ok(Some(place)) } else { Err(wrong(place, wanted)) }
}

/// A number as Go's `%v` writes it: a whole one without a fraction.
fn shown(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if value.is_f64() && number.fract() == 0.0 && number.abs() < 1e21 => format!("{number}"),
        _ => value.to_string(),
    }
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
