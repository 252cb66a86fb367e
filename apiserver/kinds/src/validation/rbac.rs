//! Roles and bindings.

use serde_json::{Value, json};

use super::{Errors, items, metadata, names, same, text};
use apiserver_schema::error::FieldError;

const GROUP: &str = "rbac.authorization.k8s.io";

fn with_metadata(object: &Value) -> Errors {
    Errors::of(metadata::of_builtin(object, names::path_segment))
}

/// Errors of a Role.
pub fn role(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    rules(object, true, &mut errors);
    errors.list()
}

/// Errors of a ClusterRole.
pub fn cluster_role(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    rules(object, false, &mut errors);
    let aggregation = object.get("aggregationRule").filter(|a| !a.is_null());
    if let Some(aggregation) = aggregation {
        let path = "aggregationRule.clusterRoleSelectors";
        let selectors = items(aggregation, "clusterRoleSelectors");
        if selectors.is_empty() {
            errors.required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil");
        }
        for (index, selector) in selectors.iter().enumerate() {
            let path = format!("{path}[{index}]");
            super::label_selector(Some(selector), &path, &mut errors);
            if apiserver_registry::LabelSelector::from_meta(selector).is_err() {
                errors.invalid(path, selector, "invalid label selector.");
            }
        }
    }
    errors.list()
}

fn rules(object: &Value, namespaced: bool, errors: &mut Errors) {
    for (index, rule) in items(object, "rules").iter().enumerate() {
        let path = format!("rules[{index}]");
        if items(rule, "verbs").is_empty() {
            errors.required(format!("{path}.verbs"), "verbs must contain at least one value");
        }
        let urls = items(rule, "nonResourceURLs");
        if !urls.is_empty() {
            let shown = Value::Array(urls.to_vec());
            if namespaced {
                let detail = "namespaced rules cannot apply to non-resource URLs";
                errors.invalid(format!("{path}.nonResourceURLs"), &shown, detail);
            }
            if ["apiGroups", "resources", "resourceNames"].iter().any(|f| !items(rule, f).is_empty()) {
                let detail = "rules cannot apply to both regular resources and non-resource URLs";
                errors.invalid(format!("{path}.nonResourceURLs"), &shown, detail);
            }
            continue;
        }
        if items(rule, "apiGroups").is_empty() {
            errors.required(format!("{path}.apiGroups"), "resource rules must supply at least one api group");
        }
        if items(rule, "resources").is_empty() {
            errors.required(format!("{path}.resources"), "resource rules must supply at least one resource");
        }
    }
}

/// Errors of a RoleBinding.
pub fn role_binding(object: &Value) -> Vec<FieldError> {
    binding(object, &["Role", "ClusterRole"], true)
}

/// Errors of a ClusterRoleBinding.
pub fn cluster_role_binding(object: &Value) -> Vec<FieldError> {
    binding(object, &["ClusterRole"], false)
}

fn binding(object: &Value, kinds: &[&str], namespaced: bool) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let role = &object["roleRef"];
    let group = text(role, "apiGroup");
    if group != GROUP {
        errors.not_supported("roleRef.apiGroup", &json!(group), &[GROUP]);
    }
    let kind = text(role, "kind");
    if !kinds.contains(&kind) {
        errors.not_supported("roleRef.kind", &json!(kind), kinds);
    }
    let name = text(role, "name");
    if name.is_empty() {
        errors.required("roleRef.name", "");
    } else {
        errors.faults("roleRef.name", name, names::path_segment(name));
    }
    for (index, subject) in items(object, "subjects").iter().enumerate() {
        let path = format!("subjects[{index}]");
        let name = text(subject, "name");
        if name.is_empty() {
            errors.required(format!("{path}.name"), "");
        }
        let group = text(subject, "apiGroup");
        match text(subject, "kind") {
            "ServiceAccount" => {
                if !name.is_empty() {
                    errors.faults(&format!("{path}.name"), name, names::dns_subdomain(name));
                }
                if !group.is_empty() {
                    errors.extend([FieldError::not_supported(
                        format!("{path}.apiGroup"),
                        &json!(group),
                        &[""],
                    )]);
                }
                // A role binding's own namespace is meant where none is given.
                if !namespaced && text(subject, "namespace").is_empty() {
                    errors.required(format!("{path}.namespace"), "");
                }
            }
            "User" | "Group" => {
                if group != GROUP {
                    errors.extend([FieldError::not_supported(
                        format!("{path}.apiGroup"),
                        &json!(group),
                        &[GROUP],
                    )]);
                }
            }
            other => {
                let kinds = ["ServiceAccount", "User", "Group"];
                errors.not_supported(format!("{path}.kind"), &json!(other), &kinds);
            }
        }
    }
    errors.list()
}

/// The role that a binding grants stays. Arguments: new, old.
pub fn binding_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    if !same(new.get("roleRef"), old.get("roleRef")) {
        errors.invalid("roleRef", &new["roleRef"], "cannot change roleRef");
    }
    errors.list()
}
