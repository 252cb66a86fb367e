//! `hostPort` of the node's own pods: ports of the node that lead to a pod.
//!
//! Pods in the node's network listen there themselves. A `hostIP` that is no address of this node is left out:
//! else whoever may create pods could take traffic to any address. Services win over pods on the same address
//! and port, and the older pod over the younger; the scheduler lets no two pods of a node have the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;

use apiserver_client::{ObjectKey, Projection};
use apiserver_meta::pods;
use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodSpec, PodStatus};
use userspace_dataplane::tables::{Backend, Frontend, FrontendKey, Protocol, Scope, ServiceTables};

use crate::bandwidth::{Known, Limited};
use crate::compile::{Rank, address};
use crate::links::Link;

/// A pod, as far as host ports and limits of bandwidth follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPod {
    namespace: Box<str>,
    name: Box<str>,
    uid: Box<str>,
    version: Option<NonZeroU64>,
    /// At most one of each family; none if the pod has ended, or has no network of its own.
    addresses: Vec<IpAddr>,
    ports: Vec<HostPort>,
    limited: Option<Box<Limited>>,
}

/// A port of the node that leads to a port of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostPort {
    /// The one address of the node; `None` for all.
    address: Option<IpAddr>,
    number: u16,
    container: u16,
    protocol: Protocol,
}

impl Projection for HostPod {
    type Object = Pod;

    fn project(pod: Pod) -> Self {
        let Pod { metadata, spec, status } = pod;
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        let ports = if spec.host_network == Some(true) { Vec::new() } else { ports(&spec) };
        let addresses = addresses(&status);
        // The node's network is not limited.
        let limited = (spec.host_network != Some(true)).then(|| Limited::of(&metadata, &addresses)).flatten();
        let version = metadata.resource_version.and_then(|version| version.parse().ok());
        Self {
            namespace: metadata.namespace.unwrap_or_default().into(),
            name: metadata.name.unwrap_or_default().into(),
            uid: metadata.uid.unwrap_or_default().into(),
            version,
            addresses: if ports.is_empty() { Vec::new() } else { addresses },
            ports,
            limited,
        }
    }

    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version
    }
}

impl HostPod {
    /// Returns `true` if the pod has host ports.
    pub(crate) fn has_ports(&self) -> bool {
        !self.ports.is_empty()
    }

    /// Returns `true` if both have the same tables.
    pub(crate) fn serves_as(&self, other: &Self) -> bool {
        (&self.addresses, &self.ports) == (&other.addresses, &other.ports)
    }

    /// Returns the pod's UID, and the annotations that limit its bandwidth.
    pub(crate) fn bandwidth(&self) -> Known<'_> {
        (&self.uid, self.limited.as_deref())
    }
}

fn ports(spec: &PodSpec) -> Vec<HostPort> {
    // Init containers that are not restarted always have no ports of the node, as in Kubernetes.
    let sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let init = spec.init_containers.iter().flatten().filter(sidecar);
    let ports = spec.containers.iter().chain(init).flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(host_port).collect()
}

fn host_port(port: &ContainerPort) -> Option<HostPort> {
    let number = |number: i32| u16::try_from(number).ok().filter(|number| *number != 0);
    let address = match port.host_ip.as_deref().unwrap_or_default() {
        "" | "0.0.0.0" | "::" => None,
        text => Some(address(text)?),
    };
    let protocol = match port.protocol.as_deref().unwrap_or("TCP") {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        _ => return None,
    };
    Some(HostPort {
        address,
        number: number(port.host_port?)?,
        container: number(port.container_port)?,
        protocol,
    })
}

fn addresses(status: &PodStatus) -> Vec<IpAddr> {
    if status.phase.as_deref().is_some_and(pods::is_final) {
        return Vec::new();
    }
    let several = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let one = status.pod_ip.as_deref().filter(|_| status.pod_ips.as_ref().is_none_or(Vec::is_empty));
    several.chain(one).filter_map(address).collect()
}

/// The precedence of pods: after all Services.
pub(crate) const RANK: Rank = Rank(i64::MAX);

/// Returns the name of a pod's tables, which no Service can have.
pub(crate) fn name_of(pod: &ObjectKey) -> String {
    format!("{pod}:hostports")
}

/// Returns the tables of a pod on a node with these interfaces.
pub(crate) fn compile(pod: &HostPod, links: &[Link]) -> ServiceTables {
    let is_ours = |address: &IpAddr| {
        address.is_loopback()
            || links.iter().flat_map(|link| &link.addresses).any(|own| own.address == *address)
    };
    let mut frontends = Vec::new();
    for port in &pod.ports {
        if port.address.as_ref().is_some_and(|address| !is_ours(address)) {
            continue;
        }
        for backend in &pod.addresses {
            // The port is served on loopback addresses, too, unlike node ports.
            let all = match backend {
                IpAddr::V4(_) => [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::LOCALHOST)],
                IpAddr::V6(_) => [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::LOCALHOST)],
            };
            let addresses = port.address.map_or_else(|| all.to_vec(), |address| vec![address]);
            let scopes = [Scope::Internal, Scope::External];
            for address in addresses.into_iter().filter(|address| address.is_ipv4() == backend.is_ipv4()) {
                frontends.extend(scopes.map(|scope| {
                    let key = FrontendKey { address, port: port.number, protocol: port.protocol, scope };
                    Frontend::new(key, vec![Backend::new(*backend, port.container, true)])
                }));
            }
        }
    }
    frontends.sort_by_key(|frontend| frontend.key);
    frontends.dedup_by_key(|frontend| frontend.key);
    ServiceTables { frontends, ..ServiceTables::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::compile::Desired;
    use crate::links::LinkAddress;

    fn pod(spec: &Value, phase: &str) -> HostPod {
        let object = json!({
            "metadata": {"namespace": "shop", "name": "web", "resourceVersion": "7"},
            "spec": spec,
            "status": {"phase": phase, "podIP": "10.1.0.5", "podIPs": [{"ip": "10.1.0.5"}, {"ip": "fd00::5"}]},
        });
        HostPod::project(serde_json::from_value(object).unwrap())
    }

    fn with_ports(ports: &Value) -> HostPod {
        pod(&json!({"containers": [{"name": "a", "ports": ports}]}), "Running")
    }

    fn node() -> Vec<Link> {
        let address = LinkAddress { address: "192.0.2.1".parse().unwrap(), global: true };
        vec![Link { name: "eth0".to_owned(), index: 2, addresses: vec![address], ..Link::default() }]
    }

    /// Returns `ADDRESS:PORT PROTOCOL > BACKEND` of each frontend for traffic from outside, and checks that the
    /// others are equal.
    fn shown(pod: &HostPod) -> Vec<String> {
        let frontends = compile(pod, &node()).frontends;
        let (inside, outside): (Vec<_>, Vec<_>) =
            frontends.iter().partition(|frontend| frontend.key.scope == Scope::Internal);
        let text = |frontend: &&Frontend| {
            let (key, backend) = (&frontend.key, &frontend.backends[0]);
            assert!(backend.local && frontend.backends.len() == 1);
            format!("{}:{} {:?} > {}:{}", key.address, key.port, key.protocol, backend.address, backend.port)
        };
        let outside: Vec<String> = outside.iter().map(text).collect();
        assert_eq!(inside.iter().map(text).collect::<Vec<_>>(), outside);
        outside
    }

    #[test]
    fn host_ports_lead_to_the_pods_address_of_the_same_family() {
        let pod = with_ports(&json!([
            {"containerPort": 80, "hostPort": 8080},
            {"containerPort": 53, "hostPort": 5353, "protocol": "UDP", "hostIP": "192.0.2.1"},
            {"containerPort": 54, "hostPort": 5354, "protocol": "SCTP", "hostIP": "127.0.0.1"},
            {"containerPort": 90},
        ]));
        assert_eq!(
            shown(&pod),
            [
                "0.0.0.0:8080 Tcp > 10.1.0.5:80",
                "127.0.0.1:5354 Sctp > 10.1.0.5:54",
                "127.0.0.1:8080 Tcp > 10.1.0.5:80",
                "192.0.2.1:5353 Udp > 10.1.0.5:53",
                ":::8080 Tcp > fd00::5:80",
                "::1:8080 Tcp > fd00::5:80",
            ]
        );
    }

    #[test]
    fn addresses_that_are_not_the_nodes_are_left_out() {
        for address in ["198.51.100.7", "10.96.0.1", "no address", "fe80::1"] {
            let pod = with_ports(&json!([{"containerPort": 80, "hostPort": 8080, "hostIP": address}]));
            assert_eq!(shown(&pod), [""; 0], "{address}");
        }
    }

    #[test]
    fn pods_that_ended_or_use_the_nodes_network_have_no_host_ports() {
        let containers = json!([{"name": "a", "ports": [{"containerPort": 80, "hostPort": 80}]}]);
        assert_eq!(shown(&pod(&json!({"containers": containers}), "Succeeded")), [""; 0]);
        assert_eq!(shown(&pod(&json!({"containers": containers, "hostNetwork": true}), "Running")), [""; 0]);
        assert_eq!(shown(&pod(&json!({"containers": containers}), "Pending")).len(), 4);
    }

    #[test]
    fn services_win_over_pods_on_the_same_address_and_port() {
        let pod = compile(&with_ports(&json!([{"containerPort": 80, "hostPort": 30_080}])), &node());
        let mut desired = Desired::default();
        let name = name_of(&ObjectKey::new("shop", "web"));
        desired.set(&name, RANK, Some(pod.clone()));
        assert_eq!(desired.effective(&name), Some(pod.clone()));
        desired.set("shop/a-service", Rank(i64::MAX - 1), Some(pod.clone()));
        assert_eq!(desired.effective(&name), None);
        assert_eq!(desired.effective("shop/a-service"), Some(pod));
    }

    #[test]
    fn sidecars_have_host_ports_and_other_init_containers_do_not() {
        let init = |policy: Value| {
            let ports = json!([{"containerPort": 80, "hostPort": 80}]);
            json!({"containers": [{"name": "a"}],
                "initContainers": [{"name": "i", "ports": ports, "restartPolicy": policy}]})
        };
        assert_eq!(shown(&pod(&init(json!("Always")), "Running")).len(), 4);
        assert_eq!(shown(&pod(&init(Value::Null), "Running")), [""; 0]);
    }
}
