//! Indexes that find the pods of a selector or owner, and the Services of a pod, without scanning all of
//! them: the latency from readiness to traffic must not grow with the cluster.
//!
//! The indexes return candidates only; the caller compares the whole selector with the object in the cache.
//! They are registered before all other handlers, so that they are up to date when the work that a change
//! triggers begins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use apiserver_client::{Cache, Change, ObjectKey};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::meta::{Labels, controller_of, namespace, selects_map};

/// A label with its value, in a namespace.
type Pair = (String, String, String);

fn pair(namespace: &str, (key, value): (&String, &String)) -> Pair {
    (namespace.to_owned(), key.clone(), value.clone())
}

/// Pods by each of their labels and by their controller.
#[derive(Clone)]
pub(crate) struct Pods {
    cache: Cache<Pod>,
    index: Arc<RwLock<PodIndex>>,
}

#[derive(Default)]
struct PodIndex {
    by_label: BTreeMap<Pair, BTreeSet<String>>,
    by_owner: BTreeMap<String, BTreeSet<ObjectKey>>,
}

impl Pods {
    pub fn new(cache: Cache<Pod>) -> Self {
        let pods = Self { cache, index: Arc::default() };
        let index = Arc::clone(&pods.index);
        pods.cache.on_change(move |change| {
            let mut index = index.write().unwrap_or_else(PoisonError::into_inner);
            match change {
                Change::Applied { old, new } => {
                    let moved = old.as_ref().is_none_or(|old| {
                        old.metadata.labels != new.metadata.labels
                            || old.metadata.owner_references != new.metadata.owner_references
                    });
                    if moved {
                        old.iter().for_each(|old| index.set(old, false));
                        index.set(new, true);
                    }
                }
                Change::Deleted(pod) => index.set(pod, false),
            }
        });
        pods
    }

    /// Returns the pods that a map selector matches, by name. An empty selector matches none.
    pub fn selected(&self, namespace: &str, selector: &Labels) -> Vec<Arc<Pod>> {
        let names = {
            let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
            let buckets = selector.iter().map(|label| index.by_label.get(&pair(namespace, label)));
            // If no pod has one of the labels, no pod matches.
            let Some(buckets) = buckets.collect::<Option<Vec<_>>>() else { return Vec::new() };
            buckets.into_iter().min_by_key(|bucket| bucket.len()).cloned().unwrap_or_default()
        };
        let pods = names.iter().filter_map(|name| self.cache.get(&ObjectKey::new(namespace, name)));
        pods.filter(|pod| selects_map(selector, pod.metadata.labels.as_ref())).collect()
    }

    /// Returns the pods that the owner controls and those that its selector may match, by name.
    pub fn concerned(&self, namespace: &str, owner: &str, selector: &LabelSelector) -> Vec<Arc<Pod>> {
        let Some(labels) = selector.match_labels.as_ref().filter(|labels| !labels.is_empty()) else {
            return self.cache.list_namespace(namespace);
        };
        let picked = self.selected(namespace, labels);
        let mut found: BTreeMap<ObjectKey, Arc<Pod>> =
            picked.into_iter().map(|pod| (ObjectKey::of(pod.as_ref()), pod)).collect();
        found.extend(self.controlled(owner).into_iter().map(|pod| (ObjectKey::of(pod.as_ref()), pod)));
        found.into_values().collect()
    }

    /// Returns the pods that the owner controls, by name.
    pub fn controlled(&self, owner: &str) -> Vec<Arc<Pod>> {
        let keys = {
            let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
            index.by_owner.get(owner).cloned().unwrap_or_default()
        };
        keys.iter().filter_map(|key| self.cache.get(key)).collect()
    }
}

impl PodIndex {
    fn set(&mut self, pod: &Pod, present: bool) {
        let key = ObjectKey::of(pod);
        for label in pod.metadata.labels.iter().flatten() {
            set(&mut self.by_label, pair(&key.namespace, label), key.name.clone(), present);
        }
        if let Some(owner) = controller_of(&pod.metadata) {
            set(&mut self.by_owner, owner.uid.clone(), key, present);
        }
    }
}

fn set<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: V, present: bool) {
    if present {
        map.entry(key).or_default().insert(value);
    } else if let Some(values) = map.get_mut(&key) {
        values.remove(&value);
        if values.is_empty() {
            map.remove(&key);
        }
    }
}

/// Services by one label of their selectors: the rarest when they were seen.
#[derive(Clone)]
pub(crate) struct Services {
    cache: Cache<Service>,
    index: Arc<RwLock<ServiceIndex>>,
}

#[derive(Default)]
struct ServiceIndex {
    by_pair: BTreeMap<Pair, BTreeSet<String>>,
    pair_of: BTreeMap<ObjectKey, Pair>,
}

impl Services {
    pub fn new(cache: Cache<Service>) -> Self {
        let services = Self { cache, index: Arc::default() };
        let index = Arc::clone(&services.index);
        services.cache.on_change(move |change| {
            let mut index = index.write().unwrap_or_else(PoisonError::into_inner);
            index.remove(&change.key());
            if let Change::Applied { new, .. } = change {
                index.insert(new);
            }
        });
        services
    }

    pub fn cache(&self) -> &Cache<Service> {
        &self.cache
    }

    /// Returns the Services that select the pod.
    pub fn selecting(&self, pod: &Pod) -> Vec<ObjectKey> {
        let space = namespace(&pod.metadata);
        let candidates: BTreeSet<String> = {
            let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
            let labels = pod.metadata.labels.iter().flatten();
            labels.filter_map(|label| index.by_pair.get(&pair(space, label))).flatten().cloned().collect()
        };
        let keys = candidates.into_iter().map(|name| ObjectKey::new(space, &name));
        keys.filter(|key| {
            let selector = self.cache.get(key).and_then(|service| service.spec.as_ref()?.selector.clone());
            selector.is_some_and(|selector| selects_map(&selector, pod.metadata.labels.as_ref()))
        })
        .collect()
    }
}

impl ServiceIndex {
    fn insert(&mut self, service: &Service) {
        let key = ObjectKey::of(service);
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let pairs = selector.into_iter().flatten().map(|label| pair(&key.namespace, label));
        let rarest = pairs.min_by_key(|pair| self.by_pair.get(pair).map_or(0, BTreeSet::len));
        if let Some(pair) = rarest {
            set(&mut self.by_pair, pair.clone(), key.name.clone(), true);
            self.pair_of.insert(key, pair);
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        if let Some(pair) = self.pair_of.remove(key) {
            set(&mut self.by_pair, pair, key.name.clone(), false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::name;
    use crate::testing::{labels, meta, pod};
    use k8s_openapi::api::core::v1::ServiceSpec;

    fn labelled(name: &str, pairs: &[(&str, &str)], version: &str) -> Pod {
        let mut pod = pod(name);
        pod.metadata.labels = Some(labels(pairs));
        pod.metadata.resource_version = Some(version.to_owned());
        pod
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|pod| name(&pod.metadata)).collect()
    }

    #[test]
    fn pods_are_found_only_by_all_labels() {
        let pods = Pods::new(Cache::default());
        pods.cache.apply(labelled("a", &[("app", "web"), ("tier", "x")], "1"));
        pods.cache.apply(labelled("b", &[("app", "web")], "2"));
        assert_eq!(names(&pods.selected("ns", &labels(&[("app", "web")]))), ["a", "b"]);
        assert_eq!(names(&pods.selected("ns", &labels(&[("app", "web"), ("tier", "x")]))), ["a"]);
        assert!(pods.selected("ns", &labels(&[("app", "web"), ("tier", "y")])).is_empty());
        assert!(pods.selected("ns", &Labels::new()).is_empty());
        assert!(pods.selected("other", &labels(&[("app", "web")])).is_empty());
        pods.cache.apply(labelled("a", &[("tier", "x")], "3"));
        pods.cache.delete(&ObjectKey::new("ns", "b"));
        assert!(pods.selected("ns", &labels(&[("app", "web")])).is_empty());
        assert_eq!(names(&pods.selected("ns", &labels(&[("tier", "x")]))), ["a"]);
    }

    #[test]
    fn an_owner_finds_its_pods_also_when_they_no_longer_match() {
        let owner = crate::testing::replica_set("rs", 1);
        let pods = Pods::new(Cache::default());
        let mut strayed = labelled("strayed", &[("app", "other")], "1");
        strayed.metadata.owner_references = Some(vec![crate::meta::controller_reference(&owner)]);
        pods.cache.apply(strayed);
        pods.cache.apply(labelled("orphan", &[("app", "test")], "2"));
        pods.cache.apply(labelled("stranger", &[("app", "other")], "3"));
        let selector = crate::testing::selector();
        assert_eq!(names(&pods.concerned("ns", "uid-rs", &selector)), ["orphan", "strayed"]);
        assert_eq!(names(&pods.concerned("ns", "uid-rs", &LabelSelector::default())).len(), 3);
        assert_eq!(names(&pods.controlled("uid-rs")), ["strayed"]);
    }

    #[test]
    fn services_are_found_by_their_pods_and_follow_their_selectors() {
        let services = Services::new(Cache::default());
        let service = |name: &str, selector: &[(&str, &str)], version: &str| {
            let spec = ServiceSpec { selector: Some(labels(selector)), ..ServiceSpec::default() };
            let mut service = Service { metadata: meta(name), spec: Some(spec), ..Service::default() };
            service.metadata.resource_version = Some(version.to_owned());
            service
        };
        services.cache.apply(service("a", &[("app", "web")], "1"));
        services.cache.apply(service("b", &[("app", "web"), ("tier", "x")], "2"));
        services.cache.apply(service("none", &[], "3"));
        let found = |pairs: &[(&str, &str)]| -> Vec<String> {
            services.selecting(&labelled("p", pairs, "9")).into_iter().map(|key| key.name).collect()
        };
        assert_eq!(found(&[("app", "web"), ("tier", "x")]), ["a", "b"]);
        assert_eq!(found(&[("app", "web")]), ["a"]);
        services.cache.apply(service("a", &[("app", "other")], "4"));
        assert!(found(&[("app", "web")]).is_empty());
        services.cache.delete(&ObjectKey::new("ns", "b"));
        assert!(found(&[("app", "web"), ("tier", "x")]).is_empty());
    }
}
