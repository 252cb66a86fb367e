//! Pods that wait for a node: active by priority and age, in back-off after a failure, or unschedulable until
//! the cluster changes in a way that may help. Pure: the caller passes the time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::limits;
use crate::model::PodInfo;

/// Order of active pods: highest priority first, then first come, first served.
type Rank = (Reverse<i32>, u64, String);

enum Place {
    Active(Rank),
    Until(Instant),
    Unschedulable(Instant),
    /// Handed out, with the outcome still open.
    InFlight,
}

struct Entry {
    pod: Arc<PodInfo>,
    place: Place,
    arrival: u64,
    attempts: u32,
    /// End of the back-off after the last failure.
    not_before: Option<Instant>,
}

/// The scheduling queue. Keys are uids.
#[derive(Default)]
pub struct Queue {
    entries: BTreeMap<String, Entry>,
    active: BTreeSet<Rank>,
    waiting: BTreeSet<(Instant, String)>,
    arrivals: u64,
}

impl Queue {
    /// Adds or updates a pod. A change of the pod itself makes it active again.
    pub fn add(&mut self, pod: Arc<PodInfo>, now: Instant) {
        let uid = pod.uid.clone();
        if pod.gated {
            self.remove(&uid);
            return;
        }
        if let Some(entry) = self.entries.get_mut(&uid) {
            entry.pod = pod;
            if matches!(entry.place, Place::Unschedulable(_)) {
                self.requeue(&uid, now);
            }
            return;
        }
        self.arrivals += 1;
        let entry =
            Entry { pod, place: Place::InFlight, arrival: self.arrivals, attempts: 0, not_before: None };
        self.entries.insert(uid.clone(), entry);
        self.activate(&uid);
    }

    /// Removes a pod that is bound, gone or finished.
    pub fn remove(&mut self, uid: &str) {
        self.unplace(uid);
        self.entries.remove(uid);
    }

    /// Returns the next pod to schedule.
    pub fn pop(&mut self, now: Instant) -> Option<Arc<PodInfo>> {
        self.end_waits(now);
        let rank = self.active.pop_first()?;
        let entry = self.entries.get_mut(&rank.2)?;
        entry.place = Place::InFlight;
        entry.attempts += 1;
        Some(Arc::clone(&entry.pod))
    }

    /// Marks a pod as unschedulable: it waits for the cluster to change.
    pub fn mark_unschedulable(&mut self, uid: &str, now: Instant) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        entry.not_before = Some(now + backoff(entry.attempts));
        let until = now + limits::MAX_PARKED;
        entry.place = Place::Unschedulable(until);
        self.waiting.insert((until, uid.to_owned()));
    }

    /// Schedules a retry after a temporary failure, such as an unavailable API server.
    pub fn retry(&mut self, uid: &str, now: Instant) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let until = now + backoff(entry.attempts);
        entry.place = Place::Until(until);
        self.waiting.insert((until, uid.to_owned()));
    }

    /// Makes all unschedulable pods active after their back-off, because the cluster has changed.
    pub fn activate_unschedulable(&mut self, now: Instant) {
        let unschedulable: Vec<String> = self
            .entries
            .iter()
            .filter(|(_, entry)| matches!(entry.place, Place::Unschedulable(_)))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in unschedulable {
            self.requeue(&uid, now);
        }
    }

    /// Returns when the next wait ends.
    pub fn deadline(&self) -> Option<Instant> {
        self.waiting.first().map(|(until, _)| *until)
    }

    /// Returns the number of unschedulable pods.
    pub fn unschedulable(&self) -> usize {
        self.entries.values().filter(|entry| matches!(entry.place, Place::Unschedulable(_))).count()
    }

    fn requeue(&mut self, uid: &str, now: Instant) {
        self.unplace(uid);
        let Some(entry) = self.entries.get_mut(uid) else { return };
        match entry.not_before.filter(|until| *until > now) {
            Some(until) => {
                entry.place = Place::Until(until);
                self.waiting.insert((until, uid.to_owned()));
            }
            None => self.activate(uid),
        }
    }

    fn activate(&mut self, uid: &str) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let rank = (Reverse(entry.pod.priority), entry.arrival, uid.to_owned());
        entry.place = Place::Active(rank.clone());
        self.active.insert(rank);
    }

    fn unplace(&mut self, uid: &str) {
        match self.entries.get(uid).map(|entry| &entry.place) {
            Some(Place::Active(rank)) => {
                self.active.remove(rank);
            }
            Some(Place::Until(until) | Place::Unschedulable(until)) => {
                self.waiting.remove(&(*until, uid.to_owned()));
            }
            Some(Place::InFlight) | None => {}
        }
    }

    fn end_waits(&mut self, now: Instant) {
        while let Some((_, uid)) = self.waiting.first().filter(|(until, _)| *until <= now).cloned() {
            self.unplace(&uid);
            self.activate(&uid);
        }
    }
}

fn backoff(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    (limits::MIN_BACKOFF * 2_u32.pow(doublings)).min(limits::MAX_BACKOFF)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn pod(uid: &str, priority: i32) -> Arc<PodInfo> {
        let mut info = PodInfo::parse(&Pod::default());
        info.uid = uid.to_owned();
        info.priority = priority;
        Arc::new(info)
    }

    fn popped(queue: &mut Queue, now: Instant) -> Option<String> {
        queue.pop(now).map(|pod| pod.uid.clone())
    }

    #[test]
    fn higher_priority_goes_first_then_age() {
        let now = Instant::now();
        let mut queue = Queue::default();
        for (uid, priority) in [("old", 0), ("young", 0), ("urgent", 10)] {
            queue.add(pod(uid, priority), now);
        }
        let order: Vec<_> = std::iter::from_fn(|| popped(&mut queue, now)).collect();
        assert_eq!(order, ["urgent", "old", "young"]);
    }

    #[test]
    fn an_unschedulable_pod_waits_for_a_change_and_then_for_its_back_off() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.add(pod("a", 0), now);
        queue.pop(now);
        queue.mark_unschedulable("a", now);
        assert_eq!(popped(&mut queue, now + Duration::from_secs(60)), None);
        queue.activate_unschedulable(now);
        assert_eq!(popped(&mut queue, now), None);
        assert_eq!(popped(&mut queue, now + limits::MIN_BACKOFF).as_deref(), Some("a"));
    }

    #[test]
    fn an_unschedulable_pod_is_retried_eventually() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.add(pod("a", 0), now);
        queue.pop(now);
        queue.mark_unschedulable("a", now);
        assert_eq!(popped(&mut queue, now + limits::MAX_PARKED).as_deref(), Some("a"));
    }

    #[test]
    fn back_off_doubles_to_its_limit() {
        let seconds: Vec<u64> = (1..=6).map(|n| backoff(n).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn a_removed_pod_is_not_handed_out() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.add(pod("a", 0), now);
        queue.remove("a");
        assert_eq!(popped(&mut queue, now), None);
        assert_eq!(queue.deadline(), None);
    }
}
