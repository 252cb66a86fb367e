//! The suite `scheduler`: workloads after Kubernetes' scheduler_perf, for the core alone and for whole schedulers.
//!
//! ```text
//!   core/…   this process: queue ▶ feasible nodes ▶ scores ▶ placement, one pod after the other
//!
//!   this process                        `hawser apiserver`        `hawser scheduler` or kube-scheduler
//!     nodes, pods ──────────────TLS────▶ chain ▶ verbs ▶ store ◀─TLS─ caches ▶ queue ▶ attempts ▶ bindings
//!     watch of the pods that are bound ◀─
//!   `limit`: the same pods, claims of devices and bindings, all written by this process
//! ```

mod alone;
mod bound;
mod core;
mod memory;
mod objects;
mod process;
mod run;
mod straight;
mod workloads;

use anyhow::Result;

pub use self::memory::hold;
use self::workloads::Workload;
use crate::row::{Metric, Report};
use crate::subject::Plan;

const SUITE: &str = "scheduler";
/// Pods that were given a node, and attempts that found none.
const PODS: Metric = ("pods_per_second", "per_second");
const REFUSALS: Metric = ("refusals_per_second", "per_second");
/// Time of an attempt, and of the first one for a template.
const LATENCY: Metric = ("latency_seconds", "seconds");
const FIRST: Metric = ("first_latency_seconds", "seconds");
/// Processor time for a pod that is placed; on a busy machine it tells more than the rate.
const CPU: Metric = ("cpu_seconds_per_pod", "seconds");
/// Time from the request that creates a pod to the news that it is bound.
const P99: Metric = ("p99_seconds", "seconds");
const BYTES: Metric = ("bytes", "bytes");
/// Longest time that an attempt should take.
const LATENCY_GOAL: f64 = 0.001;

/// Runs the measurements of the plan.
pub fn run(report: &Report, plan: &Plan) {
    let workloads = workloads::all();
    for workload in &workloads {
        for nodes in sizes(plan, workload.nodes) {
            let case = format!("core/{}/nodes={nodes}", workload.name);
            if plan.has(&case) {
                report.attempt(&case, || of_core(report, plan, &case, &workload.of_size(nodes)));
            }
        }
    }
    memory::run(report, plan);
    alone::run(report, plan);
    for workload in &workloads {
        for nodes in sizes(plan, workload.nodes) {
            let workload = workload.of_size(nodes);
            let case = format!("{}/nodes={nodes}/pods={}", workload.name, workload.measured.count);
            if plan.has(&case) {
                run::run(report, plan, &case, &workload);
            }
        }
    }
}

/// Measures the core.
fn of_core(report: &Report, plan: &Plan, case: &str, workload: &Workload) -> Result<()> {
    let mut rates = Vec::new();
    for round in 1..=plan.choose(1, 3) {
        let figures = core::measure(workload)?;
        rates.push(figures.per_second);
        if round < plan.choose(1, 3) {
            continue;
        }
        report.row(SUITE, case, "hawser", PODS, &rates)?;
        report.row(SUITE, case, "hawser", LATENCY, &figures.latencies)?;
        row(report, case, FIRST, figures.first)?;
        row(report, case, CPU, figures.cpu)?;
        if let Some(rate) = figures.refusals_per_second {
            row(report, case, REFUSALS, rate)?;
        }
    }
    if let Some(rate) = workload.goal {
        goal(report, case, PODS, rate)?;
    }
    goal(report, case, LATENCY, LATENCY_GOAL)
}

/// Returns the numbers of nodes or pods of a case, a tenth in a quick run.
fn sizes(plan: &Plan, full: usize) -> Vec<usize> {
    plan.sizes(&[full / 10], &[full])
}

/// Writes a row with the goal of a figure.
fn goal(report: &Report, case: &str, metric: Metric, value: f64) -> Result<()> {
    report.row(SUITE, case, "goal", metric, &[value])
}

/// Writes a row with a figure of ours.
fn row(report: &Report, case: &str, metric: Metric, value: f64) -> Result<()> {
    report.row(SUITE, case, "hawser", metric, &[value])
}
