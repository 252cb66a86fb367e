//! The machine's own network, by which other nodes are reached: its addresses and the routes of others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::peer::masked;
use crate::config::host_address;

/// The way to an address outside of the pod network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// On the link of this interface: no gateway is in between.
    Link(u32),
    Gateway,
    /// No route leads there at the moment.
    Nowhere,
}

/// A route of the main table that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForeignRoute {
    pub metric: u32,
    /// The next hop; `None` if the destination is on the link, or if there are several.
    pub gateway: Option<IpAddr>,
    /// The interface, if the destination is on a link that resolves addresses.
    pub link: Option<u32>,
}

/// An interface other than pods' and the tunnel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnderlayLink {
    pub name: String,
    pub mtu: u32,
    pub addresses: Vec<IpAddr>,
}

impl UnderlayLink {
    pub fn is_loopback(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_loopback)
    }
}

/// The machine's network without what is ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Underlay {
    pub links: BTreeMap<u32, UnderlayLink>,
    /// The addresses that this node gave the loopback interface for its pods, of its present and earlier podCIDRs.
    pub given: BTreeSet<IpAddr>,
    /// The route of the lowest metric to each destination.
    routes: BTreeMap<IpNetwork, ForeignRoute>,
    /// The prefix lengths of IPv4 destinations, then of IPv6 ones.
    lengths: [BTreeSet<u8>; 2],
}

impl Underlay {
    pub fn add_route(&mut self, to: IpNetwork, route: ForeignRoute) {
        let to = masked(to);
        self.lengths[usize::from(to.is_ipv6())].insert(to.prefix());
        let best = self.routes.entry(to).or_insert(route);
        if route.metric < best.metric {
            *best = route;
        }
    }

    /// Returns the way to an address: that of the longest prefix, and of the lowest metric among equals.
    pub fn reach(&self, address: IpAddr) -> Reach {
        let lengths = self.lengths[usize::from(address.is_ipv6())].iter().rev();
        let mut ranges = lengths.filter_map(|length| IpNetwork::new(address, *length).ok());
        match ranges.find_map(|range| self.routes.get(&masked(range))) {
            None => Reach::Nowhere,
            Some(ForeignRoute { gateway: None, link: Some(link), .. }) => Reach::Link(*link),
            Some(_) => Reach::Gateway,
        }
    }

    /// Returns the interface with an address.
    pub fn holder(&self, address: IpAddr) -> Option<&UnderlayLink> {
        self.links.values().find(|link| link.addresses.contains(&address))
    }

    pub fn has(&self, address: IpAddr) -> bool {
        self.holder(address).is_some()
    }

    /// Returns an address in a range without which this machine loses its network: one of its own, or a
    /// gateway. One that this node gave the loopback interface for a podCIDR that was its own is not such an address:
    /// packets for it go there whatever the routes. Any other on the loopback interface is a user's.
    pub fn needed_in(&self, range: IpNetwork) -> Option<IpAddr> {
        let left = |link: &UnderlayLink, address: IpAddr| {
            link.is_loopback() && self.given.contains(&address) && address == host_address(range)
        };
        let own = self.links.values().flat_map(|link| link.addresses.iter().map(move |one| (link, *one)));
        let own = own.filter(|(link, address)| !left(link, *address)).map(|(_, address)| address);
        own.chain(self.gateways()).find(|one| range.contains(*one))
    }

    /// Returns the next hops of all routes.
    pub fn gateways(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.routes.values().filter_map(|route| route.gateway)
    }

    /// Returns the MTU of the interface with an address, or else the least of all with a global address.
    pub fn mtu(&self, address: Option<IpAddr>) -> Option<u32> {
        let holder = address.and_then(|address| self.holder(address));
        let usable = |link: &&UnderlayLink| link.addresses.iter().any(|one| !one.is_loopback());
        holder.map(|link| link.mtu).or_else(|| self.links.values().filter(usable).map(|link| link.mtu).min())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(gateway: Option<&str>, link: u32, metric: u32) -> ForeignRoute {
        let gateway = gateway.map(|gateway| gateway.parse().unwrap());
        ForeignRoute { metric, gateway, link: Some(link) }
    }

    #[test]
    fn the_longest_prefix_decides_then_the_lowest_metric() {
        let mut underlay = Underlay::default();
        for (to, route) in [
            ("0.0.0.0/0", route(Some("192.0.2.254"), 2, 0)),
            ("192.0.2.0/24", route(None, 2, 100)),
            ("192.0.2.0/24", route(None, 3, 50)),
            ("192.0.2.128/25", route(Some("192.0.2.1"), 2, 0)),
            ("::/0", route(Some("fe80::1"), 2, 1024)),
            // An interface that resolves no addresses, such as WireGuard's.
            ("10.0.0.0/8", ForeignRoute { link: None, ..route(None, 0, 0) }),
        ] {
            underlay.add_route(to.parse().unwrap(), route);
        }
        let reach = |address: &str| underlay.reach(address.parse().unwrap());
        assert_eq!(reach("192.0.2.7"), Reach::Link(3));
        assert_eq!(reach("192.0.2.130"), Reach::Gateway);
        assert_eq!(reach("198.51.100.1"), Reach::Gateway);
        assert_eq!(reach("2001:db8::1"), Reach::Gateway);
        assert_eq!(reach("10.1.1.1"), Reach::Gateway);
        assert_eq!(Underlay::default().reach("192.0.2.7".parse().unwrap()), Reach::Nowhere);
    }
}
