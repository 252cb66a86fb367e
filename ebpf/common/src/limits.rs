//! Bounds of maps and of loops, with their arithmetic. User space may choose other map sizes when it creates
//! them; bounds of loops are compiled in.

/// Frontends of one family. A service has a mark for each address, and a service port one frontend inside and
/// one outside: four for each of 131,072 services. Allocated on demand: 48 + 8 + 32 = 88 bytes each, and 8
/// MiB of buckets.
pub const FRONTENDS: u32 = 524_288;
/// Backends of one family, in blocks. 8 bytes (v4), 24 bytes (v6) each: 2 and 6 MiB.
pub const BACKENDS: u32 = 262_144;
/// Elements of four entries of look-up tables, 8 bytes each: 512 KiB, that is 128 lists of
/// 16 backends.
pub const LUTS: u32 = 65_536;
/// Services. 8 bytes of losses, 64 bytes of counters: 9 MiB.
pub const SERVICES: u32 = 131_072;
/// Slots of flows, two per connection; a power of two. 64 + 5 bytes (v4): 34.5 MiB. With 100,000 connections
/// it is 38 % full, and a set with its neighbour almost never.
pub const FLOWS4: u32 = 524_288;
/// Slots of flows of IPv6, two per connection; a power of two. 128 + 5 bytes: 8.3 MiB.
pub const FLOWS6: u32 = 65_536;
/// Datagrams whose fragments are in transit. 104 bytes each.
pub const FRAGMENTS: u32 = 8_192;
/// Groups of places for fragments that wait for their first one, see [`crate::waiting`].
pub const HELD_GROUPS: u32 = 8;
/// Places of a group, and fragments of one datagram that may wait; a power of two. Over IPv6's
/// smallest MTU of 1,280 bytes a fragment carries 1,232, so that 64 KiB are 54 fragments, of which
/// all but the first may wait.
pub const HELD_PER_GROUP: u32 = 64;
/// Maximum number of fragments that wait. 9,216 bytes each: 4.5 MiB.
pub const HELD: u32 = HELD_GROUPS * HELD_PER_GROUP;
/// Maximum number of attempts to insert a fragment into the list of waiting ones, while others do the same.
pub const HELD_TRIES: u32 = 4;
/// Connected sockets of both families; a power of two. Further ones are stored like unconnected ones. 64 + 4
/// bytes: 4.3 MiB.
pub const CONNECTED: u32 = 65_536;
/// Two elements per unconnected socket and peer. 80 bytes (v4): 10 MiB.
pub const SOCKETS: u32 = 131_072;
/// One element per client and service with affinity. 88 bytes: 5.5 MiB.
pub const AFFINITY: u32 = 65_536;
/// Source ranges of one family, allocated on demand.
pub const SOURCE_RANGES: u32 = 65_536;
/// Destinations of one family that packets of pods reach under the pod's address: ranges, and addresses of
/// this node. Allocated on demand.
pub const NON_MASQUERADE: u32 = 4_096;
/// Network namespaces whose sockets are left alone.
pub const EXEMPT: u32 = 4_096;
/// Connections of one family that the kernel's own connection tracking translates, allocated on demand: 1 MiB
/// of buckets, 64 bytes (v4) or 88 bytes (v6) each.
pub const TRACKED: u32 = 65_536;
/// Pods of this node that policies select.
pub const POLICY_ENDPOINTS: u32 = 4_096;
/// Addresses and ranges of one family that policies name. 64 bytes each, allocated on demand.
pub const POLICY_PEERS: u32 = 262_144;
/// Combinations of a pod's rules, a class of peers, a protocol, and an aligned range of ports. 64 bytes each,
/// allocated on demand.
pub const POLICY_RULES: u32 = 1_048_576;
/// Connections of pods that policies select, two if both ends are here. 44 + 32 bytes and 48 of the kernel's:
/// 16 MiB, made only where there are policies.
pub const POLICY_FLOWS: u32 = 131_072;
/// Names of pods, policies and rules.
pub const POLICY_NAMES: u32 = 262_144;
/// Pods of this node with a limit of bandwidth. 64 + 4 bytes and 48 of the kernel's, allocated on demand: 464
/// KiB if all are used, and 32 KiB of buckets.
pub const BANDWIDTH: u32 = 4_096;
/// Bytes of the ring buffer of events; a power of two and a multiple of the page.
pub const EVENT_BYTES: u32 = 262_144;
/// Bytes of the log of a trace, at some 200 per step; a power of two and a multiple of the page. Records that
/// do not fit are lost.
pub const TRACE_BYTES: u32 = 1_048_576;
/// Addresses of this node, of one family.
pub const LOCAL_ADDRESSES: u32 = 1_024;
/// Ways to addresses that each processor knows at one time; a power of two. 64 bytes each: 128 KiB a processor.
pub const NEXT_HOPS: u32 = 2_048;
/// Interfaces that XDP may send to.
pub const DEVICES: u32 = 256;
/// Length of a service's name in `SERVICE_NAMES`, padded with zeros: two DNS labels of 63 bytes and a slash.
pub const SERVICE_NAME: usize = 128;

/// Maximum number of backends of a frontend: its count is 16 bits wide.
pub const BACKENDS_PER_FRONTEND: u32 = 65_535;
/// Number of source ports tried for one new flow before it is refused. With half of the range in use, one flow in 250
/// million is refused, and one in 20 with nine tenths in use. Each costs the kernel 600 instructions when it checks
/// the programs.
pub const SNAT_TRIES: u32 = 28;
/// The first of them are drawn at random. The others follow the last of these one by one, so that a free port
/// of a range that is no larger than their number is always found.
pub const SNAT_RANDOM_TRIES: u32 = 20;
/// Number of halvings of a block until one element is left: 2^16 is more than a block has.
pub const HALVINGS: u32 = 16;
/// Number of reads of one frontend that may find it half replaced.
pub const FRONTEND_TRIES: u32 = 4;

/// Ticks without a packet after which the ports of a flow may be given to another.
pub mod idle {
    pub const TCP: u32 = 7_200;
    pub const TCP_CLOSED: u32 = 1;
    pub const UDP: u32 = 120;
}

/// Maximum number of backends that a consistent choice hashes one by one; more have a look-up table.
pub const RENDEZVOUS: u32 = 8;
/// Minimum number of entries of a look-up table per backend: a backend that leaves then moves at most 1 % of
/// the flows of others.
pub const LUT_ENTRIES_PER_BACKEND: u32 = 128;
/// Bounds of [`crate::frontend::Lut::bits`].
pub const LUT_BITS_MIN: u32 = 6;
pub const LUT_BITS_MAX: u32 = 17;

/// Default range of source ports of translated packets: below the usual ranges of node ports (30000–32767)
/// and of local sockets (32768–60999), and above the ports on which a node's components listen (6443, 10250,
/// the tunnel's 14789), because a flow with such a port would take packets that are meant for the listener.
/// 13,616 flows per backend.
pub const SNAT_PORT_MIN: u16 = 16_384;
pub const SNAT_PORT_MAX: u16 = 29_999;
