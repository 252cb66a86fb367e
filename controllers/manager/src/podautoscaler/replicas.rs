//! Calculates the number of replicas that a metric asks for, regardless of the bounds of the autoscaler.
//!
//! All amounts are in thousandths, as Kubernetes calculates them.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::groups::{Startup, group, requests};
use crate::pods::Pod;

/// A measured amount of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// The amount in thousandths.
    pub value: i64,
    /// End of the time that it was measured in.
    pub at: Timestamp,
    /// Length of that time.
    pub window: SignedDuration,
}

/// Samples by the name of the pod.
pub(super) type Samples = BTreeMap<String, Sample>;

/// The thing that was missing, so that no number of replicas could be calculated. The messages are those of Kubernetes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Undecided {
    #[error("no pods returned by selector while calculating replica count")]
    Pods,
    #[error("did not receive metrics for targeted pods (pods might be unready)")]
    Samples,
    #[error("no metrics returned matched known pods")]
    Match,
    #[error("missing pod-level request for {resource} in Pod {pod}")]
    PodRequest { resource: String, pod: String },
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    Request { resource: String, container: String, pod: String },
    #[error("container {container} not found in Pod {pod}")]
    Container { container: String, pod: String },
}

/// Deviations of the ratio between usage and target from 1 that cause no change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerances {
    pub down: f64,
    pub up: f64,
}

impl Tolerances {
    fn contain(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// The pods whose number is judged.
pub(super) struct Workload<'a> {
    /// Number of replicas that is set.
    pub replicas: i32,
    /// Number of replicas that there are.
    pub present: i32,
    pub pods: &'a [Arc<Pod>],
    pub tolerances: Tolerances,
    pub startup: Startup,
    pub now: Timestamp,
}

/// The usage per pod that is aimed for.
#[derive(Clone, Copy)]
pub(super) enum Goal<'a> {
    /// Percentage of what the pods, or one container of each, request.
    Utilization { percent: i32, resource: &'a str, container: Option<&'a str> },
    /// Average amount of a resource.
    Usage { amount: i64, resource: &'a str },
    /// Average amount of something else.
    Average { amount: i64 },
}

impl<'a> Goal<'a> {
    fn resource(self) -> Option<&'a str> {
        match self {
            Self::Utilization { resource, .. } | Self::Usage { resource, .. } => Some(resource),
            Self::Average { .. } => None,
        }
    }
}

/// A number of replicas, and the usage that it was calculated from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Calculated {
    pub replicas: i32,
    /// Percentage of the requests that is used.
    pub utilization: Option<i32>,
    /// Average usage of a pod.
    pub average: i64,
}

/// Usage of all pods that count, compared with the goal.
struct Usage {
    ratio: f64,
    utilization: Option<i32>,
    average: i64,
}

/// Returns the number of replicas with which the pods would reach the goal.
pub(super) fn by_pods(
    goal: Goal<'_>,
    mut samples: Samples,
    workload: &Workload<'_>,
) -> Result<Calculated, Undecided> {
    if workload.pods.is_empty() {
        return Err(Undecided::Pods);
    }
    let groups = group(workload.pods, &samples, goal.resource(), workload.startup, workload.now);
    samples.retain(|pod, _| !groups.ignored.contains(pod.as_str()) && !groups.unready.contains(pod.as_str()));
    if samples.is_empty() {
        return Err(Undecided::Samples);
    }
    let requests = match goal {
        Goal::Utilization { resource, container, .. } => requests(workload.pods, resource, container)?,
        Goal::Usage { .. } | Goal::Average { .. } => BTreeMap::new(),
    };
    let usage = usage(goal, &samples, &requests)?;
    let calculated =
        |replicas| Calculated { replicas, utilization: usage.utilization, average: usage.average };
    let grows_with_unready = !groups.unready.is_empty() && usage.ratio > 1.0;
    if !grows_with_unready && groups.missing.is_empty() {
        if workload.tolerances.contain(usage.ratio) {
            return Ok(calculated(workload.replicas));
        }
        return Ok(calculated(whole(usage.ratio * groups.ready as f64)));
    }
    let assume = |samples: &mut Samples, pod: &str, value| {
        samples.insert(pod.to_owned(), Sample { value, at: workload.now, window: SignedDuration::ZERO });
    };
    // What is not known must not cause a change: it counts as full on the way down, and as idle on the way up.
    for pod in &groups.missing {
        if usage.ratio < 1.0 {
            assume(&mut samples, pod, full(goal, requests.get(*pod).copied().unwrap_or(0)));
        } else if usage.ratio > 1.0 {
            assume(&mut samples, pod, 0);
        }
    }
    if grows_with_unready {
        groups.unready.iter().for_each(|pod| assume(&mut samples, pod, 0));
    }
    let assumed = self::usage(goal, &samples, &requests)?.ratio;
    let turns = |before: f64, after: f64| before < 1.0 && after > 1.0 || before > 1.0 && after < 1.0;
    if workload.tolerances.contain(assumed) || turns(usage.ratio, assumed) {
        return Ok(calculated(workload.replicas));
    }
    let replicas = whole(assumed * samples.len() as f64);
    let opposite =
        assumed < 1.0 && replicas > workload.replicas || assumed > 1.0 && replicas < workload.replicas;
    Ok(calculated(if opposite { workload.replicas } else { replicas }))
}

/// Returns the least whole number that is not below; at most the greatest that there is.
fn whole(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

/// Returns the amount that a pod counts with which uses what it is meant to.
fn full(goal: Goal<'_>, request: i64) -> i64 {
    match goal {
        Goal::Utilization { percent, .. } => {
            let amount = i128::from(request) * i128::from(percent.max(100)) / 100;
            clamped(amount)
        }
        Goal::Usage { amount, .. } | Goal::Average { amount } => amount,
    }
}

fn usage(goal: Goal<'_>, samples: &Samples, requests: &BTreeMap<String, i64>) -> Result<Usage, Undecided> {
    let percent = match goal {
        Goal::Utilization { percent, .. } => percent,
        Goal::Usage { amount, .. } | Goal::Average { amount } => {
            let total: i128 = samples.values().map(|sample| i128::from(sample.value)).sum();
            let average = clamped(total / samples.len() as i128);
            return Ok(Usage { ratio: average as f64 / amount as f64, utilization: None, average });
        }
    };
    let known = samples.iter().filter_map(|(pod, sample)| Some((sample.value, *requests.get(pod)?)));
    let (mut used, mut requested, mut count) = (0_i128, 0_i128, 0_i128);
    for (value, request) in known {
        used += i128::from(value);
        requested += i128::from(request);
        count += 1;
    }
    if requested == 0 {
        return Err(Undecided::Match);
    }
    let utilization = i32::try_from(clamped(used * 100 / requested)).unwrap_or(i32::MAX);
    let ratio = f64::from(utilization) / f64::from(percent);
    Ok(Usage { ratio, utilization: Some(utilization), average: clamped(used / count) })
}

fn clamped(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX })
}

/// Returns the number of replicas with which a value that the ready pods cause reaches its target.
pub(super) fn by_value(value: i64, target: i64, workload: &Workload<'_>) -> Result<i32, Undecided> {
    let ratio = value as f64 / target as f64;
    if workload.replicas == 0 {
        return Ok(whole(ratio));
    }
    if workload.tolerances.contain(ratio) {
        return Ok(workload.replicas);
    }
    if workload.pods.is_empty() {
        return Err(Undecided::Pods);
    }
    let ready = workload.pods.iter().filter(|pod| pod.phase() == "Running" && pod.is_ready()).count();
    Ok(whole(ratio * ready as f64))
}

/// Returns the number of replicas with which each pod has its share of a value, and the present share.
pub(super) fn by_share(value: i64, target: i64, workload: &Workload<'_>) -> (i32, i64) {
    let present = f64::from(workload.present);
    let ratio = value as f64 / (target as f64 * present);
    let replicas = if workload.tolerances.contain(ratio) {
        workload.present
    } else {
        whole(value as f64 / target as f64)
    };
    // The greatest amount stands for one that could not be added up; it has no share.
    let share = if value == i64::MAX { i64::MAX } else { (value as f64 / present).ceil() as i64 };
    (replicas, share)
}

/// Returns the sum of the values of a metric; at most the greatest amount that there is.
pub(super) fn total(values: &[i64]) -> i64 {
    values.iter().fold(0, |sum: i64, value| sum.saturating_add(*value))
}
