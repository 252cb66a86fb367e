//! Relations between IP networks. Networks of different families have nothing in common.

use ipnetwork::IpNetwork;

/// Returns `true` if an address is in both networks.
pub fn overlap(a: IpNetwork, b: IpNetwork) -> bool {
    a.contains(b.network()) || b.contains(a.network())
}

/// Returns `true` if each address of `inner` is in `outer`.
pub fn covers(outer: IpNetwork, inner: IpNetwork) -> bool {
    outer.prefix() <= inner.prefix() && outer.contains(inner.network())
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
    fn networks_apart_or_of_two_families_share_nothing() {
        let apart = [("10.0.0.0/9", "10.128.0.0/9"), ("0.0.0.0/0", "::/0"), ("::ffff:0:0/96", "10.0.0.0/8")];
        for (a, b) in apart.map(|(a, b)| (net(a), net(b))) {
            assert!(!overlap(a, b) && !overlap(b, a), "{a} {b}");
            assert!(!covers(a, b) && !covers(b, a), "{a} {b}");
        }
    }
}
