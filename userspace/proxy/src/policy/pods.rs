//! The parts of Pods and Namespaces that policies depend on.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU64;

use apiserver_client::Projection;
use apiserver_meta::pods;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use userspace_dataplane::tables::Protocol;

use super::object;
use super::selector::Labels;

/// The annotation of a mirror pod with the UID that its sandbox has.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// A named port of a pod's containers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamedPort {
    pub name: String,
    pub protocol: Protocol,
    pub number: u16,
}

/// A Pod, as far as policies depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPod {
    version: Option<NonZeroU64>,
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    /// The UID that its sandbox has if it is a mirror pod. Whoever creates a pod can claim one here, so that
    /// it counts only if no pod has it.
    pub mirrored: Option<Box<str>>,
    pub labels: Box<Labels>,
    /// Sorted.
    pub ports: Box<[NamedPort]>,
    /// Empty if it has none yet, has ended, or has those of its node: then no policy selects it.
    pub addresses: Box<[IpAddr]>,
    /// It has the addresses of its node.
    pub host_network: bool,
    /// Its containers have ended for good, and another pod may have its addresses.
    pub ended: bool,
}

impl PolicyPod {
    /// Reads a Pod.
    pub fn of(pod: Pod) -> Self {
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let host_network = spec.host_network == Some(true);
        let ended = status.phase.as_deref().is_some_and(pods::is_final);
        let listed = status.pod_ips.into_iter().flatten().map(|one| one.ip);
        let mut addresses: Vec<IpAddr> =
            listed.chain(status.pod_ip).filter_map(|address| address.parse().ok()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if host_network || ended {
            addresses.clear();
        }
        let sidecars = spec.init_containers.into_iter().flatten();
        let sidecars = sidecars.filter(|one| one.restart_policy.as_deref() == Some("Always"));
        let containers = spec.containers.into_iter().chain(sidecars);
        let mut ports: Vec<_> = containers
            .flat_map(|container| container.ports.unwrap_or_default())
            .filter_map(|port| {
                let protocol = object::protocol(port.protocol.as_deref())?;
                Some(NamedPort {
                    name: port.name?,
                    protocol,
                    number: u16::try_from(port.container_port).ok()?,
                })
            })
            .collect();
        ports.sort_unstable();
        ports.dedup();
        let metadata = pod.metadata;
        let hash = metadata.annotations.and_then(|mut all| all.remove(CONFIG_HASH));
        Self {
            version: metadata.resource_version.and_then(|version| version.parse().ok()),
            namespace: metadata.namespace.unwrap_or_default().into(),
            name: metadata.name.unwrap_or_default().into(),
            uid: metadata.uid.unwrap_or_default().into(),
            mirrored: hash.map(Into::into),
            labels: Box::new(metadata.labels.unwrap_or_default()),
            ports: ports.into(),
            addresses: addresses.into(),
            host_network,
            ended,
        }
    }
}

impl PolicyPod {
    /// Returns `true` if both mean the same to policies, whatever their versions.
    pub fn is_like(&self, other: &Self) -> bool {
        let known = |pod: &Self| Self { version: None, ..pod.clone() };
        known(self) == known(other)
    }
}

impl Projection for PolicyPod {
    type Object = Pod;

    fn project(object: Pod) -> Self {
        Self::of(object)
    }

    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version
    }
}

/// A Namespace, as far as policies depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyNamespace {
    version: Option<NonZeroU64>,
    pub name: Box<str>,
    pub labels: Labels,
}

impl Projection for PolicyNamespace {
    type Object = Namespace;

    fn project(object: Namespace) -> Self {
        let metadata = object.metadata;
        Self {
            version: metadata.resource_version.and_then(|version| version.parse().ok()),
            name: metadata.name.unwrap_or_default().into(),
            labels: metadata.labels.unwrap_or_default(),
        }
    }

    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version
    }
}

/// Labels of namespaces, by name.
pub type NamespaceLabels = BTreeMap<String, Labels>;
