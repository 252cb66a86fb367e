//! Resources: fit, least-allocated score, and balance of CPU and memory.

use crate::framework::{Filter, MAX_SCORE, NodeFilter, Score};
use crate::model::{NodeInfo, PodInfo};
use crate::snapshot::Snapshot;

/// `NodeResourcesFit`: filter, and score by LeastAllocated over CPU and memory.
pub struct Fit;

impl Filter for Fit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn prepare<'a>(&self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn NodeFilter + 'a>> {
        Some(Box::new(move |node: &NodeInfo| lacking(pod, node)))
    }
}

/// Returns the reasons for resources that the node has too little of.
fn lacking(pod: &PodInfo, node: &NodeInfo) -> Vec<String> {
    let mut reasons = Vec::new();
    if node.pods.len() + 1 > node.max_pods {
        reasons.push("Too many pods".to_owned());
    }
    let (wanted, used, all) = (&pod.requests, &node.requested, &node.allocatable);
    let mut check = |name: &str, wanted: i64, used: i64, all: i64| {
        if wanted > 0 && wanted > all - used {
            reasons.push(format!("Insufficient {name}"));
        }
    };
    check("cpu", wanted.cpu, used.cpu, all.cpu);
    check("memory", wanted.memory, used.memory, all.memory);
    check("ephemeral-storage", wanted.ephemeral_storage, used.ephemeral_storage, all.ephemeral_storage);
    for (name, amount) in &wanted.other {
        let of = |map: &std::collections::BTreeMap<String, i64>| map.get(name).copied().unwrap_or_default();
        check(name, *amount, of(&used.other), of(&all.other));
    }
    reasons
}

impl Score for Fit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn score(&self, pod: &PodInfo, nodes: &[&NodeInfo], _: &Snapshot) -> Vec<i64> {
        let free = |used: i64, all: i64| {
            if all == 0 || used > all { 0 } else { (all - used) * MAX_SCORE / all }
        };
        nodes
            .iter()
            .map(|node| {
                let cpu = free(node.scored.0 + pod.scored.0, node.allocatable.cpu);
                let memory = free(node.scored.1 + pod.scored.1, node.allocatable.memory);
                (cpu + memory) / 2
            })
            .collect()
    }
}

/// `NodeResourcesBalancedAllocation`: prefers nodes where the used fractions of CPU and memory are similar.
pub struct BalancedAllocation;

impl Score for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    /// Returns 100 minus the standard deviation of the two fractions, in hundredths.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "fractions in 0..=1")]
    fn score(&self, pod: &PodInfo, nodes: &[&NodeInfo], _: &Snapshot) -> Vec<i64> {
        // A pod without requests does not change the balance.
        if pod.requests.cpu == 0 && pod.requests.memory == 0 {
            return Vec::new();
        }
        let fraction = |used: i64, all: i64| if all == 0 { 1.0 } else { (used as f64 / all as f64).min(1.0) };
        nodes
            .iter()
            .map(|node| {
                let cpu = fraction(node.requested.cpu + pod.requests.cpu, node.allocatable.cpu);
                let memory = fraction(node.requested.memory + pod.requests.memory, node.allocatable.memory);
                ((1.0 - (cpu - memory).abs() / 2.0) * MAX_SCORE as f64) as i64
            })
            .collect()
    }
}
