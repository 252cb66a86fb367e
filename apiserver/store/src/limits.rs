//! Every bound of the store in one place, with its arithmetic.

use std::time::Duration;

/// Longest key, in bytes. Kubernetes' longest is `/registry/` + group (253) + resource (253) +
/// namespace (63) + name (253), well below.
pub const KEY_BYTES: usize = 2_048;

/// Newest revision that a restore may raise a store to. A store that writes a million times a second gets there
/// by itself in 146,000 years.
pub const RESTORED_REVISION: crate::Revision = crate::Revision::MAX / 2;

/// Newest revision that a checkpoint may have: above a restore's by more than a store will ever write, and as far
/// from the last one that there is.
pub const CHECKPOINT_REVISION: crate::Revision = RESTORED_REVISION + RESTORED_REVISION / 2;

/// Largest value, in bytes: what etcd takes in one request by default (1.5 MiB).
pub const VALUE_BYTES: usize = 3 * 512 * 1_024;

/// Bytes that the present state of an embedded store may hold unless told otherwise: etcd's default.
pub const QUOTA_BYTES: u64 = 2 << 30;

/// Bytes of structure that a key takes beside itself and its value.
pub const KEY_OVERHEAD: usize = 150;

/// By so many bytes an update may let an object grow although the quota is reached: what marks an object
/// as being deleted, or says so in its status, has to fit.
pub const SMALL_GROWTH: u64 = 4_096;

/// Bytes beyond a quota for small growth and vital keys: a sixteenth, 128 MiB of the default.
pub const fn reserve(quota: u64) -> u64 {
    quota / 16
}

/// Requests that wait for the committer; further callers wait for a place. A waiting request
/// holds its value only, at most 4,096 × 1.5 MiB in theory, a few MiB in practice.
pub const WRITE_QUEUE: usize = 4_096;

/// Requests that share one sync of the log.
pub const GROUP_REQUESTS: usize = 1_024;

/// Bytes of values that share one sync of the log; the last request may exceed it by one value.
pub const GROUP_BYTES: usize = 8 << 20;

/// Smallest segment of the log, in bytes.
pub const SEGMENT_MIN_BYTES: u64 = 4_096;

/// Keys that a list looks at before it lets other tasks run: well below a millisecond.
pub const LIST_PART_KEYS: usize = 2_000;

/// Events that a watcher may leave unread before it is cut off. An event is a pointer to a change
/// that the history holds too, so a full buffer costs 512 KiB beside what the history holds.
pub const WATCH_BUFFER_EVENTS: usize = 65_536;

/// Most events in one notice.
pub const WATCH_BATCH_EVENTS: usize = 1_000;

/// Changes of the history that a watcher which catches up looks at before it lets others run.
pub const WATCH_SCAN_CHANGES: usize = 20_000;

/// Open watches of one store.
pub const WATCHES: usize = 16_384;

/// Deadlines that the expiry task submits before it looks at the clock again.
pub const EXPIRY_BATCH: usize = 256;

/// Longest time to live, in seconds: about 31 years, so that adding it to a clock cannot overflow.
pub const TTL_SECONDS: u32 = 1_000_000_000;

/// Keys that share one etcd lease.
pub const ETCD_LEASE_KEYS: u32 = 1_000;

/// Longest extra life that a key may get because it shares an etcd lease, in seconds.
pub const ETCD_LEASE_REUSE_SECONDS: i64 = 60;

/// Batches between an etcd watch and its reader; then etcd is held back.
pub const ETCD_WATCH_BATCHES: usize = 64;

/// Largest answer that is taken from etcd, in bytes: an unlimited list of everything.
pub const ETCD_ANSWER_BYTES: usize = 2 << 30;

/// Times that a directory is read which another process may change meanwhile.
pub const READ_TRIES: u32 = 5;

/// Longest line at the control socket: a path of 4 KiB and a word.
pub const CONTROL_LINE_BYTES: u64 = 8_192;

/// Who connects to the control socket has this long to say what he wants.
pub const CONTROL_LINE_WAIT: Duration = Duration::from_secs(2);
