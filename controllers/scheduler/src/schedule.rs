//! The scheduling decision: filter, score, choose.

use std::collections::BTreeMap;

use crate::framework::Profile;
use crate::model::{NodeInfo, PodInfo};
use crate::snapshot::Snapshot;

/// No node is feasible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.describe())]
pub struct FitError {
    /// Total number of nodes.
    pub nodes: usize,
    /// Number of nodes that each reason applies to.
    pub reasons: BTreeMap<String, usize>,
    /// Plugins that excluded nodes, which determine what changes may help.
    pub plugins: Vec<&'static str>,
}

impl FitError {
    /// Formats the error: `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
    fn describe(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".to_owned();
        }
        let list: Vec<String> = self.reasons.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
        format!("0/{} nodes are available: {}.", self.nodes, list.join(", "))
    }
}

/// Returns the best node for the pod. `random` breaks ties, so that equal nodes fill evenly.
///
/// # Errors
///
/// Returns a [`FitError`], which counts every reason against every node.
pub fn schedule(
    profile: &Profile,
    snapshot: &Snapshot,
    pod: &PodInfo,
    random: u64,
) -> Result<String, FitError> {
    let feasible = filter(profile, snapshot, pod)?;
    if let [only] = feasible.as_slice() {
        return Ok(only.name.clone());
    }
    let totals = totals(profile, snapshot, pod, &feasible);
    let best = totals.iter().copied().max().unwrap_or_default();
    let winners: Vec<&NodeInfo> =
        feasible.iter().zip(&totals).filter(|(_, score)| **score == best).map(|(node, _)| *node).collect();
    let pick = usize::try_from(random % winners.len() as u64).unwrap_or_default();
    Ok(winners[pick].name.clone())
}

/// Returns the nodes that pass all filters.
fn filter<'a>(
    profile: &Profile,
    snapshot: &'a Snapshot,
    pod: &PodInfo,
) -> Result<Vec<&'a NodeInfo>, FitError> {
    let prepared: Vec<_> = profile
        .filters
        .iter()
        .filter_map(|filter| filter.prepare(pod, snapshot).map(|prepared| (filter.name(), prepared)))
        .collect();
    let mut feasible = Vec::new();
    let mut error = FitError { nodes: 0, reasons: BTreeMap::new(), plugins: Vec::new() };
    for node in snapshot.nodes() {
        error.nodes += 1;
        let refusal = prepared
            .iter()
            .map(|(name, filter)| (*name, filter.reasons(node)))
            .find(|(_, reasons)| !reasons.is_empty());
        let Some((plugin, reasons)) = refusal else {
            feasible.push(node);
            continue;
        };
        if !error.plugins.contains(&plugin) {
            error.plugins.push(plugin);
        }
        for reason in reasons {
            *error.reasons.entry(reason).or_default() += 1;
        }
    }
    if feasible.is_empty() { Err(error) } else { Ok(feasible) }
}

/// Returns the weighted sums of all scores, in the order of `nodes`.
pub fn totals(profile: &Profile, snapshot: &Snapshot, pod: &PodInfo, nodes: &[&NodeInfo]) -> Vec<i64> {
    let mut totals = vec![0; nodes.len()];
    for (plugin, weight) in &profile.scores {
        for (total, score) in totals.iter_mut().zip(plugin.score(pod, nodes, snapshot)) {
            *total += score * weight;
        }
    }
    totals
}
