//! Helpers for the tests.

use std::sync::Arc;

use apiserver_store::disk::{Disk, SimDisk};
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Event, Notice, Op, Revision, Store, StoreError, Write, Written};
use bytes::Bytes;
use futures::StreamExt;

/// Returns sizes so small that segments, checkpoints and compaction all occur within a few writes.
pub fn small() -> Options {
    Options {
        segment_bytes: 4_096,
        checkpoint_bytes: 8_192,
        history_revisions: 60,
        history_bytes: 64 << 10,
        ..Options::default()
    }
}

pub async fn open(disk: &SimDisk, options: Options) -> Result<Embedded, StoreError> {
    Embedded::open(Arc::new(disk.clone()) as Arc<dyn Disk>, options).await
}

pub fn put_of(key: &str, value: impl Into<Bytes>, expected: Revision) -> Write {
    Write { key: key.to_owned(), expected, op: Op::Put { value: value.into(), ttl_seconds: 0 } }
}

/// Writes unconditionally.
pub async fn put(store: &Embedded, key: &str, value: impl Into<Bytes>) -> Result<Revision, StoreError> {
    let expected = store.get(key).await?.kv.map_or(0, |kv| kv.mod_revision);
    match store.write(put_of(key, value, expected)).await? {
        Written::Done { revision } => Ok(revision),
        conflict @ Written::Conflict { .. } => panic!("{conflict:?}"),
    }
}

/// Returns every event in the history.
pub async fn history(store: &Embedded) -> Vec<Event> {
    let stats = store.stats();
    let from = stats.compacted.max(1) + 1;
    let count = (stats.revision + 1 - from) as usize;
    let mut watch = store.watch("", from).await.unwrap();
    let mut events = Vec::new();
    while events.len() < count {
        match watch.next().await.unwrap().unwrap() {
            Notice::Events(batch) => events.extend(batch),
            Notice::Progress(_) => {}
        }
    }
    events
}

/// A repeatable sequence of random numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1)
    }

    /// Returns the next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// Runs a test on one thread with a paused clock.
pub fn on_one_thread<T>(test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(test)
}
