//! Indexes that find the objects of a selector, an owner or a node, and the owners of an object, without scanning
//! all of them: the latency from readiness to traffic must not grow with the cluster.
//!
//! Those by label return candidates only; the caller compares the whole selector with the object in the cache.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use apiserver_client::{Cache, Change, Index, IndexBy, Metadata as _, Object, ObjectKey, Projection};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource;

use crate::meta::{
    Labels, controller_of, name, namespace, retain_selected, selects, selects_map, selects_or_all,
};
use crate::pods::{Pod, claims_of};

/// A label with its value, in a namespace.
type Pair = (String, String, String);

fn pair(namespace: &str, (key, value): (&String, &String)) -> Pair {
    (namespace.to_owned(), key.clone(), value.clone())
}

/// Index by each label.
pub(crate) struct ByLabel;

impl<K: Object> IndexBy<K> for ByLabel {
    type Value = Pair;

    fn values(object: &K) -> Vec<Pair> {
        let meta = object.metadata();
        meta.labels().into_iter().flatten().map(|label| pair(namespace(meta), label)).collect()
    }
}

/// Index by the UID of the controlling owner.
pub(crate) struct ByController;

impl<K: Object> IndexBy<K> for ByController {
    type Value = String;

    fn values(object: &K) -> Vec<String> {
        controller_of(object.metadata()).map(|owner| owner.uid.clone()).into_iter().collect()
    }
}

/// Index by the name of the node.
pub(crate) struct ByNode;

impl IndexBy<Pod> for ByNode {
    type Value = String;

    fn values(pod: &Pod) -> Vec<String> {
        Some(pod.node_name()).filter(|node| !node.is_empty()).map(str::to_owned).into_iter().collect()
    }
}

/// Index by the PersistentVolumeClaims behind the volumes.
pub(crate) struct ByClaim;

impl IndexBy<Pod> for ByClaim {
    type Value = ObjectKey;

    fn values(pod: &Pod) -> Vec<ObjectKey> {
        let namespace = namespace(&pod.metadata);
        claims_of(pod).map(|claim| ObjectKey::new(namespace, &claim)).collect()
    }
}

/// Objects that others own, by label and by owner.
pub(crate) struct Owned<K: Object> {
    cache: Cache<K>,
    by_label: Index<K, ByLabel>,
    by_controller: Index<K, ByController>,
}

/// Pods by label and by owner.
pub(crate) type Pods = Owned<Pod>;

impl<K: Object> Clone for Owned<K> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            by_label: self.by_label.clone(),
            by_controller: self.by_controller.clone(),
        }
    }
}

impl<K: Object + Projection + Send + Sync> Owned<K> {
    pub fn new(cache: Cache<K>) -> Self {
        let (by_label, by_controller) = (cache.index(), cache.index());
        Self { cache, by_label, by_controller }
    }

    pub fn cache(&self) -> &Cache<K> {
        &self.cache
    }

    /// Returns the objects that a map selector matches, by name. An empty selector matches none.
    pub fn selected(&self, namespace: &str, selector: &Labels) -> Vec<Arc<K>> {
        let mut objects = self.with_rarest(namespace, selector);
        objects.retain(|object| selects_map(selector, object.metadata().labels()));
        objects
    }

    /// Returns the objects with that of some labels which the fewest have, by name. Without labels there are none.
    fn with_rarest(&self, namespace: &str, labels: &Labels) -> Vec<Arc<K>> {
        let pairs = labels.iter().map(|label| pair(namespace, label));
        let rarest = pairs.min_by_key(|pair| self.by_label.count(pair));
        rarest.map(|rarest| self.by_label.get(&rarest)).unwrap_or_default()
    }

    /// Returns candidates for objects that have, of each key, one of the values as a label. Without any, all objects of
    /// the namespace are.
    pub fn labelled<'a>(
        &self,
        namespace: &str,
        labels: impl Iterator<Item = (&'a str, &'a BTreeSet<String>)>,
    ) -> Vec<Arc<K>> {
        let pairs = labels.map(|(key, values)| {
            let pair = |value: &String| (namespace.to_owned(), key.to_owned(), value.clone());
            values.iter().map(pair).collect::<Vec<Pair>>()
        });
        let count = |pairs: &Vec<Pair>| pairs.iter().map(|pair| self.by_label.count(pair)).sum::<usize>();
        match pairs.min_by_key(count) {
            Some(rarest) => rarest.iter().flat_map(|pair| self.by_label.get(pair)).collect(),
            None => self.cache.list_namespace(namespace),
        }
    }

    /// Returns the objects that the owner controls and candidates for those that its selector matches, by name.
    pub fn concerned(&self, namespace: &str, owner: &str, selector: &LabelSelector) -> Vec<Arc<K>> {
        let Some(labels) = selector.match_labels.as_ref().filter(|labels| !labels.is_empty()) else {
            return self.cache.list_namespace(namespace);
        };
        union(self.with_rarest(namespace, labels), self.controlled(owner))
    }

    /// Returns the objects of a namespace that a selector matches, by name. An empty selector matches all.
    pub fn matching(&self, space: &str, selector: &LabelSelector) -> Vec<Arc<K>> {
        let mut objects = self.candidates(space, selector);
        retain_selected(&mut objects, selector);
        objects
    }

    /// Returns a small set of objects that contains all that a selector matches, by name.
    fn candidates(&self, space: &str, selector: &LabelSelector) -> Vec<Arc<K>> {
        if let Some(labels) = selector.match_labels.as_ref().filter(|labels| !labels.is_empty()) {
            return self.selected(space, labels);
        }
        let any_of = selector.match_expressions.iter().flatten().find(|one| one.operator == "In");
        let Some(any_of) = any_of else { return self.cache.list_namespace(space) };
        let values: BTreeSet<&String> = any_of.values.iter().flatten().collect();
        // An object has one value of a label, so it is found once.
        let found = values.into_iter().map(|value| self.by_label.get(&pair(space, (&any_of.key, value))));
        found.reduce(union).unwrap_or_default()
    }

    /// Returns the objects that the owner, given by its UID, controls, by name.
    pub fn controlled(&self, owner: &str) -> Vec<Arc<K>> {
        self.by_controller.get(&owner.to_owned())
    }
}

/// Merges objects that are ordered by key; one that is in both comes once.
fn union<K: Object>(a: Vec<Arc<K>>, b: Vec<Arc<K>>) -> Vec<Arc<K>> {
    fn key<K: Object>(object: &Arc<K>) -> (&str, &str) {
        (namespace(object.metadata()), name(object.metadata()))
    }
    if b.is_empty() {
        return a;
    }
    let mut merged = Vec::with_capacity(a.len().max(b.len()));
    let (mut a, mut b) = (a.into_iter().peekable(), b.into_iter().peekable());
    while let (Some(one), Some(other)) = (a.peek(), b.peek()) {
        // Mostly both are of the same objects.
        let order = if Arc::ptr_eq(one, other) { Ordering::Equal } else { key(one).cmp(&key(other)) };
        merged.extend(if order == Ordering::Greater { b.next() } else { a.next() });
        if order == Ordering::Equal {
            b.next();
        }
    }
    merged.extend(a.chain(b));
    merged
}

/// The selector of an object.
#[derive(Clone, Copy)]
pub(crate) enum Selector<'a> {
    /// Pairs, as the older kinds have it.
    Map(&'a Labels),
    Full(&'a LabelSelector),
    /// Like `Full`, but an empty one selects all objects.
    Open(&'a LabelSelector),
}

impl<'a> Selector<'a> {
    /// Returns pairs that every selected object has as labels; `None` if none is selected.
    fn pairs(self) -> Option<Vec<(&'a String, &'a String)>> {
        match self {
            Self::Map(labels) => (!labels.is_empty()).then(|| labels.iter().collect()),
            Self::Full(selector) | Self::Open(selector) => {
                Some(selector.match_labels.iter().flatten().collect())
            }
        }
    }

    /// Returns it in the form of the newer kinds.
    pub fn full(self) -> Cow<'a, LabelSelector> {
        match self {
            Self::Map(labels) => {
                let match_labels = Some(labels.clone());
                Cow::Owned(LabelSelector { match_labels, match_expressions: None })
            }
            Self::Full(selector) | Self::Open(selector) => Cow::Borrowed(selector),
        }
    }

    /// Returns `true` if an object with these labels is selected.
    fn matches(self, labels: Option<&Labels>) -> bool {
        match self {
            Self::Map(selector) => selects_map(selector, labels),
            Self::Full(selector) => selects(selector, labels),
            Self::Open(selector) => selects_or_all(selector, labels),
        }
    }
}

/// An object that selects others by their labels.
pub(crate) trait Selects {
    /// Returns the selector; `None` if the object selects none.
    fn selector(&self) -> Option<Selector<'_>>;
}

impl Selects for Service {
    fn selector(&self) -> Option<Selector<'_>> {
        self.spec.as_ref()?.selector.as_ref().map(Selector::Map)
    }
}

impl Selects for ReplicationController {
    fn selector(&self) -> Option<Selector<'_>> {
        self.spec.as_ref()?.selector.as_ref().map(Selector::Map)
    }
}

impl Selects for ReplicaSet {
    fn selector(&self) -> Option<Selector<'_>> {
        self.spec.as_ref().map(|spec| Selector::Full(&spec.selector))
    }
}

impl Selects for Deployment {
    fn selector(&self) -> Option<Selector<'_>> {
        self.spec.as_ref().map(|spec| Selector::Full(&spec.selector))
    }
}

impl Selects for StatefulSet {
    fn selector(&self) -> Option<Selector<'_>> {
        self.spec.as_ref().map(|spec| Selector::Full(&spec.selector))
    }
}

impl Selects for Job {
    fn selector(&self) -> Option<Selector<'_>> {
        self.spec.as_ref()?.selector.as_ref().map(Selector::Full)
    }
}

impl Selects for DaemonSet {
    fn selector(&self) -> Option<Selector<'_>> {
        self.spec.as_ref().map(|spec| Selector::Full(&spec.selector))
    }
}

impl Selects for PodDisruptionBudget {
    fn selector(&self) -> Option<Selector<'_>> {
        self.spec.as_ref()?.selector.as_ref().map(Selector::Open)
    }
}

/// Objects by one pair of their selectors: the rarest when they were seen.
pub(crate) struct Selectors<K> {
    cache: Cache<K>,
    index: Arc<RwLock<SelectorIndex>>,
}

/// Services by one pair of their selectors.
pub(crate) type Services = Selectors<Service>;

impl<K> Clone for Selectors<K> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), index: Arc::clone(&self.index) }
    }
}

/// Names of the objects, in their order; those without a pair stand under empty ones, which no label is. Most pairs are
/// those of one object.
#[derive(Default)]
struct SelectorIndex(BTreeMap<Pair, Vec<Box<str>>>);

impl<K: Resource + Selects + Send + Sync + 'static> Selectors<K> {
    /// Creates the index. It has to be created before handlers are added to the cache that rely on it.
    pub fn new(cache: Cache<K>) -> Self {
        let selectors = Self { cache, index: Arc::default() };
        let index = Arc::clone(&selectors.index);
        selectors.cache.on_change(move |change| {
            let mut index = index.write().unwrap_or_else(PoisonError::into_inner);
            let (old, new) = match change {
                Change::Applied { old, new } => (old.as_ref(), Some(new)),
                Change::Deleted(old) => (Some(old), None),
            };
            old.into_iter().for_each(|old| index.remove(old.as_ref()));
            new.into_iter().for_each(|new| index.insert(new.as_ref()));
        });
        selectors
    }

    pub fn cache(&self) -> &Cache<K> {
        &self.cache
    }

    /// Returns the keys of the objects that select `object`.
    pub fn selecting<T: Object>(&self, object: &T) -> Vec<ObjectKey> {
        let meta = object.metadata();
        let space = namespace(meta);
        let candidates: BTreeSet<Box<str>> = {
            let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
            let pairs =
                meta.labels().into_iter().flatten().map(|label| pair(space, label)).chain([no_pair(space)]);
            pairs.filter_map(|pair| index.0.get(&pair)).flatten().cloned().collect()
        };
        let keys = candidates.into_iter().map(|name| ObjectKey::new(space, &name));
        keys.filter(|key| {
            let selects = |one: Arc<K>| Some(one.selector()?.matches(meta.labels()));
            self.cache.get(key).and_then(selects) == Some(true)
        })
        .collect()
    }
}

/// Returns the pair under which objects without any stand.
fn no_pair(namespace: &str) -> Pair {
    pair(namespace, (&String::new(), &String::new()))
}

/// Returns the place of an object among names, or where it is to be.
fn search<K: Resource>(names: &[Box<str>], object: &K) -> Result<usize, usize> {
    names.binary_search_by(|known| (**known).cmp(name(object.meta())))
}

impl SelectorIndex {
    fn insert<K: Resource + Selects>(&mut self, object: &K) {
        let space = namespace(object.meta());
        let Some(pairs) = object.selector().and_then(Selector::pairs) else { return };
        let pairs = pairs.into_iter().map(|label| pair(space, label));
        let rarest = pairs.min_by_key(|pair| self.0.get(pair).map_or(0, Vec::len));
        let place = rarest.unwrap_or_else(|| no_pair(space));
        let names = self.0.entry(place).or_insert_with(|| Vec::with_capacity(1));
        if let Err(place) = search(names, object) {
            names.insert(place, name(object.meta()).into());
        }
    }

    /// Removes an object, which is under one of its pairs.
    fn remove<K: Resource + Selects>(&mut self, object: &K) {
        let space = namespace(object.meta());
        let Some(pairs) = object.selector().and_then(Selector::pairs) else { return };
        let pairs = pairs.into_iter().map(|label| pair(space, label));
        for place in pairs.chain([no_pair(space)]) {
            let Some(names) = self.0.get_mut(&place) else { continue };
            search(names, object).ok().map(|place| names.remove(place));
            if names.is_empty() {
                self.0.remove(&place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{labels, meta, pod, slim};
    use k8s_openapi::api::core::v1::{self, ServiceSpec};

    fn labelled(name: &str, pairs: &[(&str, &str)], version: &str) -> v1::Pod {
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
    fn candidates_are_those_with_the_rarest_label() {
        let pods = Pods::new(Cache::default());
        for (name, tier, version) in [("a", "x", "1"), ("b", "y", "2"), ("c", "z", "3")] {
            pods.cache.apply(labelled(name, &[("app", "web"), ("tier", tier)], version));
        }
        let set = |values: &[&str]| values.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        let (app, tiers) = (set(&["web"]), set(&["x", "z"]));
        let found = |labels: &[(&'static str, &BTreeSet<String>)]| -> Vec<String> {
            let found = pods.labelled("ns", labels.iter().copied());
            found.iter().map(|pod| name(&pod.metadata).to_owned()).collect()
        };
        assert_eq!(found(&[("app", &app), ("tier", &tiers)]), ["a", "c"]);
        assert_eq!(found(&[("app", &app)]), ["a", "b", "c"]);
        assert_eq!(found(&[]), ["a", "b", "c"]);
        assert!(pods.labelled("other", std::iter::empty()).is_empty());
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
    fn union_is_ordered_and_has_each_object_once() {
        let of = |names: &[&str]| slim(names.iter().map(|name| pod(name)));
        for (a, b, both) in [
            (&["a", "c"][..], &["b", "c", "d"][..], &["a", "b", "c", "d"][..]),
            (&[], &["a"], &["a"]),
            (&["a"], &[], &["a"]),
            (&["a", "b"], &["a", "b"], &["a", "b"]),
        ] {
            assert_eq!(names(&union(of(a), of(b))), both);
            assert_eq!(names(&union(of(b), of(a))), both);
        }
    }

    #[test]
    fn sets_with_expressions_alone_are_candidates_for_all() {
        let sets = Selectors::<ReplicaSet>::new(Cache::default());
        let mut set = crate::testing::replica_set("rs", 1);
        let selector: LabelSelector = serde_json::from_value(serde_json::json!({
            "matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "shop"]}]
        }))
        .unwrap();
        set.spec.as_mut().unwrap().selector = selector;
        sets.cache.apply(set);
        let found = |label| sets.selecting(&labelled("p", &[("app", label)], "9")).len();
        assert_eq!((found("shop"), found("other")), (1, 0));
    }

    #[test]
    fn budgets_and_pods_find_each_other_and_an_empty_selector_is_of_the_whole_namespace() {
        let pods = Pods::new(Cache::default());
        let budgets = Selectors::<PodDisruptionBudget>::new(Cache::default());
        for (name, app, version) in [("a", "web", "1"), ("b", "shop", "2"), ("c", "other", "3")] {
            pods.cache.apply(labelled(name, &[("app", app)], version));
        }
        let mut foreign = labelled("foreign", &[("app", "web")], "4");
        foreign.metadata.namespace = Some("other".to_owned());
        pods.cache.apply(foreign);
        let any_of = |values: &[&str]| serde_json::json!({"matchExpressions": [{"key": "app", "operator": "In", "values": values}]});
        let shops = any_of(&["web", "shop"]);
        let mut both = any_of(&["web", "shop"]);
        both["matchLabels"] = serde_json::json!({"app": "web"});
        let named = serde_json::json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]});
        let unreadable = serde_json::json!({"matchExpressions": [{"key": "app", "operator": "Near"}]});
        for (name, selector, wanted) in [
            ("all", serde_json::json!({}), &["a", "b", "c"][..]),
            ("none", serde_json::Value::Null, &[]),
            ("shops", shops, &["a", "b"]),
            ("both", both, &["a"]),
            ("named", named, &["a", "b", "c"]),
            ("unreadable", unreadable, &[]),
        ] {
            let budget = serde_json::json!({"metadata": {"name": name, "namespace": "ns",
                "resourceVersion": "5"}, "spec": {"selector": selector}});
            let budget: PodDisruptionBudget = serde_json::from_value(budget).unwrap();
            let selector = budget.spec.as_ref().unwrap().selector.clone();
            let found = selector.map(|selector| pods.matching("ns", &selector)).unwrap_or_default();
            assert_eq!(names(&found), wanted, "{name}");
            budgets.cache.apply(budget);
            let of = |pod: &&Arc<Pod>| budgets.selecting(pod.as_ref()).contains(&ObjectKey::new("ns", name));
            let selected: Vec<Arc<Pod>> = pods.cache.list().iter().filter(of).cloned().collect();
            assert_eq!(names(&selected), wanted, "{name}");
        }
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
        services.cache.delete(&ObjectKey::new("ns", "a"));
        assert!(services.index.read().unwrap().0.is_empty(), "pairs that no object has are forgotten");
    }
}
