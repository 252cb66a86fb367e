//! Workloads: creation, roll-outs, and a Job to its end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::kubelet::{Kubelet, Outcome};
use super::stage::{PODS, Stage};
use super::straight::{self, Life};
use super::{LEAST_SHARE, LONGEST, LONGEST_COMPUTING, PEAK, PROCESSOR, SUITE, goal, objects, row, sizes};
use crate::api::{BYTES, PER_SECOND, RATIO_TO_LIMIT, SECONDS};
use crate::row::{Metric, Report, quantile};
use crate::subject::Plan;

/// Goals for the longest time for which a key is processed.
const DAEMON_SET_GOAL: f64 = 0.05;
const JOB_GOAL: f64 = 0.1;
/// Memory at the end of a Job relative to that at its half.
const GROWTH: Metric = ("ratio_of_end_to_half", "ratio");
const GROWTH_GOAL: f64 = 1.1;
/// Turns of an API server alone and of the controllers.
const TURNS: usize = 3;
/// Number of pods of a Job that run at the same time.
const PARALLELISM: usize = 1_000;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

/// Runs the cases of the plan.
pub fn run(report: &Report, plan: &Plan) {
    type Case = (&'static str, &'static str, usize, fn(&Report, &Plan, &str, usize) -> Result<()>);
    let cases: [Case; 4] = [
        ("deployment", "replicas", 10_000, deployment),
        ("rollout", "replicas", 10_000, rollout),
        ("daemons", "nodes", 5_000, daemons),
        ("indexed_job", "indexes", 100_000, indexed_job),
    ];
    for (name, of, full, measure) in cases {
        for size in sizes(plan, full) {
            let case = format!("{name}/{of}={size}");
            if plan.has(&case) {
                report.attempt(&case, || measure(report, plan, &case, size));
            }
        }
    }
}

/// Measures the writes of an API server alone and of controllers in turns, so that disturbances of the machine affect both;
/// writes the rates beside the goal, and what the controllers used in the last turn. `work` returns their rate.
fn in_turns(
    report: &Report,
    plan: &Plan,
    case: &str,
    life: Life,
    mut work: impl FnMut(&mut Stage) -> Result<f64>,
) -> Result<()> {
    let (mut limits, mut ours, mut last) = (Vec::new(), Vec::new(), None);
    for _ in 0..plan.choose(1, TURNS) {
        drop(last.take());
        limits.push(straight::rate(life, length(plan))?);
        let mut stage = Stage::new()?;
        stage.create_nodes(1)?;
        ours.push(work(&mut stage)?);
        last = Some(stage);
    }
    let ratios: Vec<f64> = ours.iter().zip(&limits).map(|(ours, limit)| ours / limit).collect();
    report.row(SUITE, case, "limit", PER_SECOND, &limits)?;
    report.row(SUITE, case, "hawser", PER_SECOND, &ours)?;
    report.row(SUITE, case, "hawser", RATIO_TO_LIMIT, &ratios)?;
    goal(report, case, PER_SECOND, quantile(&limits, 0.5) * LEAST_SHARE)?;
    let mut stage = last.context("there was a turn")?;
    used(report, &mut stage, case, "replicaset")
}

/// Writes what the controllers used, and the longest times of one of their queues.
fn used(report: &Report, stage: &mut Stage, case: &str, queue: &str) -> Result<()> {
    // The last reconciliation ends after what it has written was seen.
    let page = stage.until("the end of the work", async |stage| {
        let page = stage.controllers()?.page().await?;
        Ok(page.filter(|page| page.of_queue("workqueue_unfinished_work_seconds", queue) <= 0.0))
    })?;
    row(report, case, LONGEST, page.of_queue("workqueue_longest_work_seconds", queue))?;
    row(report, case, LONGEST_COMPUTING, page.of_queue("workqueue_longest_computing_seconds", queue))?;
    for (name, seconds) in page.busiest().iter().take(5) {
        eprintln!("bench: {case}: {name} computed for {seconds:.3} s");
    }
    let controllers = stage.controllers()?;
    row(report, case, PROCESSOR, controllers.processor_time()?)?;
    row(report, case, PEAK, controllers.peak()?)
}

fn length(plan: &Plan) -> Duration {
    Duration::from_secs_f64(plan.choose(2.0, 5.0))
}

/// Measures the creation of the pods of a Deployment.
fn deployment(report: &Report, plan: &Plan, case: &str, replicas: usize) -> Result<()> {
    in_turns(report, plan, case, Life::Created, |stage| {
        stage.start_controllers()?;
        let began = Instant::now();
        stage.create(DEPLOYMENTS, &objects::deployment("web", replicas))?;
        stage.until("the pods of the Deployment", async |stage| {
            Ok((stage.count(PODS).await? >= replicas).then_some(()))
        })?;
        Ok(replicas as f64 / began.elapsed().as_secs_f64())
    })
}

/// Measures the replacement of all pods of a Deployment.
fn rollout(report: &Report, plan: &Plan, case: &str, replicas: usize) -> Result<()> {
    in_turns(report, plan, case, Life::Whole, |stage| {
        let kubelet = Kubelet::start(stage, Outcome::Running)?;
        stage.start_controllers()?;
        stage.create(DEPLOYMENTS, &objects::deployment("web", replicas))?;
        let path = format!("{DEPLOYMENTS}/web");
        let fields = ["replicas", "updatedReplicas", "availableReplicas"];
        reached(stage, &kubelet, &path, &fields, replicas)?;
        let began = Instant::now();
        stage.patch(&path, &objects::new_version())?;
        reached(stage, &kubelet, &path, &fields, replicas)?;
        // The last pods are deleted, but not all may be gone.
        let writes = replicas * Life::Whole.writes();
        Ok(writes as f64 / began.elapsed().as_secs_f64())
    })
}

/// Waits until the status of a workload is of its present generation and has this number in each of the fields.
fn reached(stage: &mut Stage, kubelet: &Kubelet, path: &str, fields: &[&str], number: usize) -> Result<()> {
    stage.until(path, async |stage| {
        kubelet.check()?;
        let object = stage.get(path).await?;
        let (status, present) = (&object["status"], &object["metadata"]["generation"]);
        let all = fields.iter().all(|field| status[*field].as_u64() == Some(number as u64));
        Ok((all && status["observedGeneration"] == *present).then_some(()))
    })
}

/// Measures a DaemonSet from its creation to its next version on all nodes.
fn daemons(report: &Report, _: &Plan, case: &str, nodes: usize) -> Result<()> {
    let mut stage = Stage::new()?;
    stage.create_nodes(nodes)?;
    let kubelet = Kubelet::start(&stage, Outcome::Running)?;
    stage.start_controllers()?;
    stage.create(DAEMON_SETS, &objects::daemon_set())?;
    let path = format!("{DAEMON_SETS}/web");
    let fields = ["desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"];
    let began = Instant::now();
    reached(&mut stage, &kubelet, &path, &fields, nodes)?;
    stage.patch(&path, &objects::new_version())?;
    reached(&mut stage, &kubelet, &path, &fields, nodes)?;
    row(report, case, SECONDS, began.elapsed().as_secs_f64())?;
    used(report, &mut stage, case, "daemonset")?;
    goal(report, case, LONGEST, DAEMON_SET_GOAL)
}

/// Measures a Job from its creation to its end.
fn indexed_job(report: &Report, _: &Plan, case: &str, indexes: usize) -> Result<()> {
    let mut stage = Stage::new()?;
    stage.create_nodes(1)?;
    let kubelet = Kubelet::start(&stage, Outcome::Succeeded)?;
    stage.start_controllers()?;
    let began = Instant::now();
    stage.create(JOBS, &objects::indexed_job(indexes, PARALLELISM.min(indexes)))?;
    let path = format!("{JOBS}/web");
    let mut half = None;
    stage.until("the end of the Job", async |stage| {
        kubelet.check()?;
        let status = stage.get(&path).await?["status"].take();
        let succeeded = status["succeeded"].as_u64().unwrap_or(0);
        if half.is_none() && succeeded * 2 >= indexes as u64 {
            half = Some(stage.controllers()?.resident()?);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(is_complete(&status).then_some(()))
    })?;
    row(report, case, SECONDS, began.elapsed().as_secs_f64())?;
    let (half, end) = (half.context("the Job was never half done")?, stage.controllers()?.resident()?);
    row(report, case, BYTES, end)?;
    row(report, case, GROWTH, end / half)?;
    goal(report, case, GROWTH, GROWTH_GOAL)?;
    used(report, &mut stage, case, "job")?;
    goal(report, case, LONGEST, JOB_GOAL)
}

fn is_complete(status: &Value) -> bool {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == "Complete" && one["status"] == "True")
}
