//! The group `autoscaling`.

pub(crate) mod horizontal_pod_autoscaler;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&horizontal_pod_autoscaler::KIND];
