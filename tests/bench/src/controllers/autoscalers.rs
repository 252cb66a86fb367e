//! Many autoscalers, each of a Deployment of its own. There is no metrics server here, so that each judgement ends with
//! a condition that says so.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::stage::Stage;
use super::{LONGEST, LONGEST_COMPUTING, PEAK, PROCESSOR, goal, objects, row, sizes};
use crate::row::{Metric, Report};
use crate::subject::Plan;

/// Mean time between two judgements of an autoscaler.
const INTERVAL: Metric = ("interval_seconds", "seconds");
/// Goal for it. The pause between two judgements is 15 s; a twentieth is for the judgement and the wait for a worker.
const INTERVAL_GOAL: f64 = 15.0 * 1.05;
const QUEUE: &str = "horizontalpodautoscaler";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const AUTOSCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";

/// Runs the case if the plan has it.
pub fn run(report: &Report, plan: &Plan) {
    for count in sizes(plan, 5_000) {
        let case = format!("autoscalers/count={count}");
        if plan.has(&case) {
            report.attempt(&case, || measure(report, plan, &case, count));
        }
    }
}

fn measure(report: &Report, plan: &Plan, case: &str, count: usize) -> Result<()> {
    let mut stage = Stage::new()?;
    stage.create_nodes(1)?;
    stage.start_controllers()?;
    let name = |i: usize| format!("web-{i}");
    stage.create_all(DEPLOYMENTS, (0..count).map(|i| objects::deployment(&name(i), 1)))?;
    stage.create_all(AUTOSCALERS, (0..count).map(|i| objects::autoscaler(&name(i))))?;
    // After two rounds, statuses and events of the first judgement have been written.
    judged(&mut stage, 2 * count)?;
    let (before, began) = (stage.page()?.processed(QUEUE), Instant::now());
    let processor = stage.controllers()?.processor_time()?;
    stage.rest(Duration::from_secs(plan.choose(30, 60)));
    let (page, took) = (stage.page()?, began.elapsed().as_secs_f64());
    let judgements = page.processed(QUEUE) - before;
    ensure!(judgements > 0.0, "no autoscaler was judged in {took} s");
    row(report, case, INTERVAL, count as f64 * took / judgements)?;
    goal(report, case, INTERVAL, INTERVAL_GOAL)?;
    row(report, case, LONGEST, page.of_queue("workqueue_longest_work_seconds", QUEUE))?;
    row(report, case, LONGEST_COMPUTING, page.of_queue("workqueue_longest_computing_seconds", QUEUE))?;
    let controllers = stage.controllers()?;
    row(report, case, PROCESSOR, (controllers.processor_time()? - processor) / took * 60.0)?;
    row(report, case, PEAK, controllers.peak()?)
}

/// Waits for this number of judgements.
fn judged(stage: &mut Stage, count: usize) -> Result<()> {
    stage.until("the judgements of the autoscalers", async |stage| {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let page = stage.controllers()?.page().await?;
        Ok(page.filter(|page| page.processed(QUEUE) >= count as f64).map(drop))
    })
}
