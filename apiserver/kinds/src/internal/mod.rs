//! The group `internal.apiserver.k8s.io`.

pub(crate) mod storage_version;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] = &[&storage_version::KIND];
