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
/// Maximum number of streams in one tunnel at one time, on either end: as many as the server of a kubelet has
/// connections, so that its shares of namespaces and pods decide who gets one.
pub const TUNNEL_STREAMS: usize = 512;
/// Bytes that one stream of a tunnel may receive before its reader takes them.
pub const TUNNEL_STREAM_WINDOW: u32 = 128 * 1024;
/// Bytes that a whole tunnel may receive before its readers take them, 64 MiB: as much as all of its streams, so that
/// readers that stop do not hold up the others.
pub const TUNNEL_WINDOW: u32 = TUNNEL_STREAMS as u32 * TUNNEL_STREAM_WINDOW;
/// Bytes that one stream of a tunnel may hold for a peer that does not take them.
pub const TUNNEL_SEND_BUFFER: usize = 64 * 1024;
/// Bytes by which small frames that wait in a tunnel may exceed their contents: each takes 256. Beyond it the tunnel
/// ends. Frames wait only until the task of their stream has joined their contents.
pub const TUNNEL_FRAMES: usize = 64 << 20;
/// Bytes of the head of a request or an answer in a tunnel.
pub const TUNNEL_HEAD_BYTES: u32 = 4 * 1024;
/// Interval between pings of each end of a tunnel, and time for their answer: a peer that is gone is found after 15 s.
pub const TUNNEL_PING: Duration = Duration::from_secs(10);
pub const TUNNEL_PING_ANSWER: Duration = Duration::from_secs(5);
/// Time for the peer of a tunnel to begin HTTP/2.
pub const TUNNEL_HANDSHAKE: Duration = Duration::from_secs(5);
/// Time for the near end's server to accept a connection.
pub const TUNNEL_CONNECT: Duration = Duration::from_secs(3);
/// Bytes that are copied at one time from one connection to another.
pub const RELAY_BUFFER: usize = 16 * 1024;
