//! Creations under way, by definition. The deletion of a definition must not miss an object that is being
//! written while the others are deleted: nothing would delete it later, and it would come back with the next
//! definition of the name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// The number of objects that are being created, by the name of their definition.
#[derive(Default)]
pub struct Creations {
    counts: Mutex<BTreeMap<String, usize>>,
    /// Signals that a definition's last creation has ended.
    ended: Notify,
}

impl Creations {
    /// Counts one until the guard is dropped. Whether it may go on is to be asked after this.
    pub fn begin(self: &Arc<Self>, definition: &str) -> Creating {
        self.change(definition, |count| *count += 1);
        Creating { all: Arc::clone(self), definition: definition.to_owned() }
    }

    /// Waits until all that have begun before, and were not refused, have ended.
    pub async fn none(&self, definition: &str) {
        loop {
            // Registered before the look, so that no end is missed.
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if !self.counts.lock().unwrap_or_else(PoisonError::into_inner).contains_key(definition) {
                return;
            }
            ended.await;
        }
    }

    fn change(&self, definition: &str, change: impl FnOnce(&mut usize)) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(definition.to_owned()).or_default();
        change(count);
        if *count == 0 {
            counts.remove(definition);
            drop(counts);
            self.ended.notify_waiters();
        }
    }
}

/// An object that is being written.
pub struct Creating {
    all: Arc<Creations>,
    definition: String,
}

impl Drop for Creating {
    fn drop(&mut self) {
        self.all.change(&self.definition, |count| *count = count.saturating_sub(1));
    }
}
