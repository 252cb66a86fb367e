//! The extension points: filters say why a node will not do, scores say how well it does.

use crate::model::{NodeInfo, PodInfo};
use crate::snapshot::Snapshot;

/// The best score of a node before weights.
pub const MAX_SCORE: i64 = 100;

/// Refuses nodes.
pub trait Filter: Send + Sync {
    /// As in the scheduler's configuration: `NodeResourcesFit`.
    fn name(&self) -> &'static str;

    /// What is computed once for a pod; `None` when the plugin has nothing to say about it.
    fn prepare<'a>(&self, pod: &'a PodInfo, snapshot: &'a Snapshot) -> Option<Box<dyn NodeFilter + 'a>>;
}

/// A filter, prepared for one pod.
pub trait NodeFilter {
    /// The reasons against the node, as Kubernetes words them; empty when it will do.
    fn reasons(&self, node: &NodeInfo) -> Vec<String>;
}

impl<F: Fn(&NodeInfo) -> Vec<String>> NodeFilter for F {
    fn reasons(&self, node: &NodeInfo) -> Vec<String> {
        self(node)
    }
}

/// Ranks the nodes that passed the filters.
pub trait Score: Send + Sync {
    fn name(&self) -> &'static str;

    /// A score for each of `nodes`, in their order, from 0 to [`MAX_SCORE`]. An empty answer
    /// means that the plugin has nothing to say about the pod.
    fn score(&self, pod: &PodInfo, nodes: &[&NodeInfo], snapshot: &Snapshot) -> Vec<i64>;
}

/// The plugins of a profile, with the weights of their scores.
pub struct Profile {
    pub filters: Vec<Box<dyn Filter>>,
    pub scores: Vec<(Box<dyn Score>, i64)>,
}

/// Stretches raw values to 0..=[`MAX_SCORE`]; with `reverse`, the smallest value is the best.
/// When all are equal every node gets the best score for `reverse`, else 0 for all zeros.
pub fn normalize(raw: &[i64], reverse: bool) -> Vec<i64> {
    let max = raw.iter().copied().max().unwrap_or_default();
    raw.iter()
        .map(|&value| {
            let scaled = if max == 0 { 0 } else { value * MAX_SCORE / max };
            if reverse { MAX_SCORE - scaled } else { scaled }
        })
        .collect()
}
