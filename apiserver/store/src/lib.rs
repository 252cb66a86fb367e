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
pub mod series;

use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;

/// A point in the history of the store; 0 means "none" or "now", as the argument says.
pub type Revision = i64;

/// A key with its value at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    pub key: String,
    pub value: Bytes,
    /// Revision of the write that brought the key into being.
    pub create_revision: Revision,
    /// Revision of the newest write of the key.
    pub mod_revision: Revision,
}

/// What `get` answers.
#[derive(Clone, Debug)]
pub struct Got {
    pub kv: Option<KeyValue>,
    /// The store's revision at the read.
    pub revision: Revision,
}

/// One page of a range.
#[derive(Clone, Debug)]
pub struct Page {
    /// In the order of keys (bytes).
    pub kvs: Vec<KeyValue>,
    /// The revision that the range was read at.
    pub revision: Revision,
    /// Whether the limit cut off further keys. How many is not said: to count them costs more than the page.
    pub more: bool,
}

/// A range to read.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// Keys that begin with this.
    pub prefix: String,
    /// Only keys after this one; empty for all.
    pub after: String,
    /// 0 for the present, otherwise exactly that revision.
    pub revision: Revision,
    /// 0 for no limit.
    pub limit: usize,
}

/// One write. It happens only if the key's mod revision is `expected` (0: the key must not exist).
#[derive(Clone, Debug)]
pub struct Write {
    pub key: String,
    pub expected: Revision,
    pub op: Op,
}

#[derive(Clone, Debug)]
pub enum Op {
    /// Set the value; `ttl_seconds` 0 means for ever.
    Put {
        value: Bytes,
        ttl_seconds: u32,
    },
    Delete,
}

/// How a write ended.
#[derive(Clone, Debug)]
pub enum Written {
    /// Durable, at this revision.
    Done { revision: Revision },
    /// The key's mod revision is another; here is what it holds (`None`: it does not exist).
    Conflict { current: Option<KeyValue>, revision: Revision },
}

/// A change of one key.
#[derive(Clone, Debug)]
pub struct Event {
    /// The revision of the change.
    pub revision: Revision,
    pub key: String,
    /// `None`: deleted.
    pub value: Option<Bytes>,
    /// The value before, where there was one.
    pub previous: Option<Bytes>,
    /// Revision of the write that brought the key into being.
    pub create_revision: Revision,
}

/// What a watch yields.
#[derive(Clone, Debug)]
pub enum Notice {
    /// Changes, in the order of their revisions; a batch never cuts a revision in two.
    Events(Vec<Event>),
    /// Everything up to this revision has been delivered, and nothing has changed since.
    Progress(Revision),
}

pub type Watch = Pin<Box<dyn Stream<Item = Result<Notice, StoreError>> + Send>>;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The revision asked for is gone.
    #[error("revision {asked} has been compacted, the oldest kept is {oldest}")]
    Compacted { asked: Revision, oldest: Revision },
    /// The revision asked for has not happened yet.
    #[error("revision {asked} is in the future, the present one is {current}")]
    Future { asked: Revision, current: Revision },
    /// The key or the value is longer than the store takes; see `limits`.
    #[error("{key}: {bytes} bytes are more than the {limit} that the store takes")]
    TooLarge {
        key: String,
        /// Length of the key or of the value.
        bytes: usize,
        limit: usize,
    },
    /// The store cannot be reached or has stopped; trying again may help.
    #[error("{attempted}: the store is unavailable")]
    Unavailable {
        /// What was attempted, on which key.
        attempted: String,
        #[source]
        cause: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The store holds as much as it may, and the write would add to that. Deletions make room.
    #[error("{attempted}: {used} bytes are stored, and no more than {quota} may be")]
    NoSpace {
        /// What was attempted, on which key.
        attempted: String,
        used: u64,
        quota: u64,
    },
    /// The store answered that it will not, for a reason that is neither the key's nor the revision's:
    /// its space is used up, or the client has no permission. Only its operator can help.
    #[error("{attempted}: {why}")]
    Refused {
        /// What was attempted, on which key.
        attempted: String,
        /// In the words of the store.
        why: String,
    },
    /// The data on disk is not what it should be, or the disk refused; trying again won't help.
    #[error("{attempted}: {why}")]
    Broken {
        attempted: String,
        why: String,
        #[source]
        cause: Option<std::io::Error>,
    },
}

/// How much a store holds, and how much it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub used: u64,
    pub quota: u64,
}

/// The store behind the apiserver.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// One key, at the present revision.
    async fn get(&self, key: &str) -> Result<Got, StoreError>;

    /// A page of keys under a prefix.
    async fn list(&self, range: Range) -> Result<Page, StoreError>;

    /// One compare-and-swap.
    async fn write(&self, write: Write) -> Result<Written, StoreError>;

    /// Changes under `prefix` from revision `from` on, that one included; `from` 0 means from the
    /// next one on. `Compacted` comes as an error of this call or as the stream's last item.
    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError>;

    /// The present revision, after every write acknowledged before the call.
    async fn revision(&self) -> Result<Revision, StoreError>;

    /// Forgets what was overwritten or deleted at or before `revision`.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;

    /// Asks for a `Progress` notice on open watches soon.
    async fn request_progress(&self) -> Result<(), StoreError>;

    /// Bytes that the store's files take, where that is known.
    async fn size_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// How full the store is, where it bounds that itself.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// Whether others read and write the same keys, so that values must be what they expect.
    fn shared(&self) -> bool {
        false
    }
}
