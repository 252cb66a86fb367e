//! Preemption: which pods of lower priority to remove so that a pod fits (DefaultPreemption of kube-scheduler).
//!
//! Nodes are tried out without a copy of the cluster: on a copy of the node alone if the answers of all filters depend on
//! the node, else in a [`Trial`] that is undone.

mod answered;
mod choice;
mod post_filter;
mod probe;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use self::answered::{Answered, still_helpful};
pub use self::choice::pick;
pub use self::post_filter::{post_filter, post_filter_by};
use self::probe::Probe;
use crate::cluster::{Cluster, NodeId};
use crate::framework::{Attempt, Code, Diagnosis, PreemptionArgs, Profile, Refusal, Refusals};
use crate::pod::PodInfo;

/// The pods to remove from a node so that a pod fits there.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub node: NodeId,
    /// The most important one first.
    pub victims: Vec<Arc<PodInfo>>,
    /// Number of victims whose removal a PodDisruptionBudget does not allow.
    pub violations: usize,
}

/// Result of the search for pods to preempt.
#[derive(Clone, Debug)]
pub enum Found {
    /// The pod may not preempt others now; why.
    NotEligible(&'static str),
    /// No removal helps; why, as kube-scheduler says it.
    Nothing(String),
    /// The search has failed; why.
    Failed(String),
    Candidate(Candidate),
}

impl Found {
    /// Returns what is added to the message of the pod's failure; `None` if pods are preempted.
    pub fn message(&self) -> Option<String> {
        match self {
            Self::NotEligible(why) => Some(format!("preemption: {why}")),
            Self::Nothing(why) | Self::Failed(why) => Some(format!("preemption: {why}")),
            Self::Candidate(_) => None,
        }
    }
}

/// Looks for pods to preempt for a pod that fits nowhere, as `diagnosis` says. `random` chooses where the search begins, and
/// `choose` gets the candidates, of which there is at least one.
pub fn preempt(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    diagnosis: &Diagnosis,
    (args, random): (PreemptionArgs, u64),
    choose: &mut dyn FnMut(Vec<Candidate>) -> Option<Candidate>,
) -> Found {
    if let Some(why) = ineligible(pod, cluster, diagnosis) {
        return Found::NotEligible(why);
    }
    let helpful = helpful_nodes(cluster, diagnosis);
    let wanted = wanted(args, helpful.len());
    let start = usize::try_from(random % helpful.len().max(1) as u64).unwrap_or_default();
    let (candidates, refusals) = candidates(profile, pod, cluster, &helpful, start, wanted);
    let chosen = if candidates.is_empty() { None } else { choose(candidates) };
    match chosen {
        Some(best) => Found::Candidate(best),
        None => {
            errors(&refusals).map_or_else(|| Found::Nothing(nothing(cluster.len(), refusals)), Found::Failed)
        }
    }
}

/// Returns the errors among refusals as one text; `None` if there are none.
fn errors(refusals: &Refusals) -> Option<String> {
    let errors =
        refusals.distinct().map(|(refusal, _)| refusal).filter(|refusal| refusal.code == Code::Error);
    let text = |error: &Refusal| match error.plugin {
        "" => error.message(),
        plugin => format!("running {plugin:?} filter plugin: {}", error.message()),
    };
    let texts: BTreeSet<String> = errors.map(text).collect();
    let joined = texts.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    match texts.len() {
        0 => None,
        1 => Some(joined),
        _ => Some(format!("[{joined}]")),
    }
}

/// Returns the candidates among nodes, beginning with the one at `start`, until `wanted` are found of which one violates no
/// budget; and why the other nodes that were tried are none.
pub fn candidates(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    nodes: &[NodeId],
    start: usize,
    wanted: usize,
) -> (Vec<Candidate>, Refusals) {
    let nodes = nodes.iter().cycle().skip(start).take(nodes.len()).copied();
    if let Ok(attempt) = Attempt::prepare(profile, pod, cluster)
        && attempt.is_local()
    {
        let try_out = |id| {
            let potential = Potential::on(pod, cluster, id)?;
            victims_on(potential, Probe::local(&attempt, pod, cluster, id))
        };
        return search(nodes, wanted, try_out);
    }
    let try_out = |id| {
        let potential = Potential::on(pod, cluster, id)?;
        victims_on(potential, Probe::trial(profile, pod, cluster, id))
    };
    search(nodes, wanted, try_out)
}

/// Tries out nodes until `wanted` candidates are found of which one violates no budget. Of the candidates that violate one, the
/// first `wanted` are kept.
fn search(
    nodes: impl Iterator<Item = NodeId>,
    wanted: usize,
    mut try_out: impl FnMut(NodeId) -> Result<Candidate, Refusal>,
) -> (Vec<Candidate>, Refusals) {
    let (mut found, mut refusals) = (Vec::new(), Refusals::default());
    let mut violating = 0;
    for id in nodes {
        match try_out(id) {
            Ok(candidate) if candidate.violations == 0 => found.push(candidate),
            Ok(candidate) if violating < wanted => {
                violating += 1;
                found.push(candidate);
            }
            Ok(_) => {}
            Err(refusal) => refusals.insert(id, refusal),
        }
        if found.len() > violating && found.len() >= wanted {
            break;
        }
    }
    (found, refusals)
}

/// Returns why a pod must not preempt others now (`PodEligibleToPreemptOthers`).
fn ineligible(pod: &PodInfo, cluster: &Cluster, diagnosis: &Diagnosis) -> Option<&'static str> {
    if pod.spec.never_preempts {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let node = cluster.named(pod.nominated.as_deref()?)?;
    let is_hopeless = diagnosis.refusal_of(node.id).is_some_and(|why| why.code == Code::Unresolvable);
    let leaves = |other: &Arc<PodInfo>| {
        other.spec.priority < pod.spec.priority && other.is_terminating() && other.is_preempted
    };
    (!is_hopeless && node.pods.iter().any(leaves))
        .then_some("not eligible due to a terminating pod on the nominated node.")
}

/// Returns the nodes where the removal of pods may help.
pub fn helpful_nodes(cluster: &Cluster, diagnosis: &Diagnosis) -> Vec<NodeId> {
    let may_help = |id: &NodeId| diagnosis.refusal_of(*id).is_some_and(|why| why.code == Code::Unschedulable);
    cluster.known().iter().filter(may_help).collect()
}

fn wanted(args: PreemptionArgs, nodes: usize) -> usize {
    let percentage = nodes * args.min_candidate_nodes_percentage as usize / 100;
    percentage.max(args.min_candidate_nodes_absolute as usize).min(nodes)
}

fn nothing(nodes: usize, refusals: Refusals) -> String {
    let others = Some(Refusal::unresolvable("Preemption is not helpful for scheduling"));
    Diagnosis { nodes, refusals, others, ..Diagnosis::default() }.to_string()
}

/// The pods of a node that may be removed, the most important ones first.
struct Potential {
    node: NodeId,
    name: Arc<str>,
    /// Those that a budget protects.
    protected: Vec<Arc<PodInfo>>,
    free: Vec<Arc<PodInfo>>,
}

impl Potential {
    fn on(pod: &PodInfo, cluster: &Cluster, id: NodeId) -> Result<Self, Refusal> {
        let below = |other: &&Arc<PodInfo>| other.spec.priority < pod.spec.priority;
        let mut all: Vec<Arc<PodInfo>> = cluster.node(id).pods.iter().filter(below).cloned().collect();
        if all.is_empty() {
            return Err(Refusal::unresolvable("No preemption victims found for incoming pod"));
        }
        all.sort_by_key(|pod| choice::importance(pod));
        let (protected, free) = cluster.budgets.split(all);
        Ok(Self { node: id, name: Arc::clone(&cluster.node(id).name), protected, free })
    }
}

/// Returns the fewest, least important pods whose removal makes a pod fit on a node. Pods that a budget protects are
/// spared first, then the most important ones.
fn victims_on(potential: Potential, mut probe: Probe<'_>) -> Result<Candidate, Refusal> {
    let Potential { node, name, protected, free } = potential;
    let mixed = !protected.is_empty() && !free.is_empty();
    protected.iter().chain(&free).for_each(|other| probe.remove(other));
    probe.fits()?;
    let mut victims = Vec::new();
    let mut violations = 0;
    let all = protected.into_iter().map(|pod| (pod, true)).chain(free.into_iter().map(|pod| (pod, false)));
    for (other, is_protected) in all {
        probe.add(&other);
        if probe.fits().is_err() {
            probe.remove(&other);
            victims.push(other);
            violations += usize::from(is_protected);
        }
    }
    if victims.is_empty() {
        return Err(Refusal::new(Code::Error, format!("expected at least one victim pod on node {name:?}")));
    }
    if mixed {
        victims.sort_by_key(|pod| choice::importance(pod));
    }
    Ok(Candidate { node, victims, violations })
}
