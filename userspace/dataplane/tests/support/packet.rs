//! Hand-made packets, and how to read them back.

use std::net::Ipv4Addr;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;

/// An address and a port.
pub type End = (Ipv4Addr, u16);

/// An IPv4 packet with a valid checksum, as it should be or as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub link: [u8; 12],
    pub protocol: u8,
    pub source: End,
    pub destination: End,
    pub ttl: u8,
    pub flags: u8,
    pub sequence: u32,
    pub acknowledged: u32,
    /// What follows the transport header; of an ICMP packet, the header itself and all after it.
    pub payload: Vec<u8>,
}

impl Packet {
    pub fn tcp(source: End, destination: End, flags: u8) -> Self {
        Self {
            link: [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2],
            protocol: TCP,
            source,
            destination,
            ttl: 64,
            flags,
            sequence: 1000,
            acknowledged: 0,
            payload: Vec::new(),
        }
    }

    pub fn udp(source: End, destination: End, payload: &[u8]) -> Self {
        Self { protocol: UDP, payload: payload.to_vec(), ..Self::tcp(source, destination, 0) }
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut l4 = Vec::new();
        if self.protocol != ICMP {
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
            _ => {}
        }
        l4.extend(&self.payload);
        if self.protocol != ICMP {
            let check = checksum(&[&pseudo(self, l4.len()), &l4]);
            let at = if self.protocol == TCP { 16 } else { 6 };
            l4[at..at + 2].copy_from_slice(&check.to_be_bytes());
        }
        let mut ip = vec![0x45, 0];
        ip.extend((20 + l4.len() as u16).to_be_bytes());
        ip.extend([0, 7, 0x40, 0, self.ttl, self.protocol, 0, 0]);
        ip.extend(self.source.0.octets());
        ip.extend(self.destination.0.octets());
        let check = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        [self.link.as_slice(), &[8, 0], &ip, &l4].concat()
    }

    /// Reads a packet and checks every checksum in it.
    pub fn parse(bytes: &[u8]) -> Self {
        assert_eq!(bytes[12..15], [8, 0, 0x45], "an IPv4 packet without options");
        let ip = &bytes[14..34];
        assert_eq!(checksum(&[ip]), 0, "IP checksum");
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let l4 = &bytes[34..14 + total];
        let protocol = ip[9];
        let port = |at: usize| if protocol == ICMP { 0 } else { u16::from_be_bytes([l4[at], l4[at + 1]]) };
        let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
        let header = match protocol {
            TCP => usize::from(l4[12] >> 4) * 4,
            UDP => 8,
            _ => 0,
        };
        let word = |at: usize| u32::from_be_bytes(l4[at..at + 4].try_into().unwrap());
        let packet = Self {
            link: bytes[..12].try_into().unwrap(),
            protocol,
            source: (address(12), port(0)),
            destination: (address(16), port(2)),
            ttl: ip[8],
            flags: if protocol == TCP { l4[13] } else { 0 },
            sequence: if protocol == TCP { word(4) } else { 1000 },
            acknowledged: if protocol == TCP { word(8) } else { 0 },
            payload: l4[header..].to_vec(),
        };
        match protocol {
            ICMP => assert_eq!(checksum(&[l4]), 0, "ICMP checksum"),
            UDP if l4[6..8] == [0, 0] => {}
            _ => assert_eq!(checksum(&[&pseudo(&packet, l4.len()), l4]), 0, "transport checksum"),
        }
        packet
    }
}

fn pseudo(packet: &Packet, length: usize) -> Vec<u8> {
    let mut bytes = packet.source.0.octets().to_vec();
    bytes.extend(packet.destination.0.octets());
    bytes.extend([0, packet.protocol]);
    bytes.extend((length as u16).to_be_bytes());
    bytes
}

/// The internet checksum over all parts; every part but the last has an even length.
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
