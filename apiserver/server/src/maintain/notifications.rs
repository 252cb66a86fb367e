//! Notifications for the tasks that maintain the server's own objects.

use std::sync::Arc;

use tokio::sync::Notify;

use super::trust;
use apiserver_cache::Caches;

/// One signal for each task. A signal without a waiting task is kept.
#[derive(Default)]
pub struct Kept {
    /// A FlowSchema or a PriorityLevelConfiguration has changed.
    pub flow: Notify,
    /// The versions of custom kinds, or an APIService, have changed.
    pub api_services: Notify,
    /// The ConfigMap of authorities has changed.
    pub trust: Notify,
}

impl Kept {
    /// Wakes the keepers when objects of their kinds change.
    pub fn observe(self: &Arc<Self>, caches: &Caches) {
        if let Some(maps) = caches.cache("", "v1", "configmaps") {
            let kept = Arc::clone(self);
            maps.observe(Box::new(move |old, new| {
                let entry = new.or(old);
                if entry.is_some_and(|e| e.name() == trust::NAME && e.namespace() == trust::NAMESPACE) {
                    kept.trust.notify_one();
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
            let kept = Arc::clone(self);
            cache.observe(Box::new(move |_, _| {
                let signal = if group == flow { &kept.flow } else { &kept.api_services };
                signal.notify_one();
            }));
        }
    }
}
