//! The events that wake pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::Queue;
use super::counts::Cause;
use super::entry::{Backoff, Entry, Flight, Parked, Place, Slot};
use super::times::QueueTimes;
use crate::cluster::Cluster;
use crate::framework::{Change, Event, Hint, Profile, Reach, Versions};
use crate::pod::PodInfo;

/// The effect of an event on a pod; the greatest of several counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// Does not help.
    Skip,
    /// May help: the pod is tried after what is left of its back-off.
    AfterBackoff,
    /// A plugin for which the pod waits says so: it is tried at once.
    Immediately,
}

/// A plugin of a profile, or whatever has refused a pod without being one, such as an extender: all events may help then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Watcher {
    pub profile: Option<usize>,
    pub plugin: Option<usize>,
}

/// A plugin that has refused a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rejector {
    /// Index in the profile; `None` if it is not a plugin of the profile.
    pub index: Option<usize>,
    pub name: &'static str,
}

/// Plugins that have refused a pod.
pub(super) type Plugins = BTreeSet<Rejector>;

/// The profiles, with the events that each plugin has registered.
pub(super) struct Registrations {
    profiles: Arc<[Profile]>,
    /// By index of the profile and of the plugin.
    events: Vec<Vec<Vec<Event>>>,
}

impl Registrations {
    pub fn new(profiles: Arc<[Profile]>) -> Self {
        let events = |profile: &Profile| profile.plugins.iter().map(|plugin| plugin.events()).collect();
        Self { events: profiles.iter().map(events).collect(), profiles }
    }

    pub fn profile_of(&self, pod: &PodInfo) -> Option<usize> {
        self.profiles.iter().position(|profile| *profile.name == *pod.spec.scheduler)
    }

    /// Returns the name of a profile.
    pub fn name(&self, profile: Option<usize>) -> &str {
        profile.map_or("", |index| &self.profiles[index].name)
    }

    /// Looks up plugins of a profile by their names.
    pub fn resolve(&self, profile: Option<usize>, names: BTreeSet<&'static str>) -> Plugins {
        let index = |name| {
            let profile = &self.profiles[profile?];
            profile.plugins.iter().position(|plugin| plugin.name() == name)
        };
        names.into_iter().map(|name| Rejector { index: index(name), name }).collect()
    }

    /// Returns the plugin whose PreEnqueue refuses a pod. The one that has refused it before is asked first.
    fn gate_of(&self, entry: &Entry, cluster: &Cluster) -> Option<usize> {
        let profile = &self.profiles[entry.profile?];
        let refuses = |index: &usize| profile.plugin(*index).pre_enqueue(&entry.pod, cluster).is_some();
        let before = entry.gate.filter(refuses);
        before.or_else(|| profile.pre_enqueue.iter().copied().find(refuses))
    }

    /// Returns the plugins that have registered an event.
    fn watchers(&self, event: Event) -> impl Iterator<Item = Watcher> {
        self.events.iter().enumerate().flat_map(move |(profile, plugins)| {
            let watching = move |events: &Vec<Event>| events.iter().any(|one| one.includes(event));
            let plugins = plugins.iter().enumerate().filter(move |(_, events)| watching(events));
            plugins.map(move |(plugin, _)| Watcher { profile: Some(profile), plugin: Some(plugin) })
        })
    }

    /// Returns the plugins that have registered [`Event::WILDCARD`].
    fn watchers_of_all(&self) -> impl Iterator<Item = Watcher> {
        self.watchers(Event::WILDCARD).filter(|watcher| {
            let (Some(profile), Some(plugin)) = (watcher.profile, watcher.plugin) else { return false };
            self.events[profile][plugin].contains(&Event::WILDCARD)
        })
    }

    /// Returns what has refused pods without being a plugin of their profile.
    fn others(&self) -> impl Iterator<Item = Watcher> {
        let profiles = (0..self.profiles.len()).map(Some).chain([None]);
        profiles.map(|profile| Watcher { profile, plugin: None })
    }

    /// Returns which pods a change can help that wait for a plugin.
    fn reach(&self, watcher: Watcher, change: &Change<'_>, cluster: &Cluster) -> Reach {
        let (Some(profile), Some(plugin)) = (watcher.profile, watcher.plugin) else { return Reach::All };
        self.profiles[profile].plugin(plugin).reach(change, cluster)
    }

    /// Returns `true` if a plugin has registered the event.
    pub fn is_registered(&self, event: Event) -> bool {
        self.watchers(event).next().is_some()
    }

    /// Returns what an event means for a pod.
    pub fn verdict(
        &self,
        times: &mut Option<QueueTimes>,
        entry: &Entry,
        event: Event,
        change: &Change<'_>,
        cluster: &Cluster,
    ) -> Verdict {
        if entry.has_failed_by_error() {
            return Verdict::AfterBackoff;
        }
        if event == Event::WILDCARD {
            // An event that wakes all pods may be meant for one alone.
            return match change {
                Change::Pod(Versions { new: Some(pod), .. }) if pod.uid != entry.pod.uid => Verdict::Skip,
                _ => Verdict::AfterBackoff,
            };
        }
        let mut may_help = |plugin: &Rejector| {
            let (Some(profile), Some(index)) = (entry.profile, plugin.index) else { return true };
            let is_registered = self.events[profile][index].iter().any(|one| one.includes(event));
            let hint = || self.profiles[profile].plugin(index).hint(&entry.pod, change, cluster);
            is_registered && QueueTimes::hint(times, plugin.name, event, hint) == Hint::Queue
        };
        if entry.pending.iter().any(&mut may_help) {
            Verdict::Immediately
        } else if entry.plugins.iter().any(may_help) {
            Verdict::AfterBackoff
        } else {
            Verdict::Skip
        }
    }
}

impl Queue {
    /// Wakes those of some pods that a change may help.
    pub(super) fn happened_for(
        &mut self,
        event: Event,
        change: &Change<'_>,
        concerns: impl Fn(&PodInfo) -> bool,
        cluster: &Cluster,
        now: Instant,
    ) {
        for slot in self.candidates(event, change, cluster) {
            let entry = &self.entries[slot];
            if concerns(&entry.pod) {
                let verdict = self.registrations.verdict(&mut self.times, entry, event, change, cluster);
                self.wake(slot, verdict, Cause::Event(event), cluster, now);
            }
        }
        let is_of_interest =
            event == Event::WILDCARD || self.config.has_extenders || self.registrations.is_registered(event);
        if !self.flights.is_empty() && is_of_interest {
            self.flights.record(event, change);
        }
    }

    /// Returns the pods that wait for an event and that the change can help, each once.
    fn candidates(&self, event: Event, change: &Change<'_>, cluster: &Cluster) -> Vec<Slot> {
        if event == Event::WILDCARD {
            // Gated pods are woken only if the plugin that refuses them has registered this very event.
            let gated =
                self.registrations.watchers_of_all().flat_map(|watcher| self.pools.watched_by(watcher));
            let mut pods: Vec<Slot> = self.pools.unschedulable().chain(gated).collect();
            pods.sort_unstable();
            pods.dedup();
            return pods;
        }
        let watchers = self.registrations.watchers(event).chain(self.registrations.others());
        let mut pods: Vec<Slot> = Vec::new();
        for watcher in watchers {
            match self.registrations.reach(watcher, change, cluster) {
                Reach::All => pods.extend(self.pools.watched_by(watcher)),
                Reach::Group(group) => pods.extend(self.pools.watched_in_group(watcher, group)),
                Reach::None => {}
            }
        }
        pods.sort_unstable();
        pods.dedup();
        pods
    }

    /// Returns what has happened during an attempt means for its pod.
    pub(super) fn verdict_of_flight(&mut self, slot: Slot, flight: &Flight, cluster: &Cluster) -> Verdict {
        let entry = &self.entries[slot];
        if cluster.groups.concern(&entry.pod) {
            return Verdict::AfterBackoff;
        }
        let Some(events) = self.flights.since(flight) else { return Verdict::AfterBackoff };
        let own = flight
            .own
            .iter()
            .map(|(event, old, new)| (*event, Change::Pod(Versions { old: Some(old), new: Some(new) })));
        let mut verdict = if flight.is_forced || entry.has_failed_by_error() {
            Verdict::AfterBackoff
        } else {
            Verdict::Skip
        };
        let most = if entry.pending.is_empty() { Verdict::AfterBackoff } else { Verdict::Immediately };
        for (event, change) in own.chain(events) {
            if verdict >= most {
                break;
            }
            verdict =
                verdict.max(self.registrations.verdict(&mut self.times, entry, event, &change, cluster));
        }
        verdict
    }

    /// Moves a parked pod on, if an event may help it.
    pub(super) fn wake(
        &mut self,
        slot: Slot,
        verdict: Verdict,
        cause: Cause,
        cluster: &Cluster,
        now: Instant,
    ) {
        if verdict != Verdict::Skip {
            self.pools.remove(slot, &self.entries[slot]);
            self.enqueue(slot, verdict, cause, cluster, now);
        }
    }

    /// Puts a pod that is in no pool into back-off or among the active ones, or among the gated ones if PreEnqueue refuses.
    pub(super) fn enqueue(
        &mut self,
        slot: Slot,
        verdict: Verdict,
        cause: Cause,
        cluster: &Cluster,
        now: Instant,
    ) {
        let entry = &mut self.entries[slot];
        entry.gate = QueueTimes::pre_enqueue(&mut self.times, entry.profile, || {
            self.registrations.gate_of(entry, cluster)
        });
        if let Some(gate) = entry.gate {
            self.refuse_in_pre_enqueue(slot, gate);
            self.park(slot, cause);
            return;
        }
        let backoff = entry.backoff.filter(|window| self.windows.is_open(*window, now));
        match backoff.filter(|_| verdict == Verdict::AfterBackoff) {
            // Pods of groups are tried with the others of theirs, and not before their time.
            Some(window) if entry.has_failed_by_error() || cluster.groups.concern(&entry.pod) => {
                self.place(slot, Place::Backoff(Backoff::Error(window)), cause);
            }
            Some(window) => self.place(slot, Place::Backoff(Backoff::Refused(window)), cause),
            None => self.make_active(slot, cause, now),
        }
    }

    fn refuse_in_pre_enqueue(&mut self, slot: Slot, gate: usize) {
        let entry = &mut self.entries[slot];
        let Some(profile) = entry.profile else { return };
        let name = self.registrations.profiles[profile].plugin(gate).name();
        let rejector = Rejector { index: Some(gate), name };
        if !entry.pending.contains(&rejector) && entry.plugins.insert(rejector) {
            self.refusals.add_one(entry.profile, name);
        }
    }

    /// Puts a pod that is in no pool among the unschedulable or the gated ones.
    pub(super) fn park(&mut self, slot: Slot, cause: Cause) {
        let entry = &self.entries[slot];
        let until = entry.gate.is_none().then(|| entry.queued + self.config.max_parked);
        let parked = Parked { watchers: entry.watchers(), until };
        self.place(slot, Place::Parked(parked), cause);
    }

    /// Makes the pods active whose back-off has ended.
    pub(super) fn end_backoffs(&mut self, now: Instant) {
        while let Some(window) =
            self.pools.next_backoff().filter(|window| !self.windows.is_open(*window, now))
        {
            for slot in self.pools.backed_off(window) {
                self.end_backoff(slot, Cause::BackoffComplete, now);
            }
        }
    }

    /// Makes a pod active that is in back-off. PreEnqueue has let it pass before.
    pub(super) fn end_backoff(&mut self, slot: Slot, cause: Cause, now: Instant) {
        self.pools.remove(slot, &self.entries[slot]);
        self.make_active(slot, cause, now);
    }

    fn make_active(&mut self, slot: Slot, cause: Cause, now: Instant) {
        self.entries[slot].first_attempt.get_or_insert(now);
        self.place(slot, Place::Active, cause);
    }

    fn place(&mut self, slot: Slot, place: Place, cause: Cause) {
        let entry = &mut self.entries[slot];
        entry.place = place;
        if let Some(pool) = entry.pool() {
            self.incoming.count(pool, cause);
        }
        self.pools.insert(slot, entry);
    }
}
