//! Node selectors, as in the node affinity of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

/// Returns `true` if one of the terms matches the node. A selector without terms matches nothing.
pub fn matches(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, name, labels))
}

/// Returns `true` if all requirements of a term are met. A term without requirements matches nothing.
pub fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn selects(terms: Value) -> bool {
        let labels = [("disk", "ssd"), ("cores", "8")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let selector: NodeSelector = from_value(json!({"nodeSelectorTerms": terms})).unwrap();
        matches(&selector, "n1", &labels.into())
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> bool {
        selects(json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]))
    }

    #[test]
    fn expressions_compare_labels() {
        assert!(expression("disk", "In", &["hdd", "ssd"]) && !expression("disk", "NotIn", &["ssd"]));
        assert!(expression("gpu", "NotIn", &["ssd"]) && expression("gpu", "DoesNotExist", &[]));
        assert!(expression("disk", "Exists", &[]) && !expression("gpu", "Exists", &[]));
        assert!(expression("cores", "Gt", &["4"]) && !expression("cores", "Lt", &["8"]));
        assert!(!expression("disk", "Gt", &["4"]) && !expression("disk", "Is", &["ssd"]));
    }

    #[test]
    fn fields_compare_the_name_and_terms_are_alternatives() {
        let named = |operator, name| json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]});
        assert!(selects(json!([named("In", "n1")])) && !selects(json!([named("In", "n2")])));
        assert!(selects(json!([named("NotIn", "n2")])) && !selects(json!([named("NotIn", "n1")])));
        assert!(selects(json!([named("In", "n2"), named("In", "n1")])));
        assert!(!selects(json!([])) && !selects(json!([{}])), "nothing is required of no node");
        let both = json!([{
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
            "matchExpressions": [{"key": "disk", "operator": "In", "values": ["hdd"]}],
        }]);
        assert!(!selects(both), "a term requires all of its requirements");
    }
}
