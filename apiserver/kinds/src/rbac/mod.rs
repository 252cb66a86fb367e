//! The group `rbac.authorization.k8s.io`.

pub(crate) mod role;
pub(crate) mod role_binding;
#[cfg(test)]
mod tests;

use crate::kind::Kind;

/// The kinds of the group.
pub(crate) static KINDS: &[&Kind] =
    &[&role::CLUSTER_ROLE, &role::ROLE, &role_binding::CLUSTER_ROLE_BINDING, &role_binding::ROLE_BINDING];
