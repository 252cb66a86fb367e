//! Expiry of keys with a time to live: a task deletes them like any other writer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Shared;
use super::commit::{Message, submit};
use super::index::Change;
use crate::limits::EXPIRY_BATCH;
use crate::{KeyValue, Op, Revision, StoreError, Write};

/// Delay before a deletion is retried when the disk was full.
const RETRY: Duration = Duration::from_secs(1);

/// Deadlines of keys with a time to live.
#[derive(Default)]
pub(super) struct Deadlines {
    by_time: BTreeSet<(Instant, Arc<str>)>,
    /// Deadline and mod revision of each such key.
    by_key: BTreeMap<Arc<str>, (Instant, Revision)>,
}

impl Deadlines {
    /// Records a change; returns true if the expiry task must be woken.
    pub(super) fn record(&mut self, change: &Change, deadline: Option<Instant>) -> bool {
        if self.by_key.is_empty() && deadline.is_none() {
            return false;
        }
        if let Some((old, _)) = self.by_key.remove(&change.key) {
            self.by_time.remove(&(old, Arc::clone(&change.key)));
        }
        let Some(deadline) = deadline else { return false };
        self.by_key.insert(Arc::clone(&change.key), (deadline, change.revision));
        self.by_time.insert((deadline, Arc::clone(&change.key)));
        self.earliest() == Some(deadline)
    }

    fn earliest(&self) -> Option<Instant> {
        self.by_time.first().map(|(deadline, _)| *deadline)
    }

    fn due(&self, now: Instant) -> Vec<(Arc<str>, Revision)> {
        let due = self.by_time.iter().take_while(|(deadline, _)| *deadline <= now);
        due.take(EXPIRY_BATCH)
            .filter_map(|(_, key)| self.by_key.get(key).map(|(_, revision)| (Arc::clone(key), *revision)))
            .collect()
    }

    /// Returns the deadline of one version of a key.
    pub(super) fn of(&self, kv: &KeyValue) -> Option<Instant> {
        let (deadline, revision) = self.by_key.get(kv.key.as_str())?;
        (*revision == kv.mod_revision).then_some(*deadline)
    }
}

/// Deletes expired keys until the store is dropped or stops.
pub(super) async fn run(shared: Arc<Shared>, sender: mpsc::WeakSender<Message>) {
    loop {
        let earliest = shared.deadlines().earliest();
        match earliest {
            None => shared.deadline_changed.notified().await,
            Some(deadline) if deadline > Instant::now() => {
                tokio::select! {
                    () = tokio::time::sleep_until(deadline) => {}
                    () = shared.deadline_changed.notified() => {}
                }
            }
            Some(_) => {
                let due = shared.deadlines().due(Instant::now());
                let Some(sender) = sender.upgrade() else { return };
                match delete(&shared, &sender, due).await {
                    Ok(()) => {}
                    Err(StoreError::Unavailable { .. }) if shared.check(String::new).is_ok() => {
                        drop(sender);
                        tokio::time::sleep(RETRY).await;
                    }
                    Err(_) => return,
                }
            }
        }
    }
}

/// Deletes a key. A conflict means that it has been written again, which is fine.
async fn delete(
    shared: &Shared,
    sender: &mpsc::Sender<Message>,
    due: Vec<(Arc<str>, Revision)>,
) -> Result<(), StoreError> {
    let writes = due.into_iter().map(|(key, expected)| {
        let write = Write { key: key.to_string(), expected, op: Op::Delete };
        submit(shared, sender, write, None)
    });
    futures::future::try_join_all(writes).await?;
    Ok(())
}
