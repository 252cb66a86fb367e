//! Decides which Jobs of a CronJob to start and delete, and its status.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::cron::{Schedule, time_zone};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::job::finished;
use crate::limits::{CRON_DELAY, CRON_MISSED};
use crate::meta::{controller_reference, is_deleted, name, uid};
use crate::pods::until;

/// Annotation with the time that a Job was scheduled for.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// An event about the CronJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub is_warning: bool,
    pub reason: &'static str,
    pub message: String,
}

pub(super) fn normal(reason: &'static str, message: String) -> Note {
    Note { is_warning: false, reason, message }
}

pub(super) fn warning(reason: &'static str, message: String) -> Note {
    Note { is_warning: true, reason, message }
}

/// Returns the finished Jobs beyond the limits of the history, the oldest first.
pub(super) fn beyond_history(spec: &CronJobSpec, jobs: &[Arc<Job>]) -> Vec<Arc<Job>> {
    let of = |kind: &str, limit: Option<i32>| {
        let Some(limit) = limit else { return Vec::new() };
        let ended = |job: &&Arc<Job>| finished(job).is_some_and(|condition| condition.type_ == kind);
        let mut ended: Vec<_> = jobs.iter().filter(ended).cloned().collect();
        // A Job that never started is the newest.
        ended.sort_by_key(|job| {
            let start = job.status.as_ref().and_then(|status| status.start_time.as_ref());
            (start.is_none(), start.map(|time| time.0), name(&job.metadata).to_owned())
        });
        ended.truncate(ended.len().saturating_sub(usize::try_from(limit).unwrap_or(0)));
        ended.retain(|job| !is_deleted(&job.metadata));
        ended
    };
    let mut jobs = of("Complete", spec.successful_jobs_history_limit);
    jobs.extend(of("Failed", spec.failed_jobs_history_limit));
    jobs
}

/// Removes a Job from the active ones; returns `true` if it was there.
pub(super) fn remove_active(status: &mut CronJobStatus, uid: &str) -> bool {
    let Some(active) = &mut status.active else { return false };
    let before = active.len();
    active.retain(|job| job.uid.as_deref() != Some(uid));
    let removed = active.len() < before;
    if active.is_empty() {
        status.active = None;
    }
    removed
}

fn is_active(status: &CronJobStatus, uid: &str) -> bool {
    status.active.iter().flatten().any(|job| job.uid.as_deref() == Some(uid))
}

/// Updates the status by the Jobs that the CronJob controls; returns what is worth an event.
pub(super) fn observe(status: &mut CronJobStatus, jobs: &[Arc<Job>]) -> Vec<Note> {
    let mut notes = Vec::new();
    for job in jobs {
        let (name, uid) = (name(&job.metadata), uid(&job.metadata));
        let Some(ending) = finished(job) else {
            if !is_active(status, uid) {
                let text = format!("Saw a job that the controller did not create or forgot: {name}");
                notes.push(warning("UnexpectedJob", text));
            }
            continue;
        };
        if remove_active(status, uid) {
            let text = format!("Saw completed job: {name}, condition: {}", ending.type_);
            notes.push(normal("SawCompletedJob", text));
        }
        let completion = job.status.as_ref().and_then(|status| status.completion_time.clone());
        if ending.type_ == "Complete"
            && let Some(completion) = completion
            && status.last_successful_time.as_ref().is_none_or(|last| completion.0 > last.0)
        {
            status.last_successful_time = Some(completion);
        }
    }
    notes
}

/// Returns the active Jobs of the status that are not among `jobs`.
pub(super) fn missing(status: &CronJobStatus, jobs: &[Arc<Job>]) -> Vec<ObjectReference> {
    let known: BTreeSet<&str> = jobs.iter().map(|job| uid(&job.metadata)).collect();
    let active = status.active.iter().flatten();
    active.filter(|job| job.uid.as_deref().is_none_or(|uid| !known.contains(uid))).cloned().collect()
}

/// The decision about a CronJob.
#[derive(Debug, PartialEq)]
pub(super) struct Decision {
    /// Time for which a Job has to be started.
    pub start: Option<Timestamp>,
    /// True if the active Jobs have to be deleted before that.
    pub replaces: bool,
    /// Time until the next start.
    pub wake: Option<Duration>,
    pub notes: Vec<Note>,
}

/// Decides whether a Job has to be started now, and when to look again.
pub(super) fn decide(cron: &CronJob, spec: &CronJobSpec, status: &CronJobStatus, now: Timestamp) -> Decision {
    let mut decision = Decision { start: None, replaces: false, wake: None, notes: Vec::new() };
    if is_deleted(&cron.metadata) {
        return decision;
    }
    let text = &spec.schedule;
    if let Some(zone) = &spec.time_zone
        && let Err(fault) = time_zone(zone)
    {
        decision.notes.push(warning("UnknownTimeZone", format!("invalid timeZone: {zone:?}: {fault}")));
        return decision;
    }
    if spec.suspend == Some(true) {
        return decision;
    }
    if text.contains("TZ") {
        let message = format!(
            "CRON_TZ or TZ used in schedule {text:?} is not officially supported, see \
             https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
        );
        decision.notes.push(warning("UnsupportedSchedule", message));
    }
    let schedule = match schedule(spec) {
        Ok(schedule) => schedule,
        Err(fault) => {
            let message = format!("unparseable schedule: {text:?} : {fault}");
            decision.notes.push(warning("UnparseableSchedule", message));
            return decision;
        }
    };
    let since = Since::of(cron, status);
    let due = match since.due(&schedule, spec.starting_deadline_seconds, now) {
        Ok(due) => due,
        Err(fault) => {
            decision.notes.push(warning("InvalidSchedule", format!("invalid schedule: {text} : {fault}")));
            return decision;
        }
    };
    decision.wake = since.wake(&schedule, now);
    if let Some(at) = due.latest {
        if due.missed > CRON_MISSED {
            let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check \
                           clock skew";
            decision.notes.push(warning("TooManyMissedTimes", message.to_owned()));
        }
        decision.consider(cron, spec, status, at);
    }
    decision
}

impl Decision {
    /// Decides whether a Job is started for a time that has come.
    fn consider(&mut self, cron: &CronJob, spec: &CronJobSpec, status: &CronJobStatus, at: Timestamp) {
        let job = job_name(cron, at);
        let mut active = status.active.iter().flatten();
        let is_started = active.any(|active| active.name.as_deref() == Some(job.as_str()));
        if is_started || status.last_schedule_time.as_ref().is_some_and(|last| last.0 == at) {
            return;
        }
        let has_active = status.active.as_ref().is_some_and(|active| !active.is_empty());
        match spec.concurrency_policy.as_deref() {
            Some("Forbid") if has_active => {
                let message =
                    "Not starting job because prior execution is running and concurrency policy is Forbid";
                return self.notes.push(normal("JobAlreadyActive", message.to_owned()));
            }
            Some("Replace") => self.replaces = has_active,
            _ => {}
        }
        self.start = Some(at);
    }
}

/// Parses the schedule in the time zone of the CronJob, without which it is in UTC.
pub(super) fn schedule(spec: &CronJobSpec) -> Result<Schedule, String> {
    let zone = spec.time_zone.as_deref().and_then(|zone| time_zone(zone).ok()).unwrap_or(TimeZone::UTC);
    Schedule::parse(&spec.schedule, &zone)
}

fn seconds_after(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// Time from which on starts are due: the last one, or the creation of the CronJob.
pub(super) struct Since(Timestamp);

/// Starts that are due.
#[derive(Debug, PartialEq)]
struct Due {
    latest: Option<Timestamp>,
    /// Estimated number of starts since the last one.
    missed: i64,
}

impl Since {
    pub fn of(cron: &CronJob, status: &CronJobStatus) -> Self {
        let created = cron.metadata.creation_timestamp.as_ref();
        let last = status.last_schedule_time.as_ref().or(created);
        Self(last.map_or(Timestamp::UNIX_EPOCH, |time| time.0))
    }

    /// Returns the starts that are due, not counting those whose deadline has passed.
    fn due(&self, schedule: &Schedule, deadline: Option<i64>, now: Timestamp) -> Result<Due, String> {
        let bound = deadline.map_or(Timestamp::MIN, |limit| seconds_after(now, limit.saturating_neg()));
        let too_close = || "time difference between two schedules is less than 1 second".to_owned();
        let first = schedule.next(self.0.max(bound)).ok_or_else(too_close)?;
        if now < first {
            return Ok(Due { latest: None, missed: 0 });
        }
        let second = schedule.next(first).ok_or_else(too_close)?;
        if now < second {
            return Ok(Due { latest: Some(first), missed: 0 });
        }
        // Two starts are far less than all of many years, so their number is estimated by the first interval; from
        // shortly before the end on they are looked at one by one.
        let interval = second.as_second() - first.as_second();
        let missed = (now.as_second() - first.as_second()) / interval.max(1) + 1;
        let mut latest = None;
        let mut next = schedule.next(seconds_after(first, (missed - 2) * interval));
        while let Some(time) = next.filter(|time| *time <= now) {
            latest = Some(time);
            next = schedule.next(time);
        }
        Ok(Due { latest, missed })
    }

    /// Returns the time until the next start; a little longer, because clocks differ.
    pub fn wake(&self, schedule: &Schedule, now: Timestamp) -> Option<Duration> {
        let last = match self.due(schedule, None, now) {
            Ok(Due { latest: Some(time), .. }) => time,
            Ok(Due { latest: None, missed: 0 }) => self.0,
            _ => now,
        };
        schedule.next(last).map(|next| until(next, now) + CRON_DELAY)
    }
}

fn job_name(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", name(&cron.metadata), at.as_second().div_euclid(60))
}

/// Returns the Job for a scheduled time. Its name makes sure that there is only one.
pub(super) fn new_job(cron: &CronJob, spec: &CronJobSpec, at: Timestamp) -> Job {
    let template = spec.job_template.clone();
    let given = template.metadata.unwrap_or_default();
    let zone = spec.time_zone.as_deref().and_then(|zone| time_zone(zone).ok()).unwrap_or(TimeZone::UTC);
    let local = at.to_zoned(zone);
    let format = if local.offset().is_zero() { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%:z" };
    let mut annotations = given.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), local.strftime(format).to_string());
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(cron, at)),
            namespace: cron.metadata.namespace.clone(),
            labels: given.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(cron)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
