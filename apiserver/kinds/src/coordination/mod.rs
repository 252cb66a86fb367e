//! The group `coordination.k8s.io`.

pub(crate) mod lease;
pub(crate) mod lease_candidate;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&lease::KIND, &lease_candidate::KIND];
