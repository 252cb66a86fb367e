//! Requests and limits, and maps of quantities in general.

use serde_json::{Value, json};

use super::{Errors, NOT_NEGATIVE, names};
use crate::quantity;

/// Limits and requests of a container at `path`.
pub(super) fn requirements(requirements: &Value, path: &str, errors: &mut Errors) {
    let empty = serde_json::Map::new();
    let amounts = |key: &str| requirements.get(key).and_then(Value::as_object).unwrap_or(&empty);
    let (limits, requests) = (amounts("limits"), amounts("requests"));
    for (key, list) in [("limits", limits), ("requests", requests)] {
        for (name, amount) in list {
            let path = format!("{path}.{key}");
            container_resource(name, &path, errors);
            one(name, amount, &format!("{path}[{name}]"), errors);
        }
    }
    for (name, request) in requests {
        let path = format!("{path}.requests");
        let parsed = |v: &Value| quantity::parse_value(v).ok();
        match limits.get(name) {
            Some(limit) => {
                let (Some(asked), Some(most)) = (parsed(request), parsed(limit)) else { continue };
                let overcommit = is_native(name) && !name.starts_with("hugepages-");
                if !overcommit && asked != most {
                    let detail = format!("must be equal to {name} limit of {most}");
                    errors.invalid(path, &json!(asked.to_string()), &detail);
                } else if asked > most {
                    let detail = format!("must be less than or equal to {name} limit of {most}");
                    errors.invalid(path, &json!(asked.to_string()), &detail);
                }
            }
            None if !is_native(name) => {
                errors.required(path, "Limit must be set for non overcommitable resources");
            }
            None => {}
        }
    }
}

/// Resources without a domain belong to Kubernetes.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.starts_with("kubernetes.io/")
}

fn container_resource(name: &str, path: &str, errors: &mut Errors) {
    let faults = names::qualified_name(name);
    let unknown = faults.is_empty()
        && !name.contains('/')
        && !matches!(name, "cpu" | "memory" | "ephemeral-storage")
        && !name.starts_with("hugepages-");
    errors.faults(path, name, faults);
    if unknown {
        errors.invalid(path, &json!(name), "must be a standard resource for containers");
    }
}

/// One amount of a resource at `path`.
pub(super) fn one(name: &str, amount: &Value, path: &str, errors: &mut Errors) {
    let Ok(parsed) = quantity::parse_value(amount) else { return };
    if parsed.is_negative() {
        errors.invalid(path, &json!(parsed.to_string()), NOT_NEGATIVE);
    }
    let countable = !is_native(name) || matches!(name, "pods" | "services" | "secrets" | "configmaps");
    if countable && !parsed.is_integer() {
        errors.invalid(path, &json!(parsed.to_string()), "must be an integer");
    }
}

/// Every amount of a map of quantities at `path`.
pub(super) fn amounts(map: Option<&Value>, path: &str, errors: &mut Errors) {
    for (name, amount) in map.and_then(Value::as_object).into_iter().flatten() {
        errors.faults(path, name, names::qualified_name(name));
        one(name, amount, &format!("{path}[{name}]"), errors);
    }
}
