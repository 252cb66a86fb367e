//! The committer: collects the waiting requests into a group, decides each on the state that
//! the ones before it leave, makes the group durable, publishes the state, answers.
//!
//! ```text
//! write() ──▶ queue ──▶ stage ──▶ append + sync ──▶ publish ──▶ watchers
//!    ▲                                                 │
//!    └──────────────────── answers ◀───────────────────┘
//! ```

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::backup::Restored;
use super::index::{Change, Index, weight};
use super::log::{AppendError, Log};
use super::record::{self, Body};
use super::{Options, Shared, checkpoint, quota};
use crate::disk::{DirectoryLock, Disk};
use crate::limits::{GROUP_BYTES, GROUP_REQUESTS};
use crate::log_throttle::LogThrottle;
use crate::{KeyValue, Op, Revision, StoreError, Write, Written};

/// Changes that compaction frees between two groups, which takes about a millisecond.
const SCRUB: usize = 1_024;
/// Changes that an automatic compaction drops at a time.
const COMPACT_STEP: u64 = 4_096;
/// Number of complete segments at which a checkpoint is worthwhile, however small they are.
const MANY_SEGMENTS: usize = 64;

/// A request to the committer.
pub(super) enum Message {
    Write {
        write: Write,
        deadline: Option<Instant>,
        reply: oneshot::Sender<Result<Written, StoreError>>,
    },
    Compact {
        revision: Revision,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    Checkpoint {
        reply: oneshot::Sender<Result<Revision, StoreError>>,
    },
    /// Makes the current state equal to this one, by changes in one group.
    Restore {
        content: Box<Index>,
        reply: oneshot::Sender<Result<Restored, StoreError>>,
    },
    Close {
        reply: oneshot::Sender<()>,
    },
}

impl Message {
    fn bytes(&self) -> usize {
        match self {
            Self::Write { write: Write { op: Op::Put { value, .. }, .. }, .. } => value.len(),
            _ => 0,
        }
    }
}

/// Submits a write to the committer and waits for the answer.
pub(super) async fn submit(
    shared: &Shared,
    sender: &mpsc::Sender<Message>,
    write: Write,
    deadline: Option<Instant>,
) -> Result<Written, StoreError> {
    let key = write.key.clone();
    let (reply, answer) = oneshot::channel();
    let stopped = || shared.end_error(&format!("write {key}"));
    sender.send(Message::Write { write, deadline, reply }).await.map_err(|_| stopped())?;
    answer.await.map_err(|_| stopped())?
}

/// An answer that is sent once the group is durable.
enum Answer {
    Written(Result<Written, StoreError>, oneshot::Sender<Result<Written, StoreError>>, String),
    Compacted(Result<(), StoreError>, oneshot::Sender<Result<(), StoreError>>),
    Restored(Restored, oneshot::Sender<Result<Restored, StoreError>>),
}

/// The effects of a group.
#[derive(Default)]
struct Staged {
    records: Vec<u8>,
    /// Offset in `records` at which each record begins.
    starts: Vec<usize>,
    changes: Vec<(Arc<Change>, Option<Instant>)>,
    answers: Vec<Answer>,
}

pub(super) struct Committer {
    pub(super) shared: Arc<Shared>,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) options: Options,
    pub(super) log: Log,
    /// The state including staged changes; the published state is what is durable.
    pub(super) index: Index,
    pub(super) receiver: mpsc::Receiver<Message>,
    /// Released when the committer ends.
    pub(super) lock: DirectoryLock,
    pub(super) checkpoints: Checkpoints,
    /// Limits log messages about groups that failed because the disk is full.
    pub(super) refused: LogThrottle,
    /// Limits log messages about writes that failed because the store is full.
    pub(super) no_space: LogThrottle,
}

/// Decides when the next checkpoint is due.
pub(super) struct Checkpoints {
    /// Revision of the newest checkpoint.
    pub(super) newest: Revision,
    /// Size of the newest checkpoint in bytes.
    pub(super) bytes: u64,
    /// Bytes appended to the log since that checkpoint was begun.
    pub(super) appended: u64,
    /// The checkpoint that is being written on a thread of its own.
    pub(super) running: Option<JoinHandle<io::Result<checkpoint::CheckpointInfo>>>,
}

impl Committer {
    /// Runs on a thread of its own until the store is closed or dropped.
    pub(super) fn run_blocking(mut self) {
        let mut closing = None;
        while closing.is_none() {
            let first = if self.index.scrub_pending() {
                match self.receiver.try_recv() {
                    Ok(message) => Some(message),
                    Err(mpsc::error::TryRecvError::Empty) => {
                        self.scrub();
                        continue;
                    }
                    Err(mpsc::error::TryRecvError::Disconnected) => None,
                }
            } else {
                self.receiver.blocking_recv()
            };
            let Some(first) = first else { break };
            let (mut staged, close) = self.stage_group(first);
            closing = close;
            let result = self.make_durable(&mut staged);
            if !self.conclude(staged, result) {
                break;
            }
        }
        self.finish(closing);
    }

    /// Like `run_blocking`, inside the async runtime, for a disk that never waits.
    pub(super) async fn run_inline(mut self) {
        let mut closing = None;
        while closing.is_none() {
            let Some(first) = self.receiver.recv().await else { break };
            let (mut staged, close) = self.stage_group(first);
            closing = close;
            let result = self.make_durable(&mut staged);
            let sync_time = self.disk.sync_time();
            if sync_time > Duration::ZERO && !staged.records.is_empty() {
                tokio::time::sleep(sync_time).await;
            }
            if !self.conclude(staged, result) {
                break;
            }
            while self.index.scrub_pending() {
                self.scrub();
                tokio::task::yield_now().await;
            }
        }
        self.finish(closing);
    }

    /// Collects the waiting requests, up to the limits of a group. A request to close ends the group.
    fn stage_group(&mut self, first: Message) -> (Staged, Option<oneshot::Sender<()>>) {
        let mut staged = Staged::default();
        let (mut next, mut count, mut bytes) = (Some(first), 0, 0);
        while let Some(message) = next {
            count += 1;
            bytes += message.bytes();
            match message {
                Message::Write { write, deadline, reply } => {
                    let key = write.key.clone();
                    let written = self.stage_write(&mut staged, write, deadline);
                    staged.answers.push(Answer::Written(written, reply, key));
                }
                Message::Compact { revision, reply } => {
                    let result = self.index.check_compaction(revision);
                    if result.is_ok() {
                        self.stage_compaction(&mut staged, revision);
                    }
                    staged.answers.push(Answer::Compacted(result, reply));
                }
                Message::Checkpoint { reply } => self.checkpoint_on_request(reply),
                Message::Restore { content, reply } => {
                    let restored = self.stage_restore(&mut staged, &content);
                    staged.answers.push(Answer::Restored(restored, reply));
                    bytes = staged.records.len();
                }
                Message::Close { reply } => return (staged, Some(reply)),
            }
            let full = count >= GROUP_REQUESTS || bytes >= GROUP_BYTES;
            next = if full { None } else { self.receiver.try_recv().ok() };
        }
        self.compact_if_large(&mut staged);
        (staged, None)
    }

    fn stage_write(
        &mut self,
        staged: &mut Staged,
        write: Write,
        deadline: Option<Instant>,
    ) -> Result<Written, StoreError> {
        let current = self.index.get(&write.key);
        let mod_revision = current.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        if mod_revision != write.expected {
            return Ok(Written::Conflict { current: current.kv, revision: current.revision });
        }
        if let Op::Put { value, .. } = &write.op {
            self.check_quota(&write.key, value.len(), current.kv.map(|kv| kv.value.len()))?;
        }
        let revision = match write.op {
            Op::Put { value, ttl_seconds } => {
                self.stage_put(staged, &write.key, value, (ttl_seconds, deadline))
            }
            // Deleting a missing key succeeds and creates no revision, as in etcd.
            Op::Delete => self.stage_delete(staged, &write.key).unwrap_or(self.index.revision),
        };
        Ok(Written::Done { revision })
    }

    /// Refuses a value that would grow a full store. `old` is the length of the current value.
    fn check_quota(&mut self, key: &str, new: usize, old: Option<usize>) -> Result<(), StoreError> {
        let quota = self.options.quota_bytes;
        let vital = self.options.vital.iter().any(|prefix| key.starts_with(prefix.as_str()));
        let old = old.map(|old| weight(key, old));
        if quota::fits(self.index.live_bytes, weight(key, new), old, vital, quota) {
            return Ok(());
        }
        let used = self.index.live_bytes;
        if let Some(untold) = self.no_space.count() {
            tracing::error!(used, quota, untold, "the store is full: writes that grow it are refused");
        }
        Err(StoreError::NoSpace { attempted: format!("write {key}"), used, quota })
    }

    fn stage_put(
        &mut self,
        staged: &mut Staged,
        key: &str,
        value: Bytes,
        (ttl_seconds, deadline): (u32, Option<Instant>),
    ) -> Revision {
        let revision = self.index.revision + 1;
        staged.push(self.log.group(), &Body::Put { revision, ttl_seconds, key, value: &value });
        let change = self.index.put(key, value, ttl_seconds);
        staged.changes.push((change, deadline));
        revision
    }

    fn stage_delete(&mut self, staged: &mut Staged, key: &str) -> Option<Revision> {
        let change = self.index.delete(key)?;
        let revision = change.revision;
        staged.push(self.log.group(), &Body::Delete { revision, key });
        staged.changes.push((change, None));
        Some(revision)
    }

    /// Stages a restore: keys that `content` does not have are deleted, those that differ are set, and equal
    /// ones are left unchanged.
    fn stage_restore(&mut self, staged: &mut Staged, content: &Index) -> Restored {
        let gone: Vec<Arc<str>> = self
            .index
            .live_changes()
            .filter(|change| content.current(&change.key).is_none())
            .map(|change| Arc::clone(&change.key))
            .collect();
        let (removed, mut set) = (gone.len() as u64, 0);
        for key in gone {
            self.stage_delete(staged, &key);
        }
        for wanted in content.live_changes() {
            let same = self.index.current(&wanted.key).is_some_and(|current| {
                current.value == wanted.value && current.ttl_seconds == 0 && wanted.ttl_seconds == 0
            });
            let Some(value) = wanted.value.clone().filter(|_| !same) else { continue };
            let ttl = wanted.ttl_seconds;
            self.stage_put(staged, &wanted.key, value, (ttl, (ttl > 0).then(|| super::deadline(ttl))));
            set += 1;
        }
        Restored { revision: self.index.revision, set, removed }
    }

    fn stage_compaction(&mut self, staged: &mut Staged, revision: Revision) {
        staged.push(self.log.group(), &Body::Compact { revision });
        self.index.compact(revision);
    }

    /// Compacts automatically to keep the history within its bounds.
    fn compact_if_large(&mut self, staged: &mut Staged) {
        let revisions_kept = self.index.revisions_kept();
        let too_many = revisions_kept > self.options.history_revisions;
        let too_large = self.index.history_bytes > self.options.history_bytes && !self.index.scrub_pending();
        if too_many || too_large {
            let step = COMPACT_STEP
                .min(revisions_kept / 4)
                .max(1)
                .max(revisions_kept.saturating_sub(self.options.history_revisions));
            let revision = (self.index.revision - revisions_kept.cast_signed()).saturating_add_unsigned(step);
            if self.index.check_compaction(revision).is_ok() {
                self.stage_compaction(staged, revision);
            }
        }
    }

    fn make_durable(&mut self, staged: &mut Staged) -> Result<(), AppendError> {
        if staged.records.is_empty() {
            return Ok(());
        }
        self.checkpoints.appended += staged.records.len() as u64;
        self.log.append(&mut staged.records, &staged.starts, self.index.revision)
    }

    /// Publishes and answers, or reverts; returns false if the store must stop.
    fn conclude(&mut self, staged: Staged, result: Result<(), AppendError>) -> bool {
        match result {
            Ok(()) => {
                self.index.scrub(SCRUB);
                self.publish(&staged.changes);
                staged.answer();
                self.start_checkpoint_if_due();
                true
            }
            Err(AppendError::Full(error)) => {
                if let Some(untold) = self.refused.count() {
                    let place = self.disk.describe();
                    tracing::error!(%error, place, untold, "the disk is full, nothing can be written");
                }
                self.index = Index::clone(&self.shared.view());
                staged.refuse(|attempted| StoreError::Unavailable {
                    attempted,
                    cause: Some(Box::new(io::Error::new(error.kind(), error.to_string()))),
                });
                true
            }
            Err(AppendError::Fatal(error)) => {
                tracing::error!(%error, place = self.disk.describe(), "the log cannot be written, the store stops");
                self.shared.fail("the log could not be made durable, so the store has stopped", &error);
                staged.refuse(|attempted| self.shared.end_error(&attempted));
                false
            }
        }
    }

    fn publish(&self, changes: &[(Arc<Change>, Option<Instant>)]) {
        let mut look_again = false;
        {
            let mut deadlines = self.shared.deadlines();
            for (change, deadline) in changes {
                look_again |= deadlines.record(change, *deadline);
            }
        }
        let only: Vec<Arc<Change>> = changes.iter().map(|(change, _)| Arc::clone(change)).collect();
        let registry = self.shared.registry();
        self.shared.set_view(self.index.clone(), self.log.bytes());
        registry.dispatch(&only);
        drop(registry);
        if look_again {
            self.shared.deadline_changed.notify_one();
        }
    }

    fn scrub(&mut self) {
        self.index.scrub(SCRUB);
        self.publish(&[]);
    }

    /// Starts a checkpoint when the log has grown by as much as one would cost.
    fn start_checkpoint_if_due(&mut self) {
        if self.checkpoints.running.as_ref().is_some_and(JoinHandle::is_finished) {
            self.collect_checkpoint();
        }
        let grown = self.checkpoints.appended >= self.options.checkpoint_bytes.max(self.checkpoints.bytes);
        let due = grown || self.log.segments() > MANY_SEGMENTS;
        if due && self.checkpoints.running.is_none() && self.index.compacted > self.checkpoints.newest {
            self.checkpoints.appended = 0;
            self.start_checkpoint();
        }
    }

    fn start_checkpoint(&mut self) {
        let (disk, shared, index) = (Arc::clone(&self.disk), Arc::clone(&self.shared), self.index.clone());
        let work = move || checkpoint::write(disk.as_ref(), &index, &|kv, ttl| shared.ttl_left(kv, ttl));
        if self.disk.blocks() {
            #[expect(clippy::disallowed_methods, reason = "a disk that does not block needs none")]
            match std::thread::Builder::new().name("store-checkpoint".to_owned()).spawn(work) {
                Ok(thread) => self.checkpoints.running = Some(thread),
                Err(error) => {
                    tracing::warn!(%error, "cannot start a thread for a checkpoint; it will be retried")
                }
            }
        } else {
            self.conclude_checkpoint(work());
        }
    }

    /// Waits for the checkpoint that is being written.
    fn collect_checkpoint(&mut self) {
        if let Some(thread) = self.checkpoints.running.take() {
            let result =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("the checkpoint thread panicked")));
            self.conclude_checkpoint(result);
        }
    }

    fn conclude_checkpoint(&mut self, result: io::Result<checkpoint::CheckpointInfo>) {
        let outcome = result.and_then(|taken| self.adopt_checkpoint(taken));
        if let Err(error) = outcome {
            // The log is complete, so a failure only costs space; the next checkpoint is tried later.
            tracing::warn!(%error, place = self.disk.describe(), "cannot take a checkpoint");
        }
    }

    fn adopt_checkpoint(&mut self, taken: checkpoint::CheckpointInfo) -> io::Result<()> {
        let old = std::mem::replace(&mut self.checkpoints.newest, taken.revision);
        self.checkpoints.bytes = taken.bytes;
        if old != 0 && old != taken.revision {
            self.disk.remove(&checkpoint::name(old))?;
        }
        self.log.forget(taken.revision)
    }

    fn checkpoint_on_request(&mut self, reply: oneshot::Sender<Result<Revision, StoreError>>) {
        self.collect_checkpoint();
        // Staged changes are not durable yet, so the checkpoint is taken of the published state.
        let index = self.shared.view();
        let shared = Arc::clone(&self.shared);
        let result = if index.compacted > self.checkpoints.newest {
            checkpoint::write(self.disk.as_ref(), &index, &|kv, ttl| shared.ttl_left(kv, ttl))
                .and_then(|taken| self.adopt_checkpoint(taken))
        } else {
            Ok(())
        };
        let newest = self.checkpoints.newest;
        let _ = reply.send(result.map(|()| newest).map_err(|cause| StoreError::Unavailable {
            attempted: "take a checkpoint".to_owned(),
            cause: Some(Box::new(cause)),
        }));
    }

    /// Answers all waiting requests and releases the directory.
    fn finish(mut self, closing: Option<oneshot::Sender<()>>) {
        self.receiver.close();
        self.collect_checkpoint();
        if !self.shared.failed() {
            if let Err(error) = self.log.finish() {
                tracing::warn!(%error, place = self.disk.describe(), "cannot release the unused space of the log");
            }
            self.shared.close();
        }
        let Self { shared, mut receiver, log, lock, .. } = self;
        drop((log, lock));
        shared.registry().end();
        while let Ok(message) = receiver.try_recv() {
            match message {
                Message::Write { write, reply, .. } => {
                    let _ = reply.send(Err(shared.end_error(&format!("write {}", write.key))));
                }
                Message::Compact { reply, .. } => {
                    let _ = reply.send(Err(shared.end_error("compact")));
                }
                Message::Checkpoint { reply } => {
                    let _ = reply.send(Err(shared.end_error("take a checkpoint")));
                }
                Message::Restore { reply, .. } => {
                    let _ = reply.send(Err(shared.end_error("restore")));
                }
                Message::Close { reply } => {
                    let _ = reply.send(());
                }
            }
        }
        if let Some(reply) = closing {
            let _ = reply.send(());
        }
    }
}

impl Staged {
    fn push(&mut self, group: u64, body: &Body<'_>) {
        let start = record::encode(&mut self.records, group, body);
        self.starts.push(start);
    }

    /// Sends the answer; it is dropped if the caller is gone.
    fn answer(self) {
        for answer in self.answers {
            match answer {
                Answer::Written(result, reply, _) => drop(reply.send(result)),
                Answer::Compacted(result, reply) => drop(reply.send(result)),
                Answer::Restored(restored, reply) => drop(reply.send(Ok(restored))),
            }
        }
    }

    fn refuse(self, error: impl Fn(String) -> StoreError) {
        for answer in self.answers {
            match answer {
                Answer::Written(_, reply, key) => drop(reply.send(Err(error(format!("write {key}"))))),
                Answer::Compacted(_, reply) => drop(reply.send(Err(error("compact".to_owned())))),
                Answer::Restored(_, reply) => drop(reply.send(Err(error("restore".to_owned())))),
            }
        }
    }
}

impl Shared {
    /// Returns the remaining seconds of a version of a key with a time to live.
    fn ttl_left(&self, kv: &KeyValue, ttl_seconds: u32) -> u32 {
        let deadline = self.deadlines().of(kv);
        deadline.map_or(ttl_seconds, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now()).as_secs() + 1;
            u32::try_from(left).unwrap_or(ttl_seconds).min(ttl_seconds)
        })
    }
}
