//! Notifications for the tasks that maintain the server's own objects, and the state that they share.

use std::sync::Arc;

use tokio::sync::Notify;

use apiserver_cache::Caches;
use apiserver_store::Revision;

/// Namespace and name of the ConfigMap of authorities.
pub const TRUST: (&str, &str) = ("kube-system", "extension-apiserver-authentication");

/// The state of the key of this server's address.
#[derive(Default)]
pub struct Endpoint {
    /// The revision of its own last write.
    pub written: Revision,
    /// True if another server has written it since the write before: one with the same address, on another
    /// port.
    pub shared: bool,
}

/// One signal for each task. A signal without a waiting task is kept.
#[derive(Default)]
pub struct Notifications {
    /// A FlowSchema or a PriorityLevelConfiguration has changed.
    pub flow: Notify,
    /// The versions of custom kinds, or an APIService, have changed.
    pub api_services: Notify,
    /// The ConfigMap of authorities has changed.
    pub trust: Notify,
}

impl Notifications {
    /// Wakes the tasks when objects of their kinds change.
    pub fn observe(self: &Arc<Self>, caches: &Caches) {
        if let Some(maps) = caches.cache("", "v1", "configmaps") {
            let own = Arc::clone(self);
            maps.observe(Box::new(move |old, new| {
                let entry = new.or(old);
                if entry.is_some_and(|e| (e.namespace(), e.name()) == TRUST) {
                    own.trust.notify_one();
                }
            }));
        }
        let flow = "flowcontrol.apiserver.k8s.io";
        for (group, plural) in [
            (flow, "flowschemas"),
            (flow, "prioritylevelconfigurations"),
            ("apiregistration.k8s.io", "apiservices"),
        ] {
            let Some(cache) = caches.cache(group, "v1", plural) else { continue };
            let own = Arc::clone(self);
            cache.observe(Box::new(move |_, _| {
                let signal = if group == flow { &own.flow } else { &own.api_services };
                signal.notify_one();
            }));
        }
    }
}
