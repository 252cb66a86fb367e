//! The attempt to find a node for a pod.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use super::diagnosis::Diagnosis;
use super::meter::{Meter, Stage, Status};
use super::plugin::{Code, NodeFilter, PreFilter, Refusal};
use super::profile::{Profile, Sampling};
use super::refusals::Refusals;
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

/// The nodes that a pod can run on.
#[derive(Clone, Debug)]
pub struct Feasible {
    pub nodes: NodeSet,
    /// Number of nodes that were checked.
    pub evaluated: usize,
    /// Made when somebody asks for it: most pods get a node without a list of all.
    list: OnceLock<Vec<NodeId>>,
}

impl Feasible {
    fn new(nodes: NodeSet, evaluated: usize) -> Self {
        Self { nodes, evaluated, list: OnceLock::new() }
    }

    /// Returns the nodes, ordered by id.
    pub fn list(&self) -> &[NodeId] {
        self.list.get_or_init(|| {
            let mut list = Vec::new();
            self.nodes.list_into(&mut list);
            list
        })
    }

    /// Returns the node if it is the only one.
    pub fn only(&self) -> Option<NodeId> {
        let mut nodes = self.nodes.iter();
        nodes.next().filter(|_| nodes.next().is_none())
    }
}

impl FromIterator<NodeId> for Feasible {
    fn from_iter<I: IntoIterator<Item = NodeId>>(ids: I) -> Self {
        let nodes: NodeSet = ids.into_iter().collect();
        let evaluated = nodes.len();
        Self::new(nodes, evaluated)
    }
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
    fn explain(
        &self,
        profile: &Profile,
        pod: &PodInfo,
        cluster: &Cluster,
        views: &mut Views,
        diagnosis: &mut Diagnosis,
    ) {
        if let Some(only) = self.candidates(cluster) {
            for id in only.iter() {
                if let Err(refusal) = self.check(cluster.node(id)) {
                    diagnosis.refuse(id, refusal);
                }
            }
        } else {
            let mut refusals = views.explain(profile, &pod.spec, cluster).refusals.clone();
            if !self.is_local() {
                cluster.nodes().for_each(|node| self.explain_more(node, &mut refusals));
            }
            diagnosis.refuse_each(refusals);
        }
        if self.only.is_some() {
            let plugins = self.restricting.join(" ");
            let reason = format!("node(s) didn't satisfy plugin(s) [{plugins}]");
            diagnosis.others = Some(Refusal::unresolvable(reason));
            diagnosis.plugins.extend(&self.restricting);
        }
    }

    /// Sets why a node does not pass, if a filter whose answers are not cached refuses it before the cached refusal.
    fn explain_more(&self, node: &Node, refusals: &mut Refusals) {
        let cached = refusals.get(node.id).map(|refusal| refusal.plugin);
        let before = self.filters.iter().take_while(|one| !one.is_cached || Some(one.plugin) != cached);
        if let Some(one) = before.filter(|one| !one.is_cached).find(|one| !one.filter.passes(node)) {
            refusals.insert(node.id, one.filter.refusal(node).by(one.plugin));
        }
    }
}

/// Returns the nodes that a pod can run on. `start` is the index of the node where sampling begins; `meter` gets the times of
/// the extension points PreFilter and Filter.
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
    meter: &mut Meter,
) -> Result<Feasible, Box<Diagnosis>> {
    for plugin in &profile.plugins {
        plugin.register(pod, cluster);
    }
    if nominated_first == NominatedFirst::Yes
        && let Some(id) = fitting_nominated(profile, pod, cluster)
    {
        meter.ended(Stage::Filter, Status::Success);
        return Ok(Feasible::from_iter([id]));
    }
    let (nodes, checked) = passing(profile, pod, cluster, views, meter)?;
    let feasible = sample(profile.sampling, nodes, checked, cluster.len(), start);
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
    for (id, _) in refused_with_nominated(profile, pod, cluster, contested(pod, cluster, &nodes)) {
        nodes.remove(id);
    }
    if nodes.is_empty() {
        explain(profile, pod, cluster, views, &mut diagnosis);
        let status = if diagnosis.is_error() { Status::Refused(Code::Error) } else { Status::Success };
        meter.ended(Stage::Filter, status);
        return Err(diagnosis);
    }
    Ok((nodes, checked))
}

/// Records why nodes are not feasible for a pod. A node for which pods are nominated is judged with them first.
fn explain(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    views: &mut Views,
    diagnosis: &mut Diagnosis,
) {
    let candidates = match Attempt::prepare(profile, pod, cluster) {
        Ok(attempt) => {
            attempt.explain(profile, pod, cluster, views, diagnosis);
            attempt.candidates(cluster).unwrap_or_else(|| cluster.known().clone())
        }
        Err(refusal) => return diagnosis.refuse_all(refusal),
    };
    for (id, refusal) in refused_with_nominated(profile, pod, cluster, contested(pod, cluster, &candidates)) {
        diagnosis.refuse(id, refusal);
    }
}

/// Returns why each node that is not feasible for a pod is not.
pub fn diagnose(profile: &Profile, pod: &PodInfo, cluster: &mut Cluster) -> Diagnosis {
    for plugin in &profile.plugins {
        plugin.register(pod, cluster);
    }
    let mut diagnosis = Diagnosis { nodes: cluster.len(), ..Diagnosis::default() };
    explain(profile, pod, cluster, &mut Views::default(), &mut diagnosis);
    diagnosis
}

/// Returns the node that the pod was nominated for, if it is feasible.
fn fitting_nominated(profile: &Profile, pod: &PodInfo, cluster: &mut Cluster) -> Option<NodeId> {
    let id = cluster.named(pod.nominated.as_deref()?)?.id;
    let passes = Attempt::prepare(profile, pod, cluster).ok()?.check(cluster.node(id)).is_ok();
    (passes && refused_with_nominated(profile, pod, cluster, vec![id]).is_empty()).then_some(id)
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
fn yields(pod: &PodInfo, nominated: &PodInfo) -> bool {
    nominated.spec.priority >= pod.spec.priority && nominated.uid != pod.uid
}

/// Checks nodes with the nominated pods on them that the pod has to leave room for; returns those that do not pass so.
fn refused_with_nominated(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    ids: Vec<NodeId>,
) -> Vec<(NodeId, Refusal)> {
    if ids.is_empty() {
        return Vec::new();
    }
    match Attempt::prepare(profile, pod, cluster) {
        Ok(attempt) if attempt.is_local() => {
            let check = |id: NodeId| {
                let mut node = cluster.node(id).outline();
                rivals(pod, cluster, id).for_each(|rival| node.count_pod(rival));
                Some((id, attempt.check(&node).err()?))
            };
            return ids.into_iter().filter_map(check).collect();
        }
        Ok(_) => {}
        Err(refusal) => {
            let has_rivals = |id: &NodeId| rivals(pod, cluster, *id).next().is_some();
            return ids.into_iter().filter(has_rivals).map(|id| (id, refusal.clone())).collect();
        }
    }
    let check = |id: NodeId| Some((id, fits_with_rivals(profile, pod, cluster, id).err()?));
    ids.into_iter().filter_map(check).collect()
}

/// Returns the pods that are nominated for a node and that a pod has to leave room for.
pub(crate) fn rivals<'a>(
    pod: &'a PodInfo,
    cluster: &'a Cluster,
    id: NodeId,
) -> impl Iterator<Item = &'a Arc<PodInfo>> {
    cluster.nominated.on(&cluster.node(id).name).iter().filter(|other| yields(pod, other))
}

/// Checks a node with the nominated pods on it, in a trial.
fn fits_with_rivals(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    id: NodeId,
) -> Result<(), Refusal> {
    let rivals: Vec<_> = rivals(pod, cluster, id).cloned().collect();
    if rivals.is_empty() {
        return Ok(());
    }
    let mut trial = cluster.trial();
    for rival in rivals.iter().filter(|rival| trial.place_of(rival).is_none()).collect::<Vec<_>>() {
        trial.add(rival, id);
    }
    let attempt = Attempt::prepare(profile, pod, &trial)?;
    attempt.check(trial.node(id))
}

/// Returns all feasible nodes, or the first of them from a node on.
fn sample(sampling: Sampling, feasible: NodeSet, checked: usize, all: usize, start: usize) -> Feasible {
    let limit = wanted(sampling, all);
    let found = Feasible::new(feasible, checked);
    if limit == usize::MAX || found.list().len() <= limit {
        return found;
    }
    let first = found.list().partition_point(|id| id.index() < start);
    found.list().iter().cycle().skip(first).take(limit).copied().collect()
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
