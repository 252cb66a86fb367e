//! The one reader of the store's log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use apiserver_registry::{Registry, Resource};
use apiserver_store::{Event, KeyValue, Notice, Range, Revision, Store, StoreError};
use arc_swap::ArcSwap;
use futures::StreamExt;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::ledger::{self, Totals};
use super::{Cache, Entry, Objects, Unreadable, packed};
use crate::limits;
use crate::stored_version;

/// All kinds are kept under this.
const ROOT: &str = "/registry/";
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The objects of one cache while they are read, in the order of their keys.
type State = Vec<Arc<Entry>>;

/// The caches of all kinds.
pub struct Caches {
    /// In the order of [`path`].
    by_path: Vec<Arc<Cache>>,
    /// The caches by storage prefix; two versions of a kind share one.
    by_prefix: BTreeMap<String, Vec<Arc<Cache>>>,
    /// The caches of custom kinds, by storage prefix; they come and go.
    custom: ArcSwap<imbl::OrdMap<String, Vec<Arc<Cache>>>>,
    store: Arc<dyn Store>,
    /// Bytes that the past of all kinds keeps alive.
    pub(super) totals: Totals,
    /// Everything up to here is in the caches; 0 before the first load.
    passed: watch::Sender<Revision>,
    /// Turns of [`Caches::reads_again`].
    again: Semaphore,
    /// The revision up to which the store is compacted, as far as this server knows.
    compacted: AtomicI64,
}

/// The cache did not reach the revision in time.
#[derive(Debug)]
pub struct Behind {
    pub asked: Revision,
    pub current: Revision,
}

/// A cache that is being loaded. If it is dropped before it has its objects, as when the request that wanted
/// them is cut off, the cache is idle again: otherwise nobody would ever take the changes that wait for it.
struct Loading<'a>(&'a Cache);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.give_up_loading();
    }
}

/// The reason why a consistent read cannot be answered.
#[derive(Debug)]
pub enum NotFresh {
    Behind(Behind),
    Store(StoreError),
}

impl Caches {
    /// Empty caches for all kinds that are stored.
    pub fn new(registry: &Registry, store: Arc<dyn Store>) -> Self {
        let (mut by_path, totals) = (Vec::new(), Totals::default());
        let mut by_prefix: BTreeMap<String, Vec<Arc<Cache>>> = BTreeMap::new();
        for resource in registry.iter().filter(|r| r.stored) {
            let convert = stored_version::from_stored(resource);
            let cache = Arc::new(Cache::within(Arc::clone(resource), convert, &totals));
            by_prefix.entry(cache.prefix.clone()).or_default().push(Arc::clone(&cache));
            by_path.push(cache);
        }
        by_path.sort_by(|a, b| path(a).cmp(&path(b)));
        let passed = watch::Sender::new(0);
        let again = Semaphore::new(limits::READING_AGAIN);
        Self {
            by_path,
            by_prefix,
            custom: ArcSwap::default(),
            store,
            totals,
            passed,
            again,
            compacted: AtomicI64::new(0),
        }
    }

    /// Notes that the store is compacted up to `revision`.
    pub fn compacted(&self, revision: Revision) {
        self.compacted.fetch_max(revision, Ordering::Relaxed);
    }

    /// `true` if a state is newer than the store's last compaction that this server knows of.
    pub fn outlasted(&self, revision: Revision) -> bool {
        revision >= self.compacted.load(Ordering::Relaxed)
    }

    /// Replaces the caches under `prefix` (with a slash at its end) by those of a custom kind's versions;
    /// none: it is removed. Earlier watches end. Called by one task.
    pub fn set_custom(&self, prefix: &str, resources: &[Arc<Resource>]) {
        let caches: Vec<Arc<Cache>> = resources
            .iter()
            .map(|resource| {
                let convert = stored_version::from_stored(resource);
                Arc::new(Cache::within(Arc::clone(resource), convert, &self.totals))
            })
            .collect();
        let mut all = imbl::OrdMap::clone(&self.custom.load());
        let old = if caches.is_empty() { all.remove(prefix) } else { all.insert(prefix.to_owned(), caches) };
        self.custom.store(Arc::new(all));
        old.into_iter().flatten().for_each(|cache| cache.retire());
    }

    /// The cache of a custom kind.
    pub fn custom(&self, resource: &Resource) -> Option<Arc<Cache>> {
        let all = self.custom.load();
        let versions = all.get(&format!("{}/", resource.storage_prefix))?;
        versions.iter().find(|cache| cache.resource.version == resource.version).cloned()
    }

    /// Loads the objects of a lazy cache, if that has not happened: only kinds that are requested are kept in
    /// memory. A cache that was replaced by another stays as it is, and is not live.
    pub async fn start(&self, cache: &Cache) -> Result<(), NotFresh> {
        while !cache.is_live() {
            self.loaded().await;
            let _one = cache.starting.lock().await;
            if cache.is_live() || !cache.begin_loading() {
                break;
            }
            let _loading = Loading(cache);
            let (objects, revision) = self.read_all(cache, 0).await.map_err(NotFresh::Store)?;
            // Everything that the feed has passed is in every cache, and nothing else is in any.
            self.reach(revision).await.map_err(NotFresh::Behind)?;
            cache.loaded(objects, revision);
        }
        Ok(())
    }

    /// Reads all objects of a kind at a revision, 0 for the current one, and returns them with the revision that
    /// was read. Objects that cannot be decoded are skipped.
    pub async fn read_all(
        &self,
        cache: &Cache,
        revision: Revision,
    ) -> Result<(Objects, Revision), StoreError> {
        let mut entries = State::new();
        let prefix = cache.prefix.clone();
        let mut range = Range { prefix, revision, limit: limits::LOAD_PAGE, ..Range::default() };
        loop {
            let more = self.read_page(cache, &mut range, &mut entries).await?;
            if !more {
                return Ok((packed(&entries), range.revision));
            }
        }
    }

    /// Reads one page of a kind from the store and moves the range behind it, to the same revision; `false`
    /// where it is the last. What cannot be read is left out.
    pub async fn read_page(
        &self,
        cache: &Cache,
        range: &mut Range,
        into: &mut Vec<Arc<Entry>>,
    ) -> Result<bool, StoreError> {
        let page = self.store.list(range.clone()).await?;
        for kv in &page.kvs {
            let entry = cache.read(&kv.key, kv.mod_revision, &kv.value).inspect_err(unread);
            into.extend(entry.ok().map(Arc::new));
        }
        range.revision = page.revision;
        match page.kvs.last() {
            Some(last) if page.more => range.after.clone_from(&last.key),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A place for an answer that reads from the store what the caches do not keep any more. It is given
    /// back before the client is waited for.
    pub async fn reads_again(&self) -> Option<SemaphorePermit<'_>> {
        self.again.acquire().await.ok()
    }

    /// The cache of a kind.
    pub fn cache(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Cache>> {
        // Every request comes here, so nothing is allocated.
        let found = self.by_path.binary_search_by(|cache| path(cache).cmp(&(plural, group, version))).ok()?;
        self.by_path.get(found)
    }

    /// All caches.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Cache>> {
        self.by_path.iter()
    }

    /// Returns the caches of custom kinds that have been requested.
    pub fn live_custom(&self) -> Vec<Arc<Cache>> {
        self.custom.load().values().flatten().filter(|cache| cache.is_live()).cloned().collect()
    }

    /// Everything up to this revision is in the caches.
    pub fn passed(&self) -> Revision {
        *self.passed.borrow()
    }

    /// Waits until the caches hold everything up to `revision`.
    pub async fn reach(&self, revision: Revision) -> Result<(), Behind> {
        if self.passed() >= revision {
            return Ok(());
        }
        let mut passed = self.passed.subscribe();
        let wait = async {
            loop {
                let reached = passed.wait_for(|now| *now >= revision);
                if tokio::time::timeout(limits::PROGRESS_EVERY, reached).await.is_ok() {
                    return;
                }
                // The newest revision may belong to a key that is not an object.
                if let Err(error) = self.store.request_progress().await {
                    warn!(%error, "the store reports no progress");
                }
            }
        };
        tokio::time::timeout(limits::FRESH_WAIT, wait)
            .await
            .map_err(|_| Behind { asked: revision, current: self.passed() })
    }

    /// Waits until the caches hold every write acknowledged before the call.
    pub async fn fresh(&self) -> Result<Revision, NotFresh> {
        let revision = self.store.revision().await.map_err(NotFresh::Store)?;
        self.reach(revision).await.map_err(NotFresh::Behind)?;
        Ok(revision)
    }

    /// Waits for the first load.
    pub async fn loaded(&self) {
        let mut passed = self.passed.subscribe();
        // The sender lives in `self`, so the wait ends only with the value.
        let _ = passed.wait_for(|now| *now > 0).await;
    }

    /// Loads and follows the store until shutdown.
    pub async fn run(&self, shutdown: CancellationToken) {
        let mut pause = MIN_PAUSE;
        let (mut from, mut until) = (0, 0);
        loop {
            let follow = async {
                if from == 0 {
                    (from, until) = self.load().await?;
                }
                self.follow(&mut from, until, &mut pause).await
            };
            let ended = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                ended = follow => ended,
            };
            match ended {
                Ok(()) => info!("the watch on the store ended, watching again"),
                Err(error @ StoreError::Compacted { .. }) => {
                    warn!(%error, "the store compacted revisions that the cache needs, reloading");
                    from = 0;
                }
                Err(error) => {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "the store cannot be watched, trying again"
                    );
                }
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(MAX_PAUSE),
            }
        }
    }

    /// Returns the revision to begin at, and the one before which no watch may be answered: a while before
    /// the present if the store has that, so that watches from before a restart continue.
    async fn beginning(&self) -> Result<(Revision, Revision), StoreError> {
        let now = self.store.revision().await?;
        if self.passed() > 0 {
            // Those who watched meanwhile have been disconnected anyway.
            return Ok((now, now));
        }
        for back in limits::RESUMED_REVISIONS {
            let revision = (now - back).max(1);
            let one = Range { prefix: ROOT.to_owned(), limit: 1, revision, ..Range::default() };
            if self.store.list(one).await.is_ok() {
                return Ok((revision, now));
            }
        }
        Ok((now, now))
    }

    /// Reads everything at one revision; returns it, and the revision up to which changes have to follow
    /// before the state is current.
    async fn load(&self) -> Result<(Revision, Revision), StoreError> {
        let mut states: BTreeMap<&str, Vec<State>> = BTreeMap::new();
        let (revision, until) = self.beginning().await?;
        let mut range =
            Range { prefix: ROOT.to_owned(), limit: limits::LOAD_PAGE, revision, ..Range::default() };
        let mut page = self.store.list(range.clone()).await?;
        loop {
            range.revision = page.revision;
            // The next one is listed while this one is read.
            let next = page.kvs.last().filter(|_| page.more).map(|last| {
                range.after.clone_from(&last.key);
                let (store, range) = (Arc::clone(&self.store), range.clone());
                tokio::spawn(async move { store.list(range).await })
            });
            self.load_page(page.kvs, &mut states).await?;
            let Some(next) = next else { break };
            page = next.await.map_err(cut_short)??;
        }
        for (prefix, caches) in &self.by_prefix {
            let mut loaded = states.remove(prefix.as_str()).unwrap_or_default().into_iter();
            for cache in caches.iter().filter(|cache| !cache.is_lazy()) {
                cache.reset(&loaded.next().unwrap_or_default(), range.revision);
            }
        }
        // A cache kept from before may be as old as the cause of this reload, and one whose load began
        // meanwhile has not received the changes before this state.
        let custom = self.custom.load();
        let lazy = self.by_path.iter().filter(|cache| cache.is_lazy());
        custom.values().flatten().chain(lazy).for_each(|cache| cache.idle());
        if range.revision >= until {
            self.passed.send_replace(range.revision.max(1));
        }
        Ok((range.revision, until))
    }

    /// Reads a page; two threads share a large one, since a start waits for nothing else.
    async fn load_page<'a>(
        &'a self,
        kvs: Vec<KeyValue>,
        states: &mut BTreeMap<&'a str, Vec<State>>,
    ) -> Result<(), StoreError> {
        let (prefixes, unread) = self.sorted(kvs);
        let unread = Arc::new(unread);
        let there = (unread.objects.len() >= limits::LOAD_ALONE).then(|| {
            let unread = Arc::clone(&unread);
            tokio::task::spawn_blocking(move || unread.read())
        });
        let mut parts = unread.read();
        if let Some(there) = there {
            parts.extend(there.await.map_err(cut_short)?);
        }
        parts.sort_unstable_by_key(|(first, _)| *first);
        for (first, entries) in parts {
            for ((_, owner), entries) in unread.objects[first..].iter().zip(entries) {
                add(states, prefixes[*owner], entries);
            }
        }
        Ok(())
    }

    /// The objects of a page with the caches that they belong to, and the prefixes of these. What belongs to
    /// none is left out.
    fn sorted(&self, kvs: Vec<KeyValue>) -> (Vec<&str>, Unread) {
        let (mut prefixes, mut unread) = (Vec::new(), Unread::default());
        let (mut place, mut owner) = (String::new(), None);
        for kv in kvs {
            // Objects of one namespace have the same owners, and are adjacent.
            let here = kv.key.rfind('/').map_or("", |slash| &kv.key[..=slash]);
            if place != here {
                here.clone_into(&mut place);
                owner = self.owners(here).map(|(prefix, caches)| {
                    if prefixes.last() != Some(&prefix) {
                        prefixes.push(prefix);
                        unread.owners.push(caches.clone());
                    }
                    prefixes.len() - 1
                });
            }
            unread.objects.extend(owner.map(|owner| (kv, owner)));
        }
        (prefixes, unread)
    }

    /// The caches that keep the objects of a key.
    fn owners(&self, key: &str) -> Option<(&str, &Vec<Arc<Cache>>)> {
        // Longest prefix first: the objects of one kind are never below those of another, but a namespace may
        // have the name of a kind.
        key.match_indices('/')
            .rev()
            .find_map(|(i, _)| self.by_prefix.get_key_value(&key[..=i]))
            .map(|(prefix, caches)| (prefix.as_str(), caches))
    }

    async fn follow(
        &self,
        from: &mut Revision,
        until: Revision,
        pause: &mut Duration,
    ) -> Result<(), StoreError> {
        let mut watch = self.store.watch(ROOT, *from + 1).await?;
        loop {
            let next = if *from >= until {
                watch.next().await
            } else {
                match tokio::time::timeout(limits::PROGRESS_EVERY, watch.next()).await {
                    Ok(next) => next,
                    // The newest revision may belong to a key that is not an object.
                    Err(_) => {
                        self.store.request_progress().await?;
                        continue;
                    }
                }
            };
            let Some(notice) = next else { return Ok(()) };
            *pause = MIN_PAUSE;
            match notice? {
                Notice::Events(events) => {
                    let Some(last) = events.last().map(|e| e.revision) else { continue };
                    self.take(&events);
                    *from = last;
                }
                Notice::Progress(revision) => *from = revision.max(*from),
            }
            // Last, so that whoever sees the revision finds the changes in caches and queues.
            self.passed.send_if_modified(|passed| {
                let newer = *from > *passed && *from >= until;
                if newer {
                    *passed = *from;
                }
                newer
            });
        }
    }

    /// The caches that keep the objects of a key of a custom kind, `/registry/GROUP/PLURAL/…`.
    fn custom_owners(&self, key: &str) -> Option<(String, Vec<Arc<Cache>>)> {
        let below = key.strip_prefix(ROOT)?;
        let (at, _) = below.match_indices('/').nth(1)?;
        let prefix = &key[..ROOT.len() + at + 1];
        let all = self.custom.load();
        all.get(prefix).map(|caches| (prefix.to_owned(), caches.clone()))
    }

    fn take(&self, events: &[Event]) {
        // Runs of one kind are published together.
        let mut rest = events;
        while let Some(first) = rest.first() {
            let Some((prefix, caches)) = self.owners(&first.key) else {
                if let Some((prefix, caches)) = self.custom_owners(&first.key) {
                    let length = rest.iter().take_while(|e| e.key.starts_with(&prefix)).count();
                    let (run, later) = rest.split_at(length);
                    for cache in &caches {
                        cache.apply(run.iter().filter_map(|event| change_of(cache, event)));
                    }
                    rest = later;
                    continue;
                }
                rest = &rest[1..];
                continue;
            };
            let same = |e: &Event| self.owners(&e.key).is_some_and(|(p, _)| p == prefix);
            let length = rest.iter().position(|e| !same(e)).unwrap_or(rest.len());
            let (run, later) = rest.split_at(length);
            for cache in caches.iter().filter(|cache| cache.follows()) {
                cache.apply(run.iter().filter_map(|event| change_of(cache, event)));
            }
            rest = later;
        }
        self.bound_past();
    }

    /// Forgets what has become too old in kinds that nothing happens to.
    pub fn age(&self) {
        let custom = self.custom.load();
        self.by_path.iter().chain(custom.values().flatten()).for_each(|cache| cache.age());
    }

    /// Drops history and snapshots of the kinds that have most of them while all kinds together exceed the
    /// bounds.
    pub(super) fn bound_past(&self) {
        let custom = self.custom.load();
        let all = || self.by_path.iter().chain(custom.values().flatten());
        while self.totals.history.load(Ordering::SeqCst) > ledger::room_left(limits::HISTORY_BYTES_ALL) {
            let Some(largest) = all().max_by_key(|cache| cache.held.own()) else { break };
            if largest.held.own() <= limits::HISTORY_SHARE || !largest.halve_history() {
                break;
            }
        }
        while self.totals.snapshots.load(Ordering::SeqCst) > limits::SNAPSHOT_BYTES_ALL {
            let Some(largest) = all().max_by_key(|cache| cache.states.bytes()) else { break };
            if !largest.states.drop_oldest() {
                break;
            }
        }
    }
}

/// Plural, group, version: plurals differ early.
fn path(cache: &Cache) -> (&str, &str, &str) {
    let resource = &cache.resource;
    (&resource.plural, &resource.group, &resource.version)
}

/// The objects of a page that threads read, part by part.
#[derive(Default)]
struct Unread {
    owners: Vec<Vec<Arc<Cache>>>,
    /// Each with the place of its owners.
    objects: Vec<(KeyValue, usize)>,
    /// The first item that is not being worked on.
    next: AtomicUsize,
}

/// Objects in each of their caches, and the place of the first of them in the page.
type Part = (usize, Vec<Vec<Option<Arc<Entry>>>>);

impl Unread {
    /// Reads parts until none is left.
    fn read(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        loop {
            let first = self.next.fetch_add(limits::LOAD_PART, Ordering::Relaxed);
            let Some(rest) = self.objects.get(first..).filter(|rest| !rest.is_empty()) else { return parts };
            let read = |(kv, owner): &(KeyValue, usize)| read_each(&self.owners[*owner], kv);
            parts.push((first, rest.iter().take(limits::LOAD_PART).map(read).collect()));
        }
    }
}

fn cut_short(error: tokio::task::JoinError) -> StoreError {
    StoreError::Unavailable { attempted: "read the stored objects".to_owned(), cause: Some(Box::new(error)) }
}

/// Decodes the object of a key for each of the caches that follow the store from the first load on; `None` if
/// it cannot be read. Lazy ones read their objects on request.
fn read_each(caches: &[Arc<Cache>], kv: &KeyValue) -> Vec<Option<Arc<Entry>>> {
    let read = |cache: &Arc<Cache>| {
        let entry = cache.read(&kv.key, kv.mod_revision, &kv.value).inspect_err(unread);
        entry.ok().map(Arc::new)
    };
    caches.iter().filter(|cache| !cache.is_lazy()).map(read).collect()
}

/// Adds the objects of a key to the states of its caches.
fn add<'a>(states: &mut BTreeMap<&'a str, Vec<State>>, prefix: &'a str, entries: Vec<Option<Arc<Entry>>>) {
    let state = states.entry(prefix).or_insert_with(|| vec![State::new(); entries.len()]);
    for (objects, entry) in state.iter_mut().zip(entries) {
        objects.extend(entry);
    }
}

fn unread(error: &Unreadable) {
    warn!(error = error as &dyn std::error::Error, "an object cannot be read");
}

type Read = (Arc<str>, Revision, Option<Arc<Entry>>);

/// Returns a change for an event. An object that can no longer be read is gone for this server, as it is
/// after the next start: the earlier state is not what the store holds.
fn change_of(cache: &Cache, event: &Event) -> Option<Read> {
    let key: Arc<str> = Arc::from(event.key.strip_prefix(&cache.prefix)?);
    let read = |value| cache.read(&event.key, event.revision, value).inspect_err(unread).ok();
    Some((key, event.revision, event.value.as_ref().and_then(read).map(Arc::new)))
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
