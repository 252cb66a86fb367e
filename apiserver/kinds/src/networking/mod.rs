//! The group `networking.k8s.io`.

pub(crate) mod ingress;
pub(crate) mod ingress_class;
pub(crate) mod ip_address;
pub(crate) mod network_policy;
pub(crate) mod service_cidr;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] =
    &[&ingress::KIND, &ingress_class::KIND, &ip_address::KIND, &network_policy::KIND, &service_cidr::KIND];
