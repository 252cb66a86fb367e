//! Between the tables that others fill and the layout that programs read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ebpf_common::frontend::{Backend4, Backend6, FrontendKey4, FrontendKey6, backend_flag};
use ebpf_common::{TICK_SHIFT, scope};

use crate::tables::{Backend, FrontendKey, Protocol, Scope};

/// A key of either family, as programs have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawKey {
    V4(FrontendKey4),
    V6(FrontendKey6),
}

/// A v4 address as the packet carries it.
pub fn word(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

/// The address that [`word`] came from.
pub fn address4(word: u32) -> Ipv4Addr {
    Ipv4Addr::from(word.to_ne_bytes())
}

/// A v6 address as the packet carries it.
pub fn words(address: Ipv6Addr) -> [u32; 4] {
    let bytes = address.octets();
    std::array::from_fn(|word| {
        u32::from_ne_bytes([bytes[4 * word], bytes[4 * word + 1], bytes[4 * word + 2], bytes[4 * word + 3]])
    })
}

/// The address that [`words`] came from.
pub fn address6(words: [u32; 4]) -> Ipv6Addr {
    let mut bytes = [0_u8; 16];
    for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from(bytes)
}

pub fn raw_scope(value: Scope) -> u8 {
    match value {
        Scope::Internal => scope::INTERNAL,
        Scope::External => scope::EXTERNAL,
    }
}

pub fn scope(value: u8) -> Option<Scope> {
    match value {
        scope::INTERNAL => Some(Scope::Internal),
        scope::EXTERNAL => Some(Scope::External),
        _ => None,
    }
}

pub fn protocol(value: u8) -> Option<Protocol> {
    [Protocol::Any, Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|known| *known as u8 == value)
}

/// The key as programs have it.
pub fn raw_key(key: &FrontendKey) -> RawKey {
    let (port, protocol, scope) = (key.port.to_be(), key.protocol as u8, raw_scope(key.scope));
    match key.address {
        IpAddr::V4(address) => RawKey::V4(FrontendKey4 { address: word(address), port, protocol, scope }),
        IpAddr::V6(address) => RawKey::V6(FrontendKey6 { address: words(address), port, protocol, scope }),
    }
}

/// The key that programs have; none if no build of ours wrote it.
pub fn key4(raw: &FrontendKey4) -> Option<FrontendKey> {
    Some(FrontendKey {
        address: IpAddr::V4(address4(raw.address)),
        port: u16::from_be(raw.port),
        protocol: protocol(raw.protocol)?,
        scope: scope(raw.scope)?,
    })
}

/// As [`key4`].
pub fn key6(raw: &FrontendKey6) -> Option<FrontendKey> {
    Some(FrontendKey {
        address: IpAddr::V6(address6(raw.address)),
        port: u16::from_be(raw.port),
        protocol: protocol(raw.protocol)?,
        scope: scope(raw.scope)?,
    })
}

fn flags(local: bool) -> u16 {
    if local { backend_flag::LOCAL } else { 0 }
}

/// The backend as programs have it; none if it is of the other family.
pub fn raw_backend4(backend: &Backend) -> Option<Backend4> {
    match backend.address {
        IpAddr::V4(address) => {
            Some(Backend4 { address: word(address), port: backend.port.to_be(), flags: flags(backend.local) })
        }
        IpAddr::V6(_) => None,
    }
}

/// As [`raw_backend4`].
pub fn raw_backend6(backend: &Backend) -> Option<Backend6> {
    match backend.address {
        IpAddr::V6(address) => Some(Backend6 {
            address: words(address),
            port: backend.port.to_be(),
            flags: flags(backend.local),
            reserved: 0,
        }),
        IpAddr::V4(_) => None,
    }
}

/// The backend that programs have, with the weight that all have: tables keep weights elsewhere.
pub fn backend4(raw: &Backend4) -> Backend {
    let local = raw.flags & backend_flag::LOCAL != 0;
    Backend::new(IpAddr::V4(address4(raw.address)), u16::from_be(raw.port), local)
}

/// As [`backend4`].
pub fn backend6(raw: &Backend6) -> Backend {
    let local = raw.flags & backend_flag::LOCAL != 0;
    Backend::new(IpAddr::V6(address6(raw.address)), u16::from_be(raw.port), local)
}

/// Seconds in ticks of the programs' clock, rounded up; 0 stays 0.
pub fn ticks(seconds: u32) -> u32 {
    u64::from(seconds).saturating_mul(1_000_000_000).div_ceil(1 << TICK_SHIFT).try_into().unwrap_or(u32::MAX)
}

/// Ticks in seconds, rounded down.
pub fn seconds(ticks: u32) -> u64 {
    (u64::from(ticks) << TICK_SHIFT) / 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_there_and_back() {
        let v4: Ipv4Addr = "10.1.2.3".parse().unwrap();
        assert_eq!(word(v4).to_ne_bytes(), [10, 1, 2, 3]);
        assert_eq!(address4(word(v4)), v4);
        let v6: Ipv6Addr = "fd00::1:2".parse().unwrap();
        assert_eq!(address6(words(v6)), v6);
    }

    #[test]
    fn keys_survive_the_way_there_and_back() {
        for address in ["10.0.0.1", "fd00::7"] {
            let key = FrontendKey {
                address: address.parse().unwrap(),
                port: 8080,
                protocol: Protocol::Udp,
                scope: Scope::External,
            };
            let back = match raw_key(&key) {
                RawKey::V4(raw) => key4(&raw),
                RawKey::V6(raw) => key6(&raw),
            };
            assert_eq!(back, Some(key));
        }
    }

    #[test]
    fn ticks_cover_the_seconds() {
        assert_eq!((ticks(0), ticks(1), ticks(10_800)), (0, 1, 10_059));
        assert!(seconds(ticks(10_800)) >= 10_800);
    }
}
