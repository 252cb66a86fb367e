//! The desired content of the tables, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnetwork::IpNetwork;

/// Transport protocol, with its IP protocol number. `Any` is for marks only, see [`Frontend::mark`]; `Icmp` is
/// for echo requests and replies of both families, which leave the cluster but are no service's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(u8)]
pub enum Protocol {
    Any = 0,
    Icmp = 1,
    Tcp = 6,
    Udp = 17,
    Sctp = 132,
}

/// The origin of the traffic that a frontend serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Traffic from inside: local sockets and pods.
    Internal,
    /// Traffic that arrives on an uplink.
    External,
}

/// The address and port of a frontend. A node port has the unspecified address of its family: it is served on
/// every address given to [`DataPlane::set_node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct FrontendKey {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
    pub scope: Scope,
}

/// One destination of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct Backend {
    pub address: IpAddr,
    pub port: u16,
    /// The backend is on this node.
    pub local: bool,
    /// Share of the new connections, relative to those of the others; 0 for none, so that a backend drains.
    pub weight: u16,
}

impl Backend {
    /// Returns a backend with the default weight.
    pub fn new(address: IpAddr, port: u16, local: bool) -> Self {
        Self { address, port, local, weight: 1 }
    }
}

/// The algorithm by which a frontend distributes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// At random, by weight.
    #[default]
    Random,
    /// By weight and a hash of the packet's ends that is the same on all nodes; few connections move when the
    /// list changes.
    #[serde(rename = "maglev")]
    Consistent,
}

/// The way in which packets reach backends on other nodes, and their replies the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Forwarding {
    /// Replies come back through this node, whose address the backend sees.
    #[default]
    Nat,
    /// The backend's node answers the client itself (direct server return). It learns the frontend from an IP
    /// option, or an IPv6 destination option, in the packets that open a connection.
    #[serde(rename = "dsr")]
    DsrOption,
    /// Direct server return, with the whole packet in an outer IP header.
    #[serde(rename = "dsr-ipip")]
    DsrIpip,
}

/// The treatment of traffic to a frontend. Without backends it is refused at once.
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
    /// Only sources in [`ServiceTables::source_ranges`] are admitted.
    pub limited: bool,
}

impl Frontend {
    /// Returns a frontend with default settings.
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

    /// Returns the mark of an address that belongs to a service: packets to a port of it that no frontend has
    /// are refused, echo requests are answered. Packets to an address of the service ranges (see
    /// [`DataPlane::set_node`]) without a mark are dropped.
    pub fn mark(address: IpAddr) -> Self {
        let key = FrontendKey { address, port: 0, protocol: Protocol::Any, scope: Scope::Internal };
        Self::new(key, Vec::new())
    }
}

/// Everything that one Service puts into the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ServiceTables {
    /// Frontends sorted by key.
    pub frontends: Vec<Frontend>,
    /// Source ranges of clients of limited frontends, sorted.
    pub source_ranges: Vec<IpNetwork>,
}

/// The node's own settings that tables depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTables {
    /// Addresses that serve node ports, sorted.
    pub addresses: Vec<IpAddr>,
    /// Source addresses of packets that must come back through this node, at most one per family; by default,
    /// the first of `addresses` that is not a loopback one.
    pub snat_addresses: Vec<IpAddr>,
    /// Ranges of services' addresses, at most two per family. Packets to addresses in them that no service
    /// has are dropped.
    pub service_ranges: Vec<IpNetwork>,
    /// Cookies of network namespaces whose sockets are left alone.
    pub exempt: BTreeSet<u64>,
    /// Rewritten packets for pods go through the stack, where packet filters of others see them.
    pub through_stack: bool,
    /// Processes of the node's own network namespace may not bind node ports in use.
    pub guard_node_ports: bool,
    /// Node ports are not served on loopback addresses.
    pub loopback_closed: bool,
    /// The packets of pods that take the node's address; `None` for none.
    pub masquerade: Option<Masquerade>,
}

/// Packets of pods that leave the cluster, and take the node's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// Ranges of this node's pods, at most two per family: packets from other sources stay as they are.
    pub pods: Vec<IpNetwork>,
    /// Destinations to which packets keep the pod's address, and why. The longest prefix counts.
    pub exempt: BTreeMap<IpNetwork, NonMasquerade>,
}

/// The reason why packets to a destination keep the pod's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NonMasquerade {
    /// Pods of the cluster have such addresses.
    Cluster,
    /// The range is configured.
    Configured,
    /// Link-local addresses are reached without a router.
    LinkLocal,
    /// The address is this node's own.
    Node,
    /// Multicast, loopback, and what else is not routed to one host.
    NotRouted,
}

/// Desired state: by service name, `namespace/name`.
pub type Tables = BTreeMap<String, ServiceTables>;

/// The changes of an apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Applied {
    pub frontends_written: usize,
    pub frontends_deleted: usize,
    pub blocks_written: usize,
    pub blocks_freed: usize,
}

/// The tables or the kernel refused a change; the previous state remains.
#[derive(Debug, thiserror::Error)]
pub enum DataPlaneError {
    /// A map is full; raise the limit named.
    #[error("{service}: map {map} is full at {limit} entries")]
    Full { service: String, map: &'static str, limit: u32 },
    /// The kernel refused.
    #[error("{attempted}")]
    Kernel {
        /// The attempted operation, and its map, program or interface.
        attempted: String,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The result of [`DataPlane::check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkup {
    /// Differences from the state as it was left, a sentence each. They are repaired if possible; the next
    /// check shows.
    pub faults: Vec<String>,
    /// The XDP mode of each uplink, by interface name.
    pub xdp: BTreeMap<String, XdpRow>,
    /// Totals about datagram sockets whose backend was gone.
    pub reconciled: Reconciled,
}

/// The progress of taking over from the rules of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The tables are empty, and others translate what comes in.
    Before,
    /// The tables are written; a connection that has begun just before may not have been seen yet.
    Settling,
    /// The tables are those of an earlier process, which has seen the connections of others.
    Kept,
    /// All connections that are not known to be others' are ours.
    Settled,
}

/// Connections to services that others translate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Connections that are not over yet.
    pub connections: usize,
    /// Those of them whose destinations are services' and not the node's.
    pub to_services: usize,
    /// Translations that were removed, as their endpoint is gone.
    pub removed: usize,
}

/// Totals about datagrams whose backend was gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Sockets that this process has destroyed so far, of frontends with an IPv4 address.
    pub destroyed4: u64,
    /// Sockets that this process has destroyed so far, of frontends with an IPv6 address.
    pub destroyed6: u64,
    /// Foreign translations to an endpoint that was gone, which this process has removed so far, of IPv4.
    pub removed4: u64,
    /// Foreign translations that this process has removed so far, of IPv6.
    pub removed6: u64,
    /// Durations of the scans for such sockets since the last call.
    pub looks: Vec<Duration>,
}

/// The XDP mode of an uplink.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct XdpRow {
    /// `native`, `generic`, or `off`: then the stack's hooks handle all packets.
    pub mode: &'static str,
    /// The reason if it is off.
    pub reason: Option<String>,
}

/// Lowest and highest limit of bandwidth, in bits per second.
pub const BANDWIDTH_RANGE: std::ops::RangeInclusive<u64> =
    ebpf_common::bandwidth::RATE_MIN..=ebpf_common::bandwidth::RATE_MAX;

/// Maximum number of interfaces with a limit of bandwidth.
pub const BANDWIDTHS: u32 = ebpf_common::limits::BANDWIDTH;

/// The time of traffic at its limit that a pod may send or receive at once after a pause.
pub const BANDWIDTH_BURST: Duration = Duration::from_nanos(ebpf_common::bandwidth::BURST);

/// The limits of one pod, in bits per second within [`BANDWIDTH_RANGE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodBandwidth {
    /// For packets of the pod.
    pub egress: Option<u64>,
    /// For packets to the pod.
    pub ingress: Option<u64>,
}

/// The limits of this node's pods, by the index of the host's end of their interface.
pub type Bandwidths = BTreeMap<u32, PodBandwidth>;

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
