//! The status of a StatefulSet.

use k8s_openapi::api::apps::v1::StatefulSetStatus;

use super::identity::revision;
use super::plan::{Input, Layout, is_running, min_ready_seconds, replicas, update_type};
use crate::meta::is_deleted;
use crate::pods::{Pod, is_available};

/// Returns the status that follows from the pods. Conditions stay as they are: this controller sets none.
pub(super) fn status(input: &Input<'_>, layout: &Layout<'_>) -> StatefulSetStatus {
    let count = |matches: &dyn Fn(&Pod) -> bool| {
        i32::try_from(layout.pods.values().filter(|pod| matches(pod)).count()).unwrap_or(i32::MAX)
    };
    let min_ready = min_ready_seconds(input.set);
    let all = count(&|_| true);
    let ready = count(&is_running);
    let available = count(&|pod| is_running(pod) && is_available(pod, min_ready, input.now));
    let of = |name: &str| count(&|pod| !is_deleted(&pod.metadata) && revision(pod) == name);
    let (mut current, updated) = (of(&input.current.name), of(&input.update.name));
    let mut current_revision = &input.current.name;
    let wanted = replicas(input.set);
    let complete = [updated, ready, all].iter().all(|count| i64::from(*count) == wanted);
    if complete && update_type(input.set) == "RollingUpdate" {
        (current, current_revision) = (updated, &input.update.name);
    }
    // Zero is represented as absent, as in Kubernetes, except for the number of available pods.
    let some = |count: i32| (count != 0).then_some(count);
    StatefulSetStatus {
        replicas: all,
        ready_replicas: some(ready),
        available_replicas: Some(available),
        current_replicas: some(current),
        updated_replicas: some(updated),
        current_revision: Some(current_revision.clone()),
        update_revision: Some(input.update.name.clone()),
        observed_generation: input.set.metadata.generation,
        collision_count: Some(input.collisions),
        conditions: input.set.status.as_ref().and_then(|status| status.conditions.clone()),
    }
}
