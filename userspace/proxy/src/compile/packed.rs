//! The tables of one Service as bytes: there are many Services, and most of them never change.
//!
//! ```text
//! tables    count, frontends · count, lists of backends · count, ranges
//! frontend  bits · protocol · port · address · affinity · number of the list
//! list      count, backends: bits · port · address · weight, unless it is 1
//! range     bits · prefix · address
//! ```
//!
//! Counts, affinity and the number of a list are written seven bits a byte, the lowest first. Equal tables
//! are equal bytes: each list is stored once, in the order of first use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use userspace_dataplane::tables::{
    Algorithm, Backend, Forwarding, Frontend, FrontendKey, Protocol, Scope, ServiceTables,
};

/// [`ServiceTables`] in a sixth of their size.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packed(Box<[u8]>);

/// The bit of an IPv6 address, in everything that has an address.
const V6: u8 = 1;
/// The bit of an external frontend.
const EXTERNAL: u8 = 1 << 1;
const DROP_WHEN_EMPTY: u8 = 1 << 2;
const CONSISTENT: u8 = 1 << 3;
const DSR_OPTION: u8 = 1 << 4;
const DSR_IPIP: u8 = 1 << 5;
const MASQUERADE: u8 = 1 << 6;
const LIMITED: u8 = 1 << 7;
/// The bit of a local backend.
const LOCAL: u8 = 1 << 1;
const WEIGHTED: u8 = 1 << 2;

impl Packed {
    pub fn of(tables: &ServiceTables) -> Self {
        let mut lists: Vec<&[Backend]> = Vec::new();
        let mut bytes = Writer(Vec::new());
        bytes.number(tables.frontends.len());
        for frontend in &tables.frontends {
            let known = lists.iter().rposition(|list| **list == *frontend.backends);
            let list = known.unwrap_or_else(|| {
                lists.push(&frontend.backends);
                lists.len() - 1
            });
            bytes.frontend(frontend, list);
        }
        bytes.number(lists.len());
        for list in lists {
            bytes.number(list.len());
            list.iter().for_each(|backend| bytes.backend(backend));
        }
        bytes.number(tables.source_ranges.len());
        tables.source_ranges.iter().for_each(|range| bytes.range(range));
        Self(bytes.0.into_boxed_slice())
    }

    /// Returns the keys of all frontends.
    pub fn keys(&self) -> impl Iterator<Item = FrontendKey> {
        let mut bytes = Reader(&self.0);
        (0..bytes.number()).map(move |_| bytes.frontend().0.key)
    }

    /// Returns the tables of the frontends that are `wanted`.
    pub fn read(&self, wanted: impl Fn(&FrontendKey) -> bool) -> ServiceTables {
        let mut bytes = Reader(&self.0);
        let frontends = bytes.all(Reader::frontend);
        let lists = bytes.all(|bytes| bytes.all(Reader::backend));
        let source_ranges = bytes.all(Reader::range);
        let frontends = frontends.into_iter().filter(|(frontend, _)| wanted(&frontend.key));
        let whole =
            |(frontend, list): (Frontend, usize)| Frontend { backends: lists[list].clone(), ..frontend };
        ServiceTables { frontends: frontends.map(whole).collect(), source_ranges }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, number: usize) {
        let mut rest = number;
        while rest > 0x7f {
            self.0.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push(rest as u8);
    }

    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.0.extend(address.octets()),
            IpAddr::V6(address) => self.0.extend(address.octets()),
        }
    }

    fn frontend(&mut self, frontend: &Frontend, list: usize) {
        let Frontend {
            key,
            backends: _,
            affinity_seconds,
            drop_when_empty,
            algorithm,
            forwarding,
            masquerade,
            limited,
        } = frontend;
        let forwarding = match forwarding {
            Forwarding::Nat => 0,
            Forwarding::DsrOption => DSR_OPTION,
            Forwarding::DsrIpip => DSR_IPIP,
        };
        let bits = when(key.address.is_ipv6(), V6)
            | when(key.scope == Scope::External, EXTERNAL)
            | when(*drop_when_empty, DROP_WHEN_EMPTY)
            | when(*algorithm == Algorithm::Consistent, CONSISTENT)
            | when(*masquerade, MASQUERADE)
            | when(*limited, LIMITED);
        self.0.extend([bits | forwarding, key.protocol as u8]);
        self.0.extend(key.port.to_ne_bytes());
        self.address(key.address);
        self.number(*affinity_seconds as usize);
        self.number(list);
    }

    fn backend(&mut self, backend: &Backend) {
        let Backend { address, port, local, weight } = *backend;
        self.0.push(when(address.is_ipv6(), V6) | when(local, LOCAL) | when(weight != 1, WEIGHTED));
        self.0.extend(port.to_ne_bytes());
        self.address(address);
        if weight != 1 {
            self.0.extend(weight.to_ne_bytes());
        }
    }

    fn range(&mut self, range: &IpNetwork) {
        self.0.extend([when(range.is_ipv6(), V6), range.prefix()]);
        self.address(range.ip());
    }
}

fn when(is: bool, bit: u8) -> u8 {
    if is { bit } else { 0 }
}

/// Reads bytes that a [`Writer`] of this process has written.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// Reads a count, and that number of items.
    fn all<T>(&mut self, one: impl Fn(&mut Self) -> T) -> Vec<T> {
        (0..self.number()).map(|_| one(self)).collect()
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().expect("it was written whole");
        self.0 = rest;
        *taken
    }

    fn number(&mut self) -> usize {
        let (mut number, mut shift) = (0, 0);
        loop {
            let [byte] = self.take();
            number |= usize::from(byte & 0x7f) << shift;
            if byte <= 0x7f {
                return number;
            }
            shift += 7;
        }
    }

    fn port(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn address(&mut self, bits: u8) -> IpAddr {
        if bits & V6 == 0 {
            IpAddr::V4(Ipv4Addr::from(self.take::<4>()))
        } else {
            IpAddr::V6(Ipv6Addr::from(self.take::<16>()))
        }
    }

    /// Reads a frontend without its backends, and the number of its list.
    fn frontend(&mut self) -> (Frontend, usize) {
        let [bits, protocol] = self.take();
        let has = |bit| bits & bit != 0;
        let protocol = match protocol {
            0 => Protocol::Any,
            17 => Protocol::Udp,
            132 => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        let scope = if has(EXTERNAL) { Scope::External } else { Scope::Internal };
        let (port, address) = (self.port(), self.address(bits));
        let frontend = Frontend {
            affinity_seconds: self.number() as u32,
            drop_when_empty: has(DROP_WHEN_EMPTY),
            algorithm: if has(CONSISTENT) { Algorithm::Consistent } else { Algorithm::Random },
            forwarding: match (has(DSR_OPTION), has(DSR_IPIP)) {
                (true, _) => Forwarding::DsrOption,
                (_, true) => Forwarding::DsrIpip,
                _ => Forwarding::Nat,
            },
            masquerade: has(MASQUERADE),
            limited: has(LIMITED),
            ..Frontend::new(FrontendKey { address, port, protocol, scope }, Vec::new())
        };
        (frontend, self.number())
    }

    fn backend(&mut self) -> Backend {
        let [bits] = self.take();
        let (port, address) = (self.port(), self.address(bits));
        let weight = if bits & WEIGHTED == 0 { 1 } else { u16::from_ne_bytes(self.take()) };
        Backend { address, port, local: bits & LOCAL != 0, weight }
    }

    fn range(&mut self) -> IpNetwork {
        let [bits, prefix] = self.take();
        let address = self.address(bits);
        IpNetwork::new(address, prefix).expect("it was one when it was written")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            // An IPv4-mapped address is an IPv6 address here.
            any::<[u8; 4]>().prop_map(|octets| IpAddr::V6(Ipv4Addr::from(octets).to_ipv6_mapped())),
            any::<[u8; 16]>().prop_map(IpAddr::from),
        ]
    }

    fn backends() -> impl Strategy<Value = Vec<Backend>> {
        let backend = (addresses(), any::<u16>(), any::<bool>(), prop_oneof![Just(1), any::<u16>()])
            .prop_map(|(address, port, local, weight)| Backend { address, port, local, weight });
        prop::collection::vec(backend, 0..4)
    }

    fn keys() -> impl Strategy<Value = FrontendKey> {
        let protocols = [Protocol::Any, Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let scopes = [Scope::Internal, Scope::External];
        (
            addresses(),
            any::<u16>(),
            prop::sample::select(protocols.to_vec()),
            prop::sample::select(scopes.to_vec()),
        )
            .prop_map(|(address, port, protocol, scope)| FrontendKey {
                address,
                port,
                protocol,
                scope,
            })
    }

    fn frontends() -> impl Strategy<Value = (Frontend, usize)> {
        let forwardings = [Forwarding::Nat, Forwarding::DsrOption, Forwarding::DsrIpip];
        let choices =
            (prop::sample::select(forwardings.to_vec()), any::<u32>(), any::<[bool; 4]>(), 0..3_usize);
        (keys(), choices).prop_map(|(key, (forwarding, affinity_seconds, bits, list))| {
            let [drop_when_empty, consistent, masquerade, limited] = bits;
            let algorithm = if consistent { Algorithm::Consistent } else { Algorithm::Random };
            let choices = Frontend {
                affinity_seconds,
                drop_when_empty,
                algorithm,
                forwarding,
                masquerade,
                limited,
                ..Frontend::new(key, Vec::new())
            };
            (choices, list)
        })
    }

    fn tables() -> impl Strategy<Value = ServiceTables> {
        let lists = prop::collection::vec(backends(), 3);
        let ranges = (addresses(), 0..33_u8)
            .prop_map(|(address, prefix)| IpNetwork::new(address, prefix).expect("shorter than any"));
        let ranges = prop::collection::vec(ranges, 0..3);
        (prop::collection::vec(frontends(), 0..200), lists, ranges).prop_map(|(frontends, lists, ranges)| {
            let whole = |(one, list): (Frontend, usize)| Frontend { backends: lists[list].clone(), ..one };
            ServiceTables { frontends: frontends.into_iter().map(whole).collect(), source_ranges: ranges }
        })
    }

    proptest! {
        #![proptest_config(crate::seeded::config(256))]

        #[test]
        fn tables_survive_the_way_there_and_back(tables in tables()) {
            let packed = Packed::of(&tables);
            let keys: Vec<_> = tables.frontends.iter().map(|frontend| frontend.key).collect();
            prop_assert_eq!(packed.keys().collect::<Vec<_>>(), keys);
            prop_assert_eq!(packed.read(|_| true), tables.clone());
            let some = packed.read(|key| key.port % 2 == 0);
            prop_assert!(some.frontends.iter().all(|frontend| frontend.key.port % 2 == 0));
            prop_assert_eq!(&Packed::of(&packed.read(|_| true)), &packed);
            prop_assert_eq!(Packed::of(&some) == packed, some == tables);
        }
    }
}
