//! The choice of the node that announces an address: pure, and equal on all nodes that know the same.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use apiserver_meta::fnv::fnv1a_64;

use crate::limits::CONTENDERS;
use crate::{Desired, Member};

/// Returns the nodes that may announce the address, in the order of preference: those that are known to be well
/// first, then by rendezvous hashing, so that a node that goes moves its own addresses only.
pub fn contenders(desired: &Desired, address: IpAddr) -> Vec<Arc<str>> {
    let Some(allowed) = desired.addresses.get(&address) else { return Vec::new() };
    let mut nodes: Vec<(bool, u64, &Arc<str>)> = members(&desired.nodes)
        .filter(|(name, _)| allowed.as_ref().is_none_or(|allowed| allowed.contains(*name)))
        .map(|(name, member)| (!member.ready, !weight(address, name), name))
        .collect();
    nodes.sort_unstable();
    nodes.into_iter().take(CONTENDERS).map(|(.., name)| Arc::clone(name)).collect()
}

/// Returns the nodes that others can reach.
fn members(nodes: &BTreeMap<Arc<str>, Member>) -> impl Iterator<Item = (&Arc<str>, &Member)> {
    nodes.iter().filter(|(_, member)| !member.addresses.is_empty())
}

/// Returns the weight of a node for an address.
fn weight(address: IpAddr, node: &str) -> u64 {
    let octets = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    // FNV alone hardly changes the upper bits for the last bytes; this is the finalizer of SplitMix64.
    let mut mixed = fnv1a_64(octets.into_iter().chain(node.bytes()));
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9_u64), (27, 0x94d0_49bb_1331_11eb)] {
        mixed = (mixed ^ (mixed >> shift)).wrapping_mul(factor);
    }
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired(nodes: usize) -> Desired {
        let member = Member { addresses: vec!["192.0.2.1".parse().unwrap()], ready: true };
        Desired {
            nodes: (0..nodes).map(|n| (Arc::from(format!("node-{n}")), member.clone())).collect(),
            addresses: (0..200).map(|n| (IpAddr::from([198, 51, 100, n]), None)).collect(),
            ..Desired::default()
        }
    }

    fn first(desired: &Desired) -> BTreeMap<IpAddr, Arc<str>> {
        let of = |address: &IpAddr| contenders(desired, *address).first().cloned();
        desired.addresses.keys().filter_map(|address| Some((*address, of(address)?))).collect()
    }

    #[test]
    fn addresses_are_spread_and_only_those_of_a_lost_node_move() {
        let mut desired = desired(4);
        let before = first(&desired);
        let share = |node: &str| before.values().filter(|name| &***name == node).count();
        assert!((0..4).all(|n| (30..=70).contains(&share(&format!("node-{n}")))));
        desired.nodes.remove("node-2");
        let after = first(&desired);
        assert!(before.iter().all(|(address, node)| &**node == "node-2" || after[address] == *node));
    }

    #[test]
    fn nodes_that_are_not_well_come_last_and_others_not_at_all() {
        let mut desired = desired(3);
        let address = IpAddr::from([198, 51, 100, 7]);
        let order = contenders(&desired, address);
        desired.nodes.get_mut(&order[0]).unwrap().ready = false;
        let expected = [&order[1], &order[2], &order[0]].map(Arc::clone);
        assert_eq!(contenders(&desired, address), expected);
        desired.addresses.insert(address, Some([Arc::clone(&order[0]), Arc::from("gone")].into()));
        assert_eq!(contenders(&desired, address), [Arc::clone(&order[0])]);
        desired.nodes.get_mut(&order[0]).unwrap().addresses.clear();
        assert!(contenders(&desired, address).is_empty());
        assert_eq!(contenders(&self::desired(100), address).len(), CONTENDERS);
    }
}
