//! Packets of pods that leave the cluster: they take the node's address.
//!
//! A packet that begins a flow at a pod's interface is compared with the ranges in `MASQUERADE` first; only
//! one that leaves these ranges is looked up in `NON_MASQUERADE4` or `NON_MASQUERADE6`, tries of destinations
//! that keep the pod's address.

use crate::Range;

/// Number of ranges of one kind and family in [`Masquerade`].
pub const RANGES: usize = 2;

/// The only element of `MASQUERADE`. A mask of zero means no range.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// Ranges of pods in the whole cluster: packets to them keep their source. Further ones are in the tries
    /// alone.
    pub cluster4: [Range<u32>; RANGES],
    /// Ranges of the pods of this node: packets from other sources pass unchanged.
    pub pods4: [Range<u32>; RANGES],
    pub cluster6: [Range<[u32; 4]>; RANGES],
    pub pods6: [Range<[u32; 4]>; RANGES],
}

/// Key of `NON_MASQUERADE4` and `NON_MASQUERADE6`; `A` as in [`crate::flow::FlowKey`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix<A> {
    /// Number of significant bits.
    pub bits: u32,
    pub address: A,
}

/// Values of the tries: the reasons why packets to a destination keep their source.
pub mod reason {
    /// Pods of the cluster have such addresses.
    pub const CLUSTER: u32 = 1;
    /// The range is configured.
    pub const CONFIGURED: u32 = 2;
    /// Link-local addresses are reached without a router.
    pub const LINK_LOCAL: u32 = 3;
    /// The address is this node's own.
    pub const NODE: u32 = 4;
    /// Multicast, loopback, and what else is not routed to one host.
    pub const NOT_ROUTED: u32 = 5;
}

const _: () = {
    assert!(size_of::<Masquerade>() == 160 && align_of::<Masquerade>() == 4);
    assert!(core::mem::offset_of!(Masquerade, cluster6) == 32);
    assert!(size_of::<Prefix<u32>>() == 8 && size_of::<Prefix<[u32; 4]>>() == 20);
};
