//! `nodeSelector` and node affinity.

use apiserver_meta::node_selector;

use crate::framework::{Filter, NodeFilter, Score, normalize};
use crate::model::{NodeInfo, PodInfo};
use crate::snapshot::Snapshot;

/// `NodeAffinity`: filters by required terms and scores by preferred terms.
pub struct NodeAffinity;

impl Filter for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn prepare<'a>(&self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn NodeFilter + 'a>> {
        if pod.node_selector.is_empty() && pod.required_affinity.is_none() {
            return None;
        }
        Some(Box::new(move |node: &NodeInfo| {
            let selected = pod.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
            let required = pod
                .required_affinity
                .as_ref()
                .is_none_or(|required| node_selector::matches(required, &node.name, &node.labels));
            if selected && required {
                Vec::new()
            } else {
                vec!["node(s) didn't match Pod's node affinity/selector".to_owned()]
            }
        }))
    }
}

impl Score for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn score(&self, pod: &PodInfo, nodes: &[&NodeInfo], _: &Snapshot) -> Vec<i64> {
        if pod.preferred_affinity.is_empty() {
            return Vec::new();
        }
        let weights: Vec<i64> = nodes
            .iter()
            .map(|node| {
                let matching = pod
                    .preferred_affinity
                    .iter()
                    .filter(|term| node_selector::term_matches(&term.preference, &node.name, &node.labels));
                matching.map(|term| i64::from(term.weight)).sum()
            })
            .collect();
        normalize(&weights, false)
    }
}
