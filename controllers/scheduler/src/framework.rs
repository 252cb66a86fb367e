//! The extension points: filters say why a node is infeasible, scores say how suitable it is.

use crate::model::{NodeInfo, PodInfo};
use crate::snapshot::Snapshot;

/// Highest score of a node before weights.
pub const MAX_SCORE: i64 = 100;

/// Excludes infeasible nodes.
pub trait Filter: Send + Sync {
    /// Returns the plugin's name in the scheduler's configuration, such as `NodeResourcesFit`.
    fn name(&self) -> &'static str;

    /// Computes what is the same for all nodes; `None` if the plugin does not apply to the pod.
    fn prepare<'a>(&self, pod: &'a PodInfo, snapshot: &'a Snapshot) -> Option<Box<dyn NodeFilter + 'a>>;
}

/// A filter prepared for one pod.
pub trait NodeFilter {
    /// Returns the reasons against the node in the words of Kubernetes; empty if it is feasible.
    fn reasons(&self, node: &NodeInfo) -> Vec<String>;
}

impl<F: Fn(&NodeInfo) -> Vec<String>> NodeFilter for F {
    fn reasons(&self, node: &NodeInfo) -> Vec<String> {
        self(node)
    }
}

/// Ranks the feasible nodes.
pub trait Score: Send + Sync {
    fn name(&self) -> &'static str;

    /// Returns a score for each of `nodes`, in their order, from 0 to [`MAX_SCORE`]. An empty result means
    /// that the plugin does not apply to the pod.
    fn score(&self, pod: &PodInfo, nodes: &[&NodeInfo], snapshot: &Snapshot) -> Vec<i64>;
}

/// The plugins of a profile, with the weights of their scores.
pub struct Profile {
    pub filters: Vec<Box<dyn Filter>>,
    pub scores: Vec<(Box<dyn Score>, i64)>,
}

/// Scales raw values to 0..=[`MAX_SCORE`]; with `reverse`, the smallest value gets the highest score. If all
/// values are zero, every node gets [`MAX_SCORE`] with `reverse`, and 0 without.
pub fn normalize(raw: &[i64], reverse: bool) -> Vec<i64> {
    let max = raw.iter().copied().max().unwrap_or_default();
    raw.iter()
        .map(|&value| {
            let scaled = if max == 0 { 0 } else { value * MAX_SCORE / max };
            if reverse { MAX_SCORE - scaled } else { scaled }
        })
        .collect()
}
