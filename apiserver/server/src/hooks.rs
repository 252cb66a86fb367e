//! Tasks to be done once after the start, by the names of Kubernetes' post-start hooks; the health checks ask
//! for them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The hooks, in the order in which the checks name them.
pub const HOOKS: [&str; 13] = [
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kubernetes-service-cidr-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
];

/// The [`HOOKS`] that are done.
#[derive(Default)]
pub struct Hooks(Mutex<BTreeSet<&'static str>>);

impl Hooks {
    /// Takes note that a hook is done.
    pub fn done(&self, name: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
    }

    /// Returns `true` if the hook is done.
    pub fn is_done(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }
}
