//! Conversion between the tables of this crate's users and the layout that programs read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ebpf_common::frontend::{Backend4, Backend6, FrontendKey4, FrontendKey6, SourceRangeKey, backend_flag};
use ebpf_common::masquerade::{Prefix, RANGES, reason};
use ebpf_common::{Config, Range, TICK_SHIFT, protocol, scope};
use ipnetwork::IpNetwork;

use crate::tables::{Backend, FrontendKey, NonMasquerade, Protocol, Scope};

/// Returns the unspecified address of a family, under which node ports are stored.
pub fn unspecified(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Returns `true` if the address lies in a service range, as programs see it.
pub fn is_in_ranges(config: &Config, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let word = word(address);
            config.ranges4.iter().any(|range| range.mask != 0 && word & range.mask == range.network)
        }
        IpAddr::V6(address) => {
            let words = words(address);
            let within =
                |range: &Range<[u32; 4]>| (0..4).all(|n| words[n] & range.mask[n] == range.network[n]);
            config.ranges6.iter().any(|range| range.mask[0] != 0 && within(range))
        }
    }
}

/// A prefix of either family in the layout of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawPrefix {
    V4(Prefix<u32>),
    V6(Prefix<[u32; 4]>),
}

/// Converts a range to the key of a trie.
pub fn raw_prefix(range: &IpNetwork) -> RawPrefix {
    let bits = u32::from(range.prefix());
    match range.network() {
        IpAddr::V4(address) => RawPrefix::V4(Prefix { bits, address: word(address) }),
        IpAddr::V6(address) => RawPrefix::V6(Prefix { bits, address: words(address) }),
    }
}

/// Converts the key of a trie back to the range; `None` if it has too many bits.
pub fn prefix4(raw: &Prefix<u32>) -> Option<IpNetwork> {
    IpNetwork::new(address4(raw.address).into(), u8::try_from(raw.bits).ok()?).ok()
}

/// Converts a key as [`prefix4`] does.
pub fn prefix6(raw: &Prefix<[u32; 4]>) -> Option<IpNetwork> {
    IpNetwork::new(address6(raw.address).into(), u8::try_from(raw.bits).ok()?).ok()
}

/// Every reason for which packets keep their source, with its number in the layout of programs.
const REASONS: [(NonMasquerade, u32); 5] = [
    (NonMasquerade::Cluster, reason::CLUSTER),
    (NonMasquerade::Configured, reason::CONFIGURED),
    (NonMasquerade::LinkLocal, reason::LINK_LOCAL),
    (NonMasquerade::Node, reason::NODE),
    (NonMasquerade::NotRouted, reason::NOT_ROUTED),
];

/// Converts a reason to the layout of programs.
pub fn raw_reason(value: NonMasquerade) -> u32 {
    REASONS.iter().find(|(known, _)| *known == value).map_or(reason::CONFIGURED, |(_, raw)| *raw)
}

/// Converts a reason from the layout of programs; `None` if no build of ours wrote it.
pub fn non_masquerade(raw: u32) -> Option<NonMasquerade> {
    REASONS.iter().find(|(_, known)| *known == raw).map(|(value, _)| *value)
}

/// Returns the first ranges of each family, in the layout of programs.
pub fn raw_ranges(
    ranges: impl Iterator<Item = IpNetwork>,
) -> ([Range<u32>; RANGES], [Range<[u32; 4]>; RANGES]) {
    let (mut v4, mut v6) = ([Range::default(); RANGES], [Range::default(); RANGES]);
    let (mut free4, mut free6) = (v4.iter_mut(), v6.iter_mut());
    for range in ranges {
        match range {
            IpNetwork::V4(range) => {
                if let Some(free) = free4.next() {
                    *free = Range { network: word(range.network()), mask: word(range.mask()) };
                }
            }
            IpNetwork::V6(range) => {
                if let Some(free) = free6.next() {
                    *free = Range { network: words(range.network()), mask: words(range.mask()) };
                }
            }
        }
    }
    (v4, v6)
}

/// A key of either family in the layout of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawKey {
    V4(FrontendKey4),
    V6(FrontendKey6),
}

/// Converts an IPv4 address to the form in packets.
pub fn word(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

/// Converts the result of [`word`] back to the address.
pub fn address4(word: u32) -> Ipv4Addr {
    Ipv4Addr::from(word.to_ne_bytes())
}

/// Converts an IPv6 address to the form in packets.
pub fn words(address: Ipv6Addr) -> [u32; 4] {
    let bytes = address.octets();
    std::array::from_fn(|word| {
        u32::from_ne_bytes([bytes[4 * word], bytes[4 * word + 1], bytes[4 * word + 2], bytes[4 * word + 3]])
    })
}

/// Converts the result of [`words`] back to the address.
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

/// Returns the protocol of a flow's key.
pub fn flow_protocol(value: u32) -> Option<Protocol> {
    match u8::try_from(value).ok()? {
        protocol::ICMP | protocol::ICMP6 => Some(Protocol::Icmp),
        number => protocol(number),
    }
}

/// Returns the IP protocol number in the keys of flows with this address.
pub fn raw_flow_protocol(value: Protocol, address: IpAddr) -> u32 {
    match (value, address) {
        (Protocol::Icmp, IpAddr::V6(_)) => u32::from(protocol::ICMP6),
        _ => u32::from(value as u8),
    }
}

/// Converts a key to the layout of programs.
pub fn raw_key(key: &FrontendKey) -> RawKey {
    let (port, protocol, scope) = (key.port.to_be(), key.protocol as u8, raw_scope(key.scope));
    match key.address {
        IpAddr::V4(address) => RawKey::V4(FrontendKey4 { address: word(address), port, protocol, scope }),
        IpAddr::V6(address) => RawKey::V6(FrontendKey6 { address: words(address), port, protocol, scope }),
    }
}

/// Converts a key from the layout of programs; `None` if no build of ours wrote it.
pub fn key4(raw: &FrontendKey4) -> Option<FrontendKey> {
    Some(FrontendKey {
        address: IpAddr::V4(address4(raw.address)),
        port: u16::from_be(raw.port),
        protocol: protocol(raw.protocol)?,
        scope: scope(raw.scope)?,
    })
}

/// Converts a key as [`key4`] does.
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

/// Converts a backend to the layout of programs; `None` if it is of the other family.
pub fn raw_backend4(backend: &Backend) -> Option<Backend4> {
    match backend.address {
        IpAddr::V4(address) => {
            Some(Backend4 { address: word(address), port: backend.port.to_be(), flags: flags(backend.local) })
        }
        IpAddr::V6(_) => None,
    }
}

/// Converts a backend as [`raw_backend4`] does.
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

/// Converts a backend from the layout of programs, with the default weight: tables store weights elsewhere.
pub fn backend4(raw: &Backend4) -> Backend {
    let local = raw.flags & backend_flag::LOCAL != 0;
    Backend::new(IpAddr::V4(address4(raw.address)), u16::from_be(raw.port), local)
}

/// Converts a backend as [`backend4`] does.
pub fn backend6(raw: &Backend6) -> Backend {
    let local = raw.flags & backend_flag::LOCAL != 0;
    Backend::new(IpAddr::V6(address6(raw.address)), u16::from_be(raw.port), local)
}

/// A key of the source ranges, of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawRange {
    V4(SourceRangeKey<u32>),
    V6(SourceRangeKey<[u32; 4]>),
}

/// Number of bits of a range's key that name the service.
const SERVICE_BITS: u32 = 32;

/// Converts a range to the layout of programs; host bits are zero.
pub fn raw_range(service: u32, range: &IpNetwork) -> RawRange {
    let bits = SERVICE_BITS + u32::from(range.prefix());
    match range {
        IpNetwork::V4(range) => {
            RawRange::V4(SourceRangeKey { bits, service, address: word(range.network()) })
        }
        IpNetwork::V6(range) => {
            RawRange::V6(SourceRangeKey { bits, service, address: words(range.network()) })
        }
    }
}

fn range(address: IpAddr, bits: u32) -> IpNetwork {
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let prefix = bits.saturating_sub(SERVICE_BITS).min(longest) as u8;
    // The prefix is never longer than its family allows.
    IpNetwork::new(address, prefix).unwrap_or_else(|_| IpNetwork::from(address))
}

pub fn range4(raw: &SourceRangeKey<u32>) -> IpNetwork {
    range(IpAddr::V4(address4(raw.address)), raw.bits)
}

pub fn range6(raw: &SourceRangeKey<[u32; 4]>) -> IpNetwork {
    range(IpAddr::V6(address6(raw.address)), raw.bits)
}

/// Sorts backends of one family into the order of their blocks, which is the same on all nodes.
pub fn sort(backends: &mut [Backend]) {
    backends.sort_unstable_by_key(|backend| (place(backend), *backend));
}

/// Returns the sort key of a backend in its block, [`Backend4::order`] or that of IPv6.
fn place(backend: &Backend) -> u64 {
    match backend.address {
        IpAddr::V4(address) => Backend4::order(word(address), backend.port.to_be()),
        IpAddr::V6(address) => Backend6::order(&words(address), backend.port.to_be()),
    }
}

/// Returns the identity of a backend in a consistent choice, which depends on address and port alone.
pub fn identity(backend: &Backend) -> u64 {
    let (high, low) = match backend.address {
        IpAddr::V4(address) => (0, u64::from(u32::from(address))),
        IpAddr::V6(address) => {
            let bits = u128::from(address);
            ((bits >> 64) as u64, bits as u64)
        }
    };
    let spread = high.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31) ^ low;
    spread.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(16) ^ u64::from(backend.port)
}

/// Converts seconds to ticks of the programs' clock, rounded up; 0 stays 0.
pub fn ticks(seconds: u32) -> u32 {
    u64::from(seconds).saturating_mul(1_000_000_000).div_ceil(1 << TICK_SHIFT).try_into().unwrap_or(u32::MAX)
}

/// Converts ticks to seconds, rounded down.
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
    fn ranges_survive_the_way_there_and_back() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.7/32", "fd00::/8", "::/0", "2001:db8::1/128"] {
            let range: IpNetwork = text.parse().unwrap();
            let back = match raw_range(7, &range) {
                RawRange::V4(raw) => (raw.service, range4(&raw)),
                RawRange::V6(raw) => (raw.service, range6(&raw)),
            };
            assert_eq!(back, (7, range), "{text}");
        }
        // Host bits have no effect: otherwise the trie would not find the range again.
        assert_eq!(
            raw_range(1, &"10.1.2.3/8".parse().unwrap()),
            raw_range(1, &"10.0.0.0/8".parse().unwrap())
        );
    }

    #[test]
    fn blocks_are_in_the_order_that_programs_search() {
        let mut v4: Vec<Backend> = (0..50_u8)
            .map(|number| {
                Backend::new(IpAddr::from([10, number, 255 - number, 7]), 80 * u16::from(number % 3), false)
            })
            .collect();
        sort(&mut v4);
        let orders: Vec<u64> =
            v4.iter().filter_map(raw_backend4).map(|raw| Backend4::order(raw.address, raw.port)).collect();
        assert!(orders.is_sorted() && orders.len() == 50);
        let mut v6: Vec<Backend> = (0..50_u16)
            .map(|number| Backend::new(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 7, number]), 80, number % 2 == 0))
            .collect();
        sort(&mut v6);
        let orders: Vec<u64> =
            v6.iter().filter_map(raw_backend6).map(|raw| Backend6::order(&raw.address, raw.port)).collect();
        assert!(orders.is_sorted() && orders.len() == 50);
    }

    #[test]
    fn ticks_cover_the_seconds() {
        assert_eq!((ticks(0), ticks(1), ticks(10_800)), (0, 1, 10_059));
        assert!(seconds(ticks(10_800)) >= 10_800);
    }
}
