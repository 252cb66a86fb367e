//! Candidates for a preemption as an extender has answered, checked against the cluster as it is by then.

use super::Candidate;
use super::probe::Probe;
use crate::cluster::Cluster;
use crate::framework::{Attempt, Profile};
use crate::pod::PodInfo;

/// A node with the victims that an extender names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    pub node: String,
    /// By UID, the most important one first.
    pub victims: Vec<String>,
    /// Number of victims whose removal a PodDisruptionBudget does not allow.
    pub violations: i64,
}

impl Answered {
    /// Returns the candidate that is meant.
    ///
    /// # Errors
    ///
    /// Fails if the node does not exist, or if a victim is not on it; `extender` is named then.
    pub fn resolve(&self, cluster: &Cluster, extender: &str) -> Result<Candidate, String> {
        let name = self.node.as_str();
        let node = cluster.named(name).ok_or_else(|| format!("nodeinfo not found for node name {name:?}"))?;
        let victim = |uid: &String| {
            let found = node.pods.iter().find(|pod| pod.uid == *uid.as_str()).cloned();
            found.ok_or_else(|| {
                format!(
                    "extender: {extender} claims to preempt pod (UID: &{{{uid}}}) on node: {name}, \
                     but the pod is not found on that node"
                )
            })
        };
        let victims = self.victims.iter().map(victim).collect::<Result<_, _>>()?;
        let violations = usize::try_from(self.violations).unwrap_or_default();
        Ok(Candidate { node: node.id, victims, violations })
    }
}

/// Returns the candidates whose preemption makes room for a pod in the cluster as it is, without victims that have gone.
pub fn still_helpful(
    profile: &Profile,
    pod: &PodInfo,
    cluster: &mut Cluster,
    candidates: Vec<Candidate>,
) -> Vec<Candidate> {
    for plugin in &profile.plugins {
        plugin.register(pod, cluster);
    }
    let current = |mut candidate: Candidate| {
        candidate.victims.retain(|victim| cluster.place_of(victim) == Some(candidate.node));
        (!candidate.victims.is_empty() && cluster.known().contains(candidate.node)).then_some(candidate)
    };
    let mut candidates: Vec<Candidate> = candidates.into_iter().filter_map(current).collect();
    if let Ok(attempt) = Attempt::prepare(profile, pod, cluster)
        && attempt.is_local()
    {
        let probe = |candidate: &Candidate| Probe::local(&attempt, pod, cluster, candidate.node);
        candidates.retain(|candidate| helps(candidate, probe(candidate)));
        return candidates;
    }
    candidates.retain(|candidate| helps(candidate, Probe::trial(profile, pod, cluster, candidate.node)));
    candidates
}

/// Returns `true` if the pod fits without the victims.
fn helps(candidate: &Candidate, mut probe: Probe<'_>) -> bool {
    candidate.victims.iter().for_each(|victim| probe.remove(victim));
    probe.fits().is_ok()
}
