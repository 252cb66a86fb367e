//! The subresource `scale` of custom resources: where a version says that its numbers are.

use serde_json::{Value, json};

use super::Custom;
use crate::error::FieldError;
use crate::registry::Written;
use crate::selector::LabelSelector;

/// Where `scale` finds its numbers: `.spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    /// Empty if there is none.
    pub selector: String,
}

impl Custom {
    /// Where `scale` finds its numbers, if there is that subresource.
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
            let Some(value) = walk(object, path).filter(|v| !v.is_null()) else { return };
            let detail = match value.as_i64() {
                None => format!(
                    "{path} accessor error: {value} is of the type {}, expected int64",
                    go_type(value)
                ),
                Some(n) if n < 0 => "should be a non-negative integer".to_owned(),
                Some(n) if n > i64::from(i32::MAX) => format!("should be less than or equal to {}", i32::MAX),
                Some(_) => return,
            };
            errors.push(FieldError::invalid(path, value, &detail));
        };
        if written == Written::Main {
            number(&scale.spec_replicas);
        }
        number(&scale.status_replicas);
        if let Some(value) =
            walk(object, &scale.selector).filter(|v| !scale.selector.is_empty() && !v.is_string())
        {
            let detail = format!(
                "{} accessor error: {value} is of the type {}, expected string",
                scale.selector,
                go_type(value)
            );
            errors.push(FieldError::invalid(scale.selector.as_str(), value, &detail));
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
            // Whoever reads it parses it.
            if LabelSelector::parse(selector).is_ok() {
                status["selector"] = selector.into();
            }
        }
        Ok(json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
            "spec": {"replicas": replicas}, "status": status}))
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
