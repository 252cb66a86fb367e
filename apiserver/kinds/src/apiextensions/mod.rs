//! The group `apiextensions.k8s.io`.

pub(crate) mod custom_resource_definition;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&custom_resource_definition::KIND];
