//! Every bound of this crate.

use std::time::Duration;

/// Maximum number of connections to a listener for health, probes or metrics.
pub const CONNECTIONS: usize = 64;
/// Maximum time of a client for its TLS handshake, and for the head of each request.
pub const HEAD: Duration = Duration::from_secs(10);
/// Maximum number of bytes of a request line and headers.
pub const HEAD_BYTES: usize = 16 * 1024;
/// Maximum lifetime of a connection, whatever it does: scrapers and probes open another one.
pub const LIFE: Duration = Duration::from_secs(60);
/// Pause after an error of `accept`, such as too many open files.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time of silence after which TCP probes whether a peer is still there.
pub const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(30);
/// Interval between two such probes.
pub const KEEP_ALIVE_PAUSE: Duration = Duration::from_secs(10);
/// Number of unanswered probes after which a connection ends.
pub const KEEP_ALIVE_PROBES: u32 = 3;
/// Maximum number of members of one family of metrics; further labels are counted together.
pub const METRIC_MEMBERS: usize = 50_000;
/// Maximum number of notices of the kernel about the network that wait for a reader; beyond it they are dropped, and the
/// reader looks at everything.
pub const NETLINK_NOTICES: usize = 1024;
