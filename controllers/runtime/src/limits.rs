//! Limits and intervals of this crate.

use std::time::Duration;

/// Time after which a worker that has panicked is replaced.
pub const PANIC_PAUSE: Duration = Duration::from_secs(1);
/// Initial back-off after a failed attempt at an item.
pub const MIN_BACKOFF: Duration = Duration::from_millis(5);
/// Maximum back-off after failed attempts at an item (16 min 40 s, as in Kubernetes).
pub const MAX_BACKOFF: Duration = Duration::from_secs(1000);

/// Number of ready keys for which an empty queue may retain room.
pub const READY_ROOM: usize = 1024;
/// Number of keys of which one has failed before, while others wait: each fourth.
pub const FAILED_SHARE: u64 = 4;
/// Number of workers of which one may be held by a key that has failed before: each second.
pub const FAILED_WORKERS: usize = 2;

/// Time of computing from which a key rests before it is processed again.
pub const COSTLY: Duration = Duration::from_millis(1);
/// Multiple of the time of computing that passes from the start of such processing to the next one: one key keeps a
/// processor busy for at most a fifth of the time.
pub const REST: u32 = 5;

/// Longest pause between two looks at a cache that does not show yet what was written.
pub const UNSEEN_WRITE: Duration = Duration::from_secs(10);
/// Time after which a write that neither a watch nor a list has shown no longer delays decisions. It is that of the
/// expectations of Kubernetes.
pub const LOST_WRITE: Duration = Duration::from_secs(300);

/// Number of requests of one reconciliation that are made at the same time.
pub const REQUESTS_IN_FLIGHT: usize = 64;

/// Back-off from which a missing object is logged as a warning. Before that the object has probably been
/// deleted, and the watch event is on its way.
pub const QUIET_PAUSE: Duration = Duration::from_secs(1);

/// Time for which a leader's lease is valid without renewal.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time for which a leader tries to renew before it stops working. It is shorter than [`LEASE_DURATION`], so
/// that it has stopped before another process can begin.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval between attempts to acquire or renew a lease.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);
