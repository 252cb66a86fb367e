//! Pods that wait for a node, and when each of them is tried (the scheduling queue of kube-scheduler). Pure: the caller
//! passes the time and the changes of the cluster.
//!
//! ```text
//!             add                    pop                  done
//!   new pod ───────▶ active ──────────────────▶ attempted ──────▶ gone
//!      │ PreEnqueue    ▲  ▲                      │  │
//!      ▼ refuses       │  └── back-off ◀─────────┘  │ failed
//!    gated ────────────┘         ▲      an error    ▼
//!             event              └─────────── unschedulable
//!                                     event
//! ```
//!
//! A pod that was refused is *unschedulable* until an event happens that one of the plugins that refused it has registered,
//! and whose hint says that it may help; then it goes through the back-off that it has left. Pods are indexed by the plugins
//! that refused them, so that an event costs nothing for pods whose plugins do not wait for it. Events that happen during an
//! attempt are remembered until the attempt has ended.

mod backoff;
mod counts;
mod entry;
mod flights;
mod pools;
mod times;
mod wake;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use tokio::time::Instant;

use self::backoff::Windows;
use self::counts::Refusals;
pub use self::counts::{Cause, Incoming, Pool};
use self::entry::{Entries, Place, Slot};
use self::flights::Flights;
use self::pools::Pools;
pub use self::times::{Measures, QueueTimes};
use self::wake::{Registrations, Verdict};
use crate::cluster::Cluster;
use crate::events::pod_changes;
use crate::framework::{Actions, Change, Diagnosis, Event, Profile, Resource, Versions};
use crate::limits;
use crate::pod::PodInfo;

/// The plugin's name under which the refusal of an extender is recorded. A pod with it is woken by any event.
pub const EXTENDER: &str = "Extender";

/// A pod no longer uses a node.
pub(crate) const POD_REMOVED: Event = Event::new(Resource::AssignedPod, Actions::DELETE);

/// Settings of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Pause after the first failure (`podInitialBackoffSeconds`).
    pub initial_backoff: Duration,
    /// Longest pause (`podMaxBackoffSeconds`); 0 turns pauses off.
    pub max_backoff: Duration,
    /// Time after which an unschedulable pod is tried again though nothing has happened.
    pub max_parked: Duration,
    /// There are extenders, so that any event may help.
    pub has_extenders: bool,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            initial_backoff: limits::MIN_BACKOFF,
            max_backoff: limits::MAX_BACKOFF,
            max_parked: limits::MAX_PARKED,
            has_extenders: false,
        }
    }
}

/// A pod that was handed out, to be given back by [`Queue::done`] or [`Queue::failed`].
#[derive(Clone, Debug)]
pub struct Attempting {
    pub pod: Arc<PodInfo>,
    /// Number of attempts, this one included.
    pub attempts: u32,
    /// Time at which the pod could first be attempted.
    pub first_attempt: Instant,
    /// The pod is tried again only because it was unschedulable for [`QueueConfig::max_parked`].
    pub was_flushed: bool,
}

/// The reason for which an attempt has failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Plugins that refused the pod.
    pub plugins: BTreeSet<&'static str>,
    /// Plugins for which the pod waits: once they wake it, it is tried at once.
    pub pending: BTreeSet<&'static str>,
    /// Something else went wrong; the attempt is repeated after a pause whatever happens. So is one that no plugin refused.
    pub is_error: bool,
}

impl From<&Diagnosis> for Failure {
    fn from(diagnosis: &Diagnosis) -> Self {
        let (plugins, pending) = (diagnosis.plugins.clone(), diagnosis.pending.clone());
        Self { plugins, pending, is_error: diagnosis.is_error() }
    }
}

/// Number of pods in each pool, as in the metric `scheduler_pending_pods`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
}

/// The scheduling queue.
///
/// It reads the cluster for PreEnqueue and for hints, and does not touch [`Cluster::nominated`]: the caller keeps that.
pub struct Queue {
    config: QueueConfig,
    registrations: Registrations,
    entries: Entries,
    pools: Pools,
    flights: Flights,
    windows: Windows,
    incoming: Incoming,
    refusals: Refusals,
    /// Set if times are taken.
    times: Option<QueueTimes>,
}

impl Queue {
    pub fn new(config: QueueConfig, profiles: Arc<[Profile]>) -> Self {
        Self {
            config,
            registrations: Registrations::new(profiles),
            entries: Entries::default(),
            pools: Pools::default(),
            flights: Flights::default(),
            windows: Windows::default(),
            incoming: Incoming::default(),
            refusals: Refusals::default(),
            times: None,
        }
    }

    /// Takes the times of hints and of PreEnqueue from now on.
    pub fn measure(&mut self, times: QueueTimes) {
        self.times = Some(times);
    }

    /// Returns the times of hints and of PreEnqueue, if they are taken.
    pub fn times(&self) -> Option<&QueueTimes> {
        self.times.as_ref()
    }

    /// Returns the number of attempts that are under way, and how many events of each sort are remembered for them.
    pub fn in_flight(&self) -> (usize, Vec<(Event, usize)>) {
        self.flights.counts()
    }

    /// Adds a pod without a node. One that is known is updated.
    pub fn add(&mut self, pod: Arc<PodInfo>, cluster: &Cluster, now: Instant) {
        if let Some(slot) = self.entries.slot(&pod.uid) {
            let old = Arc::clone(&self.entries[slot].pod);
            self.update(&old, pod, cluster, now);
        } else {
            self.insert(pod, Actions::ADD, cluster, now);
        }
    }

    /// Takes over the new version of a pod without a node. An unschedulable or gated pod is woken if that may help, and a
    /// pod that is being attempted will be if its attempt fails. A pod that is not known is added: the caller must not pass
    /// updates of pods whose attempt has succeeded.
    pub fn update(&mut self, old: &Arc<PodInfo>, new: Arc<PodInfo>, cluster: &Cluster, now: Instant) {
        let Some(slot) = self.entries.slot(&new.uid) else {
            self.insert(new, Actions::UPDATE, cluster, now);
            return;
        };
        match &self.entries[slot].place {
            Place::Active | Place::Backoff(_) => {
                self.pools.remove(slot, &self.entries[slot]);
                self.entries[slot].pod = new;
                self.pools.insert(slot, &self.entries[slot]);
            }
            Place::Attempted(_) => self.update_attempted(slot, old, new),
            Place::Parked(_) => {
                self.entries[slot].pod = Arc::clone(&new);
                let change = Change::Pod(Versions { old: Some(old), new: Some(&new) });
                for event in pod_changes(old, &new) {
                    let verdict = self.registrations.verdict(
                        &mut self.times,
                        &self.entries[slot],
                        event,
                        &change,
                        cluster,
                    );
                    self.wake(slot, verdict, Cause::Event(event), cluster, now);
                    if !matches!(self.entries[slot].place, Place::Parked(_)) {
                        break;
                    }
                }
            }
        }
    }

    fn update_attempted(&mut self, slot: Slot, old: &Arc<PodInfo>, new: Arc<PodInfo>) {
        let entry = &mut self.entries[slot];
        entry.pod = Arc::clone(&new);
        let Place::Attempted(flight) = &mut entry.place else { return };
        for event in pod_changes(old, &new) {
            if flight.own.len() >= limits::OWN_EVENTS {
                flight.is_forced = true;
            } else if self.registrations.is_registered(event) || self.config.has_extenders {
                flight.own.push((event, Arc::clone(old), Arc::clone(&new)));
            }
        }
    }

    /// Removes a pod that is gone, has finished, or was bound by somebody else. If it is being attempted, the end of the
    /// attempt has no effect any more.
    pub fn remove(&mut self, uid: &Uid) {
        if let Some(slot) = self.entries.slot(uid) {
            self.forget(slot);
        }
    }

    /// Hands out the next pod: the active one of the highest priority, among these the one that waits for longest. If none
    /// is active, takes the unschedulable pod whose back-off ends next.
    pub fn pop(&mut self, now: Instant) -> Option<Attempting> {
        self.end_backoffs(now);
        let slot = self.pools.first_active().or_else(|| {
            let slot = self.pools.first_backed_off()?;
            self.incoming.count(Pool::Active, Cause::PopFromBackoffQ);
            Some(slot)
        })?;
        Some(self.hand_out(slot, now))
    }

    /// Hands out a pod as if it were active and the next one. Returns `None` if it is being attempted, or PreEnqueue refuses it.
    pub fn pop_this(&mut self, uid: &Uid, cluster: &Cluster, now: Instant) -> Option<Attempting> {
        let slot = self.entries.slot(uid)?;
        if matches!(self.entries[slot].place, Place::Attempted(_)) {
            return None;
        }
        self.activate([uid], cluster, now);
        matches!(self.entries[slot].place, Place::Active).then(|| self.hand_out(slot, now))
    }

    fn hand_out(&mut self, slot: Slot, now: Instant) -> Attempting {
        self.pools.remove(slot, &self.entries[slot]);
        let entry = &mut self.entries[slot];
        self.refusals.remove(entry);
        entry.attempts += 1;
        entry.place = Place::Attempted(Box::new(self.flights.start()));
        Attempting {
            pod: Arc::clone(&entry.pod),
            attempts: entry.attempts,
            first_attempt: *entry.first_attempt.get_or_insert(now),
            was_flushed: entry.was_flushed,
        }
    }

    /// Forgets a pod whose attempt has ended well: it is bound, or given up.
    pub fn done(&mut self, uid: &Uid) {
        let slot = self.entries.slot(uid);
        let attempted = slot.filter(|slot| matches!(self.entries[*slot].place, Place::Attempted(_)));
        if let Some(slot) = attempted {
            self.forget(slot);
        }
    }

    /// Takes back a pod whose attempt has failed, in the version of its last update. It is unschedulable, unless what has
    /// happened during the attempt may help.
    pub fn failed(&mut self, pod: &PodInfo, failure: Failure, cluster: &Cluster, now: Instant) {
        let Some(slot) = self.entries.slot(&pod.uid) else { return };
        let entry = &mut self.entries[slot];
        if !matches!(entry.place, Place::Attempted(_)) {
            return;
        }
        let Place::Attempted(flight) = std::mem::replace(&mut entry.place, Place::Active) else { return };
        entry.refused_by(failure, &self.registrations);
        self.refusals.add(entry);
        entry.queued = now;
        entry.was_flushed = false;
        entry.backoff = self.windows.expiry(&self.config, entry);
        let verdict = self.verdict_of_flight(slot, &flight, cluster);
        self.flights.end(&flight);
        match verdict {
            Verdict::Skip => self.park(slot, Cause::ScheduleAttemptFailure),
            _ => self.enqueue(slot, verdict, Cause::ScheduleAttemptFailure, cluster, now),
        }
    }

    /// Wakes the pods that a change may help, and remembers it for those that are being attempted.
    pub fn happened(&mut self, event: Event, change: &Change<'_>, cluster: &Cluster, now: Instant) {
        self.happened_for(event, change, |_| true, cluster, now);
    }

    /// A pod that was placed has lost its place: what it has had is free for other pods. The pod itself is not woken.
    pub fn displaced(&mut self, pod: &Arc<PodInfo>, cluster: &Cluster, now: Instant) {
        let change = Change::Pod(Versions { old: Some(pod), new: None });
        self.happened_for(POD_REMOVED, &change, |other| other.uid != pod.uid, cluster, now);
    }

    /// A pod without a node was nominated for one, and is no longer, or it is gone: what it would have taken there is free
    /// for pods of its priority and of lower ones.
    pub fn nomination_ended(&mut self, pod: &Arc<PodInfo>, cluster: &Cluster, now: Instant) {
        let change = Change::Pod(Versions { old: Some(pod), new: None });
        let concerns = |other: &PodInfo| other.spec.priority <= pod.spec.priority;
        self.happened_for(POD_REMOVED, &change, concerns, cluster, now);
    }

    /// Makes pods active at once, whatever has refused them; a pod that is being attempted goes into back-off if its attempt
    /// fails. Needs the cluster for PreEnqueue, which may still refuse.
    pub fn activate<'a>(&mut self, uids: impl IntoIterator<Item = &'a Uid>, cluster: &Cluster, now: Instant) {
        for slot in uids.into_iter().filter_map(|uid| self.entries.slot(uid)).collect::<Vec<_>>() {
            self.activate_one(slot, cluster, now);
        }
    }

    /// Makes the pods of a PodGroup active that are in back-off or unschedulable. Those that are active already, or that
    /// PreEnqueue refuses, cost nothing.
    pub fn activate_group(&mut self, group: &ObjectKey, cluster: &Cluster, now: Instant) {
        for slot in self.pools.of_group(group) {
            self.activate_one(slot, cluster, now);
        }
    }

    fn activate_one(&mut self, slot: Slot, cluster: &Cluster, now: Instant) {
        match &mut self.entries[slot].place {
            Place::Active => {}
            Place::Backoff(_) => self.end_backoff(slot, Cause::ForceActivate, now),
            Place::Parked(_) => self.wake(slot, Verdict::Immediately, Cause::ForceActivate, cluster, now),
            Place::Attempted(flight) => flight.is_forced = true,
        }
    }

    /// Returns when [`Self::flush`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let backoff = self.pools.next_backoff().map(|window| self.windows.end(window));
        let parked = self.pools.next_parked();
        backoff.into_iter().chain(parked).min()
    }

    /// Makes pods active whose back-off has ended, and wakes those that were unschedulable for too long. Needs the cluster
    /// for PreEnqueue.
    pub fn flush(&mut self, cluster: &Cluster, now: Instant) {
        self.end_backoffs(now);
        for slot in self.pools.parked_until(now) {
            self.entries[slot].was_flushed = true;
            self.wake(slot, Verdict::AfterBackoff, Cause::UnschedulableTimeout, cluster, now);
        }
    }

    /// Returns the number of pods in each pool; those that are being attempted are in none.
    pub fn counts(&self) -> Counts {
        self.pools.counts()
    }

    /// Returns `true` if the pod waits or is being attempted.
    pub fn knows(&self, uid: &Uid) -> bool {
        self.entries.slot(uid).is_some()
    }

    /// Returns the pool of a pod; `None` if it is being attempted, or not known.
    pub fn pool_of(&self, uid: &Uid) -> Option<Pool> {
        self.entries[self.entries.slot(uid)?].pool()
    }

    /// Returns how many pods have come into which pool for which reason (`scheduler_queue_incoming_pods_total`).
    pub fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    /// Returns the number of pods that wait because of each plugin, with the name of the profile
    /// (`scheduler_unschedulable_pods`).
    pub fn refusals(&self) -> impl Iterator<Item = (&str, &'static str, usize)> {
        self.refusals.iter().map(|(profile, plugin, pods)| (self.registrations.name(profile), plugin, pods))
    }

    fn insert(&mut self, pod: Arc<PodInfo>, actions: Actions, cluster: &Cluster, now: Instant) {
        self.windows.begin(now);
        let profile = self.registrations.profile_of(&pod);
        let slot = self.entries.insert(pod, profile, now);
        let cause = Cause::Event(Event::new(Resource::UnscheduledPod, actions));
        self.enqueue(slot, Verdict::Immediately, cause, cluster, now);
    }

    fn forget(&mut self, slot: Slot) {
        let entry = &self.entries[slot];
        if let Place::Attempted(flight) = &entry.place {
            self.flights.end(flight);
        } else {
            self.pools.remove(slot, entry);
            self.refusals.remove(entry);
        }
        self.entries.remove(slot);
    }
}

#[cfg(test)]
mod tests;
