//! The scores of feasible nodes.

use super::plugin::Normalize;
use super::profile::Profile;
use super::view::{Column, Views};
use crate::cluster::{Cluster, NodeId};
use crate::pod::PodInfo;

/// Returns the weighted sums of the scores of the feasible nodes, in their order.
pub fn score(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &Cluster,
    views: &mut Views,
    feasible: &[NodeId],
) -> Vec<i64> {
    let view = views.refresh(profile, &pod.spec, cluster);
    let mut totals: Vec<i64> = feasible.iter().map(|id| view.sums[id.index()]).collect();
    let mut add = |scores: &[i64], weight: i64| {
        totals.iter_mut().zip(scores).for_each(|(total, score)| *total += score * weight);
    };
    for (&(index, weight), column) in profile.score.iter().zip(&view.columns) {
        match column {
            // Is in the sums.
            Some(column) if column.normalize == Normalize::Identity => {}
            Some(column) => add(&of_column(column, feasible), weight),
            None => {
                let scores = profile.plugin(index).score(pod, cluster, feasible);
                scores.into_iter().for_each(|scores| add(&scores, weight));
            }
        }
    }
    totals
}

/// Returns the normalized scores of the feasible nodes by each plugin that has something to say of the pod.
pub fn scores_by_plugin(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &Cluster,
    views: &mut Views,
    feasible: &[NodeId],
) -> Vec<(&'static str, Vec<i64>)> {
    let view = views.refresh(profile, &pod.spec, cluster);
    let scores = profile.score.iter().zip(&view.columns).filter_map(|((index, _), column)| {
        let plugin = profile.plugin(*index);
        let scores = match column {
            Some(column) => Some(of_column(column, feasible)),
            None => plugin.score(pod, cluster, feasible),
        };
        scores.map(|scores| (plugin.name(), scores))
    });
    scores.collect()
}

/// Returns the normalized scores of the feasible nodes.
fn of_column(column: &Column, feasible: &[NodeId]) -> Vec<i64> {
    let mut scores = match column.is_zero() {
        true => vec![0; feasible.len()],
        false => feasible.iter().map(|id| column.raw[id.index()]).collect(),
    };
    column.normalize.apply(&mut scores);
    scores
}

/// Returns the node with the highest total; `random` breaks ties, so that equal nodes fill evenly.
pub fn best(feasible: &[NodeId], totals: &[i64], random: u64) -> Option<NodeId> {
    let best = totals.iter().copied().max()?;
    let count = totals.iter().filter(|total| **total == best).count() as u64;
    let winners = feasible.iter().zip(totals).filter(|(_, total)| **total == best).map(|(id, _)| *id);
    winners.into_iter().nth(usize::try_from(random % count).unwrap_or_default())
}
