//! DnsEndpoints: the EndpointSlices that the cluster's DNS servers may write. Kubernetes has no such plugin: its DNS
//! is a Deployment, whose endpoints a controller writes. Ours run on nodes and write their own, and a role can give
//! them all slices of `kube-system` or none: with those of other Services, they would take over their traffic.

use apiserver_auth::authentication::node_name;
use apiserver_meta::identity::Identity;
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
        slices.into_iter().try_for_each(|slice| check(slice, request.identity)).map_err(|why| {
            let why = format!(
                "{} may only write the EndpointSlices of its DNS server: {why}",
                request.identity.user
            );
            request.forbidden(object, &why)
        })
    }
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
