//! A node that is tried out with pods removed and added.

use std::sync::Arc;

use crate::cluster::{Cluster, Node, NodeId, Trial};
use crate::framework::{Attempt, Profile, Refusal, rivals};
use crate::pod::PodInfo;

/// A node as it would be without some of its pods.
pub(super) enum Probe<'a> {
    /// All filters depend on the node alone: copies of it are changed.
    Local {
        attempt: &'a Attempt<'a>,
        node: Node,
        /// Pods that are nominated for the node.
        rivals: Vec<Arc<PodInfo>>,
    },
    /// The cluster is changed, and restored at the end.
    Trial { profile: &'a Profile, pod: &'a PodInfo, trial: Trial<'a>, id: NodeId, rivals: Vec<Arc<PodInfo>> },
}

/// Returns the pods that are nominated for a node, not placed yet, and that a pod has to leave room for.
fn unplaced_rivals(pod: &PodInfo, cluster: &Cluster, id: NodeId) -> Vec<Arc<PodInfo>> {
    rivals(pod, cluster, id).filter(|other| cluster.place_of(other).is_none()).cloned().collect()
}

impl<'a> Probe<'a> {
    /// Tries out a node for a pod whose filters all depend on the node alone.
    pub fn local(attempt: &'a Attempt<'a>, pod: &PodInfo, cluster: &Cluster, id: NodeId) -> Self {
        let rivals = unplaced_rivals(pod, cluster, id);
        Self::Local { attempt, node: cluster.node(id).outline(), rivals }
    }

    pub fn trial(profile: &'a Profile, pod: &'a PodInfo, cluster: &'a mut Cluster, id: NodeId) -> Self {
        let rivals = unplaced_rivals(pod, cluster, id);
        Self::Trial { profile, pod, trial: cluster.trial(), id, rivals }
    }

    /// Removes a pod of the node.
    pub fn remove(&mut self, pod: &PodInfo) {
        match self {
            Self::Local { node, .. } => {
                node.discount_pod(pod);
                node.free_ports(pod);
            }
            Self::Trial { trial, .. } => trial.evict(pod),
        }
    }

    /// Undoes [`Self::remove`].
    pub fn add(&mut self, pod: &Arc<PodInfo>) {
        match self {
            Self::Local { node, .. } => node.count_pod(pod),
            Self::Trial { trial, id, .. } => trial.add(pod, *id),
        }
    }

    /// Checks whether the pod fits now, with and without the nominated pods.
    pub fn fits(&mut self) -> Result<(), Refusal> {
        match self {
            Self::Local { attempt, node, rivals } => {
                if !rivals.is_empty() {
                    let mut node = node.outline();
                    rivals.iter().for_each(|rival| node.count_pod(rival));
                    attempt.check(&node)?;
                }
                attempt.check(node)
            }
            Self::Trial { profile, pod, trial, id, rivals } => {
                if !rivals.is_empty() {
                    rivals.iter().for_each(|rival| trial.add(rival, *id));
                    let fits = Attempt::prepare(profile, pod, trial).and_then(|a| a.check(trial.node(*id)));
                    rivals.iter().for_each(|rival| trial.remove(rival));
                    fits?;
                }
                Attempt::prepare(profile, pod, trial)?.check(trial.node(*id))
            }
        }
    }
}
