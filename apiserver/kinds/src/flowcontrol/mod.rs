//! The group `flowcontrol.apiserver.k8s.io`.

pub(crate) mod flow_schema;
pub(crate) mod priority_level_configuration;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&flow_schema::KIND, &priority_level_configuration::KIND];
