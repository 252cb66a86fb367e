//! The clients that are answered: those of the cluster. Others get nothing, so that nobody outside can use
//! the server against third parties.

use std::net::IpAddr;

use apiserver_meta::networks::covers;
use ipnetwork::IpNetwork;

use crate::limits;

/// Ranges of addresses, sorted and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    ranges: Vec<(IpAddr, IpAddr)>,
}

impl Clients {
    /// Returns the clients within these networks, and the machine itself.
    pub fn new(networks: impl IntoIterator<Item = IpNetwork>) -> Self {
        let own = ["127.0.0.0/8", "::1/128"].into_iter().filter_map(|text| text.parse().ok());
        let last = |network: &IpNetwork| match network {
            IpNetwork::V4(network) => IpAddr::V4(network.broadcast()),
            IpNetwork::V6(network) => IpAddr::V6(network.broadcast()),
        };
        let mut all: Vec<_> =
            networks.into_iter().chain(own).map(|network| (network.network(), last(&network))).collect();
        all.sort_unstable();
        let mut ranges: Vec<(IpAddr, IpAddr)> = Vec::new();
        for (first, last) in all {
            match ranges.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => ranges.push((first, last)),
            }
        }
        Self { ranges }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let next = self.ranges.partition_point(|(first, _)| *first <= address);
        next > 0 && address <= self.ranges[next - 1].1
    }
}

/// Returns the networks of a node's pods and the addresses of the node that are believed. A kubelet writes them: one
/// that is hostile must not make the whole world a client.
pub fn of_node(ranges: &[IpNetwork], addresses: &[IpAddr], configured: &[IpNetwork]) -> Vec<IpNetwork> {
    let is_within = |range: &IpNetwork| configured.iter().any(|all| covers(*all, *range));
    let is_small = |range: &IpNetwork| match range {
        IpNetwork::V4(range) => range.prefix() >= limits::POD_RANGE_V4,
        IpNetwork::V6(range) => range.prefix() >= limits::POD_RANGE_V6,
    };
    let is_one = |address: &IpAddr| match address {
        IpAddr::V4(address) => {
            !(address.is_unspecified()
                || address.is_loopback()
                || address.is_multicast()
                || address.is_broadcast())
        }
        IpAddr::V6(address) => {
            !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
                && address.to_ipv4_mapped().is_none()
        }
    };
    let believed = |range: &&IpNetwork| is_within(range) || is_small(range) && is_one(&range.network());
    let ranges = ranges.iter().filter(believed).copied();
    let addresses = addresses.iter().copied().filter(is_one).map(IpNetwork::from);
    ranges.take(limits::NODE_ADDRESSES).chain(addresses.take(limits::NODE_ADDRESSES)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_believed_within_reason() {
        let networks =
            |all: &[&str]| -> Vec<IpNetwork> { all.iter().map(|text| text.parse().unwrap()).collect() };
        let configured = networks(&["10.0.0.0/8"]);
        let ranges = networks(&["10.0.0.0/9", "172.16.0.0/16", "0.0.0.0/0", "172.0.0.0/15", "0.0.0.0/16"]);
        assert_eq!(of_node(&ranges, &[], &configured), networks(&["10.0.0.0/9", "172.16.0.0/16"]));
        let ranges = networks(&["::/0", "2001:db8::/47", "2001:db8::/64", "ff00::/64", "::ffff:0:0/96"]);
        assert_eq!(of_node(&ranges, &[], &configured), networks(&["2001:db8::/64"]));
        let addresses =
            ["192.0.2.1", "0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "ff02::1"];
        let addresses = addresses.map(|text| text.parse().unwrap());
        assert_eq!(of_node(&[], &addresses, &[]), networks(&["192.0.2.1/32"]));
        let many: Vec<IpAddr> = (0..200).map(|last| IpAddr::from([192, 0, 2, last])).collect();
        assert_eq!(of_node(&[], &many, &[]).len(), limits::NODE_ADDRESSES);
    }

    #[test]
    fn addresses_within_the_networks_are_clients() {
        let clients = Clients::new(
            ["10.244.0.0/16", "10.244.3.0/24", "192.0.2.7/32", "fd00::/64"].map(|text| text.parse().unwrap()),
        );
        let is = |text: &str| clients.contains(text.parse().unwrap());
        for text in
            ["10.244.255.255", "10.244.3.9", "192.0.2.7", "::ffff:192.0.2.7", "fd00::9", "127.0.0.53", "::1"]
        {
            assert!(is(text), "{text}");
        }
        for text in ["10.245.0.0", "10.243.255.255", "192.0.2.8", "fd00:0:0:1::", "8.8.8.8", "::2"] {
            assert!(!is(text), "{text}");
        }
    }
}
