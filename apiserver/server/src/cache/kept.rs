//! The states of a kind that pages are made of.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard};

use apiserver_store::Revision;
use tokio::time::Instant;

use super::ledger::Ledger;
use super::{Objects, lock};
use crate::limits;

/// A state that pages are made of.
struct Kept {
    at: Instant,
    objects: Objects,
    /// How many objects lie at or behind the key that a page begins at, in its collection: what
    /// one page found out, the next need not count again. The newest are last: clients that page side by
    /// side, or once more from the beginning, take each other's places in turn.
    counted: VecDeque<(String, usize)>,
    /// Read from the store, so that it shares its objects with no other state.
    own: bool,
    /// Bytes that the present state no longer has, that this one has, and that no newer one has.
    pinned: usize,
}

type ByRevision = BTreeMap<Revision, Kept>;

/// States of the past, by their revisions, for a while.
pub(super) struct States {
    all: Mutex<ByRevision>,
    /// Bytes that the states keep alive.
    held: Ledger,
}

impl States {
    pub(super) fn new(total: &Arc<AtomicUsize>) -> Self {
        Self { all: Mutex::default(), held: Ledger::new(total) }
    }

    /// Bytes that the states keep alive.
    pub(super) fn bytes(&self) -> usize {
        self.held.own()
    }

    /// Revision of the newest state.
    pub(super) fn newest(&self) -> Option<Revision> {
        lock(&self.all).last_key_value().map(|(revision, _)| *revision)
    }

    /// Revision of the oldest state that is newer than `revision`.
    pub(super) fn next_after(&self, revision: Revision) -> Option<Revision> {
        let after = (Bound::Excluded(revision), Bound::Unbounded);
        lock(&self.all).range(after).next().map(|(revision, _)| *revision)
    }

    /// Counts bytes that the present state has just lost and that the newest state has. The oldest states
    /// are forgotten where that is too much.
    pub(super) fn pin(&self, bytes: usize) {
        let mut kept = lock(&self.all);
        if let Some(mut newest) = kept.last_entry() {
            newest.get_mut().pinned += bytes;
            self.held.add(bytes);
        }
        self.bound(&mut kept);
    }

    /// Forgets the oldest state; `false` where there is none.
    pub(super) fn drop_oldest(&self) -> bool {
        let mut kept = lock(&self.all);
        let oldest = kept.first_key_value().map(|(revision, _)| *revision);
        oldest.is_some_and(|oldest| self.forget(&mut kept, oldest))
    }

    fn bound(&self, kept: &mut ByRevision) {
        while self.held.own() > limits::SNAPSHOT_BYTES
            && let Some(oldest) = kept.first_key_value().map(|(revision, _)| *revision)
        {
            self.forget(kept, oldest);
        }
    }

    fn forget(&self, kept: &mut ByRevision, revision: Revision) -> bool {
        let Some(gone) = kept.remove(&revision) else { return false };
        match kept.range_mut(..revision).next_back() {
            // It may have the same objects.
            Some((_, older)) => older.pinned += gone.pinned,
            None => self.held.release(gone.pinned),
        }
        true
    }

    /// The objects of a state.
    pub(super) fn objects(&self, revision: Revision) -> Option<Objects> {
        self.young().get(&revision).map(|kept| kept.objects.clone())
    }

    /// What pages of a state have counted.
    pub(super) fn counted(&self, revision: Revision) -> BTreeMap<String, usize> {
        self.young().get(&revision).map(|kept| kept.counted.iter().cloned().collect()).unwrap_or_default()
    }

    /// Keeps a state that the cache has had, or keeps it on; `counted` is what a page has found out.
    /// `pinned` gives the bytes that the present state and newer ones have lost since, where it is new.
    pub(super) fn keep(
        &self,
        revision: Revision,
        objects: Objects,
        counted: Option<(&str, usize)>,
        pinned: impl FnOnce() -> usize,
    ) {
        self.put(revision, objects, counted, Some(pinned));
    }

    /// Keeps a state that was read from the store.
    pub(super) fn keep_own(&self, revision: Revision, objects: Objects) {
        self.put(revision, objects, None, None::<fn() -> usize>);
    }

    fn put(
        &self,
        revision: Revision,
        objects: Objects,
        counted: Option<(&str, usize)>,
        pinned: Option<impl FnOnce() -> usize>,
    ) {
        let mut kept = self.young();
        let at = Instant::now();
        let state = kept.entry(revision).or_insert_with(|| {
            let own = pinned.is_none();
            let pinned = pinned.map_or(0, |pinned| pinned());
            self.held.add(pinned);
            Kept { at, objects, counted: VecDeque::new(), own, pinned }
        });
        state.at = at;
        if let Some((next, remaining)) = counted {
            state.counted.retain(|(key, _)| key != next);
            state.counted.push_back((next.to_owned(), remaining));
        }
        // Pages that were forgotten are counted again, and nothing more.
        while state.counted.len() > limits::SNAPSHOTS {
            state.counted.pop_front();
        }
        while kept.len() > limits::SNAPSHOTS
            && let Some(oldest) = kept.first_key_value().map(|(revision, _)| *revision)
        {
            self.forget(&mut kept, oldest);
        }
        self.bound(&mut kept);
        while kept.values().filter(|state| state.own).count() > limits::SNAPSHOTS_READ {
            let oldest = kept.iter().filter(|(_, state)| state.own).min_by_key(|(_, state)| state.at);
            let Some(oldest) = oldest.map(|(revision, _)| *revision) else { break };
            self.forget(&mut kept, oldest);
        }
    }

    pub(super) fn clear(&self) {
        let mut kept = lock(&self.all);
        self.held.release(kept.values().map(|state| state.pinned).sum());
        kept.clear();
    }

    /// Forgets those that are too old.
    pub(super) fn age(&self) {
        drop(self.young());
    }

    fn young(&self) -> MutexGuard<'_, ByRevision> {
        let now = Instant::now();
        let mut kept = lock(&self.all);
        let old = |state: &Kept| now.duration_since(state.at) >= limits::SNAPSHOT_AGE;
        let old: Vec<_> =
            kept.iter().filter(|(_, state)| old(state)).map(|(revision, _)| *revision).collect();
        for revision in old {
            self.forget(&mut kept, revision);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_pages_once_more_finds_what_the_page_before_has_counted() {
        let states = States::new(&Arc::default());
        for _ in 0..2 {
            for page in 0..3 * limits::SNAPSHOTS {
                let key = format!("{page:03}");
                states.keep(10, Objects::new(), Some((&key, page)), || 0);
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
            (0..100).filter(|revision| states.objects(*revision).is_some()).collect()
        };
        for revision in 10..10 + 2 * limits::SNAPSHOTS_READ as Revision {
            states.keep_own(revision, Objects::new());
            states.keep(revision + 50, Objects::new(), Some(("a", 3)), || 0);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let read = limits::SNAPSHOTS_READ as Revision;
        let own: Vec<Revision> = held(&states).into_iter().filter(|revision| *revision < 50).collect();
        assert_eq!(own, (10 + read..10 + 2 * read).collect::<Vec<_>>());
        assert_eq!(held(&states).len(), 3 * limits::SNAPSHOTS_READ);
        assert_eq!(states.counted(60)["a"], 3);
        // One that is paged through stays.
        states.keep(10 + read, Objects::new(), None, || 0);
        states.keep_own(40, Objects::new());
        assert!(states.objects(10 + read).is_some() && states.objects(11 + read).is_none());
        tokio::time::advance(limits::SNAPSHOT_AGE).await;
        assert!(held(&states).is_empty());
    }
}
