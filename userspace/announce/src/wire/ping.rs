//! Pings between nodes, over UDP.
//!
//! ```text
//!       0       4         5      6       7          8       16
//!       ├"HWLB"─┼version 1┼kind──┼flags──┼networks──┼nonce──┼ networks: address (16), length (1), of 128 bits
//! ```
//!
//! A ping is as long as the longest pong, so that nobody can use a node to multiply traffic.

use std::net::{IpAddr, Ipv6Addr};

use ipnetwork::IpNetwork;

use super::ipv6;
use crate::limits::NETWORKS;

const MAGIC: &[u8; 4] = b"HWLB";
const VERSION: u8 = 1;
const HEAD: usize = 16;
const NETWORK: usize = 17;
const LENGTH: usize = HEAD + NETWORKS * NETWORK;
const WILLING: u8 = 1;

/// A ping or its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ping {
    /// A number that nobody can guess; the answer repeats it.
    pub nonce: u64,
    pub kind: PingKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PingKind {
    Ping,
    Pong {
        /// The node announces what falls to it.
        willing: bool,
        /// The networks on its links.
        networks: Vec<IpNetwork>,
    },
}

impl Ping {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..HEAD)?;
        if &head[..4] != MAGIC || head[4] != VERSION {
            return None;
        }
        let nonce = u64::from_be_bytes(head[8..].try_into().ok()?);
        let kind = match head[5] {
            1 if bytes.len() == LENGTH => PingKind::Ping,
            2 => {
                let networks = bytes[HEAD..].chunks_exact(NETWORK).take(usize::from(head[7]).min(NETWORKS));
                let networks = networks.filter_map(network).collect();
                PingKind::Pong { willing: head[6] & WILLING != 0, networks }
            }
            _ => return None,
        };
        Some(Self { nonce, kind })
    }

    pub fn build(&self) -> Vec<u8> {
        let (kind, flags, networks) = match &self.kind {
            PingKind::Ping => (1, 0, [].as_slice()),
            PingKind::Pong { willing, networks } => (2, u8::from(*willing) * WILLING, networks.as_slice()),
        };
        let networks = &networks[..networks.len().min(NETWORKS)];
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, kind, flags, networks.len() as u8]);
        bytes.extend(self.nonce.to_be_bytes());
        for network in networks {
            let (address, length) = match network.network() {
                IpAddr::V4(address) => (address.to_ipv6_mapped(), network.prefix() + 96),
                IpAddr::V6(address) => (address, network.prefix()),
            };
            bytes.extend(address.octets());
            bytes.push(length);
        }
        if kind == 1 {
            bytes.resize(LENGTH, 0);
        }
        bytes
    }
}

fn network(bytes: &[u8]) -> Option<IpNetwork> {
    let address: Ipv6Addr = ipv6(&bytes[..16])?;
    match address.to_ipv4_mapped() {
        Some(mapped) => IpNetwork::new(mapped.into(), bytes[16].checked_sub(96)?).ok(),
        None => IpNetwork::new(address.into(), bytes[16]).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_and_pongs_are_read_as_they_were_written() {
        let networks: Vec<IpNetwork> =
            ["192.0.2.0/24", "2001:db8::/64"].iter().map(|text| text.parse().unwrap()).collect();
        for kind in [
            PingKind::Ping,
            PingKind::Pong { willing: true, networks: networks.clone() },
            PingKind::Pong { willing: false, networks: Vec::new() },
        ] {
            let ping = Ping { nonce: 0x0123_4567_89ab_cdef, kind };
            assert_eq!(Ping::parse(&ping.build()), Some(ping));
        }
        let many = vec![networks[0]; 20];
        let pong = Ping { nonce: 1, kind: PingKind::Pong { willing: true, networks: many } }.build();
        assert_eq!(pong.len(), Ping { nonce: 1, kind: PingKind::Ping }.build().len());
    }

    #[test]
    fn a_short_ping_gets_no_longer_answer() {
        let ping = Ping { nonce: 1, kind: PingKind::Ping }.build();
        assert_eq!(Ping::parse(&ping[..HEAD]), None);
        assert_eq!(Ping::parse(b"GET / HTTP/1.1\r\n\r\n"), None);
    }
}
