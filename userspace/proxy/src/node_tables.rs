//! The node's own part of the tables: from the configuration, the Node object and the machine's interfaces.
//! Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use apiserver_meta::networks::covers;
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Node;
use userspace_dataplane::tables::{Interface, Masquerade, NodeTables, Role};

use crate::config::{Config, OWN_PREFIX};
use crate::limits;
use crate::links::{self, Link, machine_addresses};
use crate::masquerade::{Agent, masquerade};

/// The inputs of the node's own tables.
#[derive(Clone, Copy, Debug)]
pub struct NodeInputs<'a> {
    pub config: &'a Config,
    /// The own Node, once known.
    pub node: Option<&'a Node>,
    /// The machine's interfaces, once known.
    pub links: Option<&'a [Link]>,
    /// The ranges of services' addresses according to the cluster. The configuration takes precedence.
    pub service_ranges: &'a [IpNetwork],
    /// The ConfigMap of ip-masq-agent.
    pub agent: &'a Agent,
}

/// Returns the node's own settings. `exempt` are the network namespaces whose sockets are left alone.
pub fn node_tables(inputs: &NodeInputs<'_>, exempt: BTreeSet<u64>) -> NodeTables {
    let NodeInputs { config, node, links, service_ranges, agent } = *inputs;
    let ranges = if config.service_ranges.is_empty() { service_ranges } else { &config.service_ranges };
    let mut machine = links.map(|links| machine_addresses(links, config)).unwrap_or_default();
    // A service's address on an interface (of a node-local DNS cache) is not an address of the node.
    machine.retain(|address| !ranges.iter().any(|range| range.contains(*address)));
    let candidates = node.map(node_addresses).unwrap_or_default();
    let primary = primary_addresses(config, &candidates);
    NodeTables {
        addresses: config.nodeport_addresses.choose(&primary, &candidates, &machine),
        snat_addresses: snat_addresses(&primary, &candidates, &machine, links.is_some()),
        service_ranges: at_most_two_a_family(&merged(ranges)),
        exempt,
        through_stack: config.through_stack.unwrap_or_else(|| others_pods(inputs)),
        guard_node_ports: config.guard_node_ports,
        loopback_closed: !config.nodeport_addresses.loopback(),
        masquerade: masquerade_tables(inputs, agent, &candidates),
    }
}

/// Returns the packets of pods that take the node's address; `None` if none do, or while the node has no
/// ranges for pods. All addresses of its interfaces are the node's.
fn masquerade_tables(inputs: &NodeInputs<'_>, agent: &Agent, candidates: &[IpAddr]) -> Option<Masquerade> {
    let pods = inputs.node.map(pod_ranges).unwrap_or_default();
    if inputs.config.masquerade.is_empty() || pods.is_empty() {
        return None;
    }
    let links = inputs.links.unwrap_or_default();
    let machine = links.iter().flat_map(|link| &link.addresses).map(|one| one.address);
    let own: Vec<IpAddr> = candidates.iter().copied().chain(machine).collect();
    Some(masquerade(&pods, &inputs.config.masquerade, &own, agent))
}

/// Returns the interfaces to attach to; `None` while they are not known.
pub fn interfaces(inputs: &NodeInputs<'_>) -> Option<Vec<Interface>> {
    let ranges = inputs.node.map(pod_ranges).unwrap_or_default();
    Some(links::interfaces(inputs.links?, inputs.config, &ranges))
}

/// Returns `true` if another network plugin made some of the pods' interfaces: its packet filters have to see
/// the packets to them.
fn others_pods(inputs: &NodeInputs<'_>) -> bool {
    let pods = interfaces(inputs).unwrap_or_default();
    pods.iter().any(|one| one.role == Role::Pod && !one.name.starts_with(OWN_PREFIX))
}

/// Returns the `InternalIP` addresses, then the `ExternalIP` ones, each kind in the order of the status.
fn node_addresses(node: &Node) -> Vec<IpAddr> {
    let all = || node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of = |kind: &'static str| all().filter(move |address| address.type_ == kind);
    of("InternalIP").chain(of("ExternalIP")).filter_map(|address| address.address.parse().ok()).collect()
}

/// Returns the pod ranges of the Node.
pub(crate) fn pod_ranges(node: &Node) -> Vec<IpNetwork> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let one = spec.pod_cidr.iter().filter(|_| spec.pod_cidrs.is_none());
    one.chain(spec.pod_cidrs.iter().flatten()).filter_map(|range| range.parse().ok()).collect()
}

/// Returns the first address of each family; the configuration takes precedence.
fn primary_addresses(config: &Config, candidates: &[IpAddr]) -> Vec<IpAddr> {
    let of_family = |v4: bool| {
        let mut all = config.primary_address.iter().chain(candidates);
        all.find(|address| address.is_ipv4() == v4).copied()
    };
    [true, false].into_iter().filter_map(of_family).collect()
}

/// Returns the source addresses of packets whose replies must come back. They have to be on this machine: a
/// Node may name one that only a router in front of it has.
fn snat_addresses(primary: &[IpAddr], candidates: &[IpAddr], machine: &[IpAddr], known: bool) -> Vec<IpAddr> {
    let of_family = |v4: bool| {
        let usable = |address: &&IpAddr| {
            address.is_ipv4() == v4 && !address.is_loopback() && (!known || machine.contains(address))
        };
        primary.iter().chain(candidates).find(usable).copied()
    };
    [true, false].into_iter().filter_map(of_family).collect()
}

/// Returns the ranges without those that lie in others, sorted.
pub(crate) fn merged(ranges: &[IpNetwork]) -> Vec<IpNetwork> {
    let mut normal: Vec<_> =
        ranges.iter().filter_map(|range| IpNetwork::new(range.network(), range.prefix()).ok()).collect();
    normal.sort_unstable();
    normal.dedup();
    let in_another = |one: &IpNetwork| normal.iter().any(|other| other != one && covers(*other, *one));
    normal.iter().filter(|one| !in_another(one)).copied().collect()
}

/// Limits the ranges to those that the programs can compare with; packets to unallocated addresses of further
/// ranges meet the route of last resort.
fn at_most_two_a_family(ranges: &[IpNetwork]) -> Vec<IpNetwork> {
    let family =
        |v4: bool| ranges.iter().filter(move |range| range.is_ipv4() == v4).take(limits::SERVICE_RANGES);
    family(true).chain(family(false)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodePortAddresses;
    use crate::links::LinkAddress;
    use userspace_dataplane::tables::NonMasquerade;

    fn node(addresses: &[(&str, &str)]) -> Node {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|(kind, address)| serde_json::json!({"type": kind, "address": address}))
            .collect();
        let node = serde_json::json!({"metadata": {"name": "a"}, "status": {"addresses": addresses}});
        serde_json::from_value(node).unwrap()
    }

    fn link(index: u32, name: &str, addresses: &[&str]) -> Link {
        let address = |text: &&str| {
            let address: IpAddr = text.parse().unwrap();
            LinkAddress { address, global: !address.is_loopback() }
        };
        let loopback = name == "lo";
        let kind = if loopback || name.starts_with("eth") { "" } else { "veth" };
        Link {
            name: name.to_owned(),
            index,
            up: true,
            loopback,
            kind: kind.to_owned(),
            addresses: addresses.iter().map(address).collect(),
            ..Link::default()
        }
    }

    fn ips(all: &[&str]) -> Vec<IpAddr> {
        all.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    fn ranges(all: &[&str]) -> Vec<IpNetwork> {
        all.iter().map(|range| range.parse().unwrap()).collect()
    }

    fn tables(config: &Config, node: Option<&Node>, links: Option<&[Link]>) -> NodeTables {
        node_tables(
            &NodeInputs { config, node, links, service_ranges: &[], agent: &Agent::Absent },
            BTreeSet::new(),
        )
    }

    #[test]
    fn the_internal_address_goes_first_and_one_of_each_family_is_primary() {
        let mut config = Config::for_node("a").unwrap();
        config.nodeport_addresses = NodePortAddresses::parse(&["primary".to_owned()]).unwrap();
        let object = node(&[
            ("Hostname", "a"),
            ("ExternalIP", "203.0.113.9"),
            ("InternalIP", "192.0.2.1"),
            ("InternalIP", "192.0.2.2"),
            ("InternalIP", "2001:db8::1"),
        ]);
        let found = tables(&config, Some(&object), None);
        assert_eq!(found.addresses, ips(&["192.0.2.1", "2001:db8::1"]));
        assert_eq!(found.snat_addresses, ips(&["192.0.2.1", "2001:db8::1"]));
        // Set as by `bindAddress`.
        config.primary_address = Some("192.0.2.7".parse().unwrap());
        assert_eq!(tables(&config, Some(&object), None).addresses, ips(&["192.0.2.7", "2001:db8::1"]));
    }

    #[test]
    fn packets_do_not_take_an_address_that_only_a_router_has() {
        let config = Config::for_node("a").unwrap();
        let object = node(&[("InternalIP", "203.0.113.9"), ("ExternalIP", "192.0.2.1")]);
        let links = [link(1, "lo", &["127.0.0.1"]), link(2, "eth0", &["192.0.2.1"])];
        assert_eq!(tables(&config, Some(&object), Some(&links)).snat_addresses, ips(&["192.0.2.1"]));
        let lost = node(&[("InternalIP", "127.0.0.1")]);
        assert!(tables(&config, Some(&lost), Some(&links)).snat_addresses.is_empty());
    }

    #[test]
    fn services_addresses_on_interfaces_are_not_the_nodes() {
        let config = Config::for_node("a").unwrap();
        let links = [
            link(2, "eth0", &["192.0.2.1"]),
            link(3, "nodelocaldns", &["169.254.20.10", "10.96.0.10"]),
            link(4, "kube-ipvs0", &["10.96.0.1", "203.0.113.80"]),
        ];
        let service_ranges = ranges(&["10.96.0.0/12"]);
        let inputs = NodeInputs {
            config: &config,
            node: None,
            links: Some(&links),
            service_ranges: &service_ranges,
            agent: &Agent::Absent,
        };
        let found = node_tables(&inputs, BTreeSet::new()).addresses;
        assert_eq!(found, ips(&["169.254.20.10", "192.0.2.1"]));
    }

    #[test]
    fn pods_of_others_are_reached_through_the_stack() {
        let mut config = Config::for_node("a").unwrap();
        let own = [link(2, "eth0", &["192.0.2.1"]), link(3, "hwp1", &[])];
        assert!(!tables(&config, None, Some(&own)).through_stack);
        let others = [link(2, "eth0", &["192.0.2.1"]), link(3, "cali1", &[])];
        assert!(tables(&config, None, Some(&others)).through_stack);
        config.through_stack = Some(false);
        assert!(!tables(&config, None, Some(&others)).through_stack);
    }

    #[test]
    fn the_configurations_service_ranges_go_before_the_clusters() {
        let mut config = Config::for_node("a").unwrap();
        let found = ranges(&["10.96.0.0/12", "10.100.0.0/16", "fd00::/108", "10.3.0.0/16", "10.2.0.0/16"]);
        let of = |config: &Config| {
            let inputs =
                NodeInputs { config, node: None, links: None, service_ranges: &found, agent: &Agent::Absent };
            node_tables(&inputs, BTreeSet::new()).service_ranges
        };
        assert_eq!(of(&config), ranges(&["10.2.0.0/16", "10.3.0.0/16", "fd00::/108"]));
        config.service_ranges = ranges(&["10.7.1.2/16"]);
        assert_eq!(of(&config), ranges(&["10.7.0.0/16"]));
    }

    #[test]
    fn pods_are_masqueraded_once_the_node_has_ranges_for_them() {
        let mut config = Config::for_node("a").unwrap();
        let mut object = node(&[("InternalIP", "192.0.2.1")]);
        let links = [link(2, "eth0", &["192.0.2.1"]), link(3, "hwp1", &["169.254.1.1"])];
        let of = |config: &Config, object: &Node| tables(config, Some(object), Some(&links)).masquerade;
        object.spec.get_or_insert_default().pod_cidr = Some("10.244.1.0/24".to_owned());
        assert_eq!(of(&config, &object), None, "off by default");
        config.masquerade = ranges(&["10.244.0.0/16"]);
        let found = of(&config, &object).unwrap();
        assert_eq!(found.pods, ranges(&["10.244.1.0/24"]));
        // Those of pods' interfaces are the node's, too.
        for own in ["192.0.2.1/32", "169.254.1.1/32"] {
            assert_eq!(found.exempt[&own.parse().unwrap()], NonMasquerade::Node);
        }
        assert_eq!(found.exempt[&config.masquerade[0]], NonMasquerade::Cluster);
        object.spec = None;
        assert_eq!(of(&config, &object), None, "the node has no range yet");
    }

    #[test]
    fn the_nodes_ranges_are_read_in_both_spellings() {
        let read = |spec: serde_json::Value| {
            pod_ranges(&serde_json::from_value(serde_json::json!({"metadata": {}, "spec": spec})).unwrap())
        };
        assert_eq!(read(serde_json::json!({"podCIDR": "10.1.0.0/24"})), ranges(&["10.1.0.0/24"]));
        let both = serde_json::json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd01::/64"]});
        assert_eq!(read(both), ranges(&["10.1.0.0/24", "fd01::/64"]));
    }
}
