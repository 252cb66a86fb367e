//! Computes the endpoints that a Service should have: its pods, grouped by address family and resolved ports.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointHints, ForNode, ForZone};

use crate::meta::{is_deleted, name, uid};
use crate::pods::{Pod, endpoint_addresses};
use crate::ports::{ResolvedPort, resolve};

const ZONE: &str = "topology.kubernetes.io/zone";

/// Address family of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    /// Returns the name used in `addressType` and `ipFamilies`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Ipv4, Self::Ipv6].into_iter().find(|family| family.as_str() == text)
    }

    fn has(self, address: &str) -> bool {
        match address.parse() {
            Ok(IpAddr::V4(_)) => self == Self::Ipv4,
            Ok(IpAddr::V6(_)) => self == Self::Ipv6,
            Err(_) => false,
        }
    }
}

/// Properties shared by all endpoints of a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    pub family: Family,
    pub ports: Vec<ResolvedPort>,
}

/// Endpoints of each group, by the uid of their pod.
pub(super) type Desired = BTreeMap<Group, BTreeMap<String, Endpoint>>;

/// Returns the endpoints for `pods`, which the Service selects. `node` looks up a node by name.
pub(super) fn desired(
    service: &Service,
    pods: &[Arc<Pod>],
    node: &dyn Fn(&str) -> Option<Arc<Node>>,
) -> Desired {
    let families = families(service);
    let mut desired = Desired::new();
    for pod in pods.iter().filter(|pod| !pod.is_finished()) {
        let mut ports = resolve(service, pod);
        ports.sort();
        for family in &families {
            if let Some(endpoint) = endpoint(service, pod, *family, node) {
                let group = Group { family: *family, ports: ports.clone() };
                let uid = uid(&pod.metadata).to_owned();
                desired.entry(group).or_default().insert(uid, endpoint);
            }
        }
    }
    desired
}

/// Returns the families that a Service uses. If they are not set (no cluster address), they follow from its
/// addresses, or default to IPv4.
pub(super) fn families(service: &Service) -> Vec<Family> {
    let spec = service.spec.clone().unwrap_or_default();
    let mut families: Vec<Family> =
        spec.ip_families.iter().flatten().filter_map(|text| Family::parse(text)).collect();
    if families.is_empty() {
        let addresses = spec.cluster_ips.unwrap_or_default();
        let all = [Family::Ipv4, Family::Ipv6];
        families.extend(all.into_iter().filter(|family| addresses.iter().any(|a| family.has(a))));
    }
    if families.is_empty() {
        families.push(Family::Ipv4);
    }
    families
}

fn endpoint(
    service: &Service,
    pod: &Pod,
    family: Family,
    node: &dyn Fn(&str) -> Option<Arc<Node>>,
) -> Option<Endpoint> {
    let address = endpoint_addresses(pod).find(|address| family.has(address))?.to_owned();
    let publish = service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses) == Some(true);
    let serving = pod.is_ready();
    let terminating = is_deleted(&pod.metadata);
    let hostname = pod.hostname().filter(|hostname| {
        let subdomain = pod.spec().subdomain.as_deref().unwrap_or_default();
        !hostname.is_empty() && subdomain == name(&service.metadata)
    });
    let node_name = Some(pod.node_name().to_owned()).filter(|name| !name.is_empty());
    let zone = node_name
        .as_deref()
        .and_then(node)
        .and_then(|node| node.metadata.labels.as_ref()?.get(ZONE).cloned());
    let ready = publish || (serving && !terminating);
    Some(Endpoint {
        addresses: vec![address],
        hints: hints(service, ready, node_name.as_deref(), zone.as_deref()),
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname.map(str::to_owned),
        node_name,
        zone,
        target_ref: Some(pod.target_reference()),
        ..Endpoint::default()
    })
}

/// Returns the zone and node hints of an endpoint if the Service prefers close endpoints. An endpoint that is
/// not ready gets none.
fn hints(service: &Service, ready: bool, node: Option<&str>, zone: Option<&str>) -> Option<EndpointHints> {
    let preference = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    if !ready {
        return None;
    }
    let for_zones = || zone.map(|zone| vec![ForZone { name: zone.to_owned() }]);
    let hints = match preference {
        "PreferClose" | "PreferSameZone" => EndpointHints { for_zones: for_zones(), for_nodes: None },
        "PreferSameNode" => EndpointHints {
            for_zones: for_zones(),
            for_nodes: node.map(|node| vec![ForNode { name: node.to_owned() }]),
        },
        _ => return None,
    };
    (hints.for_zones.is_some() || hints.for_nodes.is_some()).then_some(hints)
}
