//! sock_diag(7): lists the connected sockets of a network namespace, datagrams and streams, and
//! destroys single ones.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const NETLINK_SOCK_DIAG: i32 = 4;
/// TCP sockets of both families: one walk through the kernel's table, where the newer question
/// needs one a family. The table is that of all network namespaces.
const STREAMS: u16 = 18;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// States of sockets, as bits. A connected datagram socket is in the state of an open connection.
const ESTABLISHED: u32 = 1 << 1;
/// One without a peer is in that of a closed one.
const CLOSED: u32 = 1 << 7;

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Length of `struct inet_diag_sockid`, which is given back as it came.
const ID: usize = 48;
/// Its place in `struct inet_diag_req_v2` and the length of that.
const ID_IN_REQUEST: usize = 8;
const REQUEST: usize = ID_IN_REQUEST + ID;
/// Its place in `struct inet_diag_msg`.
const ID_IN_ANSWER: usize = 4;
/// Place of the cookie in the id: two words, the lower one first.
const COOKIE_IN_ID: usize = 40;
/// Place of the id in `struct inet_diag_req`, of the wanted states behind it, and the length of
/// that.
const ID_IN_STREAMS: usize = 4;
const STATES_IN_STREAMS: usize = ID_IN_STREAMS + ID;
const STREAMS_REQUEST: usize = STATES_IN_STREAMS + 8;
/// Attributes wanted beside the message, as bits: `INET_DIAG_INFO`.
const INFO: u8 = 1 << 1;
/// Longest answer that the kernel gives at once.
const BUFFER: usize = 64 * 1024;
/// How long an answer may take.
static PATIENCE: libc::timeval = libc::timeval { tv_sec: 2, tv_usec: 0 };

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

    /// Source and destination, addresses of IPv4 as such.
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

    /// The same number that programs know the socket by.
    pub fn cookie(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.id[COOKIE_IN_ID..]);
        u64::from_ne_bytes(bytes)
    }
}

// Words are put together by copying bytes: the lower one has to be the lower half.
const _: () = assert!(cfg!(target_endian = "little"));

/// A connection to the kernel, in the network namespace of the thread that opened it.
pub struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl Socket {
    pub fn open() -> io::Result<Self> {
        // SAFETY: takes numbers only.
        let fd =
            unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_SOCK_DIAG) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel gave this descriptor to us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the value lives for the length of the call, and is as long as stated.
        let result = unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVTIMEO,
                (&raw const PATIENCE).cast(),
                size_of::<libc::timeval>() as libc::socklen_t,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { fd, buffer: vec![0; BUFFER] })
    }

    /// Datagram sockets that have a peer. Sockets of IPv6 may have one of IPv4.
    pub fn connected_datagrams(&mut self) -> io::Result<Vec<Found>> {
        self.datagrams(ESTABLISHED)
    }

    /// Datagram sockets that have a port, and no peer.
    pub fn unconnected_datagrams(&mut self) -> io::Result<Vec<Found>> {
        self.datagrams(CLOSED)
    }

    fn datagrams(&mut self, states: u32) -> io::Result<Vec<Found>> {
        let mut all = Vec::new();
        for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
            self.send(&request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, states, &[0; ID]))?;
            while !self.receive(|kind, body| {
                if kind == SOCK_DIAG_BY_FAMILY {
                    all.push(Found::read(body).ok_or_else(cut)?);
                }
                Ok(())
            })? {}
        }
        Ok(all)
    }

    /// Destroys a socket; false if it is not there any more.
    pub fn destroy(&mut self, socket: &Found) -> io::Result<bool> {
        self.send(&request(SOCK_DESTROY, NLM_F_ACK, socket.family, ESTABLISHED, &socket.id))?;
        match self.receive(|_, _| Ok(())) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives each established TCP connection as the kernel describes it: `struct inet_diag_msg` and
    /// attributes behind it, `INET_DIAG_INFO` among them. They are read lot by lot and not kept.
    pub fn streams(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(&streams_request())?;
        while !self.receive(|kind, body| {
            if kind == STREAMS {
                take(body);
            }
            Ok(())
        })? {}
        Ok(())
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        // SAFETY: the message is as long as stated, and outlives the call.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes one lot of answers; true if it was the last.
    fn receive(&mut self, take: impl FnMut(u16, &[u8]) -> io::Result<()>) -> io::Result<bool> {
        // SAFETY: the buffer is as long as stated.
        let length =
            unsafe { libc::recv(self.fd.as_raw_fd(), self.buffer.as_mut_ptr().cast(), self.buffer.len(), 0) };
        match usize::try_from(length) {
            Ok(length) => answers(&self.buffer[..length], take),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// A message for the kernel.
fn request(kind: u16, flags: u16, family: u8, states: u32, id: &[u8; ID]) -> [u8; HEADER + REQUEST] {
    let mut message = [0; HEADER + REQUEST];
    message[..4].copy_from_slice(&((HEADER + REQUEST) as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    message[HEADER] = family;
    message[HEADER + 1] = libc::IPPROTO_UDP as u8;
    message[HEADER + 4..HEADER + 8].copy_from_slice(&states.to_ne_bytes());
    message[HEADER + ID_IN_REQUEST..].copy_from_slice(id);
    message
}

/// The question for all established TCP connections.
fn streams_request() -> [u8; HEADER + STREAMS_REQUEST] {
    let mut message = [0; HEADER + STREAMS_REQUEST];
    message[..4].copy_from_slice(&((HEADER + STREAMS_REQUEST) as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&STREAMS.to_ne_bytes());
    message[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    message[HEADER + 3] = INFO;
    let states = HEADER + STATES_IN_STREAMS;
    message[states..states + 4].copy_from_slice(&ESTABLISHED.to_ne_bytes());
    message
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer that is cut short")
}

/// Reads what the kernel has sent, kind and body of each message; true if nothing more will come.
fn answers(mut bytes: &[u8], mut take: impl FnMut(u16, &[u8]) -> io::Result<()>) -> io::Result<bool> {
    while !bytes.is_empty() {
        let length = u32::from_ne_bytes(array(bytes, 0).ok_or_else(cut)?) as usize;
        let kind = u16::from_ne_bytes(array(bytes, 4).ok_or_else(cut)?);
        let body = bytes.get(HEADER..length).ok_or_else(cut)?;
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let error = i32::from_ne_bytes(array(body, 0).ok_or_else(cut)?);
                return if error == 0 { Ok(true) } else { Err(io::Error::from_raw_os_error(-error)) };
            }
            _ => take(kind, body)?,
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn array<const LENGTH: usize>(bytes: &[u8], start: usize) -> Option<[u8; LENGTH]> {
    bytes.get(start..start + LENGTH)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn read(bytes: &[u8]) -> (io::Result<bool>, Vec<Found>) {
        let mut all = Vec::new();
        let result = answers(bytes, |kind, body| {
            assert_eq!(kind, SOCK_DIAG_BY_FAMILY);
            all.push(Found::read(body).ok_or_else(cut)?);
            Ok(())
        });
        (result, all)
    }

    #[test]
    fn what_the_kernel_lists_is_read_and_given_back_as_it_came() {
        let mut body = vec![0_u8; 72];
        body[0] = libc::AF_INET6 as u8;
        for (place, byte) in body[ID_IN_ANSWER..ID_IN_ANSWER + ID].iter_mut().enumerate() {
            *byte = place as u8 + 1;
        }
        body[ID_IN_ANSWER + COOKIE_IN_ID..ID_IN_ANSWER + ID]
            .copy_from_slice(&0x1_0000_0002_u64.to_ne_bytes());
        let lot = [message(SOCK_DIAG_BY_FAMILY, &body), message(SOCK_DIAG_BY_FAMILY, &body)].concat();
        let (result, all) = read(&lot);
        assert!(!result.unwrap());
        assert_eq!((all.len(), all[0].cookie(), all[0].family), (2, 0x1_0000_0002, libc::AF_INET6 as u8));
        let again = request(SOCK_DESTROY, NLM_F_ACK, all[0].family, ESTABLISHED, &all[0].id);
        assert_eq!(again.len(), 72);
        assert_eq!(again[HEADER + ID_IN_REQUEST..], body[ID_IN_ANSWER..ID_IN_ANSWER + ID]);
        assert_eq!((again[HEADER], again[HEADER + 1]), (libc::AF_INET6 as u8, 17));
        assert_eq!(
            again[4..8],
            [SOCK_DESTROY.to_ne_bytes(), (NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes()].concat()
        );
    }

    #[test]
    fn the_end_an_error_and_rubbish_are_told_apart() {
        assert!(read(&message(NLMSG_DONE, &[0; 4])).0.unwrap());
        assert!(read(&message(NLMSG_ERROR, &[0; 20])).0.unwrap());
        let error = read(&message(NLMSG_ERROR, &(-libc::EOPNOTSUPP).to_ne_bytes())).0.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
        for length in 1..HEADER {
            assert!(read(&message(NLMSG_DONE, &[])[..length]).0.is_err());
        }
        // A length of less than a header would never end.
        assert!(read(&[0; 32]).0.is_err());
        assert!(read(&message(SOCK_DIAG_BY_FAMILY, &[2, 1])).0.is_err());
        assert!(!read(&[]).0.unwrap());
    }

    #[test]
    fn established_connections_are_asked_for_with_what_the_kernel_measures() {
        let message = streams_request();
        assert_eq!(message.len(), 76);
        assert_eq!(message[..4], 76_u32.to_ne_bytes());
        assert_eq!(
            message[4..8],
            [STREAMS.to_ne_bytes(), (NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes()].concat()
        );
        assert_eq!((message[HEADER + 3], message[HEADER + 52]), (2, 2));
        assert_eq!(message.iter().filter(|byte| **byte != 0).count(), 6);
    }
}
