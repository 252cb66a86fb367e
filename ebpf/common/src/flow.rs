//! Connections that packets belong to. Sockets whose connection was translated when it was made
//! have none.
//!
//! A flow table is two arrays: slots of whole cache lines, and for each [`WAYS`] of them a line of
//! tags. The hash of a key names a slot and thereby a set, the [`WAYS`] slots around it. A flow
//! lies in the slot that its hash names, its home, or in another slot of the set or of the set beside
//! it (whose number differs in the lowest bit), where the lines of tags find it. So most packets
//! touch one line, and no look-up more than a few. A new flow takes an empty slot of either, or the
//! one of its set that has been quiet for longest: the table never refuses.

/// Slots of a set.
pub const WAYS: u32 = 16;

/// Both ends of a packet: a key that one backend behind two frontends does not make collide.
/// `A` is an address: `u32`, or `[u32; 4]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowKey<A> {
    pub source: A,
    pub destination: A,
    pub source_port: u16,
    pub destination_port: u16,
    /// A whole word, so that programs fill the key without clearing single bytes.
    pub protocol: u32,
}

/// Element of `FLOWS4` and `FLOWS6`: what a packet of the flow becomes. Both directions have one
/// of their own; the reversed result of one is the key of the other.
///
/// A slot is reused while others may read it. Whoever writes a slot's key or result makes
/// `version` odd before and even after; who reads them looks at `version` before and after, and
/// takes a slot that has changed in between for another flow's.
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
    /// [`crate::Config::epoch`] when the backend was last known to be in use.
    pub epoch: u32,
    /// Tick of the last packet. A next hop is trusted within it.
    pub seen: u32,
    /// Bits of [`flow_flag`].
    pub flags: u16,
    pub reserved: u16,
    /// Where XDP sends packets of this flow; 0 until it is known.
    pub hop_ifindex: u32,
    pub hop_destination: [u8; 6],
    pub hop_source: [u8; 6],
}

/// A v4 slot: one cache line.
pub type Flow4 = Flow<u32>;
/// A v6 slot with the fill to whole cache lines.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow6 {
    pub flow: Flow<[u32; 4]>,
    pub reserved: [u32; 4],
}

/// Element of `FLOW_TAGS4` and `FLOW_TAGS6`: which flows the slots of one set hold.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTags {
    /// [`tag::EMPTY`], [`tag::BUSY`], or bits of the hash of the slot's key.
    pub tags: [u32; WAYS as usize],
}

/// Values of [`FlowTags::tags`] that are no hash; a hash that equals one is made
/// [`tag::FIRST`](self::tag::FIRST).
pub mod tag {
    /// The slot holds no flow.
    pub const EMPTY: u32 = 0;
    /// Somebody is filling the slot.
    pub const BUSY: u32 = 1;
    /// The least tag that a flow can have.
    pub const FIRST: u32 = 2;
}

/// Bits of [`Flow::flags`].
pub mod flow_flag {
    /// From the backend to the client.
    pub const REVERSE: u16 = 1;
    /// The client is outside and the backend elsewhere: packets leave through the programs, without
    /// the stack. The client's address is replaced by the node's, but for direct server return.
    pub const THROUGH: u16 = 2;
    /// This direction has sent its FIN.
    pub const FIN: u16 = 4;
    /// The other direction has sent its FIN.
    pub const FIN_PEER: u16 = 8;
    /// Either direction has sent RST.
    pub const RESET: u16 = 16;
    /// All that a new connection clears.
    pub const CLOSING: u16 = FIN | FIN_PEER | RESET;
    /// Where the frontend was looked up: set for packets from an uplink.
    pub const EXTERNAL: u16 = 32;
    /// The backend answers the client itself (direct server return): the packet goes to the
    /// backend's node with the frontend in an IP option, or
    pub const DSR_OPTION: u16 = 64;
    /// in an outer IP header.
    pub const DSR_IPIP: u16 = 128;
}

impl<A: Copy> FlowKey<A> {
    /// The key of packets in the other direction.
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

/// One step of a hash.
#[inline(always)]
const fn stir(state: u64, word: u64) -> u64 {
    let state = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state ^ state >> 32
}

/// Last step of a hash: ports and protocol.
#[inline(always)]
const fn finish(state: u64, source_port: u16, destination_port: u16, protocol: u32) -> u64 {
    let ends = source_port as u64 | (destination_port as u64) << 16 | (protocol as u64) << 32;
    let state = (state ^ ends).wrapping_mul(0x94d0_49bb_1331_11eb);
    let state = (state ^ state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^ state >> 32
}

/// Where the hash of a key begins, for [`crate::Config::seed`].
#[inline(always)]
const fn begin(seed: u32) -> u64 {
    (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl FlowKey<u32> {
    /// The lower half names the home slot, the upper half is the tag (see [`tag_of`]). Programs and
    /// user space have to agree.
    #[inline(always)]
    pub const fn hash(&self, seed: u32) -> u64 {
        let state = stir(begin(seed), self.source as u64 | (self.destination as u64) << 32);
        finish(state, self.source_port, self.destination_port, self.protocol)
    }
}

impl FlowKey<[u32; 4]> {
    /// As [`FlowKey::<u32>::hash`].
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

/// The tag of a hash.
#[inline(always)]
pub const fn tag_of(hash: u64) -> u32 {
    let tag = (hash >> 32) as u32;
    if tag < tag::FIRST { tag::FIRST } else { tag }
}

impl<A: Copy> Flow<A> {
    /// The key of the element for the other direction.
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

/// Value of `FRAGMENTS`: what only the first fragment says, and who waits for it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    /// Those of the datagram, once [`Fragment::KNOWN`].
    pub source_port: u16,
    pub destination_port: u16,
    /// Tick of the first fragment, or of the first that waited for it.
    pub seen: u32,
    /// [`Fragment::KNOWN`] if the first fragment has come; else the place in `HELD` of the fragment
    /// that came last, and one; 0 for none.
    pub waiting: u32,
    /// Of SCTP: bytes of the whole datagram, without IP headers, once its last fragment has come; with
    /// [`Fragment::FIRST_WAITS`].
    pub length: u32,
}

impl Fragment {
    /// The first fragment has come.
    pub const KNOWN: u32 = u32::MAX;
    /// The first fragment waits too: its checksum depends on the length.
    pub const FIRST_WAITS: u32 = 1 << 31;
}

/// Element of `HELD`: a fragment that waits for its first one. All that wait for the same one are a
/// list, the last that came first; its head is [`Fragment::waiting`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// One of [`held`].
    pub state: u32,
    /// As [`Fragment::waiting`]: the one that came before.
    pub next: u32,
    /// Bytes of `packet` in use.
    pub length: u32,
    pub reserved: [u32; 3],
    pub key: FragmentKey,
    /// From the IP header on.
    pub packet: [u8; Held::PACKET],
}

impl Held {
    /// The longest packet that may wait: what interfaces with large frames are usually set to, and
    /// an outer header.
    pub const PACKET: usize = 9_152;
}

/// Values of [`Held::state`].
pub mod held {
    pub const FREE: u32 = 0;
    /// Somebody is filling or emptying it.
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
    assert!(size_of::<FlowTags>() == 64);
    assert!(size_of::<FragmentKey>() == 40 && size_of::<Fragment>() == 16);
    assert!(core::mem::offset_of!(Held, packet) == 64 && size_of::<Held>() == 9_216);
};
