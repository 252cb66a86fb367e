//! Resolves `maxSurge` and `maxUnavailable` of a rolling update to numbers of pods. The API server validates
//! them (`apiserver/kinds/src/apps/deployment.rs`), and `plan.rs` bounds the number of pods by them.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::scaled::scaled;

pub(super) fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(super) fn set_replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(super) fn is_recreate(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

/// Returns how many pods may exist above the desired number during an update.
pub(super) fn max_surge(deployment: &Deployment) -> i32 {
    if is_recreate(deployment) { 0 } else { fenceposts(deployment).0 }
}

/// Returns how many pods may be missing below the desired number during an update.
pub(super) fn max_unavailable(deployment: &Deployment) -> i32 {
    let replicas = replicas(deployment);
    if is_recreate(deployment) || replicas == 0 { 0 } else { fenceposts(deployment).1.min(replicas) }
}

/// Resolves surge (rounded up) and unavailability (rounded down). If both were zero, an update could not
/// proceed, so one pod may be unavailable then.
fn fenceposts(deployment: &Deployment) -> (i32, i32) {
    let rolling = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref())
        .and_then(|strategy| strategy.rolling_update.as_ref());
    let quarter = IntOrString::String("25%".to_owned());
    let surge = rolling.and_then(|r| r.max_surge.as_ref()).unwrap_or(&quarter);
    let unavailable = rolling.and_then(|r| r.max_unavailable.as_ref()).unwrap_or(&quarter);
    let replicas = replicas(deployment);
    match (scaled(surge, replicas, true), scaled(unavailable, replicas, false)) {
        (0, 0) => (0, 1),
        both => both,
    }
}
