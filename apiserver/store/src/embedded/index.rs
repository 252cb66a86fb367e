//! The state in memory: the newest change of each key, and all changes since the compaction point. Both are
//! persistent trees, so a copy is cheap, and readers keep theirs while the committer continues.
//!
//! The value of a key at an older revision is found by following its changes back from the newest one: each
//! change names the previous change of the key, which is in the history unless it is compacted, and contains
//! that one's value, so the oldest change in the history needs nothing from before it.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;

use crate::limits::KEY_OVERHEAD;
use crate::{Event, Got, KeyValue, Page, Range, Revision, StoreError};

/// State of a key before a change.
#[derive(Clone, Debug)]
pub(super) struct Before {
    mod_revision: Revision,
    create_revision: Revision,
    value: Bytes,
}

/// A write that happened.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) revision: Revision,
    pub(super) key: Arc<str>,
    /// New value; `None` if the key was deleted.
    pub(super) value: Option<Bytes>,
    pub(super) create_revision: Revision,
    /// Seconds from the write until the key expires; 0 for never.
    pub(super) ttl_seconds: u32,
    /// Previous version; `None` if the key did not exist or the version has been compacted, which is true for
    /// most objects of a store at rest, so it is allocated separately.
    before: Option<Box<Before>>,
    /// Revision of the previous change of the key, including a deletion; 0 if there was none.
    previous_change: Revision,
}

impl Change {
    fn key_value(&self) -> Option<KeyValue> {
        let value = self.value.clone()?;
        Some(KeyValue {
            key: self.key.to_string(),
            value,
            create_revision: self.create_revision,
            mod_revision: self.revision,
        })
    }

    /// Returns the event that watchers get.
    pub(super) fn event(&self) -> Event {
        Event {
            revision: self.revision,
            key: self.key.to_string(),
            value: self.value.clone(),
            previous: self.before.as_ref().map(|before| before.value.clone()),
            create_revision: self.create_revision,
        }
    }

    /// Returns the memory that the change takes: key, value and structure.
    pub(super) fn weight(&self) -> u64 {
        weight(&self.key, self.value.as_ref().map_or(0, Bytes::len))
    }
}

/// Returns the memory that a key with a value of this length takes.
pub(super) fn weight(key: &str, value: usize) -> u64 {
    (KEY_OVERHEAD + key.len() + value) as u64
}

/// The whole state at one revision.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// Newest change of each key, including deletions after the compaction point.
    keys: OrdMap<Arc<str>, Arc<Change>>,
    /// All changes after `compacted`, and those before it that have not been freed yet.
    history: OrdMap<Revision, Arc<Change>>,
    /// Revision of the newest change. A new store is at 1, like etcd.
    pub(super) revision: Revision,
    /// Compaction point: lists before this revision, and watches from it or earlier, are refused.
    pub(super) compacted: Revision,
    /// Number of existing keys.
    pub(super) live: u64,
    /// Sum of the weights of the existing keys.
    pub(super) live_bytes: u64,
    /// Sum of the weights of `history`.
    pub(super) history_bytes: u64,
}

impl Index {
    /// Creates an empty store.
    pub(super) fn new() -> Self {
        Self {
            keys: OrdMap::new(),
            history: OrdMap::new(),
            revision: 1,
            compacted: 0,
            live: 0,
            live_bytes: 0,
            history_bytes: 0,
        }
    }

    /// Creates the state of a checkpoint, to be filled with `restore`.
    pub(super) fn at_checkpoint(revision: Revision) -> Self {
        Self { revision, compacted: revision, ..Self::new() }
    }

    /// Adds one key of a checkpoint.
    pub(super) fn restore(
        &mut self,
        key: Arc<str>,
        value: Bytes,
        versions: (Revision, Revision),
        ttl_seconds: u32,
    ) {
        let (create_revision, revision) = versions;
        let change = Change {
            revision,
            key: Arc::clone(&key),
            value: Some(value),
            create_revision,
            ttl_seconds,
            before: None,
            previous_change: 0,
        };
        self.live_bytes += change.weight();
        match self.keys.insert(key, Arc::new(change)) {
            None => self.live += 1,
            Some(old) => self.live_bytes -= old.weight(),
        }
    }

    /// Rebuilds the trees with full nodes. Inserting keys and revisions in order, as a start does, splits the
    /// last node repeatedly and leaves half-empty nodes behind. Here every second entry is inserted first,
    /// which leaves such nodes, and the other entries then fill them.
    pub(super) fn pack(&mut self) {
        fn pack<K: Ord + Clone, V: Clone>(tree: &mut OrdMap<K, V>) {
            let mut packed = OrdMap::new();
            for first in [0, 1] {
                for (key, value) in tree.iter().skip(first).step_by(2) {
                    packed.insert(key.clone(), value.clone());
                }
            }
            *tree = packed;
        }
        let (keys, history) = (&mut self.keys, &mut self.history);
        std::thread::scope(|scope| {
            #[expect(
                clippy::disallowed_methods,
                reason = "joined at once, and what it makes is the same on one thread"
            )]
            scope.spawn(|| pack(history));
            pack(keys);
        });
    }

    /// Returns the number of changes in the history.
    pub(super) fn history_len(&self) -> u64 {
        self.history.len() as u64
    }

    /// Returns the number of revisions after the compaction point.
    pub(super) fn revisions_kept(&self) -> u64 {
        (self.revision - self.compacted.max(1)).unsigned_abs()
    }

    /// Returns `true` if compaction has left changes to free.
    pub(super) fn scrub_pending(&self) -> bool {
        self.history.get_min().is_some_and(|(oldest, _)| *oldest <= self.compacted)
    }

    /// Returns the current version of a key.
    pub(super) fn current(&self, key: &str) -> Option<&Arc<Change>> {
        self.keys.get(key).filter(|change| change.value.is_some())
    }

    /// Sets a key at the next revision.
    pub(super) fn put(&mut self, key: &str, value: Bytes, ttl_seconds: u32) -> Arc<Change> {
        let revision = self.revision + 1;
        let before = self.before(key);
        let freed = before.as_ref().map_or(0, |before| weight(key, before.value.len()));
        self.live_bytes = self.live_bytes + weight(key, value.len()) - freed;
        let create_revision = before.as_ref().map_or(revision, |before| before.create_revision);
        if before.is_none() {
            self.live += 1;
        }
        let (key, previous_change) = self.shared(key);
        let (value, before) = (Some(value), before.map(Box::new));
        self.push(Change { revision, key, value, create_revision, ttl_seconds, before, previous_change })
    }

    /// Deletes a key at the next revision; returns `None` and creates no revision if it does not exist.
    pub(super) fn delete(&mut self, key: &str) -> Option<Arc<Change>> {
        let before = self.before(key)?;
        self.live -= 1;
        self.live_bytes -= weight(key, before.value.len());
        let (key, previous_change) = self.shared(key);
        let change = Change {
            revision: self.revision + 1,
            key,
            value: None,
            create_revision: before.create_revision,
            ttl_seconds: 0,
            before: Some(Box::new(before)),
            previous_change,
        };
        Some(self.push(change))
    }

    fn push(&mut self, change: Change) -> Arc<Change> {
        let change = Arc::new(change);
        self.revision = change.revision;
        self.history_bytes += change.weight();
        self.keys.insert(Arc::clone(&change.key), Arc::clone(&change));
        self.history.insert(change.revision, Arc::clone(&change));
        change
    }

    fn before(&self, key: &str) -> Option<Before> {
        let change = self.current(key)?;
        let value = change.value.clone()?;
        Some(Before { mod_revision: change.revision, create_revision: change.create_revision, value })
    }

    /// Returns the key in a shared allocation, however often it changes, and the revision of its newest
    /// change.
    fn shared(&self, key: &str) -> (Arc<str>, Revision) {
        match self.keys.get_key_value(key) {
            Some((key, newest)) => (Arc::clone(key), newest.revision),
            None => (Arc::from(key), 0),
        }
    }

    /// Refuses an invalid compaction.
    pub(super) fn check_compaction(&self, revision: Revision) -> Result<(), StoreError> {
        if revision > self.revision {
            return Err(StoreError::Future { asked: revision, current: self.revision });
        }
        if revision <= self.compacted {
            return Err(StoreError::Compacted { asked: revision, oldest: self.compacted });
        }
        Ok(())
    }

    /// Makes versions that were overwritten or deleted at or before `revision` unreadable immediately;
    /// `scrub` frees them.
    pub(super) fn compact(&mut self, revision: Revision) {
        self.compacted = revision;
    }

    /// Frees at most `changes` unreadable changes; returns true if more remain.
    pub(super) fn scrub(&mut self, changes: usize) -> bool {
        for _ in 0..changes {
            let Some((oldest, change)) = self.history.get_min().cloned() else { return false };
            if oldest > self.compacted {
                return false;
            }
            self.history.remove(&oldest);
            self.history_bytes -= change.weight();
            let newest = self.keys.get(&change.key).is_some_and(|newest| newest.revision == oldest);
            if newest {
                self.forget_before(&change);
            }
        }
        self.scrub_pending()
    }

    /// Drops the previous version of a change that remains the newest of its key.
    fn forget_before(&mut self, change: &Change) {
        if change.value.is_none() {
            self.keys.remove(&change.key);
        } else if change.before.is_some() {
            let bare = Change {
                revision: change.revision,
                key: Arc::clone(&change.key),
                value: change.value.clone(),
                create_revision: change.create_revision,
                ttl_seconds: change.ttl_seconds,
                before: None,
                previous_change: 0,
            };
            self.keys.insert(Arc::clone(&change.key), Arc::new(bare));
        }
    }

    /// Returns the current version of one key.
    pub(super) fn get(&self, key: &str) -> Got {
        Got { kv: self.current(key).and_then(|change| change.key_value()), revision: self.revision }
    }

    /// Begins a list, which is then read with [`ListState::advance`].
    pub(super) fn list<'a>(&'a self, range: &'a Range) -> Result<ListState<'a>, StoreError> {
        let revision = self.readable(range.revision)?;
        let after = if range.after > range.prefix { Some(range.after.as_str()) } else { None };
        let page = Page { kvs: Vec::new(), revision, more: false };
        Ok(ListState { index: self, range, after, page })
    }

    /// Returns the revision to read at for a requested one.
    fn readable(&self, asked: Revision) -> Result<Revision, StoreError> {
        if asked == 0 {
            return Ok(self.revision);
        }
        if asked > self.revision {
            return Err(StoreError::Future { asked, current: self.revision });
        }
        if asked < self.compacted {
            return Err(StoreError::Compacted { asked, oldest: self.compacted });
        }
        Ok(asked)
    }

    fn exists(&self, newest: &Arc<Change>, revision: Revision) -> bool {
        if newest.revision <= revision {
            newest.value.is_some()
        } else {
            self.version(newest, revision).is_some()
        }
    }

    /// Returns the version of a key at a revision that is not compacted.
    fn version(&self, newest: &Arc<Change>, revision: Revision) -> Option<KeyValue> {
        let mut change = newest;
        loop {
            if change.revision <= revision {
                return change.key_value();
            }
            if change.previous_change <= revision {
                // Without a previous version the key did not exist then.
                return change.before.as_ref().map(|before| KeyValue {
                    key: change.key.to_string(),
                    value: before.value.clone(),
                    create_revision: before.create_revision,
                    mod_revision: before.mod_revision,
                });
            }
            change = self.history.get(&change.previous_change)?;
        }
    }

    /// Returns the state at the compaction point, ordered by key: the content of a checkpoint.
    pub(super) fn at_compaction(&self) -> impl Iterator<Item = (KeyValue, u32)> + '_ {
        self.keys.values().filter_map(|newest| {
            let kv = self.version(newest, self.compacted)?;
            // A later change brings its own time to live when the log is replayed.
            let ttl = if newest.revision == kv.mod_revision { newest.ttl_seconds } else { 0 };
            Some((kv, ttl))
        })
    }

    /// Returns the current state, ordered by key, with the full time to live of each key.
    pub(super) fn at_present(&self) -> impl Iterator<Item = (KeyValue, u32)> + '_ {
        self.live_changes().filter_map(|change| Some((change.key_value()?, change.ttl_seconds)))
    }

    /// Returns descriptions of contradictions in the state; none in a valid one. `scrub` must have completed.
    pub(super) fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        let live = self.live_changes().count() as u64;
        if live != self.live {
            found.push(format!("{live} keys exist, and {} are counted", self.live));
        }
        let mut next = self.compacted.max(1) + 1;
        for (revision, change) in &self.history {
            if *revision != next || change.revision != next {
                found.push(format!("the history has revision {revision} where {next} belongs"));
            }
            next = revision + 1;
            let newest = self.keys.get(&change.key).map_or(0, |newest| newest.revision);
            if newest < *revision {
                found.push(format!("{} changed at {revision}, its newest change is at {newest}", change.key));
            }
        }
        if next != self.revision + 1 {
            found.push(format!("the history ends at {}, the store is at {}", next - 1, self.revision));
        }
        for (key, change) in &self.keys {
            let after = change.revision > self.compacted;
            let ordered = change.create_revision >= 1 && change.create_revision <= change.revision;
            if *key != change.key || !ordered || change.revision > self.revision {
                let (made, newest) = (change.create_revision, change.revision);
                found.push(format!("{key} is made at {made} and changed at {newest}, out of order"));
            } else if after && self.history.get(&change.revision).is_none_or(|own| own.key != *key) {
                found.push(format!(
                    "{key} changed at {}, of which the history knows nothing",
                    change.revision
                ));
            }
        }
        found
    }

    /// Returns the newest change of every existing key.
    pub(super) fn live_changes(&self) -> impl Iterator<Item = &Arc<Change>> + '_ {
        self.keys.values().filter(|change| change.value.is_some())
    }

    /// Returns the changes from revision `from` on, in order.
    pub(super) fn changes_from(&self, from: Revision) -> impl Iterator<Item = &Arc<Change>> + '_ {
        self.history.range(from..).map(|(_, change)| change)
    }
}

/// A list that is read in parts, so that a long one lets other tasks run.
pub(super) struct ListState<'a> {
    index: &'a Index,
    range: &'a Range,
    /// The key that was visited last.
    after: Option<&'a str>,
    /// Result so far.
    pub(super) page: Page,
}

impl ListState<'_> {
    /// Visits the next `keys` keys; returns true if more remain.
    pub(super) fn advance(&mut self, keys: usize) -> bool {
        let start = match self.after {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(self.range.prefix.as_str()),
        };
        let limit = if self.range.limit == 0 { usize::MAX } else { self.range.limit };
        let (index, page) = (self.index, &mut self.page);
        let mut looked_at = 0;
        for (key, newest) in index.keys.range::<_, str>((start, Bound::Unbounded)) {
            if !key.starts_with(&self.range.prefix) {
                return false;
            }
            if page.kvs.len() < limit {
                page.kvs.extend(index.version(newest, page.revision));
            } else if index.exists(newest, page.revision) {
                page.more = true;
                return false;
            }
            looked_at += 1;
            if looked_at == keys {
                self.after = Some(key);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(index: &Index, revision: Revision) -> Vec<String> {
        let range = Range { revision, ..Range::default() };
        let mut state = index.list(&range).unwrap();
        while state.advance(2) {}
        state.page.kvs.iter().map(|kv| format!("{}={}", kv.key, String::from_utf8_lossy(&kv.value))).collect()
    }

    fn index() -> Index {
        let mut index = Index::new();
        index.put("a", "1".into(), 0);
        index.put("b", "1".into(), 0);
        index.delete("b").unwrap();
        index.put("a", "2".into(), 0);
        index.put("c", "1".into(), 0);
        index.put("b", "2".into(), 0);
        index
    }

    #[test]
    fn every_revision_is_readable_in_parts_of_any_size() {
        let index = index();
        let expected: [&[&str]; 7] =
            [&[], &["a=1"], &["a=1", "b=1"], &["a=1"], &["a=2"], &["a=2", "c=1"], &["a=2", "b=2", "c=1"]];
        for (revision, expected) in (1..).zip(expected) {
            assert_eq!(list(&index, revision), expected, "revision {revision}");
        }
    }

    /// The memory that a key takes besides its text is a few bytes.
    #[test]
    fn a_change_is_small() {
        assert!(size_of::<Change>() <= 96, "{}", size_of::<Change>());
    }

    #[test]
    fn packing_preserves_the_state() {
        let mut index = Index::new();
        index.pack();
        for i in 0..1_001 {
            index.put(&format!("k{i:05}"), i.to_string().into(), 0);
        }
        index.delete("k00500").unwrap();
        let before = index.clone();
        index.pack();
        assert_eq!(list(&index, 0), list(&before, 0));
        assert_eq!(list(&index, 700), list(&before, 700));
        assert!(index.contradictions().is_empty());
        index.put("k00500x", "1".into(), 0);
        assert_eq!(list(&index, 0).len(), 1_001);
    }

    #[test]
    fn a_copy_is_not_affected_by_later_writes() {
        let mut index = index();
        let copy = index.clone();
        index.delete("a").unwrap();
        index.compact(8);
        while index.scrub(1) {}
        assert_eq!(list(&copy, 0), ["a=2", "b=2", "c=1"]);
        assert_eq!(list(&copy, 2), ["a=1"]);
        assert_eq!(list(&index, 0), ["b=2", "c=1"]);
    }

    #[test]
    fn scrubbing_frees_deleted_keys_and_old_versions() {
        let mut index = index();
        index.delete("c").unwrap();
        assert_eq!((index.keys.len(), index.history.len(), index.live), (3, 7, 2));
        index.compact(8);
        // Unreadable immediately, and freed in steps.
        assert!(index.list(&Range { revision: 7, ..Range::default() }).is_err());
        let mut steps = 1;
        while index.scrub(2) {
            steps += 1;
        }
        assert_eq!(steps, 4);
        assert_eq!((index.keys.len(), index.history.len(), index.live), (2, 0, 2));
        assert_eq!(index.history_bytes, 0);
        assert!(index.keys.values().all(|change| change.before.is_none()));
        assert_eq!(list(&index, 8), ["a=2", "b=2"]);
    }
}
