//! Node selectors and label selectors on typed objects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Returns `true` if one of the terms matches the node. A selector without terms matches nothing.
pub fn node_selector(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| node_term(term, name, labels))
}

/// Returns `true` if all requirements of a term are met. A term without requirements matches nothing.
pub fn node_term(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions.iter().all(|requirement| holds(requirement, labels.get(&requirement.key).map(String::as_str)))
        && fields.iter().all(|requirement| {
            let value = (requirement.key == "metadata.name").then_some(name);
            holds(requirement, value)
        })
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|v| v == value);
    let compare = |wanted: fn(i64, i64) -> bool| {
        let limit = values.first().and_then(|text| text.parse().ok());
        let actual = value.and_then(|text| text.parse().ok());
        matches!((actual, limit), (Some(actual), Some(limit)) if wanted(actual, limit))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|actual, limit| actual > limit),
        "Lt" => compare(|actual, limit| actual < limit),
        _ => false,
    }
}

/// Returns `true` if a label selector matches; an absent one matches nothing, an empty one everything.
pub fn labels(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    let Some(selector) = selector else { return false };
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|requirement| {
            let value = labels.get(&requirement.key);
            let values = requirement.values.as_deref().unwrap_or_default();
            match requirement.operator.as_str() {
                "In" => value.is_some_and(|value| values.contains(value)),
                "NotIn" => !value.is_some_and(|value| values.contains(value)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}
