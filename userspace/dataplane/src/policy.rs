//! The desired content of the tables of network policies, as plain data. The programs know neither policies
//! nor selectors, only sets of rules, and classes of addresses that the rules name alike.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::tables::Protocol;

/// The class of this node's own addresses, to which its pods' traffic is always allowed.
pub const NODE: u32 = ebpf_common::policy::class::NODE;
/// The class in rules for all addresses.
pub const ANY: u32 = ebpf_common::policy::class::ANY;

/// Everything that policies put into the tables. Numbers of sets, classes and names are derived from what
/// they stand for, so that equal content has equal numbers in another process as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyTables {
    /// Pods that policies select, by the index of the host's end of their interface.
    pub endpoints: BTreeMap<u32, PolicyEndpoint>,
    /// Classes of addresses. The longest prefix counts; others are in none.
    pub peers: BTreeMap<IpNetwork, u32>,
    /// Packets that are allowed, with the name of the rule that allows them.
    pub rules: BTreeMap<PolicyRule, u32>,
    /// Names of pods, policies and rules.
    pub names: BTreeMap<u32, String>,
}

/// A pod that policies select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyEndpoint {
    pub ingress: Option<PolicySet>,
    pub egress: Option<PolicySet>,
    /// It is not known yet which policies select the pod.
    pub closed: bool,
    /// Number of the pod's name.
    pub pod: u32,
}

/// The rules for one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicySet {
    /// Number of the set in [`PolicyRule::set`], greater than 0.
    pub set: u32,
    /// Number of the name of the policies that isolate the pod.
    pub name: u32,
}

/// A peer and an aligned range of ports that a set allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyRule {
    pub set: u32,
    pub class: u32,
    /// `None` for all protocols.
    pub ports: Option<PolicyPorts>,
}

/// The ports whose first `bits` bits are those of `port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyPorts {
    pub protocol: Protocol,
    pub port: u16,
    /// Number of significant bits, 0 to 16.
    pub bits: u8,
}

impl PolicyTables {
    /// Returns the class of an address.
    pub fn class_of(&self, address: IpAddr) -> u32 {
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefixes = (0..=most).rev().filter_map(|bits| {
            let range = IpNetwork::new(address, bits).ok()?;
            IpNetwork::new(range.network(), bits).ok()
        });
        prefixes.filter_map(|range| self.peers.get(&range)).next().copied().unwrap_or(ANY)
    }

    /// Returns the number of the rule by which a set allows a packet, as the programs find it; `port` is
    /// `None` for protocols without ports.
    pub fn allows(&self, set: u32, peer: IpAddr, port: Option<(Protocol, u16)>) -> Option<u32> {
        let find = |class: u32| {
            let of = |ports| self.rules.get(&PolicyRule { set, class, ports }).copied();
            let narrow = port.and_then(|(protocol, port)| {
                (0..=16).rev().find_map(|bits| of(Some(PolicyPorts::new(protocol, port, bits))))
            });
            narrow.or_else(|| of(None))
        };
        let class = self.class_of(peer);
        Some(class).filter(|class| *class != ANY).and_then(find).or_else(|| find(ANY))
    }
}

impl PolicyPorts {
    /// Returns the aligned range of ports around one, of 2^(16 - bits) ports.
    pub fn new(protocol: Protocol, port: u16, bits: u8) -> Self {
        let mask = u16::MAX.checked_shl(16 - u32::from(bits)).unwrap_or(0);
        Self { protocol, port: port & mask, bits }
    }
}
