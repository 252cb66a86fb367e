//! Every bound of this crate.

use std::time::Duration;

/// Connections to a listener for health, probes or metrics at once.
pub const CONNECTIONS: usize = 64;
/// A client has this long for its TLS handshake, and for the head of each request.
pub const HEAD: Duration = Duration::from_secs(10);
/// Bytes of a request line and headers.
pub const HEAD_BYTES: usize = 16 * 1024;
/// A connection ends after this, whatever it does: scrapers and probes open another one.
pub const LIFE: Duration = Duration::from_secs(60);
/// Pause after an error of `accept`, such as too many open files.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A peer that is silent for this long is asked whether it is still there, by TCP.
pub const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(30);
/// Pause between two such questions.
pub const KEEP_ALIVE_PAUSE: Duration = Duration::from_secs(10);
/// Questions without an answer after which a connection ends.
pub const KEEP_ALIVE_PROBES: u32 = 3;
/// Members of one family of metrics; further labels are counted together.
pub const METRIC_MEMBERS: usize = 50_000;
