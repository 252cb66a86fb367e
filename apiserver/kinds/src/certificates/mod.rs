//! The group `certificates.k8s.io`.

pub(crate) mod certificate_signing_request;
pub(crate) mod cluster_trust_bundle;
pub(crate) mod pem;
pub(crate) mod pod_certificate_request;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] =
    &[&certificate_signing_request::KIND, &cluster_trust_bundle::KIND, &pod_certificate_request::KIND];
