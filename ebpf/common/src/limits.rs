//! Bounds of maps and of loops, with their arithmetic. User space may give other map sizes when
//! it creates them; bounds of loops are compiled in.

/// Frontends of one family. A service port has one or two: internal, external. Element 48 + 8 +
/// 32 = 88 bytes: 11 MiB, and 2 MiB of buckets.
pub const FRONTENDS: u32 = 131_072;
/// Backends of one family, in blocks. 8 bytes (v4), 24 bytes (v6) each: 2 and 6 MiB.
pub const BACKENDS: u32 = 262_144;
/// Services. 8 bytes of generation, 16 bytes of counters a CPU.
pub const SERVICES: u32 = 65_536;
/// Two elements a connection. 48 + 16 + 48 = 112 bytes: 28 MiB.
pub const FLOWS: u32 = 262_144;
/// One element a connected socket, two an unconnected one and peer. 80 bytes (v4): 10 MiB.
pub const SOCKETS: u32 = 131_072;
/// One element a client and service port with affinity. 88 bytes: 5.5 MiB.
pub const AFFINITY: u32 = 65_536;
/// Addresses of this node, of one family.
pub const LOCAL_ADDRESSES: u32 = 1_024;
/// Interfaces that XDP may send to.
pub const DEVICES: u32 = 256;
/// Length of a service's name in `SERVICE_NAMES`, filled with zeros: two DNS labels of 63 bytes
/// and a slash.
pub const SERVICE_NAME: usize = 128;

/// Backends that a frontend may have: its count is 16 bits wide.
pub const BACKENDS_PER_FRONTEND: u32 = 65_535;
/// Source ports tried for one new flow before it is refused.
pub const SNAT_TRIES: u32 = 16;
/// Halvings of a block until one element is left: 2^16 is more than a block has.
pub const HALVINGS: u32 = 16;
/// Reads of one frontend that may find it half replaced.
pub const FRONTEND_TRIES: u32 = 4;

/// Ticks without a packet after which the ports of a flow may serve another.
pub mod idle {
    pub const TCP: u32 = 7_200;
    pub const TCP_CLOSED: u32 = 1;
    pub const UDP: u32 = 120;
}

/// Ticks for which XDP trusts a next hop: after it, the route is looked up anew.
pub const HOP_TICKS: u32 = 1;

/// Source ports given to translated packets unless configured otherwise: below the usual ranges
/// of node ports (30000–32767) and of local sockets (32768–60999). 28,976 flows a backend.
pub const SNAT_PORT_MIN: u16 = 1_024;
pub const SNAT_PORT_MAX: u16 = 29_999;
