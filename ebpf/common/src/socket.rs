//! Local sockets that were sent elsewhere when they connected, or when they sent a datagram.

/// Key of `SOCKETS4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketKey4 {
    pub cookie: u64,
    /// [`direction::FORWARD`]: the frontend; [`direction::REVERSE`]: the backend.
    pub address: u32,
    pub port: u16,
    pub protocol: u8,
    pub direction: u8,
}

/// Value of `SOCKETS4`: the other of frontend and backend.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Socket4 {
    pub address: u32,
    pub port: u16,
    pub reserved: u16,
    /// Block in which the backend was found; while the frontend names it, the backend holds.
    pub block: u32,
    pub service: u32,
}

/// Key of `SOCKETS6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketKey6 {
    pub cookie: u64,
    pub address: [u32; 4],
    pub port: u16,
    pub protocol: u8,
    pub direction: u8,
    pub reserved: u32,
}

/// Value of `SOCKETS6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Socket6 {
    pub address: [u32; 4],
    pub port: u16,
    pub reserved: u16,
    pub block: u32,
    pub service: u32,
}

/// Which way a key of `SOCKETS4` or `SOCKETS6` leads.
pub mod direction {
    /// From frontend to backend: keeps the datagrams of an unconnected socket together.
    pub const FORWARD: u8 = 0;
    /// From backend to frontend: names the peer that the application knows.
    pub const REVERSE: u8 = 1;
}

const _: () = {
    assert!(size_of::<SocketKey4>() == 16 && align_of::<SocketKey4>() == 8);
    assert!(core::mem::offset_of!(SocketKey4, direction) == 15);
    assert!(size_of::<Socket4>() == 16);
    assert!(core::mem::offset_of!(Socket4, service) == 12);
    assert!(size_of::<SocketKey6>() == 32 && align_of::<SocketKey6>() == 8);
    assert!(core::mem::offset_of!(SocketKey6, reserved) == 28);
    assert!(size_of::<Socket6>() == 28);
    assert!(core::mem::offset_of!(Socket6, service) == 24);
};
