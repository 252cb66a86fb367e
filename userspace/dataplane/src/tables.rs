//! What the tables shall hold, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnetwork::IpNetwork;

/// Transport protocol, with its IP protocol number. `Any` is for marks only, see
/// [`Frontend::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(u8)]
pub enum Protocol {
    Any = 0,
    Tcp = 6,
    Udp = 17,
    Sctp = 132,
}

/// For whom a frontend answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Traffic from inside: local sockets and pods.
    Internal,
    /// Traffic that arrives on an uplink.
    External,
}

/// Where a frontend listens. A node port has the unspecified address of its family: it answers on
/// every address given to [`DataPlane::set_node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct FrontendKey {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
    pub scope: Scope,
}

/// One place that traffic may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct Backend {
    pub address: IpAddr,
    pub port: u16,
    /// The backend is on this node.
    pub local: bool,
    /// Share of the new connections, relative to those of the others; 0 for none, so that a
    /// backend drains.
    pub weight: u16,
}

impl Backend {
    /// A backend with the weight that all have unless they are told otherwise.
    pub fn new(address: IpAddr, port: u16, local: bool) -> Self {
        Self { address, port, local, weight: 1 }
    }
}

/// How a frontend gives connections to its backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// At random, by weight.
    #[default]
    Random,
    /// By a hash of the packet's ends that all nodes compute alike, by weight; few connections
    /// move when the list changes.
    #[serde(rename = "maglev")]
    Consistent,
}

/// How packets reach backends on other nodes, and their replies the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Forwarding {
    /// Replies come back through this node, whose address the backend sees.
    #[default]
    Nat,
    /// The backend's node answers the client itself (direct server return). It learns the frontend
    /// from an IP option, or an IPv6 destination option, in the packets that open a connection.
    #[serde(rename = "dsr")]
    DsrOption,
    /// As `DsrOption`, with the whole packet in an outer IP header.
    #[serde(rename = "dsr-ipip")]
    DsrIpip,
}

/// What traffic to a frontend gets. With no backends it is refused at once.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Frontend {
    pub key: FrontendKey,
    /// The candidates by policy, local ones first. Order is part of the value: equal inputs give
    /// equal tables.
    pub backends: Vec<Backend>,
    /// Seconds of client affinity; 0 for none.
    pub affinity_seconds: u32,
    /// Traffic is dropped, not refused, when there are no backends (policy Local).
    pub drop_when_empty: bool,
    pub algorithm: Algorithm,
    pub forwarding: Forwarding,
    /// Packets always take the node's address as their source.
    pub masquerade: bool,
    /// Only sources in [`ServiceTables::source_ranges`] may come in.
    pub limited: bool,
}

impl Frontend {
    /// A frontend without any of the choices.
    pub fn new(key: FrontendKey, backends: Vec<Backend>) -> Self {
        Self {
            key,
            backends,
            affinity_seconds: 0,
            drop_when_empty: false,
            algorithm: Algorithm::default(),
            forwarding: Forwarding::default(),
            masquerade: false,
            limited: false,
        }
    }

    /// The mark of an address that belongs to a service: packets to a port of it that no frontend
    /// has are refused, echo requests are answered. Packets to an address of the service ranges
    /// (see [`DataPlane::set_node`]) without a mark are dropped.
    pub fn mark(address: IpAddr) -> Self {
        let key = FrontendKey { address, port: 0, protocol: Protocol::Any, scope: Scope::Internal };
        Self::new(key, Vec::new())
    }
}

/// Everything that one Service puts into the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ServiceTables {
    /// In the order of their keys.
    pub frontends: Vec<Frontend>,
    /// Whence clients of frontends that are limited may come, sorted.
    pub source_ranges: Vec<IpNetwork>,
}

/// What tables depend on that is the node's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTables {
    /// On which node ports answer; sorted.
    pub addresses: Vec<IpAddr>,
    /// Sources of packets that must come back through this node, at most one a family; if none is
    /// given, the first of `addresses` that is no loopback one.
    pub snat_addresses: Vec<IpAddr>,
    /// Whence services' addresses come, at most two a family. Addresses in them that no service
    /// has are dropped.
    pub service_ranges: Vec<IpNetwork>,
    /// Cookies of network namespaces whose sockets are left alone.
    pub exempt: BTreeSet<u64>,
    /// Rewritten packets for pods go through the stack, where others' packet filters see them.
    pub through_stack: bool,
    /// Processes of the node's own network namespace may not bind node ports in use.
    pub guard_node_ports: bool,
    /// Node ports do not answer on loopback addresses.
    pub loopback_closed: bool,
}

/// Desired state: by service name, `namespace/name`.
pub type Tables = BTreeMap<String, ServiceTables>;

/// What an apply did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Applied {
    pub frontends_written: usize,
    pub frontends_deleted: usize,
    pub blocks_written: usize,
    pub blocks_freed: usize,
}

/// The tables refused a change, or the kernel did; what was there before is still there.
#[derive(Debug, thiserror::Error)]
pub enum DataPlaneError {
    /// A map is full; raise the limit named.
    #[error("{service}: map {map} is full at {limit} entries")]
    Full { service: String, map: &'static str, limit: u32 },
    /// The kernel refused.
    #[error("{attempted}")]
    Kernel {
        /// What was attempted, on which map, program or interface.
        attempted: String,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What [`DataPlane::check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkup {
    /// What was otherwise than it had been left, a sentence each. Mended where that could be done;
    /// the next look tells.
    pub faults: Vec<String>,
    /// How uplinks run XDP, by interface name.
    pub xdp: BTreeMap<String, XdpRow>,
    /// What became of datagram sockets whose backend was gone.
    pub reconciled: Reconciled,
}

/// How far the take-over from others' rules has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The tables are empty, and others translate what comes in.
    Before,
    /// The tables are there; a connection that has begun just before may not have been seen yet.
    Settling,
    /// The tables are those of an earlier process: it has seen what others had.
    Kept,
    /// What is not known to be others' is ours.
    Settled,
}

/// Connections to services that others translate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Those that are not over yet.
    pub connections: usize,
    /// Of them, those to addresses that are services' and not the node's.
    pub to_services: usize,
    /// Translations that were taken away, as their endpoint is gone.
    pub removed: usize,
}

/// What was done about datagrams whose backend was gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Sockets that this process has destroyed so far, of frontends with an IPv4 address.
    pub destroyed4: u64,
    /// As `destroyed4`, of IPv6.
    pub destroyed6: u64,
    /// Translations by others, to an endpoint that was gone, that this process has taken away so far.
    pub removed4: u64,
    /// As `removed4`, of IPv6.
    pub removed6: u64,
    /// How long each look for such sockets took, since this was last asked for.
    pub looks: Vec<Duration>,
}

/// How an uplink runs XDP.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct XdpRow {
    /// `native`, `generic`, or `off`: then the stack's hooks carry all packets.
    pub mode: &'static str,
    /// Why it is off.
    pub reason: Option<String>,
}

/// An interface to attach to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interface {
    pub name: String,
    /// Kernel index; a new index under an old name is a new interface.
    pub index: u32,
    pub role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Towards other hosts: XDP and tcx ingress.
    Uplink,
    /// The host's end of a pod's interface: tcx ingress.
    Pod,
}
