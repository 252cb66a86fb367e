//! The group `scheduling.k8s.io`.

pub(crate) mod pod_group;
pub(crate) mod priority_class;
#[cfg(test)]
mod tests;
pub(crate) mod workload;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&pod_group::KIND, &priority_class::KIND, &workload::KIND];
