//! Settings of the cluster's zone.

use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::name::Name;

/// The records of pods by address, `A-B-C-D.NAMESPACE.pod.DOMAIN`, as CoreDNS' option `pods` names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodMode {
    /// They do not exist.
    Disabled,
    /// Every address is a pod's, in every namespace that exists.
    #[default]
    Insecure,
    /// A pod of the namespace must have the address.
    Verified,
}

/// Settings of the cluster's zone.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster's domain, such as `cluster.local`.
    pub domain: Name,
    /// TTL of the cluster's records, in seconds, positive and negative.
    pub ttl: u32,
    pub pods: PodMode,
    /// Addresses of the cluster's DNS Service: those of `ns.dns.DOMAIN`.
    pub servers: Vec<IpAddr>,
    /// The ranges of pods and Services. An address within leads back to a name only if its Service or its pod does.
    pub networks: Vec<IpNetwork>,
}
