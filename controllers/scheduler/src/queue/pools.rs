//! The pools of pods that are not being attempted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::ObjectKey;
use tokio::time::Instant;

use super::Counts;
use super::backoff::Window;
use super::entry::{Backoff, Entry, Place, Rank, Slot};
use super::wake::Watcher;

/// A pod after its PodGroup, so that those of a group lie side by side.
type InGroup = (Option<Arc<ObjectKey>>, Slot);

/// Pods by what they wait for.
#[derive(Debug, Default)]
pub(super) struct Pools {
    active: BTreeMap<Rank, Slot>,
    /// Pods in back-off that plugins refused.
    refused: BTreeMap<(Window, Rank), Slot>,
    /// Pods in back-off whose attempt ended in an error.
    errors: BTreeMap<(Window, Rank), Slot>,
    /// Unschedulable and gated pods, by those whose events may wake them, and then by their PodGroups.
    parked: BTreeMap<Watcher, BTreeSet<InGroup>>,
    /// Unschedulable pods by the time at which they are tried in any case.
    timeouts: BTreeSet<(Instant, Slot)>,
    /// Pods of PodGroups in back-off, and unschedulable ones.
    of_groups: BTreeSet<(Arc<ObjectKey>, Slot)>,
    gated: usize,
}

impl Pools {
    /// Adds a pod to the pool of its place.
    pub fn insert(&mut self, slot: Slot, entry: &Entry) {
        if let Some(group) = entry.group.as_ref().filter(|_| entry.place.can_be_activated()) {
            self.of_groups.insert((Arc::clone(group), slot));
        }
        match &entry.place {
            Place::Active => drop(self.active.insert(entry.rank(), slot)),
            Place::Backoff(Backoff::Refused(window)) => {
                self.refused.insert((*window, entry.rank()), slot);
            }
            Place::Backoff(Backoff::Error(window)) => {
                self.errors.insert((*window, entry.rank()), slot);
            }
            Place::Parked(parked) => {
                for watcher in &parked.watchers {
                    self.parked.entry(*watcher).or_default().insert((entry.group.clone(), slot));
                }
                match parked.until {
                    Some(until) => drop(self.timeouts.insert((until, slot))),
                    None => self.gated += 1,
                }
            }
            Place::Attempted(_) => {}
        }
    }

    /// Undoes [`Self::insert`]; neither place nor rank of the pod must have changed since.
    pub fn remove(&mut self, slot: Slot, entry: &Entry) {
        if let Some(group) = entry.group.as_ref().filter(|_| entry.place.can_be_activated()) {
            self.of_groups.remove(&(Arc::clone(group), slot));
        }
        match &entry.place {
            Place::Active => drop(self.active.remove(&entry.rank())),
            Place::Backoff(Backoff::Refused(window)) => drop(self.refused.remove(&(*window, entry.rank()))),
            Place::Backoff(Backoff::Error(window)) => drop(self.errors.remove(&(*window, entry.rank()))),
            Place::Parked(parked) => {
                for watcher in &parked.watchers {
                    if let Some(pods) = self.parked.get_mut(watcher) {
                        pods.remove(&(entry.group.clone(), slot));
                    }
                }
                match parked.until {
                    Some(until) => drop(self.timeouts.remove(&(until, slot))),
                    None => self.gated -= 1,
                }
            }
            Place::Attempted(_) => {}
        }
    }

    pub fn first_active(&self) -> Option<Slot> {
        self.active.first_key_value().map(|(_, slot)| *slot)
    }

    /// Returns the pod whose back-off ends next, of those that plugins refused.
    pub fn first_backed_off(&self) -> Option<Slot> {
        self.refused.first_key_value().map(|(_, slot)| *slot)
    }

    /// Returns the window in which the next back-off ends.
    pub fn next_backoff(&self) -> Option<Window> {
        let first = |pool: &BTreeMap<(Window, Rank), Slot>| pool.first_key_value().map(|(key, _)| key.0);
        first(&self.refused).into_iter().chain(first(&self.errors)).min()
    }

    /// Returns the pods whose back-off ends in a window.
    pub fn backed_off(&self, window: Window) -> Vec<Slot> {
        let of = |pool: &BTreeMap<(Window, Rank), Slot>| {
            let pods = pool.iter().take_while(|((end, _), _)| *end <= window);
            pods.map(|(_, slot)| *slot).collect::<Vec<_>>()
        };
        [of(&self.refused), of(&self.errors)].concat()
    }

    /// Returns when the next unschedulable pod is to be tried in any case.
    pub fn next_parked(&self) -> Option<Instant> {
        self.timeouts.first().map(|(until, _)| *until)
    }

    /// Returns the pods that have been unschedulable for too long.
    pub fn parked_until(&self, now: Instant) -> Vec<Slot> {
        self.timeouts.iter().take_while(|(until, _)| *until <= now).map(|(_, slot)| *slot).collect()
    }

    /// Returns all unschedulable pods that are not gated.
    pub fn unschedulable(&self) -> impl Iterator<Item = Slot> {
        self.timeouts.iter().map(|(_, slot)| *slot)
    }

    /// Returns the pods that wait for events of this watcher.
    pub fn watched_by(&self, watcher: Watcher) -> impl Iterator<Item = Slot> {
        self.parked.get(&watcher).into_iter().flatten().map(|(_, slot)| *slot)
    }

    /// Returns those of them that are of a PodGroup.
    pub fn watched_in_group(&self, watcher: Watcher, group: ObjectKey) -> impl Iterator<Item = Slot> {
        let group = Some(Arc::new(group));
        let all = (group.clone(), Slot::FIRST)..=(group, Slot::LAST);
        self.parked
            .get(&watcher)
            .into_iter()
            .flat_map(move |pods| pods.range(all.clone()))
            .map(|(_, slot)| *slot)
    }

    /// Returns the pods of a PodGroup that wait for something else than that PreEnqueue lets them pass.
    pub fn of_group(&self, group: &ObjectKey) -> Vec<Slot> {
        let group = Arc::new(group.clone());
        let all = (Arc::clone(&group), Slot::FIRST)..=(group, Slot::LAST);
        self.of_groups.range(all).map(|(_, slot)| *slot).collect()
    }

    pub fn counts(&self) -> Counts {
        Counts {
            active: self.active.len(),
            backoff: self.refused.len() + self.errors.len(),
            unschedulable: self.timeouts.len(),
            gated: self.gated,
        }
    }
}
