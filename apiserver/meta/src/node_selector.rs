//! Node selectors, as in the node affinity of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use crate::label_grammar;

/// Returns `true` if one of the terms matches the node. A selector without terms matches nothing.
pub fn matches(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, name, labels))
}

/// Returns `true` if all requirements of a term are met. A term without requirements matches nothing, and neither does
/// one with an invalid requirement: validation has not always refused these.
pub fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions.iter().all(|requirement| holds(requirement, labels.get(&requirement.key).map(String::as_str)))
        && fields.iter().all(|requirement| field_holds(requirement, name))
        && expressions.iter().all(is_valid)
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

/// Returns `true` if a requirement that holds is a valid one. Operators are known and numbers parsed by then.
fn is_valid(requirement: &NodeSelectorRequirement) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_right_number = match requirement.operator.as_str() {
        "In" | "NotIn" => !values.is_empty(),
        "Exists" | "DoesNotExist" => values.is_empty(),
        _ => values.len() == 1,
    };
    is_right_number
        && label_grammar::is_key(&requirement.key)
        && values.iter().all(|value| label_grammar::is_value(value))
}

/// Returns `true` if a requirement for a field is valid and met. Fields but for the name are empty.
fn field_holds(requirement: &NodeSelectorRequirement, name: &str) -> bool {
    let actual = if requirement.key == "metadata.name" { name } else { "" };
    let Some([value]) = requirement.values.as_deref() else { return false };
    match requirement.operator.as_str() {
        "In" => value == actual,
        "NotIn" => value != actual,
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

    #[test]
    fn numbers_are_those_that_go_parses() {
        let labels = |cores: &str| BTreeMap::from([("cores".to_owned(), cores.to_owned())]);
        let term = |operator: &str, values: &[&str]| -> NodeSelectorTerm {
            from_value(
                json!({"matchExpressions": [{"key": "cores", "operator": operator, "values": values}]}),
            )
            .unwrap()
        };
        let more = |cores: &str, than: &str| term_matches(&term("Gt", &[than]), "n1", &labels(cores));
        assert!(more("8", "7") && !more("8", "8") && more("007", "6") && more("9223372036854775807", "1"));
        assert!(!more("9223372036854775808", "1"), "64 bits are too few");
        assert!(!more("8.5", "7") && !more("0x9", "7") && !more("1_0", "7") && !more("", "7"));
        assert!(!term_matches(&term("Gt", &["1", "2"]), "n1", &labels("8")), "one number is compared");
        assert!(!term_matches(&term("Gt", &[]), "n1", &labels("8")));
        assert!(!term_matches(&term("Lt", &["9"]), "n1", &BTreeMap::new()), "a label is needed");
        assert!(!more("8", "-1"), "a label value does not begin with a minus");
    }

    #[test]
    fn terms_with_an_invalid_requirement_match_nothing_and_others_still_do() {
        let invalid = [
            json!({"key": "gpu", "operator": "NotIn", "values": ["a b"]}),
            json!({"key": "gpu", "operator": "NotIn", "values": []}),
            json!({"key": "-gpu", "operator": "DoesNotExist"}),
            json!({"key": "gpu", "operator": "DoesNotExist", "values": ["a"]}),
            json!({"key": "disk", "operator": "Exists", "values": ["ssd"]}),
            json!({"key": "disk", "operator": "In", "values": ["ssd", "{{.x}}"]}),
        ];
        let good = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]});
        for requirement in invalid {
            let term = json!({"matchExpressions": [requirement]});
            assert!(!selects(json!([term])), "{requirement}");
            assert!(selects(json!([term, good])), "{requirement}");
        }
    }

    #[test]
    fn fields_take_one_value_and_no_operators_of_labels() {
        let field = |key: &str, operator: &str, values: &[&str]| {
            selects(json!([{"matchFields": [{"key": key, "operator": operator, "values": values}]}]))
        };
        assert!(!field("metadata.name", "In", &["n1", "n2"]) && !field("metadata.name", "In", &[]));
        assert!(!field("metadata.name", "Exists", &[]) && !field("metadata.name", "Gt", &["0"]));
        assert!(
            !field("spec.unschedulable", "In", &["true"]) && field("spec.unschedulable", "NotIn", &["true"])
        );
        assert!(field("spec.unschedulable", "In", &[""]), "other fields are empty");
    }
}
