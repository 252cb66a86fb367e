//! Observers within the server of the changes of a cache.

use std::sync::{Arc, OnceLock};

use super::{Cache, Entry, Objects};
use crate::limits;

/// Called by the feed for each change, old and new, before the revision counts as passed. It
/// must be quick and must not come back to the caches.
pub type Observer = Box<dyn Fn(Option<&Entry>, Option<&Entry>) + Send + Sync>;

/// The observers of one cache.
#[derive(Default)]
pub(super) struct Observers {
    first: OnceLock<Observer>,
    second: OnceLock<Observer>,
}

impl Cache {
    /// Sets the observer of every change when it can be read; only the first call counts.
    pub fn observe(&self, observer: Observer) {
        // A second observer would be a mistake of the server's constructor, without harm.
        let _ = self.observers.second.set(observer);
    }

    /// Sets the observer of every change before it can be read or watched; only the first call counts.
    /// Decisions of the observer are never behind the state that a client has seen on this server.
    pub fn observe_first(&self, observer: Observer) {
        // A second call has no effect, see `observe`.
        let _ = self.observers.first.set(observer);
    }
}

impl Observers {
    /// Tells of a change that is about to be seen.
    pub(super) fn before(&self, old: Option<&Entry>, new: Option<&Entry>) {
        notify(&self.first, old, new);
    }

    /// Tells of a change that can be seen.
    pub(super) fn after(&self, old: Option<&Entry>, new: Option<&Entry>) {
        notify(&self.second, old, new);
    }

    /// [`Observers::before`] for each object of a whole state.
    pub(super) fn before_all(&self, before: &Objects, entries: &[Arc<Entry>]) {
        if self.first.get().is_none() {
            return;
        }
        let notify_each = |entries: &[Arc<Entry>]| {
            for entry in entries {
                self.before(before.get(&*entry.key).map(|old| &**old), Some(entry));
            }
        };
        if entries.len() < limits::LOAD_ALONE {
            return notify_each(entries);
        }
        // A start waits for this.
        let (one, other) = entries.split_at(entries.len() / 2);
        std::thread::scope(|scope| {
            #[expect(
                clippy::disallowed_methods,
                reason = "joined at once, and what comes out is the same on one thread"
            )]
            let first = scope.spawn(|| notify_each(one));
            notify_each(other);
            first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }
}

fn notify(observer: &OnceLock<Observer>, old: Option<&Entry>, new: Option<&Entry>) {
    if let Some(observer) = observer.get() {
        observer(old, new);
    }
}
