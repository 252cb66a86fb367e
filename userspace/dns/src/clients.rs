//! The clients that are answered: those of the cluster. Others get nothing, so that nobody outside can use
//! the server against third parties.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

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

#[cfg(test)]
mod tests {
    use super::*;

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
