//! Objects that select pods, of which the scheduler stores the selector alone.

use apiserver_client::{Labels, Projection};
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ReplicationController, Service};
use kube::Resource;

use crate::selector::Selector;

/// A kind of objects that select pods.
pub trait Selects: Resource + 'static {
    /// The sort of its selectors.
    type Selector: Send + Sync + 'static;

    /// Returns the selector; `None` if there is none.
    fn selector(self) -> Option<Self::Selector>;
}

impl Selects for Service {
    type Selector = Labels;

    fn selector(self) -> Option<Labels> {
        self.spec?.selector
    }
}

impl Selects for ReplicationController {
    type Selector = Labels;

    fn selector(self) -> Option<Labels> {
        Some(self.spec.and_then(|spec| spec.selector).unwrap_or_default())
    }
}

impl Selects for ReplicaSet {
    type Selector = Selector;

    fn selector(self) -> Option<Selector> {
        self.spec.map(|spec| Selector::parse(Some(&spec.selector)))
    }
}

impl Selects for StatefulSet {
    type Selector = Selector;

    fn selector(self) -> Option<Selector> {
        self.spec.map(|spec| Selector::parse(Some(&spec.selector)))
    }
}

/// The selector of an object.
#[derive(Debug)]
pub struct Selecting<K: Selects> {
    namespace: Box<str>,
    name: Box<str>,
    version: Box<str>,
    pub selector: Option<K::Selector>,
}

impl<K: Selects> Projection for Selecting<K> {
    type Object = K;

    fn project(object: K) -> Self {
        let meta = object.meta();
        let text = |text: &Option<String>| Box::from(text.as_deref().unwrap_or_default());
        let (namespace, name) = (text(&meta.namespace), text(&meta.name));
        let version = text(&meta.resource_version);
        Self { namespace, name, version, selector: object.selector() }
    }

    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        !self.version.is_empty() && self.version == other.version
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn project<K: Selects + serde::de::DeserializeOwned>(version: &str, spec: Value) -> Selecting<K> {
        let meta = json!({"namespace": "ns", "name": "a", "resourceVersion": version});
        Selecting::project(from_value(json!({"metadata": meta, "spec": spec})).unwrap())
    }

    #[test]
    fn selectors_are_taken_from_each_kind() {
        let labels = Labels::from([("a".to_owned(), "b".to_owned())]);
        let service = project::<Service>("1", json!({"selector": {"a": "b"}}));
        assert_eq!(service.names(), ("ns", "a"));
        assert_eq!(service.selector, Some(labels));
        assert_eq!(project::<Service>("1", json!({})).selector, None);
        // A controller without a selector is there all the same.
        assert_eq!(project::<ReplicationController>("1", json!({})).selector, Some(Labels::new()));
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": {}, "serviceName": ""});
        let set = project::<ReplicaSet>("1", spec.clone()).selector.unwrap();
        assert!(set.matches(&Labels::from([("a".to_owned(), "b".to_owned())])));
        assert_eq!(project::<StatefulSet>("1", spec).selector, Some(set));
    }

    #[test]
    fn versions_are_told_apart() {
        let of = |version: &str| project::<Service>(version, json!({}));
        assert!(of("1").is_version_of(&of("1")) && !of("1").is_version_of(&of("2")));
        assert!(!of("").is_version_of(&of("")));
    }
}
