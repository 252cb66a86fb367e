//! Watches: first the changes in the history, read from a copy of the state, then the changes that the
//! committer dispatches. A watcher that does not keep up is cut off; the committer never waits.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures::Stream;

use super::Shared;
use super::index::{Change, Index};
use crate::limits::{WATCH_BATCH_EVENTS, WATCH_BUFFER_EVENTS, WATCH_SCAN_CHANGES, WATCHES};
use crate::{Notice, Revision, StoreError};

/// The open watches, by prefix.
#[derive(Default)]
pub(super) struct Registry {
    by_prefix: BTreeMap<String, Vec<Arc<Watcher>>>,
    count: usize,
}

/// An open watch, as seen by the committer.
pub(super) struct Watcher {
    prefix: String,
    /// First revision that is wanted.
    from: Revision,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    changes: VecDeque<Arc<Change>>,
    /// Revision for which a progress notice was requested.
    progress: Option<Revision>,
    /// True if the watcher was too slow and its queue was dropped.
    cut: bool,
    /// True if the store has stopped.
    ended: bool,
    waker: Option<Waker>,
}

impl Watcher {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while holding the lock, so a poisoned queue is consistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue and wakes the reader.
    fn update(&self, change: impl FnOnce(&mut Queue)) {
        let waker = {
            let mut queue = self.queue();
            change(&mut queue);
            queue.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Registry {
    /// Dispatches changes to the watches of their keys.
    pub(super) fn dispatch(&self, changes: &[Arc<Change>]) {
        let mut matching = Vec::new();
        for (prefix, watchers) in &self.by_prefix {
            matching.clear();
            matching.extend(changes.iter().filter(|change| change.key.starts_with(prefix.as_str())));
            if matching.is_empty() {
                continue;
            }
            for watcher in watchers {
                watcher.update(|queue| queue.take_in(&matching, watcher.from));
            }
        }
    }

    /// Requests a notice from every watch that it has everything up to `revision`.
    pub(super) fn progress(&self, revision: Revision) {
        for watcher in self.by_prefix.values().flatten().filter(|watcher| watcher.from <= revision + 1) {
            watcher.update(|queue| queue.progress = Some(revision));
        }
    }

    /// Ends every watch.
    pub(super) fn end(&mut self) {
        for watcher in std::mem::take(&mut self.by_prefix).into_values().flatten() {
            watcher.update(|queue| queue.ended = true);
        }
        self.count = 0;
    }

    /// Returns the number of open watches.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    fn add(&mut self, watcher: &Arc<Watcher>) {
        self.by_prefix.entry(watcher.prefix.clone()).or_default().push(Arc::clone(watcher));
        self.count += 1;
    }

    fn remove(&mut self, watcher: &Arc<Watcher>) {
        let Some(watchers) = self.by_prefix.get_mut(&watcher.prefix) else { return };
        let before = watchers.len();
        watchers.retain(|other| !Arc::ptr_eq(other, watcher));
        self.count -= before - watchers.len();
        if watchers.is_empty() {
            self.by_prefix.remove(&watcher.prefix);
        }
    }
}

impl Queue {
    fn take_in(&mut self, changes: &[&Arc<Change>], from: Revision) {
        if self.cut {
            return;
        }
        self.changes
            .extend(changes.iter().filter(|change| change.revision >= from).map(|change| Arc::clone(change)));
        if self.changes.len() > WATCH_BUFFER_EVENTS {
            self.cut = true;
            self.changes = VecDeque::new();
        }
    }
}

/// The reader's end of a watch.
pub(super) struct WatchStream {
    shared: Arc<Shared>,
    watcher: Arc<Watcher>,
    /// The state at the beginning and the next revision to visit, while catching up.
    past: Option<(Arc<Index>, Revision)>,
    done: bool,
}

impl WatchStream {
    /// Opens a watch; `from` 0 begins at the next change.
    pub(super) fn open(shared: &Arc<Shared>, prefix: &str, from: Revision) -> Result<Self, StoreError> {
        // The committer publishes and dispatches under this lock, so nothing is missed between the copy of
        // the state and the queue.
        let mut registry = shared.registry();
        shared.check(|| format!("watch {prefix}"))?;
        let index = shared.view();
        let from = if from == 0 { index.revision + 1 } else { from };
        if from <= index.compacted {
            return Err(StoreError::Compacted { asked: from, oldest: index.compacted + 1 });
        }
        if registry.count >= WATCHES {
            tracing::warn!(limit = WATCHES, "too many watches");
            return Err(StoreError::Unavailable { attempted: format!("watch {prefix}"), cause: None });
        }
        let watcher = Arc::new(Watcher { prefix: prefix.to_owned(), from, queue: Mutex::default() });
        registry.add(&watcher);
        drop(registry);
        let past = (from <= index.revision).then_some((index, from));
        Ok(Self { shared: Arc::clone(shared), watcher, past, done: false })
    }

    /// Returns the next batch from the history. An empty one means a long stretch without matching changes,
    /// and more may follow; `None` means caught up.
    fn catch_up(&mut self) -> Option<Vec<Arc<Change>>> {
        let (index, next) = self.past.as_mut()?;
        let mut batch = Vec::new();
        let mut looked_at = 0;
        for change in index.changes_from(*next) {
            looked_at += 1;
            *next = change.revision + 1;
            if change.key.starts_with(&self.watcher.prefix) {
                batch.push(Arc::clone(change));
            }
            if batch.len() >= WATCH_BATCH_EVENTS || looked_at >= WATCH_SCAN_CHANGES {
                return Some(batch);
            }
        }
        self.past = None;
        if batch.is_empty() { None } else { Some(batch) }
    }

    fn live(&mut self, context: &Context<'_>) -> Poll<Option<Result<Notice, StoreError>>> {
        let mut queue = self.watcher.queue();
        if queue.cut {
            drop(queue);
            self.done = true;
            tracing::warn!(prefix = self.watcher.prefix, "closed a watch that did not keep up");
            let attempted =
                format!("watch {}: too slow, {WATCH_BUFFER_EVENTS} changes unread", self.watcher.prefix);
            return Poll::Ready(Some(Err(StoreError::Unavailable { attempted, cause: None })));
        }
        if !queue.changes.is_empty() {
            let count = queue.changes.len().min(WATCH_BATCH_EVENTS);
            let events = queue.changes.drain(..count).map(|change| change.event()).collect();
            return Poll::Ready(Some(Ok(Notice::Events(events))));
        }
        if let Some(revision) = queue.progress.take() {
            return Poll::Ready(Some(Ok(Notice::Progress(revision))));
        }
        if queue.ended {
            drop(queue);
            self.done = true;
            return Poll::Ready(Some(Err(self.shared.end_error(&format!("watch {}", self.watcher.prefix)))));
        }
        queue.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Stream for WatchStream {
    type Item = Result<Notice, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        match self.catch_up() {
            Some(batch) if batch.is_empty() => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Some(batch) => {
                let events = batch.iter().map(|change| change.event()).collect();
                Poll::Ready(Some(Ok(Notice::Events(events))))
            }
            None => self.live(context),
        }
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.shared.registry().remove(&self.watcher);
    }
}
