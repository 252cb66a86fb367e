//! The objects that a request selects, taken a few at a time. Between two times it holds only the position to
//! continue at and, while the cache has room for it, the state that they are taken from; after that they are
//! read from the store. So an answer that is not read keeps no object alive.

pub mod filter;

use std::collections::VecDeque;
use std::sync::Arc;

use apiserver_store::{Range, Revision, StoreError};

use crate::clients::budget::Charge;
use crate::limits;
use crate::selection::filter::Filter;
use apiserver_cache::{Cache, Caches, Entry, Past, Reading};

/// One page, or all.
pub struct Selected {
    pub entries: Entries,
    /// Key of the last of the page's objects, if the limit cut something off behind it.
    pub last: Option<Arc<str>>,
    /// The number of further objects, if it is known.
    pub remaining: Option<usize>,
}

/// The objects selected of a state, in the order of their keys.
#[derive(Clone)]
pub struct Entries {
    state: State,
    next: Next,
}

#[derive(Clone)]
enum State {
    /// While the request is worked on.
    Whole(Arc<Past>),
    /// While the answer is sent.
    Reading(Arc<Caches>, Arc<Reading>),
}

#[derive(Clone)]
enum Next {
    Span(Span),
    /// The objects of these keys.
    Keys {
        keys: VecDeque<Arc<str>>,
        /// For the keys, until they have been used.
        _charge: Option<Arc<Charge>>,
    },
    End,
}

/// The objects that a filter selects between two keys.
#[derive(Clone)]
struct Span {
    filter: Arc<Filter>,
    /// The first key, or one before it.
    from: String,
    /// The last key; `None` for all.
    until: Option<Arc<str>>,
}

/// The state is not kept any more.
#[derive(Debug, PartialEq, Eq)]
pub struct Forgotten;

/// Objects that are taken at one time: at least one, and more as long as they are short enough together.
struct Batch {
    entries: Vec<Arc<Entry>>,
    bytes: usize,
    count: usize,
}

impl Batch {
    fn new(bytes: usize, count: usize) -> Self {
        Self { entries: Vec::new(), bytes, count }
    }

    /// Adds an entry; returns `false` if there is no room for it.
    fn add(&mut self, entry: &Arc<Entry>) -> bool {
        let fits = entry.object_len() <= self.bytes && self.entries.len() < self.count;
        if !fits && !self.entries.is_empty() {
            return false;
        }
        self.bytes = self.bytes.saturating_sub(entry.object_len());
        self.entries.push(Arc::clone(entry));
        true
    }
}

impl Entries {
    /// Returns the objects of a state that a filter selects, from a key on and up to another one.
    pub fn span(past: &Arc<Past>, filter: &Arc<Filter>, from: String, until: Option<Arc<str>>) -> Self {
        let next = Next::Span(Span { filter: Arc::clone(filter), from, until });
        Self { state: State::Whole(Arc::clone(past)), next }
    }

    /// Returns the objects of a state that have these keys, in their order; `charge` is for the keys.
    pub fn keys(past: &Arc<Past>, keys: VecDeque<Arc<str>>, charge: Option<Charge>) -> Self {
        Self {
            state: State::Whole(Arc::clone(past)),
            next: Next::Keys { keys, _charge: charge.map(Arc::new) },
        }
    }

    /// Returns the same objects of the same state in other hands.
    pub fn only(&self, keys: VecDeque<Arc<str>>) -> Self {
        Self { state: self.state.clone(), next: Next::Keys { keys, _charge: None } }
    }

    /// From now on holds the state, which is that of a revision, only as long as the cache has room for it.
    pub fn release(&mut self, caches: &Arc<Caches>, cache: &Arc<Cache>, revision: Revision) {
        if let State::Whole(past) = &self.state {
            let reading = cache.reading(revision, past);
            self.state = State::Reading(Arc::clone(caches), Arc::new(reading));
        }
    }

    /// Returns the next objects, together at most this many bytes or a single one; none at the end. Fails
    /// only after [`release`](Self::release).
    pub fn take(&mut self, bytes: usize) -> Result<Vec<Arc<Entry>>, Forgotten> {
        self.batch(Batch::new(bytes, usize::MAX))
    }

    /// Returns the next entries, no more than `count`, from the store if the state is forgotten.
    pub async fn fetch(&mut self, bytes: usize, count: usize) -> Result<Vec<Arc<Entry>>, StoreError> {
        match self.batch(Batch::new(bytes, count)) {
            Ok(entries) => Ok(entries),
            Err(Forgotten) => self.read_again(Batch::new(bytes, count)).await,
        }
    }

    /// Returns `true` if the last ones have been taken.
    pub fn have_ended(&self) -> bool {
        matches!(self.next, Next::End)
    }

    /// Returns `true` if there are none, as far as this is known.
    pub fn is_empty(&self) -> bool {
        self.clone().take(1).is_ok_and(|entries| entries.is_empty())
    }

    fn batch(&mut self, mut batch: Batch) -> Result<Vec<Arc<Entry>>, Forgotten> {
        if self.have_ended() {
            return Ok(Vec::new());
        }
        let past = match &self.state {
            State::Whole(past) => Arc::clone(past),
            State::Reading(_, reading) => reading.past().ok_or(Forgotten)?,
        };
        let ended = match &mut self.next {
            Next::Span(span) => span.take(&past, &mut batch),
            Next::Keys { keys, .. } => take_keys(keys, &past, &mut batch),
            Next::End => true,
        };
        if ended {
            self.next = Next::End;
        }
        Ok(batch.entries)
    }

    async fn read_again(&mut self, mut batch: Batch) -> Result<Vec<Arc<Entry>>, StoreError> {
        let State::Reading(caches, reading) = &self.state else { return Ok(Vec::new()) };
        let _turn = caches.reads_again().await;
        let ended = match &mut self.next {
            Next::Span(span) => span.read(caches, reading, &mut batch).await?,
            Next::Keys { keys, .. } => read_keys(keys, caches, reading, &mut batch).await?,
            Next::End => true,
        };
        if ended {
            self.next = Next::End;
        }
        Ok(batch.entries)
    }
}

impl Span {
    /// Returns `true` if an object belongs to the span; the span ends with the first that is `None`.
    fn has(&self, entry: &Entry) -> Option<bool> {
        let within = self.until.as_ref().is_none_or(|until| *entry.key <= **until);
        within.then(|| self.filter.is_everything() || self.filter.matches(entry))
    }

    /// `true` at the end.
    fn take(&mut self, past: &Past, batch: &mut Batch) -> bool {
        let next = self.next(past, batch);
        let ended = next.is_none();
        self.from = next.unwrap_or_default();
        ended
    }

    /// Fills the batch; gives the key to go on from, if there may be more.
    fn next(&self, past: &Past, batch: &mut Batch) -> Option<String> {
        let mut last = None;
        for entry in self.filter.range(past, &self.from) {
            if self.has(entry)? && !batch.add(entry) {
                // There is one before it, since an empty batch takes any.
                return Some(last.map_or_else(|| entry.key.to_string(), after));
            }
            last = Some(&*entry.key);
        }
        None
    }

    /// Fills the batch from the store; returns `true` at the end.
    async fn read(
        &mut self,
        caches: &Caches,
        reading: &Reading,
        batch: &mut Batch,
    ) -> Result<bool, StoreError> {
        let cache = reading.cache();
        // Ranges begin behind a key: behind one that is shorter by its last character where this one counts.
        let mut before = self.from.clone();
        before.pop();
        let mut range = Range {
            prefix: format!("{}{}", cache.prefix, self.filter.prefix()),
            after: if before.is_empty() { before } else { format!("{}{before}", cache.prefix) },
            revision: reading.revision(),
            limit: limits::READ_AGAIN,
        };
        loop {
            let mut page = Vec::new();
            let more = caches.read_page(cache, &mut range, &mut page).await?;
            let first = page.partition_point(|entry| *entry.key < *self.from);
            for entry in &page[first..] {
                match self.has(entry) {
                    None => return Ok(true),
                    Some(true) if !batch.add(entry) => return Ok(false),
                    Some(_) => self.from = after(&entry.key),
                }
            }
            if !more || !batch.entries.is_empty() {
                return Ok(!more);
            }
        }
    }
}

/// Returns the first key behind another one.
fn after(key: &str) -> String {
    format!("{key}\0")
}

/// Fills the batch with the objects under `keys`, of a state in memory; returns `true` at the end.
fn take_keys(keys: &mut VecDeque<Arc<str>>, past: &Past, batch: &mut Batch) -> bool {
    while let Some(key) = keys.front() {
        if past.objects.get(&**key).is_some_and(|entry| !batch.add(entry)) {
            return false;
        }
        keys.pop_front();
    }
    true
}

/// Fills the batch with the objects under `keys`, read from the store; returns `true` at the end.
async fn read_keys(
    keys: &mut VecDeque<Arc<str>>,
    caches: &Caches,
    reading: &Reading,
    batch: &mut Batch,
) -> Result<bool, StoreError> {
    let cache = reading.cache();
    while let Some(key) = keys.front() {
        let prefix = format!("{}{key}", cache.prefix);
        let mut range = Range { prefix, revision: reading.revision(), limit: 1, ..Range::default() };
        let mut found = Vec::new();
        caches.read_page(cache, &mut range, &mut found).await?;
        // The key itself is the first of those that begin with it.
        let found = found.first().filter(|entry| entry.key == *key);
        if found.is_some_and(|entry| !batch.add(entry)) {
            return Ok(false);
        }
        keys.pop_front();
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
