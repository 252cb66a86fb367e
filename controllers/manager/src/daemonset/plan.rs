//! Decides on which nodes pods are missing, and which pods have failed, are in excess or are out of place.

use std::sync::Arc;
use std::time::Duration;

use super::backoff::Backoff;
use super::placement::Fit;
use super::view::{Place, View};
use crate::meta::{is_deleted, name, namespace};
use crate::pods::Pod;

/// Changes of the set of pods.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Nodes for each of which a pod is created.
    pub create: Vec<String>,
    pub delete: Vec<Arc<Pod>>,
    pub reports: Vec<Report>,
    /// Time after which a pod that has failed may be deleted.
    pub again: Option<Duration>,
}

/// A pod that has ended and is replaced.
#[derive(Debug, PartialEq)]
pub(super) enum Report {
    Failed(String),
    Succeeded(String),
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.create.is_empty() && self.delete.is_empty()
    }

    fn delete(&mut self, pods: &[&Arc<Pod>]) {
        self.delete.extend(pods.iter().map(|pod| Arc::clone(pod)));
    }
}

/// Returns what is to be done regardless of updates. `backoff` decides whether a failed pod is deleted already.
pub(super) fn plan(view: &View<'_>, backoff: &mut Backoff) -> Plan {
    let mut plan = Plan::default();
    for place in &view.places {
        if let Some(fit) = place.fit {
            plan_node(view, place, fit, backoff, &mut plan);
        }
    }
    // Without its node, a pod that is not bound is no business of the pod garbage collector, and stays pending.
    let lost = view.places.iter().filter(|place| place.fit.is_none()).flat_map(|place| &place.pods);
    let unbound = lost.filter(|pod| pod.node_name().is_empty() && !is_deleted(&pod.metadata));
    plan.delete.extend(unbound.map(|pod| Arc::clone(pod)));
    plan
}

fn plan_node(view: &View<'_>, place: &Place<'_>, fit: Fit, backoff: &mut Backoff, plan: &mut Plan) {
    let Place { node, pods, .. } = place;
    let staying: Vec<_> = pods.iter().copied().filter(|pod| !is_deleted(&pod.metadata)).collect();
    if !fit.keep {
        return plan.delete(&staying);
    }
    if pods.is_empty() {
        if fit.run {
            plan.create.push((*node).to_owned());
        }
        return;
    }
    let (running, held) = clear_ended(view, node, &staying, backoff, plan);
    if !view.allows_surge() {
        // The others have been there for a shorter time. A new pod is created only once the node has none, not even a
        // terminating one.
        return plan.delete(running.get(1..).unwrap_or_default());
    }
    match running.as_slice() {
        // A pod that has failed keeps its place as long as it is held back, or pods would be created without end.
        [] if fit.run && !held => plan.create.push((*node).to_owned()),
        [] | [_] => {}
        _ => clear_surge(view, &running, plan),
    }
}

/// Deletes the pods that have ended; returns those that have not, and `true` if a failed one is not deleted yet.
fn clear_ended<'a>(
    view: &View<'_>,
    node: &str,
    staying: &[&'a Arc<Pod>],
    backoff: &mut Backoff,
    plan: &mut Plan,
) -> (Vec<&'a Arc<Pod>>, bool) {
    let (mut running, mut held) = (Vec::new(), false);
    for &pod in staying {
        let full = || format!("{}/{} on node {node}", namespace(&pod.metadata), name(&pod.metadata));
        match pod.phase() {
            "Failed" => {
                if let Some(wait) = backoff.hold(node, view.now) {
                    held = true;
                    plan.again = plan.again.into_iter().chain([wait]).min();
                    continue;
                }
                plan.reports
                    .push(Report::Failed(format!("Found failed daemon pod {}, will try to kill it", full())));
                plan.delete(&[pod]);
            }
            "Succeeded" => {
                plan.reports.push(Report::Succeeded(format!(
                    "Found succeeded daemon pod {}, will try to delete it",
                    full()
                )));
                plan.delete(&[pod]);
            }
            _ => running.push(pod),
        }
    }
    (running, held)
}

/// Keeps one new pod and, as long as it is ready and the new one is not available yet, one old pod. Of several of a
/// kind, one that is available stays, or a second change of the template would leave the node without.
fn clear_surge(view: &View<'_>, running: &[&Arc<Pod>], plan: &mut Plan) {
    let mut running = running.to_vec();
    running.sort_by_key(|pod| (!view.is_available(pod), !pod.is_ready()));
    let (new, old): (Vec<_>, Vec<_>) = running.into_iter().partition(|pod| view.current.has_hash(pod));
    plan.delete(new.get(1..).unwrap_or_default());
    plan.delete(old.get(1..).unwrap_or_default());
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && (!old.is_ready() || view.is_available(new))
    {
        plan.delete(&[old]);
    }
}
