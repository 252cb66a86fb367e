//! Health checks of Services: load balancers ask a node, on the Service's health check node port, whether it
//! has endpoints.

use std::collections::BTreeSet;
use std::net::IpAddr;

use apiserver_client::ObjectKey;
use k8s_openapi::api::core::v1::Service;

use super::address::Family;
use super::{Context, ToSlice, endpoints, is_ours};

/// The answer of the health check node port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub service: ObjectKey,
    /// The port that load balancers ask; not 0.
    pub port: u16,
    /// Ready endpoints on this node; one with several ports or families counts once. A node without any must
    /// not receive traffic.
    pub local_endpoints: usize,
}

/// Returns the health check of a Service that has one: a load balancer with `externalTrafficPolicy: Local`.
/// Draining endpoints do not count, so that load balancers send them no new traffic, though they still serve
/// what arrives. `slices` are those of the Service, in any order.
pub fn health_check<'a, S: ToSlice + 'a>(
    service: &Service,
    slices: impl IntoIterator<Item = &'a S>,
    context: &Context,
) -> Option<HealthCheck> {
    let spec = service.spec.as_ref().filter(|_| is_ours(service))?;
    let wanted = spec.type_.as_deref() == Some("LoadBalancer")
        && spec.external_traffic_policy.as_deref() == Some("Local");
    let port = u16::try_from(spec.health_check_node_port?).ok().filter(|port| wanted && *port != 0)?;
    let mut local: BTreeSet<IpAddr> = BTreeSet::new();
    for slice in slices {
        local.extend(endpoints::local_ready(&slice.to_slice(), &context.node));
    }
    // Pods of two families have an address in each.
    let of_family = |family| local.iter().filter(|address| Family::of(**address) == family).count();
    let local_endpoints = Family::BOTH.map(of_family).into_iter().max().unwrap_or_default();
    Some(HealthCheck { service: ObjectKey::of(service), port, local_endpoints })
}
