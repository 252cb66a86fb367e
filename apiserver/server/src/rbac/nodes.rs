//! Limits on what the group `system:nodes` gains through RBAC: a node writes its own objects only.
//!
//! Reads are not limited to the objects that the node's pods refer to; that takes a graph of pods
//! and their references, which does not exist yet.

use super::Attributes;

pub(super) const GROUP: &str = "system:nodes";
const USER_PREFIX: &str = "system:node:";
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Whether a rule bound to `system:nodes` may be used for this.
pub(super) fn permits(attributes: &Attributes<'_>) -> bool {
    let Some(node) = attributes.identity.user.strip_prefix(USER_PREFIX) else { return false };
    let writes = !matches!(attributes.verb, "get" | "list" | "watch");
    if !writes {
        return true;
    }
    // The name of an object to be created is not known yet; admission sees it.
    let own = attributes.name == node || (attributes.verb == "create" && attributes.name.is_empty());
    match (attributes.group, attributes.resource) {
        ("", "nodes") | ("storage.k8s.io", "csinodes") => own,
        ("coordination.k8s.io", "leases") => own && attributes.namespace == LEASE_NAMESPACE,
        _ => true,
    }
}
