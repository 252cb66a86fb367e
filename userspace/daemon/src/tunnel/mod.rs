//! Tunnels: connections that a node keeps to its API servers, through which these reach the node's kubelet and its pods.
//!
//! ```text
//!      node                                                API server
//!   kubelet:10250 ◀─TCP─ Acceptor ══ HTTP/2, reversed ══ Dialer ◀─ TLS to the kubelet ─ logs, exec, …
//!   pods of the node ◀────┘ │                                  └◀─ webhooks, proxy of pods and Services
//!                           └─ POST /hawser/v1/nodes/NAME/tunnel, Upgrade ─▶ │
//! ```
//!
//! The node opens a connection and asks to switch protocols. From then on the roles are those of HTTP/2 in reverse: the
//! API server sends a CONNECT for each connection that it needs, and the node answers for its own kubelet and for the
//! pods that run on it; [`Acceptor`] refuses all else. TLS runs inside of the streams from end to end, so a tunnel can
//! do no more than carry or refuse.

mod acceptor;
mod dialer;
mod pings;
mod stream;

use std::io;
use std::net::SocketAddr;

pub use acceptor::{Acceptor, RunsHere};
pub use dialer::{DialError, Dialer};
pub use stream::TunnelStream;

/// The protocol that a node asks to switch to.
pub const PROTOCOL: &str = "hawser-tunnel";

const PREFIX: &str = "/hawser/v1/nodes/";
const SUFFIX: &str = "/tunnel";

/// Returns the path at which a node opens its tunnel.
pub fn path(node: &str) -> String {
    format!("{PREFIX}{node}{SUFFIX}")
}

/// Returns the name of the node whose tunnel a path is for, exactly as the path has it.
pub fn node_of(path: &str) -> Option<&str> {
    path.strip_prefix(PREFIX)?.strip_suffix(SUFFIX).filter(|name| !name.is_empty() && !name.contains('/'))
}

/// Returns the destination of a CONNECT for the kubelet of a node.
pub fn kubelet(node: &str, port: u16) -> String {
    format!("{node}:{port}")
}

/// Returns the destination of a CONNECT for a pod.
pub fn pod(address: SocketAddr) -> String {
    SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
}

fn io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
    }
    // The rest of the error may be text of the peer's, of any length.
    error.reason().map_or_else(|| io::Error::other(error), |reason| io::Error::other(reason.description()))
}

#[cfg(test)]
mod tests;
