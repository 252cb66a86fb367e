//! Conditions of a Job.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub(super) const COMPLETE: &str = "Complete";
pub(super) const FAILED: &str = "Failed";
pub(super) const FAILURE_TARGET: &str = "FailureTarget";
pub(super) const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
const SUSPENDED: &str = "Suspended";

/// Returns a condition that is true.
pub(super) fn new(kind: &str, reason: &str, message: &str, now: Timestamp) -> JobCondition {
    JobCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// Returns the condition `kind` with reason and message of `other`.
pub(super) fn with_cause_of(other: &JobCondition, kind: &str, now: Timestamp) -> JobCondition {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    new(kind, &text(&other.reason), &text(&other.message), now)
}

/// Returns a condition of this type that is true.
pub(super) fn find<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    let conditions = status.conditions.iter().flatten();
    conditions.into_iter().find(|condition| condition.type_ == kind && condition.status == "True")
}

/// Returns the condition with which the Job has ended, if it has.
pub(crate) fn finished(job: &Job) -> Option<&JobCondition> {
    let status = job.status.as_ref()?;
    find(status, COMPLETE).or_else(|| find(status, FAILED))
}

/// Adds or replaces a condition; returns `true` if that is a change. A condition that is not there is not added to
/// say that it is false.
pub(super) fn put(status: &mut JobStatus, condition: JobCondition) -> bool {
    let conditions = status.conditions.get_or_insert_default();
    let same = |a: &JobCondition, b: &JobCondition| {
        (&a.status, &a.reason, &a.message) == (&b.status, &b.reason, &b.message)
    };
    match conditions.iter_mut().find(|known| known.type_ == condition.type_) {
        Some(known) if same(known, &condition) => false,
        Some(known) => {
            *known = condition;
            true
        }
        None if condition.status == "False" => false,
        None => {
            conditions.push(condition);
            true
        }
    }
}

/// Notes whether the Job is suspended; returns `true` if that is a change.
pub(super) fn put_suspended(status: &mut JobStatus, suspended: bool, now: Timestamp) -> bool {
    if suspended {
        return put(status, new(SUSPENDED, "JobSuspended", "Job suspended", now));
    }
    let resumed = new(SUSPENDED, "JobResumed", "Job resumed", now);
    let changed = put(status, JobCondition { status: "False".to_owned(), ..resumed });
    if status.conditions.as_ref().is_some_and(Vec::is_empty) {
        status.conditions = None;
    }
    changed
}

/// Returns the reason of a failed Job as that of its event.
pub(super) fn event_reason(condition: &JobCondition) -> &'static str {
    const KNOWN: [&str; 5] = [
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "MaxFailedIndexesExceeded",
        "FailedIndexes",
        "PodFailurePolicy",
    ];
    let reason = condition.reason.as_deref().unwrap_or_default();
    KNOWN.into_iter().find(|known| *known == reason).unwrap_or("Failed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn conditions_change_only_with_status_reason_or_message() {
        let mut status = JobStatus::default();
        assert!(!put_suspended(&mut status, false, at(1)), "a Job that never was suspended");
        assert_eq!(status, JobStatus::default());
        assert!(put_suspended(&mut status, true, at(1)));
        assert!(!put_suspended(&mut status, true, at(2)));
        assert!(find(&status, SUSPENDED).is_some());
        assert!(put_suspended(&mut status, false, at(3)));
        let condition = &status.conditions.as_ref().unwrap()[0];
        assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("False", Some("JobResumed")));
        assert_eq!(condition.last_transition_time.as_ref().unwrap().0, at(3));
        assert!(find(&status, SUSPENDED).is_none());
    }
}
