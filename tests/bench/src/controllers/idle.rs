//! A cluster of one node at rest: `hawser up` with everything that it runs in its process.

use std::time::{Duration, Instant};

use anyhow::Result;
use tests_e2e::{Cluster, Lab};

use super::{goal, row};
use crate::api::BYTES;
use crate::api::server::processor_time;
use crate::cluster::memory;
use crate::row::{Metric, Report};
use crate::subject::Plan;

/// Share of one processor.
const PROCESSOR_SHARE: Metric = ("processor_share", "share");
const MEMORY_GOAL: f64 = 40.0 * 1024.0 * 1024.0;
const PROCESSOR_GOAL: f64 = 0.005;
/// Time after which what only the start needed has been released.
const REST: Duration = Duration::from_secs(20);

/// Measures a cluster without pods.
pub fn run(report: &Report, plan: &Plan) -> Result<()> {
    let lab = Lab::new()?;
    let mut cluster = Cluster::up(&lab)?;
    std::thread::sleep(REST);
    let pid = cluster.pid()?;
    let (before, began) = (processor_time(pid)?, Instant::now());
    std::thread::sleep(Duration::from_secs(plan.choose(20, 120)));
    let share = (processor_time(pid)? - before) / began.elapsed().as_secs_f64();
    row(report, "idle", PROCESSOR_SHARE, share)?;
    goal(report, "idle", PROCESSOR_SHARE, PROCESSOR_GOAL)?;
    row(report, "idle", BYTES, memory(pid, "VmRSS:")?)?;
    goal(report, "idle", BYTES, MEMORY_GOAL)?;
    cluster.stop()
}
