//! The part of a Service that the proxy retains: the fields that tables follow from, as text. The whole
//! object takes ten times the memory, mostly for fields that are not set.

use std::num::NonZeroU64;

use apiserver_client::Projection;
use k8s_openapi::api::core::v1::{LoadBalancerStatus, Service, ServicePort, ServiceSpec, ServiceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{ADDRESS_ASSIGNED, HEADLESS_LABEL, PROXY_NAME_LABEL, choices, ranges};

/// A Service, as far as tables and warnings depend on it.
#[derive(Clone, Debug)]
pub struct ServiceProjection {
    version: Option<NonZeroU64>,
    /// Namespace, name, and the [`Fields`] as JSON, a line each.
    text: Box<str>,
}

type Fields = (ObjectMeta, Option<ServiceSpec>, Option<ServiceStatus>);

impl ServiceProjection {
    /// Returns the Service, without the fields that nothing is compiled from.
    pub fn read(&self) -> Service {
        let [namespace, name, fields] = self.lines();
        let (mut metadata, spec, status): Fields =
            serde_json::from_str(fields).expect("it was written by this process");
        metadata.namespace = (!namespace.is_empty()).then(|| namespace.to_owned());
        metadata.name = Some(name.to_owned());
        Service { metadata, spec, status }
    }

    /// Returns `true` if the Service may have an address of ours: a quick look that does not read all of it.
    pub(crate) fn has_own_address(&self) -> bool {
        self.text.contains(ADDRESS_ASSIGNED)
    }

    fn lines(&self) -> [&str; 3] {
        let mut lines = self.text.splitn(3, '\n');
        std::array::from_fn(|_| lines.next().unwrap_or_default())
    }
}

impl Projection for ServiceProjection {
    type Object = Service;

    fn project(object: Service) -> Self {
        // An Event has to name its object in full.
        let named = || super::has_own_address(&object) || !choices::warnings(&object).is_empty();
        let uid = object.metadata.uid.clone().filter(|_| named());
        let Service { mut metadata, spec, status } = object;
        let version = metadata.resource_version.take().and_then(|version| version.parse().ok());
        let (namespace, name) = (metadata.namespace.take(), metadata.name.take());
        let fields: Fields =
            (trimmed_metadata(metadata, uid), spec.map(trimmed_spec), status.map(trimmed_status));
        let fields = serde_json::to_string(&fields).expect("objects of the API can be written as JSON");
        let text = [namespace.unwrap_or_default(), name.unwrap_or_default(), fields].join("\n");
        Self { version, text: text.into_boxed_str() }
    }

    fn names(&self) -> (&str, &str) {
        let [namespace, name, _] = self.lines();
        (namespace, name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version
    }
}

fn trimmed_metadata(metadata: ObjectMeta, uid: Option<String>) -> ObjectMeta {
    let mut labels = metadata.labels.unwrap_or_default();
    labels.retain(|label, _| [PROXY_NAME_LABEL, HEADLESS_LABEL].contains(&label.as_str()));
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.retain(|name, _| choices::is_read(name) || name == ranges::ANNOTATION);
    ObjectMeta {
        labels: (!labels.is_empty()).then_some(labels),
        annotations: (!annotations.is_empty()).then_some(annotations),
        creation_timestamp: metadata.creation_timestamp,
        uid,
        ..ObjectMeta::default()
    }
}

fn trimmed_spec(spec: ServiceSpec) -> ServiceSpec {
    let port = |port: ServicePort| ServicePort {
        name: port.name,
        node_port: port.node_port,
        port: port.port,
        protocol: port.protocol.filter(|protocol| protocol != "TCP"),
        ..ServicePort::default()
    };
    let local = |policy: &String| policy == "Local";
    let affinity = spec.session_affinity.filter(|affinity| affinity == "ClientIP");
    ServiceSpec {
        cluster_ip: spec.cluster_ip.filter(|_| spec.cluster_ips.as_ref().is_none_or(Vec::is_empty)),
        cluster_ips: spec.cluster_ips,
        external_ips: spec.external_ips,
        external_traffic_policy: spec.external_traffic_policy.filter(local),
        health_check_node_port: spec.health_check_node_port,
        internal_traffic_policy: spec.internal_traffic_policy.filter(local),
        load_balancer_source_ranges: spec.load_balancer_source_ranges,
        ports: spec.ports.map(|ports| ports.into_iter().map(port).collect()),
        session_affinity_config: spec.session_affinity_config.filter(|_| affinity.is_some()),
        session_affinity: affinity,
        type_: spec.type_.filter(|type_| type_ != "ClusterIP"),
        ..ServiceSpec::default()
    }
}

fn trimmed_status(status: ServiceStatus) -> ServiceStatus {
    let ingress = status.load_balancer.and_then(|balancer| balancer.ingress);
    let load_balancer = ingress.filter(|ingress| !ingress.is_empty());
    let load_balancer = load_balancer.map(|ingress| LoadBalancerStatus { ingress: Some(ingress) });
    let mut conditions = status.conditions.unwrap_or_default();
    conditions.retain(|condition| condition.type_ == ADDRESS_ASSIGNED);
    ServiceStatus { load_balancer, conditions: (!conditions.is_empty()).then_some(conditions) }
}
