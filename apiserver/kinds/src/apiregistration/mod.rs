//! The group `apiregistration.k8s.io`.

pub(crate) mod api_service;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&api_service::KIND];
