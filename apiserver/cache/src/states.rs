//! The states of a kind that pages and slow answers are made of.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use apiserver_store::Revision;
use tokio::time::Instant;

use super::ledger::Ledger;
use super::{Cache, Index, Objects, lock};
use crate::limits;

/// The objects of a kind at some revision.
#[derive(Default)]
pub struct Past {
    pub objects: Objects,
    /// The objects by [`Cache::indexed`], where this is known of the state.
    pub index: Option<Index>,
}

/// A state that is retained for its pages, or for answers that are being made of it.
struct State {
    past: Arc<Past>,
    /// Answers that are being made of it.
    readers: usize,
    /// Read from the store, so that it shares its objects with no other state.
    own: bool,
    /// Bytes that the present state no longer has, that this one has, and that no newer one has.
    pinned: usize,
}

/// The facts about a state that pages are made of.
struct Pages {
    /// The time of the latest page.
    at: Instant,
    /// The number of objects at or after the key that a page begins at, in its collection, so that the next
    /// page need not count again. The newest are last: clients that page side by side, or once more from the
    /// beginning, take each other's places in turn.
    counted: VecDeque<(String, usize)>,
}

#[derive(Default)]
struct Inner {
    all: BTreeMap<Revision, State>,
    /// The states that pages are made of.
    paged: BTreeMap<Revision, Pages>,
}

/// States of the past, by their revisions, for a while.
pub(super) struct States {
    inner: Mutex<Inner>,
    /// Bytes that the states keep alive.
    held: Ledger,
}

impl States {
    pub(super) fn new(total: &Arc<AtomicUsize>) -> Self {
        Self { inner: Mutex::default(), held: Ledger::new(total) }
    }

    /// Bytes that the states keep alive.
    pub(super) fn bytes(&self) -> usize {
        self.held.own()
    }

    /// Revision of the newest state.
    pub(super) fn newest(&self) -> Option<Revision> {
        lock(&self.inner).all.last_key_value().map(|(revision, _)| *revision)
    }

    /// Revision of the oldest state that is newer than `revision`.
    pub(super) fn next_after(&self, revision: Revision) -> Option<Revision> {
        let after = (Bound::Excluded(revision), Bound::Unbounded);
        lock(&self.inner).all.range(after).next().map(|(revision, _)| *revision)
    }

    /// Counts bytes that the present state has just lost and that the newest state has. The oldest states
    /// are forgotten where that is too much.
    pub(super) fn pin(&self, bytes: usize) {
        let mut inner = lock(&self.inner);
        if let Some(mut newest) = inner.all.last_entry() {
            newest.get_mut().pinned += bytes;
            self.held.add(bytes);
        }
        self.bound(&mut inner);
    }

    /// Forgets the oldest state; `false` where there is none.
    pub(super) fn drop_oldest(&self) -> bool {
        self.forget_oldest(&mut lock(&self.inner))
    }

    fn bound(&self, inner: &mut Inner) {
        while self.held.own() > limits::SNAPSHOT_BYTES && self.forget_oldest(inner) {}
    }

    fn forget_oldest(&self, inner: &mut Inner) -> bool {
        let oldest = inner.all.first_key_value().map(|(revision, _)| *revision);
        oldest.is_some_and(|oldest| self.forget(inner, oldest))
    }

    fn forget(&self, inner: &mut Inner, revision: Revision) -> bool {
        inner.paged.remove(&revision);
        let Some(gone) = inner.all.remove(&revision) else { return false };
        match inner.all.range_mut(..revision).next_back() {
            // It may have the same objects.
            Some((_, older)) => older.pinned += gone.pinned,
            None => self.held.release(gone.pinned),
        }
        true
    }

    /// No more pages are made of a state. It is forgotten unless answers are being made of it; one that
    /// shares its objects with no other is forgotten in any case.
    fn unpage(&self, inner: &mut Inner, revision: Revision) {
        inner.paged.remove(&revision);
        if inner.all.get(&revision).is_some_and(|kept| kept.readers == 0 || kept.own) {
            self.forget(inner, revision);
        }
    }

    /// A state that is kept for pages.
    pub(super) fn paged(&self, revision: Revision) -> Option<Arc<Past>> {
        let inner = self.young();
        inner.paged.get(&revision)?;
        inner.all.get(&revision).map(|kept| Arc::clone(&kept.past))
    }

    /// Returns the counts found by pages of a state.
    pub(super) fn counted(&self, revision: Revision) -> BTreeMap<String, usize> {
        let inner = self.young();
        inner.paged.get(&revision).map(|pages| pages.counted.iter().cloned().collect()).unwrap_or_default()
    }

    /// Keeps a state that the cache has had, or keeps it on; `counted` is what a page has found out.
    /// `pinned` gives the bytes that the present state and newer ones have lost since, where it is new.
    pub(super) fn retain(
        &self,
        revision: Revision,
        past: &Arc<Past>,
        counted: Option<(&str, usize)>,
        pinned: impl FnOnce() -> usize,
    ) {
        self.put(revision, past, counted, Some(pinned));
    }

    /// Keeps a state that was read from the store.
    pub(super) fn retain_read(&self, revision: Revision, past: &Arc<Past>) {
        self.put(revision, past, None, None::<fn() -> usize>);
    }

    fn put(
        &self,
        revision: Revision,
        past: &Arc<Past>,
        counted: Option<(&str, usize)>,
        pinned: Option<impl FnOnce() -> usize>,
    ) {
        let mut inner = self.young();
        self.add(&mut inner, revision, past, pinned);
        let pages = Pages { at: Instant::now(), counted: VecDeque::new() };
        let pages = match inner.paged.entry(revision) {
            Entry::Occupied(known) => {
                let known = known.into_mut();
                known.at = pages.at;
                known
            }
            Entry::Vacant(new) => new.insert(pages),
        };
        if let Some((next, remaining)) = counted {
            pages.counted.retain(|(key, _)| key != next);
            pages.counted.push_back((next.to_owned(), remaining));
        }
        // Pages that were forgotten are counted again, and nothing more.
        while pages.counted.len() > limits::SNAPSHOTS {
            pages.counted.pop_front();
        }
        while inner.paged.len() > limits::SNAPSHOTS
            && let Some(oldest) = inner.paged.first_key_value().map(|(revision, _)| *revision)
        {
            self.unpage(&mut inner, oldest);
        }
        self.bound(&mut inner);
        let own = |inner: &Inner| -> Vec<Revision> {
            let mut own: Vec<_> =
                inner.paged.iter().filter(|(revision, _)| inner.all[revision].own).collect();
            own.sort_by_key(|(_, pages)| pages.at);
            own.into_iter().map(|(revision, _)| *revision).collect()
        };
        let own = own(&inner);
        for oldest in own.iter().take(own.len().saturating_sub(limits::SNAPSHOTS_READ)) {
            self.unpage(&mut inner, *oldest);
        }
    }

    /// Returns the state, which is inserted if it is not known.
    fn add<'a>(
        &self,
        inner: &'a mut Inner,
        revision: Revision,
        past: &Arc<Past>,
        pinned: Option<impl FnOnce() -> usize>,
    ) -> &'a mut State {
        inner.all.entry(revision).or_insert_with(|| {
            let own = pinned.is_none();
            let pinned = pinned.map_or(0, |pinned| pinned());
            self.held.add(pinned);
            State { past: Arc::clone(past), readers: 0, own, pinned }
        })
    }

    /// Keeps a state until as many have [left](Self::left) as came, as long as there is room. `pinned` as
    /// for [`retain`](Self::retain).
    pub(super) fn read(
        &self,
        revision: Revision,
        past: &Arc<Past>,
        pinned: impl FnOnce() -> usize,
    ) -> Weak<Past> {
        let mut inner = lock(&self.inner);
        let kept = self.add(&mut inner, revision, past, Some(pinned));
        kept.readers += 1;
        let past = Arc::downgrade(&kept.past);
        self.bound(&mut inner);
        past
    }

    /// Counts one more reader of a state that is kept already; `None` if it is not.
    pub(super) fn read_retained(&self, revision: Revision) -> Option<Weak<Past>> {
        let mut inner = lock(&self.inner);
        let kept = inner.all.get_mut(&revision)?;
        kept.readers += 1;
        Some(Arc::downgrade(&kept.past))
    }

    fn left(&self, revision: Revision, past: &Weak<Past>) {
        let mut inner = lock(&self.inner);
        let Some(kept) = inner.all.get_mut(&revision) else { return };
        // It may have been forgotten, and another one kept.
        if !std::ptr::eq(Arc::as_ptr(&kept.past), past.as_ptr()) {
            return;
        }
        kept.readers -= 1;
        if kept.readers == 0 && !inner.paged.contains_key(&revision) {
            self.forget(&mut inner, revision);
        }
    }

    pub(super) fn clear(&self) {
        let mut inner = lock(&self.inner);
        self.held.release(inner.all.values().map(|state| state.pinned).sum());
        *inner = Inner::default();
    }

    /// Forgets those that no page was made of for long.
    pub(super) fn age(&self) {
        drop(self.young());
    }

    fn young(&self) -> MutexGuard<'_, Inner> {
        let now = Instant::now();
        let mut inner = lock(&self.inner);
        let old = |pages: &Pages| now.duration_since(pages.at) >= limits::SNAPSHOT_AGE;
        let old: Vec<_> =
            inner.paged.iter().filter(|(_, pages)| old(pages)).map(|(revision, _)| *revision).collect();
        for revision in old {
            self.unpage(&mut inner, revision);
        }
        inner
    }
}

/// A state that an answer is made of as fast as a client takes it. The cache keeps it as long as there is
/// room, so that slow clients together keep no more alive than the bound allows.
pub struct Reading {
    cache: Arc<Cache>,
    revision: Revision,
    past: Weak<Past>,
}

impl Reading {
    /// A reader of a state of this cache; the pointer is that of [`States::read`].
    pub(super) fn new(cache: Arc<Cache>, revision: Revision, past: Weak<Past>) -> Self {
        Self { cache, revision, past }
    }

    /// The cache that the state is one of.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Revision of the state.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The state, for a moment; `None` if there was no room for it.
    pub fn past(&self) -> Option<Arc<Past>> {
        self.past.upgrade()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.cache.states.left(self.revision, &self.past);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn next_page_reuses_the_count_of_the_page_before() {
        let states = States::new(&Arc::default());
        for _ in 0..2 {
            for page in 0..3 * limits::SNAPSHOTS {
                let key = format!("{page:03}");
                states.retain(10, &Arc::default(), Some((&key, page)), || 0);
                let counted = states.counted(10);
                assert_eq!(counted.get(&key), Some(&page));
                assert!(counted.len() <= limits::SNAPSHOTS);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn states_are_kept_for_a_while_and_of_those_with_objects_of_their_own_only_the_last_few() {
        let states = States::new(&Arc::default());
        let held = |states: &States| -> Vec<Revision> {
            (0..100).filter(|revision| states.paged(*revision).is_some()).collect()
        };
        for revision in 10..10 + 2 * limits::SNAPSHOTS_READ as Revision {
            states.retain_read(revision, &Arc::default());
            states.retain(revision + 50, &Arc::default(), Some(("a", 3)), || 0);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let read = limits::SNAPSHOTS_READ as Revision;
        let own: Vec<Revision> = held(&states).into_iter().filter(|revision| *revision < 50).collect();
        assert_eq!(own, (10 + read..10 + 2 * read).collect::<Vec<_>>());
        assert_eq!(held(&states).len(), 3 * limits::SNAPSHOTS_READ);
        assert_eq!(states.counted(60)["a"], 3);
        // One that is paged through stays.
        states.retain(10 + read, &Arc::default(), None, || 0);
        states.retain_read(40, &Arc::default());
        assert!(states.paged(10 + read).is_some() && states.paged(11 + read).is_none());
        tokio::time::advance(limits::SNAPSHOT_AGE).await;
        assert!(held(&states).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_is_kept_as_long_as_it_is_read_or_paged_through() {
        let states = States::new(&Arc::default());
        let past = Arc::default();
        let (one, two) = (states.read(10, &past, || 5), states.read(10, &past, || 7));
        states.retain(10, &past, None, || 9);
        drop(past);
        assert_eq!(states.bytes(), 5, "counted once");
        states.left(10, &one);
        tokio::time::advance(limits::SNAPSHOT_AGE).await;
        states.age();
        assert!(states.paged(10).is_none() && two.upgrade().is_some());
        // It was never a reader of another state of that revision.
        states.left(10, &Weak::new());
        assert!(two.upgrade().is_some());
        states.left(10, &two);
        assert!(two.upgrade().is_none() && states.bytes() == 0 && states.newest().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn readers_keep_no_more_alive_than_there_is_room_for() {
        let states = States::new(&Arc::default());
        let readers: Vec<_> = (0..1000)
            .map(|revision| {
                let reader = states.read(revision, &Arc::default(), || 0);
                states.pin(limits::SNAPSHOT_BYTES / 100);
                reader
            })
            .collect();
        assert!(states.bytes() <= limits::SNAPSHOT_BYTES);
        let read = readers.iter().filter(|reader| reader.upgrade().is_some()).count();
        assert_eq!(read, 100, "the newest");
        (0..).zip(&readers).for_each(|(revision, reader)| states.left(revision, reader));
        assert!(states.bytes() == 0 && states.newest().is_none());
        assert!(readers.iter().all(|reader| reader.upgrade().is_none()));
    }
}
