//! The condition of a DeviceTaintRule: pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::plan::NO_EXECUTE;
use crate::limits::RULE_STATUS_PERIOD;
use crate::pods::until;

const IN_PROGRESS: &str = "EvictionInProgress";
const NONE: &str = "None";

/// Numbers of devices and pods that a rule affects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Devices that drivers publish.
    pub published: usize,
    pub allocated: usize,
    pub pods: usize,
    /// Namespaces of the pods.
    pub namespaces: usize,
}

/// The time at which to write the condition of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    After(Duration),
    /// The rule only tells what it would do, once.
    Never,
}

/// Returns when the condition may be written. It changes at most once in a while, unless the rule itself changes.
pub(super) fn due(rule: &DeviceTaintRule, now: Timestamp) -> Due {
    let Some(held) = held(rule).filter(|held| held.observed_generation == rule.metadata.generation) else {
        return Due::Now;
    };
    if rule.spec.taint.effect == NONE {
        return Due::Never;
    }
    let next = held.last_transition_time.0.checked_add(RULE_STATUS_PERIOD).unwrap_or(Timestamp::MAX);
    if next <= now { Due::Now } else { Due::After(until(next, now)) }
}

/// Returns `true` if a condition of the rule depends on the pods that it affects.
pub(super) fn counts_pods(rule: &DeviceTaintRule) -> bool {
    matches!(rule.spec.taint.effect.as_str(), NO_EXECUTE | NONE)
}

/// Returns the rule as if it evicted pods.
pub(super) fn as_evicting(rule: &DeviceTaintRule) -> DeviceTaintRule {
    let mut rule = rule.clone();
    NO_EXECUTE.clone_into(&mut rule.spec.taint.effect);
    rule
}

fn held(rule: &DeviceTaintRule) -> Option<&Condition> {
    rule.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == IN_PROGRESS)
}

/// Returns the rule with its condition. `evicted` is the number of pods that have been evicted because of it. The time
/// of the condition is that of its last change of any kind.
pub(super) fn with_condition(
    rule: &DeviceTaintRule,
    counts: Counts,
    evicted: u64,
    now: Timestamp,
) -> DeviceTaintRule {
    let (status, reason, message) = match rule.spec.taint.effect.as_str() {
        NO_EXECUTE if counts.pods > 0 => ("True", "PodsPendingEviction", pending(counts)),
        NO_EXECUTE if evicted > 0 => ("False", "Completed", String::new()),
        NO_EXECUTE => ("False", "NotStarted", String::new()),
        NONE => ("False", "NoEffect", prospect(counts)),
        _ => ("False", "OtherEffect", "Eviction only happens for the NoExecute effect.".to_owned()),
    };
    let evicted = (evicted > 0)
        .then(|| format!("{} evicted since starting the controller.", number(evicted, ("pod", "pods"))));
    let parts: Vec<String> = [message].into_iter().filter(|part| !part.is_empty()).chain(evicted).collect();
    let mut condition = Condition {
        type_: IN_PROGRESS.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: parts.join(" "),
        observed_generation: rule.metadata.generation,
        last_transition_time: held(rule).map_or(Time(now), |held| held.last_transition_time.clone()),
    };
    let mut new = rule.clone();
    if held(rule) != Some(&condition) {
        condition.last_transition_time = Time(now);
        let conditions = new.status.get_or_insert_default().conditions.get_or_insert_default();
        conditions.retain(|one| one.type_ != IN_PROGRESS);
        conditions.push(condition);
    }
    new
}

fn number(count: impl Into<u64>, (one, many): (&str, &str)) -> String {
    let count = count.into();
    format!("{count} {}", if count == 1 { one } else { many })
}

fn namespaces(counts: Counts) -> String {
    number(counts.namespaces as u64, ("namespace", "different namespaces"))
}

fn pending(counts: Counts) -> String {
    let pods = number(counts.pods as u64, ("pod needs", "pods need"));
    format!("{pods} to be evicted in {}.", namespaces(counts))
}

fn prospect(counts: Counts) -> String {
    let published = number(counts.published as u64, ("published device", "published devices"));
    let allocated = number(counts.allocated as u64, ("allocated device", "allocated devices"));
    let pods = number(counts.pods as u64, ("pod", "pods"));
    format!(
        "{published} selected. {allocated} selected. {pods} would be evicted in {} if the effect was NoExecute. This \
         information will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
        namespaces(counts)
    )
}
