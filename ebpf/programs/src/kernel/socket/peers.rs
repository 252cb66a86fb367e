//! Peers of sockets without a connection, and connections that found no slot.

use aya_ebpf::bindings::BPF_ANY;
use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6};

use super::super::family::{Family, V4, V6};
use super::super::maps::{SOCKETS4, SOCKETS6};

/// A socket and one end of its exchange with a service.
#[derive(Clone, Copy)]
pub struct PeerKey<A> {
    pub cookie: u64,
    pub address: A,
    pub port: u16,
    pub protocol: u8,
    /// One of [`ebpf_common::socket::direction`].
    pub direction: u8,
}

/// The other end.
#[derive(Clone, Copy)]
pub struct Peer<A> {
    pub address: A,
    pub port: u16,
    pub epoch: u32,
    pub service: u32,
}

/// The maps of a family.
pub trait Peers: Family {
    fn peer(key: &PeerKey<Self::Address>) -> Option<Peer<Self::Address>>;

    /// Stores the peer. Without the element, the application sees the backend as its peer, and works all the
    /// same.
    fn remember(key: &PeerKey<Self::Address>, peer: &Peer<Self::Address>);
}

impl Peers for V4 {
    #[inline(always)]
    fn peer(key: &PeerKey<u32>) -> Option<Peer<u32>> {
        // SAFETY: the pointer leads to a value of the map, this socket's own.
        let value = unsafe { SOCKETS4.get_ptr(&key4(key))?.read() };
        Some(Peer { address: value.address, port: value.port, epoch: value.epoch, service: value.service })
    }

    #[inline(always)]
    fn remember(key: &PeerKey<u32>, peer: &Peer<u32>) {
        let Peer { address, port, epoch, service } = *peer;
        let value = Socket4 { address, port, reserved: 0, epoch, service };
        let _ = SOCKETS4.insert(&key4(key), &value, BPF_ANY as u64);
    }
}

impl Peers for V6 {
    #[inline(always)]
    fn peer(key: &PeerKey<[u32; 4]>) -> Option<Peer<[u32; 4]>> {
        // SAFETY: as for v4.
        let value = unsafe { SOCKETS6.get_ptr(&key6(key))?.read() };
        Some(Peer { address: value.address, port: value.port, epoch: value.epoch, service: value.service })
    }

    #[inline(always)]
    fn remember(key: &PeerKey<[u32; 4]>, peer: &Peer<[u32; 4]>) {
        let Peer { address, port, epoch, service } = *peer;
        let value = Socket6 { address, port, reserved: 0, epoch, service };
        let _ = SOCKETS6.insert(&key6(key), &value, BPF_ANY as u64);
    }
}

#[inline(always)]
fn key4(key: &PeerKey<u32>) -> SocketKey4 {
    let PeerKey { cookie, address, port, protocol, direction } = *key;
    SocketKey4 { cookie, address, port, protocol, direction }
}

#[inline(always)]
fn key6(key: &PeerKey<[u32; 4]>) -> SocketKey6 {
    let PeerKey { cookie, address, port, protocol, direction } = *key;
    SocketKey6 { cookie, address, port, protocol, direction, reserved: 0 }
}
