//! The sockets: raw frames of ARP and NDP, multicast groups, and pings.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, MsgFlags, recvfrom, sendto};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::net::UdpSocket;

use crate::wire::Mac;

const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Longer frames are not about addresses; what is cut off is not needed.
const FRAME: usize = 256;

/// Receives and sends frames of one protocol, on all interfaces of the network namespace.
pub struct Frames(AsyncFd<Socket>);

impl Frames {
    pub fn arp() -> io::Result<Self> {
        Self::open(ETHERTYPE_ARP, &[])
    }

    /// Opens a socket that receives neighbour solicitations and advertisements. Everything else is filtered out
    /// in the kernel: a socket like this sees every IPv6 packet that reaches the network stack.
    pub fn ndp() -> io::Result<Self> {
        const LOAD: u16 = 0x30;
        const IS: u16 = 0x15;
        const RETURN: u16 = 0x06;
        Self::open(
            ETHERTYPE_IPV6,
            &[
                // The next header is ICMPv6, and its type one of the two.
                SockFilter::new(LOAD, 0, 0, 20),
                SockFilter::new(IS, 0, 3, 58),
                SockFilter::new(LOAD, 0, 0, 54),
                SockFilter::new(IS, 2, 0, 135),
                SockFilter::new(IS, 1, 0, 136),
                SockFilter::new(RETURN, 0, 0, 0),
                SockFilter::new(RETURN, 0, 0, u32::MAX),
            ],
        )
    }

    fn open(ethertype: u16, filter: &[SockFilter]) -> io::Result<Self> {
        let protocol = Protocol::from(i32::from(ethertype.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
        if !filter.is_empty() {
            socket.attach_filter(filter)?;
        }
        socket.set_nonblocking(true)?;
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe; a socket keeps its descriptor as long as it lives"
        )]
        let registered = AsyncFd::new(socket)?;
        Ok(Self(registered))
    }

    /// Returns the beginning of the next frame, and the index of the interface on which it arrived.
    pub async fn next(&self) -> io::Result<(Vec<u8>, u32)> {
        loop {
            let mut ready = self.0.readable().await?;
            let mut bytes = [0; FRAME];
            let read = ready.try_io(|socket| {
                recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut bytes).map_err(io::Error::from)
            });
            match read {
                Ok(Ok((length, Some(from)))) => {
                    let index = u32::try_from(from.ifindex()).unwrap_or_default();
                    return Ok((bytes[..length.min(FRAME)].to_vec(), index));
                }
                // An interface that went down is reported once.
                Ok(Ok((_, None))) => {}
                Ok(Err(error)) if error.kind() == io::ErrorKind::NetworkDown => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    /// Sends a frame out of an interface. A full queue loses it, as the wire may.
    pub fn send(&self, frame: &[u8], to: &LinkAddr) -> io::Result<()> {
        sendto(self.0.as_raw_fd(), frame, to, MsgFlags::MSG_DONTWAIT)?;
        Ok(())
    }
}

/// An Ethernet interface.
#[derive(Clone, Copy)]
pub struct Port {
    pub mac: Mac,
    pub address: LinkAddr,
}

/// Returns the Ethernet interfaces of the machine, by index.
pub fn ports() -> io::Result<BTreeMap<u32, Port>> {
    /// The hardware type of Ethernet (ARPHRD_ETHER).
    const ETHERNET: u16 = 1;
    let mut ports = BTreeMap::new();
    for interface in getifaddrs()? {
        let Some(storage) = interface.address else { continue };
        let Some(address) = storage.as_link_addr() else { continue };
        if let (Ok(index), Some(mac), ETHERNET) =
            (u32::try_from(address.ifindex()), address.addr(), address.hatype())
        {
            ports.insert(index, Port { mac: Mac(mac), address: *address });
        }
    }
    Ok(ports)
}

/// The multicast groups that this node has joined, so that switches and interfaces pass questions on. Each has a
/// socket of its own: the kernel limits the number of groups a socket.
#[derive(Default)]
pub struct Groups(BTreeMap<(u32, Ipv6Addr), Socket>);

impl Groups {
    /// Joins these groups on these interfaces, and leaves all others. Returns the first error.
    pub fn set(&mut self, links: &[u32], groups: &BTreeSet<Ipv6Addr>) -> io::Result<()> {
        self.0.retain(|(link, group), _| links.contains(link) && groups.contains(group));
        let mut outcome = Ok(());
        for (link, group) in links.iter().flat_map(|link| groups.iter().map(|group| (*link, *group))) {
            if self.0.contains_key(&(link, group)) {
                continue;
            }
            match join(link, group) {
                Ok(socket) => drop(self.0.insert((link, group), socket)),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }
}

fn join(link: u32, group: Ipv6Addr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, None)?;
    socket.join_multicast_v6(&group, link)?;
    Ok(socket)
}

/// Opens the socket for pings of one family.
pub fn pings(port: u16, ipv4: bool) -> io::Result<UdpSocket> {
    let (domain, address) = if ipv4 {
        (Domain::IPV4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
    } else {
        (Domain::IPV6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
    };
    let socket = Socket::new(domain, Type::DGRAM, None)?;
    if !ipv4 {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    UdpSocket::from_std(socket.into())
}
