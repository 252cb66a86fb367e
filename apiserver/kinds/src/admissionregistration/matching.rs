//! The requests that a webhook or a policy concerns.

use std::collections::BTreeSet;

use apiserver_cel as cel;
use apiserver_cel::{Admission, Expected};
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, items, label_selector, metadata, names, text};
use serde_json::{Map, Value, json};

use crate::shared::defaults::{Object, each_object, fill, fill_absent};

/// Fills in selectors that match every object, and the match policy for every version.
pub(crate) fn default_selectors(holder: &mut Object) {
    fill_absent(holder, "matchPolicy", "Equivalent");
    fill(holder, "namespaceSelector", Map::new());
    fill(holder, "objectSelector", Map::new());
}

pub(crate) fn default_match_resources(constraints: &mut Object) {
    default_selectors(constraints);
    for rules in ["resourceRules", "excludeResourceRules"] {
        each_object(constraints, rules, |rule| fill_absent(rule, "scope", "*"));
    }
}

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

const MOST_CONDITIONS: usize = 64;

/// Metadata of a kind of this group, as errors to add to: finalizers need no domain.
pub(crate) fn with_any_finalizer(object: &Value) -> Errors {
    Errors::of(metadata::validate(object, names::dns_subdomain))
}

/// Operations, groups, versions, resources and scope of a rule.
pub(crate) fn rule_with_operations(rule: &Value, path: &str, errors: &mut Errors) {
    let operations = items(rule, "operations");
    alone(operations, &format!("{path}.operations"), "operations", errors);
    for (index, operation) in operations.iter().enumerate() {
        if !operation.as_str().is_some_and(|o| OPERATIONS.contains(&o)) {
            let path = format!("{path}.operations[{index}]");
            errors.extend([FieldError::not_supported(path, operation, &OPERATIONS)]);
        }
    }
    alone(items(rule, "apiGroups"), &format!("{path}.apiGroups"), "API groups", errors);
    let versions = items(rule, "apiVersions");
    alone(versions, &format!("{path}.apiVersions"), "API versions", errors);
    for (index, _) in versions.iter().enumerate().filter(|(_, v)| v.as_str() == Some("")) {
        errors.required(format!("{path}.apiVersions[{index}]"), "");
    }
    resources(items(rule, "resources"), &format!("{path}.resources"), errors);
    let scopes = ["*", "Cluster", "Namespaced"];
    errors.one_of_if_given(&format!("{path}.scope"), rule.get("scope"), &scopes);
}

/// Validates a list that must not be empty, and in which `*` must be the only item.
fn alone(list: &[Value], path: &str, what: &str, errors: &mut Errors) {
    if list.is_empty() {
        errors.required(path, "");
    } else if list.len() > 1 && list.iter().any(|item| item == "*") {
        errors.invalid(path, &json!(list), &format!("if '*' is present, must not specify other {what}"));
    }
}

/// Validates resources: `pods`, `pods/*`, `*/scale`, `*`, `*/*`; none may be included in an earlier one.
fn resources(list: &[Value], path: &str, errors: &mut Errors) {
    if list.is_empty() {
        errors.required(path, "");
        return;
    }
    let (mut whole, mut subresources) = (BTreeSet::new(), BTreeSet::new());
    // The last name without a subresource decides, as in Kubernetes.
    let mut plain = false;
    for (index, name) in list.iter().filter_map(Value::as_str).enumerate() {
        let path = format!("{path}[{index}]");
        if name.is_empty() {
            errors.required(path, "");
            continue;
        }
        let Some((resource, subresource)) = name.split_once('/') else {
            plain = name != "*";
            continue;
        };
        if whole.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {name}");
            errors.invalid(path.as_str(), &json!(name), &detail);
        }
        if subresources.contains(subresource) {
            let detail = format!("if '*/{subresource}' is present, must not specify {name}");
            errors.invalid(path, &json!(name), &detail);
        }
        if subresource == "*" {
            whole.insert(resource);
        }
        if resource == "*" {
            subresources.insert(subresource);
        }
    }
    if list.len() > 1 && list.iter().any(|name| name == "*/*") {
        errors.invalid(path, &json!(list), "if '*/*' is present, must not specify other resources");
    }
    if plain && list.iter().any(|name| name == "*") {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.invalid(path, &json!(list), detail);
    }
}

/// Conditions in CEL: named, and readable; with `params` they may name a policy's parameters.
pub(crate) fn match_conditions(list: &[Value], path: &str, params: bool, errors: &mut Errors) {
    if list.len() > MOST_CONDITIONS {
        errors.too_many(path, list.len(), MOST_CONDITIONS);
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, condition) in list.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let has = Admission { authorizer: true, params, patches: false };
        let check = |source: &str| cel::expression(source, has, Expected::Bool);
        expression(text(condition, "expression"), &format!("{path}.expression"), "", errors, check);
        let name = text(condition, "name");
        if name.is_empty() {
            errors.required(format!("{path}.name"), "");
        } else {
            errors.faults(&format!("{path}.name"), name, names::qualified_name(name));
            if !seen.insert(name) {
                errors.duplicate(format!("{path}.name"), &json!(name));
            }
        }
    }
}

/// Validates a CEL expression that is required and must satisfy `check`. Call it on a large stack
/// ([`apiserver_cel::on_large_stack`]), because expressions may be nested deeply.
pub(crate) fn expression(
    source: &str,
    path: &str,
    missing: &str,
    errors: &mut Errors,
    check: impl FnOnce(&str) -> Result<(), String>,
) {
    if source.trim().is_empty() {
        errors.required(path, missing);
    } else if let Err(why) = check(source) {
        errors.invalid(path, &json!(source), &why);
    }
}

pub(crate) fn match_resources(constraints: &Value, path: &str, errors: &mut Errors) {
    let policy = constraints.get("matchPolicy");
    errors.one_of_given(&format!("{path}.matchPolicy"), policy, &["Equivalent", "Exact"]);
    for selector in ["namespaceSelector", "objectSelector"] {
        let path = format!("{path}.{selector}");
        match constraints.get(selector).filter(|s| !s.is_null()) {
            None => errors.required(path, ""),
            found => label_selector(found, &path, errors),
        }
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        for (index, rule) in items(constraints, field).iter().enumerate() {
            let path = format!("{path}.{field}[{index}]");
            let mut seen = BTreeSet::new();
            for (index, name) in items(rule, "resourceNames").iter().filter_map(Value::as_str).enumerate() {
                let path = format!("{path}.resourceNames[{index}]");
                errors.faults(&path, name, names::path_segment(name));
                if !seen.insert(name) {
                    errors.duplicate(path, &json!(name));
                }
            }
            rule_with_operations(rule, &path, errors);
        }
    }
}
