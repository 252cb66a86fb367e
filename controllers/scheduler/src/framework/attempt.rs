//! The attempt to find a node for a pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::diagnosis::Diagnosis;
use super::meter::{Meter, Stage, Status};
use super::plugin::{Code, NodeFilter, PreFilter, Refusal};
use super::profile::{Profile, Sampling};
use super::view::Views;
use crate::cluster::{Cluster, Node, NodeId, NodeSet};
use crate::limits;
use crate::pod::PodInfo;

/// The filters of a profile, prepared for one pod, in the order in which they run.
pub struct Attempt<'a> {
    filters: Vec<Prepared<'a>>,
    /// If set, the names of the only nodes that can be feasible.
    only: Option<BTreeSet<Arc<str>>>,
    /// Plugins that have set `only`.
    restricting: Vec<&'static str>,
}

struct Prepared<'a> {
    plugin: &'static str,
    /// Index of the plugin in the profile.
    index: usize,
    filter: Box<dyn NodeFilter + 'a>,
    /// The answers depend on the template and the node alone.
    is_cached: bool,
}

/// The nodes that a pod can run on, ordered by id; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feasible {
    pub nodes: Vec<NodeId>,
    /// Number of nodes that were checked.
    pub evaluated: usize,
}

/// Says if the node that the pod was nominated for is tried alone before all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NominatedFirst {
    Yes,
    No,
}

impl<'a> Attempt<'a> {
    /// Runs the plugins' PreFilter.
    ///
    /// # Errors
    ///
    /// Returns the refusal if no node can be feasible.
    pub fn prepare(profile: &'a Profile, pod: &'a PodInfo, cluster: &'a Cluster) -> Result<Self, Refusal> {
        Self::prepare_timed(profile, pod, cluster, &mut Meter::default())
    }

    fn prepare_timed(
        profile: &'a Profile,
        pod: &'a PodInfo,
        cluster: &'a Cluster,
        meter: &mut Meter,
    ) -> Result<Self, Refusal> {
        let mut attempt = Self { filters: Vec::new(), only: None, restricting: Vec::new() };
        let mut refusal = None;
        let mut global: Vec<Option<Box<dyn NodeFilter + 'a>>> =
            (0..profile.plugins.len()).map(|_| None).collect();
        for &index in &profile.pre_filter {
            let plugin = profile.plugin(index);
            let at = (Stage::PreFilter, index);
            let answer = meter.time(at, 1, || plugin.pre_filter(pod, cluster), PreFilter::status);
            if !matches!(answer, PreFilter::Skip) {
                meter.evaluated(Stage::PreFilter, index);
            }
            match answer {
                PreFilter::Skip => {}
                // Other plugins may refuse for good, which makes the search for pods to preempt unnecessary.
                PreFilter::Refuse(why) if why.code == Code::Unschedulable => {
                    refusal = Some(why.by(plugin.name()));
                }
                PreFilter::Refuse(why) => return Err(why.by(plugin.name())),
                PreFilter::Only(nodes) => attempt.restrict(plugin.name(), nodes)?,
                PreFilter::Filter { only, filter } => {
                    if let Some(nodes) = only {
                        attempt.restrict(plugin.name(), nodes)?;
                    }
                    global[index] = Some(filter);
                }
            }
        }
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        for &index in &profile.filter {
            let plugin = profile.plugin(index);
            let mut push = |filter: Option<Box<dyn NodeFilter + 'a>>, is_cached| {
                let Some(filter) = filter else { return };
                meter.evaluated(Stage::Filter, index);
                attempt.filters.push(Prepared { plugin: plugin.name(), index, filter, is_cached });
            };
            push(plugin.node_filter(&pod.spec, cluster), true);
            push(global[index].take(), false);
        }
        Ok(attempt)
    }

    fn restrict(&mut self, plugin: &'static str, names: BTreeSet<Arc<str>>) -> Result<(), Refusal> {
        self.restricting.push(plugin);
        self.restricting.sort_unstable();
        let only = match self.only.take() {
            Some(only) => only.intersection(&names).cloned().collect(),
            None => names,
        };
        if only.is_empty() {
            let reason = match self.restricting.as_slice() {
                [plugin] => format!("node(s) didn't satisfy plugin {plugin}"),
                all => format!("node(s) didn't satisfy plugin(s) [{}] simultaneously", all.join(" ")),
            };
            return Err(Refusal::unresolvable(reason));
        }
        self.only = Some(only);
        Ok(())
    }

    /// Checks one node with all filters.
    ///
    /// # Errors
    ///
    /// Returns the first refusal.
    pub fn check(&self, node: &Node) -> Result<(), Refusal> {
        match self.filters.iter().find(|one| !one.filter.passes(node)) {
            Some(one) => Err(one.filter.refusal(node).by(one.plugin)),
            None => Ok(()),
        }
    }

    /// Checks one node, and notes the time of each filter.
    fn time_on(&self, node: &Node, meter: &mut Meter) {
        for one in &self.filters {
            let status = |passes: &bool| match passes {
                true => Status::Success,
                false => Status::Refused(one.filter.refusal(node).code),
            };
            if !meter.time((Stage::Filter, one.index), 1, || one.filter.passes(node), status) {
                break;
            }
        }
    }

    /// Returns `true` if all answers depend on the pod's template and on the node alone, so that a node can be checked as
    /// it would be with other pods on it.
    pub fn is_local(&self) -> bool {
        self.filters.iter().all(|one| one.is_cached)
    }

    /// Returns the nodes that exist of those that alone can be feasible; `None` if all can.
    fn candidates(&self, cluster: &Cluster) -> Option<NodeSet> {
        let names = self.only.as_ref()?;
        Some(names.iter().filter_map(|name| cluster.named(name)).map(|node| node.id).collect())
    }

    /// Returns the nodes that pass all filters.
    fn passing(&self, profile: &Profile, pod: &PodInfo, cluster: &Cluster, views: &mut Views) -> NodeSet {
        let only = self.candidates(cluster);
        if let Some(only) = only.as_ref().filter(|only| only.len() <= limits::FEW_NODES) {
            return only.iter().filter(|id| self.check(cluster.node(*id)).is_ok()).collect();
        }
        let mut nodes = views.refresh(profile, &pod.spec, cluster).passing.clone();
        if let Some(only) = &only {
            nodes.intersect(only);
        }
        for one in self.filters.iter().filter(|one| !one.is_cached) {
            one.filter.restrict(cluster, &mut nodes);
        }
        nodes
    }

    /// Records why nodes do not pass.
    fn explain(&self, cluster: &Cluster, diagnosis: &mut Diagnosis) {
        let only = self.candidates(cluster);
        for id in only.as_ref().unwrap_or(cluster.known()).iter() {
            if let Err(refusal) = self.check(cluster.node(id)) {
                diagnosis.refuse(id, refusal);
            }
        }
        if self.only.is_some() {
            let plugins = self.restricting.join(" ");
            let reason = format!("node(s) didn't satisfy plugin(s) [{plugins}]");
            diagnosis.others = Some(Refusal::unresolvable(reason));
            diagnosis.plugins.extend(&self.restricting);
        }
    }
}

/// Returns the nodes that a pod can run on. `start` is the index of the node where sampling begins.
///
/// # Errors
///
/// Returns why no node is feasible.
pub fn find_feasible(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    views: &mut Views,
    start: usize,
    nominated_first: NominatedFirst,
) -> Result<Feasible, Box<Diagnosis>> {
    let mut meter = Meter::default();
    find_feasible_timed(profile, pod, cluster, views, start, nominated_first, &mut meter)
}

/// Does the same as [`find_feasible`], and measures the extension points PreFilter and Filter.
///
/// # Errors
///
/// Returns why no node is feasible.
pub fn find_feasible_timed(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    views: &mut Views,
    start: usize,
    nominated_first: NominatedFirst,
    meter: &mut Meter,
) -> Result<Feasible, Box<Diagnosis>> {
    for plugin in &profile.plugins {
        plugin.register(pod, cluster);
    }
    if nominated_first == NominatedFirst::Yes
        && let Some(id) = fitting_nominated(profile, pod, cluster)
    {
        meter.ended(Stage::Filter, Status::Success);
        return Ok(Feasible { nodes: vec![id], evaluated: 1 });
    }
    let (nodes, checked) = passing(profile, pod, cluster, views, meter)?;
    let feasible = sample(profile.sampling, &nodes, checked, cluster.len(), start);
    meter.ended(Stage::Filter, Status::Success);
    Ok(feasible)
}

/// Returns all nodes that a pod can run on.
///
/// # Errors
///
/// Returns why no node is feasible.
pub fn all_feasible(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    views: &mut Views,
) -> Result<NodeSet, Box<Diagnosis>> {
    for plugin in &profile.plugins {
        plugin.register(pod, cluster);
    }
    Ok(passing(profile, pod, cluster, views, &mut Meter::default())?.0)
}

/// Returns the nodes that a pod can run on, with the number of nodes that were checked.
fn passing(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    views: &mut Views,
    meter: &mut Meter,
) -> Result<(NodeSet, usize), Box<Diagnosis>> {
    let mut diagnosis = Box::new(Diagnosis { nodes: cluster.len(), ..Diagnosis::default() });
    if cluster.is_empty() {
        return Err(diagnosis);
    }
    let attempt = match Attempt::prepare_timed(profile, pod, cluster, meter) {
        Ok(attempt) => attempt,
        Err(refusal) => {
            meter.ended(Stage::PreFilter, Status::Refused(refusal.code));
            diagnosis.refuse_all(refusal);
            return Err(diagnosis);
        }
    };
    meter.ended(Stage::PreFilter, Status::Success);
    if let Some(node) = cluster.nodes().next().filter(|_| meter.times_plugins()) {
        attempt.time_on(node, meter);
    }
    let mut nodes = attempt.passing(profile, pod, cluster, views);
    let checked = attempt.candidates(cluster).map_or(cluster.len(), |only| only.len());
    drop(attempt);
    for id in contested(pod, cluster, &nodes) {
        if fits_with_nominated(profile, pod, cluster, id).is_err() {
            nodes.remove(id);
        }
    }
    if nodes.is_empty() {
        explain(profile, pod, cluster, &mut diagnosis);
        let status = if diagnosis.is_error() { Status::Refused(Code::Error) } else { Status::Success };
        meter.ended(Stage::Filter, status);
        return Err(diagnosis);
    }
    Ok((nodes, checked))
}

/// Records why nodes are not feasible for a pod. A node for which pods are nominated is judged with them first.
fn explain(profile: &Profile, pod: &PodInfo, cluster: &mut Cluster, diagnosis: &mut Diagnosis) {
    let candidates = match Attempt::prepare(profile, pod, cluster) {
        Ok(attempt) => {
            attempt.explain(cluster, diagnosis);
            attempt.candidates(cluster).unwrap_or_else(|| cluster.known().clone())
        }
        Err(refusal) => return diagnosis.refuse_all(refusal),
    };
    for id in contested(pod, cluster, &candidates) {
        if let Err(refusal) = fits_with_nominated(profile, pod, cluster, id) {
            diagnosis.refuse(id, refusal);
        }
    }
}

/// Returns why each node that is not feasible for a pod is not.
pub fn diagnose(profile: &Profile, pod: &PodInfo, cluster: &mut Cluster) -> Diagnosis {
    for plugin in &profile.plugins {
        plugin.register(pod, cluster);
    }
    let mut diagnosis = Diagnosis { nodes: cluster.len(), ..Diagnosis::default() };
    explain(profile, pod, cluster, &mut diagnosis);
    diagnosis
}

/// Returns the node that the pod was nominated for, if it is feasible.
fn fitting_nominated(profile: &Profile, pod: &PodInfo, cluster: &mut Cluster) -> Option<NodeId> {
    let id = cluster.named(pod.nominated.as_deref()?)?.id;
    let passes = Attempt::prepare(profile, pod, cluster).ok()?.check(cluster.node(id)).is_ok();
    (passes && fits_with_nominated(profile, pod, cluster, id).is_ok()).then_some(id)
}

/// Returns the nodes of a set for which pods are nominated that the pod has to leave room for.
fn contested(pod: &PodInfo, cluster: &Cluster, nodes: &NodeSet) -> Vec<NodeId> {
    let rivals = cluster.nominated.iter().filter(|(_, pods)| pods.iter().any(|other| yields(pod, other)));
    rivals
        .filter_map(|(name, _)| cluster.named(name))
        .map(|node| node.id)
        .filter(|id| nodes.contains(*id))
        .collect()
}

/// Returns `true` if a pod has to leave room for a nominated one.
pub(crate) fn yields(pod: &PodInfo, nominated: &PodInfo) -> bool {
    nominated.spec.priority >= pod.spec.priority && nominated.uid != pod.uid
}

/// Checks a node that passes as it is, with the nominated pods on it that the pod has to leave room for.
fn fits_with_nominated(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    id: NodeId,
) -> Result<(), Refusal> {
    let name = cluster.node(id).name.clone();
    let rivals: Vec<_> =
        cluster.nominated.on(&name).iter().filter(|other| yields(pod, other)).cloned().collect();
    if rivals.is_empty() {
        return Ok(());
    }
    {
        let attempt = Attempt::prepare(profile, pod, cluster)?;
        if attempt.is_local() {
            let mut node = cluster.node(id).clone();
            rivals.iter().for_each(|rival| node.add_pod(rival));
            return attempt.check(&node);
        }
    }
    let mut trial = cluster.trial();
    for rival in rivals.iter().filter(|rival| trial.place_of(rival).is_none()).collect::<Vec<_>>() {
        trial.add(rival, id);
    }
    let attempt = Attempt::prepare(profile, pod, &trial)?;
    attempt.check(trial.node(id))
}

/// Returns all feasible nodes, or the first of them from a node on.
fn sample(sampling: Sampling, nodes: &NodeSet, checked: usize, all: usize, start: usize) -> Feasible {
    let feasible: Vec<NodeId> = nodes.iter().collect();
    let limit = wanted(sampling, all);
    if feasible.len() <= limit {
        return Feasible { nodes: feasible, evaluated: checked };
    }
    let first = feasible.partition_point(|id| id.index() < start);
    let mut taken: Vec<NodeId> = feasible.iter().cycle().skip(first).take(limit).copied().collect();
    taken.sort_unstable();
    Feasible { evaluated: taken.len(), nodes: taken }
}

/// Returns the number of feasible nodes that are enough (`numFeasibleNodesToFind`).
fn wanted(sampling: Sampling, all: usize) -> usize {
    let percent = match sampling {
        Sampling::All => return usize::MAX,
        Sampling::Percent(0) => 50_usize.saturating_sub(all / 125).max(5),
        Sampling::Percent(percent) => usize::from(percent),
    };
    if all < limits::MIN_FEASIBLE_NODES { all } else { (all * percent / 100).max(limits::MIN_FEASIBLE_NODES) }
}

/// Returns the weighted sums of the scores of the feasible nodes, in their order. Each plugin's scores are shown to `see`
/// with its name before they are weighted.
pub fn score(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &Cluster,
    views: &mut Views,
    feasible: &[NodeId],
    see: impl FnMut(&'static str, &[i64]),
) -> Vec<i64> {
    score_timed(profile, pod, cluster, views, feasible, see, &mut Meter::default())
}

/// Does the same as [`score`], and measures the extension point Score.
pub fn score_timed(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &Cluster,
    views: &mut Views,
    feasible: &[NodeId],
    mut see: impl FnMut(&'static str, &[i64]),
    meter: &mut Meter,
) -> Vec<i64> {
    let mut totals = vec![0; feasible.len()];
    let mut scores = vec![0; feasible.len()];
    let view = views.refresh(profile, &pod.spec, cluster);
    for (&(index, weight), column) in profile.score.iter().zip(&view.columns) {
        let plugin = profile.plugin(index);
        let scoring = || match column {
            Some(column) => {
                column.score(feasible, &mut scores);
                true
            }
            None => match plugin.score(pod, cluster, feasible) {
                Some(others) => {
                    scores = others;
                    true
                }
                None => false,
            },
        };
        let status = |scored: &bool| if *scored { Status::Success } else { Status::Skip };
        if !meter.time((Stage::Score, index), feasible.len(), scoring, status) {
            continue;
        }
        meter.evaluated(Stage::Score, index);
        see(plugin.name(), &scores);
        for (total, score) in totals.iter_mut().zip(&scores) {
            *total += score * weight;
        }
    }
    meter.ended(Stage::Score, Status::Success);
    totals
}

/// Returns the node with the highest total; `random` breaks ties, so that equal nodes fill evenly.
pub fn best(feasible: &[NodeId], totals: &[i64], random: u64) -> Option<NodeId> {
    let best = totals.iter().copied().max()?;
    let winners = || feasible.iter().zip(totals).filter(|(_, total)| **total == best).map(|(id, _)| *id);
    let count = winners().count() as u64;
    winners().nth(usize::try_from(random % count).unwrap_or_default())
}
