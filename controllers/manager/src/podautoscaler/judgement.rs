//! Judges an autoscaler: the status, the events and the number of replicas that follow from what was found.
//!
//! ```text
//!  begin: may it scale? ─▶ measured: what do the metrics ask for? ─▶ limit: what is allowed? ─▶ rescaled ─▶ status
//! ```

use std::collections::BTreeSet;

use apiserver_client::ObjectKey;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus, MetricStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::behavior::Behavior;
use super::groups::Startup;
use super::history::History;
use super::metric::{Failure, Proposal};
use super::replicas::Tolerances;
use super::selector::SelectorError;
use crate::config::Autoscalers;

/// Settings that hold for all autoscalers.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// Deviation of a metric from its target that causes no change.
    pub tolerance: f64,
    /// Time for which recommendations of more replicas count.
    pub window: SignedDuration,
    pub startup: Startup,
}

impl From<&Autoscalers> for Settings {
    fn from(config: &Autoscalers) -> Self {
        let of = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        Self {
            tolerance: config.tolerance,
            window: of(config.window),
            startup: Startup {
                initialization: of(config.cpu_initialization),
                readiness_delay: of(config.readiness_delay),
            },
        }
    }
}

#[cfg(test)]
impl Default for Settings {
    fn default() -> Self {
        Self::from(&Autoscalers::default())
    }
}

/// Factor by which the number of replicas may grow at once without rules, and the number up to which it always may.
const GROWTH: f64 = 2.0;
const FREE_GROWTH: f64 = 4.0;

/// An event about the autoscaler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub is_warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// The next step of a judgement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The target is not scaled.
    Leave,
    /// The metrics decide.
    Measure,
    /// The number is out of bounds, whatever the metrics are.
    Rescale(Rescale),
}

/// A change of the number of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rescale {
    pub replicas: i32,
    pub reason: String,
}

/// Proposals of all metrics that have one, taken together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Demand {
    pub replicas: i32,
    /// Description of the metric that asks for the most.
    pub metric: String,
}

/// A judgement in progress.
pub(super) struct Judgement<'a> {
    hpa: &'a HorizontalPodAutoscaler,
    settings: &'a Settings,
    behavior: Option<Behavior>,
    now: Timestamp,
    /// Number of replicas that is set.
    replicas: i32,
    status: HorizontalPodAutoscalerStatus,
    metrics: Option<Vec<MetricStatus>>,
    events: Vec<Event>,
}

impl<'a> Judgement<'a> {
    pub fn new(hpa: &'a HorizontalPodAutoscaler, settings: &'a Settings, now: Timestamp) -> Self {
        let behavior = hpa.spec.behavior.as_ref();
        Self {
            hpa,
            settings,
            behavior: behavior.map(|behavior| Behavior::read(behavior, settings.window)),
            now,
            replicas: 0,
            status: hpa.status.clone().unwrap_or_default(),
            metrics: None,
            events: Vec::new(),
        }
    }

    /// Assumes a number of replicas that is set, for tests.
    #[cfg(test)]
    pub fn assume(&mut self, replicas: i32) {
        self.replicas = replicas;
    }

    fn least(&self) -> i32 {
        self.hpa.spec.min_replicas.unwrap_or(1)
    }

    fn most(&self) -> i32 {
        self.hpa.spec.max_replicas
    }

    pub fn tolerances(&self) -> Tolerances {
        let general = self.settings.tolerance;
        self.behavior
            .as_ref()
            .map_or(Tolerances { down: general, up: general }, |behavior| behavior.tolerances(general))
    }

    /// Ends a judgement without a scale.
    pub fn cannot_get_scale(&mut self, error: &str) {
        self.warn("FailedGetScale", error);
        let message = format!("the HPA controller was unable to get the target's current scale: {error}");
        self.set("AbleToScale", false, "FailedGetScale", message);
    }

    /// Begins with the number of replicas that is set.
    pub fn begin(&mut self, replicas: i32) -> Next {
        self.replicas = replicas;
        let message = "the HPA controller was able to get the target's current scale";
        self.set("AbleToScale", true, "SucceededGetScale", message);
        if replicas == 0 {
            let message = "scaling is disabled since the replica count of the target is zero";
            self.set("ScalingActive", false, "ScalingDisabled", message);
            self.forget_zero();
            return Next::Leave;
        }
        let out_of_bounds =
            |replicas, reason: &str| Next::Rescale(Rescale { replicas, reason: reason.to_owned() });
        if replicas > self.most() {
            return out_of_bounds(self.most(), "Current number of replicas above Spec.MaxReplicas");
        }
        if replicas < self.least() {
            return out_of_bounds(self.least(), "Current number of replicas below Spec.MinReplicas");
        }
        Next::Measure
    }

    /// Ends a judgement whose scale has no selector.
    pub fn has_no_selector(&mut self) {
        self.warn("SelectorRequired", "selector is required");
        let message = "the HPA target's scale is missing a selector";
        self.set("ScalingActive", false, "InvalidSelector", message);
        self.cannot_compute("selector is required");
    }

    /// Ends a judgement whose scale has a selector that cannot be parsed.
    pub fn has_invalid_selector(&mut self, error: &SelectorError) {
        let message =
            format!("couldn't convert selector into a corresponding internal selector object: {error}");
        self.warn("InvalidSelector", &message);
        self.set("ScalingActive", false, "InvalidSelector", message.clone());
        self.cannot_compute(&message);
    }

    /// Ends a judgement whose pods others scale as well; `keys` are those of all autoscalers.
    pub fn is_ambiguous(&mut self, selector: &str, keys: &BTreeSet<ObjectKey>) {
        let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        let message =
            format!("pods by selector {selector} are controlled by multiple HPAs: [{}]", keys.join(" "));
        self.warn("AmbiguousSelector", &message);
        self.set("ScalingActive", false, "AmbiguousSelector", message.clone());
        self.cannot_compute(&message);
    }

    /// Combines what each metric asks for; `None` if the number of replicas must stay.
    pub fn measured(&mut self, results: Vec<Result<Proposal, Failure>>) -> Option<Demand> {
        let count = results.len();
        let mut demand: Option<Demand> = None;
        let mut failures = Vec::new();
        let mut statuses = Vec::new();
        for result in results {
            match result {
                Ok(Proposal { replicas, metric, status }) => {
                    statuses.push(status);
                    if demand.as_ref().is_none_or(|known| known.replicas == 0 || replicas > known.replicas) {
                        demand = Some(Demand { replicas, metric });
                    }
                }
                Err(failure) => {
                    statuses.push(MetricStatus::default());
                    self.warn(failure.reason, &failure.message);
                    failures.push(failure);
                }
            }
        }
        self.metrics = Some(statuses);
        // Those that failed might have asked for more.
        let demand = demand.filter(|demand| failures.is_empty() || demand.replicas >= self.replicas);
        match (&demand, failures.first()) {
            (Some(demand), _) => {
                let message = format!(
                    "the HPA was able to successfully calculate a replica count from {}",
                    demand.metric
                );
                self.set("ScalingActive", true, "ValidMetricFound", message);
            }
            (None, Some(first)) => {
                let message = format!("the HPA was unable to compute the replica count: {}", first.message);
                self.set("ScalingActive", false, first.reason, message);
                let (failed, whole) = (failures.len(), &first.whole);
                let message =
                    format!("invalid metrics ({failed} invalid out of {count}), first error is: {whole}");
                self.cannot_compute(&message);
            }
            (None, None) => {
                let message = "the HPA was unable to compute the replica count: no metrics are specified";
                self.set("ScalingActive", false, "InvalidMetricSourceType", message);
                self.cannot_compute("no metrics are specified");
            }
        }
        demand
    }

    /// Limits what the metrics ask for; `None` if the number of replicas stays.
    pub fn limit(&mut self, demand: &Demand, history: &mut History) -> Option<Rescale> {
        let recommended = demand.replicas.max(0);
        let (present, now) = (self.replicas, self.now);
        let reason = if recommended > present {
            format!("{} above target", demand.metric)
        } else if recommended < present {
            "All metrics below target".to_owned()
        } else {
            String::new()
        };
        let behavior = self.behavior.clone();
        let (stabilized, bounded) = match &behavior {
            None => {
                let stabilized = history.stabilize(recommended, self.settings.window, now);
                (stabilized, self.bound(stabilized.replicas))
            }
            Some(behavior) => {
                let stabilized = history.stabilize_both(behavior, present, recommended, now);
                (stabilized, self.bound_by_rules(behavior, history, stabilized.replicas))
            }
        };
        if stabilized.replicas == recommended {
            self.set("AbleToScale", true, "ReadyForNewScale", "recommended size matches current size");
        } else {
            self.set("AbleToScale", true, stabilized.reason, stabilized.message);
        }
        let is_limited = bounded.replicas != stabilized.replicas;
        self.set("ScalingLimited", is_limited, bounded.reason, bounded.message);
        (bounded.replicas != present).then_some(Rescale { replicas: bounded.replicas, reason })
    }

    /// Returns the number of replicas within the bounds of an autoscaler without rules.
    fn bound(&self, replicas: i32) -> Bounded {
        let growth = (GROWTH * f64::from(self.replicas)).max(FREE_GROWTH) as i32;
        if replicas < self.least() {
            return Bounded::new(self.least(), TOO_FEW);
        }
        let (most, limit) = if self.most() > growth { (growth, UP_LIMIT) } else { (self.most(), TOO_MANY) };
        if replicas > most { Bounded::new(most, limit) } else { Bounded::new(replicas, WITHIN) }
    }

    fn bound_by_rules(&self, behavior: &Behavior, history: &History, replicas: i32) -> Bounded {
        let present = self.replicas;
        if replicas > present {
            let highest = behavior.up.highest(present, history, self.now);
            let (most, limit) =
                if self.most() > highest { (highest, UP_LIMIT) } else { (self.most(), TOO_MANY) };
            if replicas > most {
                return Bounded::new(most, limit);
            }
        } else if replicas < present {
            let lowest = behavior.down.lowest(present, history, self.now);
            let (least, limit) =
                if self.least() < lowest { (lowest, DOWN_LIMIT) } else { (self.least(), TOO_FEW) };
            if replicas < least {
                return Bounded::new(least, limit);
            }
        }
        Bounded::new(replicas, WITHIN)
    }

    /// Returns the status with the number of replicas that is set, if the last judgement ended with another one.
    pub fn set_by_others(&mut self) -> Option<HorizontalPodAutoscalerStatus> {
        let (hpa, desired) = (self.hpa, self.replicas);
        let known = hpa.status.as_ref().filter(|status| status.conditions.is_some())?;
        if known.desired_replicas == desired {
            return None;
        }
        self.status.desired_replicas = desired;
        Some(HorizontalPodAutoscalerStatus { desired_replicas: desired, ..known.clone() })
    }

    /// Dates a change of the number of replicas that an earlier controller may have made, so that a later one knows.
    pub fn may_have_changed(&mut self) {
        self.status.last_scale_time = Some(Time(self.now));
    }

    /// Ends a judgement after the scale was written at this time.
    pub fn rescaled(&mut self, to: &Rescale, at: Timestamp) {
        let Rescale { replicas, reason } = to;
        let message = format!("the HPA controller was able to update the target scale to {replicas}");
        self.set("AbleToScale", true, "SucceededRescale", message);
        self.report(false, "SuccessfulRescale", format!("New size: {replicas}; reason: {reason}"));
        self.forget_zero();
        self.finish(*replicas);
        self.status.last_scale_time = Some(Time(at));
    }

    /// Ends a judgement whose scale could not be written.
    pub fn cannot_rescale(&mut self, to: &Rescale, error: &str) {
        let Rescale { replicas, reason } = to;
        self.warn("FailedRescale", &format!("New size: {replicas}; reason: {reason}; error: {error}"));
        let message = format!("the HPA controller was unable to update the target scale: {error}");
        self.set("AbleToScale", false, "FailedUpdateScale", message);
        self.finish(self.status.desired_replicas);
    }

    /// Ends a judgement by which the number of replicas stays.
    pub fn stays(&mut self) {
        self.finish(self.replicas);
    }

    /// Ends a judgement that has found no number of replicas.
    fn cannot_compute(&mut self, error: &str) {
        self.warn("FailedComputeMetricsReplicas", error);
        self.finish(self.status.desired_replicas);
    }

    fn finish(&mut self, desired: i32) {
        self.status.current_replicas = Some(self.replicas);
        self.status.desired_replicas = desired;
        self.status.current_metrics = self.metrics.take();
        self.status.observed_generation = None;
    }

    /// Returns the status and the events.
    pub fn end(self) -> (HorizontalPodAutoscalerStatus, Vec<Event>) {
        (self.status, self.events)
    }

    /// Removes the condition of the feature gate `HPAScaleToZero`, which is off.
    fn forget_zero(&mut self) {
        if let Some(conditions) = &mut self.status.conditions {
            conditions.retain(|condition| condition.type_ != "ScaledToZero");
        }
    }

    fn set(&mut self, kind: &str, is_true: bool, reason: &str, message: impl Into<String>) {
        let conditions = self.status.conditions.get_or_insert_default();
        let status = if is_true { "True" } else { "False" };
        let index = conditions.iter().position(|condition| condition.type_ == kind).unwrap_or_else(|| {
            let type_ = kind.to_owned();
            conditions.push(HorizontalPodAutoscalerCondition { type_, ..Default::default() });
            conditions.len() - 1
        });
        let condition = &mut conditions[index];
        if condition.status != status {
            condition.last_transition_time = Some(Time(self.now));
        }
        condition.status = status.to_owned();
        condition.reason = Some(reason.to_owned());
        condition.message = Some(message.into());
    }

    fn warn(&mut self, reason: &'static str, message: &str) {
        self.report(true, reason, message.to_owned());
    }

    fn report(&mut self, is_warning: bool, reason: &'static str, message: String) {
        self.events.push(Event { is_warning, reason, message });
    }
}

/// A number of replicas within its bounds, with reason and message of the condition.
struct Bounded {
    replicas: i32,
    reason: &'static str,
    message: &'static str,
}

impl Bounded {
    fn new(replicas: i32, (reason, message): (&'static str, &'static str)) -> Self {
        Self { replicas, reason, message }
    }
}

type Limit = (&'static str, &'static str);

const WITHIN: Limit = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FEW: Limit = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_MANY: Limit =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const UP_LIMIT: Limit =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: Limit =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
