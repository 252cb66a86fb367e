//! `NodeAffinity`: a pod runs on nodes with the labels and names that it requires, and rather on those that it prefers.

use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver_client::slim::shared_text;
use apiserver_meta::node_selector;
use k8s_openapi::api::core::v1::{self, NodeSelector, NodeSelectorTerm, PreferredSchedulingTerm};

use crate::cluster::{Cluster, Node, NodeFacts};
use crate::framework::{
    Actions, Change, Event, Hint, NodeFilter, NodeScore, Normalize, Plugin, PreFilter, Refusal, Resource,
    Versions,
};
use crate::pod::{PodInfo, PodSpec};

#[cfg(test)]
mod tests;

/// Arguments of [`NodeAffinity`] (`NodeAffinityArgs`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeAffinityArgs {
    /// Affinity of all pods of the profile, in addition to their own.
    pub added_affinity: Option<v1::NodeAffinity>,
}

/// The plugin `NodeAffinity`.
#[derive(Default)]
pub struct NodeAffinity {
    /// Nodes that all pods require.
    added: Option<NodeSelector>,
    /// Nodes that all pods prefer.
    preferred: Vec<PreferredSchedulingTerm>,
}

impl NodeAffinity {
    pub fn new(args: NodeAffinityArgs) -> Self {
        let added = args.added_affinity.unwrap_or_default();
        Self {
            added: added.required_during_scheduling_ignored_during_execution,
            preferred: added.preferred_during_scheduling_ignored_during_execution.unwrap_or_default(),
        }
    }

    /// Returns `true` if all pods of the profile may run on a node.
    fn admits(&self, node: &NodeFacts) -> bool {
        self.added.as_ref().is_none_or(|added| node_selector::matches(added, &node.name, &node.labels))
    }
}

struct Selected<'a> {
    plugin: &'a NodeAffinity,
    spec: &'a PodSpec,
}

impl NodeFilter for Selected<'_> {
    fn passes(&self, node: &Node) -> bool {
        self.plugin.admits(node) && node.is_selected_by_template(self.spec)
    }

    fn refusal(&self, node: &Node) -> Refusal {
        Refusal::unresolvable(if self.plugin.admits(node) {
            "node(s) didn't match Pod's node affinity/selector"
        } else {
            "node(s) didn't match scheduler-enforced node affinity"
        })
    }
}

/// Returns the names of the only nodes that terms allow; `None` if one of them does not depend on the name.
fn names(terms: &[NodeSelectorTerm]) -> Option<BTreeSet<Arc<str>>> {
    let mut union = BTreeSet::new();
    for term in terms {
        let fields = term.match_fields.iter().flatten();
        let lists = fields
            .filter(|field| field.key == "metadata.name" && field.operator == "In")
            .map(|field| field.values.iter().flatten().map(|name| shared_text(name)).collect());
        union.extend(lists.reduce(|a: BTreeSet<_>, b| a.intersection(&b).cloned().collect())?);
    }
    Some(union)
}

/// Returns the sum of the weights of the terms that match a node.
fn weight(terms: &[PreferredSchedulingTerm], node: &NodeFacts) -> i64 {
    let matching =
        terms.iter().filter(|term| node_selector::term_matches(&term.preference, &node.name, &node.labels));
    matching.map(|term| i64::from(term.weight)).sum()
}

/// Returns `true` if a pod says which nodes it prefers, even if there are none.
fn prefers(spec: &PodSpec) -> bool {
    let nodes = spec.source.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    nodes.is_some_and(|nodes| nodes.preferred_during_scheduling_ignored_during_execution.is_some())
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn node_filter<'a>(&'a self, spec: &'a PodSpec, _: &'a Cluster) -> Option<Box<dyn NodeFilter + 'a>> {
        let selects =
            self.added.is_some() || spec.node_affinity.is_some() || spec.source.node_selector.is_some();
        selects.then(|| Box::new(Selected { plugin: self, spec }) as Box<dyn NodeFilter>)
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, _: &'a Cluster) -> PreFilter<'a> {
        if let Some(name) = &pod.pinned_to {
            return PreFilter::Only(BTreeSet::from([Arc::clone(name)]));
        }
        let terms = pod.spec.node_affinity.as_ref().map(|required| &required.node_selector_terms);
        match terms.filter(|terms| !terms.is_empty()).and_then(|terms| names(terms)) {
            None => PreFilter::Skip,
            Some(names) if names.is_empty() => {
                PreFilter::Refuse(Refusal::unresolvable("pod affinity terms conflict"))
            }
            Some(names) => PreFilter::Only(names),
        }
    }

    fn node_score<'a>(&'a self, spec: &'a PodSpec, _: &'a Cluster) -> Option<NodeScore<'a>> {
        if self.preferred.is_empty() && !prefers(spec) {
            return None;
        }
        let raw = |node: &Node| weight(&self.preferred, node) + weight(&spec.preferred_nodes, node);
        Some(NodeScore { raw: Box::new(raw), normalize: Normalize::Greatest })
    }

    fn events(&self) -> Vec<Event> {
        vec![Event::new(Resource::Node, Actions::ADD | Actions::NODE_LABEL)]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        let Change::Node(Versions { old, new: Some(new) }) = change else { return Hint::Queue };
        let was_selected = old.is_some_and(|old| old.is_selected_by(pod));
        if self.admits(new) && new.is_selected_by(pod) && !was_selected { Hint::Queue } else { Hint::Skip }
    }
}
