//! The scores of feasible nodes.

use super::meter::{Meter, Stage, Status};
use super::plugin::Scores;
use super::profile::Profile;
use super::view::{Column, Views};
use crate::cluster::{Cluster, NodeId};
use crate::pod::PodInfo;

/// Returns the weighted sums of the scores of the feasible nodes, in their order. `meter` gets the time of the extension
/// point Score.
pub fn score(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &Cluster,
    views: &mut Views,
    feasible: &[NodeId],
    meter: &mut Meter,
) -> Vec<i64> {
    let mut totals = views.spare_totals();
    let view = views.refresh(profile, &pod.spec, cluster);
    // Scores that are not normalized are summed up once for all attempts, unless each plugin is to be timed.
    let are_summed = !meter.times_plugins();
    match are_summed {
        true => totals.extend(feasible.iter().map(|id| view.sums[id.index()])),
        false => totals.resize(feasible.len(), 0),
    }
    for (&(index, weight), column) in profile.score.iter().zip(&view.columns) {
        if are_summed && column.as_ref().is_some_and(Column::is_in_sums) {
            meter.evaluated(Stage::Score, index);
            continue;
        }
        let scoring = || scores_of(profile, index, column.as_ref(), (pod, cluster, feasible));
        let status = |scores: &Option<Scores>| scores.as_ref().map_or(Status::Skip, |_| Status::Success);
        let scores = meter.time((Stage::Score, index), feasible.len(), scoring, status);
        let Some(scores) = scores else { continue };
        meter.evaluated(Stage::Score, index);
        scores.add_to(&mut totals, weight);
    }
    meter.ended(Stage::Score, Status::Success);
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
    let scores = profile.score.iter().zip(&view.columns).filter_map(|(&(index, _), column)| {
        let scores = scores_of(profile, index, column.as_ref(), (pod, cluster, feasible))?;
        Some((profile.plugin(index).name(), scores.to_vec(feasible.len())))
    });
    scores.collect()
}

/// Returns the normalized scores by one plugin, from its column if it has one.
fn scores_of(
    profile: &Profile,
    index: usize,
    column: Option<&Column>,
    (pod, cluster, feasible): (&PodInfo, &Cluster, &[NodeId]),
) -> Option<Scores> {
    match column {
        Some(column) => Some(column.scores(feasible)),
        None => profile.plugin(index).score(pod, cluster, feasible),
    }
}

/// Returns the node with the highest total; `random` breaks ties, so that equal nodes fill evenly.
pub fn best(feasible: &[NodeId], totals: &[i64], random: u64) -> Option<NodeId> {
    let best = totals.iter().copied().max()?;
    let count = totals.iter().filter(|total| **total == best).count() as u64;
    let mut winners = feasible.iter().zip(totals).filter(|(_, total)| **total == best).map(|(id, _)| *id);
    winners.nth(usize::try_from(random % count).unwrap_or_default())
}
