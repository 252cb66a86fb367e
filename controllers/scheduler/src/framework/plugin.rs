//! The plugin trait, by extension points of the scheduling framework.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaim;

use super::attempt::Feasible;
use super::diagnosis::Diagnosis;
use super::event::{Change, Event, Hint, Reach};
use super::meter::Status;
use super::permit::Permission;
use crate::cluster::devices::DevicePlan;
use crate::cluster::storage::VolumePlan;
use crate::cluster::{Cluster, Node, NodeId, NodeSet};
use crate::pod::{PodInfo, PodSpec};

/// Highest score of a node before weights.
pub const MAX_SCORE: i64 = 100;

/// The sort of a refusal, as far as it matters to what happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// `Unschedulable`: the removal of pods may help.
    Unschedulable,
    /// `UnschedulableAndUnresolvable`: no removal of pods helps.
    Unresolvable,
    /// `Pending`: the pod waits for somebody else, not for room.
    Pending,
    /// `Error`: the attempt has failed, and is repeated after a pause.
    Error,
}

/// The answer of a plugin that refuses a node, or the pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    pub code: Code,
    /// Name of the plugin; the framework sets it.
    pub plugin: &'static str,
    /// Reasons in the words of Kubernetes.
    pub reasons: Vec<String>,
}

impl Refusal {
    pub fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, plugin: "", reasons: vec![reason.into()] }
    }

    pub fn unschedulable(reason: impl Into<String>) -> Self {
        Self::new(Code::Unschedulable, reason)
    }

    pub fn unresolvable(reason: impl Into<String>) -> Self {
        Self::new(Code::Unresolvable, reason)
    }

    /// Returns the refusal as one of this plugin.
    pub fn by(self, plugin: &'static str) -> Self {
        Self { plugin, ..self }
    }

    /// Returns the reasons as one text.
    pub fn message(&self) -> String {
        self.reasons.join(", ")
    }
}

/// A filter that was prepared for one pod.
pub trait NodeFilter {
    /// Returns `true` if the node is feasible.
    fn passes(&self, node: &Node) -> bool;

    /// Returns why a node that does not pass is infeasible.
    fn refusal(&self, node: &Node) -> Refusal;

    /// Removes the nodes that do not pass.
    fn restrict(&self, cluster: &Cluster, nodes: &mut NodeSet) {
        nodes.retain(|id| self.passes(cluster.node(id)));
    }
}

/// A plugin's answer on a pod before nodes are looked at, from what is in the whole cluster.
pub enum PreFilter<'a> {
    /// The plugin does not apply to the pod.
    Skip,
    /// No node is feasible.
    Refuse(Refusal),
    /// Only nodes with these names can be feasible (`PreFilterResult`); the plugin has nothing more to check.
    Only(BTreeSet<Arc<str>>),
    Filter {
        /// If set, only nodes with these names can be feasible.
        only: Option<BTreeSet<Arc<str>>>,
        filter: Box<dyn NodeFilter + 'a>,
    },
}

impl PreFilter<'_> {
    pub(super) fn status(&self) -> Status {
        match self {
            Self::Skip => Status::Skip,
            Self::Refuse(refusal) => Status::Refused(refusal.code),
            Self::Only(_) | Self::Filter { .. } => Status::Success,
        }
    }
}

/// The way in which raw scores become scores from 0 to [`MAX_SCORE`], over the feasible nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalize {
    /// They are such scores already.
    Identity,
    /// The greatest becomes [`MAX_SCORE`], others in proportion; all 0 if all are 0.
    Greatest,
    /// The greatest becomes 0, and 0 becomes [`MAX_SCORE`].
    Least,
}

/// Normalized scores of the feasible nodes by one plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scores {
    /// All nodes have this score. A list of equal numbers for each pod would cost more than most decisions.
    Same(i64),
    /// The scores of the nodes, in the order of their list.
    Each(Vec<i64>),
}

impl Scores {
    /// Adds the scores with a weight to totals, in the order of the nodes.
    pub fn add_to(&self, totals: &mut [i64], weight: i64) {
        match self {
            Self::Same(0) => {}
            Self::Same(score) => totals.iter_mut().for_each(|total| *total += score * weight),
            Self::Each(scores) => {
                totals.iter_mut().zip(scores).for_each(|(total, score)| *total += score * weight);
            }
        }
    }

    /// Returns the score of each of so many nodes.
    pub fn to_vec(&self, nodes: usize) -> Vec<i64> {
        match self {
            Self::Same(score) => vec![*score; nodes],
            Self::Each(scores) => scores.clone(),
        }
    }
}

impl Normalize {
    /// Replaces raw scores, which are not negative, by scores (`DefaultNormalizeScore`).
    pub fn apply(self, scores: &mut [i64]) {
        if self == Self::Identity {
            return;
        }
        let max = scores.iter().copied().max().unwrap_or_default();
        let scale = |score: i64| if max == 0 { 0 } else { score * MAX_SCORE / max };
        let normalize = |score| if self == Self::Least { MAX_SCORE - scale(score) } else { scale(score) };
        scores.iter_mut().for_each(|score| *score = normalize(*score));
    }
}

/// Raw scores of nodes that depend on a pod's template and on the node alone.
pub struct NodeScore<'a> {
    pub raw: Box<dyn Fn(&Node) -> i64 + 'a>,
    pub normalize: Normalize,
}

impl fmt::Debug for NodeScore<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeScore").field("normalize", &self.normalize).finish_non_exhaustive()
    }
}

/// Writes to make before a pod is bound: a plan that a plugin has made and an edge carries out.
#[derive(Clone, Debug)]
pub enum PreBind {
    Volumes(Box<VolumePlan>),
    Devices(Box<DevicePlan>),
}

/// The finding of a plugin about a pod that fits nowhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub message: &'static str,
    /// The write after which a later attempt may succeed.
    pub cleanup: Option<Cleanup>,
}

/// A write that frees what is in the way of a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Cleanup {
    /// Takes the devices from a claim that nobody uses.
    Deallocate(Arc<ResourceClaim>),
    /// Deletes a claim that an earlier attempt has made.
    Delete(Arc<ResourceClaim>),
}

/// Bounds on the nodes that are tried out (`DefaultPreemptionArgs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionArgs {
    /// Candidates wanted, in hundredths of the nodes that may help: 0 to 100.
    pub min_candidate_nodes_percentage: u32,
    /// Least number of candidates wanted.
    pub min_candidate_nodes_absolute: u32,
}

impl Default for PreemptionArgs {
    fn default() -> Self {
        Self { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

/// A plugin. Each method is an extension point; the default does nothing.
pub trait Plugin: Send + Sync {
    /// Returns the plugin's name in the scheduler's configuration, such as `NodeResourcesFit`.
    fn name(&self) -> &'static str;

    /// Returns why a pod must not be attempted yet (PreEnqueue).
    fn pre_enqueue(&self, _pod: &PodInfo, _cluster: &Cluster) -> Option<Refusal> {
        None
    }

    /// Adds what the plugin wants counted for the pod to the cluster's indexes. Called before each attempt.
    fn register(&self, _pod: &PodInfo, _cluster: &mut Cluster) {}

    /// Prepares a filter whose answers depend on the template, the node and [`Self::epoch`] alone; `None` if it passes
    /// all nodes. The answers are cached.
    fn node_filter<'a>(
        &'a self,
        _spec: &'a PodSpec,
        _cluster: &'a Cluster,
    ) -> Option<Box<dyn NodeFilter + 'a>> {
        None
    }

    /// Prepares a filter whose answers depend on more than a template and a node (PreFilter and Filter).
    fn pre_filter<'a>(&'a self, _pod: &'a PodInfo, _cluster: &'a Cluster) -> PreFilter<'a> {
        PreFilter::Skip
    }

    /// Prepares scores that depend on the template, the node and [`Self::epoch`] alone; `None` if the plugin has nothing to
    /// say of the pod. The scores are cached.
    fn node_score<'a>(&'a self, _spec: &'a PodSpec, _cluster: &'a Cluster) -> Option<NodeScore<'a>> {
        None
    }

    /// Returns normalized scores of the feasible nodes, in the order of their list, which depend on more than a template and
    /// a node; `None` if the plugin has nothing to say of the pod (PreScore, Score and NormalizeScore).
    fn score(&self, _pod: &PodInfo, _cluster: &Cluster, _feasible: &Feasible) -> Option<Scores> {
        None
    }

    /// Returns a number that changes when cached answers of [`Self::node_filter`] and [`Self::node_score`] for nodes that
    /// have not changed are no longer true.
    fn epoch(&self, _cluster: &Cluster) -> u64 {
        0
    }

    /// Reserves what the pod takes on a node besides its requests, and returns what is to be written for it.
    ///
    /// # Errors
    ///
    /// Refuses if that can no longer be had; nothing is reserved then.
    fn reserve(
        &self,
        _pod: &PodInfo,
        _node: NodeId,
        _cluster: &mut Cluster,
    ) -> Result<Option<PreBind>, Refusal> {
        Ok(None)
    }

    /// Undoes [`Self::reserve`]. May be called for what was not reserved.
    fn unreserve(&self, _pod: &PodInfo, _cluster: &mut Cluster) {}

    /// Returns if a pod that is counted and reserved on a node may be bound now, later or not at all (Permit).
    fn permit(&self, _pod: &PodInfo, _node: NodeId, _cluster: &Cluster) -> Permission {
        Permission::default()
    }

    /// Hears that a pod was bound (PostBind). Called by the task that has bound it.
    fn post_bind(&self, _pod: &PodInfo, _node: &str) {}

    /// Returns what is added to the message of a pod that fits nowhere, and what is to be written for it (PostFilter).
    fn post_filter(&self, _pod: &PodInfo, _cluster: &Cluster, _diagnosis: &Diagnosis) -> Option<Finding> {
        None
    }

    /// Returns how to look for pods to preempt, if the plugin does so for pods that fit nowhere (PostFilter).
    fn preemption(&self) -> Option<PreemptionArgs> {
        None
    }

    /// Returns the events that may make a pod schedulable which the plugin has refused.
    fn events(&self) -> Vec<Event> {
        Vec::new()
    }

    /// Returns which of the pods that the plugin has refused a change, which is one of [`Self::events`], can help. It costs
    /// nothing for others: no hint is asked about them.
    fn reach(&self, _change: &Change<'_>, _cluster: &Cluster) -> Reach {
        Reach::All
    }

    /// Returns whether a change, which is one of [`Self::events`], may make the refused pod schedulable (QueueingHint).
    fn hint(&self, _pod: &PodInfo, _change: &Change<'_>, _cluster: &Cluster) -> Hint {
        Hint::Queue
    }
}
