//! Connections of packets. Sockets whose connection was translated when it was made have none.
//!
//! A flow table is three arrays: slots of whole cache lines, and for each set of [`WAYS`] of them a line of
//! marks and sixteen bytes of hints. The hash of a key selects a set; a flow is in one of its slots or, if
//! all of them were taken, in one of the neighbouring set (whose number differs in the lowest bit). Hints are
//! so small that they stay in caches: they show at once in which slot a flow is, or that there is none, so
//! that a packet of a known flow touches one line of the table. Marks show which slots are taken, and how
//! long their flows have been quiet. A new flow takes an empty slot of either set, or the one of its set that
//! has been quiet for longest: the table never refuses.
//!
//! The first ways of all sets come first in the array of slots, then all second ones ([`slot_of`]), and sets
//! are filled from their ends: the packets of few flows touch few pages.

/// Number of slots of a set.
pub const WAYS: u32 = 16;

/// Both ends of a packet: a key that stays distinct if one backend is behind two frontends. `A` is an
/// address: `u32`, or `[u32; 4]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowKey<A> {
    pub source: A,
    pub destination: A,
    /// For an echo request or reply of ICMP: the identifier on the side that has sent the request, zero on the
    /// other.
    pub source_port: u16,
    pub destination_port: u16,
    /// A whole word, so that programs fill the key without clearing single bytes.
    pub protocol: u32,
}

/// Element of `FLOWS4` and `FLOWS6`: the rewritten ends of a packet of the flow. Both directions have an
/// element of their own; the reversed result of one is the key of the other.
///
/// A slot is reused while others may read it. A writer of a slot's key or result makes `version` odd before
/// and even after; a reader compares `version` before and after, and takes a slot that has changed in between
/// for another flow's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow<A> {
    pub key: FlowKey<A>,
    pub version: u32,
    pub source: A,
    pub destination: A,
    pub source_port: u16,
    pub destination_port: u16,
    pub service: u32,
    /// Value of [`crate::Config::epoch`] when the backend was last known to be in use.
    pub epoch: u32,
    /// Tick of the last packet. A next hop is valid only within it.
    pub seen: u32,
    /// Bits of [`flow_flag`].
    pub flags: u16,
    pub reserved: u16,
    /// The interface to which XDP sends packets of this flow; 0 until it is known.
    pub hop_ifindex: u32,
    pub hop_destination: [u8; 6],
    pub hop_source: [u8; 6],
}

/// A v4 slot: one cache line.
pub type Flow4 = Flow<u32>;
/// A v6 slot, padded to whole cache lines.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow6 {
    pub flow: Flow<[u32; 4]>,
    pub reserved: [u32; 4],
}

/// Element of `FLOW_TAGS4` and `FLOW_TAGS6`: the marks of the slots of one set.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTags {
    /// [`tag::EMPTY`], [`tag::BUSY`], or a mark: the tag of the flow's hash in the upper bits (see
    /// [`tag_of`]), and its age in the lower ones (see [`age_of`]).
    pub tags: [u32; WAYS as usize],
}

/// Values of [`FlowTags::tags`].
pub mod tag {
    /// The slot holds no flow.
    pub const EMPTY: u32 = 0;
    /// A processor is filling the slot.
    pub const BUSY: u32 = 1;
    /// The smallest mark of a flow.
    pub const FIRST: u32 = 1 << AGE_BITS;
    /// Number of bits of the age in a mark; the tag is above them. They wrap after three days: a flow that
    /// has been quiet for longer looks younger, and is evicted a little later.
    pub const AGE_BITS: u32 = 18;
    /// All bits of the age.
    pub const AGE: u32 = FIRST - 1;
    /// Added to the age of a flow that has ended: it looks quiet for 39 hours longer than it has been, and is
    /// evicted before others.
    pub const ENDED: u32 = 1 << (AGE_BITS - 1);
    /// Ticks that a mark may be ahead of the processor that reads it, which may have read the time before it
    /// was delayed.
    pub const AHEAD: u32 = 4;
}

/// Element of `FLOW_HINTS4` and `FLOW_HINTS6`: a byte for each slot of a set, the hint of its flow's hash
/// (see [`hint_of`]), or 0 if there is none. The first way is the lowest byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowHints {
    pub hints: [u64; WAYS as usize / 8],
}

/// Bits of [`Flow::flags`].
pub mod flow_flag {
    /// The direction from the backend to the client.
    pub const REVERSE: u16 = 1;
    /// The client is outside and the backend on another node: packets leave through the programs, without the
    /// stack. The client's address is replaced by the node's, except with direct server return.
    pub const THROUGH: u16 = 2;
    /// This direction has sent its FIN.
    pub const FIN: u16 = 4;
    /// The other direction has sent its FIN.
    pub const FIN_PEER: u16 = 8;
    /// Either direction has sent RST.
    pub const RESET: u16 = 16;
    /// All bits that a new connection clears.
    pub const CLOSING: u16 = FIN | FIN_PEER | RESET;
    /// The external scope was looked up: set for packets from an uplink.
    pub const EXTERNAL: u16 = 32;
    /// The backend answers the client itself (direct server return): the packet goes to the
    /// backend's node with the frontend in an IP option, or
    pub const DSR_OPTION: u16 = 64;
    /// in an outer IP header.
    pub const DSR_IPIP: u16 = 128;
    /// The source is the node's because the packet leaves the cluster; on both elements.
    pub const MASQUERADE: u16 = 256;
    /// Bits that the elements of both directions have in common.
    pub const KEPT_BY_REPLY: u16 = THROUGH | MASQUERADE;
}

impl<A: Copy> FlowKey<A> {
    /// Returns the key of packets in the other direction.
    #[inline(always)]
    pub const fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
        }
    }
}

/// Computes one step of a hash.
#[inline(always)]
const fn stir(state: u64, word: u64) -> u64 {
    let state = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state ^ state >> 32
}

/// Computes the last step of a hash: ports and protocol.
#[inline(always)]
const fn finish(state: u64, source_port: u16, destination_port: u16, protocol: u32) -> u64 {
    let ends = source_port as u64 | (destination_port as u64) << 16 | (protocol as u64) << 32;
    let state = (state ^ ends).wrapping_mul(0x94d0_49bb_1331_11eb);
    let state = (state ^ state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^ state >> 32
}

/// Returns the initial state of a hash, for [`crate::Config::seed`].
#[inline(always)]
const fn begin(seed: u32) -> u64 {
    (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl FlowKey<u32> {
    /// Returns the hash of the key. The lower half selects the set (see [`set_of`]), the upper half makes the
    /// tag and the hint. Programs and user space must agree.
    #[inline(always)]
    pub const fn hash(&self, seed: u32) -> u64 {
        let state = stir(begin(seed), self.source as u64 | (self.destination as u64) << 32);
        finish(state, self.source_port, self.destination_port, self.protocol)
    }
}

impl FlowKey<[u32; 4]> {
    /// Returns the hash of the key, like [`FlowKey::<u32>::hash`].
    #[inline(always)]
    pub const fn hash(&self, seed: u32) -> u64 {
        let (source, destination) = (&self.source, &self.destination);
        let state = stir(begin(seed), source[0] as u64 | (source[1] as u64) << 32);
        let state = stir(state, source[2] as u64 | (source[3] as u64) << 32);
        let state = stir(state, destination[0] as u64 | (destination[1] as u64) << 32);
        let state = stir(state, destination[2] as u64 | (destination[3] as u64) << 32);
        finish(state, self.source_port, self.destination_port, self.protocol)
    }
}

/// Returns the set of a hash, in a table of `flow_mask + 1` slots.
#[inline(always)]
pub const fn set_of(hash: u64, flow_mask: u32) -> u32 {
    hash as u32 & sets_mask(flow_mask)
}

/// Returns the number of sets in a table of `flow_mask + 1` slots, less one.
#[inline(always)]
pub const fn sets_mask(flow_mask: u32) -> u32 {
    flow_mask / WAYS
}

/// Returns the index of the slot of a set's way, in a table of `flow_mask + 1` slots.
#[inline(always)]
pub const fn slot_of(set: u32, way: u32, flow_mask: u32) -> u32 {
    way * (sets_mask(flow_mask) + 1) + set
}

/// Returns the way that is evicted first if all others have been quiet for as long.
#[inline(always)]
pub const fn start_of(hash: u64) -> u32 {
    (hash >> 28) as u32 & (WAYS - 1)
}

/// Returns the tag of a hash: a mark without its age.
#[inline(always)]
pub const fn tag_of(hash: u64) -> u32 {
    (hash >> 24) as u32 & !tag::AGE | 1 << 31
}

/// Returns the hint of a hash, which is never 0.
#[inline(always)]
pub const fn hint_of(hash: u64) -> u8 {
    let hint = (hash >> 56) as u8;
    if hint == 0 { 1 << 7 } else { hint }
}

/// Returns the age in the mark of a flow: its last tick, or an earlier one if it has ended.
#[inline(always)]
pub const fn age_of(seen: u32, ended: bool) -> u32 {
    let earlier = if ended { tag::ENDED } else { 0 };
    seen.wrapping_sub(earlier) & tag::AGE
}

/// Returns the ticks for which the flow of a mark has been quiet at the tick `now`, plus [`tag::AHEAD`]: less
/// if another processor's tick was later.
#[inline(always)]
pub const fn quiet_of(mark: u32, now: u32) -> u32 {
    now.wrapping_add(tag::AHEAD).wrapping_sub(mark) & tag::AGE
}

impl<A: Copy> Flow<A> {
    /// Returns the key of the element for the other direction.
    #[inline(always)]
    pub const fn sibling(&self) -> FlowKey<A> {
        FlowKey {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.key.protocol,
        }
    }
}

/// Key of `FRAGMENTS`: the fragments of one datagram. A v4 address uses the first word.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentKey {
    pub source: [u32; 4],
    pub destination: [u32; 4],
    pub identification: u32,
    pub protocol: u32,
}

/// Value of `FRAGMENTS`: the parts that only the first fragment has, and the list of those that wait for it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    /// Ports of the datagram, once [`Fragment::KNOWN`].
    pub source_port: u16,
    pub destination_port: u16,
    /// Tick of the first fragment, or of the first that waited for it.
    pub seen: u32,
    /// [`Fragment::KNOWN`] if the first fragment has come; else one plus the index in `HELD` of the fragment
    /// that came last; 0 for none.
    pub waiting: u32,
    /// For SCTP: bytes of the whole datagram, without IP headers, once its last fragment has come; with
    /// [`Fragment::FIRST_WAITS`].
    pub length: u32,
}

impl Fragment {
    /// The first fragment has come.
    pub const KNOWN: u32 = u32::MAX;
    /// The first fragment waits too: its checksum depends on the length.
    pub const FIRST_WAITS: u32 = 1 << 31;
}

/// Element of `HELD`: a fragment that waits for its first one. All that wait for the same one are a list, the
/// latest first; its head is [`Fragment::waiting`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// One of [`held`].
    pub state: u32,
    /// The previous fragment of the list, in the form of [`Fragment::waiting`].
    pub next: u32,
    /// Number of bytes of `packet` in use.
    pub length: u32,
    pub reserved: [u32; 3],
    pub key: FragmentKey,
    /// From the IP header on.
    pub packet: [u8; Held::PACKET],
}

impl Held {
    /// The longest packet that may wait: the usual MTU of interfaces with large frames, and an outer header.
    pub const PACKET: usize = 9_152;
}

/// Values of [`Held::state`].
pub mod held {
    pub const FREE: u32 = 0;
    /// A processor is filling or emptying it.
    pub const BUSY: u32 = 1;
    pub const FULL: u32 = 2;
}

const _: () = {
    assert!(size_of::<FlowKey<u32>>() == 16 && size_of::<FlowKey<[u32; 4]>>() == 40);
    assert!(core::mem::offset_of!(FlowKey<u32>, protocol) == 12);
    assert!(size_of::<Flow4>() == 64 && align_of::<Flow4>() == 4);
    assert!(core::mem::offset_of!(Flow4, version) == 16);
    assert!(core::mem::offset_of!(Flow4, service) == 32);
    assert!(core::mem::offset_of!(Flow4, flags) == 44);
    assert!(core::mem::offset_of!(Flow4, hop_source) == 58);
    assert!(size_of::<Flow<[u32; 4]>>() == 112 && size_of::<Flow6>() == 128);
    assert!(size_of::<FlowTags>() == 64 && size_of::<FlowHints>() == WAYS as usize);
    assert!(size_of::<FragmentKey>() == 40 && size_of::<Fragment>() == 16);
    assert!(core::mem::offset_of!(Held, packet) == 64 && size_of::<Held>() == 9_216);
};
