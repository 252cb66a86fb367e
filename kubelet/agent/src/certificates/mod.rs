//! The node's own certificates: requested from the cluster by CertificateSigningRequest, kept in files, and
//! replaced long before they end.
//!
//! ```text
//!  token ─▶ client certificate ─▶ file ─▶ client of the API, swapped when the file is replaced
//!                 │ 70–90 % of its life over: a new key, requested with the old certificate
//!                 └─▶ serving certificate ─▶ file ─▶ TLS of the node server, swapped in the same way
//! ```

mod file;
mod request;
mod rotation;
mod serving;

use jiff::Timestamp;

pub use file::PairFile;
pub use request::{RequestError, Wanted, bootstrap, obtain};
pub use rotation::{Clients, Rotation, renew_at};
pub use serving::Serving;

/// Time for which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// Returns the validity of the first certificate of a PEM text. Passed in, so that the kubelet needs no
/// parser of certificates.
pub type ReadValidity = fn(&str) -> Option<Validity>;

#[cfg(test)]
mod tests;
