//! Decides when the pods of a node with `NoExecute` taints are deleted: pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::ObjectKey;
use apiserver_meta::pods::tolerates;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Taint, Toleration};

use crate::meta::{created, is_deleted, uid};
use crate::pods::{Condition, Pod};

/// A `NoExecute` taint of a node, with the time since which it is there.
pub(super) type Timed = (Taint, Timestamp);

/// Scheduled deletions by pod.
pub(super) type Schedule = BTreeMap<ObjectKey, Scheduled>;

/// The scheduled deletion of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scheduled {
    pub uid: String,
    pub at: Timestamp,
    /// The shortest toleration that it follows from.
    seconds: i64,
    /// True once the time has come.
    is_due: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Stays,
    Goes,
    Waits { at: Timestamp, seconds: i64 },
}

/// Decides about a pod that has been on the node since `bound`.
fn decide(taints: &[Timed], tolerations: &[Toleration], bound: Timestamp) -> Decision {
    let (mut shortest, mut earliest) = (i64::MAX, None::<Timestamp>);
    for (taint, since) in taints {
        let Some(toleration) = tolerations.iter().find(|toleration| tolerates(toleration, taint)) else {
            return Decision::Goes;
        };
        let Some(seconds) = toleration.toleration_seconds.map(|seconds| seconds.max(0)) else { continue };
        let tolerated = Duration::from_secs(seconds.unsigned_abs());
        // A time beyond the calendar never comes.
        let Ok(at) = (*since).max(bound).checked_add(tolerated) else { continue };
        shortest = shortest.min(seconds);
        earliest = Some(earliest.map_or(at, |earliest| earliest.min(at)));
    }
    earliest.map_or(Decision::Stays, |at| Decision::Waits { at, seconds: shortest })
}

/// Returns since when a pod has been on its node.
fn bound_since(pod: &Pod) -> Timestamp {
    let scheduled = pod.condition("PodScheduled").filter(Condition::is_true);
    let time = scheduled.and_then(|condition| condition.last_transition_time);
    time.or_else(|| created(&pod.metadata)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The steps to take on one node.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// Pods to delete.
    pub evicted: Vec<Arc<Pod>>,
    /// Pods whose scheduled deletion does not take place, by their UIDs.
    pub cancelled: Vec<(ObjectKey, String)>,
    pub schedule: Schedule,
    /// The time at which to look again.
    pub next: Option<Timestamp>,
}

/// Decides about all pods of a node. `taints` is `None` if the node is gone, which cancels nothing.
pub(super) fn round(taints: Option<&[Timed]>, pods: &[Arc<Pod>], before: Schedule, now: Timestamp) -> Round {
    let (mut round, mut before) = (Round::default(), before);
    for pod in pods.iter().filter(|pod| !is_deleted(&pod.metadata)) {
        let key = ObjectKey::of(pod.as_ref());
        let held = match before.remove(&key) {
            Some(held) if held.uid == uid(&pod.metadata) => Some(held),
            // It was for an earlier pod of this name.
            Some(held) => {
                round.cancel(key.clone(), held);
                None
            }
            None => None,
        };
        let Some(taints) = taints else {
            if let Some(held) = held {
                round.wait(key, pod, held, now);
            }
            continue;
        };
        let tolerations = pod.spec().tolerations.as_deref().unwrap_or_default();
        match (decide(taints, tolerations, bound_since(pod)), held) {
            (Decision::Waits { at, seconds }, held) => {
                let scheduled = reschedule(at, seconds, uid(&pod.metadata), held);
                round.wait(key, pod, scheduled, now);
            }
            (Decision::Stays, Some(held)) => round.cancel(key, held),
            (Decision::Stays, None) => {}
            (Decision::Goes, held) => {
                if let Some(held) = held {
                    round.cancel(key, held);
                }
                round.evicted.push(Arc::clone(pod));
            }
        }
    }
    // These pods are gone, or being deleted already.
    before.into_iter().for_each(|(key, held)| round.cancel(key, held));
    round
}

/// Returns the deletion at `at`, or an earlier one that was scheduled before: a taint that takes another one's place,
/// such as `unreachable` that of `not-ready`, does not start the time anew. It does if it is tolerated for longer.
fn reschedule(at: Timestamp, seconds: i64, uid: &str, held: Option<Scheduled>) -> Scheduled {
    let stands = held.filter(|held| held.seconds >= seconds && held.at < at);
    Scheduled { uid: uid.to_owned(), at: stands.map_or(at, |held| held.at), seconds, is_due: false }
}

impl Round {
    fn wait(&mut self, key: ObjectKey, pod: &Arc<Pod>, scheduled: Scheduled, now: Timestamp) {
        let is_due = scheduled.at <= now;
        if is_due {
            self.evicted.push(Arc::clone(pod));
        } else {
            self.next = Some(self.next.map_or(scheduled.at, |next| next.min(scheduled.at)));
        }
        self.schedule.insert(key, Scheduled { is_due, ..scheduled });
    }

    /// Cancels a deletion, of which nobody is told if it has begun.
    fn cancel(&mut self, key: ObjectKey, held: Scheduled) {
        if !held.is_due {
            self.cancelled.push((key, held.uid));
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
