//! The contract between the kernel programs and user space: map keys, values, limits and the layout version.
//! Every type is `repr(C)`, fixed in width and free of implicit padding; sizes and offsets are asserted at
//! compile time. `docs/dataplane.md` draws them.
//!
//! Addresses and ports are stored in the form of packets (network byte order); every other integer is in
//! native byte order.
#![no_std]

pub mod bandwidth;
pub mod choice;
pub mod event;
pub mod flow;
pub mod frontend;
pub mod limits;
pub mod masquerade;
pub mod metric;
pub mod policy;
pub mod socket;
pub mod trace;
pub mod waiting;

/// The version of the layout, raised whenever a map's key, value or meaning changes. It is part of the path
/// of pinned maps and links, so that two layouts never mix.
pub const LAYOUT_VERSION: u32 = 2;

/// IP protocol numbers that are balanced.
pub mod protocol {
    pub const ICMP: u8 = 1;
    pub const ICMP6: u8 = 58;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const SCTP: u8 = 132;
}

/// The origin of the traffic that a frontend serves; part of its key.
pub mod scope {
    /// Local sockets, and packets that arrive on the interface of a local endpoint.
    pub const INTERNAL: u8 = 0;
    /// Packets that arrive on an uplink.
    pub const EXTERNAL: u8 = 1;
}

/// Shift from nanoseconds of the kernel's coarse clock to ticks of 2^30 ns (1.07 s): cheap to compute in a
/// program that has no division, and fine enough for expiry.
pub const TICK_SHIFT: u32 = 30;

/// Node-wide settings that every program reads: the only element of `CONFIG`. The fields that each packet
/// needs come first, within one cache line.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Cookie of the network namespace whose loopback addresses serve wildcard frontends; 0 for none.
    pub netns_cookie: u64,
    /// Incremented whenever any service loses a backend, after its frontends and its element of `LOSSES` are
    /// written.
    pub epoch: u32,
    /// Number of slots of `FLOWS4` and of `FLOWS6`, less one; the numbers are powers of two.
    pub flow_mask4: u32,
    pub flow_mask6: u32,
    /// Seed of every hash of a flow, so that nobody outside can target one set.
    pub seed: u32,
    /// Source address of packets that must come back through this node (network byte order); 0 for none.
    pub snat_address4: u32,
    /// Lowest and highest port (host byte order, inclusive) of frontends with the unspecified address; `min >
    /// max` if there are none. Saves the miss path two look-ups.
    pub wildcard_port_min: u16,
    pub wildcard_port_max: u16,
    /// Range of source ports for translated packets (host byte order, inclusive).
    pub snat_port_min: u16,
    pub snat_port_max: u16,
    /// Bits of [`config_flag`].
    pub flags: u32,
    /// The node's IPv6 address as a source; all zero for none.
    pub snat_address6: [u32; 4],
    /// Address ranges of services: network and mask, in network byte order. A mask of zero means no range.
    pub ranges4: [Range<u32>; 2],
    pub ranges6: [Range<[u32; 4]>; 2],
}

/// An address range.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range<A> {
    pub network: A,
    pub mask: A,
}

/// Bits of [`Config::flags`].
pub mod config_flag {
    /// XDP may send a packet out of another interface that is in `DEVICES`.
    pub const XDP_REDIRECT: u32 = 1;
    /// `EXEMPT` has elements.
    pub const EXEMPTIONS: u32 = 2;
    /// Rewritten packets for this node's pods, and those between pods, go through the stack, where packet filters
    /// of others see them, instead of directly to the next interface.
    pub const THROUGH_STACK: u32 = 4;
    /// Processes of the node's own network namespace may not bind node ports in use.
    pub const GUARD_NODE_PORTS: u32 = 8;
    /// Wildcard frontends are not served on loopback addresses.
    pub const LOOPBACK_CLOSED: u32 = 16;
    /// Programs of another layout run behind these on every hook: connections with a flow here stay here,
    /// everything else is left to the others. Set by a process that replaces the layout.
    pub const LEAVING: u32 = 32;
    /// `TRACKED4` or `TRACKED6` has elements: packets of those connections pass unchanged.
    pub const TRACKED: u32 = 64;
    /// The rules of others have only just stopped translating new connections: segments in the middle of a
    /// connection without a flow are theirs, and pass.
    pub const SETTLING: u32 = 128;
    /// Packets of pods that leave the cluster take the node's address, see [`crate::masquerade`].
    pub const MASQUERADE: u32 = 256;
    /// `POLICY_ENDPOINTS` has elements, see [`crate::policy`].
    pub const POLICY: u32 = 512;
}

/// Values of `TRACKED4` and `TRACKED6`: connections that the kernel's own connection tracking translates, by
/// rules of others. Keys are those of flows, in the direction of the packets that arrive for translation.
pub mod tracked {
    /// The connection is established: a packet that opens one with its ends opens another.
    pub const UNDER_WAY: u32 = 1;
    /// It is being opened: packets that do so belong to it as well.
    pub const OPENING: u32 = 2;
}

/// The counters of one service, for some of the processors: each service has [`ServiceMetrics::STRIPES`]
/// elements in an array that all processors share, with atomic additions. A per-processor array would be
/// exact as well, but the kernel takes a microsecond per service and a cache line per processor to create it:
/// a second on a large machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceMetrics {
    /// Connections, or first datagrams of a flow, that got a backend.
    pub connections: u64,
    /// Connections and datagrams that found no backend.
    pub refused: u64,
}

impl ServiceMetrics {
    /// Number of elements of a service. Processors whose numbers are equal modulo this share one.
    pub const STRIPES: u32 = 4;

    /// Returns the index of a service's element. A cache line contains those of four services and of one
    /// stripe, so that processors of different stripes do not compete for it.
    #[inline(always)]
    pub const fn place(service: u32, processor: u32) -> u32 {
        ((service & !3) * Self::STRIPES) | ((processor % Self::STRIPES) << 2) | (service & 3)
    }

    /// Returns the number of elements for this number of services; its arithmetic does not overflow below
    /// 2^29 of them.
    pub const fn elements(services: u32) -> u32 {
        services.next_multiple_of(4) * Self::STRIPES
    }
}

const _: () = {
    assert!(size_of::<Config>() == 136 && align_of::<Config>() == 8);
    assert!(core::mem::offset_of!(Config, snat_address4) == 24);
    assert!(core::mem::offset_of!(Config, flags) == 36);
    assert!(core::mem::offset_of!(Config, ranges4) == 56);
    assert!(core::mem::offset_of!(Config, ranges6) == 72);
    assert!(size_of::<ServiceMetrics>() == 16);
    assert!(
        ServiceMetrics::place(7, 6) == 16 + 8 + 3
            && ServiceMetrics::place(7, 3) < ServiceMetrics::elements(8)
    );
};
