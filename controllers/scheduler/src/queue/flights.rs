//! Attempts that are under way, and what has happened since they began.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};

use super::entry::Flight;
use crate::cluster::NodeFacts;
use crate::framework::{Change, Event, Versions};
use crate::limits;
use crate::pod::PodInfo;

/// Number of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sequence(u64);

/// The events since the oldest attempt that is under way began.
#[derive(Debug, Default)]
pub(super) struct Flights {
    events: VecDeque<(Event, Kept)>,
    /// Number of the first of `events`.
    first: u64,
    /// First event of each attempt; both in the order in which the attempts began.
    running: BTreeMap<u64, Sequence>,
    started: u64,
}

impl Flights {
    pub fn start(&mut self) -> Flight {
        let since = Sequence(self.first + self.events.len() as u64);
        self.started += 1;
        self.running.insert(self.started, since);
        Flight { id: self.started, since, own: Vec::new(), is_forced: false }
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Remembers an event for the attempts that are under way.
    pub fn record(&mut self, event: Event, change: &Change<'_>) {
        self.events.push_back((event, Kept::from(change)));
        if self.events.len() > limits::FLIGHT_EVENTS {
            self.events.pop_front();
            self.first += 1;
        }
    }

    /// Returns what has happened since an attempt began; `None` if that is no longer known.
    pub fn since(&self, flight: &Flight) -> Option<impl Iterator<Item = (Event, Change<'_>)>> {
        let skipped = flight.since.0.checked_sub(self.first)?;
        let events = self.events.iter().skip(usize::try_from(skipped).unwrap_or(usize::MAX));
        Some(events.map(|(event, kept)| (*event, kept.change())))
    }

    /// Ends an attempt, and forgets the events that no other needs.
    pub fn end(&mut self, flight: &Flight) {
        self.running.remove(&flight.id);
        let next = Sequence(self.first + self.events.len() as u64);
        let needed = self.running.first_key_value().map_or(next, |(_, since)| *since);
        while self.first < needed.0 && self.events.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// Returns the number of attempts, and of the events that are remembered.
    pub fn counts(&self) -> (usize, Vec<(Event, usize)>) {
        let mut events = BTreeMap::new();
        for (event, _) in &self.events {
            *events.entry(*event).or_default() += 1;
        }
        (self.running.len(), events.into_iter().collect())
    }

    #[cfg(test)]
    pub fn events(&self) -> usize {
        self.events.len()
    }
}

/// An object before and after a change.
#[derive(Debug)]
struct Both<T> {
    old: Option<Arc<T>>,
    new: Option<Arc<T>>,
}

impl<T> From<&Versions<'_, T>> for Both<T> {
    fn from(versions: &Versions<'_, T>) -> Self {
        Self { old: versions.old.cloned(), new: versions.new.cloned() }
    }
}

impl<T> Both<T> {
    fn versions(&self) -> Versions<'_, T> {
        Versions { old: self.old.as_ref(), new: self.new.as_ref() }
    }
}

/// Declares [`Kept`], a [`Change`] that owns its objects, with a variant for each of its kinds.
macro_rules! kept {
    ($($kind:ident($object:ty)),+ $(,)?) => {
        #[derive(Debug)]
        enum Kept {
            $($kind(Both<$object>),)+
            Other,
        }

        impl From<&Change<'_>> for Kept {
            fn from(change: &Change<'_>) -> Self {
                match change {
                    $(Change::$kind(versions) => Self::$kind(versions.into()),)+
                    Change::Other => Self::Other,
                }
            }
        }

        impl Kept {
            fn change(&self) -> Change<'_> {
                match self {
                    $(Self::$kind(both) => Change::$kind(both.versions()),)+
                    Self::Other => Change::Other,
                }
            }
        }
    };
}

kept!(
    Pod(PodInfo),
    Node(NodeFacts),
    Namespace(Namespace),
    PersistentVolume(PersistentVolume),
    PersistentVolumeClaim(PersistentVolumeClaim),
    StorageClass(StorageClass),
    CsiNode(CSINode),
    CsiDriver(CSIDriver),
    CsiStorageCapacity(CSIStorageCapacity),
    VolumeAttachment(VolumeAttachment),
    ResourceClaim(ResourceClaim),
    ResourceSlice(ResourceSlice),
    DeviceClass(DeviceClass),
    PodGroup(PodGroup),
);
