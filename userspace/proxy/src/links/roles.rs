//! The roles of interfaces: pods' interfaces, and those towards other hosts.
//!
//! kube-proxy tests whether a packet comes from a pod of this node; here the interface on which it arrives
//! decides, so that each of kube-proxy's ways to detect local traffic becomes a choice of interfaces.
//! Programs are attached to the ports of a pods' bridge and not to the bridge itself: an answer from one pod
//! to another on the same bridge never leaves layer 2, and only the ports see it.

use apiserver_meta::networks::covers;
use ipnetwork::IpNetwork;
use userspace_dataplane::tables::{Interface, Role};

use super::Link;
use crate::config::{Config, DetectLocal};

/// Kinds of interfaces that can lead to other hosts; a physical one has no kind. A bridge with an address
/// stands for its ports. `ipip`, `gre` and `wireguard` have no Ethernet header, dummies lead nowhere.
const UPLINK_KINDS: [&str; 9] =
    ["veth", "vlan", "bond", "team", "bridge", "macvlan", "ipvlan", "vxlan", "geneve"];

/// Kinds that a pod's interface, or the bridge of pods, can have on the host's side.
const POD_KINDS: [&str; 6] = ["veth", "bridge", "tun", "netkit", "macvtap", "openvswitch"];

/// Name prefixes of the host's ends of pods' interfaces: of Calico, Cilium, Azure, AWS and GKE, and of the
/// reference plugins `bridge` and `ptp` (Flannel, kubenet, kind).
const KNOWN_PREFIXES: [&str; 6] = ["cali", "lxc", "azv", "eni", "gke", "veth"];

/// Names of bridges of pods: of Flannel and others, kubenet, kube-router, Weave.
const KNOWN_BRIDGES: [&str; 4] = ["cni0", "cbr0", "kube-bridge", "weave"];

/// Returns the interfaces to which the data plane is to be attached, by index. `node_ranges` are the pods'
/// ranges of the own Node.
pub(crate) fn interfaces(links: &[Link], config: &Config, node_ranges: &[IpNetwork]) -> Vec<Interface> {
    let bridges: Vec<u32> = links
        .iter()
        .filter(|link| link.kind == "bridge" && is_pods(link, config, node_ranges))
        .map(|link| link.index)
        .collect();
    let role = |link: &Link| {
        if bridges.contains(&link.index) {
            return None;
        }
        if bridges.contains(&link.master) {
            // A bridge can have the uplink among its ports.
            let uplink = !POD_KINDS.contains(&link.kind.as_str());
            return Some(if uplink { Role::Uplink } else { Role::Pod }).filter(|_| !link.loopback);
        }
        if is_pods(link, config, node_ranges) {
            return Some(Role::Pod);
        }
        is_uplink(link, config).then_some(Role::Uplink)
    };
    let mut interfaces: Vec<_> = links
        .iter()
        .filter_map(|link| Some(Interface { name: link.name.clone(), index: link.index, role: role(link)? }))
        .collect();
    interfaces.sort_unstable_by_key(|interface| interface.index);
    interfaces
}

/// Returns `true` if Hawser's pod network made the interface.
pub(crate) fn is_own(name: &str, config: &Config) -> bool {
    config.pod_interface_prefixes.iter().any(|prefix| name.starts_with(prefix))
}

fn is_pods(link: &Link, config: &Config, node_ranges: &[IpNetwork]) -> bool {
    if is_own(&link.name, config) {
        return true;
    }
    if link.loopback || config.uplinks.contains(&link.name) {
        return false;
    }
    match &config.detect_local {
        DetectLocal::Bridge(name) => link.name == *name,
        DetectLocal::Prefix(prefix) => link.name.starts_with(prefix),
        DetectLocal::ClusterCidr(ranges) => leads_into(link, ranges) || is_known(link),
        DetectLocal::NodeCidr => leads_into(link, node_ranges) || is_known(link),
    }
}

/// Returns `true` for a virtual interface whose other end, or ports, have addresses of these ranges: without
/// a gateway in between, and not a tunnel to other nodes.
fn leads_into(link: &Link, ranges: &[IpNetwork]) -> bool {
    let within = |inner: &IpNetwork| ranges.iter().any(|range| covers(*range, *inner));
    POD_KINDS.contains(&link.kind.as_str())
        && !link.gateway
        && (link.routes.iter().any(within)
            || link.addresses.iter().any(|one| within(&IpNetwork::from(one.address))))
}

/// Returns `true` if the name is that of a pod's interface of a well-known network plugin. An interface with
/// an address of its own, or with a gateway behind it, is an uplink and not a pod's.
fn is_known(link: &Link) -> bool {
    let starts = || KNOWN_PREFIXES.iter().any(|prefix| link.name.starts_with(prefix));
    let plain = || !link.gateway && !link.addresses.iter().any(|one| one.global);
    match link.kind.as_str() {
        "veth" => starts() && plain(),
        "bridge" => KNOWN_BRIDGES.contains(&link.name.as_str()),
        _ => false,
    }
}

fn is_uplink(link: &Link, config: &Config) -> bool {
    if !config.uplinks.is_empty() {
        return config.uplinks.contains(&link.name);
    }
    let fits = link.kind.is_empty() || UPLINK_KINDS.contains(&link.kind.as_str());
    fits && !link.loopback && link.up && link.addresses.iter().any(|one| one.global)
}

#[cfg(test)]
mod tests {
    use super::super::LinkAddress;
    use super::*;

    fn link(index: u32, name: &str, kind: &str, address: &str) -> Link {
        let address: Option<std::net::IpAddr> = address.parse().ok();
        let global = address.is_some_and(|address| !address.is_loopback());
        Link {
            name: name.to_owned(),
            index,
            up: true,
            loopback: name == "lo",
            kind: kind.to_owned(),
            addresses: address.map(|address| LinkAddress { address, global }).into_iter().collect(),
            ..Link::default()
        }
    }

    fn machine() -> Vec<Link> {
        vec![
            link(7, "hwp0123", "veth", ""),
            link(1, "lo", "", "127.0.0.1"),
            link(2, "eth0", "", "192.0.2.1"),
            link(3, "eth1", "", ""),
            link(4, "br0", "bridge", "172.17.0.1"),
            link(5, "any0", "dummy", "10.244.0.1"),
            link(6, "up0", "veth", "198.51.100.1"),
        ]
    }

    fn routed(link: Link, routes: &[&str]) -> Link {
        Link { routes: routes.iter().map(|route| route.parse().unwrap()).collect(), ..link }
    }

    fn port_of(master: u32, link: Link) -> Link {
        Link { master, ..link }
    }

    fn detecting(detect_local: DetectLocal) -> Config {
        Config { detect_local, ..Config::for_node("a").unwrap() }
    }

    fn cluster(range: &str) -> Config {
        detecting(DetectLocal::ClusterCidr(vec![range.parse().unwrap()]))
    }

    fn names(links: &[Link], config: &Config, role: Role) -> Vec<String> {
        let found = interfaces(links, config, &[]);
        found.into_iter().filter(|one| one.role == role).map(|one| one.name).collect()
    }

    #[test]
    fn uplinks_are_found_by_kind_and_address_and_pods_by_their_prefix() {
        let config = Config::for_node("a").unwrap();
        assert_eq!(names(&machine(), &config, Role::Uplink), ["eth0", "br0", "up0"]);
        assert_eq!(names(&machine(), &config, Role::Pod), ["hwp0123"]);
    }

    #[test]
    fn named_uplinks_are_taken_as_they_are() {
        let config = Config { uplinks: vec!["eth1".to_owned()], ..Config::for_node("a").unwrap() };
        assert_eq!(names(&machine(), &config, Role::Uplink), ["eth1"]);
    }

    #[test]
    fn an_interface_that_is_down_is_no_uplink() {
        let mut machine = machine();
        machine[2].up = false;
        assert_eq!(names(&machine, &Config::for_node("a").unwrap(), Role::Uplink), ["br0", "up0"]);
    }

    #[test]
    fn calico_has_a_route_to_each_pod() {
        let mut eth0 = routed(link(2, "eth0", "", "192.0.2.1"), &["192.0.2.0/24"]);
        eth0.gateway = true;
        // Interfaces with other names than Calico's are found by the route alone.
        let links =
            [eth0, routed(link(3, "pod3", "veth", ""), &["10.1.0.7/32"]), link(4, "cali04", "veth", "")];
        assert_eq!(names(&links, &cluster("10.1.0.0/16"), Role::Pod), ["pod3", "cali04"]);
        assert_eq!(names(&links, &cluster("10.1.0.0/16"), Role::Uplink), ["eth0"]);
        assert_eq!(names(&links, &detecting(DetectLocal::NodeCidr), Role::Pod), ["cali04"]);
        let node_ranges = ["10.1.0.0/24".parse().unwrap()];
        assert_eq!(interfaces(&links, &detecting(DetectLocal::NodeCidr), &node_ranges).len(), 3);
    }

    #[test]
    fn the_ports_of_flannels_bridge_are_pods_and_its_tunnel_is_an_uplink() {
        let mut tunnel = routed(link(5, "flannel.1", "vxlan", "10.1.0.0"), &[]);
        tunnel.gateway = true;
        let links = [
            link(2, "eth0", "", "192.0.2.1"),
            routed(link(3, "pods", "bridge", "10.1.0.1"), &["10.1.0.0/24"]),
            port_of(3, link(4, "veth1a2b", "veth", "")),
            tunnel,
            port_of(9, link(6, "tap0", "tun", "")),
        ];
        let config = cluster("10.1.0.0/16");
        assert_eq!(names(&links, &config, Role::Pod), ["veth1a2b"]);
        assert_eq!(names(&links, &config, Role::Uplink), ["eth0", "flannel.1"]);
    }

    #[test]
    fn a_node_whose_own_address_is_in_the_pods_range_keeps_its_uplink() {
        let mut eth0 = routed(link(2, "eth0", "", "10.1.0.5"), &["10.1.0.0/16"]);
        eth0.gateway = true;
        // The uplink of a virtual machine or a nested node can be a veth.
        let mut nested = routed(link(3, "vethup", "veth", "10.1.0.6"), &["10.1.0.0/16"]);
        nested.gateway = true;
        assert_eq!(names(&[eth0, nested], &cluster("10.1.0.0/16"), Role::Uplink), ["eth0", "vethup"]);
    }

    #[test]
    fn a_named_bridge_or_prefix_is_all_there_is() {
        let links = [
            link(2, "br7", "bridge", "10.1.0.1"),
            port_of(2, link(3, "tap3", "tun", "")),
            port_of(2, link(4, "eth0", "", "")),
            link(5, "cali5", "veth", ""),
            link(6, "hwp6", "veth", ""),
        ];
        let bridge = detecting(DetectLocal::Bridge("br7".to_owned()));
        assert_eq!(names(&links, &bridge, Role::Pod), ["tap3", "hwp6"]);
        assert_eq!(names(&links, &bridge, Role::Uplink), ["eth0"]);
        let prefix = detecting(DetectLocal::Prefix("cal".to_owned()));
        assert_eq!(names(&links, &prefix, Role::Pod), ["cali5", "hwp6"]);
        assert_eq!(names(&links, &prefix, Role::Uplink), ["br7"]);
    }
}
