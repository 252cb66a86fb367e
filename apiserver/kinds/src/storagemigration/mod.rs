//! The group `storagemigration.k8s.io`.

pub(crate) mod storage_version_migration;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&storage_version_migration::KIND];
