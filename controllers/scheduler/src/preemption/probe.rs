//! A node that is tried out with pods removed and added.

use std::sync::Arc;

use crate::cluster::{Cluster, Node, NodeId, Trial};
use crate::framework::{Attempt, Profile, Refusal, yields};
use crate::pod::PodInfo;

/// A node as it would be without some of its pods.
pub(super) enum Probe<'a> {
    /// All filters depend on the node alone: copies of it are changed.
    Local {
        attempt: &'a Attempt<'a>,
        node: Node,
        /// The node with the pods that are nominated for it, if there are any.
        with_rivals: Option<Box<Node>>,
    },
    /// The cluster is changed, and restored at the end.
    Trial { profile: &'a Profile, pod: &'a PodInfo, trial: Trial<'a>, id: NodeId, rivals: Vec<Arc<PodInfo>> },
}

/// Returns the pods that are nominated for a node and that a pod has to leave room for.
fn rivals<'a>(pod: &'a PodInfo, cluster: &'a Cluster, id: NodeId) -> impl Iterator<Item = &'a Arc<PodInfo>> {
    let nominated = cluster.nominated.on(&cluster.node(id).name).iter();
    nominated.filter(|other| yields(pod, other) && cluster.place_of(other).is_none())
}

impl<'a> Probe<'a> {
    /// Tries out a node for a pod whose filters all depend on the node alone.
    pub fn local(attempt: &'a Attempt<'a>, pod: &PodInfo, cluster: &Cluster, id: NodeId) -> Self {
        let node = cluster.node(id).outline();
        let mut rivals = rivals(pod, cluster, id).peekable();
        let with_rivals = rivals.peek().is_some().then(|| {
            let mut node = Box::new(node.outline());
            rivals.for_each(|rival| node.count_pod(rival));
            node
        });
        Self::Local { attempt, node, with_rivals }
    }

    pub fn trial(profile: &'a Profile, pod: &'a PodInfo, cluster: &'a mut Cluster, id: NodeId) -> Self {
        let rivals = rivals(pod, cluster, id).cloned().collect();
        Self::Trial { profile, pod, trial: cluster.trial(), id, rivals }
    }

    /// Removes a pod of the node.
    pub fn remove(&mut self, pod: &PodInfo) {
        match self {
            Self::Local { node, with_rivals, .. } => {
                node.discount_pod(pod);
                if let Some(node) = with_rivals {
                    node.discount_pod(pod);
                }
            }
            Self::Trial { trial, .. } => trial.remove(pod),
        }
    }

    /// Undoes [`Self::remove`].
    pub fn add(&mut self, pod: &Arc<PodInfo>) {
        match self {
            Self::Local { node, with_rivals, .. } => {
                node.count_pod(pod);
                if let Some(node) = with_rivals {
                    node.count_pod(pod);
                }
            }
            Self::Trial { trial, id, .. } => trial.add(pod, *id),
        }
    }

    /// Checks whether the pod fits now, with and without the nominated pods.
    pub fn fits(&mut self) -> Result<(), Refusal> {
        match self {
            Self::Local { attempt, node, with_rivals } => {
                if let Some(node) = with_rivals {
                    attempt.check(node)?;
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
