//! Changes that may make a pod schedulable which terms have refused.

use super::clause;
use crate::cluster::{Cluster, NodeFacts};
use crate::framework::{Hint, Versions};
use crate::pod::{PodInfo, PodTerm};

fn queue_if(helps: bool) -> Hint {
    if helps { Hint::Queue } else { Hint::Skip }
}

/// Returns `true` if there are terms and all of them select a pod.
fn select(terms: &[PodTerm], owner: &PodInfo, other: &PodInfo, cluster: &Cluster) -> bool {
    let selects = |term| clause(term, owner, cluster).matches(other.namespace(), other.labels());
    !terms.is_empty() && terms.iter().all(selects)
}

/// Returns whether a change of a pod may help. Namespaces that terms select by labels are resolved, which kube-scheduler
/// leaves out: it leaves the pods of such terms waiting longer than they need.
pub fn pod(pod: &PodInfo, versions: Versions<'_, PodInfo>, cluster: &Cluster) -> Hint {
    let (old, new) = (versions.old, versions.new);
    if old.is_some() && new.is_some_and(|new| new.uid == pod.uid) {
        return Hint::Queue;
    }
    let has_node = |other: &PodInfo| other.node.is_some() || other.nominated.is_some();
    if [old, new].into_iter().flatten().any(|other| !has_node(other)) {
        return Hint::Skip;
    }
    let is_near = |other| select(&pod.spec.affinity.required, pod, other, cluster);
    let is_away = |other| select(&pod.spec.anti_affinity.required, pod, other, cluster);
    match (old, new) {
        (Some(old), Some(new)) => {
            queue_if((!is_near(old) && is_near(new)) || (is_away(old) && !is_away(new)))
        }
        (None, Some(new)) => queue_if(is_near(new)),
        (Some(old), None) => {
            queue_if(is_away(old) || select(&old.spec.anti_affinity.required, old, pod, cluster))
        }
        (None, None) => Hint::Queue,
    }
}

/// Returns whether a change of a node may help.
pub fn node(pod: &PodInfo, versions: Versions<'_, NodeFacts>) -> Hint {
    let Some(new) = versions.new else { return Hint::Skip };
    let value = |term: &PodTerm| new.labels.get(&*term.key);
    let was = |term: &PodTerm| versions.old.and_then(|old| old.labels.get(&*term.key));
    let (with, without) = (&pod.spec.affinity.required, &pod.spec.anti_affinity.required);
    if versions.old.is_none() {
        return queue_if(!without.is_empty() || with.iter().any(|term| value(term).is_some()));
    }
    let comes_near = |term: &PodTerm| value(term).is_some() && value(term) != was(term);
    let goes_away = |term: &PodTerm| was(term).is_some() && value(term) != was(term);
    queue_if(with.iter().any(comes_near) || without.iter().any(goes_away))
}
