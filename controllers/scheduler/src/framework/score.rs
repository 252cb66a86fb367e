//! The scores of feasible nodes.

use super::attempt::Feasible;
use super::meter::{Meter, Stage, Status};
use super::plugin::Scores;
use super::profile::Profile;
use super::view::{Column, View, Views};
use crate::cluster::{Cluster, NodeId};
use crate::pod::PodInfo;

/// Returns the weighted sums of the scores of the feasible nodes, in the order of their list. `meter` gets the time of the extension
/// point Score.
pub fn score(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &Cluster,
    views: &mut Views,
    feasible: &Feasible,
    meter: &mut Meter,
) -> Vec<i64> {
    let totals = views.spare_totals();
    let view = views.refresh(profile, &pod.spec, cluster);
    let scored = Scored::of(profile, view, (pod, cluster, feasible), meter);
    scored.totals(view, feasible.list(), totals)
}

/// Returns the feasible node with the highest weighted sum of scores; `random` breaks ties, so that equal nodes fill
/// evenly. `meter` gets the time of the extension point Score.
pub fn choose(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &Cluster,
    views: &mut Views,
    feasible: &Feasible,
    random: u64,
    meter: &mut Meter,
) -> Option<NodeId> {
    let totals = views.spare_totals();
    let view = views.refresh(profile, &pod.spec, cluster);
    let scored = Scored::of(profile, view, (pod, cluster, feasible), meter);
    if scored.are_sums() {
        let chosen = view.best(&feasible.nodes, random);
        views.recycle(totals);
        return chosen;
    }
    let totals = scored.totals(view, feasible.list(), totals);
    let chosen = best(feasible.list(), &totals, random);
    views.recycle(totals);
    chosen
}

/// The scores of the feasible nodes for one pod.
struct Scored {
    /// The sums of the view are a part of the scores.
    with_sums: bool,
    /// Scores besides them, with their weights.
    others: Vec<(Scores, i64)>,
}

impl Scored {
    fn of(
        profile: &Profile,
        view: &View,
        (pod, cluster, feasible): (&PodInfo, &Cluster, &Feasible),
        meter: &mut Meter,
    ) -> Self {
        // Scores that are not normalized are summed up once for all attempts, unless each plugin is to be timed.
        let with_sums = !meter.times_plugins();
        let mut others = Vec::new();
        for (&(index, weight), column) in profile.score.iter().zip(&view.columns) {
            if with_sums && column.as_ref().is_some_and(Column::is_in_sums) {
                meter.evaluated(Stage::Score, index);
                continue;
            }
            let scoring = || scores_of(profile, index, column.as_ref(), (pod, cluster, feasible));
            let status = |scores: &Option<Scores>| scores.as_ref().map_or(Status::Skip, |_| Status::Success);
            // The time of a plugin is that for one node; without plugins to time nobody needs the list.
            let nodes = if with_sums { 1 } else { feasible.list().len() };
            let Some(scores) = meter.time((Stage::Score, index), nodes, scoring, status) else { continue };
            meter.evaluated(Stage::Score, index);
            others.push((scores, weight));
        }
        meter.ended(Stage::Score, Status::Success);
        Self { with_sums, others }
    }

    /// Returns `true` if the sums of the view alone decide which node is best.
    fn are_sums(&self) -> bool {
        self.with_sums && self.others.iter().all(|(scores, _)| matches!(scores, Scores::Same(_)))
    }

    /// Returns the totals of the nodes in a list, which is empty at first.
    fn totals(&self, view: &View, nodes: &[NodeId], mut totals: Vec<i64>) -> Vec<i64> {
        match self.with_sums {
            true => totals.extend(nodes.iter().map(|id| view.sums[id.index()])),
            false => totals.resize(nodes.len(), 0),
        }
        self.others.iter().for_each(|(scores, weight)| scores.add_to(&mut totals, *weight));
        totals
    }
}

/// Returns the normalized scores of the feasible nodes by each plugin that has something to say of the pod.
pub fn scores_by_plugin(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &Cluster,
    views: &mut Views,
    feasible: &Feasible,
) -> Vec<(&'static str, Vec<i64>)> {
    let view = views.refresh(profile, &pod.spec, cluster);
    let scores = profile.score.iter().zip(&view.columns).filter_map(|(&(index, _), column)| {
        let scores = scores_of(profile, index, column.as_ref(), (pod, cluster, feasible))?;
        Some((profile.plugin(index).name(), scores.to_vec(feasible.list().len())))
    });
    scores.collect()
}

/// Returns the normalized scores by one plugin, from its column if it has one.
fn scores_of(
    profile: &Profile,
    index: usize,
    column: Option<&Column>,
    (pod, cluster, feasible): (&PodInfo, &Cluster, &Feasible),
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
