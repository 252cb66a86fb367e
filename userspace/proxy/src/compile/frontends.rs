//! Where a Service listens, and for whom.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use userspace_dataplane::tables::{Frontend, FrontendKey, Protocol, Scope};

use super::Context;
use super::endpoints::{Endpoints, Policy, protocol};

/// Kubernetes' default for `clientIP.timeoutSeconds`.
const AFFINITY_SECONDS: u32 = 10_800;

/// An address and port on which the Service answers in one scope.
struct Listen {
    address: IpAddr,
    port: u16,
    scope: Scope,
    policy: Policy,
}

/// All frontends of a Service, in the order of their keys.
pub(super) fn all(service: &Service, endpoints: &Endpoints, context: &Context) -> Vec<Frontend> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let cluster_ips = cluster_ips(spec);
    if cluster_ips.is_empty() {
        return Vec::new();
    }
    let affinity_seconds = affinity(spec);
    let mut frontends = BTreeMap::new();
    for port in spec.ports.iter().flatten() {
        let Some((number, protocol)) = valid(port) else { continue };
        let name = port.name.as_deref().unwrap_or_default();
        for listen in listens(service, spec, port, number, &cluster_ips, context) {
            let key =
                FrontendKey { address: listen.address, port: listen.port, protocol, scope: listen.scope };
            let picked = endpoints.pick(name, protocol, listen.address.is_ipv4(), listen.policy);
            let frontend = Frontend {
                key,
                drop_when_empty: listen.policy == Policy::Local && picked.any_in_cluster,
                backends: picked.backends,
                affinity_seconds,
            };
            frontends.entry(key).or_insert(frontend);
        }
    }
    frontends.into_values().collect()
}

fn listens(
    service: &Service,
    spec: &ServiceSpec,
    port: &ServicePort,
    number: u16,
    cluster_ips: &[IpAddr],
    context: &Context,
) -> Vec<Listen> {
    let internal = policy(spec.internal_traffic_policy.as_deref());
    let external = policy(spec.external_traffic_policy.as_deref());
    // Traffic of this node to an external address is short-cut: whatever would come back through
    // a load balancer may go to any endpoint, so the policy Local does not bind it.
    let both = |address, port| {
        [
            Listen { address, port, scope: Scope::Internal, policy: Policy::Cluster },
            Listen { address, port, scope: Scope::External, policy: external },
        ]
    };
    let mut listens: Vec<_> = cluster_ips
        .iter()
        .map(|&address| Listen { address, port: number, scope: Scope::Internal, policy: internal })
        .collect();
    if let Some(node_port) = node_port(spec, port) {
        listens.extend(unspecified(cluster_ips).into_iter().flat_map(|address| both(address, node_port)));
    }
    if context.external_ips {
        let addresses = spec.external_ips.iter().flatten().filter_map(|ip| parse(ip));
        listens.extend(addresses.flat_map(|address| both(address, number)));
    }
    let limited = is_limited(spec);
    for address in load_balancer_ips(service, spec) {
        // The tables know no source ranges yet: closed to the outside is better than open to all.
        listens
            .extend(both(address, number).into_iter().filter(|one| one.scope == Scope::Internal || !limited));
    }
    listens
}

fn valid(port: &ServicePort) -> Option<(u16, Protocol)> {
    let number = u16::try_from(port.port).ok().filter(|number| *number != 0)?;
    Some((number, protocol(port.protocol.as_deref())?))
}

fn parse(ip: &str) -> Option<IpAddr> {
    ip.parse().ok().filter(|address: &IpAddr| !address.is_unspecified())
}

/// `clusterIPs`, or the one `clusterIP` of an object that predates them. Empty when headless.
fn cluster_ips(spec: &ServiceSpec) -> Vec<IpAddr> {
    let several = spec.cluster_ips.as_deref().unwrap_or_default();
    let all = if several.is_empty() { spec.cluster_ip.as_slice() } else { several };
    let addresses: BTreeSet<_> = all.iter().filter_map(|ip| parse(ip)).collect();
    addresses.into_iter().collect()
}

/// One unspecified address for each family that the Service has: where node ports listen.
fn unspecified(cluster_ips: &[IpAddr]) -> BTreeSet<IpAddr> {
    cluster_ips
        .iter()
        .map(|ip| match ip {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        })
        .collect()
}

fn node_port(spec: &ServiceSpec, port: &ServicePort) -> Option<u16> {
    let has_node_ports = matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"));
    port.node_port
        .filter(|_| has_node_ports)
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
}

/// The addresses that a load balancer hands through to the node unchanged (`ipMode: VIP`).
fn load_balancer_ips(service: &Service, spec: &ServiceSpec) -> Vec<IpAddr> {
    if spec.type_.as_deref() != Some("LoadBalancer") {
        return Vec::new();
    }
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
    ingress
        .iter()
        .filter(|ingress| ingress.ip_mode.as_deref().unwrap_or("VIP") == "VIP")
        .filter_map(|ingress| parse(ingress.ip.as_deref()?))
        .collect()
}

/// Whether the Service names source ranges that are less than everything.
fn is_limited(spec: &ServiceSpec) -> bool {
    let ranges = spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
    !ranges.is_empty() && !ranges.iter().any(|range| matches!(range.trim(), "0.0.0.0/0" | "::/0"))
}

fn policy(name: Option<&str>) -> Policy {
    if name == Some("Local") { Policy::Local } else { Policy::Cluster }
}

fn affinity(spec: &ServiceSpec) -> u32 {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return 0;
    }
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = config.and_then(|client_ip| client_ip.timeout_seconds);
    seconds
        .and_then(|seconds| u32::try_from(seconds).ok())
        .filter(|seconds| *seconds != 0)
        .unwrap_or(AFFINITY_SECONDS)
}
