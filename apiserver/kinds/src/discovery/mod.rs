//! The group `discovery.k8s.io`.

pub(crate) mod endpoint_slice;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&endpoint_slice::KIND];
