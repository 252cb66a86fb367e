//! Judges a PodDisruptionBudget: how many of its pods are healthy, how many must be, and hence how many may be evicted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::limits::{DISRUPTION_TIMEOUT, DISRUPTION_UNSEEN};
use crate::meta::{is_deleted, name, uid};
use crate::pods::{Pod, until};

/// Condition of a budget.
pub(super) const ALLOWED: &str = "DisruptionAllowed";

/// The number of pods that a budget is about, and of those that must stay healthy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    pub pods: i32,
    pub healthy: i32,
}

/// Returns `true` if the numbers of a budget follow from the scale of the controllers of its pods, and not from the
/// pods alone.
pub(super) fn needs_scale(spec: &PodDisruptionBudgetSpec) -> bool {
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

/// Returns the numbers of a budget. `scale` is the sum of the scales of its pods' controllers; it is used only if the
/// budget [needs](needs_scale) it. The error is an amount that cannot be read, in Kubernetes' words.
pub(super) fn expected(
    spec: &PodDisruptionBudgetSpec,
    pods: usize,
    scale: i32,
) -> Result<Expected, &'static str> {
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let healthy = scale.saturating_sub(scaled(most, scale)?).max(0);
            Ok(Expected { pods: scale, healthy })
        }
        (None, Some(IntOrString::Int(least))) => {
            Ok(Expected { pods: i32::try_from(pods).unwrap_or(i32::MAX), healthy: *least })
        }
        (None, Some(least)) => Ok(Expected { pods: scale, healthy: scaled(least, scale)? }),
        (None, None) => Ok(Expected::default()),
    }
}

/// Resolves a number, or a percentage of `total`, rounded up.
fn scaled(amount: &IntOrString, total: i32) -> Result<i32, &'static str> {
    let percent = match amount {
        IntOrString::Int(number) => return Ok(*number),
        IntOrString::String(text) => text.strip_suffix('%'),
    };
    let percent = percent.ok_or("invalid value for IntOrString: invalid type: string is not a percentage")?;
    let percent: i32 = percent.parse().map_err(|_| "invalid value for IntOrString: invalid value")?;
    let hundredths = i64::from(percent) * i64::from(total);
    let rounded_up = hundredths.div_euclid(100) + i64::from(hundredths.rem_euclid(100) != 0);
    Ok(i32::try_from(rounded_up).unwrap_or(i32::MAX))
}

/// Inputs of a judgement.
pub(super) struct Input<'a> {
    pub budget: &'a PodDisruptionBudget,
    /// Pods that the budget selects.
    pub pods: &'a [Arc<Pod>],
    pub expected: Expected,
    /// True if the pods are as they were after the newest eviction that the budget contains, or newer.
    pub shows_evictions: bool,
    /// Uids of [overdue] pods of which the server says that nobody has deleted them.
    pub not_deleted: &'a BTreeSet<String>,
    pub now: Timestamp,
}

/// The judgement of a budget.
#[derive(Debug)]
pub(super) struct Judgement {
    pub status: PodDisruptionBudgetStatus,
    /// Time after which the first of the evicted pods counts again if nobody has deleted it.
    pub recheck: Option<Duration>,
}

/// Judges a budget.
pub(super) fn judge(input: &Input<'_>) -> Judgement {
    let Disrupted { pods: disrupted, next } = disrupted(input);
    let counts = |pod: &Pod| {
        !is_deleted(&pod.metadata) && !disrupted.contains_key(name(&pod.metadata)) && pod.is_ready()
    };
    let healthy = input.pods.iter().filter(|pod| counts(pod)).count();
    let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    let Expected { pods, healthy: desired } = input.expected;
    // A budget without pods allows nothing, so that it is safe when its first pods appear.
    let allowed = if pods > 0 { healthy.saturating_sub(desired).max(0) } else { 0 };
    let status = PodDisruptionBudgetStatus {
        conditions: input.budget.status.as_ref().and_then(|status| status.conditions.clone()),
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(pods),
        observed_generation: input.budget.metadata.generation,
    };
    let (is, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    Judgement {
        status: with_condition(status, (is, reason), String::new(), input.now),
        recheck: next.map(|next| until(next, input.now)),
    }
}

struct Disrupted {
    pods: BTreeMap<String, Time>,
    /// The time at which the first of them counts again.
    next: Option<Timestamp>,
}

/// Returns when an evicted pod counts again unless it is deleted. A time beyond the calendar is nothing that an API
/// server wrote.
fn end(since: &Time) -> Timestamp {
    since.0.checked_add(DISRUPTION_TIMEOUT).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns the pods that should have been deleted by now, and do not show it.
pub(super) fn overdue(budget: &PodDisruptionBudget, pods: &[Arc<Pod>], now: Timestamp) -> Vec<Arc<Pod>> {
    let entries = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
    let Some(entries) = entries else { return Vec::new() };
    let is_overdue = |pod: &&Arc<Pod>| {
        let since = entries.get(name(&pod.metadata)).filter(|_| !is_deleted(&pod.metadata));
        since.is_some_and(|since| end(since) <= now)
    };
    pods.iter().filter(is_overdue).cloned().collect()
}

/// Returns the pods of `status.disruptedPods` whose deletion may not show yet. A pod that is being deleted or is gone
/// needs no entry any more, but it may be a former one of that name, or one that does not show yet.
fn disrupted(input: &Input<'_>) -> Disrupted {
    let mut result = Disrupted { pods: BTreeMap::new(), next: None };
    let status = input.budget.status.as_ref();
    let Some(entries) = status.and_then(|status| status.disrupted_pods.as_ref()) else { return result };
    let present = input.pods.iter().filter(|pod| !is_deleted(&pod.metadata));
    let present: BTreeMap<&str, &Arc<Pod>> = present.map(|pod| (name(&pod.metadata), pod)).collect();
    for (name, since) in entries {
        let (pod, end) = (present.get(name.as_str()), end(since));
        let lasts = match pod {
            // The deletion of one that is overdue may only not show yet.
            Some(pod) => end > input.now || !input.not_deleted.contains(uid(&pod.metadata)),
            None => !input.shows_evictions && until(input.now, end) < DISRUPTION_UNSEEN,
        };
        if lasts {
            if end > input.now {
                result.next = Some(result.next.map_or(end, |next| next.min(end)));
            }
            result.pods.insert(name.clone(), since.clone());
        }
    }
    result
}

/// Returns the status of a budget that cannot be judged: it allows nothing.
pub(super) fn failed(
    budget: &PodDisruptionBudget,
    message: String,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let status = budget.status.clone().unwrap_or_default();
    let status = PodDisruptionBudgetStatus { disruptions_allowed: Some(0), ..status };
    with_condition(status, ("False", "SyncFailed"), message, now)
}

fn with_condition(
    mut status: PodDisruptionBudgetStatus,
    (is, reason): (&str, &str),
    message: String,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter().position(|condition| condition.type_ == ALLOWED);
    let since = known.map(|at| &conditions[at]).filter(|known| known.status == is);
    let condition = Condition {
        type_: ALLOWED.to_owned(),
        status: is.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.map_or(Time(now), |known| known.last_transition_time.clone()),
        observed_generation: status.observed_generation.filter(|generation| *generation != 0),
    };
    match known {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    status
}

/// Returns the text of the event about pods without a controller.
pub(super) fn unmanaged(selector: Option<&LabelSelector>) -> String {
    format!(
        "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status \
         of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods \
         please set \".spec.minAvailable\" field of the PDB to an integer value.",
        shown(selector)
    )
}

/// Returns a selector as Kubernetes' events show it.
fn shown(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".to_owned() };
    let labels = selector.match_labels.iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {value},")).collect();
    let expressions = selector.match_expressions.iter().flatten().map(|one| {
        let values = one.values.as_deref().unwrap_or_default().join(" ");
        format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", one.key, one.operator)
    });
    let expressions: String = expressions.collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}
