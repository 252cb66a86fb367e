//! Requests and limits of pods and containers.

use std::collections::BTreeSet;

use apiserver_meta::quantity;
use apiserver_meta::resources::is_pod_level;
use apiserver_schema::error::{FieldError, FieldReason};
use apiserver_schema::validation::{Errors, given, items, names, text};
use serde_json::{Map, Value, json};

use crate::core::pod::requests;
use crate::shared::quantities::{container_resource, one, overcommits, resource_name};

/// `limits` and `requests` of a container at `path`; `claims` are those of the pod.
pub(crate) fn requirements(requirements: &Value, claims: &BTreeSet<&str>, path: &str, errors: &mut Errors) {
    amounts_of(requirements, container_resource, path, errors);
    claim_names(items(requirements, "claims"), claims, &format!("{path}.claims"), errors);
}

/// `spec.resources` of a pod at `path` (KEP-2837).
pub(crate) fn pod(spec: &Value, claims: &BTreeSet<&str>, path: &str, errors: &mut Errors) {
    let Some(requirements) = given(spec, "resources") else { return };
    if spec.pointer("/os/name").is_some_and(|name| name == "windows") {
        return errors.forbidden(path, "may not be set for a windows pod");
    }
    if given(requirements, "claims").is_some() {
        errors.forbidden(format!("{path}.claims"), "claims may not be set for Resources at pod-level");
    }
    self::amounts_of(requirements, pod_resource, path, errors);
    self::claim_names(items(requirements, "claims"), claims, &format!("{path}.claims"), errors);
    for (name, total) in requests::container_requests(spec) {
        let own = map(requirements, "requests").get(name).and_then(|v| quantity::parse_value(v).ok());
        // A resource that the pod as a whole does not limit is up to its containers.
        if let Some(own) = own.filter(|own| total > *own) {
            let detail = format!("must be greater than or equal to aggregate container requests of {total}");
            errors.invalid(format!("{path}.requests[{name}]"), &json!(own.to_string()), &detail);
        }
    }
    for (index, container) in items(spec, "containers").iter().enumerate() {
        for (name, limit) in map(&container["resources"], "limits") {
            let most = map(requirements, "limits").get(name).and_then(|v| quantity::parse_value(v).ok());
            if let (Ok(limit), Some(most)) = (quantity::parse_value(limit), most)
                && limit > most
            {
                let detail = format!("must be less than or equal to pod limits of {most}");
                let path = format!("{path}.containers[{index}][{name}].limits");
                errors.invalid(path, &json!(limit.to_string()), &detail);
            }
        }
    }
}

fn map<'a>(requirements: &'a Value, key: &str) -> &'a Map<String, Value> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    requirements.get(key).and_then(Value::as_object).unwrap_or(&EMPTY)
}

type CheckName = fn(&str, &str, &mut Errors);

fn amounts_of(requirements: &Value, check: CheckName, path: &str, errors: &mut Errors) {
    let (limits, requests) = (map(requirements, "limits"), map(requirements, "requests"));
    for (name, amount) in limits {
        let path = format!("{path}.limits[{name}]");
        check(name, &path, errors);
        one(name, amount, &path, errors);
        huge_page(name, amount, &path, errors);
    }
    for (name, amount) in requests {
        let at = format!("{path}.requests[{name}]");
        check(name, &at, errors);
        one(name, amount, &at, errors);
        within(name, amount, limits, path, errors);
        huge_page(name, amount, &at, errors);
    }
    let has = |wanted: fn(&str) -> bool| limits.keys().chain(requests.keys()).any(|name| wanted(name));
    if has(|n| n.starts_with("hugepages-")) && !has(|n| n == "cpu" || n == "memory") {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
}

/// Validates that a request is at most the limit, and equals the limit if the resource cannot be
/// overcommitted.
fn within(name: &str, request: &Value, limits: &Map<String, Value>, path: &str, errors: &mut Errors) {
    let overcommit = overcommits(name);
    let Some(limit) = limits.get(name) else {
        if !overcommit {
            errors.required(format!("{path}.limits"), "Limit must be set for non overcommitable resources");
        }
        return;
    };
    let (Ok(asked), Ok(most)) = (quantity::parse_value(request), quantity::parse_value(limit)) else {
        return;
    };
    let path = format!("{path}.requests");
    if asked != most && !overcommit {
        let detail = format!("must be equal to {name} limit of {most}");
        errors.invalid(path, &json!(asked.to_string()), &detail);
    } else if asked > most {
        let detail = format!("must be less than or equal to {name} limit of {most}");
        errors.invalid(path, &json!(asked.to_string()), &detail);
    }
}

fn huge_page(name: &str, amount: &Value, path: &str, errors: &mut Errors) {
    let Some(size) = name.strip_prefix("hugepages-").and_then(|s| quantity::parse(s).ok()) else { return };
    let Ok(amount) = quantity::parse_value(amount) else { return };
    if size.nano() > 0 && !amount.is_negative() && amount.nano() % size.nano() != 0 {
        let detail = format!("{amount} is not positive integer multiple of {name}");
        errors.invalid(path, &json!(amount.to_string()), &detail);
    }
}

fn claim_names(list: &[Value], claims: &BTreeSet<&str>, path: &str, errors: &mut Errors) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (index, claim) in list.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let (name, request) = (text(claim, "name"), text(claim, "request"));
        if name.is_empty() {
            errors.required(path, "");
            continue;
        }
        errors.name_if_set(&format!("{path}.request"), request, names::dns_label);
        let key = if request.is_empty() { name.to_owned() } else { format!("{name}/{request}") };
        let begin = format!("{name}/");
        let next = seen.range(begin.clone()..).next().filter(|_| request.is_empty());
        let overlaps = next.is_some_and(|key| key.starts_with(&begin));
        if seen.contains(name) || overlaps {
            errors.duplicate(path.as_str(), &json!(name));
        } else if seen.contains(&key) {
            errors.duplicate(path.as_str(), &json!(key));
        }
        seen.insert(key);
        if !claims.contains(name) {
            let known: Vec<&str> = claims.iter().copied().collect();
            let known = if known.is_empty() {
                " which is empty".to_owned()
            } else {
                format!(": {}", known.join(", "))
            };
            let message =
                format!("Not found: {name:?}: must be one of the names in pod.spec.resourceClaims{known}");
            errors.extend([FieldError { field: path, reason: FieldReason::NotFound, message }]);
        }
    }
}

fn pod_resource(name: &str, path: &str, errors: &mut Errors) {
    if resource_name(name, path, errors) && !is_pod_level(name) {
        errors.not_supported(path, &json!(name), &["cpu", "hugepages-", "memory"]);
    }
}

/// `spec.overhead` of a pod, or of a RuntimeClass: validated as limits of a container at `path`.
pub(crate) fn overhead(overhead: &Value, path: &str, errors: &mut Errors) {
    amounts_of(&json!({"limits": overhead}), container_resource, path, errors);
}
