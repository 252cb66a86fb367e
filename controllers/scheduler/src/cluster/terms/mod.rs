//! Counts of pods by selector and of the terms that pods hold, for spreading and inter-pod affinity.
//!
//! Nothing here is computed for each pod of the cluster in an attempt. Pods of one namespace with equal labels are a group,
//! and each placement updates the counts of the selectors that match its group. Terms of placed pods are counted by domain
//! of their topology key, and once more, summed up, for the pods that they match ([`Exposure`]). What attempts ask for is
//! prepared when a plugin registers its pod, and computed on the way for what was not registered.

mod counts;
mod exposure;
mod held;
mod namespaces;
mod owners;
mod partition;
mod topology;

use std::borrow::Cow;
use std::sync::Arc;

use apiserver_client::Labels;

use self::counts::Counts;
pub use self::counts::{Clause, CountKey, Rule};
pub use self::exposure::{Exposure, Pressure};
use self::held::HeldTerms;
use self::namespaces::NamespaceLabels;
pub use self::namespaces::Namespaces;
pub use self::owners::Owner;
use self::owners::Owners;
use self::partition::Partitions;
pub use self::partition::{Partition, PartitionKey};
use self::topology::Topology;
pub use self::topology::{FIRST, GONE, Key, MISSING};
use super::{Cluster, NodeFacts, NodeId};
use crate::limits;
use crate::pod::{PodInfo, PodSpec, TermNamespaces};
use crate::selector::Selector;

/// Counts of pods by selector and of the terms that pods hold, for spreading and inter-pod affinity.
#[derive(Debug, Default)]
pub struct Terms {
    topology: Topology,
    namespaces: NamespaceLabels,
    owners: Owners,
    counts: Counts,
    held: HeldTerms,
    partitions: Partitions,
    in_trial: bool,
    /// Number of topology keys at which those without a placed pod are dropped.
    most_keys: usize,
}

impl Terms {
    /// Hears of a pod that counts on a node from now on.
    pub(super) fn placed(&mut self, pod: &PodInfo, node: NodeId) {
        self.counts.placed(pod, node, self.in_trial);
        self.held.placed(pod, node, &mut self.topology, self.in_trial);
    }

    /// Hears of a pod that no longer counts on a node.
    pub(super) fn removed(&mut self, pod: &PodInfo, node: NodeId) {
        self.counts.removed(pod, node, self.in_trial);
        self.held.removed(pod, node, &self.topology, self.in_trial);
    }

    /// Hears of a node that is new, has changed, or is gone, with the pods on it.
    pub(super) fn node_changed(&mut self, id: NodeId, facts: Option<&Arc<NodeFacts>>, pods: &[Arc<PodInfo>]) {
        let moves = self.topology.differs(id, facts.map(Arc::as_ref));
        if moves {
            pods.iter().for_each(|pod| self.held.shift(pod, id, &self.topology, -1));
        }
        self.topology.set(id, facts);
        if moves {
            pods.iter().for_each(|pod| self.held.shift(pod, id, &self.topology, 1));
        }
    }

    /// Returns the numbers of groups of pods, holders, held terms and topology keys, and of the remembered matches.
    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 5] {
        let (holders, terms, matched) = self.held.sizes();
        [self.counts.groups(), holders, terms, self.topology.len(), matched]
    }

    /// Returns the number of topology keys whose domains take memory for each node.
    #[cfg(test)]
    pub fn columns(&self) -> usize {
        self.topology.columns()
    }

    /// Begins a trial, whose placements are undone before it ends.
    pub(super) fn begin_trial(&mut self) {
        self.in_trial = true;
    }

    pub(super) fn end_trial(&mut self) {
        self.in_trial = false;
        self.counts.end_trial();
        self.held.end_trial();
    }

    /// Keeps the domains of a topology key.
    pub fn register_key(&mut self, name: &Arc<str>) {
        if self.topology.knows(name) {
            return;
        }
        if self.topology.len() >= self.most_keys.max(limits::TOPOLOGY_KEYS) {
            // Indexes of earlier attempts may have keys that no placed pod has.
            self.partitions.clear();
            self.held.clear_cache();
            let mut used: Vec<_> = self.held.keys().cloned().collect();
            used.sort_unstable();
            used.dedup();
            self.topology.retain(|name| used.binary_search(name).is_ok());
            // If placed pods have many keys, not each new one makes all others lose theirs.
            self.most_keys = 2 * self.topology.len();
        }
        self.topology.add(name);
    }

    /// Keeps a count.
    pub fn register_count(&mut self, key: &CountKey) {
        self.counts.add(key, self.topology.capacity());
    }

    /// Remembers the namespaces that a term of an incoming pod selects.
    pub fn register_namespaces(&mut self, namespaces: &TermNamespaces) {
        self.namespaces.add(namespaces);
    }

    /// Brings a partition up to date.
    pub fn register_partition(&mut self, key: &PartitionKey, spec: &PodSpec) {
        self.partitions.add(key, spec, &self.topology);
    }

    /// Prepares the terms of placed pods that match a pod.
    pub fn register_exposure(&mut self, pod: &PodInfo) {
        self.held.add(pod, &self.namespaces);
    }

    /// Remembers the selector by which a pod is spread by default.
    pub fn register_default_selector(&mut self, pod: &PodInfo) {
        self.owners.add(pod);
    }

    /// Returns the domains of a topology key.
    pub fn key(&self, name: &str) -> Cow<'_, Key> {
        self.topology.key(name)
    }

    /// Returns the number of pods that count by index of the node; nodes beyond its end have none.
    pub fn count(&self, key: &CountKey) -> Cow<'_, [i32]> {
        self.counts.column(key)
    }

    /// Returns the namespaces that a term of an incoming pod of namespace `own` selects.
    pub fn resolve(&self, namespaces: &TermNamespaces, own: &Arc<str>) -> Namespaces {
        self.namespaces.resolve(namespaces, own)
    }

    /// Returns the division of nodes that a constraint of a pod counts by. `honors_affinity` is its policy.
    pub fn partition(&self, key: &PartitionKey, pod: &PodInfo, honors_affinity: bool) -> Cow<'_, Partition> {
        self.partitions.partition(key, pod, honors_affinity, &self.topology)
    }

    /// Returns what terms of placed pods mean for a pod, and how many required anti-affinity terms have come in the
    /// current trial; `None` if no term matches the pod.
    pub fn exposure(&self, pod: &PodInfo) -> Option<(Cow<'_, Exposure>, i64)> {
        self.held.exposure(pod, &self.namespaces)
    }

    /// Returns the selector by which a pod is spread by default; `None` if nothing is required of the pods.
    pub fn default_selector(&self, pod: &PodInfo) -> Option<Arc<Selector>> {
        self.owners.selector(pod)
    }
}

/// Objects that spreading and inter-pod affinity read.
impl Cluster {
    /// Sets the labels of a namespace; `None` if it is gone.
    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        if self.terms.namespaces.set(name, labels) {
            self.terms.held.namespace_changed(name);
        }
    }

    /// Sets the selector of a Service; `None` if it has none or is gone.
    pub fn set_service(&mut self, namespace: &str, name: &str, selector: Option<Labels>) {
        self.terms.owners.set_service(namespace, name, selector);
    }

    /// Sets the selector of a ReplicationController; `None` if it is gone.
    pub fn set_replication_controller(&mut self, namespace: &str, name: &str, selector: Option<Labels>) {
        self.terms.owners.set_replication_controller(namespace, name, selector);
    }

    /// Sets the selector of a ReplicaSet or StatefulSet; `None` if it is gone.
    pub fn set_controller(&mut self, owner: Owner, namespace: &str, name: &str, selector: Option<Selector>) {
        self.terms.owners.set_controller(owner, namespace, name, selector);
    }
}
