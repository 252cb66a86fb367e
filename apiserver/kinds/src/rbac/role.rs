//! Roles and ClusterRoles.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, items, label_selector, metadata, names};
use serde_json::Value;

use crate::kind::Kind;

pub(crate) static CLUSTER_ROLE: Kind = Kind {
    group: "rbac.authorization.k8s.io",
    plural: "clusterroles",
    create_on_update: true,
    validate: validate_cluster_role,
    ..Kind::DEFAULT
};

pub(crate) static ROLE: Kind = Kind {
    group: "rbac.authorization.k8s.io",
    plural: "roles",
    create_on_update: true,
    validate: validate_role,
    ..Kind::DEFAULT
};

pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";

pub(crate) fn with_metadata(object: &Value) -> Errors {
    Errors::of(metadata::of_builtin(object, names::path_segment))
}

/// Errors of a Role.
fn validate_role(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    rules(object, true, &mut errors);
    errors.list()
}

/// Errors of a ClusterRole.
fn validate_cluster_role(object: &Value) -> Vec<FieldError> {
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
            label_selector(Some(selector), &path, &mut errors);
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
