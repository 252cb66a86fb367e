//! Decides on routes, neighbours and FDB entries for all peers: a plain function on plain data.
//!
//! Nodes are written by kubelets, any of which may be hostile. A Node gets routes for its podCIDR alone, which
//! must be within the cluster's range, no larger than our own, and free: the older Node keeps a range.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use apiserver_meta::networks::{covers, overlap};
use ipnetwork::IpNetwork;

use super::guards::guards;
use super::tables::{Hop, Tables, Tunnel};
use super::underlay::{Reach, Underlay};
use super::{Mode, Peer, PeerConfig, tunnel_overhead};
use crate::config::{check_mtu, host_address};
use crate::netlink::Mac;
use crate::wireguard::{ANNOTATION, KEY_FILE, PublicKey, Published};

/// The decision for all peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub tables: Tables,
    /// Nodes without routes, by name, with the reason. The own one is among them if others have routes to an older
    /// Node in its place.
    pub refused: BTreeMap<String, Refusal>,
}

/// A reason why a Node gets no routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Ranges(String),
    Outside(IpNetwork),
    TooLarge(IpNetwork, u8),
    Services(IpNetwork, IpNetwork),
    Covers(IpNetwork, IpAddr),
    Claimed(IpNetwork, String),
    OwnAddress(IpAddr),
    BadAddress(IpAddr),
    BehindGateway(IpAddr),
    NoAddress(&'static str),
    NoKey,
    BadKey(String),
    TakenKey(PublicKey, String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ranges(reason) => f.write_str(reason),
            Self::Outside(range) => write!(f, "its podCIDR {range} is not within --cluster-cidr"),
            Self::TooLarge(range, own) => {
                write!(f, "its podCIDR {range} is larger than that of this node, a /{own}")
            }
            Self::Services(range, services) => {
                write!(f, "its podCIDR {range} overlaps with the range of Services {services}")
            }
            Self::Covers(range, address) => {
                write!(f, "its podCIDR {range} contains {address}, which nodes need to reach each other")
            }
            Self::Claimed(range, older) => {
                write!(
                    f,
                    "its podCIDR {range} is that of node {older} already; delete this Node, which gets another when it \
                     registers again, and its pods"
                )
            }
            Self::OwnAddress(address) => write!(f, "its InternalIP {address} is one of this node"),
            Self::BadAddress(address) => write!(f, "its InternalIP {address} is not an address of a node"),
            Self::BehindGateway(address) => {
                write!(f, "its InternalIP {address} is behind a gateway, and --pod-network is routes")
            }
            Self::NoAddress(family) => write!(f, "it has no InternalIP of {family}"),
            Self::NoKey => write!(
                f,
                "it has no annotation {ANNOTATION}, and packets to it must not leave in the clear: run it with \
                 --pod-network-encryption=wireguard"
            ),
            Self::BadKey(reason) => write!(f, "its annotation {ANNOTATION} cannot be used: {reason}"),
            Self::TakenKey(key, other) => write!(
                f,
                "its WireGuard key {key} is that of node {other} already: delete {KEY_FILE} on the one that has a copy"
            ),
        }
    }
}

impl Refusal {
    /// Returns `true` for a Node that only lacks what its kubelet is about to write.
    pub fn is_early(&self) -> bool {
        matches!(self, Self::NoAddress(_))
    }

    /// Returns `true` if time may mend it: the Node has been made, and is about to publish its key.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::NoKey)
    }
}

/// The WireGuard device of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub published: Published,
    /// Index of the interface.
    pub interface: u32,
    pub mtu: u32,
}

/// The plan and what it follows from, so that the change of one Node does not take a look at all.
pub(super) struct Planned {
    planner: Planner,
    pub plan: Plan,
    /// The assessments of all Nodes but the own one, by name.
    nodes: BTreeMap<String, Assessment>,
    claims: Claims,
    /// Several Nodes claim the same: a change of one may be a matter of others.
    contested: bool,
}

/// The entries of a Node if nobody else claims the same.
#[derive(Clone, Debug, Default)]
struct Assessment {
    /// Its ranges and hardware address; empty if it may claim nothing.
    ranges: Vec<IpNetwork>,
    mac: Option<Mac>,
    /// Its key, if packets are encrypted.
    key: Option<PublicKey>,
    entries: Tables,
    refusal: Option<Refusal>,
}

/// Keys of the entries that a change may have touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Touched {
    pub routes: Vec<IpNetwork>,
    pub neighbours: Vec<IpAddr>,
    pub fdb: Vec<Mac>,
    pub keys: Vec<PublicKey>,
}

impl Touched {
    pub fn extend(&mut self, other: Self) {
        self.routes.extend(other.routes);
        self.neighbours.extend(other.neighbours);
        self.fdb.extend(other.fdb);
        self.keys.extend(other.keys);
    }

    fn add(&mut self, entries: &Tables) {
        self.routes.extend(entries.routes.iter().map(|(to, _)| *to));
        self.neighbours.extend(entries.neighbours.iter().map(|(address, _)| *address));
        self.fdb.extend(entries.fdb.iter().map(|(mac, _)| *mac));
        self.keys.extend(entries.keys.iter().map(|(key, _)| *key));
    }
}

impl Planned {
    /// Plans the routes to all Nodes but the own one, `own`, which has podCIDRs. With an `identity`, packets to all of
    /// them are encrypted.
    pub fn new(
        config: &PeerConfig,
        own: &Peer,
        peers: &[Arc<Peer>],
        underlay: &Underlay,
        identity: Option<Identity>,
    ) -> Self {
        let planner = Planner {
            config: config.clone(),
            own: own.name.clone(),
            own_ranges: own.ranges.clone().unwrap_or_default(),
            local: local(config, underlay),
            identity,
        };
        let mut claims = Claims::default();
        let key = identity.map(|identity| identity.published.key);
        claims.add(&own.name, &planner.own_ranges, mac(&planner.own_ranges), key);
        let mut planned =
            Self { planner, plan: Plan::default(), nodes: BTreeMap::new(), claims, contested: false };
        let others = peers.iter().map(AsRef::as_ref).filter(|peer: &&Peer| peer.name != own.name);
        let mut others: Vec<&Peer> = others.collect();
        others.sort_unstable_by_key(|peer| age(peer));
        for peer in others {
            let assessment = planned.planner.assess(peer, underlay);
            match planned.claims.conflict(&assessment) {
                None => planned.accept(&peer.name, assessment),
                Some(refusal) => {
                    planned.contested = true;
                    let (name, refusal) = younger(own, peer, refusal);
                    planned.plan.refused.insert(name, refusal);
                }
            }
        }
        planned.plan.tables.sort();
        planned.plan.tables.tunnel = planned.tunnel(underlay);
        if identity.is_some() {
            planned.plan.tables.guards = guards(config, underlay);
        }
        planned
    }

    /// Plans anew for one Node, which is `None` if it is gone. Returns the touched keys, or `None` if other
    /// Nodes or the tunnel are concerned and everything has to be planned anew.
    pub fn update(&mut self, name: &str, peer: Option<&Peer>, underlay: &Underlay) -> Option<Touched> {
        if self.contested || name == self.planner.own {
            return None;
        }
        let mut touched = Touched::default();
        if let Some(old) = self.nodes.remove(name) {
            touched.add(&old.entries);
            self.claims.remove(&old);
            self.plan.tables.remove(&old.entries);
        }
        self.plan.refused.remove(name);
        if let Some(peer) = peer {
            let new = self.planner.assess(peer, underlay);
            if self.claims.conflict(&new).is_some() {
                return None;
            }
            touched.add(&new.entries);
            self.accept(name, new);
            self.plan.tables.sort();
        }
        let same = self.plan.tables.tunnel.is_some() != self.plan.tables.fdb.is_empty();
        same.then_some(touched)
    }

    fn accept(&mut self, name: &str, assessment: Assessment) {
        self.claims.add(name, &assessment.ranges, assessment.mac, assessment.key);
        self.plan.tables.add(&assessment.entries);
        if let Some(refusal) = &assessment.refusal {
            self.plan.refused.insert(name.to_owned(), refusal.clone());
        }
        self.nodes.insert(name.to_owned(), assessment);
    }

    fn tunnel(&self, underlay: &Underlay) -> Option<Tunnel> {
        (!self.plan.tables.fdb.is_empty()).then(|| self.planner.tunnel(underlay))
    }
}

/// Returns the own address at the outside of tunnels.
pub(super) fn local(config: &PeerConfig, underlay: &Underlay) -> Option<IpAddr> {
    config.outer_addresses().find(|address| underlay.has(*address))
}

/// Returns the family of addresses at the outside of tunnels.
pub(super) fn outer_ipv4(config: &PeerConfig, local: Option<IpAddr>) -> bool {
    local.or(config.outer_addresses().next()).is_none_or(|address| address.is_ipv4())
}

/// Returns what decides which of two Nodes keeps a range: the less one does.
fn age(peer: &Peer) -> (i64, &str, &str) {
    (peer.created, &peer.uid, &peer.name)
}

/// Returns the Node that has to give way, and why: the peer, unless it is older than the own Node, whose range it claims.
/// Then the other nodes have routes to the peer.
fn younger(own: &Peer, peer: &Peer, refusal: Refusal) -> (String, Refusal) {
    match refusal {
        Refusal::Claimed(range, holder) if holder == own.name && age(peer) < age(own) => {
            let overlaps = |one: &&IpNetwork| one.contains(range.network()) || range.contains(one.network());
            let lost = own.ranges.iter().flatten().find(overlaps).copied();
            (holder, Refusal::Claimed(lost.unwrap_or(range), peer.name.clone()))
        }
        refusal => (peer.name.clone(), refusal),
    }
}

/// The ranges that have been accepted, by first address; they are disjoint.
#[derive(Default)]
struct Claims {
    ranges: BTreeMap<IpAddr, (IpNetwork, String)>,
    macs: BTreeMap<Mac, String>,
    /// By the address that follows from the key.
    keys: BTreeMap<Ipv6Addr, String>,
}

impl Claims {
    /// Returns the refusal of a Node that claims what another has.
    fn conflict(&self, assessment: &Assessment) -> Option<Refusal> {
        let claimed =
            |range: &IpNetwork| Some(Refusal::Claimed(*range, self.overlapping(*range)?.to_owned()));
        let mac = assessment.mac.and_then(|mac| self.macs.get(&mac));
        let taken = |key: PublicKey| Some(Refusal::TakenKey(key, self.keys.get(&key.address())?.clone()));
        assessment
            .ranges
            .iter()
            .find_map(claimed)
            .or_else(|| Some(Refusal::Claimed(*assessment.ranges.first()?, mac?.clone())))
            .or_else(|| assessment.key.and_then(taken))
    }

    /// Returns the node that has a range which overlaps with this one.
    fn overlapping(&self, range: IpNetwork) -> Option<&str> {
        let before = self.ranges.range(..=range.broadcast()).next_back()?;
        let (known, node) = before.1;
        let overlap = known.is_ipv4() == range.is_ipv4() && known.broadcast() >= range.network();
        overlap.then_some(node)
    }

    fn add(&mut self, node: &str, ranges: &[IpNetwork], mac: Option<Mac>, key: Option<PublicKey>) {
        self.ranges.extend(ranges.iter().map(|range| (range.network(), (*range, node.to_owned()))));
        self.macs.extend(mac.map(|mac| (mac, node.to_owned())));
        self.keys.extend(key.map(|key| (key.address(), node.to_owned())));
    }

    fn remove(&mut self, assessment: &Assessment) {
        for range in &assessment.ranges {
            self.ranges.remove(&range.network());
        }
        if let Some(mac) = assessment.mac {
            self.macs.remove(&mac);
        }
        if let Some(key) = assessment.key {
            self.keys.remove(&key.address());
        }
    }
}

struct Planner {
    config: PeerConfig,
    own: String,
    own_ranges: Vec<IpNetwork>,
    /// The own address at the outside of the tunnel.
    local: Option<IpAddr>,
    identity: Option<Identity>,
}

impl Planner {
    /// Returns what a Node gets: entries of both families, or of the one that has a way, or none.
    fn assess(&self, peer: &Peer, underlay: &Underlay) -> Assessment {
        let refused = |refusal| Assessment { refusal: Some(refusal), ..Assessment::default() };
        let ranges = match &peer.ranges {
            Ok(ranges) => ranges,
            Err(reason) => return refused(Refusal::Ranges(reason.clone())),
        };
        let checked = ranges.iter().try_for_each(|range| self.check_range(*range, peer, underlay));
        if let Err(refusal) = checked {
            return refused(refusal);
        }
        let Some(mac) = mac(ranges) else { return Assessment::default() };
        let mut assessment = Assessment { ranges: ranges.clone(), mac: Some(mac), ..Assessment::default() };
        let published = match self.published(peer) {
            Ok(published) => published,
            Err(refusal) => return Assessment { refusal: Some(refusal), ..assessment },
        };
        assessment.key = published.map(|published| published.key);
        let addresses = match self.addresses(peer, underlay) {
            Ok(addresses) => addresses,
            Err(refusal) => return Assessment { refusal: Some(refusal), ..assessment },
        };
        let entries = &mut assessment.entries;
        if let Some(Published { key, port }) = published {
            match self.remote(&addresses) {
                Ok(remote) => entries.keys.push((key, Some(SocketAddr::new(remote, port)))),
                Err(refusal) => return Assessment { refusal: Some(refusal), ..assessment },
            }
        }
        for &range in ranges.iter().filter(|range| self.own_range(**range).is_some()) {
            match self.hop(range, &addresses, published, underlay) {
                Ok((hop, remote)) => {
                    if let Hop::Tunnel { gateway, .. } = hop {
                        entries.neighbours.push((gateway, mac));
                    }
                    if let Some(remote) = remote.filter(|_| entries.fdb.is_empty()) {
                        entries.fdb.push((mac, remote));
                    }
                    entries.routes.push((range, hop));
                }
                // The other family may have a way.
                Err(refusal) => assessment.refusal = Some(refusal),
            }
        }
        assessment
    }

    /// Returns the own range of the same family.
    fn own_range(&self, like: IpNetwork) -> Option<IpNetwork> {
        self.own_ranges.iter().copied().find(|own| own.is_ipv4() == like.is_ipv4())
    }

    fn check_range(&self, range: IpNetwork, peer: &Peer, underlay: &Underlay) -> Result<(), Refusal> {
        if !self.config.cluster_cidrs.iter().any(|outer| covers(*outer, range)) {
            return Err(Refusal::Outside(range));
        }
        if let Some(own) = self.own_range(range).filter(|own| range.prefix() < own.prefix()) {
            return Err(Refusal::TooLarge(range, own.prefix()));
        }
        if let Some(services) = self.config.service_cidrs.iter().find(|one| overlap(**one, range)) {
            return Err(Refusal::Services(range, *services));
        }
        let needed = underlay.needed_in(range);
        let node_ips = self.config.node_ips.iter().chain(&peer.addresses).copied();
        match needed.or_else(|| node_ips.into_iter().find(|one| range.contains(*one))) {
            Some(address) if !self.own_ranges.iter().any(|own| own.contains(address)) => {
                Err(Refusal::Covers(range, address))
            }
            _ => Ok(()),
        }
    }

    /// Returns the first usable address of each family.
    fn addresses(&self, peer: &Peer, underlay: &Underlay) -> Result<Vec<IpAddr>, Refusal> {
        let mut usable: Vec<IpAddr> = Vec::new();
        let mut refusal = Refusal::NoAddress("either family");
        for &address in &peer.addresses {
            match self.check_address(address, underlay) {
                Ok(()) if usable.iter().all(|known| known.is_ipv4() != address.is_ipv4()) => {
                    usable.push(address);
                }
                Ok(()) => {}
                Err(error) => refusal = error,
            }
        }
        if usable.is_empty() { Err(refusal) } else { Ok(usable) }
    }

    fn check_address(&self, address: IpAddr, underlay: &Underlay) -> Result<(), Refusal> {
        let special = match address {
            IpAddr::V4(one) => one.is_link_local() || one.is_broadcast() || one.octets()[0] == 0,
            IpAddr::V6(one) => one.is_unicast_link_local() || one.to_ipv4_mapped().is_some(),
        };
        if special || address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return Err(Refusal::BadAddress(address));
        }
        if underlay.has(address) || self.config.node_ips.contains(&address) {
            return Err(Refusal::OwnAddress(address));
        }
        let taken = self.own_ranges.iter().chain(&self.config.service_cidrs);
        if taken.into_iter().any(|range| range.contains(address)) {
            return Err(Refusal::BadAddress(address));
        }
        Ok(())
    }

    /// Returns the way to a range of a Node with these addresses, and the tunnel's other end if it takes the
    /// tunnel.
    fn hop(
        &self,
        range: IpNetwork,
        addresses: &[IpAddr],
        published: Option<Published>,
        underlay: &Underlay,
    ) -> Result<(Hop, Option<IpAddr>), Refusal> {
        let tunnel =
            || Hop::Tunnel { gateway: host_address(range), source: self.own_range(range).map(host_address) };
        if let Some(Published { key, .. }) = published {
            return Ok((tunnel(), Some(IpAddr::V6(key.address()))));
        }
        let mode = self.config.mode;
        let near = addresses.iter().copied().find(|address| address.is_ipv4() == range.is_ipv4());
        let link = near.and_then(|address| match underlay.reach(address) {
            Reach::Link(link) => Some((address, link)),
            Reach::Gateway | Reach::Nowhere => None,
        });
        match (mode, link) {
            (Mode::Auto | Mode::Routes, Some((gateway, interface))) => {
                Ok((Hop::Link { gateway, interface }, None))
            }
            (Mode::Auto | Mode::Vxlan, _) => {
                let remote = self.remote(addresses)?;
                Ok((tunnel(), Some(remote)))
            }
            (Mode::Routes | Mode::None, _) => Err(match near {
                Some(address) => Refusal::BehindGateway(address),
                None => Refusal::NoAddress(family(range.is_ipv4())),
            }),
        }
    }

    /// Returns the other end of the tunnel to a Node.
    fn remote(&self, addresses: &[IpAddr]) -> Result<IpAddr, Refusal> {
        let ipv4 = self.outer_ipv4();
        let remote = addresses.iter().copied().find(|address| address.is_ipv4() == ipv4);
        remote.ok_or(Refusal::NoAddress(family(ipv4)))
    }

    fn outer_ipv4(&self) -> bool {
        outer_ipv4(&self.config, self.local)
    }

    /// Returns the key and port of a Node, `None` if packets are not encrypted.
    fn published(&self, peer: &Peer) -> Result<Option<Published>, Refusal> {
        match &peer.wireguard {
            _ if self.identity.is_none() => Ok(None),
            None => Err(Refusal::NoKey),
            Some(Err(reason)) => Err(Refusal::BadKey(reason.clone())),
            Some(Ok(published)) => Ok(Some(*published)),
        }
    }

    fn tunnel(&self, underlay: &Underlay) -> Tunnel {
        let (local, outer_ipv4, outer_mtu) = match &self.identity {
            None => (self.local, self.outer_ipv4(), underlay.mtu(self.local)),
            Some(Identity { published, mtu, .. }) => {
                (Some(IpAddr::V6(published.key.address())), false, Some(*mtu))
            }
        };
        let mtu = outer_mtu.map(|mtu| mtu.saturating_sub(tunnel_overhead(outer_ipv4)));
        Tunnel {
            vni: self.config.vni,
            port: self.config.port,
            local,
            outer_ipv4,
            link: self.identity.map(|identity| identity.interface),
            mac: mac(&self.own_ranges).unwrap_or_default(),
            mtu: mtu.filter(|mtu| check_mtu(*mtu).is_ok()),
            addresses: self.own_ranges.iter().map(|range| host_address(*range)).collect(),
        }
    }
}

fn family(ipv4: bool) -> &'static str {
    if ipv4 { "IPv4" } else { "IPv6" }
}

/// Returns the hardware address of a node's tunnel device. It follows from the IPv4 range, whose first address
/// fits into it, or else from the last bits of the IPv6 range's prefix.
pub(super) fn mac(ranges: &[IpNetwork]) -> Option<Mac> {
    let range = ranges.iter().find(|range| range.is_ipv4()).or(ranges.first())?;
    let [a, b, c, d] = match range.network() {
        IpAddr::V4(first) => first.octets(),
        IpAddr::V6(first) => {
            let prefix = first.to_bits().checked_shr(128 - u32::from(range.prefix())).unwrap_or_default();
            let [.., a, b, c, d] = prefix.to_be_bytes();
            [a, b, c, d]
        }
    };
    // 0x02: locally administered, not multicast.
    Some([0x02, 0x48, a, b, c, d])
}

#[cfg(test)]
mod tests;
