//! The entries that lead to other nodes' pods, and the difference between those wanted and those there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;

use super::guards::Guard;
use super::plan::Touched;
use crate::netlink::Mac;
use crate::wireguard::PublicKey;

/// The next hop of a route to a node's pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hop {
    /// The node itself, on the link of this interface.
    Link { gateway: IpAddr, interface: u32 },
    /// The other end of the tunnel, and the own address towards its pods.
    Tunnel { gateway: IpAddr, source: Option<IpAddr> },
}

/// The tunnel device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tunnel {
    pub vni: u32,
    pub port: u16,
    /// The source address of outer packets; the kernel selects one if the machine lacks the Node's.
    pub local: Option<IpAddr>,
    pub outer_ipv4: bool,
    /// The WireGuard device through which outer packets go, and from which alone they are accepted.
    pub link: Option<u32>,
    pub mac: Mac,
    /// `None` for the kernel's choice.
    pub mtu: Option<u32>,
    pub addresses: Vec<IpAddr>,
}

/// The wanted entries, each list sorted by its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    pub tunnel: Option<Tunnel>,
    pub routes: Vec<(IpNetwork, Hop)>,
    pub neighbours: Vec<(IpAddr, Mac)>,
    pub fdb: Vec<(Mac, IpAddr)>,
    /// The peers of the WireGuard device, with their endpoints.
    pub keys: Vec<(PublicKey, Option<SocketAddr>)>,
    pub guards: BTreeSet<Guard>,
}

impl Tables {
    pub fn sort(&mut self) {
        self.routes.sort_unstable_by_key(|(to, _)| *to);
        self.neighbours.sort_unstable_by_key(|(address, _)| *address);
        self.fdb.sort_unstable_by_key(|(mac, _)| *mac);
        self.keys.sort_unstable_by_key(|(key, _)| *key);
    }

    /// Adds the entries of a Node; they are sorted later.
    pub fn add(&mut self, entries: &Self) {
        self.routes.extend(&entries.routes);
        self.neighbours.extend(&entries.neighbours);
        self.fdb.extend(&entries.fdb);
        self.keys.extend(&entries.keys);
    }

    /// Removes the entries of a Node.
    pub fn remove(&mut self, entries: &Self) {
        without(&mut self.routes, &entries.routes);
        without(&mut self.neighbours, &entries.neighbours);
        without(&mut self.fdb, &entries.fdb);
        without(&mut self.keys, &entries.keys);
    }

    /// Returns the part with these keys.
    pub fn part(&self, touched: &Touched) -> Self {
        Self {
            tunnel: self.tunnel.clone(),
            routes: chosen(&self.routes, &touched.routes),
            neighbours: chosen(&self.neighbours, &touched.neighbours),
            fdb: chosen(&self.fdb, &touched.fdb),
            keys: chosen(&self.keys, &touched.keys),
            guards: BTreeSet::new(),
        }
    }

    /// Returns the routes as the kernel has them, with the tunnel device's index.
    pub fn routes_through(&self, tunnel: Option<u32>) -> Vec<(IpNetwork, Via)> {
        let through = |hop: Hop| match hop {
            Hop::Link { gateway, interface } => Some(Via { gateway, interface, source: None, onlink: false }),
            Hop::Tunnel { gateway, source } => {
                Some(Via { gateway, interface: tunnel?, source, onlink: true })
            }
        };
        self.routes.iter().filter_map(|(to, hop)| Some((*to, through(*hop)?))).collect()
    }
}

/// Removes entries from a list that is sorted by key.
fn without<K: Ord + Copy, V>(from: &mut Vec<(K, V)>, entries: &[(K, V)]) {
    for (key, _) in entries {
        if let Ok(index) = from.binary_search_by_key(key, |(other, _)| *other) {
            from.remove(index);
        }
    }
}

/// Returns the entries with some keys of a list that is sorted by key; sorted too.
fn chosen<K: Ord + Copy, V: Copy>(from: &[(K, V)], keys: &[K]) -> Vec<(K, V)> {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys.dedup();
    let found = keys.iter().filter_map(|key| from.binary_search_by_key(key, |(other, _)| *other).ok());
    found.map(|index| from[index]).collect()
}

/// The value of a route in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Via {
    pub gateway: IpAddr,
    pub interface: u32,
    pub source: Option<IpAddr>,
    /// The gateway is on the link although no address says so.
    pub onlink: bool,
}

/// Entries of ours that the kernel has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Present {
    pub routes: BTreeMap<IpNetwork, Via>,
    pub neighbours: BTreeMap<IpAddr, Mac>,
    pub fdb: BTreeMap<Mac, IpAddr>,
    /// The endpoint is `None` if the peer has other addresses than that of its key.
    pub keys: BTreeMap<PublicKey, Option<SocketAddr>>,
}

impl Present {
    /// Returns the part with these keys.
    pub fn part(&self, touched: &Touched) -> Self {
        fn part<K: Ord + Copy, V: Copy>(from: &BTreeMap<K, V>, keys: &[K]) -> BTreeMap<K, V> {
            keys.iter().filter_map(|key| Some((*key, *from.get(key)?))).collect()
        }
        Self {
            routes: part(&self.routes, &touched.routes),
            neighbours: part(&self.neighbours, &touched.neighbours),
            fdb: part(&self.fdb, &touched.fdb),
            keys: part(&self.keys, &touched.keys),
        }
    }
}

/// Entries to be written, new or with another value, and keys of those to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference<K, V> {
    pub set: Vec<(K, V)>,
    pub gone: Vec<K>,
}

/// Compares the entries that are there with the wanted ones, which are sorted by key.
pub(super) fn difference<K: Ord + Copy, V: Eq + Copy>(
    there: &BTreeMap<K, V>,
    wanted: &[(K, V)],
) -> Difference<K, V> {
    let mut difference = Difference { set: Vec::new(), gone: Vec::new() };
    let mut old = there.iter().peekable();
    for (key, value) in wanted {
        while let Some((gone, _)) = old.next_if(|(other, _)| *other < key) {
            difference.gone.push(*gone);
        }
        match old.next_if(|(other, _)| *other == key) {
            Some((_, same)) if same == value => {}
            _ => difference.set.push((*key, *value)),
        }
    }
    difference.gone.extend(old.map(|(gone, _)| *gone));
    difference
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_written() {
        let there = BTreeMap::from([(1, 'a'), (2, 'b'), (3, 'c'), (9, 'z')]);
        let found = difference(&there, &[(0, 'n'), (2, 'b'), (3, 'x'), (4, 'd')]);
        assert_eq!(found, Difference { set: vec![(0, 'n'), (3, 'x'), (4, 'd')], gone: vec![1, 9] });
        let wanted: Vec<_> = there.iter().map(|(key, value)| (*key, *value)).collect();
        assert_eq!(difference(&there, &wanted), Difference { set: Vec::new(), gone: Vec::new() });
        assert_eq!(difference(&there, &[]).gone, [1, 2, 3, 9]);
    }
}
