//! Pods of other nodes: routes over shared links, VXLAN elsewhere.
//!
//! ```text
//!   Nodes ──watch──▶ Peer ─┐                      ┌─▶ routes      10.244.2.0/24 via 192.0.2.2 dev eth0
//!                          ├─▶ plan (pure) ─ diff ┤               10.244.3.0/24 via 10.244.3.1 dev hawser-vxlan
//!   links, routes ────────▶┘                      ├─▶ neighbours  10.244.3.1 is at 02:48:0a:f4:03:00
//!                                                 └─▶ FDB         02:48:0a:f4:03:00 is behind 198.51.100.3
//! ```
//!
//! With encryption everything goes through VXLAN, and this through WireGuard ([`WIREGUARD`]), whose peers are a further
//! table. Inside of it, nodes have link-local addresses that follow from their keys. The kernel accepts VXLAN packets to
//! such an address from that device alone.
//!
//! ```text
//!   10.244.3.0/24 ─▶ hawser-vxlan ─▶ 02:48:0a:f4:03:00 is behind fe80::KEY ─▶ hawser-wg ─▶ UDP to 198.51.100.3
//! ```
//!
//! The kernel's tables are compared with the plan and only differences are written, so that restart, missed
//! events and ordinary work are one code path. What is ours carries a mark, the route protocol
//! [`PEER_ROUTE_PROTOCOL`] or the device [`TUNNEL`], so that leftovers of a dead process are found.
//!
//! The hardware address of a node's tunnel device follows from its podCIDR and needs no annotation: podCIDRs
//! that have been accepted are disjoint, so nobody can claim the address of another. One derived from the
//! name could be found by trying names, and an annotation is written by the node itself.

mod batch;
mod follow;
mod guards;
mod kernel;
mod messages;
mod peer;
mod plan;
mod reports;
mod sealed;
mod tables;
mod underlay;

pub use crate::config::{
    DEFAULT_PORT, DEFAULT_VNI, DEFAULT_WIREGUARD_PORT, Encryption, Mode, PeerConfig, WireGuard,
    tunnel_overhead,
};
pub use follow::{Nodes, follow, follow_with};
pub use kernel::remove;
pub use peer::Peer;

/// The protocol number that marks routes to other nodes' pods (`proto` in `ip route`).
pub const PEER_ROUTE_PROTOCOL: u8 = 145;
/// The name of the tunnel device.
pub const TUNNEL: &str = "hawser-vxlan";
/// The name of the WireGuard device.
pub const WIREGUARD: &str = "hawser-wg";
