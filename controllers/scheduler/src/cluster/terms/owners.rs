//! Selectors of Services and controllers, which spreading by default goes by.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::{Labels, Metadata};

use crate::limits;
use crate::pod::PodInfo;
use crate::selector::Selector;

/// A kind of controller whose pods are spread by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    ReplicationController,
    ReplicaSet,
    StatefulSet,
}

/// Selectors by name.
#[derive(Debug, Default)]
struct InNamespace {
    services: BTreeMap<String, Labels>,
    controllers: BTreeMap<(Owner, String), Controlled>,
    /// Selectors by labels and controller of the pods; emptied with each change.
    found: BTreeMap<Arc<Labels>, ByOwner>,
}

/// Selectors by kind and name of the controller, if there is one.
type ByOwner = BTreeMap<Option<(Owner, String)>, Option<Arc<Selector>>>;

/// The selector of a controller.
#[derive(Debug)]
enum Controlled {
    /// The selector of a ReplicationController, whose values take the place of those of Services.
    Labels(Labels),
    Selector(Selector),
}

/// Selectors of Services, ReplicationControllers, ReplicaSets and StatefulSets by namespace.
#[derive(Debug, Default)]
pub struct Owners {
    namespaces: BTreeMap<Arc<str>, InNamespace>,
}

impl Owners {
    /// Sets the selector of a Service; `None` if it has none or is gone.
    pub fn set_service(&mut self, namespace: &str, name: &str, selector: Option<Labels>) {
        replace(&mut self.entry(namespace).services, name.to_owned(), selector);
        self.forget_empty(namespace);
    }

    /// Sets the selector of a ReplicationController; `None` if it is gone.
    pub fn set_replication_controller(&mut self, namespace: &str, name: &str, selector: Option<Labels>) {
        let owner = (Owner::ReplicationController, name.to_owned());
        replace(&mut self.entry(namespace).controllers, owner, selector.map(Controlled::Labels));
        self.forget_empty(namespace);
    }

    /// Sets the selector of a controller; `None` if it is gone.
    pub fn set_controller(&mut self, owner: Owner, namespace: &str, name: &str, selector: Option<Selector>) {
        let owner = (owner, name.to_owned());
        replace(&mut self.entry(namespace).controllers, owner, selector.map(Controlled::Selector));
        self.forget_empty(namespace);
    }

    fn forget_empty(&mut self, namespace: &str) {
        let is_empty = |known: &InNamespace| known.services.is_empty() && known.controllers.is_empty();
        if self.namespaces.get(namespace).is_some_and(is_empty) {
            self.namespaces.remove(namespace);
        }
    }

    fn entry(&mut self, namespace: &str) -> &mut InNamespace {
        let entry = self.namespaces.entry(namespace.into()).or_default();
        entry.found.clear();
        entry
    }

    /// Remembers the selector by which a pod is spread by default.
    pub fn add(&mut self, pod: &PodInfo) {
        let Some(known) = self.namespaces.get_mut(pod.namespace()) else { return };
        let owner = owner(pod);
        if known.found.get(pod.labels()).is_some_and(|by_owner| by_owner.contains_key(&owner)) {
            return;
        }
        if known.found.len() >= limits::DEFAULT_SELECTORS {
            known.found.clear();
        }
        let selector = known.find(pod);
        known.found.entry(pod.shared_labels()).or_default().insert(owner, selector);
    }

    /// Returns the selector by which a pod is spread by default; `None` if nothing is required of the pods (`DefaultSelector`).
    pub fn selector(&self, pod: &PodInfo) -> Option<Arc<Selector>> {
        let known = self.namespaces.get(pod.namespace())?;
        let found = known.found.get(pod.labels()).and_then(|by_owner| by_owner.get(&owner(pod)));
        found.cloned().unwrap_or_else(|| known.find(pod))
    }
}

impl InNamespace {
    fn find(&self, pod: &PodInfo) -> Option<Arc<Selector>> {
        let selects =
            |selector: &Labels| selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value));
        let mut labels = Labels::new();
        for selector in self.services.values().filter(|selector| selects(selector)) {
            labels.extend(selector.clone());
        }
        let more = owner(pod).and_then(|owner| self.controllers.get(&owner));
        if let Some(Controlled::Labels(more)) = more {
            labels.extend(more.clone());
        }
        let selector = Selector::of_labels(&labels);
        let selector = match more {
            Some(Controlled::Selector(more)) => selector.and(more),
            _ => selector,
        };
        (!selector.is_empty()).then(|| Arc::new(selector))
    }
}

/// Returns kind and name of a pod's controller; `None` if it is none that spreading knows.
fn owner(pod: &PodInfo) -> Option<(Owner, String)> {
    let owner = pod.metadata.owners().iter().find(|owner| owner.controller == Some(true))?;
    let kind = match (owner.api_version.as_str(), owner.kind.as_str()) {
        ("v1", "ReplicationController") => Owner::ReplicationController,
        ("apps/v1", "ReplicaSet") => Owner::ReplicaSet,
        ("apps/v1", "StatefulSet") => Owner::StatefulSet,
        _ => return None,
    };
    Some((kind, owner.name.clone()))
}

fn replace<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    fn labels(list: &[(&str, &str)]) -> Labels {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn owned(labels: Value, version: &str, kind: &str, is_controller: bool) -> Arc<PodInfo> {
        let owner = json!([{"apiVersion": version, "kind": kind, "name": "o", "uid": "o", "controller": is_controller}]);
        testing::pod("p", json!({"metadata": {"labels": labels, "ownerReferences": owner}}))
    }

    /// Returns the selector for a pod, which is the same if it was added before.
    fn selector(owners: &mut Owners, pod: &PodInfo) -> Option<Selector> {
        let before = owners.selector(pod);
        owners.add(pod);
        let selector = owners.selector(pod);
        assert_eq!(selector, before);
        selector.map(|selector| selector.as_ref().clone())
    }

    #[test]
    fn pods_have_the_selectors_of_the_services_that_select_them() {
        let mut owners = Owners::default();
        for number in 0..3 {
            let app = format!("app-{number}");
            owners.set_service("default", &format!("s{number}"), Some(labels(&[("app", &app)])));
        }
        owners.set_service("other", "s", Some(labels(&[("app", "app-4")])));
        for number in 0..5 {
            let app = format!("app-{number}");
            let pod = testing::pod("p", json!({"metadata": {"labels": {"app": app, "label": "any"}}}));
            let expected = (number < 3).then(|| Selector::of_labels(&labels(&[("app", &app)])));
            assert_eq!(selector(&mut owners, &pod), expected, "{app}");
        }
    }

    #[test]
    fn selectors_of_services_and_controllers_are_added_up() {
        let pod = || json!({"app": "a"});
        let plain = testing::pod("p", json!({"metadata": {"labels": pod()}}));
        let mut owners = Owners::default();
        assert_eq!(selector(&mut owners, &plain), None, "nothing is known");
        owners.set_service("default", "s", Some(labels(&[("app", "a")])));
        let service = Selector::of_labels(&labels(&[("app", "a")]));
        assert_eq!(selector(&mut owners, &plain), Some(service.clone()));
        owners.set_replication_controller("default", "o", Some(labels(&[("tier", "rc")])));
        for (owner, tier) in [(Owner::ReplicaSet, "rs"), (Owner::StatefulSet, "sts")] {
            let of_tier = Selector::of_labels(&labels(&[("tier", tier)]));
            owners.set_controller(owner, "default", "o", Some(of_tier));
        }
        for (version, kind, tier) in [
            ("apps/v1", "ReplicaSet", "rs"),
            ("v1", "ReplicationController", "rc"),
            ("apps/v1", "StatefulSet", "sts"),
        ] {
            let both = Selector::of_labels(&labels(&[("app", "a"), ("tier", tier)]));
            assert_eq!(selector(&mut owners, &owned(pod(), version, kind, true)), Some(both), "{kind}");
        }
        for (version, kind, is_controller) in [
            ("apps/v1", "DaemonSet", true),
            ("other/v1", "ReplicaSet", true),
            ("apps/v1", "ReplicaSet", false),
        ] {
            let pod = owned(pod(), version, kind, is_controller);
            assert_eq!(selector(&mut owners, &pod), Some(service.clone()), "{version} {kind}");
        }
        let alone = owned(json!({}), "apps/v1", "ReplicaSet", true);
        let of_set = Selector::of_labels(&labels(&[("tier", "rs")]));
        assert_eq!(selector(&mut owners, &alone), Some(of_set), "no service selects the pod");
    }
}
