//! Limits on what the group `system:nodes` gains through RBAC: a node writes its own objects only,
//! and those of the pods that run on it.
//!
//! Reads are not limited to the objects that the node's pods refer to; that takes a graph of pods
//! and their references, which does not exist yet.

use super::Attributes;
use crate::auth::tokens::{BoundKind, BoundObjects};

pub(super) const GROUP: &str = "system:nodes";
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Whether a rule bound to `system:nodes` may be used for this. Without `objects` pods are not
/// told apart.
pub(super) fn permits(attributes: &Attributes<'_>, objects: Option<&dyn BoundObjects>) -> bool {
    let Some(node) = crate::auth::node_name(attributes.identity) else { return false };
    if matches!(attributes.verb, "get" | "list" | "watch") {
        return true;
    }
    // The name of an object to be created is not known yet; `admission::node` sees it.
    let own = attributes.name == node || (attributes.verb == "create" && attributes.name.is_empty());
    match (attributes.group, attributes.resource) {
        ("", "nodes") | ("storage.k8s.io", "csinodes") => own,
        ("coordination.k8s.io", "leases") => own && attributes.namespace == LEASE_NAMESPACE,
        ("", "pods") if !attributes.name.is_empty() => {
            let pod = objects.and_then(|o| o.lookup(BoundKind::Pod, attributes.namespace, attributes.name));
            // A pod that is gone is for the verb to answer, with 404.
            pod.is_none_or(|pod| pod.node_name == node)
        }
        _ => true,
    }
}
