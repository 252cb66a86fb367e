//! Tests for both families: the topology's addresses by family.

use std::net::{Ipv4Addr, Ipv6Addr};

use userspace_dataplane::tables::{Backend, Frontend, Protocol, Scope, ServiceTables};

use super::support::packet::{Address, Packet, SYN};
use super::support::topology::*;
use super::support::{frontend, key};

/// The properties of a family that the tests use.
pub trait Net: Address {
    const NODE: Self;
    const CLIENT: (Self, u16);
    const VIP: (Self, u16);
    /// Next to [`Net::VIP`], in the same range.
    const NEXT_VIP: (Self, u16);
    const LOCAL_POD: (Self, u16);
    const OTHER_POD: (Self, u16);
    const REMOTE_POD: (Self, u16);
    /// The unspecified address.
    const ANY: Self;
    /// The range of services' addresses.
    const RANGE: &'static str;
    /// A prefix that contains the client.
    const CLIENT_RANGE: &'static str;
    /// "Port unreachable" and "too big", or "fragmentation needed".
    const PORT_UNREACHABLE: [u8; 2];
    const TOO_BIG: [u8; 2];
    const ECHO: u8;
    const ECHO_REPLY: u8;
    const ICMP: u8;
    /// Length of an IP header.
    const HEADER: usize;
    /// Options, or an extension header, that packets may have.
    const OPTIONS: &'static [u8];
    /// Prefix of [`Net::REMOTE_POD`], and the node by which it is reached.
    const REMOTE_ROUTE: (&'static str, &'static str);
    /// An address of the cluster's pods that no node has.
    const NOBODY: Self;

    fn router() -> Self;

    fn node_port() -> (Self, u16) {
        (Self::NODE, 30_080)
    }
}

impl Net for Ipv4Addr {
    const NODE: Self = NODE;
    const CLIENT: (Self, u16) = CLIENT;
    const VIP: (Self, u16) = VIP;
    const NEXT_VIP: (Self, u16) = (Ipv4Addr::new(10, 96, 0, 11), 80);
    const LOCAL_POD: (Self, u16) = LOCAL_POD;
    const OTHER_POD: (Self, u16) = OTHER_POD;
    const REMOTE_POD: (Self, u16) = REMOTE_POD;
    const ANY: Self = Ipv4Addr::UNSPECIFIED;
    const RANGE: &'static str = "10.96.0.0/16";
    const CLIENT_RANGE: &'static str = "192.0.2.96/27";
    const PORT_UNREACHABLE: [u8; 2] = [3, 3];
    const TOO_BIG: [u8; 2] = [3, 4];
    const ECHO: u8 = 8;
    const ECHO_REPLY: u8 = 0;
    const ICMP: u8 = super::support::packet::ICMP;
    const HEADER: usize = 20;
    const OPTIONS: &'static [u8] = &[1, 1, 1, 0];
    const REMOTE_ROUTE: (&'static str, &'static str) = ("10.2.0.0/24", "192.0.2.2");
    const NOBODY: Self = Ipv4Addr::new(10, 3, 0, 9);

    fn router() -> Self {
        Ipv4Addr::new(192, 0, 2, 254)
    }
}

impl Net for Ipv6Addr {
    const NODE: Self = NODE6;
    const CLIENT: (Self, u16) = CLIENT6;
    const VIP: (Self, u16) = VIP6;
    const NEXT_VIP: (Self, u16) = (Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x11), 80);
    const LOCAL_POD: (Self, u16) = LOCAL_POD6;
    const OTHER_POD: (Self, u16) = OTHER_POD6;
    const REMOTE_POD: (Self, u16) = REMOTE_POD6;
    const ANY: Self = Ipv6Addr::UNSPECIFIED;
    const RANGE: &'static str = "fd00:96::/112";
    const CLIENT_RANGE: &'static str = "2001:db8::100/120";
    const PORT_UNREACHABLE: [u8; 2] = [1, 4];
    const TOO_BIG: [u8; 2] = [2, 0];
    const ECHO: u8 = 128;
    const ECHO_REPLY: u8 = 129;
    const ICMP: u8 = super::support::packet::ICMP6;
    const HEADER: usize = 40;
    const OPTIONS: &'static [u8] = &[0, 1, 4, 0, 0, 0, 0];
    const REMOTE_ROUTE: (&'static str, &'static str) = ("fd00:2::/64", "2001:db8::2");
    const NOBODY: Self = Ipv6Addr::new(0xfd00, 3, 0, 0, 0, 0, 0, 9);

    fn router() -> Self {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfe)
    }
}

/// Returns a frontend at an end.
pub fn front<A: Net>(at: (A, u16), protocol: Protocol, scope: Scope, backends: &[Backend]) -> Frontend {
    let address: std::net::IpAddr = at.0.into();
    frontend(key(&address.to_string(), at.1, protocol, scope), backends)
}

/// Returns a service with these frontends.
pub fn with(frontends: impl IntoIterator<Item = Frontend>) -> ServiceTables {
    let mut frontends: Vec<Frontend> = frontends.into_iter().collect();
    frontends.sort_by_key(|frontend| frontend.key);
    ServiceTables { frontends, source_ranges: Vec::new() }
}

/// Returns a service at the family's address, for inside.
pub fn inside<A: Net>(protocol: Protocol, backends: &[Backend]) -> ServiceTables {
    with([front(A::VIP, protocol, Scope::Internal, backends)])
}

/// Returns a service at the family's node port, for outside.
pub fn outside<A: Net>(protocol: Protocol, backends: &[Backend]) -> ServiceTables {
    with([front((A::ANY, A::node_port().1), protocol, Scope::External, backends)])
}

/// Returns a first packet of a protocol.
pub fn first<A: Address>(protocol: Protocol, from: (A, u16), to: (A, u16)) -> Packet<A> {
    following(protocol, from, to, SYN)
}

/// Returns a later packet of a protocol; flags are TCP's.
pub fn following<A: Address>(protocol: Protocol, from: (A, u16), to: (A, u16), flags: u8) -> Packet<A> {
    match protocol {
        Protocol::Udp => Packet::udp(from, to, b"hello"),
        // INIT, or a chunk with data.
        Protocol::Sctp if flags == SYN => Packet::sctp(from, to, &init()),
        Protocol::Sctp => Packet::sctp(from, to, &[0, 3, 0, 5, 7, 0, 0, 0]),
        _ => Packet::tcp(from, to, flags),
    }
}

/// Returns an INIT chunk with a tag.
pub fn init() -> Vec<u8> {
    let mut chunk = vec![1, 0, 0, 20, 0xde, 0xad, 0xbe, 0xef];
    chunk.resize(20, 1);
    chunk
}
