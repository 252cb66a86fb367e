//! The group `node.k8s.io`.

pub(crate) mod runtime_class;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&runtime_class::KIND];
