//! One pod at a time on a cluster at rest: the time from the request that creates it to the news that it is bound.
//!
//! It is compared with the time if this process binds each pod, as soon as its creation is answered. The difference is what
//! a scheduler takes from the event that shows the pod to the request that binds it.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::bound::Bound;
use super::process::{Program, Scheduler};
use super::straight::{self, Straight};
use super::workloads::{self, Group, Workload};
use super::{P99, SUITE, goal, sizes};
use crate::api::{SECONDS, wants};
use crate::row::{Report, quantile};
use crate::subject::{Plan, Subject};

/// Number of pods that are measured, and of those before that warm up connections and caches.
const PODS: usize = 200;
const WARMING: usize = 20;
/// Time that a scheduler may take, longer than this process.
const OWN_TIME: f64 = 0.001;
/// Pause after each pod, in which status and events are written.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause between two looks at what is bound; the time itself is that of the event.
const LOOK: Duration = Duration::from_millis(1);
/// Time within which a pod must be bound.
const STALLED: Duration = Duration::from_secs(60);

/// Measures the subjects of the plan.
pub fn run(report: &Report, plan: &Plan) {
    let workload = workloads::basic();
    for nodes in sizes(plan, workload.nodes) {
        let (case, workload) = (format!("alone/nodes={nodes}"), workload.of_size(nodes));
        if plan.has(&case) {
            of_size(report, plan, &case, &workload);
        }
    }
}

fn of_size(report: &Report, plan: &Plan, case: &str, workload: &Workload) {
    let write = |subject: &str, delays: &[f64]| {
        report.row(SUITE, case, subject, SECONDS, delays)?;
        report.row(SUITE, case, subject, P99, &[quantile(delays, 0.99)])
    };
    if wants(plan, Subject::Limit) {
        report.attempt(case, || {
            let delays = measure(workload, None)?;
            write("limit", &delays)?;
            goal(report, case, SECONDS, quantile(&delays, 0.5) + OWN_TIME)
        });
    }
    let ours = wants(plan, Subject::Hawser).then_some(Program::Hawser);
    for program in ours.into_iter().chain(Program::kube_scheduler()) {
        let subject = program.subject();
        report
            .attempt(&format!("{case} by {subject}"), || write(subject, &measure(workload, Some(&program))?));
    }
}

/// Returns the times of the pods, in seconds; without a program this process binds them.
fn measure(workload: &Workload, program: Option<&Program>) -> Result<Vec<f64>> {
    let stage = straight::stage(workload)?;
    let (bound, data, runtime) = (Bound::watch(&stage)?, stage.data(), Rc::clone(&stage.runtime));
    let straight = Straight::new(stage, workload);
    // Dropped before its server.
    let mut scheduler = program.map(|program| Scheduler::start(program, &data)).transpose()?;
    let group = workload.measured.of(WARMING + PODS);
    runtime.block_on(async {
        let mut delays = Vec::with_capacity(group.count);
        for i in 0..group.count {
            let began = Instant::now();
            straight.post(i, group).await?;
            if scheduler.is_none() {
                straight.bind(i, group).await?;
            }
            let shown = shown(&bound, &mut scheduler, &group, i, began).await?;
            delays.push(shown.duration_since(began).as_secs_f64());
            tokio::time::sleep(PAUSE).await;
        }
        Ok(delays.split_off(WARMING))
    })
}

/// Waits until a pod is bound; returns when the watch has shown it.
async fn shown(
    bound: &Bound,
    scheduler: &mut Option<Scheduler>,
    group: &Group,
    i: usize,
    began: Instant,
) -> Result<Instant> {
    loop {
        if let Some(time) = bound.time(&group.namespace(i), &group.name(i)) {
            return Ok(time);
        }
        bound.check()?;
        scheduler.iter_mut().try_for_each(Scheduler::check)?;
        if began.elapsed() > STALLED {
            bail!("{} is not bound within {STALLED:?}", group.name(i));
        }
        tokio::time::sleep(LOOK).await;
    }
}
