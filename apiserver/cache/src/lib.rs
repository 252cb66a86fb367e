//! The watch cache: for each kind an immutable, ordered map of encoded objects, swapped whole
//! with every change; a history for watches that resume; and the watchers.
//!
//! One task (`feed`) reads the store's log for all kinds and is the only one that writes changes, so a revision
//! that the feed has passed is in every cache. The first request for a lazy kind loads its cache.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod change;
pub mod encoding;
mod entry;
mod feed;
mod fields;
pub mod form;
mod index;
mod ledger;
pub mod limits;
mod observers;
pub mod older;
mod shared;
mod states;
pub mod stored_version;
mod watchers;

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_registry::{Change as Convert, Resource};
use apiserver_schema::protobuf;
use apiserver_schema::protobuf::Message;
use apiserver_store::Revision;
use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;
use userspace_daemon::metrics::{Counter, Histogram};

pub use change::{Change, Form};
pub use entry::{Entry, EventType, Unreadable, Untranslatable};
pub use feed::{Caches, NotFresh};
pub use fields::Fields;
pub use index::Index;
pub use states::{Past, Reading};
pub use watchers::{Subscription, Trigger};

use ledger::{Ledger, Totals};
use observers::Observers;
use states::States;
use watchers::Watchers;

/// Objects by `NAMESPACE/NAME` or `NAME`.
pub type Objects = imbl::OrdMap<Arc<str>, Arc<Entry>>;

/// The state of a kind at a revision.
#[derive(Clone, Default)]
pub struct Snapshot {
    pub objects: Objects,
    /// The objects by [`Cache::indexed`]; empty for kinds without such a field.
    pub index: Index,
    /// Revision of the newest change of this kind; the state is the same at every later revision
    /// that the feed has passed.
    pub revision: Revision,
}

/// A past state that is no longer in the cache.
#[derive(Debug, PartialEq, Eq)]
pub struct TooOld;

/// The cache of one kind.
pub struct Cache {
    pub resource: Arc<Resource>,
    /// `/registry/pods/`
    pub prefix: String,
    pub fields: Fields,
    /// The kind's message, if it has a protobuf form.
    pub message: Option<Message>,
    /// Turns an object of the storage version into one of this version.
    convert: Option<Convert>,
    /// The selectable field that watchers are indexed by.
    indexed: Option<usize>,
    current: ArcSwap<Snapshot>,
    inner: Mutex<Inner>,
    /// Bytes that the history keeps alive.
    held: Arc<Ledger>,
    states: States,
    observers: Observers,
    /// For metrics.
    pub counts: Counts,
    /// Held while the objects of a custom kind are loaded.
    starting: AsyncMutex<()>,
}

/// Seconds that reads wait for the newest state.
static WAIT_SECONDS: [f64; 13] = [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];

/// The numbers of changes that a cache has received since the start, and of reads that it has answered.
pub struct Counts {
    /// Changes.
    pub received: Counter,
    /// Objects of whole states.
    pub initial: Counter,
    /// Whole states.
    pub loads: Counter,
    /// Watchers that were cut off because they were too slow.
    pub terminated: Counter,
    /// The times that reads have waited for the newest state.
    pub waits: Histogram,
    /// The number of reads that did not get it, and of those that did.
    pub consistent: [Counter; 2],
}

impl Default for Counts {
    fn default() -> Self {
        let (received, initial, loads, terminated, consistent) = Default::default();
        let waits = Histogram::new(&WAIT_SECONDS);
        Self { received, initial, loads, terminated, waits, consistent }
    }
}

#[derive(Default)]
struct Inner {
    history: VecDeque<Arc<Change>>,
    /// Every change after this revision is in `history`.
    low: Revision,
    watchers: Watchers,
    phase: Phase,
}

/// The state of a cache relative to the store. Caches of built-in kinds follow it from the first load on;
/// those of custom kinds, and of versions that are not stored, from the first request for their objects.
#[derive(Default)]
enum Phase {
    #[default]
    Live,
    /// Changes pass by.
    Idle,
    /// The state is being read; changes wait for it.
    Loading(Vec<Pending>),
    /// Another cache has taken its place, or its kind is gone: no change will ever come.
    Gone,
}

type Pending = (Arc<str>, Revision, Option<Arc<Entry>>);

impl Cache {
    /// Returns an empty cache. `convert` is for a version in which the objects are not kept, and for custom
    /// kinds; the caches of both are idle at first.
    pub fn new(resource: Arc<Resource>, convert: Option<Convert>) -> Self {
        Self::within(resource, convert, &Totals::default())
    }

    /// Returns an empty cache whose past counts in `totals`.
    fn within(resource: Arc<Resource>, convert: Option<Convert>, totals: &Totals) -> Self {
        let custom = resource.custom.is_some();
        let fields =
            if custom { Fields::plain(&resource.selectable) } else { Fields::new(&resource.selectable) };
        let phase = if custom || convert.is_some() { Phase::Idle } else { Phase::Live };
        let indexed = fields.index("spec.nodeName");
        Self {
            prefix: format!("{}/", resource.storage_prefix),
            message: protobuf::of_kind(&resource.api_version(), &resource.kind),
            resource,
            fields,
            convert,
            indexed,
            current: ArcSwap::default(),
            inner: Mutex::new(Inner { phase, ..Inner::default() }),
            held: Arc::new(Ledger::new(&totals.history)),
            states: States::new(&totals.snapshots),
            observers: Observers::default(),
            counts: Counts::default(),
            starting: AsyncMutex::default(),
        }
    }

    /// Returns `true` if the cache follows the store only after the first request for its objects.
    pub fn is_lazy(&self) -> bool {
        self.resource.custom.is_some() || self.convert.is_some()
    }

    /// Returns `true` if the cache needs changes of its objects, now or once it is loaded.
    fn follows(&self) -> bool {
        !matches!(lock(&self.inner).phase, Phase::Idle | Phase::Gone)
    }

    /// A whole state by the field that the kind is indexed by; it comes in the order of keys.
    fn index<'a>(&self, entries: impl Iterator<Item = &'a Arc<Entry>>) -> Index {
        self.indexed.map_or_else(Index::default, |place| Index::of(place, entries))
    }

    /// The oldest revision that a watch can begin after.
    pub fn oldest(&self) -> Revision {
        lock(&self.inner).low
    }

    /// Returns `true` if the cache follows the store.
    pub fn is_live(&self) -> bool {
        matches!(lock(&self.inner).phase, Phase::Live)
    }

    /// From now on changes are kept for [`Cache::loaded`]; `false` where none will come.
    fn begin_loading(&self) -> bool {
        let mut inner = lock(&self.inner);
        if matches!(inner.phase, Phase::Gone) {
            return false;
        }
        inner.phase = Phase::Loading(Vec::new());
        true
    }

    /// Keeps changes no longer, if it still does.
    fn give_up_loading(&self) {
        let mut inner = lock(&self.inner);
        if matches!(inner.phase, Phase::Loading(_)) {
            inner.phase = Phase::Idle;
        }
    }

    /// Takes the state at a revision, and the changes that came meanwhile; `false` if the loading
    /// was called off.
    fn loaded(&self, mut objects: Objects, revision: Revision) -> bool {
        let mut inner = lock(&self.inner);
        let Phase::Loading(pending) = &mut inner.phase else { return false };
        let pending = std::mem::take(pending);
        inner.phase = Phase::Live;
        let mut newest = revision;
        for (key, at, new) in pending.into_iter().filter(|(_, at, _)| *at > revision) {
            match new {
                Some(entry) => objects.insert(key, entry),
                None => objects.remove(&key),
            };
            newest = at;
        }
        self.counts.loads.add(1);
        self.counts.initial.add(objects.len() as u64);
        inner.low = newest;
        inner.history.clear();
        let index = self.index(objects.values());
        self.current.store(Arc::new(Snapshot { objects, index, revision: newest }));
        true
    }

    /// Stops following the store and closes watchers. The next request loads again. The state stays for its
    /// holders, who can tell: [`Cache::is_live`].
    fn idle(&self) {
        self.leave(Phase::Idle);
    }

    /// Stops following the store for ever, and closes watchers: the feed does not know the cache any more.
    fn retire(&self) {
        self.leave(Phase::Gone);
    }

    fn leave(&self, phase: Phase) {
        let mut inner = lock(&self.inner);
        if matches!(phase, Phase::Idle) {
            inner.history.clear();
        }
        // Watchers of a kind that is removed still receive its end: the history goes with the last of them.
        if !matches!(inner.phase, Phase::Gone) {
            inner.phase = phase;
        }
        inner.watchers.close();
        self.states.clear();
    }

    /// The present state, without waiting.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// One object of the present state.
    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.current.load().objects.get(key).cloned()
    }

    /// Reads stored bytes as this cache keeps them.
    pub fn read(&self, key: &str, revision: Revision, stored: &Bytes) -> Result<Entry, Unreadable> {
        let short: Arc<str> = Arc::from(key.strip_prefix(&self.prefix).unwrap_or(key));
        Entry::read(short, revision, self.json(key, stored)?, &self.fields)
    }

    /// Stored bytes as an answer of this version.
    pub fn answer(&self, key: &str, revision: Revision, stored: &Bytes) -> Result<Bytes, Unreadable> {
        Entry::answer(key, revision, self.json(key, stored)?)
    }

    /// Stored bytes as JSON of this version; those that are that already are shared.
    fn json(&self, key: &str, stored: &Bytes) -> Result<Bytes, Unreadable> {
        let unreadable =
            |error: encoding::Unreadable| Unreadable { key: key.to_owned(), cause: Some(Box::new(error)) };
        match &self.convert {
            Some(convert) => {
                let mut value = encoding::read(stored).map_err(unreadable)?;
                convert(&mut value);
                Ok(encoding::exact(&value))
            }
            None => Ok(match encoding::json(stored).map_err(unreadable)? {
                Cow::Borrowed(_) => stored.clone(),
                Cow::Owned(json) => Bytes::from(json.into_boxed_slice()),
            }),
        }
    }

    /// The state at exactly `revision`, which the feed has passed: the present one, one kept for
    /// a continue token, or the present one with the changes since undone.
    pub fn at(&self, revision: Revision) -> Result<Arc<Past>, TooOld> {
        let current = self.snapshot();
        if revision >= current.revision {
            return Ok(self.past(&current));
        }
        if let Some(past) = self.states.paged(revision) {
            return Ok(past);
        }
        let inner = lock(&self.inner);
        if revision < inner.low {
            return Err(TooOld);
        }
        // The lock holds the feed off, so the state and the history belong together.
        let mut objects = self.snapshot().objects.clone();
        for change in inner.history.iter().rev().take_while(|change| change.revision > revision) {
            match (&change.old, &change.new) {
                (Some(old), _) => {
                    objects.insert(Arc::clone(&old.key), Arc::clone(old));
                }
                (None, Some(new)) => {
                    objects.remove(&new.key);
                }
                (None, None) => {}
            }
        }
        Ok(Arc::new(Past { objects, index: None }))
    }

    /// A state of this cache, for answers.
    pub fn past(&self, snapshot: &Snapshot) -> Arc<Past> {
        let index = self.indexed.map(|_| snapshot.index.clone());
        Arc::new(Past { objects: snapshot.objects.clone(), index })
    }

    /// Keeps a state for the pages that follow, the next of which begins at the key `next` and has
    /// `remaining` objects before it, if that is known.
    pub fn retain(&self, revision: Revision, past: &Arc<Past>, next: &str, remaining: Option<usize>) {
        let inner = lock(&self.inner);
        if inner.knows_since(revision) {
            let counted = remaining.map(|remaining| (next, remaining));
            self.states.retain(revision, past, counted, self.pinned_since(&inner, revision));
        }
    }

    /// Keeps a state that was read from the store, for the pages that follow.
    pub fn retain_read(&self, revision: Revision, past: &Arc<Past>) {
        self.states.retain_read(revision, past);
    }

    /// Keeps a state for an answer that is made of it as a client takes it, while there is room.
    pub fn reading(self: &Arc<Self>, revision: Revision, past: &Arc<Past>) -> Reading {
        let inner = lock(&self.inner);
        let past = self.states.read_retained(revision).or_else(|| {
            let pinned = inner.knows_since(revision).then(|| self.pinned_since(&inner, revision))?;
            Some(self.states.read(revision, past, pinned))
        });
        Reading::new(Arc::clone(self), revision, past.unwrap_or_default())
    }

    /// Forgets the oldest state; `false` where there is none.
    pub fn drops_oldest_state(&self) -> bool {
        self.states.drop_oldest()
    }

    /// Counts the bytes of a state that neither the present one nor any newer kept one shares.
    fn pinned_since<'a>(&self, inner: &'a Inner, revision: Revision) -> impl FnOnce() -> usize + use<'a> {
        let until = self.states.next_after(revision).unwrap_or(Revision::MAX);
        move || {
            let first = inner.history.partition_point(|change| change.revision <= revision);
            let since = inner.history.range(first..).take_while(|change| change.revision <= until);
            since.map(|change| change.pinned_by(revision)).sum()
        }
    }

    /// Returns the counts found by pages of the state at a revision.
    pub fn counted(&self, revision: Revision) -> BTreeMap<String, usize> {
        self.states.counted(revision)
    }

    /// A subscription to the changes after `from`, without a gap.
    pub fn subscribe(self: &Arc<Self>, from: Revision, trigger: Trigger) -> Result<Subscription, TooOld> {
        let mut inner = lock(&self.inner);
        if from < inner.low || !matches!(inner.phase, Phase::Live) {
            return Err(TooOld);
        }
        let first = inner.history.partition_point(|change| change.revision <= from);
        let missed = inner.history.range(first..).map(Arc::downgrade).collect();
        let (id, receiver) = inner.watchers.add(trigger.clone());
        Ok(Subscription::new(missed, receiver, Arc::clone(self), id, trigger))
    }

    /// The present state, and a subscription to what follows, without a gap.
    pub fn subscribe_now(self: &Arc<Self>, trigger: Trigger) -> (Arc<Snapshot>, Subscription) {
        let mut inner = lock(&self.inner);
        let (id, receiver) = inner.watchers.add(trigger.clone());
        (self.snapshot(), Subscription::new(VecDeque::new(), receiver, Arc::clone(self), id, trigger))
    }

    /// Returns the number of open watches.
    pub fn watchers(&self) -> usize {
        lock(&self.inner).watchers.len()
    }

    /// Changes that the history has room for before it takes more memory.
    pub fn capacity(&self) -> usize {
        lock(&self.inner).history.capacity()
    }

    /// Returns the place of the field of [`Trigger::Field`] in [`Entry::fields`].
    pub fn indexed(&self) -> Option<usize> {
        self.indexed
    }

    fn unsubscribe(&self, id: u64, trigger: &Trigger) {
        lock(&self.inner).watchers.remove(id, trigger);
    }

    /// Starts from a whole state, in the order of keys; watchers of the state before are closed.
    fn reset(&self, entries: &[Arc<Entry>], revision: Revision) {
        let (objects, index) = if self.indexed.is_some() && entries.len() >= limits::LOAD_ALONE {
            // A start waits for this.
            std::thread::scope(|scope| {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "joined at once, and what it makes is the same on one thread"
                )]
                let index = scope.spawn(|| self.index(entries.iter()));
                (packed(entries), index.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        } else {
            (packed(entries), self.index(entries.iter()))
        };
        self.counts.loads.add(1);
        self.counts.initial.add(objects.len() as u64);
        let mut inner = lock(&self.inner);
        inner.history.clear();
        inner.low = revision;
        inner.watchers.close();
        self.states.clear();
        let before = self.snapshot();
        for (key, entry) in before.objects.iter().filter(|(key, _)| !objects.contains_key(&***key)) {
            debug_assert_eq!(*key, entry.key);
            self.observers.before(Some(entry), None);
            self.observers.after(Some(entry), None);
        }
        self.observers.before_all(&before.objects, entries);
        for (key, entry) in &objects {
            self.observers.after(before.objects.get(&**key).map(|old| &**old), Some(entry));
        }
        self.current.store(Arc::new(Snapshot { objects, index, revision }));
    }

    /// Takes changes of one batch, in order.
    fn apply(&self, changes: impl Iterator<Item = (Arc<str>, Revision, Option<Arc<Entry>>)>) {
        let mut inner = lock(&self.inner);
        match &mut inner.phase {
            Phase::Idle | Phase::Gone => return,
            Phase::Loading(pending) => return pending.extend(changes),
            Phase::Live => {}
        }
        let before = self.snapshot();
        let (mut objects, mut newest) = (before.objects.clone(), before.revision);
        let mut index = before.index.clone();
        let mut done = Vec::new();
        let (newest_kept, mut pinned) = (self.states.newest(), 0);
        // A custom kind may have been loaded at a revision that the feed is still to reach.
        let low = inner.low;
        for (key, revision, new) in changes.filter(|(_, revision, _)| *revision > low) {
            let old = match &new {
                Some(entry) => objects.insert(key, Arc::clone(entry)),
                None => objects.remove(&key),
            };
            newest = revision;
            if let Some(place) = self.indexed {
                index.change(place, old.as_ref(), new.as_ref());
            }
            if old.is_some() || new.is_some() {
                self.observers.before(old.as_deref(), new.as_deref());
                let change = Change::new(revision, old, new, Arc::clone(&self.held));
                pinned += newest_kept.map_or(0, |kept| change.pinned_by(kept));
                done.push(Arc::new(change));
            }
        }
        self.current.store(Arc::new(Snapshot { objects, index, revision: newest }));
        self.counts.received.add(done.len() as u64);
        for change in done {
            self.observers.after(change.old.as_deref(), change.new.as_deref());
            self.counts.terminated.add(inner.watchers.send(&change, self.indexed));
            inner.history.push_back(change);
        }
        inner.trim(&self.held, ledger::room_left(limits::HISTORY_BYTES));
        self.states.pin(pinned);
        drop(inner);
        self.states.age();
    }

    /// Forgets the changes and states that are too old, as each new change does.
    fn age(&self) {
        let mut inner = lock(&self.inner);
        inner.trim(&self.held, ledger::room_left(limits::HISTORY_BYTES));
        if inner.history.capacity() > HISTORY_SPARE * inner.history.len().max(limits::HISTORY_MIN) {
            inner.history.shrink_to_fit();
        }
        drop(inner);
        self.fields.forget_unused();
        self.states.age();
    }

    /// Forgets the older half of the changes, by their bytes; `false` where there is none.
    fn halve_history(&self) -> bool {
        let mut inner = lock(&self.inner);
        let before = inner.history.len();
        inner.trim(&self.held, self.held.own() / 2);
        inner.history.len() < before
    }
}

/// The factor by which the capacity of a history may exceed its need before it is released.
const HISTORY_SPARE: usize = 4;

impl Inner {
    /// Returns `true` if the history has every change since a revision, so that it is known what the state at
    /// that revision keeps alive.
    fn knows_since(&self, revision: Revision) -> bool {
        matches!(self.phase, Phase::Live) && revision >= self.low
    }

    /// Forgets the oldest changes: those that are too old or too many, and as many more as it takes
    /// until those that are left hold no more than `bytes`.
    fn trim(&mut self, held: &Ledger, bytes: usize) {
        let now = Instant::now();
        while let Some(oldest) = self.history.front() {
            let old = now.duration_since(oldest.at) > limits::HISTORY_AGE;
            let spare = self.history.len() > limits::HISTORY_MIN;
            let full = self.history.len() > limits::HISTORY_MAX || held.own() > bytes;
            if !(full || spare && old) {
                break;
            }
            self.low = oldest.revision;
            // Watchers that have not received it yet hold it no longer than the history does.
            self.history.pop_front();
        }
    }
}

/// Objects that come in the order of their keys, in a tree whose nodes are full. One that is filled in
/// that order splits its last node again and again and leaves halves behind; here every second key makes
/// the halves, and those between fill them.
fn packed(entries: &[Arc<Entry>]) -> Objects {
    let mut objects = Objects::new();
    for first in [0, 1] {
        for entry in entries.iter().skip(first).step_by(2) {
            objects.insert(Arc::clone(&entry.key), Arc::clone(entry));
        }
    }
    objects
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is caught by the request chain; the state is swapped whole, so it is sound.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod past_tests;
