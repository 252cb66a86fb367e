//! Clocks that are set forward by a day, or back by an hour.

use std::time::Duration;

use apiserver_client::Informers;
use controllers_runtime::LeaderElection;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::world::World;
use super::{Line, begin, labelled, names, object, post, selector};
use crate::testing::WallClock;
use crate::testing::api::FakeApi;
use crate::{Config, select};

const DAY: i64 = 24 * 60 * 60;
const HOUR: i64 = 60 * 60;

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_loses_no_node_and_deletes_no_pod_that_is_wanted() {
    for jump in [DAY, -HOUR] {
        let world = World::begin(&[], false).await;
        let since = Instant::now();
        world.clock.jump(jump);
        world.line.until(12).await;
        world.change().await;
        world.line.until(110).await;
        assert_eq!((world.unfinished(), world.wrongs(since)), (vec![], vec![]), "{jump}");
        let quiet = world.line.asked(80..110).into_iter().filter(super::Asked::writes).count();
        assert!(quiet < 20, "{jump}: {quiet} writes of controllers at rest");
    }
}

/// Returns the Job of this name: its pod runs for ever, unless it succeeds.
fn job(name: &str, further: &Value) -> Value {
    let mut template = labelled(name, "image:1");
    template["spec"]["restartPolicy"] = json!("Never");
    let mut spec = json!({"completions": 1, "parallelism": 1, "backoffLimit": 6, "selector": selector(name),
        "template": template});
    for (field, value) in further.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

/// One row: what a jump of the clock does to a Job with a deadline of 10 minutes, one that ended and stays for 10
/// minutes, and a CronJob of each hour.
struct Row {
    jump: i64,
    /// True if the Job has exceeded its deadline 30 s after the jump.
    exceeded: bool,
    /// True if the Job that ended is deleted.
    deleted: bool,
    /// Jobs of the CronJob within the next half hour, besides the one before.
    started: usize,
}

#[tokio::test(start_paused = true)]
async fn deadlines_and_schedules_follow_a_clock_that_jumps_and_nothing_is_started_twice() {
    for Row { jump, exceeded, deleted, started } in [
        Row { jump: DAY, exceeded: true, deleted: true, started: 1 },
        Row { jump: -HOUR, exceeded: false, deleted: false, started: 0 },
        Row { jump: 0, exceeded: false, deleted: false, started: 0 },
    ] {
        let (api, clock) = (FakeApi::new(), WallClock::new());
        let line = Line::new(&api, Vec::new());
        let controllers = ["job-controller", "cronjob-controller", "ttl-after-finished-controller"];
        let cluster = begin(&api, line.client(), clock.ambient(), &controllers).await;
        let jobs = "/apis/batch/v1/namespaces/ns/jobs";
        // A minute before the full hour, so that the CronJob has started one Job before the jump.
        clock.jump(HOUR - 60);
        post(&cluster.client, jobs, &job("slow", &json!({"activeDeadlineSeconds": 600}))).await;
        post(&cluster.client, jobs, &job("done", &json!({"ttlSecondsAfterFinished": 600}))).await;
        let cron = json!({"metadata": {"name": "hourly"}, "spec": {"schedule": "0 * * * *",
            "jobTemplate": {"spec": job("hourly", &json!({}))["spec"]}}});
        post(&cluster.client, "/apis/batch/v1/namespaces/ns/cronjobs", &cron).await;
        line.until(5).await;
        let done = names(&api, "pods", "done").remove(0);
        let succeeded = json!({"status": {"phase": "Succeeded"}});
        super::patch(&cluster.client, &format!("/api/v1/namespaces/ns/pods/{done}/status"), &succeeded).await;
        line.until(90).await;
        let before = names(&api, "jobs", "hourly-").len();
        assert_eq!(before, 1);
        clock.jump(jump);
        // Something about the Jobs changes soon.
        for name in ["slow", "done"] {
            api.change("jobs", name, |job| job["metadata"]["labels"] = json!({"seen": "true"}));
        }
        line.until(120).await;
        let ended = object(&api, "jobs", "slow").unwrap()["status"]["conditions"].to_string();
        assert_eq!(ended.contains("DeadlineExceeded"), exceeded, "{jump}: {ended}");
        // The garbage collector, which does not run here, removes it once its pods are gone.
        let done = object(&api, "jobs", "done").unwrap();
        assert_eq!(!done["metadata"]["deletionTimestamp"].is_null(), deleted, "{jump}");
        line.until(90 + 1800).await;
        let hourly: Vec<_> = api
            .history("jobs")
            .into_iter()
            .filter(|(change, job)| {
                *change == "ADDED" && job["metadata"]["name"].as_str().unwrap().starts_with("hourly-")
            })
            .collect();
        assert_eq!(hourly.len(), before + started, "{jump}");
        assert!(line.asked(600..1800).len() < 60, "{jump}: {:?}", super::most(&line.asked(600..1800)));
    }
}

#[tokio::test(start_paused = true)]
async fn leader_keeps_its_lease_whatever_the_clocks_of_the_contenders_say() {
    const LEASE: &str = "kube-controller-manager";
    let api = FakeApi::new();
    let contender = |identity: &str, clock: &WallClock| {
        let shutdown = CancellationToken::new();
        let informers = Informers::new(api.client(), clock.ambient(), shutdown.clone());
        let leader_election = Some(LeaderElection::new(LEASE, identity));
        let controllers = select(["ttl-controller"]).unwrap();
        let config = Config { leader_election, controllers, ..Config::default() };
        (shutdown.clone(), tokio::spawn(crate::run(config, informers, clock.ambient(), shutdown)))
    };
    let clocks = [WallClock::new(), WallClock::new()];
    let (first, leads) = contender("first", &clocks[0]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (second, waits) = contender("second", &clocks[1]);
    for jump in [DAY, -HOUR, -2 * DAY, HOUR] {
        for clock in &clocks {
            clock.jump(jump);
            tokio::time::sleep(Duration::from_secs(40)).await;
            let holder = object(&api, "leases", LEASE).unwrap()["spec"]["holderIdentity"].clone();
            assert_eq!((holder, leads.is_finished()), (json!("first"), false), "{jump}");
        }
    }
    first.cancel();
    second.cancel();
    assert!(leads.await.unwrap().is_ok() && waits.await.unwrap().is_ok());
}
