//! Local sockets that were redirected when they connected, or when they sent a datagram.
//!
//! A connected socket has a slot in `CONNECTED`: its cookie selects a set of [`WAYS`] slots, and the line of
//! tags in `CONNECTED_TAGS` shows which of them is its own. The slot is freed when the socket is closed.
//! `SOCKETS4` and `SOCKETS6` hold the peers of sockets without a connection, and connections whose set had no
//! slot left.

use crate::flow::WAYS;
use crate::limits;

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

/// Value of `SOCKETS4`: the backend for a frontend, or the frontend for a backend.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Socket4 {
    pub address: u32,
    pub port: u16,
    pub reserved: u16,
    /// Value of [`crate::Config::epoch`] when the backend was last known to be in use.
    pub epoch: u32,
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
    pub epoch: u32,
    pub service: u32,
}

/// The direction of a key of `SOCKETS4` or `SOCKETS6`.
pub mod direction {
    /// From frontend to backend: keeps the datagrams of an unconnected socket together.
    pub const FORWARD: u8 = 0;
    /// From backend to frontend: gives the peer that the application knows.
    pub const REVERSE: u8 = 1;
}

/// Element of `CONNECTED`. Addresses of v4 use the first word; the others are undefined then.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connected {
    /// Cookie of the socket, 0 while the slot is being written. Written last: a slot whose cookie does not
    /// belong to its tag is not complete yet.
    pub cookie: u64,
    /// Cookie of the network namespace of a datagram socket; else 0.
    pub netns: u64,
    /// The address that the application connected to.
    pub frontend: [u32; 4],
    /// The address that its packets are sent to.
    pub backend: [u32; 4],
    pub frontend_port: u16,
    pub backend_port: u16,
    pub service: u32,
    /// IP protocol number.
    pub protocol: u16,
    /// 4 or 6.
    pub family: u16,
    pub reserved: u32,
}

impl Connected {
    /// Number of sets of [`WAYS`] slots, and of lines of tags; a power of two.
    pub const SETS: u32 = limits::CONNECTED / WAYS;

    /// Returns the set of a socket's slot. Cookies are assigned consecutively, so sets fill evenly; as many
    /// as a set has slots share it, so that its lines are still in the cache when sockets open and close.
    #[inline(always)]
    pub const fn set(cookie: u64) -> u32 {
        (cookie as u32 / WAYS) & (Self::SETS - 1)
    }

    /// Returns the tag that distinguishes the sockets of one set; never 0, which marks free slots.
    #[inline(always)]
    pub const fn tag(cookie: u64) -> u32 {
        let high = cookie >> limits::CONNECTED.trailing_zeros();
        (high as u32).wrapping_mul(WAYS) | (cookie as u32 % WAYS) | 1 << 31
    }

    /// Returns the index of an element of `CONNECTED`.
    #[inline(always)]
    pub const fn element(set: u32, way: u32) -> u32 {
        set * WAYS + way
    }
}

const _: () = {
    assert!(Connected::SETS.is_power_of_two() && WAYS.is_power_of_two());
    assert!(size_of::<Connected>() == 64 && align_of::<Connected>() == 8);
    assert!(core::mem::offset_of!(Connected, frontend) == 16);
    assert!(core::mem::offset_of!(Connected, service) == 52);
    assert!(core::mem::offset_of!(Connected, reserved) == 60);
    assert!(size_of::<SocketKey4>() == 16 && align_of::<SocketKey4>() == 8);
    assert!(core::mem::offset_of!(SocketKey4, direction) == 15);
    assert!(size_of::<Socket4>() == 16);
    assert!(core::mem::offset_of!(Socket4, service) == 12);
    assert!(size_of::<SocketKey6>() == 32 && align_of::<SocketKey6>() == 8);
    assert!(core::mem::offset_of!(SocketKey6, reserved) == 28);
    assert!(size_of::<Socket6>() == 28);
    assert!(core::mem::offset_of!(Socket6, service) == 24);
};
