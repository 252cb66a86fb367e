//! Division of the nodes that a constraint of topology spreading counts among domains.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_meta::node_selector;
use apiserver_meta::pods::tolerates;

use super::topology::{FIRST, GONE, Topology};
use crate::cluster::{NodeFacts, NodeId, Position};
use crate::limits;
use crate::pod::{PodInfo, PodSpec, SpecId};

/// Rule by which nodes are counted, and the topology key by which they are divided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartitionKey {
    key: Arc<str>,
    /// Topology keys without which a node is not counted.
    required: Vec<Arc<str>>,
    honors_affinity: bool,
    honors_taints: bool,
    /// The template whose affinity or tolerations decide; `None` if neither does.
    spec: Option<SpecId>,
}

impl PartitionKey {
    pub fn new(
        spec: &PodSpec,
        key: &Arc<str>,
        required: &[Arc<str>],
        honors_affinity: bool,
        honors_taints: bool,
    ) -> Self {
        let selects = spec.node_affinity.is_some()
            || spec.source.node_selector.as_ref().is_some_and(|labels| !labels.is_empty());
        let honors_affinity = honors_affinity && selects;
        Self {
            key: Arc::clone(key),
            required: required.to_vec(),
            honors_affinity,
            honors_taints,
            spec: (honors_affinity || honors_taints).then_some(spec.id),
        }
    }

    fn counts(&self, spec: &PodSpec, facts: &NodeFacts) -> bool {
        self.required.iter().all(|key| facts.labels.contains_key(&**key))
            && (!self.honors_affinity || is_selected(spec, facts))
            && (!self.honors_taints || is_tolerated(spec, facts))
    }
}

/// Returns `true` if the node selector and the required node affinity of a template match a node.
fn is_selected(spec: &PodSpec, facts: &NodeFacts) -> bool {
    let mut wanted = spec.source.node_selector.iter().flatten();
    wanted.all(|(key, value)| facts.labels.get(key) == Some(value))
        && spec
            .node_affinity
            .as_ref()
            .is_none_or(|required| node_selector::matches(required, &facts.name, &facts.labels))
}

/// Returns `true` if a template tolerates the taints of a node that keep pods away.
fn is_tolerated(spec: &PodSpec, facts: &NodeFacts) -> bool {
    let keeps_away = |effect: &str| effect == "NoSchedule" || effect == "NoExecute";
    facts
        .taints
        .iter()
        .filter(|taint| keeps_away(&taint.effect))
        .all(|taint| spec.source.tolerations.iter().flatten().any(|toleration| tolerates(toleration, taint)))
}

/// The domain of each node that is counted.
#[derive(Clone, Debug, Default)]
pub struct Partition {
    position: Option<Position>,
    /// By index of the node; nodes that are not counted, and those beyond the end, are [`GONE`].
    of: Vec<u32>,
    /// Number of counted nodes by domain.
    nodes: Vec<u32>,
    /// Number of domains with a value that have counted nodes.
    known: usize,
}

impl Partition {
    /// Returns the number of domains that have counted nodes.
    pub fn known(&self) -> usize {
        self.known
    }

    /// Returns `true` if a domain has counted nodes.
    pub fn is_known(&self, domain: u32) -> bool {
        self.nodes.get(domain as usize).is_some_and(|nodes| *nodes > 0)
    }

    /// Returns the sums of a column, which is by index of the node, over the counted nodes of each domain.
    pub fn sums(&self, column: &[i32], domains: usize) -> Vec<i32> {
        let mut sums = vec![0; domains.max(self.nodes.len())];
        for (domain, count) in self.of.iter().zip(column) {
            sums[*domain as usize] += count;
        }
        sums
    }

    fn set(&mut self, id: NodeId, domain: u32) {
        if id.index() >= self.of.len() {
            self.of.resize(id.index() + 1, GONE);
        }
        let before = std::mem::replace(&mut self.of[id.index()], domain);
        if self.nodes.len() <= domain.max(FIRST) as usize {
            self.nodes.resize(domain.max(FIRST) as usize + 1, 0);
        }
        if before != GONE {
            self.nodes[before as usize] -= 1;
            self.known -= usize::from(before >= FIRST && self.nodes[before as usize] == 0);
        }
        if domain != GONE {
            self.nodes[domain as usize] += 1;
            self.known += usize::from(domain >= FIRST && self.nodes[domain as usize] == 1);
        }
    }

    /// Computes what has changed since the last time.
    fn update(&mut self, key: &PartitionKey, spec: &PodSpec, topology: &Topology) {
        let position = topology.log().position();
        if self.position == Some(position) {
            return;
        }
        let domains = topology.key(&key.key);
        let domain = |id: NodeId| match topology.facts(id) {
            Some(facts) if key.counts(spec, facts) => domains.of(id),
            _ => GONE,
        };
        match self.position.and_then(|position| topology.log().since(position)) {
            Some(changed) => changed.for_each(|id| self.set(id, domain(id))),
            None => {
                *self = Self::default();
                (0..topology.capacity()).map(NodeId::new).for_each(|id| self.set(id, domain(id)));
            }
        }
        self.position = Some(position);
    }
}

/// Partitions of templates, those wanted last.
#[derive(Debug, Default)]
pub struct Partitions {
    partitions: BTreeMap<PartitionKey, (Partition, u64)>,
    clock: u64,
}

impl Partitions {
    /// Brings a partition up to date, and keeps it.
    pub fn add(&mut self, key: &PartitionKey, spec: &PodSpec, topology: &Topology) {
        self.clock += 1;
        if !self.partitions.contains_key(key) {
            if self.partitions.len() >= limits::PARTITIONS {
                let oldest = self.partitions.iter().min_by_key(|(_, (_, used))| *used);
                if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                    self.partitions.remove(&oldest);
                }
            }
            self.partitions.insert(key.clone(), (Partition::default(), 0));
        }
        if let Some((partition, used)) = self.partitions.get_mut(key) {
            partition.update(key, spec, topology);
            *used = self.clock;
        }
    }

    pub fn clear(&mut self) {
        self.partitions.clear();
    }

    /// Returns a partition for a pod, whose template may name nodes by labels while the pod names one by its name.
    pub fn partition(
        &self,
        key: &PartitionKey,
        pod: &PodInfo,
        honors: bool,
        topology: &Topology,
    ) -> Cow<'_, Partition> {
        let current = topology.log().position();
        let kept = self.partitions.get(key).filter(|(kept, _)| kept.position == Some(current));
        let partition = match kept {
            Some((kept, _)) => Cow::Borrowed(kept),
            None => {
                let mut fresh = Partition::default();
                fresh.update(key, &pod.spec, topology);
                Cow::Owned(fresh)
            }
        };
        let Some(name) = pod.pinned_to.as_ref().filter(|_| honors) else { return partition };
        let mut pinned = Partition::default();
        if let Some((id, _)) = topology.nodes().find(|(_, facts)| facts.name == *name) {
            pinned.set(id, partition.of.get(id.index()).copied().unwrap_or(GONE));
        }
        Cow::Owned(pinned)
    }
}
