//! The frontends of a Service, and their policies.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use userspace_dataplane::tables::{
    Algorithm, Forwarding, Frontend, FrontendKey, Protocol, Scope, ServiceTables,
};

use super::Context;
use super::address::{Family, address};
use super::choices::Choices;
use super::endpoints::{Endpoints, Picked, Policy, protocol};
use super::ranges::SourceRanges;

/// The default of `clientIP.timeoutSeconds` in Kubernetes.
const AFFINITY_SECONDS: u32 = 10_800;

/// The kind of an address at which a Service can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ClusterIp,
    NodePort,
    ExternalIp,
    LoadBalancer,
}

/// The settings that all frontends of a Service share.
struct Plan<'a> {
    spec: &'a ServiceSpec,
    choices: &'a Choices,
    context: &'a Context,
    endpoints: &'a Endpoints<'a>,
    ranges: &'a SourceRanges,
    cluster_ips: Vec<IpAddr>,
    external_ips: Vec<IpAddr>,
    balancer: Vec<IpAddr>,
    internal: Policy,
    external: Policy,
    affinity_seconds: u32,
}

/// Returns the tables of a Service.
pub(super) fn all(
    service: &Service,
    endpoints: &Endpoints<'_>,
    choices: &Choices,
    context: &Context,
) -> ServiceTables {
    let Some(spec) = &service.spec else { return ServiceTables::default() };
    let cluster_ips = cluster_ips(spec);
    if cluster_ips.is_empty() {
        return ServiceTables::default();
    }
    let external_ips = spec.external_ips.iter().flatten().filter(|_| context.external_ips);
    let external_ips = external_ips.filter_map(|ip| address(ip)).collect();
    let balancer = served_balancer_ips(service, spec);
    let ranges = SourceRanges::of(service, &balancer, &context.node);
    let plan = Plan {
        spec,
        choices,
        context,
        endpoints,
        ranges: &ranges,
        external_ips,
        balancer,
        internal: policy(spec.internal_traffic_policy.as_deref()),
        external: policy(spec.external_traffic_policy.as_deref()),
        affinity_seconds: affinity(spec),
        cluster_ips,
    };
    let frontends = plan.frontends();
    ServiceTables { frontends, source_ranges: ranges.into_sorted() }
}

impl Plan<'_> {
    /// Returns the frontends, sorted by key and without duplicates.
    fn frontends(&self) -> Vec<Frontend> {
        let mut frontends: Vec<_> = self.cluster_ips.iter().map(|ip| Frontend::mark(*ip)).collect();
        for port in self.spec.ports.iter().flatten() {
            if let Some((number, protocol)) = valid(port) {
                self.listen(&mut frontends, port, number, protocol);
            }
        }
        frontends.sort_by_key(|frontend| frontend.key);
        frontends.dedup_by(|later, first| {
            let same = later.key == first.key;
            // An external address may also be the load balancer's; the stricter rule applies.
            first.limited |= same && later.limited;
            same
        });
        frontends
    }

    fn listen(&self, frontends: &mut Vec<Frontend>, port: &ServicePort, number: u16, protocol: Protocol) {
        let name = port.name.as_deref().unwrap_or_default();
        for family in Family::BOTH {
            let here = |ips: &[IpAddr]| -> Vec<IpAddr> {
                ips.iter().copied().filter(|ip| Family::of(*ip) == family).collect()
            };
            let cluster_ips = here(&self.cluster_ips);
            // Without a cluster IP of the family there is no node port of it either: such packets pass to the host.
            if cluster_ips.is_empty() {
                continue;
            }
            let pick = |policy| self.endpoints.pick(name, protocol, family, policy);
            let cluster = pick(Policy::Cluster);
            let local = [self.internal, self.external].contains(&Policy::Local).then(|| pick(Policy::Local));
            let mut add = |kind: Kind, address: IpAddr, port: u16| {
                for scope in [Scope::Internal, Scope::External] {
                    let key = FrontendKey { address, port, protocol, scope };
                    let policy = self.policy(kind, scope);
                    let picked = match (policy, &local) {
                        (Policy::Local, Some(local)) => local,
                        _ => &cluster,
                    };
                    frontends.push(self.frontend(key, kind, policy, picked));
                }
            };
            cluster_ips.iter().for_each(|ip| add(Kind::ClusterIp, *ip, number));
            if let Some(node_port) = node_port(self.spec, port) {
                add(Kind::NodePort, family.unspecified(), node_port);
            }
            here(&self.external_ips).iter().for_each(|ip| add(Kind::ExternalIp, *ip, number));
            here(&self.balancer).iter().for_each(|ip| add(Kind::LoadBalancer, *ip, number));
        }
    }

    /// Returns the policy of a frontend. Cluster addresses of a Service follow its internal policy, wherever
    /// a packet for them comes from. Traffic of this node to an external address takes a short cut: it could
    /// come back through a load balancer and go to any endpoint, so Local does not restrict it.
    fn policy(&self, kind: Kind, scope: Scope) -> Policy {
        match (kind, scope) {
            (Kind::ClusterIp, _) => self.internal,
            (_, Scope::Internal) => Policy::Cluster,
            (_, Scope::External) => self.external,
        }
    }

    fn frontend(&self, key: FrontendKey, kind: Kind, policy: Policy, picked: &Picked) -> Frontend {
        let masquerade = kind == Kind::ClusterIp && self.context.masquerade_all;
        // Nodes have to agree where a router in front of them may switch from one to another, which is on
        // external addresses. A cluster address is reached through one node.
        let by_scope = match (kind, key.scope) {
            (Kind::ClusterIp, _) | (_, Scope::Internal) => Algorithm::Random,
            (_, Scope::External) => Algorithm::Consistent,
        };
        // Replies to the node's address come back to this node: the backend's node cannot send them.
        let direct = key.scope == Scope::External && !masquerade;
        Frontend {
            affinity_seconds: self.affinity_seconds,
            drop_when_empty: policy == Policy::Local && picked.any_in_cluster,
            algorithm: self.choices.algorithm.unwrap_or(by_scope),
            forwarding: if direct { self.choices.forwarding } else { Forwarding::Nat },
            masquerade,
            limited: kind == Kind::LoadBalancer && self.ranges.limits(Family::of(key.address)),
            ..Frontend::new(key, picked.backends.clone())
        }
    }
}

fn valid(port: &ServicePort) -> Option<(u16, Protocol)> {
    let number = u16::try_from(port.port).ok().filter(|number| *number != 0)?;
    Some((number, protocol(port.protocol.as_deref())?))
}

/// Returns `clusterIPs`, or the one `clusterIP` of an object that predates them. Empty when headless.
fn cluster_ips(spec: &ServiceSpec) -> Vec<IpAddr> {
    let several = spec.cluster_ips.as_deref().unwrap_or_default();
    let all = if several.is_empty() { spec.cluster_ip.as_slice() } else { several };
    let addresses: BTreeSet<_> = all.iter().filter_map(|ip| address(ip)).collect();
    addresses.into_iter().collect()
}

fn node_port(spec: &ServiceSpec, port: &ServicePort) -> Option<u16> {
    let has_node_ports = matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"));
    port.node_port
        .filter(|_| has_node_ports)
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
}

/// Returns the addresses of the load balancer at which the Service is served: without a cluster address of a
/// family it is not served in that family at all.
pub(super) fn served_balancer_ips(service: &Service, spec: &ServiceSpec) -> Vec<IpAddr> {
    let cluster_ips = cluster_ips(spec);
    let served = |address: &IpAddr| cluster_ips.iter().any(|own| Family::of(*own) == Family::of(*address));
    load_balancer_ips(service, spec).filter(served).collect()
}

/// Returns the addresses that a load balancer passes to the node unchanged (`ipMode: VIP`).
fn load_balancer_ips(service: &Service, spec: &ServiceSpec) -> impl Iterator<Item = IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let status = status.filter(|_| spec.type_.as_deref() == Some("LoadBalancer"));
    let ingress = status.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
    ingress
        .iter()
        .filter(|ingress| ingress.ip_mode.as_deref().unwrap_or("VIP") == "VIP")
        .filter_map(|ingress| address(ingress.ip.as_deref()?))
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
