//! The order of victims and of candidates.

use std::cmp::Reverse;

use apiserver_client::slim::OptionalTime;
use jiff::Timestamp;

use super::Candidate;
use crate::pod::PodInfo;

/// Orders pods by importance, the most important first: by priority, then those that have run longer. A pod that has not
/// started yet is the youngest.
pub(super) fn importance(pod: &PodInfo) -> (Reverse<i32>, bool, OptionalTime) {
    (Reverse(pod.spec.priority), pod.started == OptionalTime::default(), pod.started)
}

/// Returns the candidate to choose (`pickOneNodeForPreemption`): with the fewest violations of budgets, then whose most
/// important victim has the lowest priority, then with the lowest sum of priorities, the fewest victims, and whose most
/// important victims have started last; then the first.
pub fn pick(candidates: &[Candidate]) -> Option<&Candidate> {
    let cost = |candidate: &&Candidate| {
        let victims = &candidate.victims;
        let highest = victims.first().map_or(i32::MIN, |victim| victim.spec.priority);
        // Each victim counts, also one of a negative priority.
        let sum: i64 = victims.iter().map(|pod| i64::from(pod.spec.priority) + (1 << 31)).sum();
        (candidate.violations, highest, sum, victims.len(), Reverse(earliest_start(candidate)))
    };
    candidates.iter().min_by_key(cost)
}

/// Returns when the first of the most important victims started. Pods that have not started count as starting now, which
/// is later than all others.
fn earliest_start(candidate: &Candidate) -> Timestamp {
    let highest = candidate.victims.iter().map(|pod| pod.spec.priority).max();
    let important = candidate.victims.iter().filter(|pod| Some(pod.spec.priority) == highest);
    important.map(|pod| pod.started.get().unwrap_or(Timestamp::MAX)).min().unwrap_or(Timestamp::MAX)
}
