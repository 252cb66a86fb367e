//! Changes that may make a pod schedulable which the constraints have refused.

use super::Chosen;
use crate::cluster::NodeFacts;
use crate::framework::{Hint, Versions};
use crate::pod::PodInfo;

fn queue_if(helps: bool) -> Hint {
    if helps { Hint::Queue } else { Hint::Skip }
}

/// Returns `true` if a pod counts for the spreading of another, or is it.
fn is_involved(other: &PodInfo, pod: &PodInfo) -> bool {
    let has_node = other.node.is_some() || other.nominated.is_some();
    other.uid == pod.uid || (has_node && other.namespace() == pod.namespace())
}

/// Returns whether a change of a pod may help.
pub fn pod(pod: &PodInfo, versions: Versions<'_, PodInfo>, constraints: &[Chosen<'_>]) -> Hint {
    if [versions.old, versions.new].into_iter().flatten().any(|other| !is_involved(other, pod)) {
        return Hint::Skip;
    }
    let matches = |chosen: &Chosen<'_>, other: &PodInfo| chosen.selector.matches(other.labels());
    match (versions.old, versions.new) {
        (Some(old), Some(new)) => {
            let tolerates_more = new.uid == pod.uid
                && old.spec.source.tolerations != new.spec.source.tolerations
                && constraints.iter().any(|chosen| chosen.constraint.honors_taints);
            let changes = |chosen: &Chosen<'_>| matches(chosen, old) != matches(chosen, new);
            queue_if(tolerates_more || constraints.iter().any(changes))
        }
        (Some(one), None) | (None, Some(one)) => {
            queue_if(constraints.iter().any(|chosen| matches(chosen, one)))
        }
        (None, None) => Hint::Queue,
    }
}

/// Returns whether a change of a node may help.
pub fn node(versions: Versions<'_, NodeFacts>, constraints: &[Chosen<'_>]) -> Hint {
    let value = |chosen: &Chosen<'_>, node: &NodeFacts| node.labels.get(&*chosen.constraint.key).cloned();
    let has_all = |node: &NodeFacts| constraints.iter().all(|chosen| value(chosen, node).is_some());
    match (versions.old, versions.new) {
        (Some(old), Some(new)) => {
            let moves = |chosen: &Chosen<'_>| value(chosen, old) != value(chosen, new);
            let differs = constraints.iter().any(moves) || old.taints != new.taints;
            queue_if(has_all(old) != has_all(new) || (has_all(new) && differs))
        }
        (Some(one), None) | (None, Some(one)) => queue_if(has_all(one)),
        (None, None) => Hint::Queue,
    }
}
