//! The pods of the queue, with their state.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::uid::Uid;
use tokio::time::Instant;

use super::Failure;
use super::backoff::Window;
use super::counts::Pool;
use super::flights::Sequence;
use super::wake::{Plugins, Registrations, Watcher};
use crate::cluster::groups::group_of;
use crate::framework::Event;
use crate::pod::PodInfo;

/// Index of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(u32);

impl Slot {
    pub const FIRST: Self = Self(0);
    pub const LAST: Self = Self(u32::MAX);
}

/// The order in which pods are tried: highest priority first, then the one that was queued first.
pub(super) type Rank = (Reverse<i32>, Instant, u64);

/// The place of a pod.
#[derive(Debug)]
pub(super) enum Place {
    Active,
    /// Waits for the end of its back-off.
    Backoff(Backoff),
    /// Unschedulable or gated.
    Parked(Parked),
    /// Handed out.
    Attempted(Box<Flight>),
}

impl Place {
    /// Returns `true` for a pod that waits though PreEnqueue lets it pass.
    pub fn can_be_activated(&self) -> bool {
        match self {
            Self::Active | Self::Attempted(_) => false,
            Self::Backoff(_) => true,
            Self::Parked(parked) => parked.until.is_some(),
        }
    }
}

/// The pool of back-off that a pod is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backoff {
    /// It has failed by an error: it is not tried before its time.
    Error(Window),
    /// It was refused by plugins: it is tried early if there is nothing else to do.
    Refused(Window),
}

/// The plugins and the time that a pod which is not tried waits for.
#[derive(Debug)]
pub(super) struct Parked {
    /// Those whose events may wake it.
    pub watchers: Vec<Watcher>,
    /// Time after which it is tried in any case; gated pods are not.
    pub until: Option<Instant>,
}

/// An attempt that is under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub id: u64,
    /// Events from this one on have happened during the attempt.
    pub since: Sequence,
    /// Updates of the pod itself.
    pub own: Vec<(Event, Arc<PodInfo>, Arc<PodInfo>)>,
    /// Something has happened that may help in any case.
    pub is_forced: bool,
}

/// A pod of the queue.
#[derive(Debug)]
pub(super) struct Entry {
    pub pod: Arc<PodInfo>,
    /// The PodGroup that the pod names.
    pub group: Option<Arc<ObjectKey>>,
    /// Index of the profile; `None` if the pod names none that exists.
    pub profile: Option<usize>,
    pub place: Place,
    /// Number of the pod in the order of arrival, by which ties are broken.
    arrival: u64,
    /// Time of its arrival, later of its last failure.
    pub queued: Instant,
    pub first_attempt: Option<Instant>,
    pub attempts: u32,
    /// Attempts that plugins refused.
    pub refused: u32,
    /// Errors in a row.
    pub errors: u32,
    /// End of the pause after the last failure.
    pub backoff: Option<Window>,
    pub was_flushed: bool,
    /// Plugins that refused the pod in its last attempt or in PreEnqueue since.
    pub plugins: Plugins,
    /// Plugins for which the pod waits since its last attempt.
    pub pending: Plugins,
    /// The plugin whose PreEnqueue refuses the pod.
    pub gate: Option<usize>,
}

impl Entry {
    pub fn rank(&self) -> Rank {
        (Reverse(self.pod.spec.priority), self.queued, self.arrival)
    }

    pub fn pool(&self) -> Option<Pool> {
        match &self.place {
            Place::Active => Some(Pool::Active),
            Place::Backoff(_) => Some(Pool::Backoff),
            Place::Parked(_) if self.gate.is_some() => Some(Pool::Gated),
            Place::Parked(_) => Some(Pool::Unschedulable),
            Place::Attempted(_) => None,
        }
    }

    /// Records the end of an attempt.
    pub fn refused_by(&mut self, failure: Failure, registrations: &Registrations) {
        let Failure { plugins, pending, is_error } = failure;
        let resolve = |names: BTreeSet<&'static str>| match is_error {
            true => Plugins::default(),
            false => registrations.resolve(self.profile, names),
        };
        (self.plugins, self.pending) = (resolve(plugins), resolve(pending));
        if self.has_failed_by_error() {
            self.errors += 1;
        } else {
            self.refused += 1;
            self.errors = 0;
        }
    }

    /// Returns `true` if no plugin refuses the pod.
    pub fn has_failed_by_error(&self) -> bool {
        self.plugins.is_empty() && self.pending.is_empty()
    }

    /// Returns those whose events may wake the pod while it is parked.
    pub fn watchers(&self) -> Vec<Watcher> {
        let watcher = |plugin| Watcher { profile: self.profile, plugin };
        match self.gate {
            Some(gate) => vec![watcher(Some(gate))],
            None => {
                let plugins: BTreeSet<_> = self.plugins.iter().chain(self.pending.iter()).collect();
                let mut watchers: Vec<_> = plugins.iter().map(|plugin| watcher(plugin.index)).collect();
                watchers.dedup();
                watchers
            }
        }
    }
}

/// Entries by slot and by uid.
#[derive(Debug, Default)]
pub(super) struct Entries {
    slots: Vec<Option<Entry>>,
    free: Vec<Slot>,
    by_uid: BTreeMap<Uid, Slot>,
    arrivals: u64,
}

impl Entries {
    pub fn slot(&self, uid: &Uid) -> Option<Slot> {
        self.by_uid.get(uid).copied()
    }

    pub fn insert(&mut self, pod: Arc<PodInfo>, profile: Option<usize>, now: Instant) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            Slot(u32::try_from(self.slots.len() - 1).expect("a cluster has fewer than 2^32 pods"))
        });
        self.by_uid.insert(pod.uid.clone(), slot);
        self.arrivals += 1;
        self.slots[slot.0 as usize] = Some(Entry {
            group: group_of(&pod).map(Arc::new),
            pod,
            profile,
            place: Place::Active,
            arrival: self.arrivals,
            queued: now,
            first_attempt: None,
            attempts: 0,
            refused: 0,
            errors: 0,
            backoff: None,
            was_flushed: false,
            plugins: Plugins::default(),
            pending: Plugins::default(),
            gate: None,
        });
        slot
    }

    pub fn remove(&mut self, slot: Slot) {
        if let Some(entry) = self.slots[slot.0 as usize].take() {
            self.by_uid.remove(&entry.pod.uid);
            self.free.push(slot);
        }
    }
}

impl Index<Slot> for Entries {
    type Output = Entry;

    fn index(&self, slot: Slot) -> &Entry {
        self.slots[slot.0 as usize].as_ref().expect("a slot that is in use has an entry")
    }
}

impl IndexMut<Slot> for Entries {
    fn index_mut(&mut self, slot: Slot) -> &mut Entry {
        self.slots[slot.0 as usize].as_mut().expect("a slot that is in use has an entry")
    }
}
