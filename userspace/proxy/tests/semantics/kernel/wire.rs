//! First packets of connections, made by hand, and parsed after the programs.

use std::net::{IpAddr, SocketAddr};

use crate::semantics::model::Attempt;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const ABORT: u8 = 6;

/// A packet as it was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A transport protocol's packet: its IP protocol number.
    Data(u8),
    /// An error: a reset, an abort, or "port unreachable".
    Refusal,
}

fn number(protocol: &str) -> u8 {
    match protocol {
        "TCP" => TCP,
        "UDP" => UDP,
        "SCTP" => SCTP,
        _ => unreachable!("{protocol}"),
    }
}

/// Returns the first packet of an attempt.
pub fn opening(attempt: &Attempt, source_port: u16) -> Vec<u8> {
    let source = SocketAddr::new(attempt.source, source_port);
    packet(number(attempt.protocol), source, attempt.to, false)
}

/// Returns a backend's answer to an opening packet.
pub fn reply(seen: &Seen) -> Vec<u8> {
    let Kind::Data(protocol) = seen.kind else { unreachable!("nobody answers a refusal") };
    packet(protocol, seen.destination, seen.source, true)
}

fn packet(protocol: u8, source: SocketAddr, destination: SocketAddr, answer: bool) -> Vec<u8> {
    let mut l4 = Vec::new();
    l4.extend(source.port().to_be_bytes());
    l4.extend(destination.port().to_be_bytes());
    let payload = b"hawser";
    match protocol {
        TCP => {
            l4.extend(1_000_u32.to_be_bytes());
            l4.extend(if answer { 1_001_u32 } else { 0 }.to_be_bytes());
            l4.extend([0x50, if answer { SYN | ACK } else { SYN }, 0xff, 0xff, 0, 0, 0, 0]);
        }
        UDP => {
            l4.extend((8 + payload.len() as u16).to_be_bytes());
            l4.extend([0, 0]);
            l4.extend(payload);
        }
        _ => {
            // Verification tag, checksum, and one chunk with nothing but its fixed part.
            l4.extend([0; 8]);
            l4.extend([if answer { INIT_ACK } else { INIT }, 0, 0, 20]);
            l4.extend([0; 16]);
        }
    }
    let at = checksum_at(protocol);
    if protocol == SCTP {
        let check = crc32c(&l4);
        l4[at..at + 4].copy_from_slice(&check.to_le_bytes());
    } else {
        let check = internet(&[&pseudo(protocol, source.ip(), destination.ip(), l4.len()), &l4]);
        l4[at..at + 2].copy_from_slice(&check.to_be_bytes());
    }
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut ip = vec![0x45, 0];
            ip.extend((20 + l4.len() as u16).to_be_bytes());
            ip.extend([0, 7, 0x40, 0, 64, protocol, 0, 0]);
            ip.extend(source.octets());
            ip.extend(destination.octets());
            let check = internet(&[&ip]);
            ip[10..12].copy_from_slice(&check.to_be_bytes());
            bytes.extend([8, 0]);
            bytes.extend(ip);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend((l4.len() as u16).to_be_bytes());
            bytes.extend([protocol, 64]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
        }
        _ => unreachable!("{source} to {destination}"),
    }
    bytes.extend(l4);
    bytes
}

/// Parses a packet, and checks each checksum in it.
pub fn read(bytes: &[u8]) -> Seen {
    let (protocol, source, destination, l4): (u8, IpAddr, IpAddr, &[u8]) = match bytes[12..14] {
        [8, 0] => {
            let ip = &bytes[14..34];
            assert_eq!((ip[0], internet(&[ip])), (0x45, 0), "an IPv4 header: {ip:02x?}");
            let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
            (ip[9], address(12), address(16), &bytes[34..14 + total])
        }
        [0x86, 0xdd] => {
            let ip = &bytes[14..54];
            let length = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
            let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
            (ip[6], address(8), address(24), &bytes[54..54 + length])
        }
        _ => panic!("neither IPv4 nor IPv6: {bytes:02x?}"),
    };
    let whole = [&pseudo(protocol, source, destination, l4.len()), l4];
    match protocol {
        ICMP => assert_eq!(internet(&[l4]), 0, "ICMP checksum"),
        SCTP => {
            let mut bare = l4.to_vec();
            bare[8..12].fill(0);
            assert_eq!(l4[8..12], crc32c(&bare).to_le_bytes(), "SCTP checksum");
        }
        _ => assert_eq!(internet(&whole), 0, "checksum of protocol {protocol}: {l4:02x?}"),
    }
    let port = |at: usize| u16::from_be_bytes([l4[at], l4[at + 1]]);
    let refusal = match protocol {
        TCP => l4[13] & RST != 0,
        SCTP => l4[12] == ABORT,
        // Port unreachable, or administratively prohibited.
        ICMP => matches!(l4[..2], [3, _]),
        ICMP6 => matches!(l4[..2], [1, _]),
        _ => false,
    };
    let ports = if matches!(protocol, ICMP | ICMP6) { (0, 0) } else { (port(0), port(2)) };
    Seen {
        source: SocketAddr::new(source, ports.0),
        destination: SocketAddr::new(destination, ports.1),
        kind: if refusal { Kind::Refusal } else { Kind::Data(protocol) },
    }
}

fn checksum_at(protocol: u8) -> usize {
    match protocol {
        TCP => 16,
        UDP => 6,
        _ => 8,
    }
}

fn pseudo(protocol: u8, source: IpAddr, destination: IpAddr, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
    }
    bytes.extend([0, protocol]);
    bytes.extend((length as u16).to_be_bytes());
    bytes
}

/// Computes the internet checksum over all parts; each but the last has an even length.
fn internet(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 =
        words.map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Computes SCTP's checksum, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 },
        )
    };
    !bytes.iter().fold(!0, step)
}
