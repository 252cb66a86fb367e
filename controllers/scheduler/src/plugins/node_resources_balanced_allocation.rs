//! `NodeResourcesBalancedAllocation`: a pod runs rather where it evens out what is used of a node's resources.

use super::allocation::{Amounts, Counting, ResourceWeight, Shares, default_resources};
use crate::cluster::{Cluster, Node};
use crate::framework::{Feasible, MAX_SCORE, NodeScore, Normalize, Plugin, Scores};
use crate::pod::{PodInfo, PodSpec};

#[cfg(test)]
mod tests;

/// Arguments of [`NodeResourcesBalancedAllocation`] (`NodeResourcesBalancedAllocationArgs`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancedAllocationArgs {
    /// Resources to balance; weights do not matter.
    pub resources: Vec<ResourceWeight>,
}

impl Default for BalancedAllocationArgs {
    fn default() -> Self {
        Self { resources: default_resources() }
    }
}

/// The plugin `NodeResourcesBalancedAllocation`.
#[derive(Default)]
pub struct NodeResourcesBalancedAllocation {
    args: BalancedAllocationArgs,
}

impl NodeResourcesBalancedAllocation {
    pub fn new(args: BalancedAllocationArgs) -> Self {
        Self { args }
    }

    /// Returns the resources to balance; `None` if the pod requests nothing of them: such pods would all go to the node that is
    /// balanced best.
    fn shares<'a>(&'a self, spec: &PodSpec, cluster: &'a Cluster) -> Option<Shares<'a>> {
        let classes = &cluster.device_classes;
        let shares = Shares::new(&self.args.resources, &spec.requests, Counting::Requested, classes);
        (!shares.are_unrequested()).then_some(shares)
    }
}

/// Returns the score of a node with these resources from 50 to 100 by whether the pod improves the balance: 75 if it changes
/// nothing.
fn score<I: Iterator<Item = Amounts>>(resources: impl Fn() -> I) -> i64 {
    let with = balance(|| resources().map(|amounts| fraction(amounts, amounts.with_pod)));
    let without = balance(|| resources().map(|amounts| fraction(amounts, amounts.used)));
    MAX_SCORE / 2 + (MAX_SCORE / 2 + with - without) / 2
}

fn fraction(amounts: Amounts, used: i64) -> f64 {
    let fraction = used as f64 / amounts.allocatable as f64;
    if fraction > 1.0 { 1.0 } else { fraction }
}

/// Returns the score of the fractions that are used: 100 less the percentage that is their standard deviation.
fn balance<I: Iterator<Item = f64>>(fractions: impl Fn() -> I) -> i64 {
    let mut first = fractions();
    let deviation = match (first.next(), first.next(), first.next()) {
        (Some(a), Some(b), None) => ((a - b) / 2.0).abs(),
        (Some(_), Some(_), Some(_)) => {
            let (count, sum) = fractions().fold((0.0, 0.0), |(count, sum), one| (count + 1.0, sum + one));
            let mean: f64 = sum / count;
            let squares = fractions().fold(0.0, |sum, one| sum + (one - mean) * (one - mean));
            (squares / count).sqrt()
        }
        _ => 0.0,
    };
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}

impl Plugin for NodeResourcesBalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn node_score<'a>(&'a self, spec: &'a PodSpec, cluster: &'a Cluster) -> Option<NodeScore<'a>> {
        let shares = self.shares(spec, cluster).filter(|shares| !shares.depend_on_devices())?;
        let raw = move |node: &Node| score(|| shares.of(node, None));
        Some(NodeScore { raw: Box::new(raw), normalize: Normalize::Identity })
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, feasible: &Feasible) -> Option<Scores> {
        let shares = self.shares(&pod.spec, cluster)?;
        let scores = feasible.list().iter().map(|id| {
            let amounts: Vec<Amounts> = shares.of(cluster.node(*id), Some(&cluster.devices)).collect();
            score(|| amounts.iter().copied())
        });
        Some(Scores::Each(scores.collect()))
    }

    fn epoch(&self, cluster: &Cluster) -> u64 {
        cluster.device_classes.version()
    }
}
