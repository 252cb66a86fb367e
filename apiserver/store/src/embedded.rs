//! The embedded store: a write-ahead log with group commit and an in-memory index.
//!
//! One committer owns the log and the newest state. After each group it publishes an immutable copy of the
//! state, which reads and catching-up watches use without locks. The layout on disk is described in
//! `docs/store.md`.

mod backup;
mod checkpoint;
mod commit;
mod control;
mod expiry;
mod index;
mod log;
mod prefetch;
mod quota;
mod record;
mod recovery;
mod verify;
mod watch;

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

pub use backup::{Restored, Snapshot, SnapshotInfo, restore_directory, snapshot_directory};
pub use control::{Control, is_served, restore_running};
pub use verify::{Problem, Report, verify_directory, verify_snapshot};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use self::commit::{Checkpoints, Committer, Message};
use self::expiry::Deadlines;
use self::index::Index;
use self::watch::{Registry, WatchStream};
use crate::disk::{DirectoryLock, Disk};
use crate::limits::{
    KEY_BYTES, LIST_PART_KEYS, QUOTA_BYTES, SEGMENT_MIN_BYTES, TTL_SECONDS, VALUE_BYTES, WRITE_QUEUE,
};
use crate::log_throttle::LogThrottle;
use crate::{Got, Op, Page, Range, Revision, Store, StoreError, Usage, Watch, Write, Written};

/// Increment of the revision in a restore if it is unknown which revisions have been seen before: more than a
/// store that writes a thousand times per second needs in eleven days.
pub(super) const UNKNOWN_BUMP: Revision = 1_000_000_000;

/// Sizes and limits of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of a log segment in bytes; at least 4 KiB. A larger group of writes gets a segment of the size
    /// that it needs.
    pub segment_bytes: u64,
    /// A checkpoint is taken once the log has grown by this many bytes, or by the size of the last checkpoint
    /// if that is larger, and something was compacted in the meantime.
    pub checkpoint_bytes: u64,
    /// Number of revisions that stay readable and watchable; older ones are compacted automatically.
    pub history_revisions: u64,
    /// Bytes of keys and values that the history may hold in addition to the current state.
    pub history_bytes: u64,
    /// Bytes of the current state: keys, values and `limits::KEY_OVERHEAD` for each key.
    pub quota_bytes: u64,
    /// Prefixes of keys that may be written beyond the quota, up to `limits::reserve` more: those that the
    /// system needs to stay alive.
    pub vital: Vec<String>,
}

impl Default for Options {
    /// Keeps the log below about 256 MiB besides the checkpoint: 64 MiB until one is due, and at most 128 MiB
    /// of history.
    fn default() -> Self {
        Self {
            segment_bytes: 16 << 20,
            checkpoint_bytes: 64 << 20,
            history_revisions: 200_000,
            history_bytes: 128 << 20,
            quota_bytes: QUOTA_BYTES,
            vital: Vec::new(),
        }
    }
}

/// Statistics for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Newest revision.
    pub revision: Revision,
    /// Compaction point.
    pub compacted: Revision,
    /// Number of existing keys.
    pub keys: u64,
    /// Bytes that count towards the quota.
    pub used: u64,
    /// Number of changes in the history.
    pub history: u64,
    /// Bytes of keys, values and structure in the history.
    pub history_bytes: u64,
    /// Size of the log in bytes.
    pub log_bytes: u64,
    /// Number of open watches.
    pub watches: usize,
}

/// The embedded store. Clones share it. When the last one is dropped the store closes as soon as all
/// submitted requests are done; `close` waits for that.
#[derive(Clone)]
pub struct Embedded {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    sender: mpsc::Sender<Message>,
    expiry: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.expiry.abort();
    }
}

/// State shared by the committer, the expiry task, the watches and the callers.
pub(crate) struct Shared {
    /// The durable state.
    view: ArcSwap<Index>,
    /// Locked while the view is replaced and its changes are dispatched, so that a new watch sees both or
    /// neither.
    registry: Mutex<Registry>,
    deadlines: Mutex<Deadlines>,
    /// Wakes the expiry task when the earliest deadline has moved forward.
    deadline_changed: Notify,
    log_bytes: AtomicU64,
    quota: u64,
    /// Set once when the store stops.
    end: OnceLock<End>,
}

enum End {
    Closed,
    Failed { why: String, kind: ErrorKind, cause: String },
}

impl Shared {
    fn new(index: Index, quota: u64) -> Self {
        Self {
            view: ArcSwap::from_pointee(index),
            registry: Mutex::default(),
            deadlines: Mutex::default(),
            deadline_changed: Notify::new(),
            log_bytes: AtomicU64::new(0),
            quota,
            end: OnceLock::new(),
        }
    }

    fn view(&self) -> Arc<Index> {
        self.view.load_full()
    }

    fn set_view(&self, index: Index, log_bytes: u64) {
        self.view.store(Arc::new(index));
        self.log_bytes.store(log_bytes, Ordering::Relaxed);
    }

    // Nothing panics while holding one of these locks, so a poisoned state is consistent.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deadlines(&self) -> MutexGuard<'_, Deadlines> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, why: &str, error: &io::Error) {
        let end = End::Failed { why: why.to_owned(), kind: error.kind(), cause: error.to_string() };
        // The first reason is kept.
        let _ = self.end.set(end);
    }

    fn close(&self) {
        let _ = self.end.set(End::Closed);
    }

    fn failed(&self) -> bool {
        matches!(self.end.get(), Some(End::Failed { .. }))
    }

    /// Fails if the store has stopped.
    fn check(&self, attempted: impl FnOnce() -> String) -> Result<(), StoreError> {
        if self.end.get().is_none() { Ok(()) } else { Err(self.end_error(&attempted())) }
    }

    /// Returns the error that says why the store no longer answers.
    fn end_error(&self, attempted: &str) -> StoreError {
        let attempted = attempted.to_owned();
        match self.end.get() {
            Some(End::Failed { why, kind, cause }) => StoreError::Broken {
                attempted,
                why: why.clone(),
                cause: Some(io::Error::new(*kind, cause.clone())),
            },
            Some(End::Closed) | None => {
                StoreError::Unavailable { attempted, cause: Some("it is closed".into()) }
            }
        }
    }
}

impl Embedded {
    /// Opens the store in a directory, initializing an empty one. Fails with `Broken` if the directory is in
    /// use, has another format, or contains damaged data.
    pub async fn open(disk: Arc<dyn Disk>, mut options: Options) -> Result<Self, StoreError> {
        options.segment_bytes = options.segment_bytes.max(SEGMENT_MIN_BYTES);
        let place = disk.describe();
        let opening = || open_directory(&disk, &options);
        let (lock, recovered) = if disk.blocks() {
            let (disk, options) = (Arc::clone(&disk), options.clone());
            tokio::task::spawn_blocking(move || open_directory(&disk, &options)).await.map_err(
                |error| broken(&place, "the recovery was interrupted", Some(io::Error::other(error))),
            )??
        } else {
            opening()?
        };
        let shared = Arc::new(Shared::new(recovered.index.clone(), options.quota_bytes));
        shared.log_bytes.store(recovered.log.bytes(), Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel(WRITE_QUEUE);
        record_deadlines(&shared, &recovered.index);
        let committer = Committer {
            shared: Arc::clone(&shared),
            disk: Arc::clone(&disk),
            options,
            checkpoints: Checkpoints {
                newest: recovered.checkpoint,
                bytes: recovered.checkpoint_bytes,
                appended: recovered.log.bytes(),
                running: None,
            },
            log: recovered.log,
            index: recovered.index,
            receiver,
            lock,
            refused: LogThrottle::default(),
            no_space: LogThrottle::default(),
        };
        if disk.blocks() {
            #[expect(clippy::disallowed_methods, reason = "a disk that does not block needs none")]
            std::thread::Builder::new()
                .name("store-commit".to_owned())
                .spawn(move || committer.run_blocking())
                .map_err(|error| broken(&place, "cannot start the committer", Some(error)))?;
        } else {
            tokio::spawn(committer.run_inline());
        }
        let expiry = tokio::spawn(expiry::run(Arc::clone(&shared), sender.downgrade())).abort_handle();
        Ok(Self { inner: Arc::new(Inner { shared, sender, expiry }) })
    }

    /// Completes submitted requests, releases the directory and ends all watches. Later calls return
    /// `Unavailable`.
    pub async fn close(&self) -> Result<(), StoreError> {
        let (reply, closed) = oneshot::channel();
        if self.inner.sender.send(Message::Close { reply }).await.is_ok() {
            // The committer ends either way; a failure is reported below.
            let _ = closed.await;
        }
        if self.inner.shared.failed() { Err(self.inner.shared.end_error("close the store")) } else { Ok(()) }
    }

    /// Writes a checkpoint of the compaction point now and removes the log before it; returns the revision of
    /// the newest checkpoint, 0 if nothing was ever compacted.
    pub async fn checkpoint(&self) -> Result<Revision, StoreError> {
        let (reply, answer) = oneshot::channel();
        let stopped = || self.inner.shared.end_error("take a checkpoint");
        self.inner.sender.send(Message::Checkpoint { reply }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Makes the current state equal to a snapshot: keys that differ are set, keys that it does not contain
    /// are removed, as ordinary changes after the current revision that watches see. Either all of them are
    /// durable or, if the store dies before this returns, perhaps none.
    pub async fn restore(&self, snapshot: Snapshot) -> Result<Restored, StoreError> {
        let (reply, answer) = oneshot::channel();
        let stopped = || self.inner.shared.end_error("restore");
        let content = Box::new(snapshot.into_index());
        self.inner.sender.send(Message::Restore { content, reply }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    /// Returns statistics for metrics.
    pub fn stats(&self) -> Stats {
        let shared = &self.inner.shared;
        let index = shared.view();
        Stats {
            revision: index.revision,
            compacted: index.compacted,
            keys: index.live,
            used: index.live_bytes,
            history: index.history_len(),
            history_bytes: index.history_bytes,
            log_bytes: shared.log_bytes.load(Ordering::Relaxed),
            watches: shared.registry().len(),
        }
    }
}

fn open_directory(
    disk: &Arc<dyn Disk>,
    options: &Options,
) -> Result<(DirectoryLock, recovery::Recovered), StoreError> {
    let place = disk.describe();
    let lock = disk.lock().map_err(|error| match error {
        crate::disk::LockError::InUse { .. } => broken(&place, error.to_string(), None),
        crate::disk::LockError::Io(cause) => broken(&place, "cannot create the lock file", Some(cause)),
    })?;
    let recovered = recovery::recover(disk, options)?;
    Ok((lock, recovered))
}

fn broken(place: &str, why: impl Into<String>, cause: Option<io::Error>) -> StoreError {
    StoreError::Broken { attempted: format!("open the store in {place}"), why: why.into(), cause }
}

/// Restarts all times to live, as etcd does when its leader changes: a clock that only runs within a process
/// cannot tell how long the store was down.
fn record_deadlines(shared: &Shared, index: &Index) {
    let mut deadlines = shared.deadlines();
    for change in index.live_changes().filter(|change| change.ttl_seconds > 0) {
        deadlines.record(change, Some(deadline(change.ttl_seconds)));
    }
}

fn deadline(ttl_seconds: u32) -> Instant {
    Instant::now() + Duration::from_secs(u64::from(ttl_seconds.min(TTL_SECONDS)))
}

/// Refuses keys and values that are larger than the store accepts.
pub(crate) fn check_size(write: &Write) -> Result<(), StoreError> {
    let too_large = |bytes, limit| StoreError::TooLarge { key: write.key.clone(), bytes, limit };
    if write.key.len() > KEY_BYTES {
        return Err(too_large(write.key.len(), KEY_BYTES));
    }
    match &write.op {
        Op::Put { value, .. } if value.len() > VALUE_BYTES => Err(too_large(value.len(), VALUE_BYTES)),
        _ => Ok(()),
    }
}

#[async_trait]
impl Store for Embedded {
    async fn size_bytes(&self) -> Result<Option<u64>, StoreError> {
        Ok(Some(self.stats().log_bytes))
    }

    fn usage(&self) -> Option<Usage> {
        let shared = &self.inner.shared;
        Some(Usage { used: shared.view().live_bytes, quota: shared.quota })
    }

    async fn get(&self, key: &str) -> Result<Got, StoreError> {
        self.inner.shared.check(|| format!("get {key}"))?;
        Ok(self.inner.shared.view().get(key))
    }

    async fn list(&self, range: Range) -> Result<Page, StoreError> {
        self.inner.shared.check(|| format!("list {}", range.prefix))?;
        let index = self.inner.shared.view();
        let mut list = index.list(&range)?;
        while list.advance(LIST_PART_KEYS) {
            tokio::task::yield_now().await;
        }
        Ok(list.page)
    }

    async fn write(&self, write: Write) -> Result<Written, StoreError> {
        check_size(&write)?;
        self.inner.shared.check(|| format!("write {}", write.key))?;
        let deadline = match &write.op {
            Op::Put { ttl_seconds, .. } if *ttl_seconds > 0 => Some(deadline(*ttl_seconds)),
            _ => None,
        };
        commit::submit(&self.inner.shared, &self.inner.sender, write, deadline).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        Ok(Box::pin(WatchStream::open(&self.inner.shared, prefix, from)?))
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.inner.shared.check(|| "read the revision".to_owned())?;
        Ok(self.inner.shared.view().revision)
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let stopped = || self.inner.shared.end_error("compact");
        self.inner.sender.send(Message::Compact { revision, reply }).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    async fn request_progress(&self) -> Result<(), StoreError> {
        self.inner.shared.check(|| "ask for progress".to_owned())?;
        let registry = self.inner.shared.registry();
        let revision = self.inner.shared.view().revision;
        registry.progress(revision);
        Ok(())
    }
}
