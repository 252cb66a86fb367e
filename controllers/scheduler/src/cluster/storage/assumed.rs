//! Objects of the API, and changes of them that were decided on but are not written yet.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_meta::uid::Uid;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Objects of one kind as the API server has them, some of them with an assumed change. An assumption ends when another
/// version of the object arrives, which contains the change or makes it impossible.
#[derive(Debug)]
pub(super) struct AssumeCache<K, T> {
    stored: BTreeMap<K, Arc<T>>,
    assumed: BTreeMap<K, Assumption<T>>,
}

#[derive(Debug)]
struct Assumption<T> {
    object: Arc<T>,
    /// Pods for which the change was assumed.
    pods: Vec<Uid>,
}

impl<K, T> Default for AssumeCache<K, T> {
    fn default() -> Self {
        Self { stored: BTreeMap::new(), assumed: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, T: Metadata<Ty = ObjectMeta>> AssumeCache<K, T> {
    /// Returns an object with the change that is assumed of it.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&Arc<T>>
    where
        K: Borrow<Q>,
    {
        self.assumed.get(key).map(|assumed| &assumed.object).or_else(|| self.stored(key))
    }

    /// Returns an object as the API server has it.
    pub fn stored<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&Arc<T>>
    where
        K: Borrow<Q>,
    {
        self.stored.get(key)
    }

    /// Replaces an object, or removes it, and returns what the API server had before. A change that was assumed of another
    /// version is dropped.
    pub fn set(&mut self, key: &K, new: Option<Arc<T>>) -> Option<Arc<T>> {
        let expires = |assumed: &Assumption<T>| {
            new.as_ref().is_none_or(|new| version(new.as_ref()) != version(assumed.object.as_ref()))
        };
        if self.assumed.get(key).is_some_and(expires) {
            self.assumed.remove(key);
        }
        match new {
            Some(new) => self.stored.insert(key.clone(), new),
            None => self.stored.remove(key),
        }
    }

    /// Assumes a change for a pod, or what is assumed already for one pod more. Returns `false`, and assumes nothing, if
    /// the change was made of another version than the API server has.
    pub fn assume(&mut self, key: &K, object: Arc<T>, pod: &Uid) -> bool {
        let Some(stored) = self.stored.get(key) else { return false };
        if version(stored.as_ref()) != version(object.as_ref()) {
            return false;
        }
        let entry = self.assumed.entry(key.clone());
        let assumed = entry.or_insert_with(|| Assumption { object: Arc::clone(&object), pods: Vec::new() });
        assumed.object = object;
        if !assumed.pods.contains(pod) {
            assumed.pods.push(pod.clone());
        }
        true
    }

    /// Returns `true` if a change of the object is assumed.
    pub fn is_assumed(&self, key: &K) -> bool {
        self.assumed.contains_key(key)
    }

    /// Drops what was assumed for this pod alone; returns what was assumed.
    pub fn restore(&mut self, pod: &Uid) -> Vec<(K, Arc<T>)> {
        let mut dropped = Vec::new();
        self.assumed.retain(|key, assumed| {
            let before = assumed.pods.len();
            assumed.pods.retain(|other| other != pod);
            let is_over = assumed.pods.is_empty() && before > 0;
            if is_over {
                dropped.push((key.clone(), Arc::clone(&assumed.object)));
            }
            !is_over
        });
        dropped
    }
}

fn version<T: Metadata<Ty = ObjectMeta>>(object: &T) -> Option<&str> {
    object.metadata().resource_version.as_deref()
}
