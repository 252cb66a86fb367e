//! The group `policy`.

pub mod eviction;
pub(crate) mod pod_disruption_budget;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&pod_disruption_budget::KIND];
