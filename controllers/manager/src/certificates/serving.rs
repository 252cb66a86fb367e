//! The rule by which serving certificates of kubelets are approved: the request is the Node's own, and names
//! the Node and its addresses alone.
//!
//! A node writes the addresses of its Node by itself. A name or address is therefore refused also if any other
//! Node lists it, or if it is that of a Service, of the API server or of the machine itself: a certificate for it
//! would let the node stand in for others. Which Node is older proves nothing: a node that was there first may list
//! the address of one that joins.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::rules::{NODE_PREFIX, NODES};
use crate::authority::Request;
use crate::meta::name;

/// Label of the nodes on which API servers run. Kubelets cannot set it.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// The parts of a cluster that a serving certificate could stand in for.
pub(super) struct Cluster<'a> {
    pub nodes: &'a [Arc<Node>],
    /// Ranges of Services.
    pub services: &'a [IpNetwork],
    /// Addresses of API servers.
    pub servers: &'a BTreeSet<IpAddr>,
    /// DNS names of API servers; the first label may be `*`.
    pub server_names: &'a BTreeSet<String>,
}

/// Divides what is known of API servers by configuration into addresses and DNS names.
pub(super) fn known_servers(hosts: &BTreeSet<String>) -> (BTreeSet<IpAddr>, BTreeSet<String>) {
    let (mut addresses, mut names) = (BTreeSet::new(), BTreeSet::new());
    for host in hosts {
        if let Ok(address) = host.parse::<IpAddr>() {
            addresses.insert(address.to_canonical());
        } else {
            names.insert(host.trim_end_matches('.').to_ascii_lowercase());
        }
    }
    (addresses, names)
}

/// Returns the addresses in the EndpointSlices of API servers.
pub(super) fn servers(slices: &[Arc<EndpointSlice>]) -> BTreeSet<IpAddr> {
    let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
    addresses.filter_map(|address| address.parse().ok()).collect()
}

/// Checks a request that is one for a serving certificate by its form. The error says what is wrong, or what
/// is not there yet.
pub(super) fn check(
    request: &CertificateSigningRequest,
    asked: &Request,
    cluster: &Cluster<'_>,
) -> Result<(), String> {
    let author = request.spec.username.as_deref().unwrap_or_default();
    let groups = request.spec.groups.as_deref().unwrap_or_default();
    let node_name = asked.common_name.strip_prefix(NODE_PREFIX).unwrap_or_default();
    if author != asked.common_name || node_name.is_empty() || !groups.iter().any(|group| group == NODES) {
        return Err(format!("it is not a request of {} itself", asked.common_name));
    }
    let node = cluster.nodes.iter().find(|node| name(&node.metadata) == node_name);
    let node = node.ok_or_else(|| format!("there is no Node {node_name}"))?;
    for name in &asked.dns_names {
        check_name(name, node, cluster)?;
    }
    asked.addresses.iter().try_for_each(|address| check_address(*address, node, cluster))
}

fn check_name(wanted: &str, node: &Node, cluster: &Cluster<'_>) -> Result<(), String> {
    let node_name = name(&node.metadata);
    let has = |node: &Node| {
        let listed = addresses(node).iter().any(|address| {
            matches!(address.type_.as_str(), "Hostname" | "InternalDNS" | "ExternalDNS")
                && address.address.eq_ignore_ascii_case(wanted)
        });
        listed || name(&node.metadata).eq_ignore_ascii_case(wanted)
    };
    if is_reserved(wanted) {
        return Err(format!("{wanted:?} is a name of the cluster and not of Node {node_name}"));
    }
    if cluster.server_names.iter().any(|server| is_named(server, wanted)) && !is_control_plane(node) {
        return Err(format!(
            "{wanted:?} is a name of the API server, and Node {node_name} has no label {CONTROL_PLANE}"
        ));
    }
    if !has(node) {
        return Err(format!("{wanted:?} is not a name of Node {node_name}"));
    }
    match cluster.nodes.iter().find(|other| is_other(other, node) && has(other)) {
        Some(other) => Err(format!("{wanted:?} is a name of Node {} too", name(&other.metadata))),
        None => Ok(()),
    }
}

/// Returns `true` if a name in a certificate, which may begin with `*.`, stands for a name.
fn is_named(pattern: &str, wanted: &str) -> bool {
    let wanted = wanted.trim_end_matches('.').to_ascii_lowercase();
    match pattern.strip_prefix("*.") {
        Some(domain) => wanted.split_once('.').is_some_and(|(_, rest)| rest == domain),
        None => wanted == pattern,
    }
}

fn is_control_plane(node: &Node) -> bool {
    node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(CONTROL_PLANE))
}

/// Returns `true` if a name belongs to the machine itself, the API server or a Service, or to many.
fn is_reserved(wanted: &str) -> bool {
    let wanted = wanted.to_ascii_lowercase();
    let labels: Vec<&str> = wanted.trim_end_matches('.').split('.').collect();
    wanted.contains('*')
        || labels.last() == Some(&"localhost")
        || labels[0] == "kubernetes"
        || labels.contains(&"svc")
}

fn check_address(wanted: IpAddr, node: &Node, cluster: &Cluster<'_>) -> Result<(), String> {
    let node_name = name(&node.metadata);
    let has = |node: &Node| {
        addresses(node).iter().any(|address| {
            matches!(address.type_.as_str(), "InternalIP" | "ExternalIP")
                && address.address.parse::<IpAddr>().is_ok_and(|listed| listed.to_canonical() == wanted)
        })
    };
    if wanted.is_loopback() || wanted.is_unspecified() || wanted.is_multicast() {
        return Err(format!("{wanted} is not an address of one machine"));
    }
    if cluster.services.iter().any(|range| range.contains(wanted)) {
        return Err(format!("{wanted} is an address of Services"));
    }
    if cluster.servers.contains(&wanted) && !is_control_plane(node) {
        return Err(format!(
            "{wanted} is an address of the API server, and Node {node_name} has no label {CONTROL_PLANE}"
        ));
    }
    if !has(node) {
        return Err(format!("{wanted} is not an address of Node {node_name}"));
    }
    match cluster.nodes.iter().find(|other| is_other(other, node) && has(other)) {
        Some(other) => Err(format!("{wanted} is an address of Node {} too", name(&other.metadata))),
        None => Ok(()),
    }
}

fn is_other(other: &Node, node: &Node) -> bool {
    name(&other.metadata) != name(&node.metadata)
}

fn addresses(node: &Node) -> &[NodeAddress] {
    node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::request::tests::request;

    fn node(name: &str, addresses: &[(&str, &str)]) -> Arc<Node> {
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        let addresses = addresses
            .iter()
            .map(|(kind, address)| NodeAddress { type_: (*kind).to_owned(), address: (*address).to_owned() });
        node.status.get_or_insert_default().addresses = Some(addresses.collect());
        Arc::new(node)
    }

    fn judge(author: &str, common_name: &str, names: &[&str], nodes: &[Arc<Node>]) -> Result<(), String> {
        let mut csr = CertificateSigningRequest::default();
        csr.spec.username = Some(author.to_owned());
        csr.spec.groups = Some(vec![NODES.to_owned(), "system:authenticated".to_owned()]);
        let services = ["10.96.0.0/16".parse().unwrap()];
        let hosts = ["192.0.2.100", "::ffff:192.0.2.101", "api.example", "*.apis.example"];
        let (servers, server_names) = known_servers(&hosts.map(str::to_owned).into());
        let cluster = Cluster { nodes, services: &services, servers: &servers, server_names: &server_names };
        check(&csr, &request(common_name, &[NODES], names), &cluster)
    }

    #[test]
    fn a_node_gets_a_certificate_for_its_own_names_alone() {
        let a = node(
            "a",
            &[
                ("InternalIP", "192.0.2.1"),
                ("InternalIP", "2001:db8::1"),
                ("Hostname", "a"),
                ("InternalDNS", "a.example"),
                // Addresses and names that a hostile node could write.
                ("InternalIP", "127.0.0.1"),
                ("InternalIP", "10.96.0.1"),
                ("InternalIP", "192.0.2.100"),
                ("InternalIP", "192.0.2.101"),
                ("InternalIP", "192.0.2.3"),
                ("Hostname", "kubernetes.default.svc"),
                ("Hostname", "c"),
                ("Hostname", "*.example"),
                ("Hostname", "API.example"),
                ("Hostname", "one.apis.example"),
                ("Hostname", "c.example"),
            ],
        );
        let b = node("b", &[("InternalIP", "192.0.2.2")]);
        let c = node("c", &[("InternalIP", "192.0.2.3"), ("InternalDNS", "C.example")]);
        let nodes = [a, b, c];
        let of_a = |names: &[&str]| judge("system:node:a", "system:node:a", names, &nodes);
        assert_eq!(of_a(&["a", "a.example", "192.0.2.1", "2001:db8::1"]), Ok(()));
        for (name, why) in [
            ("b", "\"b\" is not a name of Node a"),
            ("c", "\"c\" is a name of Node c too"),
            ("other.example", "\"other.example\" is not a name of Node a"),
            ("c.example", "\"c.example\" is a name of Node c too"),
            (
                "API.example",
                "\"API.example\" is a name of the API server, and Node a has no label \
                 node-role.kubernetes.io/control-plane",
            ),
            (
                "one.apis.example",
                "\"one.apis.example\" is a name of the API server, and Node a has no label \
                 node-role.kubernetes.io/control-plane",
            ),
            (
                "192.0.2.101",
                "192.0.2.101 is an address of the API server, and Node a has no label \
                 node-role.kubernetes.io/control-plane",
            ),
            (
                "kubernetes.default.svc",
                "\"kubernetes.default.svc\" is a name of the cluster and not of Node a",
            ),
            ("localhost", "\"localhost\" is a name of the cluster and not of Node a"),
            ("*.example", "\"*.example\" is a name of the cluster and not of Node a"),
            ("192.0.2.2", "192.0.2.2 is not an address of Node a"),
            ("192.0.2.3", "192.0.2.3 is an address of Node c too"),
            ("127.0.0.1", "127.0.0.1 is not an address of one machine"),
            ("10.96.0.1", "10.96.0.1 is an address of Services"),
            (
                "192.0.2.100",
                "192.0.2.100 is an address of the API server, and Node a has no label \
                 node-role.kubernetes.io/control-plane",
            ),
        ] {
            assert_eq!(of_a(&[name]).unwrap_err(), why);
            assert!(of_a(&["a", name]).is_err(), "one good name does not help");
        }
        // Neither of two that list an address can have it: nobody knows whose it is.
        let c_asks = judge("system:node:c", "system:node:c", &["192.0.2.3"], &nodes);
        assert_eq!(c_asks.unwrap_err(), "192.0.2.3 is an address of Node a too");
    }

    /// A node that is there first and lists the address of the next one must not be able to stand in for it.
    #[test]
    fn being_older_is_no_right_to_an_address() {
        let mut old = Node::clone(&node("old", &[("InternalIP", "192.0.2.1"), ("InternalIP", "192.0.2.2")]));
        old.metadata.creation_timestamp = crate::testing::time(1);
        let mut young = Node::clone(&node("young", &[("InternalIP", "192.0.2.2")]));
        young.metadata.creation_timestamp = crate::testing::time(2);
        let nodes = [Arc::new(old), Arc::new(young)];
        let takes = judge("system:node:old", "system:node:old", &["192.0.2.2"], &nodes);
        assert_eq!(takes.unwrap_err(), "192.0.2.2 is an address of Node young too");
        assert_eq!(judge("system:node:old", "system:node:old", &["192.0.2.1"], &nodes), Ok(()));
    }

    /// A node of two addresses has both, and no node gets either of them by listing it beside its own.
    #[test]
    fn second_address_of_another_node_is_refused_however_it_is_written() {
        let a = node("a", &[("InternalIP", "192.0.2.1"), ("InternalIP", "2001:db8::1")]);
        let b = node("b", &[("InternalIP", "192.0.2.2"), ("InternalIP", "2001:db8::2")]);
        let of_b =
            |names: &[&str], nodes: &[Arc<Node>]| judge("system:node:b", "system:node:b", names, nodes);
        let nodes = [Arc::clone(&a), b];
        assert_eq!(of_b(&["b", "192.0.2.2", "2001:db8::2"], &nodes), Ok(()));
        let foreign = of_b(&["b", "192.0.2.2", "2001:db8::1"], &nodes).unwrap_err();
        assert_eq!(foreign, "2001:db8::1 is not an address of Node b");
        for (listed, wanted) in [("2001:DB8:0:0::1", "2001:db8::1"), ("::ffff:192.0.2.1", "192.0.2.1")] {
            let hostile = node("b", &[("InternalIP", "192.0.2.2"), ("InternalIP", listed)]);
            let refused = of_b(&["b", "192.0.2.2", wanted], &[Arc::clone(&a), hostile]).unwrap_err();
            assert_eq!(refused, format!("{wanted} is an address of Node a too"));
        }
    }

    #[test]
    fn nobody_asks_for_another_node() {
        let nodes = [node("a", &[("InternalIP", "192.0.2.1")])];
        for author in ["system:node:b", "system:bootstrap:abcdef", "jane", ""] {
            let refused = judge(author, "system:node:a", &["a"], &nodes).unwrap_err();
            assert_eq!(refused, "it is not a request of system:node:a itself");
        }
        let gone = judge("system:node:z", "system:node:z", &["z"], &nodes).unwrap_err();
        assert_eq!(gone, "there is no Node z");
        let nameless = judge("system:node:", "system:node:", &["a"], &nodes).unwrap_err();
        assert_eq!(nameless, "it is not a request of system:node: itself");
    }

    #[test]
    fn nodes_of_the_control_plane_have_the_names_of_the_api_server() {
        let mut control =
            Node::clone(&node("a", &[("InternalIP", "192.0.2.100"), ("InternalDNS", "api.example")]));
        control.metadata.labels = Some([(CONTROL_PLANE.to_owned(), String::new())].into());
        let nodes = [Arc::new(control)];
        assert_eq!(judge("system:node:a", "system:node:a", &["192.0.2.100", "api.example"], &nodes), Ok(()));
    }
}
