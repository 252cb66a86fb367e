//! The suite `controllers`: the real `hawser apiserver` and the real `hawser controllers`, each a process, with as much
//! of a kubelet as the workloads need.
//!
//! ```text
//!   this process                              `hawser apiserver`        `hawser controllers`
//!     objects, progress ─────────TLS────────▶ chain ▶ verbs ▶ store ◀─TLS─ caches ▶ queues ▶ writes
//!     fake kubelet: watch, status, deletion ─▶                               /metrics ◀── this process
//!   `limit`: the same writes, sent by this process straight to an API server without controllers
//! ```
//!
//! The controllers that judge and evict nodes are off, because the nodes of these cases send no heartbeats.

mod autoscalers;
mod caches;
mod idle;
mod kubelet;
mod objects;
mod process;
pub mod stage;
pub mod straight;
mod workloads;

use anyhow::Result;

use crate::row::{Metric, Report};
use crate::subject::Plan;

pub use caches::fill;

const SUITE: &str = "controllers";
/// Share of the API's own rate that the controllers have to reach.
const LEAST_SHARE: f64 = 0.8;
/// Longest time for which a key was processed, and the part of such a time without waiting for answers.
const LONGEST: Metric = ("longest_work_seconds", "seconds");
const LONGEST_COMPUTING: Metric = ("longest_computing_seconds", "seconds");
/// Peak of resident memory.
const PEAK: Metric = ("peak_bytes", "bytes");
/// CPU time of the controllers.
const PROCESSOR: Metric = ("processor_seconds", "seconds");

/// Runs the measurements of the plan.
pub fn run(report: &Report, plan: &Plan) {
    workloads::run(report, plan);
    autoscalers::run(report, plan);
    caches::run(report, plan);
    if plan.has("idle") {
        report.attempt("idle", || idle::run(report, plan));
    }
}

/// Returns the numbers of objects of a case, a tenth in a quick run.
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
