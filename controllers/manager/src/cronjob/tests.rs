//! Starts, misses and history by tables, and crashes between any two writes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::Informers;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, from_value, json, to_value};
use tokio_util::sync::CancellationToken;

use super::plan::{Decision, beyond_history, decide, missing, new_job, observe};
use crate::config::Config;
use crate::context::{Context, Tasks};
use crate::meta::name;
use crate::testing::api::FakeApi;
use crate::testing::{self, ambient};

fn time(text: &str) -> Timestamp {
    format!("{text}:00Z").parse().unwrap()
}

/// Returns a CronJob that was created on 2027-01-15 (a Friday) at 08:00.
fn cron(spec: Value) -> CronJob {
    let mut whole = json!({"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": {}}}});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    CronJob { metadata: testing::meta("c"), spec: from_value(whole).unwrap(), status: None }
}

fn decided(spec: Value, status: Value, now: &str) -> Decision {
    let cron = cron(spec);
    decide(&cron, &cron.spec, &from_value(status).unwrap(), time(now))
}

fn reasons(decision: &Decision) -> Vec<&'static str> {
    decision.notes.iter().map(|note| note.reason).collect()
}

/// A specification, a status, the present time, the time of the Job that is started, and the reasons of events.
type Row = (Value, Value, &'static str, Option<&'static str>, &'static [&'static str]);

fn check(rows: impl IntoIterator<Item = Row>) {
    for (spec, status, now, start, expected_reasons) in rows {
        let found = decided(spec.clone(), status.clone(), now);
        let what = format!("{spec} {status} {now}");
        assert_eq!(found.start, start.map(time), "{what}");
        assert_eq!(reasons(&found), expected_reasons, "{what}");
        assert_eq!(found.replaces, spec["concurrencyPolicy"] == "Replace", "{what}");
    }
}

#[test]
fn a_job_is_started_for_the_last_time_that_has_come() {
    let last = |text: &str| json!({"lastScheduleTime": Time(time(text))});
    let active =
        json!({"active": [{"name": "c-1", "uid": "u"}], "lastScheduleTime": Time(time("2027-01-15T09:00"))});
    let name_of_ten = format!("c-{}", time("2027-01-15T10:00").as_second() / 60);
    check([
        (json!({}), json!({}), "2027-01-15T08:59", None, &[][..]),
        (json!({}), json!({}), "2027-01-15T09:00", Some("2027-01-15T09:00"), &[]),
        (json!({}), last("2027-01-15T09:00"), "2027-01-15T09:30", None, &[]),
        (json!({}), last("2027-01-15T09:00"), "2027-01-15T10:01", Some("2027-01-15T10:00"), &[]),
        (json!({}), last("2027-01-15T09:00"), "2027-01-15T15:20", Some("2027-01-15T15:00"), &[]),
        (
            json!({}),
            last("2027-01-10T09:00"),
            "2027-01-15T15:20",
            Some("2027-01-15T15:00"),
            &["TooManyMissedTimes"],
        ),
        (
            json!({"startingDeadlineSeconds": 4000}),
            last("2027-01-10T09:00"),
            "2027-01-15T15:20",
            Some("2027-01-15T15:00"),
            &[],
        ),
        (json!({"startingDeadlineSeconds": 600}), last("2027-01-15T09:00"), "2027-01-15T10:20", None, &[]),
        (json!({"suspend": true}), json!({}), "2027-01-15T09:00", None, &[]),
        (
            json!({"concurrencyPolicy": "Forbid"}),
            active.clone(),
            "2027-01-15T10:00",
            None,
            &["JobAlreadyActive"],
        ),
        (
            json!({"concurrencyPolicy": "Allow"}),
            active.clone(),
            "2027-01-15T10:00",
            Some("2027-01-15T10:00"),
            &[],
        ),
        (
            json!({"concurrencyPolicy": "Replace"}),
            active.clone(),
            "2027-01-15T10:00",
            Some("2027-01-15T10:00"),
            &[],
        ),
        (json!({}), json!({"active": [{"name": name_of_ten, "uid": "u"}]}), "2027-01-15T10:00", None, &[]),
    ]);
    let mut deleted = cron(json!({}));
    deleted.metadata.deletion_timestamp = testing::time(0);
    let found = decide(&deleted, &deleted.spec, &CronJobStatus::default(), time("2027-01-15T09:00"));
    assert_eq!((found.start, found.wake), (None, None));
}

#[test]
fn schedules_and_time_zones_give_the_time_of_the_job() {
    let last = |text: &str| json!({"lastScheduleTime": Time(time(text))});
    check([
        (
            json!({"schedule": "0 8-16/4 * * 1-5"}),
            last("2027-01-14T16:00"),
            "2027-01-18T09:00",
            Some("2027-01-18T08:00"),
            &[][..],
        ),
        (
            json!({"schedule": "@every 7m"}),
            last("2027-01-15T08:00"),
            "2027-01-15T08:30",
            Some("2027-01-15T08:28"),
            &[],
        ),
        (
            json!({"timeZone": "Asia/Tokyo", "schedule": "0 18 * * *"}),
            json!({}),
            "2027-01-15T09:00",
            Some("2027-01-15T09:00"),
            &[],
        ),
        (json!({"timeZone": "No/Where"}), json!({}), "2027-01-15T09:00", None, &["UnknownTimeZone"]),
        (json!({"schedule": "x * * * *"}), json!({}), "2027-01-15T09:00", None, &["UnparseableSchedule"]),
        (json!({"schedule": "59 23 31 2 *"}), json!({}), "2027-01-15T09:00", None, &["InvalidSchedule"]),
        (
            json!({"schedule": "TZ=UTC 0 * * * *"}),
            json!({}),
            "2027-01-15T09:00",
            Some("2027-01-15T09:00"),
            &["UnsupportedSchedule"],
        ),
    ]);
}

#[test]
fn a_start_whose_deadline_has_passed_is_not_caught_up() {
    for (deadline, second, start) in [(30, 29, true), (30, 30, false), (0, 0, false)] {
        let cron = cron(json!({"startingDeadlineSeconds": deadline}));
        let now = time("2027-01-15T09:00") + Duration::from_secs(second);
        let found = decide(&cron, &cron.spec, &CronJobStatus::default(), now);
        assert_eq!(found.start.is_some(), start, "{deadline} {second}");
    }
}

#[test]
fn the_next_look_is_a_moment_after_the_next_start() {
    for (spec, status, now, minutes) in [
        (json!({}), json!({}), "2027-01-15T08:20", 40),
        (json!({}), json!({}), "2027-01-15T09:00", 60),
        (json!({"schedule": "@every 7m"}), json!({}), "2027-01-15T08:30", 5),
        (json!({"schedule": "30 9 * * 1"}), json!({}), "2027-01-15T09:30", 3 * 24 * 60),
    ] {
        let wake = decided(spec.clone(), status, now).wake.unwrap();
        assert_eq!(wake, Duration::from_secs(minutes * 60) + crate::limits::CRON_DELAY, "{spec} {now}");
    }
}

#[test]
fn a_new_schedule_starts_nothing_for_the_past() {
    let (old, new) = (cron(json!({})), cron(json!({"schedule": "*/10 * * * *"})));
    let delay = super::delay_of_new_schedule(&old, &new, time("2027-01-15T08:45")).unwrap();
    assert_eq!(delay.as_secs(), 300);
    assert_eq!(super::delay_of_new_schedule(&old, &old, time("2027-01-15T08:45")), None);
}

/// Returns a Job that ended as `kind` says, or that runs.
fn job(name: &str, kind: &str, start: Option<i64>) -> Arc<Job> {
    let conditions = json!([{"type": kind, "status": "True"}]);
    let mut job = Job { metadata: testing::meta(name), ..Job::default() };
    job.status = from_value(json!({"conditions": conditions, "startTime": start.and_then(testing::time),
        "completionTime": if kind == "Complete" { start.and_then(testing::time) } else { None }}))
    .unwrap();
    Arc::new(job)
}

#[test]
fn the_history_keeps_the_newest_of_each_outcome() {
    let jobs = [
        job("c1", "Complete", Some(1)),
        job("c3", "Complete", Some(3)),
        job("c2", "Complete", Some(2)),
        job("f2", "Failed", None),
        job("f1", "Failed", Some(9)),
        job("r", "Suspended", Some(0)),
    ];
    let removed = |spec: Value| -> Vec<String> {
        let cron = cron(spec);
        let jobs = beyond_history(&cron.spec, &jobs);
        jobs.iter().map(|job| name(&job.metadata).to_owned()).collect()
    };
    let limits =
        |good: i32, bad: i32| json!({"successfulJobsHistoryLimit": good, "failedJobsHistoryLimit": bad});
    assert_eq!(removed(limits(1, 1)), ["c1", "c2", "f1"]);
    assert_eq!(removed(limits(3, 2)), [""; 0]);
    assert_eq!(removed(limits(0, 0)), ["c1", "c2", "c3", "f1", "f2"]);
    assert_eq!(removed(json!({})), [""; 0]);
}

#[test]
fn the_status_follows_the_jobs() {
    let mut status: CronJobStatus = from_value(json!({"active": [
        {"name": "done", "uid": "uid-done"}, {"name": "gone", "uid": "uid-gone"}, {"name": "r", "uid": "uid-r"}]}))
    .unwrap();
    let jobs = [
        job("done", "Complete", Some(5)),
        job("earlier", "Complete", Some(3)),
        job("failed", "Failed", Some(9)),
        job("r", "Suspended", None),
        job("stray", "Suspended", None),
    ];
    let notes = observe(&mut status, &jobs);
    let notes: Vec<_> = notes.iter().map(|note| (note.reason, note.message.as_str())).collect();
    assert_eq!(
        notes,
        [
            ("SawCompletedJob", "Saw completed job: done, condition: Complete"),
            ("UnexpectedJob", "Saw a job that the controller did not create or forgot: stray"),
        ]
    );
    assert_eq!(status.last_successful_time, testing::time(5));
    let lost: Vec<_> = missing(&status, &jobs).into_iter().map(|job| job.name.unwrap()).collect();
    assert_eq!(lost, ["gone"]);
}

#[test]
fn a_job_has_the_name_of_its_minute_and_says_for_when_it_is() {
    let template =
        json!({"metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}}, "spec": {"template": {}}});
    let made = |zone: Option<&str>| {
        let cron = cron(json!({"timeZone": zone, "jobTemplate": template}));
        to_value(new_job(&cron, &cron.spec, time("2027-01-15T09:00"))).unwrap()
    };
    let job = made(None);
    assert_eq!(job["metadata"]["name"], "c-30000060");
    assert_eq!(job["metadata"]["labels"], json!({"a": "b"}));
    let scheduled = "batch.kubernetes.io/cronjob-scheduled-timestamp";
    assert_eq!(job["metadata"]["annotations"], json!({"x": "y", scheduled: "2027-01-15T09:00:00Z"}));
    assert_eq!(job["metadata"]["ownerReferences"][0]["kind"], "CronJob");
    assert_eq!(made(Some("Asia/Tokyo"))["metadata"]["annotations"][scheduled], "2027-01-15T18:00:00+09:00");
}

/// Each scheduled minute gets exactly one Job, and the status names each running one and no other, whichever write
/// the controller dies at.
#[tokio::test(start_paused = true)]
async fn every_minute_gets_one_job_through_crashes_between_any_two_writes() {
    for writes in 1..=10 {
        for is_done in [false, true] {
            run_through_crashes(writes, is_done).await;
        }
    }
}

async fn run_through_crashes(writes: usize, is_done: bool) {
    let (api, ambient) = (FakeApi::new(), ambient());
    let crons: Api<CronJob> = Api::namespaced(api.client(), "ns");
    let jobs: Api<Job> = Api::namespaced(api.client(), "ns");
    let mut object = cron(json!({"schedule": "* * * * *", "successfulJobsHistoryLimit": 2}));
    object.metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        name: Some("c".to_owned()),
        ..Default::default()
    };
    crons.create(&PostParams::default(), &object).await.unwrap();
    let mut minute = 0;
    for life in 0..4 {
        let (client, _) = api.mortal_client(if life < 3 { writes } else { usize::MAX }, is_done);
        let end = CancellationToken::new();
        let informers = Informers::new(client, ambient.clone(), end.clone());
        let context = Context::new(Arc::new(Config::default()), informers, ambient.clone(), end.clone());
        let mut tasks = Tasks::new();
        super::start(&context, &mut tasks);
        for _ in 0..3 {
            minute += 1;
            tokio::time::sleep(Duration::from_secs(61)).await;
            // The Job of the minute before ends.
            let all = api.all("jobs");
            for job in all.iter().rev().skip(1).filter(|job| job["status"]["conditions"].is_null()) {
                let complete = json!({"status": {"startTime": job["metadata"]["creationTimestamp"],
                    "completionTime": Time(ambient.now()), "conditions": [{"type": "Complete", "status": "True"}]}});
                let name = job["metadata"]["name"].as_str().unwrap();
                let patched = jobs.patch_status(name, &PatchParams::default(), &Patch::Merge(complete)).await;
                // An older one may just have been removed from the history.
                assert!(!patched.is_err_and(|error| !controllers_runtime::is_not_found(&error)));
            }
        }
        // Time to see the last end.
        tokio::time::sleep(Duration::from_secs(2)).await;
        end.cancel();
        while tasks.join_next().await.is_some() {}
    }
    let history = api.history("jobs");
    let created: Vec<_> = history
        .iter()
        .filter(|(change, _)| *change == "ADDED")
        .map(|(_, job)| job["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    let distinct: BTreeSet<_> = created.iter().collect();
    assert_eq!(distinct.len(), created.len(), "{writes} {is_done}");
    assert!(created.len() <= minute && created.len() >= 3, "{writes} {is_done}: {created:?}");
    let status = api.all("cronjobs")[0]["status"].clone();
    let running: BTreeSet<_> = api
        .all("jobs")
        .iter()
        .filter(|job| job["status"]["conditions"].is_null())
        .map(|job| job["metadata"]["uid"].clone().to_string())
        .collect();
    let active: Vec<_> =
        status["active"].as_array().into_iter().flatten().map(|job| job["uid"].to_string()).collect();
    assert_eq!(active.iter().cloned().collect::<BTreeSet<_>>(), running, "{writes} {is_done}: {status}");
    assert_eq!(active.len(), running.len(), "{writes} {is_done}: a Job is named twice");
    assert!(api.all("jobs").len() <= 4, "{writes} {is_done}: the history is bounded");
}
