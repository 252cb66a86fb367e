//! The status of a DaemonSet.

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSetStatus;

use super::view::View;
use crate::pods::{available_at, until};

/// Returns the status that follows from nodes and pods. On each node, the first pod counts.
pub(super) fn status(view: &View<'_>) -> DaemonSetStatus {
    let (mut scheduled, mut misplaced, mut ready, mut updated, mut available) = (0, 0, 0, 0, 0);
    for place in view.places.iter().filter(|place| place.fit.is_some()) {
        let Some(pod) = place.pods.first() else { continue };
        if !place.is_wanted() {
            misplaced += 1;
            continue;
        }
        scheduled += 1;
        ready += i32::from(pod.is_ready());
        available += i32::from(view.is_available(pod));
        updated += i32::from(view.current.is_of(pod));
    }
    let desired = i32::try_from(view.desired).unwrap_or(i32::MAX);
    // Zero is represented as absent, as in Kubernetes.
    let some = |count: i32| (count != 0).then_some(count);
    DaemonSetStatus {
        desired_number_scheduled: desired,
        current_number_scheduled: scheduled,
        number_misscheduled: misplaced,
        number_ready: ready,
        updated_number_scheduled: some(updated),
        number_available: some(available),
        number_unavailable: some(desired - available),
        observed_generation: view.set.metadata.generation,
        ..view.set.status.clone().unwrap_or_default()
    }
}

/// Returns when the next ready pod will have been ready long enough to count as available.
pub(super) fn next_available(view: &View<'_>) -> Option<Duration> {
    let min_ready = view.min_ready_seconds();
    let pods = view.places.iter().flat_map(|place| &place.pods);
    let next = pods.filter_map(|pod| available_at(pod, min_ready)).filter(|at| *at > view.now).min()?;
    Some(until(next, view.now))
}
