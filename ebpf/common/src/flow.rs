//! Connections that packets belong to. Sockets whose connection was translated when it was made
//! have none.

/// Key of `FLOWS4`: both ends, so that one backend behind two frontends does not collide.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowKey4 {
    pub source: u32,
    pub destination: u32,
    pub source_port: u16,
    pub destination_port: u16,
    /// A whole word, so that programs fill the key without clearing single bytes.
    pub protocol: u32,
}

/// Value of `FLOWS4`: what a packet of the flow becomes. Both directions have an element of
/// their own; the reversed result of one is the key of the other.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow4 {
    pub source: u32,
    pub destination: u32,
    pub source_port: u16,
    pub destination_port: u16,
    pub service: u32,
    /// Generation of the service when the backend was last known to be in use.
    pub generation: u32,
    /// Bits of [`flow_flag`].
    pub flags: u16,
    pub reserved: u16,
    /// Tick of the last packet.
    pub seen: u32,
    /// Tick up to which the next hop below holds; only XDP keeps one.
    pub hop_until: u32,
    pub hop_ifindex: u32,
    pub hop_destination: [u8; 6],
    pub hop_source: [u8; 6],
}

/// Bits of [`Flow4::flags`].
pub mod flow_flag {
    /// From the backend to the client.
    pub const REVERSE: u16 = 1;
    /// The client's address is replaced by the node's: packets of both directions leave through
    /// the programs, without the stack.
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
}

impl FlowKey4 {
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

impl Flow4 {
    /// The key of the element for the other direction.
    #[inline(always)]
    pub const fn sibling(&self, protocol: u32) -> FlowKey4 {
        FlowKey4 {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol,
        }
    }
}

/// Key of `FLOWS6`, which layout version 1 reserves and no program fills yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowKey6 {
    pub source: [u32; 4],
    pub destination: [u32; 4],
    pub source_port: u16,
    pub destination_port: u16,
    /// A whole word, so that programs fill the key without clearing single bytes.
    pub protocol: u32,
}

/// Value of `FLOWS6`; fields as in [`Flow4`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow6 {
    pub source: [u32; 4],
    pub destination: [u32; 4],
    pub source_port: u16,
    pub destination_port: u16,
    pub service: u32,
    pub generation: u32,
    pub flags: u16,
    pub reserved: u16,
    pub seen: u32,
    pub hop_until: u32,
    pub hop_ifindex: u32,
    pub hop_destination: [u8; 6],
    pub hop_source: [u8; 6],
}

const _: () = {
    assert!(size_of::<FlowKey4>() == 16 && align_of::<FlowKey4>() == 4);
    assert!(core::mem::offset_of!(FlowKey4, protocol) == 12);
    assert!(size_of::<Flow4>() == 48 && align_of::<Flow4>() == 4);
    assert!(core::mem::offset_of!(Flow4, service) == 12);
    assert!(core::mem::offset_of!(Flow4, flags) == 20);
    assert!(core::mem::offset_of!(Flow4, hop_destination) == 36);
    assert!(size_of::<FlowKey6>() == 40);
    assert!(size_of::<Flow6>() == 72);
    assert!(core::mem::offset_of!(Flow6, service) == 36);
};
