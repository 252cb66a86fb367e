//! The parts of Services and EndpointSlices that records follow from: a small part of the objects' memory.

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use apiserver_client::{ObjectKey, Projection};
use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use k8s_openapi::api::discovery::v1::{self as discovery, EndpointSlice};

use crate::name::Name;

/// The label that names the Service of an EndpointSlice.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label that names the writer of an EndpointSlice, and its value for the controller of Services with a selector.
const MANAGED_BY: (&str, &str) =
    ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io");
/// The annotation with the time of the change of a pod or Service that changed the slice.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// A protocol, as the label of an SRV record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    fn of(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }

    /// Returns the protocol of a label such as `_tcp`.
    pub fn of_label(label: &[u8]) -> Option<Self> {
        match label {
            b"_tcp" => Some(Self::Tcp),
            b"_udp" => Some(Self::Udp),
            b"_sctp" => Some(Self::Sctp),
            _ => None,
        }
    }
}

/// A port of a Service or of a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// Empty if the port has no name.
    pub name: Box<str>,
    pub protocol: Protocol,
    pub number: u16,
}

/// The way in which a Service is resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// By its own addresses.
    Addresses(Box<[IpAddr]>),
    /// By the addresses of its endpoints.
    Headless,
    /// By another name, in wire form.
    External(Box<[u8]>),
    /// Not at all: an ExternalName that is no name, or no address yet.
    Unresolved,
}

/// A Service, as far as records depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    namespace: Box<str>,
    name: Box<str>,
    version: Option<NonZeroU64>,
    pub shape: Shape,
    /// The same ones as those of the records.
    pub ports: Arc<[Port]>,
    /// Endpoints have records before they are ready.
    pub publish_not_ready: bool,
    /// A controller writes its slices, from the pods of its namespace.
    pub has_selector: bool,
}

/// An EndpointSlice, as far as records depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    namespace: Box<str>,
    name: Box<str>,
    version: Option<NonZeroU64>,
    service: Box<str>,
    /// It is said to be written by the controller of Services with a selector, which corrects it if there is one.
    pub managed: bool,
    /// The node of its endpoints, if all have the same.
    pub node: Option<Box<str>>,
    /// Time of the change of a pod or Service that changed the slice.
    pub trigger: Option<Timestamp>,
    pub ports: Box<[Port]>,
    pub endpoints: Box<[Endpoint]>,
}

/// An address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub hostname: Option<Box<str>>,
    pub ready: bool,
}

fn common_node(endpoints: &[discovery::Endpoint]) -> Option<Box<str>> {
    let first = endpoints.first()?.node_name.as_deref()?;
    let is_common = endpoints.iter().all(|endpoint| endpoint.node_name.as_deref() == Some(first));
    is_common.then(|| first.into())
}

fn version(text: Option<String>) -> Option<NonZeroU64> {
    text.and_then(|text| text.parse().ok())
}

impl Service {
    pub fn of(object: v1::Service) -> Self {
        let (meta, spec) = (object.metadata, object.spec.unwrap_or_default());
        let ports = spec.ports.into_iter().flatten().filter_map(|port| {
            let protocol = Protocol::of(port.protocol.as_deref())?;
            let number = u16::try_from(port.port).ok()?;
            Some(Port { name: port.name.unwrap_or_default().into_boxed_str(), protocol, number })
        });
        let ips = match spec.cluster_ips {
            Some(ips) if !ips.is_empty() => ips,
            _ => spec.cluster_ip.into_iter().collect(),
        };
        let shape = if spec.type_.as_deref() == Some("ExternalName") {
            let target = spec.external_name.filter(|name| !name.is_empty());
            target
                .and_then(|name| Name::parse(&name).ok())
                .map_or(Shape::Unresolved, |name| Shape::External(name.bytes().into()))
        } else if ips.iter().any(|ip| ip == "None") {
            Shape::Headless
        } else {
            let ips: Box<[IpAddr]> = ips.iter().filter_map(|ip| ip.parse().ok()).collect();
            if ips.is_empty() { Shape::Unresolved } else { Shape::Addresses(ips) }
        };
        Self {
            namespace: meta.namespace.unwrap_or_default().into_boxed_str(),
            name: meta.name.unwrap_or_default().into_boxed_str(),
            version: version(meta.resource_version),
            shape,
            ports: ports.collect(),
            publish_not_ready: spec.publish_not_ready_addresses == Some(true),
            has_selector: spec.selector.is_some_and(|selector| !selector.is_empty()),
        }
    }
}

impl Slice {
    pub fn of(object: EndpointSlice) -> Self {
        let mut meta = object.metadata;
        let service = meta.labels.as_mut().and_then(|labels| labels.remove(SERVICE_NAME));
        let managed = meta.labels.and_then(|mut labels| labels.remove(MANAGED_BY.0));
        let trigger = meta.annotations.as_ref().and_then(|all| all.get(TRIGGER_TIME)?.parse().ok());
        let ports = object.ports.into_iter().flatten().filter_map(|port| {
            let protocol = Protocol::of(port.protocol.as_deref())?;
            let number = u16::try_from(port.port?).ok()?;
            Some(Port { name: port.name.unwrap_or_default().into_boxed_str(), protocol, number })
        });
        let family = object.address_type;
        let node = common_node(object.endpoints.as_deref().unwrap_or_default());
        let endpoints = object.endpoints.into_iter().flatten().flat_map(|endpoint| {
            let ready = endpoint.conditions.is_none_or(|conditions| conditions.ready != Some(false));
            let hostname: Option<Box<str>> = endpoint.hostname.map(String::into_boxed_str);
            let family = family.as_str();
            let parsed = endpoint.addresses.into_iter().filter_map(move |text| {
                let address: IpAddr = text.parse().ok()?;
                let is_of_family = family == if address.is_ipv4() { "IPv4" } else { "IPv6" };
                is_of_family.then_some(address)
            });
            parsed
                .map(move |address| Endpoint { address, hostname: hostname.clone(), ready })
                .collect::<Vec<_>>()
        });
        Self {
            namespace: meta.namespace.unwrap_or_default().into_boxed_str(),
            name: meta.name.unwrap_or_default().into_boxed_str(),
            version: version(meta.resource_version),
            service: service.unwrap_or_default().into_boxed_str(),
            managed: managed.is_some_and(|writer| writer == MANAGED_BY.1),
            node,
            trigger,
            ports: ports.collect(),
            endpoints: endpoints.collect(),
        }
    }

    /// Returns the Service that the slice belongs to.
    pub fn service(&self) -> Option<ObjectKey> {
        (!self.service.is_empty()).then(|| ObjectKey::new(&self.namespace, &self.service))
    }
}

impl Projection for Service {
    type Object = v1::Service;

    fn project(object: v1::Service) -> Self {
        Self::of(object)
    }

    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version
    }
}

impl Projection for Slice {
    type Object = EndpointSlice;

    fn project(object: EndpointSlice) -> Self {
        Self::of(object)
    }

    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version
    }
}
