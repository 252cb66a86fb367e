//! The cluster's DNS servers that are sockets of nodes, as those of `hawser dns` are.
//!
//! A pod always reaches the server of its own node, whose addresses no policy closes. While that one is away, the
//! Service leads the pod to the server of another node, at an address and port that no policy can name: it is
//! not a pod's, and policies are written for port 53. So these are open to all pods in the same way. Servers in
//! pods, such as CoreDNS, are peers like any other pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use apiserver_client::ObjectKey;

use super::object::{Peer, Policy, Port, Ports, Rule};
use super::selector::Selector;
use crate::compile::Slice;

/// Namespace and name of the cluster's DNS Service.
const SERVICE: (&str, &str) = ("kube-system", "kube-dns");
/// The names of its ports for queries, as every Kubernetes has them.
const PORTS: [&str; 2] = ["dns", "dns-tcp"];

/// Returns the cluster's DNS Service.
pub(crate) fn dns_service() -> ObjectKey {
    ObjectKey::new(SERVICE.0, SERVICE.1)
}

/// Returns `true` for the cluster's DNS Service.
pub(crate) fn is_dns(service: &ObjectKey) -> bool {
    (service.namespace.as_str(), service.name.as_str()) == SERVICE
}

/// Returns rules for packets to the servers in the slices of the DNS Service; `None` without such servers.
pub(crate) fn reachable(slices: &[Arc<Slice>]) -> Option<Policy> {
    let mut servers: BTreeMap<BTreeSet<_>, BTreeSet<IpAddr>> = BTreeMap::new();
    for slice in slices {
        servers.entry(slice.ports_named(&PORTS).collect()).or_default().extend(slice.without_pods());
    }
    let rule = |(ports, addresses): (BTreeSet<_>, _)| Rule {
        peers: Some(vec![Peer::Addresses(addresses)]),
        ports: Some(
            ports
                .into_iter()
                .map(|(protocol, number)| Port { protocol, ports: Ports::Range(number, number) })
                .collect(),
        ),
    };
    let servers = servers.into_iter().filter(|(ports, addresses)| !ports.is_empty() && !addresses.is_empty());
    let rules: Vec<Rule> = servers.map(rule).collect();
    (!rules.is_empty()).then(|| Policy {
        namespace: SERVICE.0.to_owned(),
        name: SERVICE.1.to_owned(),
        pods: Selector::default(),
        ingress: None,
        egress: Some(rules),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use userspace_dataplane::policy::PolicyPorts;
    use userspace_dataplane::tables::Protocol;

    use super::super::compile::{Inputs, LocalPod, compile};
    use super::super::pods::{NamespaceLabels, PolicyPod};
    use super::*;

    fn slice(endpoint: &Value) -> Arc<Slice> {
        let port = |name: &str, number: u16, protocol: &str| json!({"name": name, "port": number, "protocol": protocol});
        let object = json!({
            "metadata": {"namespace": "kube-system", "name": "s", "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4", "endpoints": [endpoint],
            "ports": [port("dns", 1053, "UDP"), port("dns-tcp", 1053, "TCP"), port("metrics", 9153, "TCP")],
        });
        Arc::new(Slice::of(&serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn isolated_pods_reach_the_dns_servers_of_other_nodes_and_only_their_ports_for_queries() {
        let policy = json!({
            "metadata": {"namespace": "default", "name": "closed"},
            "spec": {"podSelector": {}, "policyTypes": ["Egress"]},
        });
        let policy = Arc::new(Policy::of(&serde_json::from_value(policy).unwrap()));
        let pod = json!({
            "metadata": {"namespace": "default", "name": "p", "uid": "u"}, "status": {"podIPs": [{"ip": "10.244.0.5"}]},
        });
        let pod = <PolicyPod as apiserver_client::Projection>::project(serde_json::from_value(pod).unwrap());
        let local = LocalPod { interface: 7, uid: Some("u".to_owned()), ..LocalPod::default() };
        let server: IpAddr = "10.244.1.1".parse().unwrap();
        let always = reachable(&[slice(&json!({"addresses": [server]}))]);
        let tables = compile(&Inputs {
            policies: &[policy],
            pods: &[Arc::new(pod)],
            namespaces: &NamespaceLabels::default(),
            local: &[local],
            node: &[],
            always: always.as_ref(),
        });
        let set = tables.endpoints[&7].egress.unwrap();
        assert_eq!(tables.names[&set.name], "default/closed", "drops name the policies of the pod alone");
        let class = tables.peers[&server.into()];
        let allowed: Vec<_> = tables.rules.keys().filter(|rule| rule.set == set.set).collect();
        assert!(allowed.iter().all(|rule| rule.class == class), "{allowed:?}");
        let mut ports: Vec<_> = allowed.iter().map(|rule| rule.ports.unwrap()).collect();
        ports.sort_unstable();
        let mut expected = [Protocol::Udp, Protocol::Tcp].map(|one| PolicyPorts::new(one, 1053, 16));
        expected.sort_unstable();
        assert_eq!(ports, expected);
    }

    #[test]
    fn dns_servers_in_pods_are_peers_like_any_other() {
        let target = json!({"kind": "Pod", "namespace": "kube-system", "name": "coredns-1"});
        let endpoint = json!({"addresses": ["10.244.1.9"], "targetRef": target});
        assert_eq!(reachable(&[slice(&endpoint)]), None);
    }
}
