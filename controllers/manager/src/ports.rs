//! Resolution of Service ports on pods, since a named target port may have a different number on each pod.

use crate::pods::Pod;
use k8s_openapi::api::core::v1::{Container, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A port of a Service on a particular pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResolvedPort {
    pub name: String,
    pub number: i32,
    pub protocol: String,
    pub app_protocol: Option<String>,
}

/// Returns the Service's ports on this pod. A named port that the pod does not have is left out.
pub(crate) fn resolve(service: &Service, pod: &Pod) -> Vec<ResolvedPort> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    ports
        .iter()
        .filter_map(|port| {
            Some(ResolvedPort {
                name: port.name.clone().unwrap_or_default(),
                number: number(port, pod)?,
                protocol: protocol(port.protocol.as_deref()).to_owned(),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

fn protocol(protocol: Option<&str>) -> &str {
    protocol.filter(|text| !text.is_empty()).unwrap_or("TCP")
}

fn number(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target_port {
        None | Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => named(name, protocol(port.protocol.as_deref()), pod),
    }
}

/// Returns the port with that name and protocol in a container or sidecar.
fn named(name: &str, wanted: &str, pod: &Pod) -> Option<i32> {
    let spec = pod.spec();
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    spec.containers.iter().chain(sidecars).find_map(|container: &Container| {
        let ports = container.ports.as_deref().unwrap_or_default();
        let found = ports.iter().find(|port| {
            port.name.as_deref() == Some(name) && protocol(port.protocol.as_deref()) == wanted
        })?;
        Some(found.container_port)
    })
}
