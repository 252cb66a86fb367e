//! Decides on routes, neighbours and FDB entries for all peers: a plain function on plain data.
//!
//! Nodes are written by kubelets, any of which may be hostile. A Node gets routes for its podCIDR alone, which
//! must be within the cluster's range, no larger than our own, and free: the older Node keeps a range.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::tables::{Hop, Tables, Tunnel};
use super::underlay::{Reach, Underlay};
use super::{Mode, Peer, PeerConfig, tunnel_overhead};
use crate::config::{check_mtu, host_address};
use crate::netlink::Mac;

/// The decision for all peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub tables: Tables,
    /// Nodes without routes, by name, with the reason.
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
                write!(f, "its podCIDR {range} is that of node {older} already: one of the two needs another")
            }
            Self::OwnAddress(address) => write!(f, "its InternalIP {address} is one of this node"),
            Self::BadAddress(address) => write!(f, "its InternalIP {address} is not an address of a node"),
            Self::BehindGateway(address) => {
                write!(f, "its InternalIP {address} is behind a gateway, and --pod-network is routes")
            }
            Self::NoAddress(family) => write!(f, "it has no InternalIP of {family}"),
        }
    }
}

impl Refusal {
    /// Returns `true` for a Node that only lacks what its kubelet is about to write.
    pub fn is_early(&self) -> bool {
        matches!(self, Self::NoAddress(_))
    }
}

/// Plans the routes to all Nodes but the own one, `own`, which has podCIDRs.
pub(super) fn plan(config: &PeerConfig, own: &Peer, peers: &[Arc<Peer>], underlay: &Underlay) -> Plan {
    let own_ranges = own.ranges.as_deref().unwrap_or_default();
    let planner = Planner {
        config,
        own_ranges,
        underlay,
        local: config.node_ips.iter().copied().find(|address| underlay.has(*address)),
    };
    let mut plan = Plan::default();
    let mut claims = Claims::default();
    claims.add(&own.name, own_ranges);
    let mut others: Vec<&Peer> = peers.iter().map(AsRef::as_ref).filter(|one| one.name != own.name).collect();
    others.sort_unstable_by_key(|peer| (peer.created, &peer.uid, &peer.name));
    for peer in others {
        if let Err(refusal) = planner.admit(peer, &mut claims, &mut plan.tables) {
            plan.refused.insert(peer.name.clone(), refusal);
        }
    }
    plan.tables.sort();
    if !plan.tables.fdb.is_empty() {
        plan.tables.tunnel = Some(planner.tunnel());
    }
    plan
}

/// The ranges that have been accepted, by first address; they are disjoint.
#[derive(Default)]
struct Claims<'a> {
    ranges: BTreeMap<IpAddr, (IpNetwork, &'a str)>,
    macs: BTreeMap<Mac, &'a str>,
}

impl<'a> Claims<'a> {
    /// Returns the range and its node that overlaps with a range.
    fn overlapping(&self, range: IpNetwork) -> Option<&'a str> {
        let before = self.ranges.range(..=range.broadcast()).next_back()?;
        let (known, node) = before.1;
        let overlap = known.is_ipv4() == range.is_ipv4() && known.broadcast() >= range.network();
        overlap.then_some(*node)
    }

    fn add(&mut self, node: &'a str, ranges: &[IpNetwork]) {
        self.ranges.extend(ranges.iter().map(|range| (range.network(), (*range, node))));
        self.macs.extend(mac(ranges).map(|mac| (mac, node)));
    }
}

struct Planner<'a> {
    config: &'a PeerConfig,
    own_ranges: &'a [IpNetwork],
    underlay: &'a Underlay,
    /// The own address at the outside of the tunnel.
    local: Option<IpAddr>,
}

impl Planner<'_> {
    /// Adds the entries of a Node: those of both families, or of the one that has a way.
    fn admit<'a>(&self, peer: &'a Peer, claims: &mut Claims<'a>, tables: &mut Tables) -> Result<(), Refusal> {
        let ranges = match &peer.ranges {
            Ok(ranges) if ranges.is_empty() => return Ok(()),
            Ok(ranges) => ranges,
            Err(reason) => return Err(Refusal::Ranges(reason.clone())),
        };
        for &range in ranges {
            self.check_range(range, peer)?;
            if let Some(older) = claims.overlapping(range) {
                return Err(Refusal::Claimed(range, older.to_owned()));
            }
        }
        let mac = mac(ranges).ok_or(Refusal::NoAddress("either family"))?;
        if let Some(older) = claims.macs.get(&mac) {
            return Err(Refusal::Claimed(ranges[0], (*older).to_owned()));
        }
        claims.add(&peer.name, ranges);
        let addresses = self.addresses(peer)?;
        let (mut outcome, mut tunnelled) = (Ok(()), None);
        for &range in ranges.iter().filter(|range| self.own_range(**range).is_some()) {
            match self.hop(range, &addresses) {
                Ok((hop, remote)) => {
                    if let Hop::Tunnel { gateway, .. } = hop {
                        tables.neighbours.push((gateway, mac));
                    }
                    tunnelled = tunnelled.or(remote);
                    tables.routes.push((range, hop));
                }
                // The other family may have a way.
                Err(refusal) => outcome = Err(refusal),
            }
        }
        tables.fdb.extend(tunnelled.map(|remote| (mac, remote)));
        outcome
    }

    /// Returns the own range of the same family.
    fn own_range(&self, like: IpNetwork) -> Option<IpNetwork> {
        self.own_ranges.iter().copied().find(|own| own.is_ipv4() == like.is_ipv4())
    }

    fn check_range(&self, range: IpNetwork, peer: &Peer) -> Result<(), Refusal> {
        let within = |outer: &IpNetwork| {
            outer.is_ipv4() == range.is_ipv4()
                && outer.prefix() <= range.prefix()
                && outer.contains(range.network())
        };
        if !self.config.cluster_cidrs.iter().any(within) {
            return Err(Refusal::Outside(range));
        }
        if let Some(own) = self.own_range(range).filter(|own| range.prefix() < own.prefix()) {
            return Err(Refusal::TooLarge(range, own.prefix()));
        }
        let overlap = |one: &&IpNetwork| one.contains(range.network()) || range.contains(one.network());
        if let Some(services) = self.config.service_cidrs.iter().find(overlap) {
            return Err(Refusal::Services(range, *services));
        }
        let needed = self.underlay.needed_in(range);
        let node_ips = self.config.node_ips.iter().chain(&peer.addresses).copied();
        match needed.or_else(|| node_ips.into_iter().find(|one| range.contains(*one))) {
            Some(address) if !self.own_ranges.iter().any(|own| own.contains(address)) => {
                Err(Refusal::Covers(range, address))
            }
            _ => Ok(()),
        }
    }

    /// Returns the first usable address of each family.
    fn addresses(&self, peer: &Peer) -> Result<Vec<IpAddr>, Refusal> {
        let mut usable: Vec<IpAddr> = Vec::new();
        let mut refusal = Refusal::NoAddress("either family");
        for &address in &peer.addresses {
            match self.check_address(address) {
                Ok(()) if usable.iter().all(|known| known.is_ipv4() != address.is_ipv4()) => {
                    usable.push(address);
                }
                Ok(()) => {}
                Err(error) => refusal = error,
            }
        }
        if usable.is_empty() { Err(refusal) } else { Ok(usable) }
    }

    fn check_address(&self, address: IpAddr) -> Result<(), Refusal> {
        let special = match address {
            IpAddr::V4(one) => one.is_link_local() || one.is_broadcast() || one.octets()[0] == 0,
            IpAddr::V6(one) => one.is_unicast_link_local() || one.to_ipv4_mapped().is_some(),
        };
        if special || address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return Err(Refusal::BadAddress(address));
        }
        if self.underlay.has(address) || self.config.node_ips.contains(&address) {
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
    fn hop(&self, range: IpNetwork, addresses: &[IpAddr]) -> Result<(Hop, Option<IpAddr>), Refusal> {
        let mode = self.config.mode;
        let near = addresses.iter().copied().find(|address| address.is_ipv4() == range.is_ipv4());
        let link = near.and_then(|address| match self.underlay.reach(address) {
            Reach::Link(link) => Some((address, link)),
            Reach::Gateway | Reach::Nowhere => None,
        });
        match (mode, link) {
            (Mode::Auto | Mode::Routes, Some((gateway, interface))) => {
                Ok((Hop::Link { gateway, interface }, None))
            }
            (Mode::Auto | Mode::Vxlan, _) => {
                let source = self.own_range(range).map(host_address);
                let remote = self.remote(addresses)?;
                Ok((Hop::Tunnel { gateway: host_address(range), source }, Some(remote)))
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
        self.local.or(self.config.node_ips.first().copied()).is_none_or(|address| address.is_ipv4())
    }

    fn tunnel(&self) -> Tunnel {
        let mtu =
            self.underlay.mtu(self.local).map(|mtu| mtu.saturating_sub(tunnel_overhead(self.outer_ipv4())));
        Tunnel {
            vni: self.config.vni,
            port: self.config.port,
            local: self.local,
            outer_ipv4: self.outer_ipv4(),
            mac: mac(self.own_ranges).unwrap_or_default(),
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
