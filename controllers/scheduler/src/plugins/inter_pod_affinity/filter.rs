//! Nodes that required terms of a pod, and of the pods that are there, allow.

use std::borrow::Cow;

use super::count_key;
use crate::cluster::terms::{Exposure, FIRST, Key};
use crate::cluster::{Cluster, Node, NodeId, NodeSet};
use crate::framework::{NodeFilter, Refusal};
use crate::pod::{PodInfo, PodTerm};

/// The required terms that concern a pod.
pub struct Affinity<'a> {
    with: Vec<Counted<'a>>,
    /// No placed pod is one that the pod wants to be near, but the pod itself is: it may be the first.
    is_first: bool,
    without: Vec<Counted<'a>>,
    exposure: Option<Cow<'a, Exposure>>,
    /// The topology keys of `exposure`.
    keys: Vec<Cow<'a, Key>>,
}

/// Pods that a term selects, by domain of its topology key.
struct Counted<'a> {
    key: Cow<'a, Key>,
    pods: Vec<i32>,
}

impl Counted<'_> {
    fn has_label(&self, id: NodeId) -> bool {
        self.key.of(id) >= FIRST
    }

    fn has_pods(&self, id: NodeId) -> bool {
        let domain = self.key.of(id);
        domain >= FIRST && self.pods[domain as usize] > 0
    }

    fn is_empty(&self) -> bool {
        self.pods.iter().skip(FIRST as usize).all(|pods| *pods <= 0)
    }
}

impl<'a> Affinity<'a> {
    pub fn prepare(pod: &PodInfo, cluster: &'a Cluster, exposure: Option<Cow<'a, Exposure>>) -> Self {
        let terms = &cluster.terms;
        let mut with: Vec<Counted<'a>> = Vec::new();
        let mut is_first = false;
        let required = &pod.spec.affinity.required;
        if !required.is_empty() {
            let count = count_key(required, pod, cluster);
            let pods = terms.count(&count);
            let mut names: Vec<&str> = required.iter().map(|term| &*term.key).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let key = terms.key(name);
                let pods = key.sums(&pods);
                with.push(Counted { key, pods });
            }
            is_first = with.iter().all(Counted::is_empty) && count.matches(pod.namespace(), pod.labels());
        }
        let count = |term: &PodTerm| {
            let key = terms.key(&term.key);
            let pods = key.sums(&terms.count(&count_key([term], pod, cluster)));
            Counted { key, pods }
        };
        let without = pod.spec.anti_affinity.required.iter().map(count).collect();
        let exposure = exposure.filter(|exposure| exposure.anti() > 0);
        let keys = exposure.iter().flat_map(|exposure| exposure.keys());
        let keys = keys.map(|(name, _)| terms.key(name)).collect();
        Self { with, is_first, without, exposure, keys }
    }

    fn is_near(&self, id: NodeId) -> bool {
        if self.is_first {
            return self.with.iter().all(|term| term.has_label(id));
        }
        self.with.iter().all(|term| term.has_pods(id))
    }

    fn is_away(&self, id: NodeId) -> bool {
        !self.without.iter().any(|term| term.has_pods(id))
    }

    /// Returns `true` if no placed pod keeps the pod away from a node.
    fn is_tolerated(&self, id: NodeId) -> bool {
        let Some(exposure) = &self.exposure else { return true };
        exposure.keys().zip(&self.keys).all(|((_, pressure), key)| {
            let domain = key.of(id);
            domain < FIRST || pressure.anti.get(domain as usize).is_none_or(|pods| *pods <= 0)
        })
    }
}

impl NodeFilter for Affinity<'_> {
    fn passes(&self, node: &Node) -> bool {
        self.is_near(node.id) && self.is_away(node.id) && self.is_tolerated(node.id)
    }

    fn refusal(&self, node: &Node) -> Refusal {
        if !self.is_near(node.id) {
            Refusal::unresolvable("node(s) didn't match pod affinity rules")
        } else if !self.is_away(node.id) {
            Refusal::unschedulable("node(s) didn't match pod anti-affinity rules")
        } else {
            Refusal::unschedulable("node(s) didn't satisfy existing pods anti-affinity rules")
        }
    }

    fn restrict(&self, _: &Cluster, nodes: &mut NodeSet) {
        if !self.with.is_empty() {
            nodes.retain(|id| self.is_near(id));
        }
        if !self.without.is_empty() {
            nodes.retain(|id| self.is_away(id));
        }
        if self.exposure.is_some() {
            nodes.retain(|id| self.is_tolerated(id));
        }
    }
}
