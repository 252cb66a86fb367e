//! The Services with addresses to announce: few among many.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_client::events::reference;
use apiserver_client::{Change, ObjectKey};
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use tokio::sync::Notify;

use crate::caches::Caches;
use crate::compile::{ServiceProjection, Slice, balancer_addresses, has_own_address};

/// A Service with addresses to announce.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Balancer {
    pub addresses: Vec<IpAddr>,
    /// Only nodes with endpoints may announce them.
    pub local: bool,
    about: ObjectReference,
}

impl Balancer {
    /// Returns `None` for a Service without such addresses.
    fn of(service: &Service) -> Option<Self> {
        if !has_own_address(service) {
            return None;
        }
        let policy = service.spec.as_ref().and_then(|spec| spec.external_traffic_policy.as_deref());
        let about = ObjectReference { resource_version: None, ..reference(service) };
        let addresses = balancer_addresses(service);
        (!addresses.is_empty()).then_some(Self { addresses, local: policy == Some("Local"), about })
    }
}

#[derive(Default)]
pub(super) struct Balancers {
    services: Mutex<BTreeMap<ObjectKey, Balancer>>,
    wake: Notify,
}

impl Balancers {
    /// Follows the caches. The handlers of the change tracker come first.
    pub fn follow(self: &Arc<Self>, caches: &Caches) {
        let to = Arc::clone(self);
        caches.services.on_change(move |change| to.service(change));
        let to = Arc::clone(self);
        caches.slices.on_change(move |change| to.slice(change));
    }

    fn service(&self, change: &Change<ServiceProjection>) {
        let balancer = match change {
            Change::Applied { new, .. } => new.has_own_address().then(|| Balancer::of(&new.read())).flatten(),
            Change::Deleted(_) => None,
        };
        let (key, mut services) = (change.key(), self.lock());
        if services.get(&key) == balancer.as_ref() {
            return;
        }
        match balancer {
            Some(balancer) => drop(services.insert(key, balancer)),
            None => drop(services.remove(&key)),
        }
        drop(services);
        self.changed();
    }

    fn slice(&self, change: &Change<Slice>) {
        let old = match change {
            Change::Applied { old, .. } => old.as_ref().and_then(|old| old.service()),
            Change::Deleted(_) => None,
        };
        let concerned = [old, change.object().service()];
        let services = self.lock();
        let local = |key: &ObjectKey| services.get(key).is_some_and(|balancer| balancer.local);
        if concerned.iter().flatten().any(local) {
            drop(services);
            self.changed();
        }
    }

    pub fn changed(&self) {
        self.wake.notify_one();
    }

    /// Waits for a change.
    pub async fn noted(&self) {
        self.wake.notified().await;
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub fn list(&self) -> Vec<(ObjectKey, Balancer)> {
        self.lock().iter().map(|(key, balancer)| (key.clone(), balancer.clone())).collect()
    }

    /// Returns a reference to the Service that has the address.
    pub fn owner(&self, address: IpAddr) -> Option<ObjectReference> {
        let services = self.lock();
        let owner = services.values().find(|balancer| balancer.addresses.contains(&address));
        owner.map(|balancer| balancer.about.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Balancer>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use apiserver_client::cache::Projection;
    use serde_json::json;

    use super::*;

    fn service(condition: &str, kind: &str, policy: &str) -> Arc<ServiceProjection> {
        let object = json!({
            "metadata": {"namespace": "ns", "name": "web", "uid": "u", "resourceVersion": "7"},
            "spec": {"type": kind, "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
                     "externalTrafficPolicy": policy, "ports": [{"port": 80}]},
            "status": {
                "loadBalancer": {"ingress": [
                    {"ip": "192.0.2.240", "ipMode": "VIP"}, {"ip": "2001:db8::1", "ipMode": "VIP"},
                    {"ip": "192.0.2.241", "ipMode": "Proxy"}]},
                "conditions": [{"type": condition, "status": "True", "reason": "Assigned", "message": "",
                                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            },
        });
        Arc::new(ServiceProjection::project(serde_json::from_value(object).unwrap()))
    }

    fn after(services: &[Arc<ServiceProjection>]) -> Vec<(ObjectKey, Balancer)> {
        let balancers = Balancers::default();
        for new in services {
            balancers.service(&Change::Applied { old: None, new: Arc::clone(new) });
        }
        balancers.list()
    }

    #[test]
    fn addresses_that_our_controller_assigned_are_announced() {
        let ours = service("hawser.dev/AddressAssigned", "LoadBalancer", "Local");
        let [(key, balancer)] = &after(&[Arc::clone(&ours)])[..] else { panic!("it is announced") };
        assert_eq!(key.to_string(), "ns/web");
        // Only families in which the Service has a cluster address, and no proxy's addresses.
        assert_eq!(balancer.addresses, ["192.0.2.240".parse::<IpAddr>().unwrap()]);
        assert!(balancer.local);
        assert_eq!((balancer.about.name.as_deref(), balancer.about.uid.as_deref()), (Some("web"), Some("u")));
        let typed = service("hawser.dev/AddressAssigned", "NodePort", "Cluster");
        assert_eq!(after(&[ours, typed]), [], "it is of another type now");
    }

    #[test]
    fn the_addresses_of_cloud_controllers_are_not_announced() {
        assert_eq!(after(&[service("example.com/AddressAssigned", "LoadBalancer", "Cluster")]), []);
    }
}
