//! Dispatch of changes to watchers. A watcher of one object, one namespace or one node costs nothing for the
//! changes of others.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};

use super::{Cache, Change, Entry};
use crate::limits;

/// The coarse part of what a watcher wants; its selectors do the rest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    All,
    /// Objects of one namespace.
    Namespace(String),
    /// One object, by its key.
    Object(String),
    /// Objects whose indexed field (`spec.nodeName`) has this value, before or after the change.
    Field(String),
}

/// The history keeps the changes, so that slow watchers keep nothing alive.
type Slots = BTreeMap<u64, mpsc::Sender<Weak<Change>>>;

/// The open watches of one kind.
#[derive(Default)]
pub(super) struct Watchers {
    next: u64,
    all: Slots,
    // Looked up, never iterated, so their order cannot matter.
    namespaces: HashMap<String, Slots>,
    objects: HashMap<String, Slots>,
    values: HashMap<String, Slots>,
}

impl Watchers {
    pub(super) fn add(&mut self, trigger: Trigger) -> (u64, mpsc::Receiver<Weak<Change>>) {
        let (sender, receiver) = mpsc::channel(limits::WATCHER_QUEUE);
        let id = self.next;
        self.next += 1;
        let slots = match trigger {
            Trigger::All => &mut self.all,
            Trigger::Namespace(namespace) => self.namespaces.entry(namespace).or_default(),
            Trigger::Object(key) => self.objects.entry(key).or_default(),
            Trigger::Field(value) => self.values.entry(value).or_default(),
        };
        slots.insert(id, sender);
        (id, receiver)
    }

    pub(super) fn remove(&mut self, id: u64, trigger: &Trigger) {
        let (map, key) = match trigger {
            Trigger::All => {
                self.all.remove(&id);
                return;
            }
            Trigger::Namespace(namespace) => (&mut self.namespaces, namespace),
            Trigger::Object(key) => (&mut self.objects, key),
            Trigger::Field(value) => (&mut self.values, value),
        };
        if let Some(slots) = map.get_mut(key) {
            slots.remove(&id);
            if slots.is_empty() {
                map.remove(key);
            }
        }
    }

    /// Ends all watches.
    pub(super) fn close(&mut self) {
        let next = self.next;
        *self = Self { next, ..Self::default() };
    }

    pub(super) fn len(&self) -> usize {
        let of = |map: &HashMap<String, Slots>| map.values().map(BTreeMap::len).sum::<usize>();
        self.all.len() + of(&self.namespaces) + of(&self.objects) + of(&self.values)
    }

    /// Sends the change. Watchers without room are disconnected: they can resume where they were. Returns how
    /// many.
    pub(super) fn send(&mut self, change: &Arc<Change>, indexed: Option<usize>) -> u64 {
        let Some(any) = change.new.as_ref().or(change.old.as_ref()) else { return 0 };
        let mut cut = offer(&mut self.all, change);
        if let Some(slots) = self.namespaces.get_mut(any.namespace()) {
            cut += offer(slots, change);
        }
        if let Some(slots) = self.objects.get_mut(&*any.key) {
            cut += offer(slots, change);
        }
        let Some(index) = indexed else { return cut };
        let (old, new) = (value(change.old.as_ref(), index), value(change.new.as_ref(), index));
        if new != old
            && let Some(slots) = old.and_then(|v| self.values.get_mut(v))
        {
            cut += offer(slots, change);
        }
        if let Some(slots) = new.and_then(|v| self.values.get_mut(v)) {
            cut += offer(slots, change);
        }
        cut
    }
}

fn value(entry: Option<&Arc<Entry>>, index: usize) -> Option<&str> {
    entry.map(|entry| entry.field(index))
}

/// Sends the change to all watchers, and removes and counts those that had no room left.
fn offer(slots: &mut Slots, change: &Arc<Change>) -> u64 {
    let mut cut = 0;
    slots.retain(|_, sender| {
        let sent = sender.try_send(Arc::downgrade(change));
        cut += u64::from(matches!(sent, Err(TrySendError::Full(_))));
        sent.is_ok()
    });
    cut
}

/// A watcher's end of its queue; leaves the index when dropped.
pub struct Subscription {
    /// Changes of the history that come before those of the queue.
    missed: VecDeque<Weak<Change>>,
    receiver: mpsc::Receiver<Weak<Change>>,
    cache: Arc<Cache>,
    id: u64,
    trigger: Trigger,
    /// The history forgot a change before the watcher took it.
    lost: bool,
}

impl Subscription {
    pub(super) fn new(
        missed: VecDeque<Weak<Change>>,
        receiver: mpsc::Receiver<Weak<Change>>,
        cache: Arc<Cache>,
        id: u64,
        trigger: Trigger,
    ) -> Self {
        Self { missed, receiver, cache, id, trigger, lost: false }
    }

    /// The next change; `None` when the watcher was cut off: it was too slow for its queue, or for the
    /// history.
    pub async fn next(&mut self) -> Option<Arc<Change>> {
        if self.lost {
            return None;
        }
        let next = match self.missed.pop_front() {
            Some(change) => change,
            None => self.receiver.recv().await?,
        };
        self.upgrade(&next)
    }

    /// Returns a change that has arrived already.
    pub fn ready(&mut self) -> Result<Arc<Change>, TryRecvError> {
        if self.lost {
            return Err(TryRecvError::Disconnected);
        }
        let next = match self.missed.pop_front() {
            Some(change) => change,
            None => self.receiver.try_recv()?,
        };
        self.upgrade(&next).ok_or(TryRecvError::Disconnected)
    }

    /// Returns `true` if changes of the history are still to come.
    pub fn has_missed(&self) -> bool {
        !self.missed.is_empty()
    }

    /// Returns the change if it is still in memory. Otherwise ends the watch, which would have a gap.
    fn upgrade(&mut self, change: &Weak<Change>) -> Option<Arc<Change>> {
        let change = change.upgrade();
        if change.is_none() {
            self.lose();
        }
        change
    }

    /// Ends it: the watcher was too slow.
    pub fn lose(&mut self) {
        self.lost = true;
        self.missed.clear();
        self.receiver.close();
        self.cache.counts.terminated.add(1);
    }

    /// The cache that is watched.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.cache.unsubscribe(self.id, &self.trigger);
    }
}
