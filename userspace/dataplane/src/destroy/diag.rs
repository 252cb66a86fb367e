//! sock_diag(7): lists the connected sockets of a network namespace, datagrams and streams, and destroys
//! single ones.

use std::io;
use std::net::IpAddr;

use crate::limits::ANSWER_TIMEOUT;
use crate::netlink::{self, Message};

const NETLINK_SOCK_DIAG: i32 = 4;
/// The request for TCP sockets of both families: one walk through the kernel's table, where the newer request
/// needs one per family. The table is that of all network namespaces.
const STREAMS: u16 = 18;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// States of sockets, as bits. A connected datagram socket is in the state of an open connection.
const ESTABLISHED: u32 = 1 << 1;
/// A socket without a peer has the state of a closed one.
const CLOSED: u32 = 1 << 7;

/// Length of `struct inet_diag_sockid`, which is returned to the kernel unchanged.
const ID: usize = 48;
/// Offset of the id in `struct inet_diag_req_v2`, and the length of that.
const ID_IN_REQUEST: usize = 8;
const REQUEST: usize = ID_IN_REQUEST + ID;
/// Offset of the id in `struct inet_diag_msg`.
const ID_IN_ANSWER: usize = 4;
/// Offset of the cookie in the id: two words, the lower one first.
const COOKIE_IN_ID: usize = 40;
/// Offset of the id in `struct inet_diag_req`, of the requested states after it, and the length of that.
const ID_IN_STREAMS: usize = 4;
const STATES_IN_STREAMS: usize = ID_IN_STREAMS + ID;
const STREAMS_REQUEST: usize = STATES_IN_STREAMS + 8;
/// Attributes requested besides the message, as bits: `INET_DIAG_INFO`.
const INFO: u8 = 1 << 1;

/// A socket that the kernel has listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    family: u8,
    id: [u8; ID],
}

impl Found {
    fn read(body: &[u8]) -> Option<Self> {
        Some(Self { family: *body.first()?, id: array(body, ID_IN_ANSWER)? })
    }

    /// Returns source and destination, IPv4-mapped addresses as IPv4 addresses.
    pub fn ends(&self) -> [(IpAddr, u16); 2] {
        [(0, 4), (2, 20)].map(|(port, address)| {
            let byte = |place: usize| self.id[place];
            let port = u16::from_be_bytes([byte(port), byte(port + 1)]);
            if self.family == libc::AF_INET as u8 {
                let octets: [u8; 4] = std::array::from_fn(|n| byte(address + n));
                (IpAddr::from(octets), port)
            } else {
                let octets: [u8; 16] = std::array::from_fn(|n| byte(address + n));
                (IpAddr::from(octets).to_canonical(), port)
            }
        })
    }

    /// Returns the number by which programs know the socket, too.
    pub fn cookie(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.id[COOKIE_IN_ID..]);
        u64::from_ne_bytes(bytes)
    }
}

// Words are assembled by copying bytes: the lower one must be the lower half.
const _: () = assert!(cfg!(target_endian = "little"));

/// A connection to the kernel, in the network namespace of the thread that opened it.
pub struct Socket(netlink::Socket);

impl Socket {
    pub fn open() -> io::Result<Self> {
        let socket = netlink::Socket::to(NETLINK_SOCK_DIAG)?;
        socket.set_timeout(ANSWER_TIMEOUT)?;
        Ok(Self(socket))
    }

    /// Returns datagram sockets that have a peer. Sockets of IPv6 may have an IPv4 peer.
    pub fn connected_datagrams(&mut self) -> io::Result<Vec<Found>> {
        self.datagrams(ESTABLISHED)
    }

    /// Returns datagram sockets that have a port but no peer.
    pub fn unconnected_datagrams(&mut self) -> io::Result<Vec<Found>> {
        self.datagrams(CLOSED)
    }

    fn datagrams(&mut self, states: u32) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
            let request = Message::new(SOCK_DIAG_BY_FAMILY, 0, &request(family, states, &[0; ID]));
            self.0
                .dump_each(request, &mut |body| all.push(Found::read(body)))
                .map_err(|refused| refused.cause)?;
        }
        all.into_iter().collect::<Option<_>>().ok_or_else(cut)
    }

    /// Destroys a socket; returns `false` if it does not exist any more.
    pub fn destroy(&mut self, socket: &Found) -> io::Result<bool> {
        let request = request(socket.family, ESTABLISHED, &socket.id);
        match self.0.change(Message::new(SOCK_DESTROY, 0, &request)) {
            Ok(()) => Ok(true),
            Err(refused) if refused.cause.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(refused) => Err(refused.cause),
        }
    }

    /// Passes each established TCP connection to `take` as the kernel describes it: `struct inet_diag_msg`,
    /// followed by attributes, `INET_DIAG_INFO` among them. They are read in batches and not stored.
    pub fn streams(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let request = Message::new(STREAMS, 0, &streams_request());
        self.0.dump_each(request, &mut take).map_err(|refused| refused.cause)
    }
}

/// Returns a `struct inet_diag_req_v2` for datagram sockets.
fn request(family: u8, states: u32, id: &[u8; ID]) -> [u8; REQUEST] {
    let mut message = [0; REQUEST];
    message[0] = family;
    message[1] = libc::IPPROTO_UDP as u8;
    message[4..8].copy_from_slice(&states.to_ne_bytes());
    message[ID_IN_REQUEST..].copy_from_slice(id);
    message
}

/// Returns a `struct inet_diag_req` for all established TCP connections.
fn streams_request() -> [u8; STREAMS_REQUEST] {
    let mut message = [0; STREAMS_REQUEST];
    message[3] = INFO;
    message[STATES_IN_STREAMS..STATES_IN_STREAMS + 4].copy_from_slice(&ESTABLISHED.to_ne_bytes());
    message
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a socket's description is cut short")
}

fn array<const LENGTH: usize>(bytes: &[u8], start: usize) -> Option<[u8; LENGTH]> {
    bytes.get(start..start + LENGTH)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_ids_survive_a_round_trip() {
        let mut body = vec![0_u8; 72];
        body[0] = libc::AF_INET6 as u8;
        for (place, byte) in body[ID_IN_ANSWER..ID_IN_ANSWER + ID].iter_mut().enumerate() {
            *byte = place as u8 + 1;
        }
        body[ID_IN_ANSWER + COOKIE_IN_ID..ID_IN_ANSWER + ID]
            .copy_from_slice(&0x1_0000_0002_u64.to_ne_bytes());
        let found = Found::read(&body).unwrap();
        assert_eq!((found.cookie(), found.family), (0x1_0000_0002, libc::AF_INET6 as u8));
        let again = request(found.family, ESTABLISHED, &found.id);
        assert_eq!(again.len(), 56);
        assert_eq!(again[ID_IN_REQUEST..], body[ID_IN_ANSWER..ID_IN_ANSWER + ID]);
        assert_eq!((again[0], again[1]), (libc::AF_INET6 as u8, 17));
        assert_eq!(Found::read(&[2, 1]), None);
    }

    #[test]
    fn established_connections_are_asked_for_with_what_the_kernel_measures() {
        let message = streams_request();
        assert_eq!((message.len(), message[3], message[52]), (60, 2, 2));
        assert_eq!(message.iter().filter(|byte| **byte != 0).count(), 2);
    }
}
