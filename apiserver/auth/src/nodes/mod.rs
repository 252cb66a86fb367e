//! The Node authorizer: what a kubelet may do. It reads and writes its own Node, Lease and CSINode, the pods that
//! are bound to its node, and what those pods refer to; everything else of the cluster is closed to it. What a
//! request's path cannot tell, such as the content of a pod to be created, is for the admission plugin
//! NodeRestriction to judge.

mod feed;
pub mod graph;
pub mod references;

use std::borrow::Cow;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use feed::feed;
use graph::{Graph, Kind};
use userspace_daemon::tunnel;

use crate::attributes::Attributes;
use crate::authentication::node_name;
use crate::defaults;
use crate::rbac::Rule;

/// The namespace of the Leases of nodes.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The reason why the authorizer does not allow a request; may be empty. Another authorizer may still allow
/// it.
pub type Reason = Cow<'static, str>;

type Verdict = Result<(), Reason>;

/// Authorizes the requests of nodes by the graph, and by fixed rules if the graph does not decide.
pub struct NodeAuthorizer {
    graph: RwLock<Graph>,
    /// The rules for every node.
    rules: Vec<Rule>,
}

impl Default for NodeAuthorizer {
    /// Without any object in the graph.
    fn default() -> Self {
        Self { graph: RwLock::default(), rules: defaults::node_rules() }
    }
}

impl NodeAuthorizer {
    /// Decides whether a request is one that a node makes and may make.
    pub fn authorize(&self, attributes: &Attributes<'_>) -> Verdict {
        let Some(node) = node_name(attributes.identity) else { return refuse("") };
        if node.is_empty() {
            return refuse(format!("unknown node for user {:?}", attributes.identity.user));
        }
        if attributes.is_resource
            && let Some(verdict) = self.decide(node, attributes)
        {
            return verdict;
        }
        if !attributes.is_resource
            && let Some(other) = tunnel::node_of(attributes.path)
        {
            return own_tunnel(node, other, attributes.verb);
        }
        if self.rules.iter().any(|rule| rule.covers(attributes)) { Ok(()) } else { refuse("") }
    }

    /// Returns the verdict on kinds that are decided object by object, or `None` for other kinds.
    fn decide(&self, node: &str, attributes: &Attributes<'_>) -> Option<Verdict> {
        Some(match (attributes.group, attributes.resource) {
            ("", "secrets") => self.read_namespaced(node, Kind::Secret, attributes),
            ("", "configmaps") => self.read_namespaced(node, Kind::ConfigMap, attributes),
            ("", "persistentvolumeclaims") if attributes.subresource == "status" => match attributes.verb {
                "update" | "patch" => self.related(node, Kind::PersistentVolumeClaim, attributes),
                _ => refuse("can only get/update/patch this type"),
            },
            ("", "persistentvolumeclaims") => self.get(node, Kind::PersistentVolumeClaim, attributes),
            ("", "persistentvolumes") => self.get(node, Kind::PersistentVolume, attributes),
            ("resource.k8s.io", "resourceclaims") => self.get(node, Kind::ResourceClaim, attributes),
            ("storage.k8s.io", "volumeattachments") => self.get(node, Kind::VolumeAttachment, attributes),
            ("", "serviceaccounts") => self.service_account(node, attributes),
            ("coordination.k8s.io", "leases") => lease(node, attributes),
            ("storage.k8s.io", "csinodes") => csi_node(node, attributes),
            ("resource.k8s.io", "resourceslices") => self.resource_slice(node, attributes),
            ("", "nodes") => own_node(node, attributes),
            ("", "pods") => self.pod(node, attributes),
            ("certificates.k8s.io", "podcertificaterequests") => self.pod_certificate(node, attributes),
            _ => return None,
        })
    }

    /// `get` of an object that is related to the node.
    fn get(&self, node: &str, kind: Kind, attributes: &Attributes<'_>) -> Verdict {
        if attributes.verb != "get" {
            return refuse("can only get individual resources of this type");
        }
        if !attributes.subresource.is_empty() {
            return refuse("cannot get subresource");
        }
        self.related(node, kind, attributes)
    }

    /// `get`, `list` and `watch` of one object that is related to the node.
    fn read_namespaced(&self, node: &str, kind: Kind, attributes: &Attributes<'_>) -> Verdict {
        if !matches!(attributes.verb, "get" | "list" | "watch") {
            return refuse("can only read resources of this type");
        }
        if !attributes.subresource.is_empty() {
            return refuse("cannot read subresource");
        }
        if attributes.namespace.is_empty() {
            return refuse("can only read namespaced object of this type");
        }
        self.related(node, kind, attributes)
    }

    /// Checks that the object that the request names is related to the node.
    fn related(&self, node: &str, kind: Kind, attributes: &Attributes<'_>) -> Verdict {
        if attributes.name.is_empty() {
            return refuse("No Object name found");
        }
        if self.read().relates(node, kind, (attributes.namespace, attributes.name)) {
            return Ok(());
        }
        refuse(format!("no relationship found between node '{node}' and this object"))
    }

    /// ServiceAccounts of the node's pods are read, and tokens for them are made.
    fn service_account(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        if attributes.verb == "get" && attributes.subresource.is_empty() {
            return self.read_namespaced(node, Kind::ServiceAccount, attributes);
        }
        if attributes.verb != "create" || attributes.name.is_empty() {
            return refuse("can only create tokens for individual service accounts");
        }
        if attributes.subresource != "token" {
            return refuse("can only create token subresource of serviceaccount");
        }
        self.related(node, Kind::ServiceAccount, attributes)
    }

    fn resource_slice(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        if !attributes.subresource.is_empty() {
            return refuse("cannot authorize ResourceSlice subresources");
        }
        match attributes.verb {
            // Admission sees for which node it is.
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => self.related(node, Kind::ResourceSlice, attributes),
            "watch" | "list" | "deletecollection" if attributes.selects("spec.nodeName", node) => Ok(()),
            "watch" | "list" | "deletecollection" => {
                refuse("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => refuse(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, \
                 patch, delete, deletecollection",
            ),
        }
    }

    fn pod_certificate(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        if !attributes.subresource.is_empty() {
            return refuse("nodes may not access the status subresource of PodCertificateRequests");
        }
        match attributes.verb {
            // NodeRestriction checks that the request matches its pod.
            "create" => Ok(()),
            "get" => self.related(node, Kind::PodCertificateRequest, attributes),
            "list" | "watch" if attributes.selects("spec.nodeName", node) => Ok(()),
            "list" | "watch" => {
                refuse("can only list/watch podcertificaterequests with nodeName field selector")
            }
            verb => refuse(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn pod(&self, node: &str, attributes: &Attributes<'_>) -> Verdict {
        match (attributes.subresource, attributes.verb) {
            ("", "get") => self.get(node, Kind::Pod, attributes),
            ("", "list" | "watch") if attributes.selects("spec.nodeName", node) => Ok(()),
            ("", "list" | "watch") if !attributes.name.is_empty() => {
                self.related(node, Kind::Pod, attributes)
            }
            ("", "list" | "watch") => refuse("can only list/watch pods with spec.nodeName field selector"),
            // Admission sees whether it is a mirror pod, and on which node the pod is.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            _ => refuse(""),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Graph> {
        // A panic of a writer cannot leave the graph inconsistent: it could only come from an id that was
        // never made.
        self.graph.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Graph> {
        self.graph.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refuse(why: impl Into<Reason>) -> Verdict {
    Err(why.into())
}

/// The node's own Lease. The name of one to be created is for admission to see.
fn lease(node: &str, attributes: &Attributes<'_>) -> Verdict {
    if !matches!(attributes.verb, "get" | "create" | "update" | "patch" | "delete") {
        return refuse("can only get, create, update, patch, or delete a node lease");
    }
    if attributes.namespace != LEASE_NAMESPACE {
        return refuse(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"));
    }
    if attributes.verb != "create" && attributes.name != node {
        return refuse("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

/// The node's own CSINode, likewise.
fn csi_node(node: &str, attributes: &Attributes<'_>) -> Verdict {
    if !matches!(attributes.verb, "get" | "create" | "update" | "patch" | "delete") {
        return refuse("can only get, create, update, patch, or delete a CSINode");
    }
    if !attributes.subresource.is_empty() {
        return refuse("cannot authorize CSINode subresources");
    }
    if attributes.verb != "create" && attributes.name != node {
        return refuse("can only access CSINode with the same name as the requesting node");
    }
    Ok(())
}

/// The node's own Node, which may not exist yet. Whose Node is written is for admission to see.
fn own_node(node: &str, attributes: &Attributes<'_>) -> Verdict {
    match (attributes.subresource, attributes.verb) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
        ("", "get" | "list" | "watch") if attributes.name == node => Ok(()),
        ("", "get" | "list" | "watch") if attributes.name.is_empty() => {
            refuse(format!("node '{node}' cannot read all nodes, only its own Node object"))
        }
        ("", "get" | "list" | "watch") => {
            refuse(format!("node '{node}' cannot read '{}', only its own Node object", attributes.name))
        }
        _ => refuse(""),
    }
}

/// The node's own tunnel, by which API servers reach it.
fn own_tunnel(node: &str, other: &str, verb: &str) -> Verdict {
    match verb {
        "post" if node == other => Ok(()),
        _ => refuse(format!("node '{node}' can only open its own tunnel")),
    }
}

#[cfg(test)]
mod tests;
