//! Placements that are tried out and undone.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use super::{Cluster, NodeId};
use crate::pod::PodInfo;

/// A cluster with pods added and removed for a while. Dropping it undoes the changes in reverse.
#[derive(Debug)]
pub struct Trial<'a> {
    cluster: &'a mut Cluster,
    undo: Vec<Step>,
    /// Nodes some of whose host ports were freed.
    freed: BTreeSet<NodeId>,
}

/// A change to undo.
#[derive(Debug)]
enum Step {
    Remove(Arc<PodInfo>, NodeId),
    Put(Arc<PodInfo>, NodeId),
}

impl<'a> Trial<'a> {
    pub(super) fn new(cluster: &'a mut Cluster) -> Self {
        cluster.terms.begin_trial();
        cluster.storage.begin_trial();
        Self { cluster, undo: Vec::new(), freed: BTreeSet::new() }
    }

    /// Counts a pod on a node that exists, and that it is not counted on.
    pub fn add(&mut self, pod: &Arc<PodInfo>, node: NodeId) {
        self.cluster.put(pod, node);
        self.undo.push(Step::Remove(Arc::clone(pod), node));
    }

    /// Removes a pod from the node that it is counted on.
    pub fn remove(&mut self, pod: &PodInfo) {
        let Some(node) = self.cluster.place_of(pod) else { return };
        if let Some(pod) = self.cluster.take(pod, node) {
            self.undo.push(Step::Put(pod, node));
        }
    }

    /// Removes a pod that may be preempted from the node that it is counted on, and frees its host ports there though another
    /// pod may have them too (see [`Node::free_ports`](super::Node::free_ports)).
    pub fn evict(&mut self, pod: &PodInfo) {
        let Some(node) = self.cluster.place_of(pod) else { return };
        self.remove(pod);
        if !pod.spec.host_ports.is_empty() {
            self.cluster.nodes[node.index()].free_ports(pod);
            self.freed.insert(node);
        }
    }
}

impl Deref for Trial<'_> {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        while let Some(step) = self.undo.pop() {
            match step {
                Step::Remove(pod, node) => {
                    self.cluster.take(&pod, node);
                }
                Step::Put(pod, node) => self.cluster.put(&pod, node),
            }
        }
        for node in &self.freed {
            self.cluster.nodes[node.index()].recount_ports();
        }
        self.cluster.terms.end_trial();
        self.cluster.storage.end_trial();
    }
}
