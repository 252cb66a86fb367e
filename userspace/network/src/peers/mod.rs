//! Pods of other nodes: routes over shared links, VXLAN elsewhere.
//!
//! ```text
//!   Nodes ──watch──▶ Peer ─┐                      ┌─▶ routes      10.244.2.0/24 via 192.0.2.2 dev eth0
//!                          ├─▶ plan (pure) ─ diff ┤               10.244.3.0/24 via 10.244.3.1 dev hawser-vxlan
//!   links, routes ────────▶┘                      ├─▶ neighbours  10.244.3.1 is at 02:48:0a:f4:03:00
//!                                                 └─▶ FDB         02:48:0a:f4:03:00 is behind 198.51.100.3
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
mod kernel;
mod messages;
mod peer;
mod plan;
mod tables;
mod underlay;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnetwork::IpNetwork;

pub use follow::{Nodes, follow, follow_with};
pub use kernel::remove;
pub use peer::Peer;

/// The protocol number that marks routes to other nodes' pods (`proto` in `ip route`).
pub const PEER_ROUTE_PROTOCOL: u8 = 145;
/// The name of the tunnel device.
pub const TUNNEL: &str = "hawser-vxlan";
/// The default VXLAN network identifier. Flannel uses 1, Calico 4096.
pub const DEFAULT_VNI: u32 = 4145;
/// The default UDP port of VXLAN. Flannel and Cilium use 8472, Calico and most switches 4789.
pub const DEFAULT_PORT: u16 = 14789;

/// The way in which packets reach pods of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A route to nodes that are reached without a gateway, VXLAN to others.
    #[default]
    Auto,
    /// Routes only; the network behind gateways must know the way.
    Routes,
    /// VXLAN only.
    Vxlan,
    /// Neither: another CNI plugin provides the pod network.
    None,
}

/// The text is not a mode.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a pod network: give auto, routes, vxlan or none")]
pub struct ModeError(String);

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        match text {
            "auto" => Ok(Self::Auto),
            "routes" => Ok(Self::Routes),
            "vxlan" => Ok(Self::Vxlan),
            "none" => Ok(Self::None),
            _ => Err(ModeError(text.to_owned())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Routes => "routes",
            Self::Vxlan => "vxlan",
            Self::None => "none",
        })
    }
}

impl Mode {
    /// Returns `true` if packets to some nodes may need room for a tunnel's headers.
    pub fn may_tunnel(self) -> bool {
        matches!(self, Self::Auto | Self::Vxlan)
    }
}

/// Bytes that VXLAN adds to a packet: Ethernet 14, VXLAN 8, UDP 8, and the outer IP header.
pub fn tunnel_overhead(outer_ipv4: bool) -> u32 {
    if outer_ipv4 { 50 } else { 70 }
}

/// The settings of the pod network between nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    pub mode: Mode,
    /// The ranges from which nodes' podCIDRs are taken; nothing outside is ever routed.
    pub cluster_cidrs: Vec<IpNetwork>,
    /// The ranges of Services, which no node may claim.
    pub service_cidrs: Vec<IpNetwork>,
    /// The own Node's addresses; the first one's family is that of the tunnel.
    pub node_ips: Vec<IpAddr>,
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP port of VXLAN.
    pub port: u16,
}

impl Default for PeerConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Auto,
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            node_ips: Vec::new(),
            vni: DEFAULT_VNI,
            port: DEFAULT_PORT,
        }
    }
}
