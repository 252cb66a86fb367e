//! DnsEndpoints: the EndpointSlices that the cluster's DNS servers may write. Kubernetes has no such plugin: its DNS
//! is a Deployment, whose endpoints a controller writes. Ours run on nodes and write their own, and a role can give
//! them all slices of `kube-system` or none. With all of them, a DNS server could take over the traffic of other
//! Services.

use std::net::IpAddr;

use apiserver_auth::authentication::node_name;
use apiserver_meta::identity::Identity;
use apiserver_meta::networks::first_address;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use async_trait::async_trait;
use serde_json::Value;

use crate::{AdmissionRequest, Operation, Phase, Plugin};

const GROUP: &str = "discovery.k8s.io";
/// The user of the cluster's DNS servers.
const USER: &str = "system:kube-dns";
const NAMESPACE: &str = "kube-system";
const SERVICE: &str = "kube-dns";
/// The labels that their slices have.
const LABELS: [(&str, &str); 2] =
    [("kubernetes.io/service-name", SERVICE), ("endpointslice.kubernetes.io/managed-by", "dns.hawser.dev")];
/// The end of the names of slices with IPv6 addresses.
const IPV6: &str = "-ipv6";

/// Limits the slices that DNS servers, and nodes that were given the right to write slices, may write.
pub struct DnsEndpoints;

#[async_trait]
impl Plugin for DnsEndpoints {
    fn name(&self) -> &'static str {
        "DnsEndpoints"
    }

    fn handles(&self, request: &AdmissionRequest<'_>, phase: Phase) -> bool {
        phase == Phase::Validate
            && request.resource.is(GROUP, "EndpointSlice")
            && (request.identity.user == USER || node_name(request.identity).is_some())
    }

    async fn validate(&self, request: &AdmissionRequest<'_>, object: &Value) -> Result<(), ApiError> {
        let slices = match request.operation {
            Operation::Create => vec![object],
            Operation::Update => vec![request.old.unwrap_or(&Value::Null), object],
            Operation::Delete => vec![request.old.unwrap_or(object)],
        };
        let mut refusal = slices.into_iter().try_for_each(|slice| check(slice, request.identity)).err();
        if refusal.is_none() && request.operation != Operation::Delete {
            refusal = foreign_address(request, object).await?;
        }
        let Some(why) = refusal else { return Ok(()) };
        let why =
            format!("{} may only write the EndpointSlices of its DNS server: {why}", request.identity.user);
        Err(request.forbidden(object, &why))
    }
}

/// Returns why a slice of a DNS server has an address that is not its node's; `None` if all are.
async fn foreign_address(request: &AdmissionRequest<'_>, slice: &Value) -> Result<Option<String>, ApiError> {
    let Some(node) = node_of(slice) else { return Ok(None) };
    let Some(nodes) = request.cluster.kind("", "v1", "nodes") else { return Ok(None) };
    let known = request.cluster.referred(nodes, "", node).await?.unwrap_or_default();
    if check_addresses(slice, request.old, &known).is_ok() {
        return Ok(None);
    }
    // A server writes its slice as soon as its Node has a range, which a cache may not have yet.
    let stored = request.cluster.stored(nodes, "", node).await?.unwrap_or_default();
    Ok(check_addresses(slice, request.old, &stored).err())
}

/// Returns the node of a slice's endpoints, all of which have the same.
fn node_of(slice: &Value) -> Option<&str> {
    slice["endpoints"].as_array()?.first()?["nodeName"].as_str()
}

/// Checks that the endpoints of a slice have addresses at which the DNS server of their node listens: those that are
/// internal to the Node, and the first one of each of its podCIDRs. Pods of all namespaces send their queries there. An
/// address that the slice has had may stay where queries no longer go: the Node may have lost its range, or be deleted.
fn check_addresses(slice: &Value, old: Option<&Value>, node: &Value) -> Result<(), String> {
    let listens = |address: &IpAddr| own_addresses(node).any(|own| own == *address);
    let had: Vec<IpAddr> = old.into_iter().flat_map(endpoints).flat_map(addresses).collect();
    for endpoint in endpoints(slice) {
        let conditions = &endpoint["conditions"];
        let ending = conditions["ready"] == false
            && (conditions["serving"] != true || conditions["terminating"] == true);
        let foreign =
            addresses(endpoint).find(|address| !(listens(address) || ending && had.contains(address)));
        if let Some(address) = foreign {
            let node = endpoint["nodeName"].as_str().unwrap_or_default();
            return Err(format!(
                "{address} is neither an InternalIP of Node {node} nor the first address of one of its podCIDRs"
            ));
        }
    }
    Ok(())
}

fn endpoints(slice: &Value) -> impl Iterator<Item = &Value> {
    slice["endpoints"].as_array().into_iter().flatten()
}

fn addresses(endpoint: &Value) -> impl Iterator<Item = IpAddr> + '_ {
    // Others were refused by the validation.
    texts(&endpoint["addresses"]).filter_map(|text| text.parse().ok())
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the addresses that a Node's DNS server may listen on.
fn own_addresses(node: &Value) -> impl Iterator<Item = IpAddr> + '_ {
    let listed = node["status"]["addresses"].as_array().into_iter().flatten();
    let internal = listed.filter(|address| address["type"] == "InternalIP");
    let internal = internal.filter_map(|address| address["address"].as_str()?.parse().ok());
    let single = node["spec"]["podCIDR"].as_str().into_iter();
    let ranges = single.chain(texts(&node["spec"]["podCIDRs"])).filter_map(|range| range.parse().ok());
    // The pod network gives the node the first address of its range.
    internal.chain(ranges.filter_map(first_address))
}

/// Checks that a slice is that of the DNS server of one node; for a node, that it is its own.
fn check(slice: &Value, identity: &Identity) -> Result<(), String> {
    if meta::namespace(slice) != NAMESPACE {
        return Err(format!("they are in {NAMESPACE}"));
    }
    for (label, value) in LABELS {
        if slice["metadata"]["labels"][label] != value {
            return Err(format!("they have the label {label}={value}"));
        }
    }
    let name = meta::name(slice);
    let node = name.strip_prefix(SERVICE).and_then(|rest| rest.strip_prefix('-'));
    let node = match slice["addressType"].as_str() {
        Some("IPv4") => node,
        Some("IPv6") => node.and_then(|node| node.strip_suffix(IPV6)),
        _ => None,
    };
    let Some(node) = node.filter(|node| !node.is_empty()) else {
        return Err(format!("they are named {SERVICE}-NODE, or {SERVICE}-NODE{IPV6} for IPv6"));
    };
    if node_name(identity).is_some_and(|own| own != node) {
        return Err(format!("{name} is that of node {node}"));
    }
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    if list(&slice["endpoints"]).iter().any(|endpoint| endpoint["nodeName"] != node) {
        return Err(format!("the endpoints of {name} have the nodeName {node}"));
    }
    check_ports(&list(&slice["ports"])).map_err(|why| format!("{name} {why}"))?;
    let owners = list(&slice["metadata"]["ownerReferences"]);
    if owners.iter().any(|owner| owner["kind"] != "Node" || owner["name"] != node) {
        return Err(format!("{name} is owned by Node {node} alone"));
    }
    Ok(())
}

/// Checks that ports are those of a DNS server, with one number for queries: network policies let all pods reach it.
fn check_ports(ports: &[Value]) -> Result<(), &'static str> {
    if ports.iter().any(|port| !matches!(port["name"].as_str(), Some("dns" | "dns-tcp" | "metrics"))) {
        return Err("has the ports dns, dns-tcp and metrics");
    }
    let mut numbers = ports.iter().filter(|port| port["name"] != "metrics").map(|port| &port["port"]);
    let first = numbers.next();
    if numbers.any(|number| Some(number) != first) { Err("has one port number for queries") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, family: &str, node: &str) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": NAMESPACE,
                "labels": {LABELS[0].0: LABELS[0].1, LABELS[1].0: LABELS[1].1, "more": "x"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": "u"}],
            },
            "addressType": family,
            "endpoints": [{"addresses": ["192.0.2.1"], "nodeName": node}],
        })
    }

    /// Returns a slice with one endpoint.
    fn at(address: &str, conditions: Value) -> Value {
        let endpoint = json!({"addresses": [address], "nodeName": "a", "conditions": conditions});
        json!({"endpoints": [endpoint]})
    }

    #[test]
    fn dns_servers_are_at_the_addresses_of_their_node() {
        let node = json!({
            "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:0:0:1::/64"]},
            "status": {"addresses": [
                {"type": "Hostname", "address": "198.51.100.7"},
                {"type": "ExternalIP", "address": "203.0.113.1"},
                {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "InternalIP", "address": "2001:db8::1"},
            ]},
        });
        let ready = json!({"ready": true});
        for own in ["192.0.2.1", "2001:db8:0::1", "10.244.1.1", "fd00:0:0:1::1"] {
            assert_eq!(check_addresses(&at(own, ready.clone()), None, &node), Ok(()), "{own}");
        }
        for foreign in [
            "192.0.2.2",
            "203.0.113.1",
            "198.51.100.7",
            "10.244.1.2",
            "10.244.2.1",
            "10.96.0.1",
            "fd00:0:0:2::1",
        ] {
            let why = check_addresses(&at(foreign, ready.clone()), None, &node).unwrap_err();
            assert!(why.starts_with(&format!("{foreign} is neither an InternalIP of Node a")), "{why}");
            let out = json!({"ready": false});
            check_addresses(&at(foreign, out), None, &node).unwrap_err();
        }
        let mut second = at("10.244.1.1", ready.clone());
        second["endpoints"][0]["addresses"] = json!(["10.244.1.1", "10.244.2.1"]);
        check_addresses(&second, None, &node).unwrap_err();
        check_addresses(&at("192.0.2.1", ready.clone()), None, &Value::Null).unwrap_err();
        for range in ["10.244.1.0/32", "10.244.1.0/33", "10.244.1.0", ""] {
            let none = json!({"spec": {"podCIDR": range}});
            check_addresses(&at("10.244.1.1", ready.clone()), None, &none).unwrap_err();
        }
    }

    #[test]
    fn address_that_the_node_has_lost_stays_only_where_no_queries_go() {
        let node = json!({"spec": {"podCIDRs": ["10.244.9.0/24"]}});
        let old = at("10.244.1.1", json!({"ready": true}));
        for (conditions, allowed) in [
            (json!({"ready": true}), false),
            (json!({}), false),
            (json!({"ready": false, "serving": true}), false),
            (json!({"ready": false, "serving": false}), true),
            (json!({"ready": false, "serving": true, "terminating": true}), true),
            (json!({"ready": true, "terminating": true}), false),
        ] {
            for node in [&node, &Value::Null] {
                let checked = check_addresses(&at("10.244.1.1", conditions.clone()), Some(&old), node);
                assert_eq!(checked.is_ok(), allowed, "{conditions}");
            }
            check_addresses(&at("10.244.1.2", conditions), Some(&old), &node).unwrap_err();
        }
    }

    #[test]
    fn dns_servers_have_one_port_for_queries_and_no_others() {
        let port = |name: &str, number: u16| json!({"name": name, "port": number});
        let own = [port("dns", 1053), port("dns-tcp", 1053), port("metrics", 9153)];
        assert_eq!(check_ports(&own), Ok(()));
        assert!(check_ports(&[port("dns", 1053), port("dns-tcp", 6443)]).is_err());
        assert!(check_ports(&[port("dns", 1053), port("https", 6443)]).is_err());
    }

    #[test]
    fn dns_servers_write_the_slices_of_their_nodes() {
        let dns = Identity::authenticated(USER, &[]);
        for (name, family, node) in [
            ("kube-dns-a", "IPv4", "a"),
            ("kube-dns-a-ipv6", "IPv6", "a"),
            // A node may be called so.
            ("kube-dns-a-ipv6", "IPv4", "a-ipv6"),
            ("kube-dns-a.example", "IPv4", "a.example"),
        ] {
            assert_eq!(check(&slice(name, family, node), &dns), Ok(()), "{name}");
        }
        for (name, family, node) in [
            ("kube-dns-a", "IPv6", "a"),
            ("kube-dns-", "IPv4", ""),
            ("kube-dns", "IPv4", "a"),
            ("metrics-a", "IPv4", "a"),
            ("kube-dns-a", "FQDN", "a"),
            ("kube-dns-b", "IPv4", "a"),
        ] {
            assert!(check(&slice(name, family, node), &dns).is_err(), "{name} {family} {node}");
        }
        let good = slice("kube-dns-a", "IPv4", "a");
        for (pointer, value) in [
            ("/metadata/labels/kubernetes.io~1service-name", json!("metrics-server")),
            (
                "/metadata/labels/endpointslice.kubernetes.io~1managed-by",
                json!("endpointslice-controller.k8s.io"),
            ),
            ("/metadata/namespace", json!("default")),
            ("/metadata/ownerReferences/0/name", json!("b")),
            ("/metadata/ownerReferences/0/kind", json!("Service")),
            ("/endpoints/0/nodeName", json!("b")),
            ("/endpoints/0/nodeName", Value::Null),
        ] {
            let mut wrong = good.clone();
            *wrong.pointer_mut(pointer).unwrap() = value;
            assert!(check(&wrong, &dns).is_err(), "{pointer}");
        }
    }

    #[test]
    fn a_node_writes_its_own_slices() {
        let node = |name: &str| Identity::authenticated(&format!("system:node:{name}"), &["system:nodes"]);
        let own = slice("kube-dns-a", "IPv4", "a");
        assert_eq!(check(&own, &node("a")), Ok(()));
        assert_eq!(check(&own, &node("b")).unwrap_err(), "kube-dns-a is that of node a");
    }
}
