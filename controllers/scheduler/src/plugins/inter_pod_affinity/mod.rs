//! `InterPodAffinity`: pods run near pods that they have affinity to, and away from those that they have anti-affinity to
//! or that have it to them.

use crate::cluster::Cluster;
use crate::cluster::terms::{Clause, CountKey, Rule};
use crate::framework::{Actions, Change, Event, Feasible, Hint, Plugin, PreFilter, Resource, Scores};
use crate::pod::{PodInfo, PodTerm};

mod filter;
mod hint;
mod score;
#[cfg(test)]
mod tests;

/// Arguments of the plugin (`InterPodAffinityArgs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterPodAffinityArgs {
    /// Weight of required affinity terms of placed pods in scores, from 0 to 100.
    pub hard_pod_affinity_weight: i32,
    /// Pods without preferred terms are not scored by the terms of others.
    pub ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for InterPodAffinityArgs {
    fn default() -> Self {
        Self { hard_pod_affinity_weight: 1, ignore_preferred_terms_of_existing_pods: false }
    }
}

/// The plugin `InterPodAffinity`.
#[derive(Default)]
pub struct InterPodAffinity {
    args: InterPodAffinityArgs,
}

impl InterPodAffinity {
    pub fn new(args: InterPodAffinityArgs) -> Self {
        Self { args }
    }
}

/// Returns which pods an incoming pod's term selects.
fn clause(term: &PodTerm, pod: &PodInfo, cluster: &Cluster) -> Clause {
    let namespaces = cluster.terms.resolve(&term.namespaces, pod.shared_namespace());
    Clause { namespaces, selector: term.selector.clone() }
}

/// Returns the key for counting pods that all of these terms of an incoming pod select.
fn count_key<'a>(terms: impl IntoIterator<Item = &'a PodTerm>, pod: &PodInfo, cluster: &Cluster) -> CountKey {
    let clauses = terms.into_iter().map(|term| clause(term, pod, cluster)).collect();
    CountKey { clauses, rule: Rule::All }
}

/// Returns the preferred terms of a pod with their weights, which are negative for anti-affinity.
fn preferred(pod: &PodInfo) -> impl Iterator<Item = (i32, &PodTerm)> {
    let with = pod.spec.affinity.preferred.iter().map(|(weight, term)| (*weight, term));
    with.chain(pod.spec.anti_affinity.preferred.iter().map(|(weight, term)| (-*weight, term)))
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }

    fn register(&self, pod: &PodInfo, cluster: &mut Cluster) {
        let (with, without) = (&pod.spec.affinity.required, &pod.spec.anti_affinity.required);
        let alone: Vec<&PodTerm> = without.iter().chain(preferred(pod).map(|(_, term)| term)).collect();
        for term in alone.iter().copied().chain(with) {
            cluster.terms.register_key(&term.key);
            cluster.terms.register_namespaces(&term.namespaces);
        }
        if !with.is_empty() {
            let key = count_key(with, pod, cluster);
            cluster.terms.register_count(&key);
        }
        for term in alone {
            let key = count_key([term], pod, cluster);
            cluster.terms.register_count(&key);
        }
        cluster.terms.register_exposure(pod);
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, cluster: &'a Cluster) -> PreFilter<'a> {
        let exposure = cluster.terms.exposure(pod);
        let has_own = !pod.spec.affinity.required.is_empty() || !pod.spec.anti_affinity.required.is_empty();
        // Terms that only come in a trial are not seen, as kube-scheduler skips the plugin before the trial.
        let before = exposure.as_ref().map_or(0, |(exposure, tried)| exposure.anti() - tried);
        if !has_own && before == 0 {
            return PreFilter::Skip;
        }
        let filter = filter::Affinity::prepare(pod, cluster, exposure.map(|(exposure, _)| exposure));
        PreFilter::Filter { only: None, filter: Box::new(filter) }
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, feasible: &Feasible) -> Option<Scores> {
        if self.args.ignore_preferred_terms_of_existing_pods && preferred(pod).next().is_none() {
            return None;
        }
        score::score(pod, cluster, self.args.hard_pod_affinity_weight, feasible).map(Scores::Each)
    }

    fn events(&self) -> Vec<Event> {
        let pod = Actions::ADD | Actions::POD_LABEL | Actions::DELETE;
        vec![
            Event::new(Resource::AssignedPod, pod),
            Event::new(Resource::UnscheduledPod, pod),
            Event::new(Resource::Node, Actions::ADD | Actions::NODE_LABEL),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, cluster: &Cluster) -> Hint {
        match change {
            Change::Pod(versions) => hint::pod(pod, *versions, cluster),
            Change::Node(versions) => hint::node(pod, *versions),
            _ => Hint::Queue,
        }
    }
}
