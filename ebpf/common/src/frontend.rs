//! Frontends, their backends, and the value by which one is switched to another set of backends.
//!
//! A frontend with port 0 and protocol 0 (scope internal) is a mark: the address is a service's. Packets to a
//! port of it that no frontend has are refused; packets to an address of the service ranges without a mark
//! are dropped.

/// Key of `FRONTENDS4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrontendKey4 {
    /// 0 for a wildcard: any address of `LOCAL_ADDRS4`.
    pub address: u32,
    pub port: u16,
    pub protocol: u8,
    pub scope: u8,
}

/// Key of `FRONTENDS6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrontendKey6 {
    pub address: [u32; 4],
    pub port: u16,
    pub protocol: u8,
    pub scope: u8,
}

/// Value of `FRONTENDS4` and `FRONTENDS6`.
///
/// The kernel recycles the memory of a hash element while a program may still read it. The value therefore
/// verifies itself: [`Frontend::check`] is the exclusive or of the key and of all other fields. A program
/// that reads a mixture of two elements notices, and reads again.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frontend {
    /// The block of the backends, see [`Frontend::pack`]: replaced as one word, so that backends are switched
    /// as a unit.
    pub switch: u64,
    /// Index into `LOSSES` and `SERVICE_METRICS`.
    pub service: u32,
    /// The look-up table for weighted and consistent choice, see [`Lut`]; 0 for none.
    pub lut: u32,
    /// Ticks for which a client stays with its backend; 0 for none.
    pub affinity: u32,
    pub reserved: u32,
    pub check: u64,
}

/// Bits of [`Frontend::flags`].
pub mod frontend_flag {
    /// Without backends, packets are dropped instead of refused.
    pub const DROP_WHEN_EMPTY: u16 = 1;
    /// The source is always replaced by the node's address.
    pub const MASQUERADE: u16 = 2;
    /// Remote backends answer the client themselves; the frontend is sent in an IP option, or
    pub const DSR_OPTION: u16 = 4;
    /// in an outer IP header.
    pub const DSR_IPIP: u16 = 8;
    /// Only sources in `SOURCE_RANGES` are admitted.
    pub const SOURCE_RANGES: u16 = 16;
    /// The backend depends on the packet's ends, in the same way on all nodes, and hardly changes when the
    /// list of backends does: by [`Lut`] if there is one, else by the highest of one hash per backend
    /// (rendezvous hashing).
    pub const CONSISTENT: u16 = 32;
}

impl Frontend {
    /// Packs the block start into bits 0–31, the number of backends into 32–47, the flags into 48–63.
    #[inline(always)]
    pub const fn pack(block: u32, count: u16, flags: u16) -> u64 {
        block as u64 | (count as u64) << 32 | (flags as u64) << 48
    }

    /// Returns the first element of the block in the arena.
    #[inline(always)]
    pub const fn block(&self) -> u32 {
        self.switch as u32
    }

    /// Returns the number of backends in the block.
    #[inline(always)]
    pub const fn count(&self) -> u16 {
        (self.switch >> 32) as u16
    }

    /// Returns bits of [`frontend_flag`].
    #[inline(always)]
    pub const fn flags(&self) -> u16 {
        (self.switch >> 48) as u16
    }

    /// Returns the correct value of [`Frontend::check`], given [`FrontendKey4::fold`] or its v6 equivalent.
    #[inline(always)]
    pub const fn checksum(&self, key: u64) -> u64 {
        let first = self.service as u64 | (self.lut as u64) << 32;
        key ^ self.switch ^ first ^ (self.affinity as u64).rotate_left(13)
    }

    /// Returns the value with its check filled in.
    pub const fn sealed(mut self, key: u64) -> Self {
        self.check = self.checksum(key);
        self
    }
}

impl FrontendKey4 {
    /// Returns the key as one word.
    #[inline(always)]
    pub const fn fold(&self) -> u64 {
        self.address as u64
            | (self.port as u64) << 32
            | (self.protocol as u64) << 48
            | (self.scope as u64) << 56
    }
}

impl FrontendKey6 {
    /// Returns the key folded into one word.
    #[inline(always)]
    pub const fn fold(&self) -> u64 {
        let high = self.address[0] as u64 | (self.address[1] as u64) << 32;
        let low = self.address[2] as u64 | (self.address[3] as u64) << 32;
        let rest = self.port as u64 | (self.protocol as u64) << 16 | (self.scope as u64) << 24;
        high ^ low.rotate_left(17) ^ rest.rotate_left(41)
    }
}

/// A look-up table: 2^`bits` indexes into a block, 16 bits each, four to an element of `LUTS`. A hash selects
/// an entry, the entry a backend. Packed into [`Frontend::lut`]: the first element divided by 16 in bits
/// 0–26, `bits` in 27–31. Element 0 is unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lut {
    /// First element of `LUTS`; a multiple of 16, below 2^31.
    pub start: u32,
    /// Logarithm of the number of entries: 6 to 17.
    pub bits: u32,
}

impl Lut {
    /// Returns the word of a frontend.
    #[inline(always)]
    pub const fn pack(&self) -> u32 {
        self.start >> 4 | self.bits << 27
    }

    /// Returns the table of the word of a frontend; `None` for 0.
    #[inline(always)]
    pub const fn unpack(word: u32) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self { start: (word & 0x07ff_ffff) << 4, bits: word >> 27 })
    }

    /// Returns the element of `LUTS`, and the index in it (0 to 3), for a hash.
    #[inline(always)]
    pub const fn place(&self, hash: u32) -> (u32, u32) {
        let entry = hash >> (32 - self.bits);
        (self.start + (entry >> 2), entry & 3)
    }
}

/// Element of `BACKENDS4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend4 {
    pub address: u32,
    pub port: u16,
    /// Bits of [`backend_flag`].
    pub flags: u16,
}

/// Element of `BACKENDS6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend6 {
    pub address: [u32; 4],
    pub port: u16,
    pub flags: u16,
    pub reserved: u32,
}

impl Backend4 {
    /// Returns the sort key of a backend in its block: blocks are sorted by it, so that a backend is found
    /// quickly (by its address alone too, with port 0), and so that every node has the same order. Less than
    /// 2^63.
    #[inline(always)]
    pub const fn order(address: u32, port: u16) -> u64 {
        (address as u64) << 16 | port as u64
    }
}

impl Backend6 {
    /// Returns the sort key, like [`Backend4::order`]. Two addresses can have the same one, though that is
    /// unlikely.
    #[inline(always)]
    pub const fn order(address: &[u32; 4], port: u16) -> u64 {
        let high = address[0] as u64 | (address[1] as u64) << 32;
        let low = address[2] as u64 | (address[3] as u64) << 32;
        let mixed = (high ^ low.rotate_left(23)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 32) >> 17 << 16 | port as u64
    }
}

/// Bits of [`Backend4::flags`].
pub mod backend_flag {
    /// The backend is on this node.
    pub const LOCAL: u16 = 1;
}

/// Key of `AFFINITY`. The client stays with one backend for all ports of the service.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AffinityKey {
    /// Address of a v4 client, folded address of a v6 client, or with [`AffinityKey::SOCKET`] the cookie of a
    /// local client's network namespace.
    pub client: u64,
    pub service: u32,
    /// 4 or 6.
    pub family: u16,
    /// [`crate::scope`].
    pub scope: u16,
}

impl AffinityKey {
    /// Marks a client that is a network namespace.
    pub const SOCKET: u64 = 1 << 63;
}

/// Value of `AFFINITY`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// A v4 backend uses the first word. Its port is that of the frontend's block.
    pub address: [u32; 4],
    /// Tick of the last use.
    pub seen: u32,
    pub reserved: u32,
}

/// Key of `SOURCE_RANGES4` and `SOURCE_RANGES6`, a trie of prefixes; `A` as in [`crate::flow::FlowKey`]. A
/// source that is found is admitted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceRangeKey<A> {
    /// Number of significant bits: 32 for the service, and those of the address.
    pub bits: u32,
    pub service: u32,
    pub address: A,
}

const _: () = {
    assert!(size_of::<FrontendKey4>() == 8 && align_of::<FrontendKey4>() == 4);
    assert!(core::mem::offset_of!(FrontendKey4, scope) == 7);
    assert!(size_of::<FrontendKey6>() == 20 && align_of::<FrontendKey6>() == 4);
    assert!(core::mem::offset_of!(FrontendKey6, scope) == 19);
    assert!(size_of::<Frontend>() == 32 && align_of::<Frontend>() == 8);
    assert!(core::mem::offset_of!(Frontend, check) == 24);
    assert!(size_of::<Backend4>() == 8);
    assert!(size_of::<Backend6>() == 24);
    assert!(core::mem::offset_of!(Backend6, reserved) == 20);
    assert!(size_of::<AffinityKey>() == 16);
    assert!(core::mem::offset_of!(AffinityKey, scope) == 14);
    assert!(size_of::<Affinity>() == 24);
    assert!(core::mem::offset_of!(Affinity, seen) == 16);
    assert!(size_of::<SourceRangeKey<u32>>() == 12 && size_of::<SourceRangeKey<[u32; 4]>>() == 24);
};
