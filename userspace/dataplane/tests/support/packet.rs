//! Hand-made packets of both families, and their parser.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const ICMP6: u8 = 58;
pub const SCTP: u8 = 132;
/// Extension headers of IPv6.
pub const FRAGMENT_HEADER: u8 = 44;
pub const DESTINATION_OPTIONS: u8 = 60;

/// An address and a port.
pub type End = (Ipv4Addr, u16);
/// An IPv6 address and a port.
pub type End6 = (Ipv6Addr, u16);

/// An address of either family.
pub trait Address: Copy + Eq + Debug + Ord + Into<IpAddr> + 'static {
    const VERSION: u8;
    /// Bytes of an address.
    const LENGTH: usize = if Self::VERSION == 4 { 4 } else { 16 };
    fn bytes(&self) -> Vec<u8>;
    /// Reads an address from exactly its number of bytes.
    fn read(bytes: &[u8]) -> Self;
}

impl Address for Ipv4Addr {
    const VERSION: u8 = 4;
    fn bytes(&self) -> Vec<u8> {
        self.octets().to_vec()
    }
    fn read(bytes: &[u8]) -> Self {
        Self::from(<[u8; 4]>::try_from(bytes).unwrap())
    }
}

impl Address for Ipv6Addr {
    const VERSION: u8 = 6;
    fn bytes(&self) -> Vec<u8> {
        self.octets().to_vec()
    }
    fn read(bytes: &[u8]) -> Self {
        Self::from(<[u8; 16]>::try_from(bytes).unwrap())
    }
}

/// The position of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub identification: u32,
    /// In bytes; a multiple of eight.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
}

/// An IP packet with valid checksums, to be sent or as parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<A = Ipv4Addr> {
    pub link: [u8; 12],
    pub protocol: u8,
    pub source: (A, u16),
    pub destination: (A, u16),
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// IPv4: options, padded to words. IPv6: one extension header of destination options, without its first
    /// byte. Empty for none.
    pub options: Vec<u8>,
    pub flags: u8,
    pub sequence: u32,
    pub acknowledged: u32,
    /// The bytes after the transport header; for an ICMP packet, the header itself and all after it.
    pub payload: Vec<u8>,
}

impl<A: Address> Packet<A> {
    pub fn tcp(source: (A, u16), destination: (A, u16), flags: u8) -> Self {
        Self {
            link: [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2],
            protocol: TCP,
            source,
            destination,
            ttl: 64,
            tos: 0,
            options: Vec::new(),
            flags,
            sequence: 1000,
            acknowledged: 0,
            payload: Vec::new(),
        }
    }

    pub fn udp(source: (A, u16), destination: (A, u16), payload: &[u8]) -> Self {
        Self { protocol: UDP, payload: payload.to_vec(), ..Self::tcp(source, destination, 0) }
    }

    /// Returns an SCTP packet; `payload` is its chunks.
    pub fn sctp(source: (A, u16), destination: (A, u16), payload: &[u8]) -> Self {
        Self { protocol: SCTP, payload: payload.to_vec(), ..Self::tcp(source, destination, 0) }
    }

    /// Returns an ICMP packet of the family; `rest` is what follows the checksum.
    pub fn icmp(source: A, destination: A, kind: u8, code: u8, rest: &[u8]) -> Self {
        let protocol = if A::VERSION == 4 { ICMP } else { ICMP6 };
        let mut packet = Self { protocol, ..Self::tcp((source, 0), (destination, 0), 0) };
        let mut body = [&[kind, code, 0, 0], rest].concat();
        let check = checksum(&[&packet.pseudo_of_icmp(body.len()), &body]);
        body[2..4].copy_from_slice(&check.to_be_bytes());
        packet.payload = body;
        packet
    }

    fn is_icmp(&self) -> bool {
        self.protocol == ICMP || self.protocol == ICMP6
    }

    /// Returns the bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        self.frame(None, &self.transport())
    }

    /// Returns the packet in two fragments, of which the first has `first` bytes of the transport header and
    /// what follows it; a multiple of eight.
    pub fn fragments(&self, identification: u32, first: usize) -> [Vec<u8>; 2] {
        assert_eq!(first % 8, 0, "fragments begin at multiples of eight");
        let l4 = self.transport();
        let (head, tail) = l4.split_at(first);
        let fragment = |offset, more| Some(Fragment { identification, offset, more });
        [self.frame(fragment(0, true), head), self.frame(fragment(first as u16, false), tail)]
    }

    /// Returns the packet in fragments of this many bytes each; a multiple of eight.
    pub fn pieces(&self, identification: u32, size: usize) -> Vec<Vec<u8>> {
        assert_eq!(size % 8, 0, "fragments begin at multiples of eight");
        let l4 = self.transport();
        let parts = l4.chunks(size).enumerate().map(|(number, part)| {
            let offset = number * size;
            let more = offset + part.len() < l4.len();
            self.frame(Some(Fragment { identification, offset: offset as u16, more }), part)
        });
        parts.collect()
    }

    /// Returns the transport header, with its checksum, and the payload.
    fn transport(&self) -> Vec<u8> {
        let mut l4 = Vec::new();
        if !self.is_icmp() {
            l4.extend(self.source.1.to_be_bytes());
            l4.extend(self.destination.1.to_be_bytes());
        }
        match self.protocol {
            TCP => {
                l4.extend(self.sequence.to_be_bytes());
                l4.extend(self.acknowledged.to_be_bytes());
                l4.extend([0x50, self.flags, 0xff, 0xff, 0, 0, 0, 0]);
            }
            UDP => {
                l4.extend((8 + self.payload.len() as u16).to_be_bytes());
                l4.extend([0, 0]);
            }
            SCTP => {
                l4.extend(self.sequence.to_be_bytes());
                l4.extend([0; 4]);
            }
            _ => {}
        }
        l4.extend(&self.payload);
        let at = match self.protocol {
            TCP => 16,
            UDP => 6,
            SCTP => {
                let check = crc32c(&l4);
                l4[8..12].copy_from_slice(&check.to_le_bytes());
                return l4;
            }
            _ => return l4,
        };
        let check = checksum(&[&self.pseudo(l4.len()), &l4]);
        // In UDP, a checksum of zero is written as all ones.
        let check = if check == 0 && self.protocol == UDP { 0xffff } else { check };
        l4[at..at + 2].copy_from_slice(&check.to_be_bytes());
        l4
    }

    /// Prepends link and IP headers to a body.
    fn frame(&self, fragment: Option<Fragment>, body: &[u8]) -> Vec<u8> {
        let head = if A::VERSION == 4 { self.header4(fragment, body) } else { self.header6(fragment, body) };
        let kind: [u8; 2] = if A::VERSION == 4 { [8, 0] } else { [0x86, 0xdd] };
        [self.link.as_slice(), &kind, &head, body].concat()
    }

    fn header4(&self, fragment: Option<Fragment>, body: &[u8]) -> Vec<u8> {
        assert_eq!(self.options.len() % 4, 0, "options fill words");
        let length = 20 + self.options.len();
        let mut ip = vec![0x40 | (length / 4) as u8, self.tos];
        ip.extend(((length + body.len()) as u16).to_be_bytes());
        match fragment {
            Some(Fragment { identification, offset, more }) => {
                ip.extend((identification as u16).to_be_bytes());
                ip.extend(((offset / 8) | (u16::from(more) << 13)).to_be_bytes());
            }
            None => ip.extend([0, 7, 0x40, 0]),
        }
        ip.extend([self.ttl, self.protocol, 0, 0]);
        ip.extend(self.source.0.bytes());
        ip.extend(self.destination.0.bytes());
        ip.extend(&self.options);
        let check = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        ip
    }

    fn header6(&self, fragment: Option<Fragment>, body: &[u8]) -> Vec<u8> {
        let (mut next, mut extensions) = (self.protocol, Vec::new());
        if !self.options.is_empty() {
            assert_eq!(self.options.len() % 8, 7, "the extension header fills eights with its first byte");
            extensions = [&[next], self.options.as_slice()].concat();
            next = DESTINATION_OPTIONS;
        }
        if let Some(Fragment { identification, offset, more }) = fragment {
            let mut header = vec![next, 0];
            header.extend((offset | u16::from(more)).to_be_bytes());
            header.extend(identification.to_be_bytes());
            extensions = [header, extensions].concat();
            next = FRAGMENT_HEADER;
        }
        let mut ip = vec![0x60 | self.tos >> 4, self.tos << 4, 0, 0];
        ip.extend(((extensions.len() + body.len()) as u16).to_be_bytes());
        ip.extend([next, self.ttl]);
        ip.extend(self.source.0.bytes());
        ip.extend(self.destination.0.bytes());
        ip.extend(extensions);
        ip
    }

    /// Parses a packet that is not a fragment and verifies every checksum in it.
    pub fn parse(bytes: &[u8]) -> Self {
        let (mut packet, fragment, l4) = Self::parse_ip(bytes);
        assert_eq!(fragment, None, "no fragment");
        if !packet.is_icmp() {
            packet.read_ports(&l4);
        }
        let header = match packet.protocol {
            TCP => usize::from(l4[12] >> 4) * 4,
            UDP => 8,
            SCTP => 12,
            _ => 0,
        };
        let word = |at: usize| u32::from_be_bytes(l4[at..at + 4].try_into().unwrap());
        match packet.protocol {
            TCP => (packet.flags, packet.sequence, packet.acknowledged) = (l4[13], word(4), word(8)),
            SCTP => packet.sequence = word(4),
            _ => {}
        }
        packet.payload = l4[header..].to_vec();
        match packet.protocol {
            ICMP | ICMP6 => {
                assert_eq!(checksum(&[&packet.pseudo_of_icmp(l4.len()), &l4]), 0, "ICMP checksum");
            }
            UDP if l4[6..8] == [0, 0] => assert_eq!(A::VERSION, 4, "UDP over IPv6 has a checksum"),
            SCTP => {
                let mut blank = l4.clone();
                blank[8..12].fill(0);
                assert_eq!(crc32c(&blank).to_le_bytes(), l4[8..12], "SCTP checksum");
            }
            _ => assert_eq!(checksum(&[&packet.pseudo(l4.len()), &l4]), 0, "transport checksum"),
        }
        packet
    }

    /// Parses a fragment: addresses, its position, and its part of the body. Ports are those in a first
    /// fragment, else 0.
    pub fn parse_fragment(bytes: &[u8]) -> (Self, Fragment) {
        let (mut packet, fragment, body) = Self::parse_ip(bytes);
        let fragment = fragment.expect("a fragment");
        if fragment.offset == 0 && !packet.is_icmp() {
            packet.read_ports(&body);
        }
        packet.payload = body;
        (packet, fragment)
    }

    fn read_ports(&mut self, l4: &[u8]) {
        let port = |at: usize| u16::from_be_bytes([l4[at], l4[at + 1]]);
        (self.source.1, self.destination.1) = (port(0), port(2));
    }

    /// Parses link and IP headers, and returns what follows them.
    fn parse_ip(bytes: &[u8]) -> (Self, Option<Fragment>, Vec<u8>) {
        let ip = &bytes[14..];
        assert_eq!(ip[0] >> 4, A::VERSION, "an IPv{} packet", A::VERSION);
        let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let (addresses, size) = if A::VERSION == 4 { (12, 4) } else { (8, 16) };
        let address = |number: usize| A::read(&ip[addresses + size * number..][..size]);
        let mut packet = Self::tcp((address(0), 0), (address(1), 0), 0);
        packet.link = bytes[..12].try_into().unwrap();
        if A::VERSION == 4 {
            assert_eq!(bytes[12..14], [8, 0], "an IPv4 packet");
            let header = usize::from(ip[0] & 15) * 4;
            assert_eq!(checksum(&[&ip[..header]]), 0, "IP checksum");
            (packet.protocol, packet.ttl, packet.tos) = (ip[9], ip[8], ip[1]);
            packet.options = ip[20..header].to_vec();
            let (offset, more) = ((word(6) & 0x1fff) * 8, word(6) & 0x2000 != 0);
            let fragment = Fragment { identification: u32::from(word(4)), offset, more };
            let body = ip[header..usize::from(word(2))].to_vec();
            return (packet, (more || offset > 0).then_some(fragment), body);
        }
        assert_eq!(bytes[12..14], [0x86, 0xdd], "an IPv6 packet");
        (packet.ttl, packet.tos) = (ip[7], ip[0] << 4 | ip[1] >> 4);
        let (mut next, mut rest, mut fragment) = (ip[6], &ip[40..40 + usize::from(word(4))], None);
        loop {
            match next {
                FRAGMENT_HEADER => {
                    let place = u16::from_be_bytes([rest[2], rest[3]]);
                    let identification = u32::from_be_bytes(rest[4..8].try_into().unwrap());
                    fragment = Some(Fragment { identification, offset: place & !7, more: place & 1 != 0 });
                    (next, rest) = (rest[0], &rest[8..]);
                    if place & !7 > 0 {
                        // The rest is in the middle of a datagram.
                        break;
                    }
                }
                DESTINATION_OPTIONS => {
                    let length = 8 + 8 * usize::from(rest[1]);
                    packet.options = rest[1..length].to_vec();
                    (next, rest) = (rest[0], &rest[length..]);
                }
                _ => break,
            }
        }
        packet.protocol = next;
        (packet, fragment, rest.to_vec())
    }

    /// Returns the pseudo header, which the transport checksum covers too.
    fn pseudo(&self, length: usize) -> Vec<u8> {
        let mut bytes = self.source.0.bytes();
        bytes.extend(self.destination.0.bytes());
        if A::VERSION == 4 {
            bytes.extend([0, self.protocol]);
            bytes.extend((length as u16).to_be_bytes());
        } else {
            bytes.extend((length as u32).to_be_bytes());
            bytes.extend([0, 0, 0, self.protocol]);
        }
        bytes
    }

    /// Returns the pseudo header of ICMP, which is empty for IPv4.
    fn pseudo_of_icmp(&self, length: usize) -> Vec<u8> {
        if A::VERSION == 4 { Vec::new() } else { self.pseudo(length) }
    }
}

/// Computes the internet checksum over all parts; every part but the last has an even length.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Computes the checksum of SCTP.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

#[test]
fn packets_survive_the_way_there_and_back() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    fn round<A: Address>(packets: &[Packet<A>]) {
        for packet in packets {
            assert_eq!(&Packet::parse(&packet.bytes()), packet);
        }
    }
    let (a, b): (End, End) = ((Ipv4Addr::new(10, 0, 0, 1), 7), (Ipv4Addr::new(10, 0, 0, 2), 8));
    let with_options = Packet { options: vec![1, 1, 1, 0], tos: 8, ..Packet::udp(a, b, b"odd") };
    let echo = Packet::icmp(a.0, b.0, 8, 0, &[0; 5]);
    round(&[Packet::tcp(a, b, SYN), with_options, Packet::sctp(a, b, &[1, 0, 0, 4]), echo]);
    let (a, b): (End6, End6) = (("fd00::1".parse().unwrap(), 7), ("fd00::2".parse().unwrap(), 8));
    let with_options = Packet { options: vec![0, 1, 4, 0, 0, 0, 0], tos: 8, ..Packet::udp(a, b, b"odd") };
    let echo = Packet::icmp(a.0, b.0, 128, 0, &[0; 5]);
    round(&[Packet::tcp(a, b, SYN), with_options.clone(), Packet::sctp(a, b, &[1, 0, 0, 4]), echo]);
    let [first, second] = with_options.fragments(9, 8);
    let (head, place) = Packet::<Ipv6Addr>::parse_fragment(&first);
    assert_eq!((head.destination, place), (b, Fragment { identification: 9, offset: 0, more: true }));
    let (_, place) = Packet::<Ipv6Addr>::parse_fragment(&second);
    assert_eq!(place, Fragment { identification: 9, offset: 8, more: false });
}
