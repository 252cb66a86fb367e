//! The parts of Nodes, Namespaces and Pods that the server retains.

use std::net::IpAddr;

use apiserver_client::Projection;
use apiserver_meta::pods;
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1;

/// A node: where its server listens, and the addresses of clients there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    name: Box<str>,
    pub uid: Box<str>,
    pub addresses: Box<[IpAddr]>,
    pub pod_ranges: Box<[IpNetwork]>,
}

/// A namespace that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace(Box<str>);

/// A pod with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    namespace: Box<str>,
    name: Box<str>,
    pub addresses: Box<[IpAddr]>,
}

impl Node {
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Projection for Node {
    type Object = v1::Node;

    fn project(object: v1::Node) -> Self {
        let spec = object.spec.unwrap_or_default();
        let ranges = match spec.pod_cidrs {
            Some(ranges) if !ranges.is_empty() => ranges,
            _ => spec.pod_cidr.into_iter().collect(),
        };
        let addresses = object.status.and_then(|status| status.addresses).unwrap_or_default();
        let is_address = |kind: &str| kind == "InternalIP" || kind == "ExternalIP";
        Self {
            name: object.metadata.name.unwrap_or_default().into(),
            uid: object.metadata.uid.unwrap_or_default().into(),
            addresses: addresses
                .iter()
                .filter(|address| is_address(&address.type_))
                .filter_map(|address| address.address.parse().ok())
                .collect(),
            pod_ranges: ranges.iter().filter_map(|range| range.parse().ok()).collect(),
        }
    }

    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }

    // A heartbeat is a new version, and changes nothing here.
    fn is_version_of(&self, other: &Self) -> bool {
        self == other
    }
}

impl Projection for Namespace {
    type Object = v1::Namespace;

    fn project(object: v1::Namespace) -> Self {
        Self(object.metadata.name.unwrap_or_default().into())
    }

    fn names(&self) -> (&str, &str) {
        ("", &self.0)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self == other
    }
}

impl Projection for Pod {
    type Object = v1::Pod;

    fn project(object: v1::Pod) -> Self {
        let status = object.status.unwrap_or_default();
        let has_ended = status.phase.as_deref().is_some_and(pods::is_final);
        let ips = status.pod_ips.unwrap_or_default();
        Self {
            namespace: object.metadata.namespace.unwrap_or_default().into(),
            name: object.metadata.name.unwrap_or_default().into(),
            // The address of a pod that has ended may be another's.
            addresses: ips.iter().filter(|_| !has_ended).filter_map(|ip| ip.ip.parse().ok()).collect(),
        }
    }

    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self == other
    }
}
