//! Bounds of this crate.

use std::time::Duration;

/// First pause after a failed attempt at an item.
pub const MIN_BACKOFF: Duration = Duration::from_millis(5);
/// Longest pause after failed attempts at an item (16 min 40 s, as in Kubernetes).
pub const MAX_BACKOFF: Duration = Duration::from_secs(1000);

/// A reconciliation that misses an object is no warning before its pause is as long as this: the object was
/// deleted, and the watch that tells of it is on its way.
pub const QUIET_PAUSE: Duration = Duration::from_secs(1);

/// How long a leader's lease holds without renewal.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long a leader tries to renew before it stops its work. Below [`LEASE_DURATION`], so that
/// it has stopped before another can begin.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between attempts to take or renew a lease.
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);
