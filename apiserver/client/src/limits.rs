//! Every bound of this crate.

use std::time::Duration;

/// Events that wait to be written; more are dropped.
pub const EVENT_QUEUE: usize = 1024;
/// Distinct events remembered to count repetitions.
pub const EVENTS_REMEMBERED: usize = 4096;
/// First pause after a failed list or watch; it doubles up to [`MAX_RETRY`].
pub const MIN_RETRY: Duration = Duration::from_millis(100);
/// Longest pause after failed lists and watches.
pub const MAX_RETRY: Duration = Duration::from_secs(5);
/// Silence after which a connection to the API server is probed, pause between probes, and number of probes
/// without an answer after which it ends: 25 s, less than the 40 s after which a silent node is `Unknown`.
pub const KEEPALIVE: Duration = Duration::from_secs(10);
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
pub const KEEPALIVE_RETRIES: u32 = 3;
/// Time after which a connection ends whose server has not confirmed what was sent (RFC 5482).
pub const UNCONFIRMED: Duration = Duration::from_secs(20);
