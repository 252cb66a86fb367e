//! Limits of the speed at which an autoscaler changes the number of replicas: `spec.behavior` with its defaults.

use apiserver_meta::quantity;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior};

use super::history::History;
use super::replicas::Tolerances;

/// Rules for both directions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Behavior {
    pub up: Rules,
    pub down: Rules,
}

/// Rules for one direction.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rules {
    /// Time for which recommendations count.
    pub window: SignedDuration,
    pub select: Select,
    pub policies: Vec<Policy>,
    pub tolerance: Option<f64>,
}

/// Choice among the changes that the policies allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Select {
    /// The greatest change.
    Max,
    /// The smallest change.
    Min,
    /// No change.
    Disabled,
}

/// The greatest change within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub change: Change,
    pub period: SignedDuration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Pods(i32),
    Percent(i32),
}

impl Behavior {
    /// Reads the behavior. `window` is that of the way down if it names none.
    pub fn read(behavior: &HorizontalPodAutoscalerBehavior, window: SignedDuration) -> Self {
        let every = |change| Policy { change, period: SignedDuration::from_secs(15) };
        let up = [Change::Pods(4), Change::Percent(100)].map(every);
        let down = [every(Change::Percent(100))];
        Self {
            up: Rules::read(behavior.scale_up.as_ref(), SignedDuration::ZERO, &up),
            down: Rules::read(behavior.scale_down.as_ref(), window, &down),
        }
    }

    /// Returns the tolerances, each of which may override the general one.
    pub fn tolerances(&self, general: f64) -> Tolerances {
        let or_general = |rules: &Rules| rules.tolerance.unwrap_or(general);
        Tolerances { down: or_general(&self.down), up: or_general(&self.up) }
    }
}

impl Rules {
    fn read(rules: Option<&HPAScalingRules>, window: SignedDuration, policies: &[Policy]) -> Self {
        let seconds = |seconds: i32| SignedDuration::from_secs(i64::from(seconds));
        let select = rules.and_then(|rules| rules.select_policy.as_deref());
        let given = rules.and_then(|rules| rules.policies.as_ref());
        let tolerance = rules.and_then(|rules| quantity::read(rules.tolerance.as_ref()?));
        let read = |policy: &HPAScalingPolicy| {
            let change = match policy.type_.as_str() {
                "Pods" => Change::Pods(policy.value),
                "Percent" => Change::Percent(policy.value),
                _ => return None,
            };
            Some(Policy { change, period: seconds(policy.period_seconds) })
        };
        Self {
            window: rules.and_then(|rules| rules.stabilization_window_seconds).map_or(window, seconds),
            select: match select {
                Some("Min") => Select::Min,
                Some("Disabled") => Select::Disabled,
                _ => Select::Max,
            },
            policies: given
                .map_or_else(|| policies.to_vec(), |given| given.iter().filter_map(read).collect()),
            tolerance: tolerance.map(|tolerance| tolerance.nano() as f64 / 1e9),
        }
    }

    /// Returns the greatest number of replicas that these rules, as those of the way up, allow.
    pub fn highest(&self, replicas: i32, history: &History, now: Timestamp) -> i32 {
        self.limit(replicas, history, now, i32::MIN, i32::max, |start, change| match change {
            Change::Pods(pods) => start.saturating_add(i64::from(pods)),
            // Rounded up, because a small number would never grow otherwise.
            Change::Percent(percent) => (start as f64 * (1.0 + f64::from(percent) / 100.0)).ceil() as i64,
        })
        .max(replicas)
    }

    /// Returns the least number of replicas that these rules, as those of the way down, allow.
    pub fn lowest(&self, replicas: i32, history: &History, now: Timestamp) -> i32 {
        self.limit(replicas, history, now, i32::MAX, i32::min, |start, change| match change {
            Change::Pods(pods) => start.saturating_sub(i64::from(pods)),
            Change::Percent(percent) => (start as f64 * (1.0 - f64::from(percent) / 100.0)) as i64,
        })
        .min(replicas)
    }

    /// Returns the limit of the selected policy. `wider` returns the one of two limits that allows the greater change,
    /// `none` is the limit that allows the smallest.
    fn limit(
        &self,
        replicas: i32,
        history: &History,
        now: Timestamp,
        none: i32,
        wider: fn(i32, i32) -> i32,
        propose: fn(i64, Change) -> i64,
    ) -> i32 {
        if self.select == Select::Disabled {
            return replicas;
        }
        let proposals = self.policies.iter().map(|policy| {
            let Some(change) = history.change_within(policy.period, now) else { return replicas };
            let proposal = propose(i64::from(replicas) - change, policy.change);
            i32::try_from(proposal).unwrap_or(if proposal < 0 { i32::MIN } else { i32::MAX })
        });
        let narrower = |one: i32, other: i32| if wider(one, other) == one { other } else { one };
        let selected = match self.select {
            Select::Min => proposals.reduce(narrower),
            _ => proposals.reduce(wider),
        };
        selected.unwrap_or(none)
    }
}
