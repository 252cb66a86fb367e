//! A log of revisions with compare-and-swap on the mod revision: range at a revision, watch from
//! a revision, compaction, leases. Two implementations, one conformance suite.
//!
//! Invariants, which the suite checks on both:
//! - A revision is a positive 64-bit integer that rises by one with each successful write.
//! - A reply to a write means that it is durable.
//! - A watch delivers every revision of its prefix once and in order, from the revision asked for.
//! - A read without a revision sees every write acknowledged before it began.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod disk;
pub mod embedded;
pub mod etcd;
pub mod limits;
pub mod log_throttle;

use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;

/// A point in the history of the store; 0 means "none" or "now", depending on the argument.
pub type Revision = i64;

/// A key with its value at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: String,
    pub value: Bytes,
    /// Revision of the write that created the key.
    pub create_revision: Revision,
    /// Revision of the newest write of the key.
    pub mod_revision: Revision,
}

/// Result of [`Store::get`].
#[derive(Clone, Debug)]
pub struct Got {
    pub kv: Option<KeyValue>,
    /// Revision of the store at the time of the read.
    pub revision: Revision,
}

/// One page of a range.
#[derive(Clone, Debug)]
pub struct Page {
    /// Keys and values, in byte order of the keys.
    pub kvs: Vec<KeyValue>,
    /// Revision at which the range was read.
    pub revision: Revision,
    /// True if the limit cut off further keys. Their number is not returned, because counting costs more than
    /// the page.
    pub more: bool,
}

/// A range to read.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// Prefix of the keys.
    pub prefix: String,
    /// Returns only keys after this one; empty for all.
    pub after: String,
    /// Revision to read at; 0 for the current one.
    pub revision: Revision,
    /// Maximum number of keys; 0 for unlimited.
    pub limit: usize,
}

/// A write. It is applied only if the key's mod revision is `expected` (0: the key must not exist).
#[derive(Clone, Debug)]
pub struct Write {
    pub key: String,
    pub expected: Revision,
    pub op: Op,
}

#[derive(Clone, Debug)]
pub enum Op {
    /// Set the value; `ttl_seconds` 0 means forever.
    Put {
        value: Bytes,
        ttl_seconds: u32,
    },
    Delete,
}

/// Result of a write.
#[derive(Clone, Debug)]
pub enum Written {
    /// The write is durable, at this revision.
    Done { revision: Revision },
    /// The key has another mod revision; contains its current version (`None` if it does not exist).
    Conflict { current: Option<KeyValue>, revision: Revision },
}

/// A change of one key.
#[derive(Clone, Debug)]
pub struct Event {
    /// Revision of the change.
    pub revision: Revision,
    pub key: String,
    /// New value; `None` if the key was deleted.
    pub value: Option<Bytes>,
    /// Previous value, if there was one.
    pub previous: Option<Bytes>,
    /// Revision of the write that created the key.
    pub create_revision: Revision,
}

/// An item of a watch.
#[derive(Clone, Debug)]
pub enum Notice {
    /// Changes in revision order; a revision is never split over two batches.
    Events(Vec<Event>),
    /// Everything up to this revision has been delivered, and nothing has changed since.
    Progress(Revision),
}

pub type Watch = Pin<Box<dyn Stream<Item = Result<Notice, StoreError>> + Send>>;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The requested revision has been compacted.
    #[error("revision {asked} has been compacted, the oldest kept is {oldest}")]
    Compacted { asked: Revision, oldest: Revision },
    /// The requested revision is in the future.
    #[error("revision {asked} is in the future, the current one is {current}")]
    Future { asked: Revision, current: Revision },
    /// The key or the value is longer than the store accepts; see `limits`.
    #[error("{key}: {bytes} bytes exceed the store's limit of {limit}")]
    TooLarge {
        key: String,
        /// Length of the key or of the value.
        bytes: usize,
        limit: usize,
    },
    /// The store cannot be reached or has stopped; a retry may help.
    #[error("{attempted}: the store is unavailable")]
    Unavailable {
        /// Attempted operation and key.
        attempted: String,
        #[source]
        cause: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The store has reached its quota, and the write would grow it. Deletions make room.
    #[error("{attempted}: {used} bytes are stored, and the quota is {quota}")]
    NoSpace {
        /// Attempted operation and key.
        attempted: String,
        used: u64,
        quota: u64,
    },
    /// The store refused for a reason that is unrelated to key and revision: its space is used up, or the
    /// client lacks permission. Only its operator can help.
    #[error("{attempted}: {why}")]
    Refused {
        /// Attempted operation and key.
        attempted: String,
        /// Message of the store.
        why: String,
    },
    /// The data on disk is invalid, or the disk failed; a retry will not help.
    #[error("{attempted}: {why}")]
    Broken {
        attempted: String,
        why: String,
        #[source]
        cause: Option<std::io::Error>,
    },
}

/// Current and maximum size of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub used: u64,
    pub quota: u64,
}

/// The store behind the API server.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Returns the current version of one key.
    async fn get(&self, key: &str) -> Result<Got, StoreError>;

    /// Returns a page of keys under a prefix.
    async fn list(&self, range: Range) -> Result<Page, StoreError>;

    /// Performs one compare-and-swap.
    async fn write(&self, write: Write) -> Result<Written, StoreError>;

    /// Watches changes under `prefix` from revision `from` on, inclusive; `from` 0 means from the next change
    /// on. `Compacted` is returned as an error of this call or as the stream's last item.
    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError>;

    /// Returns the current revision, after every write acknowledged before the call.
    async fn revision(&self) -> Result<Revision, StoreError>;

    /// Removes versions that were overwritten or deleted at or before `revision`.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;

    /// Requests a `Progress` notice on open watches soon.
    async fn request_progress(&self) -> Result<(), StoreError>;

    /// Returns the size of the store's files in bytes, if known.
    async fn size_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Returns how full the store is, if it has a quota of its own.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// Returns `true` if other programs read and write the same keys, so that values must be in the format that
    /// they expect.
    fn shared(&self) -> bool {
        false
    }
}
