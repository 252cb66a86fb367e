//! Names of the resources that quotas limit, and the kinds that they count. A kind is named as in `count/NAME`:
//! `pods`, `widgets.example.com`.

use super::usage::{CLAIMS, PODS, SERVICES};

/// The prefix of a resource that is a number of objects in the store.
pub(super) const COUNT: &str = "count/";
/// The text after the name of a StorageClass in a resource that counts its claims.
pub(super) const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";

/// Kinds that had a resource of their name before there was `count/NAME`.
const ALIASES: [&str; 4] = ["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];

/// Kinds that are not stored, or have never been limited.
const IGNORED: [&str; 11] = [
    "bindings",
    "componentstatuses",
    "events",
    "events.events.k8s.io",
    "localsubjectaccessreviews.authorization.k8s.io",
    "selfsubjectaccessreviews.authorization.k8s.io",
    "selfsubjectreviews.authentication.k8s.io",
    "selfsubjectrulesreviews.authorization.k8s.io",
    "subjectaccessreviews.authorization.k8s.io",
    "tokenreviews.authentication.k8s.io",
    "",
];

/// Returns the name of a kind: `pods`, `widgets.example.com`.
pub fn kind_name(group: &str, plural: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// Returns `true` for kinds that no quota limits.
pub fn is_ignored(kind: &str) -> bool {
    IGNORED.contains(&kind)
}

/// Returns the other resource that counts the objects of a kind, if there is one.
pub(super) fn alias(kind: &str) -> Option<&str> {
    ALIASES.contains(&kind).then_some(kind)
}

/// Returns the kind that a resource is named after, if it counts objects: `count/NAME`, `secrets`.
pub fn by_name(resource: &str) -> Option<&str> {
    let kind = resource.strip_prefix(COUNT).or_else(|| alias(resource))?;
    (!is_ignored(kind)).then_some(kind)
}

/// Returns `true` if a resource counts objects of a kind, or what they use.
pub fn counts(kind: &str, resource: &str) -> bool {
    if resource.strip_prefix(COUNT).is_some_and(|counted| counted == kind) {
        return !is_ignored(kind);
    }
    match kind {
        PODS => is_used_by_pods(resource),
        SERVICES => matches!(resource, "services" | "services.loadbalancers" | "services.nodeports"),
        CLAIMS => {
            let (_, plain) = resource.rsplit_once(STORAGE_CLASS).unwrap_or_default();
            [resource, plain]
                .iter()
                .any(|name| matches!(*name, "persistentvolumeclaims" | "requests.storage"))
        }
        other => alias(other) == Some(resource),
    }
}

fn is_used_by_pods(resource: &str) -> bool {
    let plain = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "pods",
    ];
    plain.contains(&resource)
        || resource.starts_with("hugepages-")
        || resource.starts_with("requests.hugepages-")
        || resource
            .strip_prefix("requests.")
            .is_some_and(|name| !is_native(resource) || of_device_class(name))
}

/// Returns `true` if containers request a resource that is limited as `requests.NAME` alone.
pub(super) fn is_extended(resource: &str) -> bool {
    of_device_class(resource) || !is_native(resource) && !resource.starts_with("requests.")
}

/// Resources without a domain, or with Kubernetes' own, are defined by it.
fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

fn of_device_class(resource: &str) -> bool {
    resource.starts_with("deviceclass.resource.kubernetes.io/")
}
