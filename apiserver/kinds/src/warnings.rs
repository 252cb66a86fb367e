//! Warnings to clients about requests that succeed: `Warning: 299` headers, in Kubernetes' words. Each kind
//! has a function from the new object, and the old one on update, to its warnings.

mod objects;
mod paths;
mod pod;
mod service;

use serde_json::Value;

use crate::defaulting::apparmor;

/// No more are sent with one answer; where more could be said, no more are looked for.
pub const MOST: usize = 32;

/// Warnings of a kind: new object, old one on update.
pub type Warn = fn(&Value, Option<&Value>) -> Vec<String>;

/// Returns the function that computes the warnings of a kind, if it has any.
pub fn of(group: &str, plural: &str) -> Option<Warn> {
    Some(match (group, plural) {
        ("", "pods") => pod::pod,
        ("", "podtemplates") => |new, old| pod::template_at(new, old, "/template", "template"),
        ("", "replicationcontrollers") | ("apps", "deployments" | "replicasets" | "daemonsets") => {
            pod::workload
        }
        ("apps", "statefulsets") => pod::stateful_set,
        ("batch", "jobs") => pod::job,
        ("batch", "cronjobs") => pod::cron_job,
        ("", "services") => service::service,
        ("", "endpoints") => service::endpoints,
        ("discovery.k8s.io", "endpointslices") => service::slice,
        ("", "nodes") => objects::node,
        ("", "secrets") => objects::secret,
        ("", "serviceaccounts") => objects::service_account,
        ("", "persistentvolumes") => objects::volume,
        ("", "persistentvolumeclaims") => objects::claim,
        ("storage.k8s.io", "storageclasses") => objects::storage_class,
        ("storage.k8s.io", "csidrivers") => objects::csi_driver,
        ("storage.k8s.io", "csistoragecapacities") => objects::storage_capacity,
        ("networking.k8s.io", "ingresses") => objects::ingress,
        ("networking.k8s.io", "networkpolicies") => objects::network_policy,
        ("node.k8s.io", "runtimeclasses") => objects::runtime_class,
        _ => return None,
    })
}

/// Warnings about a new object of a kind, valid or not, before it is prepared.
pub fn before(group: &str, plural: &str) -> Option<fn(&Value) -> Vec<String>> {
    ((group, plural) == ("", "pods")).then_some(apparmor::warnings)
}

#[cfg(test)]
mod tests;
