//! Label selectors, read once.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A label selector. An empty one selects every object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector(Vec<Requirement>);

/// A condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
    /// An operator that this build does not know: it is not met.
    Never,
}

impl Selector {
    /// Reads a selector of the API. Its requirements are sorted, so that selectors that differ in order only
    /// are equal.
    pub fn of(selector: &LabelSelector) -> Self {
        let labels = selector.match_labels.iter().flatten();
        let mut all: Vec<_> =
            labels.map(|(key, value)| Requirement::In(key.clone(), vec![value.clone()])).collect();
        for one in selector.match_expressions.iter().flatten() {
            let mut values = one.values.clone().unwrap_or_default();
            values.sort_unstable();
            values.dedup();
            all.push(match one.operator.as_str() {
                "In" => Requirement::In(one.key.clone(), values),
                "NotIn" => Requirement::NotIn(one.key.clone(), values),
                "Exists" => Requirement::Exists(one.key.clone()),
                "DoesNotExist" => Requirement::DoesNotExist(one.key.clone()),
                _ => Requirement::Never,
            });
        }
        all.sort_unstable();
        all.dedup();
        Self(all)
    }

    /// Returns `true` if an object with these labels is selected.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::DoesNotExist(key) => !labels.contains_key(key),
            Requirement::Never => false,
        })
    }
}
