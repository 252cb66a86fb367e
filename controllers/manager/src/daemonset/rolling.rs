//! Decides which pods a rolling update replaces next. It runs only when there is nothing else to do.

use std::sync::Arc;

use super::placement::Fit;
use super::plan::Plan;
use super::view::{Place, View};
use crate::meta::is_deleted;
use crate::pods::Pod;

/// The pods for a node that are not terminating.
#[derive(Default)]
struct Pair<'a> {
    new: Option<&'a Arc<Pod>>,
    old: Option<&'a Arc<Pod>>,
}

/// Returns the new and the old pod for a node; `None` if there are several of a kind, which [`super::plan`] mends.
fn pair<'a>(view: &View<'_>, pods: &[&'a Arc<Pod>]) -> Option<Pair<'a>> {
    let mut pair = Pair::default();
    for &pod in pods.iter().filter(|pod| !is_deleted(&pod.metadata)) {
        let place = if view.current.is_of(pod) { &mut pair.new } else { &mut pair.old };
        if place.replace(pod).is_some() {
            return None;
        }
    }
    Some(pair)
}

/// Returns the next step of the update, node by node in the order of their names.
pub(super) fn plan(view: &View<'_>) -> Plan {
    match view.bounds() {
        (0, max_unavailable) => replace(view, max_unavailable),
        (max_surge, _) => surge(view, max_surge),
    }
}

/// Deletes old pods, so that new ones are created in their place: those that are unavailable, and as many others as
/// the bound allows. Each node counts on which a pod should be available but none is.
fn replace(view: &View<'_>, max_unavailable: usize) -> Plan {
    let mut plan = Plan::default();
    let mut candidates = Vec::new();
    let mut unavailable = 0;
    for place in &view.places {
        if place.pods.is_empty() {
            unavailable += usize::from(place.is_wanted());
            continue;
        }
        match pair(view, &place.pods) {
            Some(Pair { new: Some(new), old: None }) if view.is_available(new) => {}
            Some(Pair { new: None, old: Some(old) }) if view.is_available(old) => {
                candidates.push(Arc::clone(old))
            }
            Some(Pair { new: None, old: Some(old) }) => {
                plan.delete.push(Arc::clone(old));
                unavailable += 1;
            }
            _ => unavailable += 1,
        }
    }
    candidates.truncate(max_unavailable.saturating_sub(unavailable));
    plan.delete.append(&mut candidates);
    plan
}

/// Creates new pods beside old ones: beside those that are unavailable, and as many others as the bound allows. Deletes
/// an old pod when the new one on its node is available.
///
/// On a node that a pod should no longer be created on, the old pod stays until enough others are available, because
/// a surge promises that none is missing.
fn surge(view: &View<'_>, max_surge: usize) -> Plan {
    let mut plan = Plan::default();
    let (mut candidates, mut displaced) = (Vec::new(), Vec::new());
    let (mut surging, mut available) = (0, 0_usize);
    for Place { node, fit, pods } in &view.places {
        let Some(Fit { run, .. }) = fit else { continue };
        let Some(Pair { new, old }) = pair(view, pods) else {
            surging += 1;
            continue;
        };
        let counts = old.or(new).is_some_and(|pod| view.is_available(pod));
        available += usize::from(counts);
        match (old, new) {
            (None, _) => {}
            (Some(old), Some(new)) if view.is_available(new) => plan.delete.push(Arc::clone(old)),
            (Some(_), Some(_)) => surging += 1,
            (Some(old), None) => match (run, view.is_available(old)) {
                (true, true) => candidates.push((*node).to_owned()),
                (true, false) => plan.create.push((*node).to_owned()),
                (false, true) => displaced.push(Arc::clone(old)),
                (false, false) => plan.delete.push(Arc::clone(old)),
            },
        }
    }
    displaced.truncate(available.saturating_sub(view.desired));
    plan.delete.append(&mut displaced);
    candidates.truncate(max_surge.saturating_sub(surging));
    plan.create.append(&mut candidates);
    plan
}
