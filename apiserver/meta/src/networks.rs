//! Relations between IP networks. Networks of different families have nothing in common.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// Returns `true` if an address is in both networks.
pub fn overlap(a: IpNetwork, b: IpNetwork) -> bool {
    a.contains(b.network()) || b.contains(a.network())
}

/// Returns `true` if each address of `inner` is in `outer`.
pub fn covers(outer: IpNetwork, inner: IpNetwork) -> bool {
    outer.prefix() <= inner.prefix() && outer.contains(inner.network())
}

/// Returns the first address after that of the network itself; `None` in a network of one address.
pub fn first_address(network: IpNetwork) -> Option<IpAddr> {
    let first = match network.network() {
        IpAddr::V4(ip) => IpAddr::V4(ip.to_bits().checked_add(1)?.into()),
        IpAddr::V6(ip) => IpAddr::V6(ip.to_bits().checked_add(1)?.into()),
    };
    network.contains(first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: [(&str, &str); 4] = [
        ("10.0.0.0/8", "10.1.2.0/24"),
        ("0.0.0.0/0", "192.0.2.1/32"),
        ("2001:db8::/32", "2001:db8:1::/64"),
        ("::/0", "::/1"),
    ];

    fn net(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    #[test]
    fn network_in_another_overlaps_and_is_covered() {
        for (outer, inner) in CASES.map(|(outer, inner)| (net(outer), net(inner))) {
            assert!(overlap(outer, inner) && overlap(inner, outer), "{outer} {inner}");
            assert!(covers(outer, inner) && !covers(inner, outer), "{outer} {inner}");
        }
        // A host's address within a network stands for the network.
        assert!(overlap(net("10.0.5.7/8"), net("10.200.0.1/16")));
        assert!(covers(net("10.0.5.7/8"), net("10.200.0.1/16")));
        assert!(covers(net("10.0.0.0/8"), net("10.0.0.0/8")));
    }

    #[test]
    fn first_address_is_that_after_the_network() {
        for (network, expected) in [
            ("10.244.1.7/24", Some("10.244.1.1")),
            ("0.0.0.0/0", Some("0.0.0.1")),
            ("192.0.2.6/31", Some("192.0.2.7")),
            ("192.0.2.6/32", None),
            ("255.255.255.255/32", None),
            ("fd00:1::/64", Some("fd00:1::1")),
            ("2001:db8::/128", None),
        ] {
            let first = first_address(net(network));
            assert_eq!(first.map(|ip| ip.to_string()).as_deref(), expected, "{network}");
        }
    }

    #[test]
    fn networks_apart_or_of_two_families_share_nothing() {
        let apart = [("10.0.0.0/9", "10.128.0.0/9"), ("0.0.0.0/0", "::/0"), ("::ffff:0:0/96", "10.0.0.0/8")];
        for (a, b) in apart.map(|(a, b)| (net(a), net(b))) {
            assert!(!overlap(a, b) && !overlap(b, a), "{a} {b}");
            assert!(!covers(a, b) && !covers(b, a), "{a} {b}");
        }
    }
}
