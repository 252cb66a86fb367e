//! Candidates by a label that a node needs for them, so that not every node looks at every candidate.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use apiserver_client::Labels;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A label that a node needs, with one of these values.
pub(super) type Need<'a> = (&'a str, &'a [String]);

/// Candidates, named by their index in an order of preference.
#[derive(Debug, Default)]
pub(super) struct ByLabel<'a> {
    /// Candidates in ascending order, by key and value of a label that nodes need for them.
    groups: BTreeMap<&'a str, BTreeMap<&'a str, Vec<usize>>>,
    /// Candidates for which no label is known to be needed.
    others: Vec<usize>,
}

impl<'a> ByLabel<'a> {
    /// Groups candidates, given the labels that are needed for each. Of several the one that tells nodes apart best is
    /// taken.
    pub fn new(candidates: &[Vec<Need<'a>>]) -> Self {
        let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (key, some) in candidates.iter().flatten() {
            values.entry(key).or_default().extend(some.iter().map(String::as_str));
        }
        let mut by_label = Self::default();
        for (index, needs) in candidates.iter().enumerate() {
            let Some((key, some)) = needs.iter().max_by_key(|(key, _)| values[key].len()) else {
                by_label.others.push(index);
                continue;
            };
            let group = by_label.groups.entry(key).or_default();
            for value in *some {
                let candidates = group.entry(value).or_default();
                if candidates.last() != Some(&index) {
                    candidates.push(index);
                }
            }
        }
        by_label
    }

    /// Returns the first candidate that passes a test, of those that a node with these labels may have.
    pub fn first(&self, labels: &Labels, mut test: impl FnMut(usize) -> bool) -> Option<usize> {
        let of_node = self.groups.iter().filter_map(|(key, group)| group.get(labels.get(*key)?.as_str()));
        let mut best = None;
        for candidates in of_node.chain([&self.others]) {
            let better = candidates.iter().copied().take_while(|index| best.is_none_or(|best| *index < best));
            if let Some(found) = better.into_iter().find(|index| test(*index)) {
                best = Some(found);
            }
        }
        best
    }
}

/// Returns labels that each node needs which a node selector selects.
pub(super) fn of_node_selector(selector: Option<&NodeSelector>) -> Vec<Need<'_>> {
    let Some([term]) = selector.map(|selector| selector.node_selector_terms.as_slice()) else {
        return Vec::new();
    };
    let listed = term.match_expressions.iter().flatten().filter(|requirement| requirement.operator == "In");
    listed
        .map(|requirement| (requirement.key.as_str(), requirement.values.as_deref().unwrap_or_default()))
        .collect()
}

/// Returns labels that each node needs which a label selector selects.
pub(super) fn of_label_selector(selector: &LabelSelector) -> Vec<Need<'_>> {
    let equal = selector.match_labels.iter().flatten();
    let equal = equal.map(|(key, value)| (key.as_str(), slice::from_ref(value)));
    let listed =
        selector.match_expressions.iter().flatten().filter(|requirement| requirement.operator == "In");
    equal
        .chain(
            listed.map(|requirement| {
                (requirement.key.as_str(), requirement.values.as_deref().unwrap_or_default())
            }),
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_candidate_is_the_one_of_the_lowest_index_that_the_labels_allow() {
        let text = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        let (n1, n2, both, z) = (text(&["n1"]), text(&["n2"]), text(&["n1", "n2"]), text(&["z"]));
        let candidates = [
            vec![("zone", z.as_slice()), ("host", n2.as_slice())],
            vec![("host", n1.as_slice()), ("zone", z.as_slice())],
            vec![],
            vec![("host", both.as_slice())],
        ];
        let by_label = ByLabel::new(&candidates);
        let seen = |host: &str, skip: &[usize]| {
            let labels = [("host".to_owned(), host.to_owned())].into();
            let mut tested = Vec::new();
            let first = by_label.first(&labels, |index| {
                tested.push(index);
                !skip.contains(&index)
            });
            (first, tested)
        };
        assert_eq!(seen("n1", &[]), (Some(1), vec![1]));
        assert_eq!(seen("n1", &[1]), (Some(2), vec![1, 3, 2]));
        assert_eq!(seen("n2", &[0, 2]), (Some(3), vec![0, 3, 2]));
        assert_eq!(seen("n3", &[]), (Some(2), vec![2]));
        assert_eq!(seen("n3", &[2]), (None, vec![2]));
    }
}
