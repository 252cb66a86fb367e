//! CertificateSigningRequests: approves those of nodes, signs those that are approved, and deletes old ones.
//!
//! ```text
//!  request ─▶ approve: is it a node's own? (SubjectAccessReview) ─▶ sign: is it for the signer? ─▶ certificate
//!             serving: are its names and addresses the Node's?      (authority of the cluster)
//! ```

pub(crate) mod approve;
pub(crate) mod clean;
mod rules;
mod serving;
pub(crate) mod sign;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::authority::Request;

/// Condition of a request that may be signed.
const APPROVED: &str = "Approved";
/// Condition of a request that may not be signed.
const DENIED: &str = "Denied";
/// Condition of a request that a signer has refused.
const FAILED: &str = "Failed";

/// Returns the names in the certificate that a request (DER) asks for, whatever its signature.
pub(crate) fn names(der: &[u8]) -> Option<Vec<String>> {
    let asked = Request::read(der, |_| Ok(())).ok()?;
    let addresses = asked.addresses.iter().map(ToString::to_string);
    Some(
        [vec![asked.common_name], asked.organizations, asked.dns_names]
            .concat()
            .into_iter()
            .chain(addresses)
            .collect(),
    )
}

/// Returns `true` if a condition of this kind holds.
fn has(request: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default().iter().any(|condition| condition.type_ == kind)
}

/// Returns `true` if the request has been signed.
fn is_issued(request: &CertificateSigningRequest) -> bool {
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    certificate.is_some_and(|certificate| !certificate.0.is_empty())
}
