//! All limits of the store, with their arithmetic.

use std::time::Duration;

/// Maximum length of a key in bytes. The longest key of Kubernetes is `/registry/` + group (253) + resource
/// (253) + namespace (63) + name (253), well below.
pub const KEY_BYTES: usize = 2_048;

/// Maximum revision to which a restore may raise a store. A store that writes a million times per second
/// would reach it in 146,000 years.
pub const RESTORED_REVISION: crate::Revision = crate::Revision::MAX / 2;

/// Maximum revision of a checkpoint: above that of a restore by more than a store will ever write, and
/// equally far from the maximum of the type.
pub const CHECKPOINT_REVISION: crate::Revision = RESTORED_REVISION + RESTORED_REVISION / 2;

/// Maximum size of a value in bytes: etcd's default for one request (1.5 MiB).
pub const VALUE_BYTES: usize = 3 * 512 * 1_024;

/// Default quota of the current state of an embedded store in bytes, as in etcd.
pub const QUOTA_BYTES: u64 = 2 << 30;

/// Bytes of structure that a key takes in addition to itself and its value.
pub const KEY_OVERHEAD: usize = 150;

/// Bytes by which an update may grow an object beyond the quota, so that it can still be marked as deleted or
/// get a status.
pub const SMALL_GROWTH: u64 = 4_096;

/// Returns the bytes beyond a quota that are reserved for small growth and vital keys: a sixteenth, 128 MiB
/// for the default.
pub const fn reserve(quota: u64) -> u64 {
    quota / 16
}

/// Requests that can wait for the committer; further callers wait for a slot. A waiting request holds only
/// its value: at most 4,096 × 1.5 MiB in theory, a few MiB in practice.
pub const WRITE_QUEUE: usize = 4_096;

/// Maximum number of requests that share one sync of the log.
pub const GROUP_REQUESTS: usize = 1_024;

/// Bytes of values that share one sync of the log; the last request may exceed it by one value.
pub const GROUP_BYTES: usize = 8 << 20;

/// Minimum size of a log segment in bytes.
pub const SEGMENT_MIN_BYTES: u64 = 4_096;

/// Keys that a list visits before it lets other tasks run: well below a millisecond.
pub const LIST_PART_KEYS: usize = 2_000;

/// Events that a watcher may leave unread before it is cut off. An event is a pointer to a change that is
/// also in the history, so a full buffer costs 512 KiB in addition to the history.
pub const WATCH_BUFFER_EVENTS: usize = 65_536;

/// Maximum number of events in one notice.
pub const WATCH_BATCH_EVENTS: usize = 1_000;

/// Changes in the history that a catching-up watcher visits before it lets other tasks run.
pub const WATCH_SCAN_CHANGES: usize = 20_000;

/// Maximum number of open watches of one store.
pub const WATCHES: usize = 16_384;

/// Deadlines that the expiry task submits before it checks the clock again.
pub const EXPIRY_BATCH: usize = 256;

/// Maximum time to live in seconds: about 31 years, so that adding it to a clock cannot overflow.
pub const TTL_SECONDS: u32 = 1_000_000_000;

/// Maximum number of keys that share one etcd lease.
pub const ETCD_LEASE_KEYS: u32 = 1_000;

/// Maximum additional life of a key that shares an etcd lease, in seconds.
pub const ETCD_LEASE_REUSE_SECONDS: i64 = 60;

/// Batches buffered between an etcd watch and its reader; beyond that etcd is throttled.
pub const ETCD_WATCH_BATCHES: usize = 64;

/// Maximum size of an answer of etcd in bytes: an unlimited list of everything.
pub const ETCD_ANSWER_BYTES: usize = 2 << 30;

/// Number of times to read a directory that another process may be changing.
pub const READ_TRIES: u32 = 5;

/// Maximum length of a line at the control socket in bytes: a path of 4 KiB and a word.
pub const CONTROL_LINE_BYTES: u64 = 8_192;

/// Time that a client of the control socket has to send its request.
pub const CONTROL_LINE_WAIT: Duration = Duration::from_secs(2);
