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
