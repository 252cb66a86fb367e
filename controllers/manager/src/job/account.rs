//! Counts the ended pods of a Job exactly once, over crashes between any two writes.
//!
//! ```text
//!  pod ended, has its finalizer ─▶ uid in status.uncountedTerminatedPods ─▶ finalizer removed ─▶ counter incremented,
//!                                  (or its index in completedIndexes)                           uid removed
//! ```
//!
//! A uid of the list whose pod has its finalizer is waiting for the third step; one whose pod has none, or is gone, is
//! waiting for the last. So whatever happens, the next reconciliation knows what is left to do.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus, UncountedTerminatedPods};

use super::condition::{self, COMPLETE, FAILED, FAILURE_TARGET, SUCCESS_CRITERIA_MET};
use super::indexes::index_of;
use super::plan::{
    Action, Indexes, Input, Plan, Uncounted, completions, count, has_finalizer, has_valid_index, is_suspended,
};
use super::policy::{Verdict, has_failed, judge};
use crate::limits::JOB_UNCOUNTED;
use crate::meta::{is_deleted, uid};
use crate::pods::Pod;

/// Part of the action that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub created: usize,
    pub deleted: usize,
    /// Number of deleted pods that were ready.
    pub deleted_ready: usize,
}

/// Result of counting.
#[derive(Debug)]
pub(super) struct Account {
    /// Status that has to be written before finalizers are removed.
    pub status: JobStatus,
    /// Pods whose finalizer may be removed once the status is written.
    pub release: Vec<Arc<Pod>>,
    /// Set if the Job was suspended (`true`) or resumed (`false`).
    pub suspended: Option<bool>,
    /// Condition with which the Job ends once all its pods are counted.
    ending: Option<JobCondition>,
    /// True if not all pods fit into the status.
    more: bool,
    /// UIDs of the pods with a finalizer.
    held: BTreeSet<String>,
}

/// Returns what follows from the plan and the part of its action that succeeded.
pub(super) fn account(input: &Input<'_>, plan: &Plan, done: Done) -> Account {
    let mut account = Account {
        status: input.job.status.clone().unwrap_or_default(),
        release: Vec::new(),
        suspended: None,
        ending: plan.ending.clone(),
        more: false,
        held: BTreeSet::new(),
    };
    let held = input.pods.iter().filter(|pod| has_finalizer(pod));
    account.held = held.map(|pod| uid(&pod.metadata).to_owned()).collect();
    let active = plan.active + done.created - done.deleted;
    let status = &mut account.status;
    status.start_time.clone_from(&plan.start_time);
    status.active = some(active);
    status.ready = Some(number(plan.ready - done.deleted_ready));
    status.terminating = Some(number(plan.terminating + done.deleted));
    status.uncounted_terminated_pods.get_or_insert_default();
    match &plan.action {
        // A Job with pods that could not be deleted has not ended.
        Action::Terminate(pods) if done.deleted < pods.len() => account.ending = None,
        Action::Terminate(_) => {}
        _ => account.note_progress(input, plan, active),
    }
    let uncounted = Uncounted::of(&account.status);
    count_released(&mut account.status, &account.held);
    account.choose(input, plan, &uncounted);
    if let Some(indexes) = &plan.indexes {
        put_indexes(&mut account.status, indexes);
    }
    account.announce_ending(input.now);
    account
}

/// Returns the representation of a counter that is absent if zero.
fn some(count: usize) -> Option<i32> {
    (count > 0).then(|| number(count))
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Increments the counters by the pods of the list that no longer have a finalizer.
fn count_released(status: &mut JobStatus, held: &BTreeSet<String>) {
    let pods = status.uncounted_terminated_pods.get_or_insert_default();
    let counters = [(&mut pods.succeeded, &mut status.succeeded), (&mut pods.failed, &mut status.failed)];
    for (uids, counter) in counters {
        let Some(listed) = uids else { continue };
        let before = listed.len();
        listed.retain(|uid| held.contains(uid));
        *counter = some(count(*counter) + before - listed.len());
        if listed.is_empty() {
            *uids = None;
        }
    }
}

fn put_indexes(status: &mut JobStatus, indexes: &Indexes) {
    status.succeeded = some(indexes.succeeded.total());
    let text = indexes.succeeded.to_string();
    status.completed_indexes = (!text.is_empty()).then_some(text);
    status.failed_indexes = indexes.failed.as_ref().map(ToString::to_string);
}

impl Account {
    /// Notes that a Job that was not about to end is complete, suspended or resumed.
    fn note_progress(&mut self, input: &Input<'_>, plan: &Plan, active: usize) {
        let Input { job, spec, now, .. } = input;
        let enough = match completions(spec) {
            None => plan.succeeded > 0,
            Some(completions) => plan.succeeded >= completions,
        };
        if enough && active == 0 {
            let message = "Reached expected number of succeeded pods";
            self.ending = Some(condition::new(SUCCESS_CRITERIA_MET, "CompletionsReached", message, *now));
            return;
        }
        if is_deleted(&job.metadata) {
            return;
        }
        let suspended = is_suspended(spec);
        if condition::put_suspended(&mut self.status, suspended, *now) {
            self.suspended = Some(suspended);
            // The deadline is one of continuous activity.
            self.status.start_time =
                (!suspended).then_some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(*now));
        }
    }

    /// Chooses the pods to release, and lists those among them that count.
    fn choose(&mut self, input: &Input<'_>, plan: &Plan, uncounted: &Uncounted) {
        let listed = self.status.uncounted_terminated_pods.get_or_insert_default();
        let mut size = listed.succeeded.iter().chain(&listed.failed).map(Vec::len).sum::<usize>();
        let mut pods: Vec<_> = input.pods.iter().filter(|pod| has_finalizer(pod)).collect();
        if plan.indexes.is_some() {
            pods.sort_by_key(|pod| index_of(pod));
        }
        for pod in pods {
            if !self.may_release(input, plan, pod) {
                continue;
            }
            self.release.push(Arc::clone(pod));
            let list = self.status.uncounted_terminated_pods.get_or_insert_default();
            size += match fate(input, plan, uncounted, self.ending.as_ref(), pod) {
                Fate::Settled => 0,
                Fate::Index => 1,
                Fate::Succeeded => push(&mut list.succeeded, pod),
                Fate::Failed => push(&mut list.failed, pod),
            };
            if size >= JOB_UNCOUNTED {
                self.more = true;
                return;
            }
        }
    }

    /// Returns `true` if a pod need not be kept for counting: it has ended, or its Job has.
    fn may_release(&self, input: &Input<'_>, plan: &Plan, pod: &Arc<Pod>) -> bool {
        if is_deleted(&input.job.metadata) || self.ending.is_some() || pod.phase() == "Succeeded" {
            return true;
        }
        let waiting = plan.indexes.iter().flat_map(|indexes| indexes.replaced.values());
        has_failed(input.spec, pod) && !waiting.into_iter().any(|kept| Arc::ptr_eq(kept, pod))
    }

    /// Adds the condition that announces the end, before finalizers are removed, and prepares the final one.
    fn announce_ending(&mut self, now: Timestamp) {
        let Some(ending) = &self.ending else { return };
        let last = match ending.type_.as_str() {
            FAILURE_TARGET => FAILED,
            SUCCESS_CRITERIA_MET => COMPLETE,
            _ => return,
        };
        let last = condition::with_cause_of(ending, last, now);
        if condition::find(&self.status, &ending.type_).is_none() {
            condition::put(&mut self.status, ending.clone());
        }
        self.ending = Some(last);
    }

    /// Returns the status after the finalizers of the pods with these uids were removed, and the condition with which
    /// the Job has ended.
    pub fn conclude(
        mut self,
        released: &BTreeSet<String>,
        now: Timestamp,
    ) -> (JobStatus, Option<JobCondition>) {
        self.held.retain(|uid| !released.contains(uid));
        let mut status = self.status;
        count_released(&mut status, &self.held);
        let list = status.uncounted_terminated_pods.as_ref();
        let counted = list.is_none_or(|list| *list == UncountedTerminatedPods::default());
        let ending = self.ending.filter(|_| !self.more && counted && count(status.terminating) == 0);
        if let Some(ending) = &ending {
            condition::put(&mut status, ending.clone());
            if ending.type_ == COMPLETE {
                status.completion_time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
            }
        }
        (status, ending)
    }
}

/// Adds the uid of a pod to a list; returns the number of uids added.
fn push(list: &mut Option<Vec<String>>, pod: &Pod) -> usize {
    list.get_or_insert_default().push(uid(&pod.metadata).to_owned());
    1
}

/// The way in which a pod that is released counts.
enum Fate {
    /// Not at all, or it has been listed or counted before.
    Settled,
    /// Its index is new among the completed ones.
    Index,
    Succeeded,
    Failed,
}

fn fate(
    input: &Input<'_>,
    plan: &Plan,
    uncounted: &Uncounted,
    ending: Option<&JobCondition>,
    pod: &Pod,
) -> Fate {
    if uncounted.contains(pod) || !has_valid_index(input.spec, pod) {
        return Fate::Settled;
    }
    if pod.phase() == "Succeeded" {
        return match &plan.indexes {
            None => Fate::Succeeded,
            Some(indexes) if index_of(pod).is_some_and(|index| !indexes.before.contains(index)) => {
                Fate::Index
            }
            Some(_) => Fate::Settled,
        };
    }
    // Every pod of a failed Job has failed; those of one that succeeded early have neither failed nor succeeded.
    let job_failed = ending.is_some_and(|ending| ending.type_ != SUCCESS_CRITERIA_MET);
    let failed = has_failed(input.spec, pod) || job_failed;
    if failed && judge(input.spec.pod_failure_policy.as_ref(), pod) != Verdict::Ignore {
        Fate::Failed
    } else {
        Fate::Settled
    }
}
