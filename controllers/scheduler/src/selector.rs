//! Label selectors, parsed once and comparable, so that equal ones are counted together.

use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver_client::Labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// A label selector. Selectors with the same requirements are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// Matches nothing, as an absent selector does.
    Nothing,
    /// Matches labels that meet all requirements; without requirements it matches everything.
    All(BTreeSet<Requirement>),
}

/// A condition for one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    key: Arc<str>,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operator {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

impl Requirement {
    /// Requires a label to have a value.
    fn equals(key: &str, value: &str) -> Self {
        Self { key: key.into(), operator: Operator::In([value.to_owned()].into()) }
    }

    fn parse(requirement: &LabelSelectorRequirement) -> Option<Self> {
        let values = || requirement.values.iter().flatten().cloned().collect();
        let operator = match requirement.operator.as_str() {
            "In" => Operator::In(values()),
            "NotIn" => Operator::NotIn(values()),
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            _ => return None,
        };
        Some(Self { key: requirement.key.as_str().into(), operator })
    }

    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&*self.key);
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => !value.is_some_and(|value| values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl Selector {
    /// Parses a selector. An absent one matches nothing, and so does one with an unknown operator, which validation refuses.
    pub fn parse(selector: Option<&LabelSelector>) -> Self {
        let Some(selector) = selector else { return Self::Nothing };
        let equal =
            selector.match_labels.iter().flatten().map(|(key, value)| Requirement::equals(key, value));
        let expressions = selector.match_expressions.iter().flatten().map(Requirement::parse);
        let all: Option<BTreeSet<Requirement>> = equal.map(Some).chain(expressions).collect();
        all.map_or(Self::Nothing, Self::All)
    }

    /// Returns the selector of labels with all of these values.
    pub fn of_labels(labels: &Labels) -> Self {
        Self::All(labels.iter().map(|(key, value)| Requirement::equals(key, value)).collect())
    }

    /// Returns the selector of what both match; a selector that matches nothing adds nothing.
    #[must_use]
    pub fn and(&self, more: &Self) -> Self {
        match (self, more) {
            (Self::All(some), Self::All(others)) => Self::All(some.union(others).cloned().collect()),
            _ => self.clone(),
        }
    }

    /// Returns `true` if there are no requirements, so that everything matches.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::All(requirements) if requirements.is_empty())
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        match self {
            Self::Nothing => false,
            Self::All(requirements) => requirements.iter().all(|requirement| requirement.matches(labels)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn selector(value: Value) -> Selector {
        Selector::parse(Some(&from_value(value).unwrap()))
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn absent_selectors_match_nothing_and_empty_ones_everything() {
        assert!(!Selector::parse(None).matches(&labels(&[("a", "b")])));
        assert!(selector(json!({})).matches(&labels(&[])) && selector(json!({})).is_empty());
        assert!(!Selector::Nothing.is_empty());
        let unknown =
            selector(json!({"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}));
        assert_eq!(unknown, Selector::Nothing);
    }

    #[test]
    fn requirements_compare_labels() {
        let matches = |operator: &str, values: &[&str]| {
            let expression = json!({"key": "a", "operator": operator, "values": values});
            let selector = selector(json!({"matchExpressions": [expression]}));
            [labels(&[("a", "1")]), labels(&[("a", "2")]), labels(&[])]
                .map(|labels| selector.matches(&labels))
        };
        assert_eq!(matches("In", &["1", "3"]), [true, false, false]);
        assert_eq!(matches("NotIn", &["1", "3"]), [false, true, true]);
        assert_eq!(matches("Exists", &[]), [true, true, false]);
        assert_eq!(matches("DoesNotExist", &[]), [false, false, true]);
    }

    #[test]
    fn selectors_are_equal_however_they_are_written() {
        let expression = json!({"key": "a", "operator": "In", "values": ["1"]});
        let written = selector(json!({"matchExpressions": [expression, expression]}));
        assert_eq!(written, selector(json!({"matchLabels": {"a": "1"}})));
        assert_eq!(written, Selector::of_labels(&labels(&[("a", "1")])));
        let both = written.and(&Selector::of_labels(&labels(&[("b", "2")])));
        assert_eq!(both, Selector::of_labels(&labels(&[("a", "1"), ("b", "2")])));
        assert_eq!(written.and(&Selector::Nothing), written);
    }
}
