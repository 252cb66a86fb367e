//! Whole schedulers: pods are created while the scheduler runs, until all are bound.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures::{StreamExt, stream};
use serde_json::Value;

use super::bound::Bound;
use super::process::{Program, Scheduler};
use super::straight::{self, Rates};
use super::workloads::{Group, Workload};
use super::{P99, PODS, SUITE, goal};
use crate::api::client::{Call, Connection};
use crate::api::{RATIO_TO_LIMIT, wants};
use crate::controllers::stage::{CONNECTIONS, Stage};
use crate::controllers::straight::CLIENTS;
use crate::row::{Metric, Report, quantile};
use crate::subject::{Plan, Subject};

/// Bindings of pods that exist already.
const BINDINGS: Metric = ("bindings_per_second", "per_second");
/// Peak of resident memory of the scheduler.
const PEAK: Metric = ("peak_bytes", "bytes");
/// Share of the rate without a scheduler that has to be reached.
const LEAST_SHARE: f64 = 0.8;
/// Turns of an API server alone and of ours.
const TURNS: usize = 3;
/// Time between two pods of the churn, as in scheduler_perf.
const CHURN: Duration = Duration::from_millis(200);
/// Pause between two looks at what waits.
const LOOK_AT_PARKED: Duration = Duration::from_secs(1);
/// Time within which the next pod must have been attempted.
const STALLED: Duration = Duration::from_secs(120);

/// Measures the subjects of the plan. An API server alone and ours take turns, so that disturbances of the machine affect
/// both; kube-scheduler, which takes many times as long, has one turn.
pub fn run(report: &Report, plan: &Plan, case: &str, workload: &Workload) {
    let (mut limits, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..plan.choose(1, TURNS) {
        if wants(plan, Subject::Limit) {
            report.attempt(case, || {
                limits.push(straight::rates(workload)?);
                Ok(())
            });
        }
        if wants(plan, Subject::Hawser) {
            report.attempt(&format!("{case} by hawser"), || {
                ours.push(measure(workload, &Program::Hawser)?);
                Ok(())
            });
        }
        if wants(plan, Subject::Limit) && wants(plan, Subject::Hawser) {
            // A turn counts if both have had theirs.
            let whole = limits.len().min(ours.len());
            limits.truncate(whole);
            ours.truncate(whole);
        }
    }
    let limits_of = |of: fn(&Rates) -> f64| limits.iter().map(of).collect::<Vec<_>>();
    let both = limits_of(|rates| rates.both);
    report.attempt(case, || {
        if !limits.is_empty() {
            report.row(SUITE, case, "limit", PODS, &both)?;
            report.row(SUITE, case, "limit", BINDINGS, &limits_of(|rates| rates.bindings))?;
            goal(report, case, PODS, quantile(&both, 0.5) * LEAST_SHARE)?;
        }
        rows(report, case, "hawser", &ours, &both)
    });
    if let Some(program) = Program::kube_scheduler() {
        let subject = program.subject();
        report.attempt(&format!("{case} by {subject}"), || {
            let middle: Vec<f64> = (!both.is_empty()).then(|| quantile(&both, 0.5)).into_iter().collect();
            rows(report, case, subject, &[measure(workload, &program)?], &middle)
        });
    }
}

/// Writes the figures of a scheduler, one for each turn, and their ratios to the rates of an API server alone.
fn rows(report: &Report, case: &str, subject: &str, figures: &[Figures], limits: &[f64]) -> Result<()> {
    if figures.is_empty() {
        return Ok(());
    }
    let of = |of: fn(&Figures) -> f64| figures.iter().map(of).collect::<Vec<_>>();
    report.row(SUITE, case, subject, PODS, &of(|one| one.per_second))?;
    let ratios: Vec<f64> = figures.iter().zip(limits).map(|(one, limit)| one.per_second / limit).collect();
    if !ratios.is_empty() {
        report.row(SUITE, case, subject, RATIO_TO_LIMIT, &ratios)?;
    }
    report.row(SUITE, case, subject, P99, &of(|one| one.p99))?;
    report.row(SUITE, case, subject, PEAK, &of(|one| one.peak))
}

/// Figures of a scheduler.
struct Figures {
    per_second: f64,
    p99: f64,
    peak: f64,
}

/// A scheduler with its API server. Fields are dropped in this order: clients go before the server.
struct Running {
    scheduler: Scheduler,
    bound: Bound,
    stage: Stage,
}

fn measure(workload: &Workload, program: &Program) -> Result<Figures> {
    let stage = straight::stage(workload)?;
    let bound = Bound::watch(&stage)?;
    let scheduler = Scheduler::start(program, &stage.data())?;
    let mut running = Running { scheduler, bound, stage };
    for group in &workload.init {
        running.bound.clear();
        running.stage.create_each(group.pods())?;
        running.until_bound(group.count).with_context(|| format!("the pods {}", group.prefix))?;
    }
    if let Some(parked) = &workload.parked {
        running.stage.create_each(parked.pods())?;
        running.until_parked(parked)?;
    }
    running.stage.reconnect()?;
    running.bound.clear();
    running.place(workload)
}

impl Running {
    /// Fails if the scheduler or the watch has ended.
    fn check(&mut self) -> Result<()> {
        self.scheduler.check()?;
        self.bound.check()
    }

    /// Waits until as many pods are bound.
    fn until_bound(&mut self, count: usize) -> Result<()> {
        let runtime = std::rc::Rc::clone(&self.stage.runtime);
        runtime.block_on(self.reached(count))
    }

    async fn reached(&mut self, count: usize) -> Result<()> {
        self.bound.reached(count, || self.scheduler.check()).await
    }

    /// Waits until pods have been attempted that no node has room for.
    fn until_parked(&mut self, group: &Group) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods", group.namespace(0));
        let runtime = std::rc::Rc::clone(&self.stage.runtime);
        let (mut last, mut since) = (0, Instant::now());
        runtime.block_on(async {
            loop {
                self.check()?;
                let list = self.stage.get(&path).await?;
                let refused = list["items"].as_array().into_iter().flatten().filter(|pod| is_refused(pod));
                let now = refused.count();
                if now >= group.count {
                    return Ok(());
                }
                if now > last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > STALLED {
                    bail!("{now} of {} pods are refused, and no further one within {STALLED:?}", group.count);
                }
                tokio::time::sleep(LOOK_AT_PARKED).await;
            }
        })
    }

    /// Creates the pods to measure, and waits until all are bound.
    fn place(mut self, workload: &Workload) -> Result<Figures> {
        let (runtime, group) = (std::rc::Rc::clone(&self.stage.runtime), workload.measured);
        let began = Instant::now();
        let created = runtime.block_on(async {
            let churn = workload
                .churn
                .map(|churn| tokio::spawn(create_now_and_then(self.stage.connections[0].clone(), churn)));
            let created = create(&self.stage, &group).await;
            let outcome = match &created {
                // Pods of the churn are bound too, so that a look at each pod follows.
                Ok(_) => self.reached_all(&group).await,
                Err(_) => Ok(()),
            };
            if let Some(churn) = churn {
                churn.abort();
            }
            outcome.and(created)
        })?;
        let mut delays = Vec::with_capacity(group.count);
        let mut end = began;
        for (i, created) in created {
            let time = self.bound.time(&group.namespace(i), &group.name(i));
            let time = time.with_context(|| format!("{} is not bound", group.name(i)))?;
            delays.push(time.duration_since(created).as_secs_f64());
            end = end.max(time);
        }
        Ok(Figures {
            per_second: group.count as f64 / end.duration_since(began).as_secs_f64(),
            p99: quantile(&delays, 0.99),
            peak: self.scheduler.peak()?,
        })
    }

    /// Waits until each pod of a group is bound.
    async fn reached_all(&mut self, group: &Group) -> Result<()> {
        self.reached(group.count).await?;
        let mut others = 0;
        loop {
            let is_bound = |i: &usize| self.bound.time(&group.namespace(*i), &group.name(*i)).is_some();
            let missing = (0..group.count).filter(|i| !is_bound(i)).count();
            if missing == 0 {
                return Ok(());
            }
            others = others.max(self.bound.count() + missing - group.count);
            self.reached(group.count + others).await?;
        }
    }
}

/// Returns `true` if a scheduler has found no node for a pod.
fn is_refused(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == "PodScheduled" && one["reason"] == "Unschedulable")
}

/// Creates the pods of a group; returns the time of each request.
async fn create(stage: &Stage, group: &Group) -> Result<Vec<(usize, Instant)>> {
    let send = |(i, (path, pod)): (usize, (String, Value))| async move {
        let began = Instant::now();
        let call = Call::post(path, Bytes::from(pod.to_string()));
        stage.connections[i % CONNECTIONS].read(call).await?;
        anyhow::Ok((i, began))
    };
    let all = stream::iter(group.pods().enumerate()).map(send).buffer_unordered(CLIENTS);
    all.collect::<Vec<_>>().await.into_iter().collect()
}

/// Creates a pod of a group now and then, until it is stopped.
async fn create_now_and_then(connection: Connection, group: Group) -> Result<()> {
    for (path, pod) in group.pods() {
        connection.read(Call::post(path, Bytes::from(pod.to_string()))).await?;
        tokio::time::sleep(CHURN).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_without_room_is_refused_and_one_that_was_not_tried_is_not() {
        let with = |conditions: Value| json!({"status": {"conditions": conditions}});
        let refusal = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
        assert!(is_refused(&with(refusal)));
        assert!(!is_refused(&with(json!([{"type": "PodScheduled", "status": "True"}]))));
        assert!(!is_refused(&json!({})));
    }
}
