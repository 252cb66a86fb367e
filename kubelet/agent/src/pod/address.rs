//! The addresses at which a pod is reached: a pure decision on what is known of it.

use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Pod;

/// Reads the addresses that a runtime or the node has as text.
pub fn read(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| text.parse().ok()).map(|ip: IpAddr| ip.to_canonical()).collect()
}

/// Returns `true` if a running pod whose sandbox has the addresses `ips` is at `address`. A pod with an address of its own
/// has all ports of it. One in the network of the host has those that it declares, at the addresses of the node: the
/// other ports there are not the pod's, but SSH's and those of everything else on the machine.
pub fn is_at(pod: &Pod, ips: &[IpAddr], host_ips: &[IpAddr], address: SocketAddr) -> bool {
    let of_the_host = host_ips.contains(&address.ip());
    if super::host_network(pod) {
        of_the_host && declares(pod, address.port())
    } else {
        !of_the_host && ips.contains(&address.ip())
    }
}

/// Returns the first address of a sandbox that is in none of the ranges; `None` as long as no range is known.
pub fn outside(ips: &[IpAddr], ranges: &[IpNetwork]) -> Option<IpAddr> {
    let is_lost = |ip: &&IpAddr| !ranges.iter().any(|range| range.contains(**ip));
    ips.iter().find(is_lost).copied().filter(|_| !ranges.is_empty())
}

/// Returns `true` if a container that may run declares this TCP port.
fn declares(pod: &Pod, port: u16) -> bool {
    let sidecars = super::init_containers(pod).map(|(_, container)| container);
    let mut ports = super::spec(pod)
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|container| container.ports.iter().flatten());
    ports.any(|declared| {
        declared.container_port == i32::from(port) && declared.protocol.as_deref().unwrap_or("TCP") == "TCP"
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(host_network: bool) -> Pod {
        serde_json::from_value(json!({"spec": {
            "hostNetwork": host_network,
            "initContainers": [{"name": "side", "restartPolicy": "Always", "ports": [{"containerPort": 9901}]}],
            "containers": [{"name": "c", "ports": [
                {"containerPort": 8443, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"},
            ]}],
        }}))
        .unwrap()
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn address_is_lost_if_no_known_range_has_it() {
        let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        let both = ["10.244.1.0/24", "fd00:1::/64"];
        for (own, known, lost) in [
            (&["10.244.1.5", "fd00:1::5"][..], &both[..], None),
            (&["10.244.1.5", "fd00:2::5"], &both, Some("fd00:2::5")),
            (&["10.244.2.5"], &both, Some("10.244.2.5")),
            // A family that the node has no range of any more.
            (&["10.244.1.5", "fd00:1::5"], &both[..1], Some("fd00:1::5")),
            (&["10.244.2.5"], &[], None),
            (&[], &both, None),
        ] {
            let found = outside(&ips(own), &ranges(known)).map(|ip| ip.to_string());
            assert_eq!(found.as_deref(), lost, "{own:?} {known:?}");
        }
    }

    fn allowed(host_network: bool, own: &[&str], address: &str) -> bool {
        let host = ips(&["192.0.2.9", "2001:db8::9"]);
        is_at(&pod(host_network), &ips(own), &host, address.parse().unwrap())
    }

    #[test]
    fn pod_with_an_address_of_its_own_is_at_every_port_of_it_and_nowhere_else() {
        let own = ["10.244.1.5", "fd00:244:1::5"];
        for address in ["10.244.1.5:8443", "10.244.1.5:1", "[fd00:244:1::5]:80"] {
            assert!(allowed(false, &own, address), "{address}");
        }
        for address in [
            "10.244.1.6:8443",
            "10.244.2.5:8443",
            "192.0.2.9:8443",
            "192.0.2.8:8443",
            "127.0.0.1:8443",
            "169.254.169.254:80",
            "[fd00:244:1::6]:80",
        ] {
            assert!(!allowed(false, &own, address), "{address}");
        }
        assert!(!allowed(false, &[], "10.244.1.5:8443"), "without an address");
    }

    #[test]
    fn pod_in_the_network_of_the_host_is_at_its_declared_tcp_ports_of_the_node() {
        for address in ["192.0.2.9:8443", "[2001:db8::9]:8443", "192.0.2.9:9901"] {
            assert!(allowed(true, &[], address), "{address}");
        }
        for address in [
            "192.0.2.9:22",
            "192.0.2.9:53",
            "192.0.2.9:10250",
            "192.0.2.8:8443",
            "127.0.0.1:8443",
            "10.244.1.5:8443",
        ] {
            assert!(!allowed(true, &["10.244.1.5"], address), "{address}");
        }
    }

    #[test]
    fn sandbox_that_claims_the_address_of_the_node_opens_none_of_its_ports() {
        assert!(!allowed(false, &["192.0.2.9"], "192.0.2.9:22"));
        assert!(!allowed(false, &["192.0.2.9"], "192.0.2.9:8443"));
    }
}
