//! Tables of a Job and its pods: the cases of Kubernetes' own tests.

mod scenarios;

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1;
use serde_json::{Value, from_value, json, to_value};

use super::account::{Account, Done, account};
use super::backoff::Failures;
use super::indexes::{FAILURES, INDEX};
use super::plan::{Action, FINALIZER, Input, Plan, plan};
use super::sync::creation_reason;
use crate::limits::{JOB_POD_BURST, JOB_UNCOUNTED};
use crate::meta::{controller_reference, name, uid};
use crate::pods::Pod;
use crate::testing::{self, at, labels, set_ready, slim, time};

/// Returns a Job of one pod, with changes of its spec.
pub(super) fn job(changes: Value, status: Value) -> Job {
    let mut spec = json!({"parallelism": 1, "completions": 1, "backoffLimit": 6,
        "selector": {"matchLabels": {"app": "test"}},
        "template": {"metadata": {"labels": {"app": "test"}}, "spec": {"containers": [], "restartPolicy": "Never"}}});
    for (key, value) in changes.as_object().unwrap() {
        spec[key] = value.clone();
    }
    Job { metadata: testing::meta("j"), spec: from_value(spec).unwrap(), status: from_value(status).unwrap() }
}

/// Returns a pod of the Job that ended, if it did, at second 0.
fn pod(name: &str, phase: &str) -> v1::Pod {
    let mut pod = testing::pod(name);
    pod.metadata.owner_references = Some(vec![controller_reference(&job(json!({}), json!({})))]);
    pod.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let running = phase == "Running";
    set_ready(&mut pod, running, 0);
    let status = pod.status.as_mut().unwrap();
    status.phase = Some(phase.to_owned());
    pod
}

fn indexed(name: &str, phase: &str, index: usize) -> v1::Pod {
    let mut pod = pod(name, phase);
    pod.metadata.annotations = Some(labels(&[(INDEX, &index.to_string())]));
    pod
}

/// Returns pods by phase: `R` running, `P` pending, `S` succeeded, `F` failed, lower case being deleted; those of an
/// Indexed Job have the index after it, as in `R0 S1`.
fn pods(text: &str) -> Vec<v1::Pod> {
    let words = text.split_whitespace().enumerate();
    words
        .map(|(number, word)| {
            let phase = match word.to_uppercase().as_bytes()[0] {
                b'R' => "Running",
                b'P' => "Pending",
                b'S' => "Succeeded",
                b'F' => "Failed",
                _ => panic!("{word}"),
            };
            let mut pod = match word[1..].parse() {
                Ok(index) => indexed(&format!("p{number}"), phase, index),
                Err(_) => pod(&format!("p{number}"), phase),
            };
            if word.starts_with(char::is_lowercase) {
                pod.metadata.deletion_timestamp = time(0);
            }
            pod
        })
        .collect()
}

/// Everything that one reconciliation does, if all requests succeed.
struct Synced {
    plan: Plan,
    /// Status before finalizers are removed.
    first: JobStatus,
    released: Vec<String>,
    status: JobStatus,
    /// Type and reason of the condition with which the Job ended.
    ending: Option<(String, String)>,
}

fn counted(job: &Job, pods: &[v1::Pod], second: i64) -> (Plan, Account) {
    counted_after(job, pods, second, |done| done)
}

fn counted_after(job: &Job, pods: &[v1::Pod], second: i64, done: impl Fn(Done) -> Done) -> (Plan, Account) {
    let input = Input {
        job,
        spec: job.spec.as_ref().unwrap(),
        pods: slim(pods.iter().cloned()),
        failures: Failures::default(),
        now: at(second),
    };
    let plan = plan(&input);
    let ready = |pods: &[Arc<Pod>]| pods.iter().filter(|pod| pod.is_ready()).count();
    let whole = match &plan.action {
        Action::None => Done::default(),
        Action::Create(indexes) => Done { created: indexes.len(), ..Done::default() },
        Action::Remove(pods) | Action::Terminate(pods) => {
            Done { created: 0, deleted: pods.len(), deleted_ready: ready(pods) }
        }
    };
    let account = account(&input, &plan, done(whole));
    (plan, account)
}

fn sync_at(job: &Job, pods: &[v1::Pod], second: i64) -> Synced {
    let (plan, account) = counted(job, pods, second);
    let first = account.status.clone();
    let uids: BTreeSet<String> = account.release.iter().map(|pod| uid(&pod.metadata).to_owned()).collect();
    let released = account.release.iter().map(|pod| name(&pod.metadata).to_owned()).collect();
    let (status, ending) = account.conclude(&uids, at(second));
    let ending = ending.map(|ending| (ending.type_, ending.reason.unwrap_or_default()));
    Synced { plan, first, released, status, ending }
}

fn sync(job: &Job, pods: &[v1::Pod]) -> Synced {
    sync_at(job, pods, 100)
}

/// Returns the action in a short form: `+N` created, `-N` removed, `xN` terminated; indexes of created pods.
fn action(plan: &Plan) -> String {
    match &plan.action {
        Action::None => "none".to_owned(),
        Action::Create(all) if all.iter().all(Option::is_none) => format!("+{}", all.len()),
        Action::Create(all) => {
            let all: Vec<String> = all.iter().map(|index| index.unwrap().to_string()).collect();
            format!("+[{}]", all.join(","))
        }
        Action::Remove(pods) => format!("-{}", pods.len()),
        Action::Terminate(pods) => format!("x{}", pods.len()),
    }
}

/// Active, ready, terminating, succeeded and failed pods of the status.
fn counts(status: &JobStatus) -> [i32; 5] {
    [status.active, status.ready, status.terminating, status.succeeded, status.failed]
        .map(|count| count.unwrap_or(0))
}

fn condition_types(status: &JobStatus) -> Vec<String> {
    let all = status.conditions.iter().flatten().filter(|condition| condition.status == "True");
    all.map(|condition| condition.type_.clone()).collect()
}

#[test]
fn pods_are_created_and_removed_by_parallelism_completions_and_successes() {
    let spec = |parallelism: i32, completions: Value| json!({"parallelism": parallelism, "completions": completions});
    let queue = || Value::Null;
    for (spec, status, given, expected_action, expected_counts, ending) in [
        (spec(2, json!(5)), json!({}), "", "+2", [2, 0, 0, 0, 0], None),
        (spec(2, queue()), json!({}), "", "+2", [2, 0, 0, 0, 0], None),
        (spec(2, json!(5)), json!({}), "P P", "none", [2, 0, 0, 0, 0], None),
        (spec(3, json!(5)), json!({}), "R R P", "none", [3, 2, 0, 0, 0], None),
        (spec(2, json!(5)), json!({}), "R S", "+1", [2, 1, 0, 1, 0], None),
        (spec(2, json!(5)), json!({}), "R F", "+1", [2, 1, 0, 0, 1], None),
        (spec(2, json!(5)), json!({"succeeded": 3}), "R S", "none", [1, 1, 0, 4, 0], None),
        (spec(5, json!(5)), json!({}), "S S S S S", "none", [0, 0, 0, 5, 0], Some("Complete")),
        (spec(2, json!(2)), json!({"succeeded": 2}), "", "none", [0, 0, 0, 2, 0], Some("Complete")),
        (spec(2, queue()), json!({}), "R S", "none", [1, 1, 0, 1, 0], None),
        (spec(2, queue()), json!({}), "S S", "none", [0, 0, 0, 2, 0], Some("Complete")),
        (spec(2, queue()), json!({}), "S F", "none", [0, 0, 0, 1, 1], Some("Complete")),
        (spec(2, json!(5)), json!({}), "R R R R", "-2", [2, 2, 2, 0, 0], None),
        (spec(4, json!(5)), json!({}), "R R R S S S S", "-2", [1, 1, 2, 4, 0], None),
        (spec(0, json!(5)), json!({}), "R", "-1", [0, 0, 1, 0, 0], None),
        (spec(0, json!(0)), json!({}), "", "none", [0, 0, 0, 0, 0], Some("Complete")),
        (spec(2, json!(2)), json!({}), "r R", "+1", [2, 1, 1, 0, 1], None),
        (spec(1, json!(1)), json!({}), "S r", "none", [0, 0, 1, 1, 1], None),
    ] {
        let found = sync(&job(spec.clone(), status), &pods(given));
        let what = format!("{spec} {given}");
        assert_eq!(action(&found.plan), expected_action, "{what}");
        assert_eq!(counts(&found.status), expected_counts, "{what}");
        assert_eq!(found.ending.map(|(kind, _)| kind).as_deref(), ending, "{what}");
    }
    let many = sync(&job(json!({"parallelism": 2000, "completions": 5000}), json!({})), &[]);
    assert_eq!(action(&many.plan), format!("+{JOB_POD_BURST}"));
}

#[test]
fn a_complete_job_says_so_twice_and_when() {
    let found = sync(&job(json!({}), json!({})), &pods("S"));
    assert_eq!(condition_types(&found.first), ["SuccessCriteriaMet"]);
    assert_eq!(found.first.uncounted_terminated_pods.unwrap().succeeded.unwrap(), ["uid-p0"]);
    assert_eq!(found.first.succeeded, None, "counted only once the finalizer is gone");
    assert_eq!(found.released, ["p0"]);
    assert_eq!(condition_types(&found.status), ["SuccessCriteriaMet", "Complete"]);
    assert_eq!(found.status.completion_time.unwrap().0, at(100));
    assert_eq!(to_value(found.status.uncounted_terminated_pods).unwrap(), json!({}));
    let complete = &found.status.conditions.unwrap()[1];
    assert_eq!(complete.reason.as_deref(), Some("CompletionsReached"));
    assert_eq!(complete.message.as_deref(), Some("Reached expected number of succeeded pods"));
}

#[test]
fn a_job_fails_by_its_limits_and_terminates_its_pods() {
    let target = |reason: &str| json!({"conditions": [{"type": "FailureTarget", "status": "True", "reason": reason, "message": "m"}]});
    for (spec, status, given, expected_action, reason) in [
        (json!({"backoffLimit": 0}), json!({}), "F", "x0", Some("BackoffLimitExceeded")),
        (json!({"backoffLimit": 1}), json!({}), "F", "+1", None),
        (json!({"backoffLimit": 1}), json!({"failed": 1}), "F", "x0", Some("BackoffLimitExceeded")),
        (json!({"backoffLimit": 1, "parallelism": 3, "completions": 3}), json!({}), "F F R", "x1", None),
        (
            json!({"activeDeadlineSeconds": 99}),
            json!({"startTime": time(0)}),
            "",
            "x0",
            Some("DeadlineExceeded"),
        ),
        (json!({"activeDeadlineSeconds": 101}), json!({"startTime": time(0)}), "", "+1", None),
        (
            json!({"activeDeadlineSeconds": 9, "suspend": true}),
            json!({"startTime": time(0)}),
            "",
            "none",
            None,
        ),
        (json!({}), target("DeadlineExceeded"), "", "x0", Some("DeadlineExceeded")),
        (json!({}), target("PodFailurePolicy"), "R", "x1", None),
    ] {
        let found = sync(&job(spec.clone(), status), &pods(given));
        assert_eq!(action(&found.plan), expected_action, "{spec} {given}");
        let failed = reason.map(|reason| ("Failed".to_owned(), reason.to_owned()));
        assert_eq!(found.ending, failed, "{spec} {given}");
    }
}

#[test]
fn a_failing_job_is_failed_only_when_its_pods_have_ended() {
    let mut job = job(json!({"backoffLimit": 0, "parallelism": 2, "completions": 2}), json!({}));
    let first = sync(&job, &pods("F R"));
    assert_eq!(action(&first.plan), "x1");
    assert_eq!(first.released, ["p0", "p1"]);
    assert_eq!((counts(&first.status), first.ending), ([0, 0, 1, 0, 2], None));
    assert_eq!(condition_types(&first.first), ["FailureTarget"]);
    job.status = Some(first.status);
    let mut left = pods("R r");
    left.remove(0);
    left[0].metadata.finalizers = None;
    let second = sync(&job, &left);
    assert_eq!((counts(&second.status), &second.ending), ([0, 0, 1, 0, 2], &None));
    let last = sync(&job, &[]);
    assert_eq!(counts(&last.status), [0, 0, 0, 0, 2]);
    assert_eq!(condition_types(&last.status), ["FailureTarget", "Failed"]);
    assert!(last.status.completion_time.is_none());
}

#[test]
fn a_job_with_pods_that_cannot_be_deleted_goes_on() {
    let job = job(json!({"backoffLimit": 0, "parallelism": 2, "completions": 2}), json!({}));
    let (_, account) = counted_after(&job, &pods("F R"), 100, |done| Done { deleted: 0, ..done });
    assert!(condition_types(&account.status).is_empty());
    assert_eq!(account.release.len(), 1, "the failed one is counted");
}

#[test]
fn restarted_containers_count_towards_the_limit() {
    let template = json!({"spec": {"containers": [], "restartPolicy": "OnFailure"}});
    let mut pod = pod("p", "Running");
    let container = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 3});
    pod.status.as_mut().unwrap().container_statuses = Some(vec![from_value(container).unwrap()]);
    for (limit, expected) in [(0, "x1"), (3, "x1"), (4, "none")] {
        let job = job(json!({"backoffLimit": limit, "template": template}), json!({}));
        assert_eq!(action(&sync(&job, &[pod.clone()]).plan), expected, "{limit}");
    }
    let never = job(json!({"backoffLimit": 0}), json!({}));
    assert_eq!(action(&sync(&never, &[pod]).plan), "none");
}

#[test]
fn failed_pods_are_replaced_after_a_growing_delay() {
    let job = job(json!({"parallelism": 2, "completions": 2}), json!({}));
    let waiting = sync_at(&job, &pods("F R"), 4);
    assert_eq!((action(&waiting.plan).as_str(), waiting.plan.wake.unwrap().as_secs()), ("none", 6));
    assert_eq!(counts(&waiting.status), [1, 1, 0, 0, 1]);
    assert_eq!(action(&sync_at(&job, &pods("F R"), 10).plan), "+1");
    assert_eq!(sync_at(&job, &pods("F F"), 15).plan.wake.unwrap().as_secs(), 5);
}

#[test]
fn a_deadline_wakes_the_job() {
    let job = job(json!({"activeDeadlineSeconds": 30}), json!({"startTime": time(90)}));
    assert_eq!(sync(&job, &pods("R")).plan.wake.unwrap().as_secs(), 20);
}

#[test]
fn a_suspended_job_has_no_pods_and_no_start() {
    let suspended =
        job(json!({"suspend": true, "parallelism": 2, "completions": 2}), json!({"startTime": time(5)}));
    let (plan, account) = counted(&suspended, &pods("R S"), 100);
    assert_eq!((action(&plan).as_str(), account.suspended), ("-1", Some(true)));
    let found = sync(&suspended, &pods("R S"));
    assert_eq!(counts(&found.status), [0, 0, 1, 1, 0]);
    assert_eq!(
        (condition_types(&found.status), &found.status.start_time),
        (vec!["Suspended".to_owned()], &None)
    );

    let spec = json!({"suspend": true, "parallelism": 2, "completions": 2});
    let again = job(spec, to_value(&found.status).unwrap());
    assert_eq!(counted(&again, &[], 110).1.suspended, None);
    let resumed =
        job(json!({"parallelism": 2, "completions": 2}), to_value(sync(&again, &[]).status).unwrap());
    let (plan, account) = counted(&resumed, &[], 200);
    assert_eq!((action(&plan).as_str(), account.suspended), ("+1", Some(false)));
    assert_eq!(account.status.start_time.unwrap().0, at(200));

    let new = sync(&job(json!({"suspend": true}), json!({})), &[]);
    assert_eq!((action(&new.plan).as_str(), new.status.start_time), ("none", None));
    let done = sync(&job(json!({"suspend": true}), json!({"succeeded": 1})), &[]);
    assert_eq!(done.ending.unwrap().0, "Complete");
}

#[test]
fn reason_of_a_creation_is_that_of_kubernetes() {
    for (policy, status, given, expected) in [
        (json!({}), json!({}), "R", "new"),
        (json!({}), json!({}), "F", "recreate_terminating_or_failed"),
        (json!({}), json!({}), "r", "recreate_terminating_or_failed"),
        (json!({}), json!({"failed": 1}), "", "recreate_terminating_or_failed"),
        (json!({"podReplacementPolicy": "Failed"}), json!({}), "F", "recreate_failed"),
        (json!({"podReplacementPolicy": "Failed"}), json!({}), "R", "new"),
        (
            json!({"podReplacementPolicy": "TerminatingOrFailed"}),
            json!({}),
            "r",
            "recreate_terminating_or_failed",
        ),
    ] {
        let job = job(policy.clone(), status);
        let input = Input {
            job: &job,
            spec: job.spec.as_ref().unwrap(),
            pods: slim(pods(given)),
            failures: Failures::default(),
            now: at(100),
        };
        assert_eq!(creation_reason(&input), expected, "{policy} {given}");
    }
}

#[test]
fn terminating_pods_are_replaced_at_once_or_only_when_they_have_ended() {
    let two = |more: Value| {
        let mut spec = json!({"parallelism": 2, "completions": 2});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job(spec, json!({}))
    };
    for (spec, given, expected_action, failed) in [
        (json!({}), "r R", "+1", 1),
        (json!({"podReplacementPolicy": "TerminatingOrFailed"}), "r R", "+1", 1),
        (json!({"podReplacementPolicy": "Failed"}), "r R", "none", 0),
        (json!({"podReplacementPolicy": "Failed"}), "f R", "+1", 1),
        (json!({"podFailurePolicy": {"rules": []}}), "r R", "none", 0),
    ] {
        let found = sync(&two(spec.clone()), &pods(given));
        assert_eq!(
            (action(&found.plan).as_str(), counts(&found.status)[4]),
            (expected_action, failed),
            "{spec}"
        );
    }
}

#[test]
fn pods_are_released_without_a_count_if_the_policy_ignores_them() {
    let rule = |action: &str| {
        json!({"parallelism": 2, "completions": 2, "podFailurePolicy": {"rules": [
            {"action": action, "onPodConditions": [{"type": "Ready", "status": "False"}]}]}})
    };
    let ignored = sync(&job(rule("Ignore"), json!({})), &pods("F R"));
    assert_eq!((counts(&ignored.status)[4], ignored.released), (0, vec!["p0".to_owned()]));
    let counted = sync(&job(rule("Count"), json!({})), &pods("F R"));
    assert_eq!(counts(&counted.status)[4], 1);
    let failed = sync(&job(rule("FailJob"), json!({})), &pods("F"));
    assert_eq!(failed.ending.unwrap(), ("Failed".to_owned(), "PodFailurePolicy".to_owned()));
    let message = failed.status.conditions.unwrap()[1].message.clone().unwrap();
    assert_eq!(message, "Pod ns/p0 has condition Ready matching FailJob rule at index 0");
}

#[test]
fn only_pods_with_a_finalizer_count_and_each_uid_once() {
    let spec = json!({"parallelism": 2, "completions": 9});
    let mut counted_before = pods("S F");
    counted_before.iter_mut().for_each(|pod| pod.metadata.finalizers = None);
    let found = sync(&job(spec.clone(), json!({"succeeded": 1, "failed": 1})), &counted_before);
    assert_eq!(counts(&found.status)[3..], [1, 1]);

    // A crash after the status was written, before the finalizers were removed.
    let listed = json!({"uncountedTerminatedPods": {"succeeded": ["uid-p0"], "failed": ["uid-p1"]}});
    let found = sync(&job(spec.clone(), listed.clone()), &pods("S F"));
    assert_eq!((counts(&found.status)[3..].to_vec(), found.released.len()), (vec![1, 1], 2));
    // After the finalizers were removed, before the counters were written; the pods may be gone by then.
    for left in [counted_before, Vec::new()] {
        let found = sync(&job(spec.clone(), listed.clone()), &left);
        assert_eq!((counts(&found.status)[3..].to_vec(), found.released.len()), (vec![1, 1], 0));
        assert_eq!(to_value(found.status.uncounted_terminated_pods).unwrap(), json!({}));
    }
    // A pod that was listed as failed because of its deletion, and then succeeds.
    let listed = json!({"uncountedTerminatedPods": {"failed": ["uid-p0"]}});
    assert_eq!(counts(&sync(&job(spec, listed), &pods("s")).status)[3..], [0, 1]);
}

#[test]
fn a_pod_whose_finalizer_could_not_be_removed_stays_uncounted() {
    let job = job(json!({"parallelism": 2, "completions": 2}), json!({}));
    let (_, account) = counted(&job, &pods("S S"), 100);
    let (status, ending) = account.conclude(&BTreeSet::from(["uid-p0".to_owned()]), at(100));
    assert_eq!((status.succeeded, ending), (Some(1), None));
    assert_eq!(status.uncounted_terminated_pods.unwrap().succeeded.unwrap(), ["uid-p1"]);
}

#[test]
fn the_list_of_uncounted_pods_is_bounded() {
    let many = JOB_UNCOUNTED + 7;
    let found =
        sync(&job(json!({"parallelism": 1, "completions": many}), json!({})), &pods(&"S ".repeat(many)));
    assert_eq!((found.released.len(), found.ending), (JOB_UNCOUNTED, None));
    let size = found.first.uncounted_terminated_pods.unwrap().succeeded.unwrap().len();
    assert_eq!(
        (size, found.status.succeeded.unwrap()),
        (JOB_UNCOUNTED, i32::try_from(JOB_UNCOUNTED).unwrap())
    );
}

#[test]
fn pods_of_a_job_that_is_being_deleted_are_released_and_none_is_created() {
    let mut job = job(json!({"parallelism": 3, "completions": 3}), json!({}));
    job.metadata.deletion_timestamp = time(1);
    let found = sync(&job, &pods("R F"));
    assert_eq!((action(&found.plan).as_str(), found.released.len()), ("none", 2));
    assert_eq!(counts(&found.status)[3..], [0, 1]);
}

fn indexed_job(changes: Value, status: Value) -> Job {
    let mut spec = json!({"parallelism": 2, "completions": 5, "completionMode": "Indexed"});
    spec.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    job(spec, status)
}

#[test]
fn indexes_are_created_completed_and_written_as_intervals() {
    for (changes, status, given, expected_action, completed, ending) in [
        (json!({}), json!({}), "", "+[0,1]", None, None),
        (json!({}), json!({}), "R0 S1", "+[2]", Some("1"), None),
        (json!({}), json!({"completedIndexes": "0-2"}), "S3 R4", "none", Some("0-3"), None),
        (json!({}), json!({"completedIndexes": "0-2"}), "S3 S4", "none", Some("0-4"), Some("Complete")),
        (json!({}), json!({"completedIndexes": "0"}), "S0 R1", "+[2]", Some("0"), None),
        (json!({}), json!({}), "R0 R0", "-1", None, None),
        (json!({}), json!({}), "R0 R", "-1", None, None),
        (json!({}), json!({}), "R0 R7", "-1", None, None),
        (json!({}), json!({}), "S7 R0", "+[1]", None, None),
        (json!({"parallelism": 4}), json!({"completedIndexes": "1,3"}), "R2", "+[0,4]", Some("1,3"), None),
        (json!({"parallelism": 2}), json!({}), "F0 R1", "+[0]", None, None),
        // An elastic Job that became smaller forgets the indexes beyond, and ends if the others have succeeded.
        (
            json!({"completions": 2}),
            json!({"completedIndexes": "0-3"}),
            "",
            "none",
            Some("0,1"),
            Some("Complete"),
        ),
        (json!({"completions": 2}), json!({}), "R0 R1 R2", "-1", None, None),
        (json!({"podReplacementPolicy": "Failed"}), json!({}), "r0 R1", "none", None, None),
        (json!({"podReplacementPolicy": "Failed", "parallelism": 3}), json!({}), "r0 R1", "+[2]", None, None),
    ] {
        let found = sync(&indexed_job(changes.clone(), status), &pods(given));
        let what = format!("{changes} {given}");
        assert_eq!(action(&found.plan), expected_action, "{what}");
        assert_eq!(found.status.completed_indexes.as_deref(), completed, "{what}");
        assert_eq!(found.ending.map(|(kind, _)| kind).as_deref(), ending, "{what}");
    }
    let found = sync(&indexed_job(json!({}), json!({})), &pods("S0 F1 F9 S9"));
    assert_eq!(counts(&found.status)[3..], [1, 1], "pods beyond the completions do not count");
    assert_eq!(found.released.len(), 4);
}

#[test]
fn a_success_policy_ends_a_job_early_without_counting_its_running_pods() {
    let policy = json!({"successPolicy": {"rules": [{"succeededIndexes": "0"}]}});
    let mut job = indexed_job(policy, json!({}));
    let first = sync(&job, &pods("S0 R1"));
    assert_eq!((action(&first.plan).as_str(), first.released.len()), ("x1", 2));
    assert_eq!(counts(&first.status), [0, 0, 1, 1, 0]);
    let met = &first.first.conditions.as_ref().unwrap()[0];
    assert_eq!((met.type_.as_str(), met.reason.as_deref()), ("SuccessCriteriaMet", Some("SuccessPolicy")));
    assert_eq!(met.message.as_deref(), Some("Matched rules at index 0"));
    job.status = Some(first.status);
    let last = sync(&job, &[]);
    assert_eq!(last.ending.unwrap(), ("Complete".to_owned(), "SuccessPolicy".to_owned()));
    assert_eq!(condition_types(&last.status), ["SuccessCriteriaMet", "Complete"]);
}

/// Returns pods as [`pods`] does, whose index has failed that many times before.
fn pods_after(failures: &str, text: &str) -> Vec<v1::Pod> {
    let mut pods = pods(text);
    for pod in &mut pods {
        pod.metadata.annotations.as_mut().unwrap().insert(FAILURES.to_owned(), failures.to_owned());
    }
    pods
}

#[test]
fn each_index_has_its_own_limit_and_back_off() {
    let per_index = |changes: Value| {
        let mut spec = json!({"backoffLimitPerIndex": 1, "backoffLimit": i32::MAX});
        spec.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        indexed_job(spec, json!({}))
    };
    let job = per_index(json!({}));
    // The failed pod stays until its replacement is there, because it has the count.
    let retried = sync(&job, &pods_after("0", "F0 R1"));
    assert_eq!((action(&retried.plan).as_str(), retried.released.len()), ("+[0]", 0));
    assert_eq!(retried.status.failed_indexes.as_deref(), Some(""));
    let soon = sync_at(&job, &pods_after("0", "F0 R1"), 3);
    assert_eq!((action(&soon.plan).as_str(), soon.plan.wake.unwrap().as_secs()), ("none", 7));
    let other = sync_at(&job, &pods_after("0", "F0"), 3);
    assert_eq!((action(&other.plan).as_str(), other.plan.wake.unwrap().as_secs()), ("+[1]", 7));
    let replaced = sync(&job, &pods_after("0", "F0 R0 R1"));
    assert_eq!((replaced.released, counts(&replaced.status)[4]), (vec!["p0".to_owned()], 1));

    let failed = sync(&job, &pods_after("1", "F0 R1"));
    assert_eq!((action(&failed.plan).as_str(), failed.status.failed_indexes.as_deref()), ("+[2]", Some("0")));
    assert_eq!(failed.released, ["p0"]);

    let few = per_index(json!({"maxFailedIndexes": 1}));
    let exceeded = sync(&few, &pods_after("1", "F0 F3"));
    assert_eq!(exceeded.ending.unwrap().1, "MaxFailedIndexesExceeded");
    assert_eq!(exceeded.status.failed_indexes.as_deref(), Some("0,3"));
    let all = per_index(json!({"completions": 2}));
    assert_eq!(sync(&all, &pods_after("1", "F0 S1")).ending.unwrap().1, "FailedIndexes");

    let policy = json!({"rules": [{"action": "FailIndex", "onPodConditions": [{"type": "Ready", "status": "False"}]}]});
    let at_once = sync(&per_index(json!({"podFailurePolicy": policy})), &pods_after("0", "F0 R1"));
    assert_eq!(
        (at_once.status.failed_indexes.as_deref(), action(&at_once.plan).as_str()),
        (Some("0"), "+[2]")
    );
}
