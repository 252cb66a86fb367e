//! The caches of many pods: their memory, the time until they are complete, and the work that changes cause.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http::Method;

use super::stage::{PODS, Stage};
use super::straight::CLIENTS;
use super::{PEAK, goal, objects, row, sizes};
use crate::api::client::{Call, Make, closed_loop};
use crate::api::objects::Object;
use crate::api::server::Running;
use crate::api::{BYTES, PER_SECOND, directory, fill_with, lines_of, text};
use crate::row::{Metric, Report};
use crate::subject::Plan;

/// Goal for the resident memory with [`FULL`] pods.
const MEMORY_GOAL: f64 = 300.0 * 1024.0 * 1024.0;
const FULL: usize = 150_000;
/// Resident bytes per pod above those of controllers without pods.
const PER_OBJECT: Metric = ("bytes_per_object", "bytes");
/// Time from the start of the process until it reconciles.
const SYNC: Metric = ("sync_seconds", "seconds");
/// CPU time per change of a pod, and processors that 10,000 changes a second need.
const PER_CHANGE: Metric = ("processor_seconds_per_change", "seconds");
const PROCESSORS: Metric = ("processors_for_10000_per_second", "processors");
/// Time after which what only the start needed has been released.
const REST: Duration = Duration::from_secs(30);

/// Runs the case if the plan has it.
pub fn run(report: &Report, plan: &Plan) {
    for pods in sizes(plan, FULL) {
        let case = format!("caches/pods={pods}");
        if plan.has(&case) {
            report.attempt(&case, || measure(report, plan, &case, pods));
        }
    }
}

/// Writes pods with their owners and nodes to a store.
pub fn fill(directory: &str, pods: usize) -> Result<()> {
    fill_with(directory, objects::stored(pods))
}

fn measure(report: &Report, plan: &Plan, case: &str, pods: usize) -> Result<()> {
    let empty = {
        let mut stage = Stage::new()?;
        stage.start_controllers()?;
        stage.rest(REST);
        stage.controllers()?.resident()?
    };
    let directory = directory()?;
    let data = directory.path().join("hawser");
    // The program only accepts a directory that it has created itself.
    Running::hawser(&data, None)?.stop()?;
    lines_of(&["fill-workloads", &text(&data.join("store")), &pods.to_string()])?;
    let mut stage = Stage::on(directory)?;
    let began = Instant::now();
    stage.start_controllers()?;
    let sets = objects::sets_of(pods) as f64;
    let mut synced = None;
    stage.until("all ReplicaSets", async |stage| {
        let page = stage.controllers()?.page().await?;
        let done = page.map_or(0.0, |page| page.processed("replicaset"));
        if done > 0.0 && synced.is_none() {
            synced = Some(began.elapsed().as_secs_f64());
        }
        Ok((done >= sets).then_some(()))
    })?;
    row(report, case, SYNC, synced.context("no ReplicaSet was reconciled")?)?;
    stage.rest(REST);
    let controllers = stage.controllers()?;
    let weight = controllers.resident()?;
    row(report, case, BYTES, weight)?;
    goal(report, case, BYTES, MEMORY_GOAL * pods as f64 / FULL as f64)?;
    row(report, case, PEAK, controllers.peak()?)?;
    row(report, case, PER_OBJECT, (weight - empty) / pods as f64)?;
    flood(report, plan, case, &mut stage, pods)
}

/// Changes pods as fast as the API server lets this process.
fn flood(report: &Report, plan: &Plan, case: &str, stage: &mut Stage, pods: usize) -> Result<()> {
    let before = stage.controllers()?.processor_time()?;
    let make: Make = Arc::new(move |_, number| Call {
        method: Method::PATCH,
        path: format!("{PODS}/{}", objects::stored_name(number as usize % pods)),
        content_type: "application/merge-patch+json",
        body: Object::Pod.patch(number + 1),
    });
    let length = Duration::from_secs_f64(plan.choose(5.0, 20.0));
    let next = Arc::new(AtomicU64::new(0));
    let changes = closed_loop(&stage.connections, CLIENTS, length, &next, &make);
    let turn = stage.runtime.block_on(changes)?;
    // The work that the changes have caused counts too.
    stage.until("the queues to be empty", async |stage| {
        let page = stage.controllers()?.page().await?;
        Ok(page.filter(|page| page.of_queue("workqueue_depth", "replicaset") < 0.5).map(drop))
    })?;
    let used = (stage.controllers()?.processor_time()? - before) / turn.count.max(1) as f64;
    row(report, case, PER_SECOND, turn.per_second)?;
    row(report, case, PER_CHANGE, used)?;
    row(report, case, PROCESSORS, used * 10_000.0)
}
