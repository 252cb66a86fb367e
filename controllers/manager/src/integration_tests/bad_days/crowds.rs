//! Thousands of broken objects beside ten good ones, and objects of absurd sizes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Cluster, Failure, Fault, Line, begin, labelled, names, object, post, selector};
use crate::testing::ambient;
use crate::testing::api::FakeApi;

const APPS: &str = "/apis/apps/v1/namespaces/ns";
const JOBS: &str = "/apis/batch/v1/namespaces/ns/jobs";
const GOOD: usize = 10;
const CONTROLLERS: [&str; 3] = ["deployment-controller", "replicaset-controller", "job-controller"];
/// Time that each request takes.
const LATENCY: Duration = Duration::from_millis(50);
/// Seconds that a request takes that hangs.
const HANGS: u64 = 60;

/// Returns the number of broken objects: `BROKEN_OBJECTS`, or as many as a debug build handles in a few seconds.
fn broken() -> usize {
    std::env::var("BROKEN_OBJECTS").map_or(2000, |text| text.parse().unwrap())
}

/// Returns a workload with these fields in its specification.
fn workload(name: &str, further: &Value) -> Value {
    let mut object = json!({"metadata": {"name": name}, "spec": {"replicas": 1, "progressDeadlineSeconds": 600,
        "serviceName": name, "selector": selector(name), "template": labelled(name, "image:1")}});
    for (field, value) in further.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

/// Returns the fields of a Job with one pod.
fn job() -> Value {
    json!({"completions": 1, "parallelism": 1, "backoffLimit": 6})
}

/// Creates broken objects of all sorts. The API refuses everything that is written for those named `bad`.
async fn break_much(api: &FakeApi, count: usize) {
    let bogus =
        json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Bogus", "values": ["x"]}]}});
    let client = api.client();
    for number in 0..count / 5 {
        for (path, name, further) in [
            // A number that is a text: it cannot be deserialized.
            (format!("{APPS}/deployments"), "unreadable", json!({"replicas": "many"})),
            (format!("{APPS}/deployments"), "bad", json!({})),
            (format!("{APPS}/replicasets"), "bogus", bogus.clone()),
            (format!("{APPS}/replicasets"), "bad", json!({})),
            (JOBS.to_owned(), "bad", job()),
        ] {
            post(&client, &path, &workload(&format!("{name}-{number}"), &further)).await;
        }
    }
}

/// Creates Deployments and Jobs that are in order, with names that begin with `prefix`; returns the time until all of
/// them have pods.
async fn time_of_the_good(cluster: &Cluster, prefix: &str) -> Duration {
    let begun = Instant::now();
    for number in 0..GOOD {
        let (path, name) = (format!("{APPS}/deployments"), format!("{prefix}-{number}"));
        post(&cluster.client, &path, &workload(&name, &json!({}))).await;
        post(&cluster.client, JOBS, &workload(&format!("{prefix}-job-{number}"), &job())).await;
    }
    while names(&cluster.api, "pods", prefix).len() < 2 * GOOD {
        tokio::time::sleep(LATENCY).await;
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", names(&cluster.api, "pods", prefix));
    }
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_good_do_not_wait_for_the_retries_of_thousands_of_broken_objects() {
    let api = FakeApi::new();
    let writes = &["create", "update", "patch", "delete"];
    let refused = Failure::Refused(403, "Forbidden", "admission webhook \"x\" denied the request: no");
    let fault = Fault { verbs: writes, names: "bad", ..Fault::of(refused, 0..1_000_000) };
    let line = Line::new(&api, vec![fault]).with_latency(LATENCY);
    let count = broken();
    let cluster = begin(&api, line.client(), ambient(), &CONTROLLERS).await;
    break_much(&api, count).await;
    // Each has failed once by then: a fifth are Deployments, for each of which three of 320 requests a second are sent.
    let settled = 2 + u64::try_from(count).unwrap() / 400;
    line.until(settled).await;
    let before = line.asked(0..u64::MAX).len();
    let took = time_of_the_good(&cluster, "good").await;
    let asked = line.asked(0..u64::MAX).split_off(before);
    // Four steps, each as long as a request or two.
    assert!(took <= 30 * LATENCY, "{count} broken: {took:?}, {} requests, {before} before", asked.len());
    assert!(names(&api, "pods", "").len() == 2 * GOOD, "a broken object has pods");
}

#[tokio::test(start_paused = true)]
async fn the_good_do_not_wait_for_thousands_of_objects_at_which_each_attempt_hangs() {
    let api = FakeApi::new();
    let writes = &["create", "update", "patch", "delete"];
    let fault = Fault { verbs: writes, names: "bad", ..Fault::of(Failure::Hangs(HANGS), 0..1_000_000_000) };
    let line = Line::new(&api, vec![fault]).with_latency(LATENCY);
    let count = broken();
    let cluster = begin(&api, line.client(), ambient(), &CONTROLLERS).await;
    for number in 0..count / 3 {
        let name = format!("bad-{number}");
        for (path, further) in [
            (format!("{APPS}/deployments"), json!({})),
            (format!("{APPS}/replicasets"), json!({})),
            (JOBS.to_owned(), job()),
        ] {
            post(&cluster.client, &path, &workload(&name, &further)).await;
        }
    }
    // Each has failed once by then: twelve of the 16 workers of a controller try each for the first time, and an attempt
    // has two requests that hang. All attempts of one round take longer than any pause between them.
    let settled = 4 * HANGS * u64::try_from(count / 3).unwrap() / 16;
    for (round, prefix) in (0..).zip(["good-a", "good-b", "good-c"]) {
        line.until(settled + 777 * round).await;
        let took = time_of_the_good(&cluster, prefix).await;
        assert!(took <= 30 * LATENCY, "{count} hang: {took:?}");
    }
    assert!(names(&api, "pods", "bad").is_empty(), "a broken object has pods");
}

#[tokio::test(start_paused = true)]
async fn objects_of_absurd_sizes_are_handled_without_hurting_others() {
    let api = FakeApi::new();
    let refused = Failure::Refused(403, "Forbidden", "exceeded quota: q, requested: pods=1");
    let fault =
        Fault { verbs: &["create"], resources: &["pods"], names: "many", ..Fault::of(refused, 0..1_000_000) };
    let line = Line::new(&api, vec![fault]);
    let controllers =
        ["deployment-controller", "replicaset-controller", "statefulset-controller", "job-controller"];
    let cluster = begin(&api, line.client(), ambient(), &controllers).await;
    let most_replicas = json!({"replicas": i32::MAX, "minReadySeconds": i32::MAX, "strategy":
        {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": i32::MAX}}});
    let parallel =
        json!({"replicas": i32::MAX, "podManagementPolicy": "Parallel", "minReadySeconds": i32::MAX});
    let job = json!({"completions": i32::MAX, "parallelism": i32::MAX, "backoffLimit": i32::MAX,
        "activeDeadlineSeconds": i64::MAX});
    for (path, further) in [
        (format!("{APPS}/deployments"), &most_replicas),
        (format!("{APPS}/statefulsets"), &parallel),
        (JOBS.to_owned(), &job),
    ] {
        post(&cluster.client, &path, &workload("many", further)).await;
    }
    // Half a megabyte of annotations, which a Deployment hands on to its ReplicaSets.
    let mut large = workload("large", &json!({}));
    large["metadata"]["annotations"] = json!({"text": "x".repeat(512 * 1024)});
    post(&cluster.client, &format!("{APPS}/deployments"), &large).await;
    line.until(2).await;
    let mut scaled = large.clone();
    scaled["metadata"]["name"] = json!("small");
    post(&cluster.client, &format!("{APPS}/deployments"), &scaled).await;
    line.until(60).await;
    assert_eq!((names(&api, "pods", "large").len(), names(&api, "pods", "small").len()), (1, 1));
    assert!(names(&api, "pods", "many").is_empty());
    let healthy = cluster.metrics.health();
    assert!(healthy.iter().all(|(_, healthy)| *healthy), "{healthy:?}");
    let tried = line.asked(0..60).iter().filter(|one| one.plural() == "pods" && one.verb == "create").count();
    assert!((30..150).contains(&tried), "{tried} attempts at pods");
    let size = |plural: &str| object(&api, plural, "many").unwrap()["status"].to_string().len();
    assert!(size("deployments") + size("statefulsets") + size("jobs") < 10_000);
}
