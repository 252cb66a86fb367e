//! The selectors of all autoscalers, to find pods that several of them scale.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_client::ObjectKey;

use super::selector::Selector;
use crate::meta::{Labels, labels};
use crate::pods::Pod;

/// The selector that each autoscaler was last judged with.
#[derive(Default)]
pub(super) struct Overlap(Mutex<BTreeMap<String, Namespace>>);

#[derive(Default)]
struct Namespace {
    selectors: BTreeMap<String, Arc<Selector>>,
    /// Names of autoscalers by one label that each pod of theirs has one of.
    by_label: BTreeMap<(String, String), BTreeSet<String>>,
    /// Names of those whose selectors require no value of a label.
    others: BTreeSet<String>,
}

impl Overlap {
    /// Notes the selector of an autoscaler; returns the keys of all that select one of these pods.
    pub fn select(
        &self,
        key: &ObjectKey,
        selector: &Arc<Selector>,
        pods: &[Arc<Pod>],
    ) -> BTreeSet<ObjectKey> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace = all.entry(key.namespace.clone()).or_default();
        namespace.put(&key.name, selector);
        let mut names = BTreeSet::new();
        // Most pods of a workload have the same labels.
        let mut seen: Option<&Labels> = None;
        for labels in pods.iter().filter_map(|pod| labels(&pod.metadata)) {
            if namespace.selectors.len() > 1 && seen != Some(labels) {
                namespace.selecting(labels, &mut names);
            }
            seen = Some(labels);
        }
        names.iter().map(|name| ObjectKey::new(&key.namespace, name)).collect()
    }

    /// Forgets an autoscaler that is gone.
    pub fn forget(&self, key: &ObjectKey) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(namespace) = all.get_mut(&key.namespace) {
            namespace.remove(&key.name);
            if namespace.selectors.is_empty() {
                all.remove(&key.namespace);
            }
        }
    }
}

impl Namespace {
    fn put(&mut self, name: &str, selector: &Arc<Selector>) {
        if self.selectors.get(name) == Some(selector) {
            return;
        }
        self.remove(name);
        let places = places(selector);
        if places.is_empty() {
            self.others.insert(name.to_owned());
        }
        for place in places {
            self.by_label.entry(place).or_default().insert(name.to_owned());
        }
        self.selectors.insert(name.to_owned(), Arc::clone(selector));
    }

    fn remove(&mut self, name: &str) {
        let Some(selector) = self.selectors.remove(name) else { return };
        self.others.remove(name);
        for place in places(&selector) {
            if let Some(names) = self.by_label.get_mut(&place) {
                names.remove(name);
                if names.is_empty() {
                    self.by_label.remove(&place);
                }
            }
        }
    }

    /// Adds the names of the autoscalers that select pods with these labels.
    fn selecting(&self, labels: &Labels, names: &mut BTreeSet<String>) {
        let pairs = labels.iter().map(|(key, value)| (key.clone(), value.clone()));
        let by_label = pairs.filter_map(|pair| self.by_label.get(&pair)).flatten();
        for name in by_label.chain(&self.others) {
            if self.selectors.get(name).is_some_and(|selector| selector.matches(Some(labels))) {
                names.insert(name.clone());
            }
        }
    }
}

/// Returns the labels of which every selected pod has one: those of the requirement with the fewest values.
fn places(selector: &Selector) -> Vec<(String, String)> {
    let fewest = selector.alternatives().min_by_key(|(_, values)| values.len());
    let Some((key, values)) = fewest else { return Vec::new() };
    values.iter().map(|value| (key.to_owned(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{labels, pod, slim};

    #[test]
    fn autoscalers_of_the_same_pods_are_found_until_they_select_others_or_go() {
        let overlap = Overlap::default();
        let pods = |pairs: &[(&str, &str)]| {
            let mut pod = pod("p");
            pod.metadata.labels = Some(labels(pairs));
            slim([pod])
        };
        let web = pods(&[("app", "web"), ("tier", "x")]);
        let select = |namespace: &str, name: &str, text: &str| -> Vec<String> {
            let selector = Arc::new(Selector::parse(text).unwrap());
            let keys = overlap.select(&ObjectKey::new(namespace, name), &selector, &web);
            keys.into_iter().map(|key| key.to_string()).collect()
        };
        select("ns", "a", "app=web");
        assert_eq!(select("ns", "b", "tier in (x,y)"), ["ns/a", "ns/b"]);
        assert_eq!(select("ns", "c", "app!=db"), ["ns/a", "ns/b", "ns/c"]);
        select("other", "d", "app=web");
        assert_eq!(select("ns", "a", "app=web"), ["ns/a", "ns/b", "ns/c"], "not those of other namespaces");
        assert_eq!(select("ns", "b", "app=db"), ["ns/a", "ns/c"]);
        overlap.forget(&ObjectKey::new("ns", "c"));
        assert_eq!(select("ns", "a", "app=web"), ["ns/a"]);
        for (namespace, name) in [("ns", "a"), ("ns", "b"), ("other", "d"), ("ns", "unknown")] {
            overlap.forget(&ObjectKey::new(namespace, name));
        }
        assert!(overlap.0.lock().unwrap().is_empty(), "nothing is left behind");
    }
}
