//! Nodes that the hard constraints of a pod allow.

use std::borrow::Cow;
use std::sync::Arc;

use super::Chosen;
use crate::cluster::terms::{FIRST, Key};
use crate::cluster::{Cluster, Node, NodeId, NodeSet};
use crate::framework::{NodeFilter, Refusal};
use crate::pod::PodInfo;

const TOO_UNEVEN: &str = "node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

/// The hard constraints of a pod, in their order.
pub struct Spread<'a> {
    constraints: Vec<Prepared<'a>>,
}

struct Prepared<'a> {
    key: Cow<'a, Key>,
    /// Number of matching pods by domain.
    pods: Vec<i32>,
    /// Number of matching pods that a domain may have for the pod to be one more.
    limit: i64,
}

impl<'a> Spread<'a> {
    pub fn prepare(
        pod: &PodInfo,
        cluster: &'a Cluster,
        constraints: &[Chosen<'_>],
        required: &[Arc<str>],
    ) -> Self {
        let prepare = |chosen| Prepared::new(pod, cluster, chosen, required);
        Self { constraints: constraints.iter().map(prepare).collect() }
    }
}

impl<'a> Prepared<'a> {
    fn new(pod: &PodInfo, cluster: &'a Cluster, chosen: &Chosen<'_>, required: &[Arc<str>]) -> Self {
        let (terms, constraint) = (&cluster.terms, chosen.constraint);
        let key = terms.key(&constraint.key);
        let partition =
            terms.partition(&chosen.partition_key(pod, required), pod, constraint.honors_affinity);
        let pods = partition.sums(&terms.count(&chosen.count_key(pod)), key.end());
        let too_few = i64::try_from(partition.known()).is_ok_and(|known| known < constraint.min_domains);
        let domains = pods.iter().zip(0_u32..).skip(FIRST as usize);
        let least = domains.filter(|(_, domain)| partition.is_known(*domain)).map(|(pods, _)| *pods).min();
        // Without any domain nothing is uneven.
        let least = if too_few { 0 } else { least.map_or(i64::from(i32::MAX), i64::from) };
        let itself = i64::from(chosen.selector.matches(pod.labels()));
        Self { key, pods, limit: i64::from(constraint.max_skew) + least - itself }
    }

    fn has_label(&self, id: NodeId) -> bool {
        self.key.of(id) >= FIRST
    }

    fn passes(&self, id: NodeId) -> bool {
        let domain = self.key.of(id);
        domain >= FIRST && i64::from(self.pods[domain as usize]) <= self.limit
    }
}

impl NodeFilter for Spread<'_> {
    fn passes(&self, node: &Node) -> bool {
        self.constraints.iter().all(|constraint| constraint.passes(node.id))
    }

    fn refusal(&self, node: &Node) -> Refusal {
        let broken = self.constraints.iter().find(|constraint| !constraint.passes(node.id));
        match broken {
            Some(constraint) if !constraint.has_label(node.id) => Refusal::unresolvable(NO_LABEL),
            _ => Refusal::unschedulable(TOO_UNEVEN),
        }
    }

    fn restrict(&self, _: &Cluster, nodes: &mut NodeSet) {
        for constraint in &self.constraints {
            nodes.retain(|id| constraint.passes(id));
        }
    }
}
