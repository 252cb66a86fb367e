//! Rules against packets in the clear that come from the link with the address of a pod. They say that no route leads on
//! from there, so that the packets are dropped.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use super::batch::Request;
use super::kernel::{Kernel, at};
use super::underlay::Underlay;
use super::{PEER_ROUTE_PROTOCOL, PeerConfig};
use crate::netlink::NetlinkError;

/// Priority of the rules: after the table of the machine's own addresses, which has 0, and before those of others.
const PRIORITY: u32 = 2;

/// A range of pods, and the name of an interface from which no packet of theirs may come.
pub(super) type Guard = (IpNetwork, String);

/// Returns the guards of a machine that encrypts: one for each interface to other machines and range of pods. A range in
/// which the machine or a gateway has an address is not guarded, since not only pods have addresses in it.
pub(super) fn guards(config: &PeerConfig, underlay: &Underlay) -> BTreeSet<Guard> {
    let links = || underlay.links.values().filter(|link| !link.is_loopback());
    let others = |range: &&IpNetwork| {
        let own = links().flat_map(|link| &link.addresses).chain(&config.node_ips);
        !own.copied().chain(underlay.gateways()).any(|address| range.contains(address))
    };
    let ranges = config.cluster_cidrs.iter().filter(others);
    ranges.flat_map(|range| links().map(|link| (*range, link.name.clone()))).collect()
}

/// Returns the messages that list rules.
pub(super) fn all_rules() -> [RouteNetlinkMessage; 2] {
    [AddressFamily::Inet, AddressFamily::Inet6].map(|family| {
        let mut message = RuleMessage::default();
        message.header.family = family;
        RouteNetlinkMessage::GetRule(message)
    })
}

/// Returns the guard that a listed rule is; `None` for rules of others.
pub(super) fn read(message: &RouteNetlinkMessage) -> Option<Guard> {
    let RouteNetlinkMessage::NewRule(message) = message else { return None };
    let (mut ours, mut from, mut link) = (false, None, None);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Protocol(protocol) => {
                ours = *protocol == RouteProtocol::Other(PEER_ROUTE_PROTOCOL)
            }
            RuleAttribute::Source(address) => from = IpNetwork::new(*address, message.header.src_len).ok(),
            RuleAttribute::Iifname(name) => link = Some(name.clone()),
            _ => {}
        }
    }
    ours.then_some((from?, link?))
}

fn rule((from, link): &Guard) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = if from.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    message.header.src_len = from.prefix();
    message.header.action = RuleAction::Blackhole;
    let network: IpAddr = from.network();
    message.attributes = vec![
        RuleAttribute::Priority(PRIORITY),
        RuleAttribute::Source(network),
        RuleAttribute::Iifname(link.clone()),
        RuleAttribute::Protocol(RouteProtocol::Other(PEER_ROUTE_PROTOCOL)),
    ];
    message
}

impl Kernel {
    /// Makes the rules equal to the wanted guards. Returns how many were written or removed.
    pub(super) fn set_guards(&mut self, wanted: &BTreeSet<Guard>) -> Result<usize, NetlinkError> {
        let new = wanted.difference(&self.guards).map(|guard| Request {
            message: RouteNetlinkMessage::NewRule(rule(guard)),
            flags: NLM_F_CREATE | NLM_F_EXCL,
        });
        let old = self.guards.difference(wanted);
        let old = old.map(|guard| Request { message: RouteNetlinkMessage::DelRule(rule(guard)), flags: 0 });
        let requests: Vec<_> = new.chain(old).collect();
        if requests.is_empty() {
            return Ok(0);
        }
        let count = requests.len();
        let attempted = || at("write the rules against packets of pods in the clear");
        let failures = self.batch.write(requests).map_err(attempted())?;
        let there =
            |error: &std::io::Error| matches!(error.raw_os_error(), Some(libc::EEXIST | libc::ENOENT));
        if let Some((_, error)) = failures.into_iter().find(|(_, error)| !there(error)) {
            return Err(attempted()(error));
        }
        self.guards.clone_from(wanted);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::underlay::{ForeignRoute, UnderlayLink};
    use super::*;

    fn link(name: &str, addresses: &[&str]) -> UnderlayLink {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        UnderlayLink { name: name.to_owned(), mtu: 1500, addresses }
    }

    #[test]
    fn every_link_is_guarded_but_not_the_machine_and_ranges_that_others_share() {
        let mut underlay = Underlay::default();
        underlay.links.insert(1, link("lo", &["127.0.0.1", "10.244.1.1"]));
        underlay.links.insert(2, link("eth0", &["192.0.2.1"]));
        underlay.links.insert(3, link("eth1", &["10.99.0.5"]));
        let gateway = Some("fd01::1".parse().unwrap());
        underlay.add_route("::/0".parse().unwrap(), ForeignRoute { metric: 0, gateway, link: Some(2) });
        let ranges = ["10.244.0.0/16", "fd00::/48", "10.99.0.0/16", "fd01::/48"];
        let cluster_cidrs = ranges.map(|range| range.parse().unwrap()).to_vec();
        let guards = guards(&PeerConfig { cluster_cidrs, ..PeerConfig::default() }, &underlay);
        let shown: Vec<_> = guards.iter().map(|(from, link)| format!("{from} {link}")).collect();
        let expected = ["10.244.0.0/16 eth0", "10.244.0.0/16 eth1", "fd00::/48 eth0", "fd00::/48 eth1"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn own_rule_is_known_again_and_those_of_others_are_not() {
        let guard = ("10.244.0.0/16".parse().unwrap(), "eth0".to_owned());
        let listed = RouteNetlinkMessage::NewRule(rule(&guard));
        assert_eq!(read(&listed), Some(guard.clone()));
        let mut other = rule(&guard);
        other.attributes.retain(|attribute| !matches!(attribute, RuleAttribute::Protocol(_)));
        assert_eq!(read(&RouteNetlinkMessage::NewRule(other)), None);
    }
}
