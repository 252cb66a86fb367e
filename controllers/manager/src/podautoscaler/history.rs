//! Earlier recommendations and changes of an autoscaler, by which later ones are limited.
//!
//! They are in memory alone, as in Kubernetes. A controller that has just started does not know them: it takes the
//! present number of replicas for recommended, and the quota of every policy for used, as far back as an earlier
//! controller may have changed the number. The status tells: `desiredReplicas` is always the present number before a
//! scale is written, so that another one afterwards means that the controller has died before it wrote the status.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerStatus;

use super::behavior::Behavior;
use crate::limits;

/// A number with the time that it was noted at.
type Entry = (Timestamp, i32);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    recommendations: Vec<Entry>,
    /// Changes of the number of replicas, with their sign.
    changes: Vec<Entry>,
    /// Time until which there may have been changes that are not noted.
    unknown_until: Option<Timestamp>,
}

/// A recommendation after stabilization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stabilized {
    pub replicas: i32,
    /// Reason and message of the condition if this is not what was recommended.
    pub reason: &'static str,
    pub message: &'static str,
}

const DOWN: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);

impl History {
    /// Begins the history of an autoscaler that has been looked at for the first time.
    pub fn begin(replicas: i32, unknown_until: Option<Timestamp>, now: Timestamp) -> Self {
        Self { recommendations: vec![(now, replicas)], changes: Vec::new(), unknown_until }
    }

    /// Returns a history with these entries, for tests.
    #[cfg(test)]
    pub fn of(recommendations: Vec<Entry>, changes: Vec<Entry>) -> Self {
        Self { recommendations, changes, unknown_until: None }
    }

    /// Notes a recommendation without rules; returns the highest one of the window.
    pub fn stabilize(&mut self, recommended: i32, window: SignedDuration, now: Timestamp) -> Stabilized {
        let recent = self.recommendations.iter().filter(|(at, _)| *at >= before(now, window));
        let highest = recent.map(|(_, replicas)| *replicas).fold(recommended, i32::max);
        self.recommend(recommended, window, now);
        let (reason, message) = DOWN;
        Stabilized { replicas: highest, reason, message }
    }

    /// Notes a recommendation; returns the number closest to the present one between the lowest and the highest
    /// recommendation of the windows.
    pub fn stabilize_both(
        &mut self,
        behavior: &Behavior,
        present: i32,
        recommended: i32,
        now: Timestamp,
    ) -> Stabilized {
        let recent = |window| {
            let cutoff = before(now, window);
            let recent = self.recommendations.iter().filter(move |(at, _)| *at > cutoff);
            recent.map(|(_, replicas)| *replicas)
        };
        let lowest = recent(behavior.up.window).fold(recommended, i32::min);
        let highest = recent(behavior.down.window).fold(recommended, i32::max);
        self.recommend(recommended, behavior.up.window.max(behavior.down.window), now);
        let (reason, message) = if recommended >= present { UP } else { DOWN };
        Stabilized { replicas: present.max(lowest).min(highest), reason, message }
    }

    fn recommend(&mut self, recommended: i32, window: SignedDuration, now: Timestamp) {
        self.recommendations.retain(|(at, _)| *at >= before(now, window));
        self.recommendations.push((now, recommended));
        shorten(&mut self.recommendations);
    }

    /// Notes a change of the number of replicas.
    pub fn changed(&mut self, from: i32, to: i32, now: Timestamp) {
        self.changes.retain(|(at, _)| *at > before(now, limits::HPA_MEMORY));
        self.changes.push((now, to.saturating_sub(from)));
        if shorten(&mut self.changes) {
            // Whatever happened then is no longer known.
            self.unknown_until = self.changes.first().map(|(at, _)| *at).max(self.unknown_until);
        }
    }

    /// Returns the sum of all changes in a period; `None` if it is not known.
    pub fn change_within(&self, period: SignedDuration, now: Timestamp) -> Option<i64> {
        let cutoff = before(now, period);
        if self.unknown_until.is_some_and(|until| until > cutoff) {
            return None;
        }
        let recent = self.changes.iter().filter(|(at, _)| *at > cutoff);
        Some(recent.map(|(_, change)| i64::from(*change)).sum())
    }
}

/// Returns `true` if an earlier controller may have changed the number of replicas without noting it in the status: it
/// writes the number first, and then the status, and may have died between the two.
pub(super) fn may_be_unnoted(status: Option<&HorizontalPodAutoscalerStatus>, replicas: i32) -> bool {
    let judged = status.filter(|status| status.conditions.as_ref().is_some_and(|all| !all.is_empty()));
    judged.is_none_or(|status| status.desired_replicas != replicas)
}

/// Returns the time until which an earlier controller may have changed the number of replicas, by the status that it
/// left.
pub(super) fn unknown_until(
    status: Option<&HorizontalPodAutoscalerStatus>,
    replicas: i32,
    now: Timestamp,
) -> Option<Timestamp> {
    if may_be_unnoted(status, replicas) {
        return Some(now);
    }
    // Times in the API have whole seconds.
    status.and_then(|status| Some(status.last_scale_time.as_ref()?.0 + SignedDuration::from_secs(1)))
}

fn before(now: Timestamp, window: SignedDuration) -> Timestamp {
    now.checked_sub(window).unwrap_or(Timestamp::MIN)
}

/// Drops the oldest entries beyond the limit; returns `true` if there were any.
fn shorten(entries: &mut Vec<Entry>) -> bool {
    let excess = entries.len().saturating_sub(limits::HPA_HISTORY);
    entries.drain(..excess);
    excess > 0
}
