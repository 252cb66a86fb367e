//! Finds the sockets that have to be destroyed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ebpf_common::frontend::{Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6};
use ebpf_common::socket::{Socket4, Socket6, SocketKey4, SocketKey6, direction};
use ebpf_common::{limits, protocol};

use super::Cookies;
use crate::connected::{ConnectedTable, Connection};
use crate::convert::{self, RawKey, address4, address6};
use crate::map::{HashTable, MappedArray};
use crate::store::Family;
use crate::tables::{FrontendKey, Protocol, Scope};

/// The address that a datagram socket was connected to.
type Address = (IpAddr, u16);

/// The live tables.
pub struct Live {
    connected: ConnectedTable,
    sockets4: HashTable<SocketKey4, Socket4>,
    sockets6: HashTable<SocketKey6, Socket6>,
    frontends4: HashTable<FrontendKey4, Frontend>,
    frontends6: HashTable<FrontendKey6, Frontend>,
    backends4: MappedArray<Backend4>,
    backends6: MappedArray<Backend6>,
}

impl Live {
    /// Opens the maps pinned in this directory.
    pub fn open(maps: &Path) -> io::Result<Self> {
        let at = |name: &str| maps.join(name);
        Ok(Self {
            connected: ConnectedTable::open(maps)?,
            sockets4: HashTable::open(&at("SOCKETS4"))?,
            sockets6: HashTable::open(&at("SOCKETS6"))?,
            frontends4: HashTable::open(&at("FRONTENDS4"))?,
            frontends6: HashTable::open(&at("FRONTENDS6"))?,
            backends4: MappedArray::open(&at("BACKENDS4"), false)?,
            backends6: MappedArray::open(&at("BACKENDS6"), false)?,
        })
    }

    /// Returns the cookies of the datagram sockets whose backend is not one of their frontend's.
    pub fn stale(&self) -> io::Result<Cookies> {
        let mut lists: BTreeMap<Address, Vec<Address>> = BTreeMap::new();
        let connections: Vec<Connection> =
            self.datagrams()?.into_iter().filter(|socket| socket.protocol == protocol::UDP).collect();
        for connection in &connections {
            if let Entry::Vacant(place) = lists.entry(connection.frontend) {
                place.insert(self.backends(connection.frontend)?);
            }
        }
        Ok(stale(&connections, &lists))
    }

    /// Returns connected sockets. Those that found no slot are stored among those without a connection, of
    /// which there may be many; they are read only if some set of slots is full.
    fn datagrams(&self) -> io::Result<Vec<Connection>> {
        let mut all: Vec<Connection> = self.connected.iter().collect();
        if !self.connected.is_overflowing() {
            return Ok(all);
        }
        for (key, value) in self.sockets4.read_all()? {
            if key.direction == direction::REVERSE {
                let at = |address, port| (IpAddr::V4(address4(address)), u16::from_be(port));
                let (frontend, backend) = (at(value.address, value.port), at(key.address, key.port));
                all.push(of_peer(key.cookie, value.service, key.protocol, frontend, backend));
            }
        }
        for (key, value) in self.sockets6.read_all()? {
            if key.direction == direction::REVERSE {
                let at = |address, port| (IpAddr::V6(address6(address)), u16::from_be(port));
                let (frontend, backend) = (at(value.address, value.port), at(key.address, key.port));
                all.push(of_peer(key.cookie, value.service, key.protocol, frontend, backend));
            }
        }
        Ok(all)
    }

    /// Returns the backends among which programs would choose for datagrams to this address; empty if they
    /// would not translate or would refuse them.
    fn backends(&self, (address, port): Address) -> io::Result<Vec<Address>> {
        for address in [address, convert::unspecified(address)] {
            let key = FrontendKey { address, port, protocol: Protocol::Udp, scope: Scope::Internal };
            for _ in 0..limits::FRONTEND_TRIES {
                let Some(value) = self.frontend(&key)? else { break };
                let list = self.block(address, &value);
                // A block that was replaced meanwhile may hold another service's backends by now.
                if self.frontend(&key)? == Some(value) {
                    return Ok(list);
                }
            }
        }
        Ok(Vec::new())
    }

    fn frontend(&self, key: &FrontendKey) -> io::Result<Option<Frontend>> {
        match convert::raw_key(key) {
            RawKey::V4(key) => self.frontends4.get(&key),
            RawKey::V6(key) => self.frontends6.get(&key),
        }
    }

    fn block(&self, address: IpAddr, value: &Frontend) -> Vec<Address> {
        let start = value.block() as usize;
        let places = |length: usize| start.min(length)..(start + usize::from(value.count())).min(length);
        let of = |backend: crate::tables::Backend| (backend.address, backend.port);
        if address.is_ipv4() {
            let places = places(self.backends4.len());
            places.map(|index| of(convert::backend4(&self.backends4.get(index)))).collect()
        } else {
            let places = places(self.backends6.len());
            places.map(|index| of(convert::backend6(&self.backends6.get(index)))).collect()
        }
    }
}

fn of_peer(cookie: u64, service: u32, protocol: u8, frontend: Address, backend: Address) -> Connection {
    Connection { cookie, netns: 0, service, protocol, frontend, backend }
}

/// Returns the sockets whose backend is not in the list of their frontend.
fn stale(connections: &[Connection], lists: &BTreeMap<Address, Vec<Address>>) -> Cookies {
    let mut cookies = Cookies::new();
    for connection in connections {
        let holds = lists.get(&connection.frontend).is_some_and(|list| list.contains(&connection.backend));
        if !holds {
            let family = Family::of_address(connection.frontend.0);
            cookies.entry(connection.netns).or_default().insert(connection.cookie, family);
        }
    }
    cookies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        let address: std::net::SocketAddr = text.parse().unwrap();
        (address.ip(), address.port())
    }

    #[test]
    fn sockets_go_whose_backend_is_not_their_frontends_any_more() {
        let socket = |cookie, netns, frontend, backend| Connection {
            cookie,
            netns,
            service: 1,
            protocol: protocol::UDP,
            frontend: address(frontend),
            backend: address(backend),
        };
        let lists = BTreeMap::from([
            (address("10.96.0.10:53"), vec![address("10.1.0.5:53"), address("10.1.0.6:53")]),
            (address("10.96.0.11:53"), vec![]),
            (address("[fd00:96::a]:53"), vec![address("[fd00:1::5]:53")]),
        ]);
        let connections = [
            socket(1, 7, "10.96.0.10:53", "10.1.0.5:53"),
            socket(2, 7, "10.96.0.10:53", "10.1.0.9:53"),
            socket(3, 7, "10.96.0.10:53", "10.1.0.5:54"),
            socket(4, 8, "10.96.0.11:53", "10.1.0.5:53"),
            socket(5, 8, "10.96.0.12:53", "10.1.0.5:53"),
            socket(6, 8, "[fd00:96::a]:53", "[fd00:1::5]:53"),
            socket(7, 8, "[fd00:96::a]:53", "[fd00:1::6]:53"),
        ];
        let (v4, v6) = (Family::V4, Family::V6);
        let expected =
            Cookies::from([(7, [(2, v4), (3, v4)].into()), (8, [(4, v4), (5, v4), (7, v6)].into())]);
        assert_eq!(stale(&connections, &lists), expected);
    }
}
