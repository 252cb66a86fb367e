//! Decides which pods of a Job to create or delete, and whether it has ended.

use apiserver_client::Metadata;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::backoff::{Failures, finished_at};
use super::condition::{self, FAILED, FAILURE_TARGET, SUCCESS_CRITERIA_MET};
use super::indexes::{self, all_failures_before, fails_index, index_of, indexes_of, surplus};
use super::intervals::Intervals;
use super::policy::{Verdict, early_success, has_failed, judge, replaces_only_failed};
use crate::limits::JOB_POD_BURST;
use crate::meta::{is_deleted, uid};
use crate::pods::{Pod, is_active, until};

/// Finalizer of pods that the status of their Job does not count yet.
pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// Limit of failures if the Job has none; the API server fills it in.
const BACKOFF_LIMIT: i32 = 6;

/// Inputs that a plan is computed from. The caches show everything that was written for the Job before.
pub(super) struct Input<'a> {
    pub job: &'a Job,
    pub spec: &'a JobSpec,
    /// Pods that the Job controls, including finished and terminating ones.
    pub pods: Vec<Arc<Pod>>,
    /// Failures before those that the pods show.
    pub failures: Failures,
    pub now: Timestamp,
}

/// Change of the set of pods.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    None,
    /// Create a pod for each of these indexes; `None` in a Job without indexes.
    Create(Vec<Option<usize>>),
    /// Delete pods that are not needed. They do not count, so their finalizer goes first.
    Remove(Vec<Arc<Pod>>),
    /// Delete pods of a Job that has ended. They keep their finalizer until they have been counted.
    Terminate(Vec<Arc<Pod>>),
}

/// Completion indexes of an Indexed Job.
#[derive(Debug, PartialEq)]
pub(super) struct Indexes {
    /// Indexes that the status names as succeeded.
    pub before: Intervals,
    /// Those, and the indexes that have succeeded since.
    pub succeeded: Intervals,
    /// Failed indexes, if there is a limit for each.
    pub failed: Option<Intervals>,
    /// Failed pods that keep their finalizer until their replacement carries on their count, by index.
    pub replaced: BTreeMap<usize, Arc<Pod>>,
}

/// The next actions, and the figures that the status is computed from.
#[derive(Debug)]
pub(super) struct Plan {
    pub action: Action,
    pub failures: Failures,
    /// Time after which the Job has to be looked at again.
    pub wake: Option<Duration>,
    pub start_time: Option<Time>,
    pub active: usize,
    pub ready: usize,
    pub terminating: usize,
    /// Number of succeeded pods, or indexes.
    pub succeeded: usize,
    /// Condition with which the Job is about to end.
    pub ending: Option<JobCondition>,
    pub indexes: Option<Indexes>,
}

pub(super) fn plan(input: &Input<'_>) -> Plan {
    let Input { job, spec, pods, now, .. } = input;
    let status = job.status.as_ref().unwrap_or(&EMPTY);
    let active: Vec<_> = pods.iter().filter(|pod| is_active(pod)).cloned().collect();
    let uncounted = Uncounted::of(status);
    let new = Ended::new(input, &uncounted);
    let failed = failed_so_far(spec, status, &new, &uncounted);
    let start_time = match &status.start_time {
        None if !is_suspended(spec) => Some(Time(*now)),
        known => known.clone(),
    };
    let mut ending = ending_of_pods(input, status, failed, start_time.as_ref());
    let indexes = is_indexed(spec).then(|| indexes(input, status, &active, &uncounted));
    let succeeded = match &indexes {
        Some(indexes) => indexes.succeeded.total(),
        None => count(status.succeeded) + new.succeeded.len() + uncounted.succeeded.len(),
    };
    if let Some(indexes) = indexes.as_ref().filter(|_| ending.is_none()) {
        ending = ending_of_indexes(spec, indexes, *now);
    }
    let mut plan = Plan {
        action: Action::None,
        failures: input.failures.after(&new.succeeded, &new.failed),
        wake: None,
        start_time,
        active: active.len(),
        ready: active.iter().filter(|pod| pod.is_ready()).count(),
        terminating: pods.iter().filter(|pod| is_terminating(pod)).count(),
        succeeded,
        ending,
        indexes,
    };
    if plan.ending.is_some() {
        plan.action = Action::Terminate(active);
    } else {
        let deadline = remaining_of_deadline(spec, plan.start_time.as_ref(), *now);
        let (action, wake) =
            if is_deleted(&job.metadata) { (Action::None, None) } else { manage(input, &plan, &active) };
        plan.action = action;
        plan.wake = deadline.into_iter().chain(wake).min();
    }
    plan
}

static EMPTY: JobStatus = JobStatus {
    active: None,
    completed_indexes: None,
    completion_time: None,
    conditions: None,
    failed: None,
    failed_indexes: None,
    ready: None,
    start_time: None,
    succeeded: None,
    terminating: None,
    uncounted_terminated_pods: None,
};

pub(super) fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

pub(super) fn is_suspended(spec: &JobSpec) -> bool {
    spec.suspend == Some(true)
}

/// Returns the number of completions; `None` if any success completes the Job.
pub(super) fn completions(spec: &JobSpec) -> Option<usize> {
    spec.completions.map(|completions| usize::try_from(completions).unwrap_or(0))
}

/// Returns a number that the API represents with a sign, or not at all.
pub(super) fn count(number: Option<i32>) -> usize {
    usize::try_from(number.unwrap_or(0)).unwrap_or(0)
}

pub(super) fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

/// Returns `true` if a pod is being deleted but has not ended.
fn is_terminating(pod: &Pod) -> bool {
    is_deleted(&pod.metadata) && !pod.is_finished()
}

/// Returns `true` if the index of the pod is valid, or if the Job has no indexes.
pub(super) fn has_valid_index(spec: &JobSpec, pod: &Pod) -> bool {
    let below = |index| completions(spec).is_some_and(|completions| index < completions);
    !is_indexed(spec) || index_of(pod).is_some_and(below)
}

/// UIDs of the pods that the status names but does not count yet.
#[derive(Debug, Default)]
pub(super) struct Uncounted {
    pub succeeded: BTreeSet<String>,
    pub failed: BTreeSet<String>,
}

impl Uncounted {
    pub fn of(status: &JobStatus) -> Self {
        let Some(pods) = &status.uncounted_terminated_pods else { return Self::default() };
        let set = |uids: &Option<Vec<String>>| uids.iter().flatten().cloned().collect();
        Self { succeeded: set(&pods.succeeded), failed: set(&pods.failed) }
    }

    pub fn contains(&self, pod: &Pod) -> bool {
        let uid = uid(&pod.metadata);
        self.succeeded.contains(uid) || self.failed.contains(uid)
    }
}

/// Pods that have ended and that the status does not show yet.
struct Ended {
    succeeded: Vec<Arc<Pod>>,
    failed: Vec<Arc<Pod>>,
}

impl Ended {
    fn new(input: &Input<'_>, uncounted: &Uncounted) -> Self {
        let new: Vec<_> = input
            .pods
            .iter()
            .filter(|pod| has_finalizer(pod) && !uncounted.contains(pod) && has_valid_index(input.spec, pod))
            .collect();
        let succeeded = new.iter().filter(|pod| pod.phase() == "Succeeded");
        let failed = new.iter().filter(|pod| has_failed(input.spec, pod));
        Self {
            succeeded: succeeded.map(|pod| Arc::clone(pod)).collect(),
            failed: failed.map(|pod| Arc::clone(pod)).collect(),
        }
    }
}

fn failed_so_far(spec: &JobSpec, status: &JobStatus, new: &Ended, uncounted: &Uncounted) -> usize {
    let policy = spec.pod_failure_policy.as_ref();
    let counted = new.failed.iter().filter(|pod| judge(policy, pod) != Verdict::Ignore).count();
    count(status.failed) + counted + uncounted.failed.len()
}

/// Returns the condition with which the Job ends because of an earlier decision, its failed pods, or its deadline.
fn ending_of_pods(
    input: &Input<'_>,
    status: &JobStatus,
    failed: usize,
    start_time: Option<&Time>,
) -> Option<JobCondition> {
    let Input { spec, pods, now, .. } = input;
    if let Some(met) = condition::find(status, SUCCESS_CRITERIA_MET) {
        return Some(met.clone());
    }
    if let Some(target) = condition::find(status, FAILURE_TARGET) {
        return Some(condition::with_cause_of(target, FAILED, *now));
    }
    let failing = |reason, message: &str| Some(condition::new(FAILURE_TARGET, reason, message, *now));
    let policy = spec.pod_failure_policy.as_ref();
    let message = pods.iter().filter(|pod| has_failed(spec, pod)).find_map(|pod| match judge(policy, pod) {
        Verdict::FailJob(message) => Some(message),
        _ => None,
    });
    if let Some(message) = message {
        return failing("PodFailurePolicy", &message);
    }
    let limit = usize::try_from(spec.backoff_limit.unwrap_or(BACKOFF_LIMIT)).unwrap_or(0);
    if failed > limit || restarts_exceed(spec, limit, pods) {
        return failing("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    }
    if remaining_of_deadline(spec, start_time, *now).is_some_and(|left| left.is_zero()) {
        return failing("DeadlineExceeded", "Job was active longer than specified deadline");
    }
    None
}

/// Returns the time until the Job has been active for too long, if that is limited.
fn remaining_of_deadline(spec: &JobSpec, start_time: Option<&Time>, now: Timestamp) -> Option<Duration> {
    let seconds = spec.active_deadline_seconds.filter(|_| !is_suspended(spec))?;
    let limit = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    Some(until(start_time?.0.checked_add(limit).ok()?, now))
}

/// Returns `true` if the containers of pods that restart them have failed too often.
fn restarts_exceed(spec: &JobSpec, limit: usize, pods: &[Arc<Pod>]) -> bool {
    let policy = spec.template.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
    if policy != Some("OnFailure") {
        return false;
    }
    let running = pods.iter().filter(|pod| matches!(pod.phase(), "Running" | "Pending"));
    let statuses =
        running.flat_map(|pod| pod.init_container_statuses().iter().chain(pod.container_statuses()));
    let restarts: usize = statuses.map(|container| count(Some(container.restart_count))).sum();
    restarts >= limit.max(1)
}

fn indexes(input: &Input<'_>, status: &JobStatus, active: &[Arc<Pod>], uncounted: &Uncounted) -> Indexes {
    let Input { spec, pods, .. } = input;
    let completions = completions(spec).unwrap_or(0);
    let pending: Vec<_> =
        pods.iter().filter(|pod| has_finalizer(pod) && has_valid_index(spec, pod)).collect();
    let of = |pods: &mut dyn Iterator<Item = &&Arc<Pod>>| -> BTreeSet<usize> {
        pods.filter_map(|pod| index_of(pod)).collect()
    };
    let before = Intervals::parse(status.completed_indexes.as_deref().unwrap_or_default(), completions);
    // A pod that has been counted as failed, because it was being deleted, is not counted again.
    let succeeded = of(&mut pending
        .iter()
        .filter(|pod| pod.phase() == "Succeeded" && !uncounted.failed.contains(uid(&pod.metadata))));
    let succeeded = before.with(succeeded);
    let failed = spec.backoff_limit_per_index.map(|limit| {
        let known = Intervals::parse(status.failed_indexes.as_deref().unwrap_or_default(), completions);
        known.with(of(&mut pending.iter().filter(|pod| fails_index(spec, limit, pod))))
    });
    let replaced = match &failed {
        None => BTreeMap::new(),
        Some(failed) => {
            let settled = succeeded.union(failed).with(indexes_of(active));
            let ended = pending.iter().filter(|pod| has_failed(spec, pod));
            indexes::to_be_replaced(ended.copied(), &settled)
        }
    };
    Indexes { before, succeeded, failed, replaced }
}

/// Returns the condition with which an Indexed Job ends because of its indexes.
fn ending_of_indexes(spec: &JobSpec, indexes: &Indexes, now: Timestamp) -> Option<JobCondition> {
    let completions = completions(spec).unwrap_or(0);
    let failing = |reason, message| Some(condition::new(FAILURE_TARGET, reason, message, now));
    if let Some(failed) = &indexes.failed {
        let total = failed.total();
        if spec.max_failed_indexes.is_some_and(|limit| total > count(Some(limit))) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return failing("MaxFailedIndexesExceeded", message);
        }
        if total > 0 && total + indexes.succeeded.total() >= completions {
            return failing("FailedIndexes", "Job has failed indexes");
        }
    }
    let message = early_success(spec.success_policy.as_ref(), completions, &indexes.succeeded)?;
    Some(condition::new(SUCCESS_CRITERIA_MET, "SuccessPolicy", &message, now))
}

/// Returns the change of the pods of a Job that goes on, and when to look again because of a back-off.
fn manage(input: &Input<'_>, plan: &Plan, active: &[Arc<Pod>]) -> (Action, Option<Duration>) {
    let spec = input.spec;
    let of_indexes = if is_indexed(spec) { completions(spec) } else { None };
    if is_suspended(spec) {
        return (remove(surplus(active, of_indexes, active.len())), None);
    }
    let parallelism = count(Some(spec.parallelism.unwrap_or(1)));
    let wanted = match completions(spec) {
        // After the first success no pod is started any more.
        None if plan.succeeded > 0 => active.len(),
        None => parallelism,
        Some(completions) => completions.saturating_sub(plan.succeeded).min(parallelism),
    };
    let mut removed = surplus(active, of_indexes, active.len().saturating_sub(wanted));
    if !removed.is_empty() {
        removed.truncate(JOB_POD_BURST);
        return (remove(removed), None);
    }
    let leaving = if replaces_only_failed(spec) { plan.terminating } else { 0 };
    let missing = wanted.saturating_sub(active.len() + leaving).min(JOB_POD_BURST);
    if missing == 0 {
        return (Action::None, None);
    }
    let pause = plan.failures.remaining(input.now);
    if !pause.is_zero() && spec.backoff_limit_per_index.is_none() {
        return (Action::None, Some(pause));
    }
    match &plan.indexes {
        None => (Action::Create(vec![None; missing]), None),
        Some(indexes) => create_indexes(input, indexes, active, missing),
    }
}

fn remove(pods: Vec<Arc<Pod>>) -> Action {
    if pods.is_empty() { Action::None } else { Action::Remove(pods) }
}

/// Returns the creation of at most `missing` pods: of the lowest indexes that need one and whose back-off has passed.
fn create_indexes(
    input: &Input<'_>,
    indexes: &Indexes,
    active: &[Arc<Pod>],
    missing: usize,
) -> (Action, Option<Duration>) {
    let mut taken = indexes.succeeded.with(indexes_of(active));
    if replaces_only_failed(input.spec) {
        taken = taken.with(indexes_of(input.pods.iter().filter(|pod| is_terminating(pod))));
    }
    if let Some(failed) = &indexes.failed {
        taken = taken.union(failed);
    }
    let candidates = taken.missing(missing, completions(input.spec).unwrap_or(0));
    let pause = |index: &usize| {
        let Some(pod) = indexes.replaced.get(index) else { return Duration::ZERO };
        let count = u32::try_from(all_failures_before(pod)).unwrap_or(0).saturating_add(1);
        Failures { count, last: Some(finished_at(pod)) }.remaining(input.now)
    };
    let (now, later): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|index| pause(index).is_zero());
    let wake = later.iter().map(pause).min();
    let action =
        if now.is_empty() { Action::None } else { Action::Create(now.into_iter().map(Some).collect()) };
    (action, wake)
}
