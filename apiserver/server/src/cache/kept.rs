//! The states of a kind that pages are made of.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use apiserver_store::Revision;
use tokio::time::Instant;

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
}

/// States of the past, by their revisions, for a while.
#[derive(Default)]
pub(super) struct States(Mutex<BTreeMap<Revision, Kept>>);

impl States {
    /// The objects of a state.
    pub(super) fn objects(&self, revision: Revision) -> Option<Objects> {
        self.young().get(&revision).map(|kept| kept.objects.clone())
    }

    /// What pages of a state have counted.
    pub(super) fn counted(&self, revision: Revision) -> BTreeMap<String, usize> {
        self.young().get(&revision).map(|kept| kept.counted.iter().cloned().collect()).unwrap_or_default()
    }

    /// Keeps a state that the cache has had, or keeps it on; `counted` is what a page has found out.
    pub(super) fn keep(&self, revision: Revision, objects: Objects, counted: Option<(&str, usize)>) {
        self.put(revision, objects, counted, false);
    }

    /// Keeps a state that was read from the store.
    pub(super) fn keep_own(&self, revision: Revision, objects: Objects) {
        self.put(revision, objects, None, true);
    }

    fn put(&self, revision: Revision, objects: Objects, counted: Option<(&str, usize)>, own: bool) {
        let mut kept = self.young();
        let at = Instant::now();
        let state = kept.entry(revision).or_insert(Kept { at, objects, counted: VecDeque::new(), own });
        state.at = at;
        if let Some((next, remaining)) = counted {
            state.counted.retain(|(key, _)| key != next);
            state.counted.push_back((next.to_owned(), remaining));
        }
        // Pages that were forgotten are counted again, and nothing more.
        while state.counted.len() > limits::SNAPSHOTS {
            state.counted.pop_front();
        }
        while kept.len() > limits::SNAPSHOTS {
            kept.pop_first();
        }
        while kept.values().filter(|state| state.own).count() > limits::SNAPSHOTS_READ {
            let oldest = kept.iter().filter(|(_, state)| state.own).min_by_key(|(_, state)| state.at);
            let Some(oldest) = oldest.map(|(revision, _)| *revision) else { break };
            kept.remove(&oldest);
        }
    }

    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }

    /// Forgets those that are too old.
    pub(super) fn age(&self) {
        drop(self.young());
    }

    fn young(&self) -> MutexGuard<'_, BTreeMap<Revision, Kept>> {
        let now = Instant::now();
        let mut kept = lock(&self.0);
        kept.retain(|_, state| now.duration_since(state.at) < limits::SNAPSHOT_AGE);
        kept
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_pages_once_more_finds_what_the_page_before_has_counted() {
        let states = States::default();
        for _ in 0..2 {
            for page in 0..3 * limits::SNAPSHOTS {
                let key = format!("{page:03}");
                states.keep(10, Objects::new(), Some((&key, page)));
                let counted = states.counted(10);
                assert_eq!(counted.get(&key), Some(&page));
                assert!(counted.len() <= limits::SNAPSHOTS);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn states_are_kept_for_a_while_and_of_those_with_objects_of_their_own_only_the_last_few() {
        let states = States::default();
        let held = |states: &States| -> Vec<Revision> {
            (0..100).filter(|revision| states.objects(*revision).is_some()).collect()
        };
        for revision in 10..10 + 2 * limits::SNAPSHOTS_READ as Revision {
            states.keep_own(revision, Objects::new());
            states.keep(revision + 50, Objects::new(), Some(("a", 3)));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let read = limits::SNAPSHOTS_READ as Revision;
        let own: Vec<Revision> = held(&states).into_iter().filter(|revision| *revision < 50).collect();
        assert_eq!(own, (10 + read..10 + 2 * read).collect::<Vec<_>>());
        assert_eq!(held(&states).len(), 3 * limits::SNAPSHOTS_READ);
        assert_eq!(states.counted(60)["a"], 3);
        // One that is paged through stays.
        states.keep(10 + read, Objects::new(), None);
        states.keep_own(40, Objects::new());
        assert!(states.objects(10 + read).is_some() && states.objects(11 + read).is_none());
        tokio::time::advance(limits::SNAPSHOT_AGE).await;
        assert!(held(&states).is_empty());
    }
}
