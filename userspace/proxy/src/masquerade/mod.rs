//! The packets of pods that leave the cluster under the node's address: which destinations are outside. Pure,
//! but for the watch in [`agent`].
//!
//! Without the ConfigMap of ip-masq-agent, only the cluster's own pods are inside. With it, its ranges are
//! inside as well, with that program's defaults for what it leaves out.

pub mod agent;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use userspace_dataplane::tables::{Masquerade, NonMasquerade};

pub use self::agent::{Agent, AgentRules, Rules, RulesError};

/// Destinations that are not one host somewhere else: packets to them are never masqueraded.
const NOT_ROUTED: [&str; 8] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "::/128",
    "::1/128",
    "ff00::/8",
    // Mapped addresses are never on a wire.
    "::ffff:0:0/96",
];
const LINK_LOCAL4: &str = "169.254.0.0/16";
const LINK_LOCAL6: &str = "fe80::/10";

/// Returns the tables of a node with these ranges of pods. `own` are the node's addresses.
pub fn masquerade(pods: &[IpNetwork], cluster: &[IpNetwork], own: &[IpAddr], agent: &Agent) -> Masquerade {
    let rules = match agent {
        Agent::Unknown | Agent::Absent => None,
        Agent::Present(rules) => Some(rules),
    };
    let fixed = |text: &&str| text.parse::<IpNetwork>().ok();
    // A later reason replaces an earlier one for the same range.
    let mut exempt = BTreeMap::new();
    if let Some(rules) = rules {
        exempt.extend(rules.ranges.iter().map(|range| (*range, NonMasquerade::Configured)));
        let link_local = [(rules.link_local4, LINK_LOCAL4), (rules.link_local6, LINK_LOCAL6)];
        let kept = link_local.iter().filter(|(masqueraded, _)| !masqueraded).map(|(_, range)| range);
        exempt.extend(kept.filter_map(fixed).map(|range| (range, NonMasquerade::LinkLocal)));
    }
    exempt.extend(NOT_ROUTED.iter().filter_map(fixed).map(|range| (range, NonMasquerade::NotRouted)));
    exempt.extend(own.iter().map(|address| (IpNetwork::from(*address), NonMasquerade::Node)));
    exempt.extend(cluster.iter().map(|range| (*range, NonMasquerade::Cluster)));
    Masquerade { pods: pods.to_vec(), exempt }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    fn reason(tables: &Masquerade, address: &str) -> Option<NonMasquerade> {
        let address: IpAddr = address.parse().unwrap();
        let ranges = tables.exempt.iter().filter(|(range, _)| range.contains(address));
        ranges.max_by_key(|(range, _)| range.prefix()).map(|(_, reason)| *reason)
    }

    fn tables(agent: &Agent) -> Masquerade {
        let own = ["192.0.2.1".parse().unwrap(), "fe80::1".parse().unwrap()];
        masquerade(&[range("10.244.1.0/24")], &[range("10.244.0.0/16")], &own, agent)
    }

    #[test]
    fn only_the_cluster_and_the_node_are_inside_without_a_config_map() {
        let tables = tables(&Agent::Absent);
        assert_eq!(tables.pods, [range("10.244.1.0/24")]);
        for (address, expected) in [
            ("10.244.9.9", Some(NonMasquerade::Cluster)),
            ("192.0.2.1", Some(NonMasquerade::Node)),
            ("192.0.2.2", None),
            ("10.0.0.1", None),
            // Where clouds serve metadata.
            ("169.254.169.254", None),
            ("224.0.0.251", Some(NonMasquerade::NotRouted)),
            ("255.255.255.255", Some(NonMasquerade::NotRouted)),
            ("ff02::1", Some(NonMasquerade::NotRouted)),
            ("fe80::1", Some(NonMasquerade::Node)),
            ("2001:db8::1", None),
        ] {
            assert_eq!(reason(&tables, address), expected, "{address}");
        }
    }

    #[test]
    fn the_config_map_adds_its_ranges_and_the_link_local_ones() {
        let tables = tables(&Agent::Present(AgentRules::default()));
        for (address, expected) in [
            ("10.244.9.9", Some(NonMasquerade::Cluster)),
            ("10.0.0.1", Some(NonMasquerade::Configured)),
            ("172.16.0.1", Some(NonMasquerade::Configured)),
            ("192.168.7.1", Some(NonMasquerade::Configured)),
            ("169.254.169.254", Some(NonMasquerade::LinkLocal)),
            ("fe80::2", Some(NonMasquerade::LinkLocal)),
            ("198.51.100.1", None),
        ] {
            assert_eq!(reason(&tables, address), expected, "{address}");
        }
        let open = AgentRules { ranges: Vec::new(), link_local4: true, link_local6: true };
        let tables = self::tables(&Agent::Present(open));
        assert_eq!(reason(&tables, "169.254.169.254"), None);
        assert_eq!(reason(&tables, "10.0.0.1"), None);
        assert_eq!(reason(&tables, "10.244.9.9"), Some(NonMasquerade::Cluster), "pods keep their addresses");
    }
}
