//! Status and conditions of a Deployment, as read by `kubectl rollout status`.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::{Rollout, Set};
use super::strategy::{max_unavailable, replicas};
use crate::meta::name;
use crate::pods::until;

const AVAILABLE: &str = "Available";
const PROGRESSING: &str = "Progressing";
const REPLICA_FAILURE: &str = "ReplicaFailure";

const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

/// Determines whether progress is evaluated: not while paused or when only the size has changed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Progress {
    Checked,
    Unchecked,
}

/// Records a pause or its end, which stop and restart the progress deadline.
pub(super) fn record_pause(rollout: &mut Rollout<'_>, paused: bool) {
    if deadline(rollout.deployment).is_none() {
        return;
    }
    let reason = condition(&rollout.status, PROGRESSING).and_then(|c| c.reason.as_deref());
    if reason == Some(TIMED_OUT) {
        return;
    }
    match (paused, reason == Some(PAUSED)) {
        (true, false) => {
            set(rollout, PROGRESSING, "Unknown", PAUSED, "Deployment is paused".to_owned());
        }
        (false, true) => {
            set(rollout, PROGRESSING, "Unknown", "DeploymentResumed", "Deployment is resumed".to_owned());
        }
        _ => {}
    }
}

/// Records that the template's ReplicaSet already exists.
pub(super) fn record_found(rollout: &mut Rollout<'_>, set_name: &str) {
    if deadline(rollout.deployment).is_some() && condition(&rollout.status, PROGRESSING).is_none() {
        let message = format!("Found new replica set \"{set_name}\"");
        set(rollout, PROGRESSING, "True", "FoundNewReplicaSet", message);
    }
}

/// Records that the template's ReplicaSet is being created.
pub(super) fn record_created(rollout: &mut Rollout<'_>, set_name: &str) {
    if deadline(rollout.deployment).is_some() {
        let message = format!("Created new replica set \"{set_name}\"");
        set(rollout, PROGRESSING, "True", "NewReplicaSetCreated", message);
    }
}

/// Records that the API has refused a ReplicaSet.
pub(super) fn create_failed(status: &mut DeploymentStatus, message: String, now: Time) {
    put(status, new_condition(PROGRESSING, "False", "ReplicaSetCreateError", message, now));
}

/// Returns `true` if the status shows everything as specified.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = replicas(deployment);
    status.updated_replicas.unwrap_or(0) == wanted
        && status.replicas.unwrap_or(0) == wanted
        && status.available_replicas.unwrap_or(0) == wanted
        && status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0)
}

/// Computes the status; returns when to reconcile again because of the progress deadline.
pub(super) fn conclude(rollout: &mut Rollout<'_>, progress: Progress) -> Option<Duration> {
    let before = rollout.status.clone();
    count(rollout);
    evaluate_availability(rollout);
    if progress == Progress::Checked {
        evaluate_progress(rollout, &before);
        report_failures(rollout);
    }
    deadline_left(rollout)
}

fn count(rollout: &mut Rollout<'_>) {
    let sum =
        |f: fn(&ReplicaSet) -> i32| rollout.all().map(|set| f(&set.wanted)).fold(0, i32::saturating_add);
    let total = rollout.all().map(Set::size).fold(0, i32::saturating_add);
    let replicas = sum(actual);
    let ready = sum(|set| set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0));
    let available = sum(available);
    let terminating: Option<i32> = rollout
        .all()
        .map(|set| set.wanted.status.as_ref().and_then(|status| status.terminating_replicas))
        .collect::<Option<Vec<_>>>()
        .map(|counts| counts.into_iter().sum());
    let updated = rollout.new.as_ref().map_or(0, |set| actual(&set.wanted));
    let generation = rollout.deployment.metadata.generation;
    // Zero is represented as absent, as in Kubernetes.
    let some = |count: i32| (count != 0).then_some(count);
    let status = &mut rollout.status;
    status.observed_generation = generation;
    status.replicas = some(replicas);
    status.updated_replicas = some(updated);
    status.ready_replicas = some(ready);
    status.available_replicas = some(available);
    status.unavailable_replicas = some((total - available).max(0));
    status.terminating_replicas = terminating;
}

fn actual(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

fn evaluate_availability(rollout: &mut Rollout<'_>) {
    let least = replicas(rollout.deployment) - max_unavailable(rollout.deployment);
    if rollout.status.available_replicas.unwrap_or(0) >= least {
        let message = "Deployment has minimum availability.".to_owned();
        set(rollout, AVAILABLE, "True", "MinimumReplicasAvailable", message);
    } else {
        let message = "Deployment does not have minimum availability.".to_owned();
        set(rollout, AVAILABLE, "False", "MinimumReplicasUnavailable", message);
    }
}

/// Evaluates progress; `before` contains the counts that were last written.
fn evaluate_progress(rollout: &mut Rollout<'_>, before: &DeploymentStatus) {
    let Some(limit) = deadline(rollout.deployment) else {
        remove(&mut rollout.status, PROGRESSING);
        return;
    };
    let now = &rollout.status;
    let all_updated = now.replicas.unwrap_or(0) == now.updated_replicas.unwrap_or(0);
    let current = condition(before, PROGRESSING).cloned();
    if all_updated && current.as_ref().is_some_and(|c| c.reason.as_deref() == Some(NEW_SET_AVAILABLE)) {
        return;
    }
    let subject = match &rollout.new {
        Some(set) => format!("ReplicaSet \"{}\"", name(&set.wanted.metadata)),
        None => format!("Deployment \"{}\"", name(&rollout.deployment.metadata)),
    };
    if is_complete(rollout.deployment, &rollout.status) {
        let message = format!("{subject} has successfully progressed.");
        set(rollout, PROGRESSING, "True", NEW_SET_AVAILABLE, message);
    } else if has_progressed(before, &rollout.status) {
        let message = format!("{subject} is progressing.");
        let mut condition =
            new_condition(PROGRESSING, "True", "ReplicaSetUpdated", message, Time(rollout.now));
        if let Some(current) = current.filter(|current| current.status == "True") {
            condition.last_transition_time = current.last_transition_time;
        }
        // Replaced even if the reason is the same, because the deadline counts from the time of the last
        // progress.
        remove(&mut rollout.status, PROGRESSING);
        rollout.status.conditions.get_or_insert_default().push(condition);
    } else if is_overdue(rollout, limit) {
        let message = format!("{subject} has timed out progressing.");
        set(rollout, PROGRESSING, "False", TIMED_OUT, message);
    }
}

fn has_progressed(before: &DeploymentStatus, now: &DeploymentStatus) -> bool {
    let count = |value: Option<i32>| value.unwrap_or(0);
    let old = |status: &DeploymentStatus| count(status.replicas) - count(status.updated_replicas);
    count(now.updated_replicas) > count(before.updated_replicas)
        || old(now) < old(before)
        || count(now.ready_replicas) > count(before.ready_replicas)
        || count(now.available_replicas) > count(before.available_replicas)
}

fn is_overdue(rollout: &Rollout<'_>, limit: Duration) -> bool {
    let Some(condition) = condition(&rollout.status, PROGRESSING) else { return false };
    match condition.reason.as_deref() {
        Some(TIMED_OUT) => true,
        Some(NEW_SET_AVAILABLE) => false,
        _ => end_of(condition, limit).is_some_and(|end| end < rollout.now),
    }
}

fn end_of(condition: &DeploymentCondition, limit: Duration) -> Option<jiff::Timestamp> {
    condition.last_update_time.as_ref()?.0.checked_add(limit).ok()
}

/// Returns how long until the deadline has certainly passed, if there is one; one second is added for that.
fn deadline_left(rollout: &Rollout<'_>) -> Option<Duration> {
    let limit = deadline(rollout.deployment)?;
    let condition = condition(&rollout.status, PROGRESSING)?;
    let paused = rollout.deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    if paused
        || is_complete(rollout.deployment, &rollout.status)
        || matches!(condition.reason.as_deref(), Some(TIMED_OUT | NEW_SET_AVAILABLE))
    {
        return None;
    }
    Some(until(end_of(condition, limit)?, rollout.now) + Duration::from_secs(1))
}

/// Reports why a ReplicaSet cannot create pods on the Deployment, the new ReplicaSet's failure before those
/// of old ones.
fn report_failures(rollout: &mut Rollout<'_>) {
    let found = rollout.new.iter().chain(&rollout.old).find_map(|set| {
        let conditions = set.wanted.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|condition| condition.type_ == REPLICA_FAILURE).cloned()
    });
    match found {
        Some(failure) => put(
            &mut rollout.status,
            DeploymentCondition {
                type_: REPLICA_FAILURE.to_owned(),
                status: failure.status,
                reason: failure.reason,
                message: failure.message,
                last_update_time: failure.last_transition_time.clone(),
                last_transition_time: failure.last_transition_time,
            },
        ),
        None => remove(&mut rollout.status, REPLICA_FAILURE),
    }
}

pub(super) fn has_progress_deadline(deployment: &Deployment) -> bool {
    deadline(deployment).is_some()
}

/// Returns how long an update may take without progress; `None` means forever.
fn deadline(deployment: &Deployment) -> Option<Duration> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds?;
    (seconds != i32::MAX).then(|| Duration::from_secs(u64::from(seconds.unsigned_abs())))
}

fn condition<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

fn set(rollout: &mut Rollout<'_>, kind: &str, status: &str, reason: &str, message: String) {
    let now = Time(rollout.now);
    put(&mut rollout.status, new_condition(kind, status, reason, message, now));
}

fn new_condition(kind: &str, status: &str, reason: &str, message: String, now: Time) -> DeploymentCondition {
    DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(now),
    }
}

/// Replaces the condition of the same type. Nothing changes if status and reason are the same; if only the
/// status is the same, its transition time is kept.
fn put(status: &mut DeploymentStatus, mut new: DeploymentCondition) {
    if let Some(current) = condition(status, &new.type_) {
        if current.status == new.status && current.reason == new.reason {
            return;
        }
        if current.status == new.status {
            new.last_transition_time = current.last_transition_time.clone();
        }
    }
    let kind = new.type_.clone();
    remove(status, &kind);
    status.conditions.get_or_insert_default().push(new);
}

fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
    }
    status.conditions.take_if(|conditions| conditions.is_empty());
}
