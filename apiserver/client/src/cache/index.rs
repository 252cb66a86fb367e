//! Indexes of a cache: the objects that have a value, found without looking at the others.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Cache, Change, Named, Projection, lock};

/// Names an index, and defines the values by which it finds the objects of a kind, such as the name of a pod's node.
/// A cache has each index once, however many readers ask for it.
pub trait IndexBy<K>: 'static {
    type Value: Ord + Send + Sync + 'static;

    /// Returns the values of an object. Depends on the object alone; equal values count once.
    fn values(object: &K) -> Vec<Self::Value>;
}

type Entries<K, V> = BTreeMap<V, BTreeSet<Named<K>>>;

/// The objects of a cache by the values of `I`. It is up to date whenever a handler of the cache runs.
pub struct Index<K, I: IndexBy<K>>(Arc<RwLock<Entries<K, I::Value>>>);

impl<K, I: IndexBy<K>> Clone for Index<K, I> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Projection, I: IndexBy<K>> Index<K, I> {
    /// Returns the objects with this value, ordered by key.
    pub fn get(&self, value: &I::Value) -> Vec<Arc<K>> {
        self.read(|entries| {
            let objects = entries.get(value).into_iter().flatten();
            objects.map(|Named(object)| Arc::clone(object)).collect()
        })
    }

    /// Returns the number of objects with this value.
    pub fn count(&self, value: &I::Value) -> usize {
        self.read(|entries| entries.get(value).map_or(0, BTreeSet::len))
    }

    /// Returns `true` if `test` holds for an object with this value.
    pub fn any(&self, value: &I::Value, mut test: impl FnMut(&K) -> bool) -> bool {
        self.read(|entries| entries.get(value).into_iter().flatten().any(|Named(object)| test(object)))
    }

    fn read<T>(&self, f: impl FnOnce(&Entries<K, I::Value>) -> T) -> T {
        f(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn apply(&self, change: &Change<K>) {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let (old, new) = match change {
            Change::Applied { old, new } => (old.as_ref(), Some(new)),
            Change::Deleted(old) => (Some(old), None),
        };
        let values: BTreeSet<_> = new.into_iter().flat_map(|new| I::values(new)).collect();
        for value in old.into_iter().flat_map(|old| I::values(old)).filter(|value| !values.contains(value)) {
            if let Some(objects) = entries.get_mut(&value) {
                old.and_then(|old| objects.take(&Named(Arc::clone(old))));
                if objects.is_empty() {
                    entries.remove(&value);
                }
            }
        }
        if let Some(new) = new {
            for value in values {
                // The names are equal, so the older version goes.
                entries.entry(value).or_default().replace(Named(Arc::clone(new)));
            }
        }
    }
}

/// The indexes of a cache, and the functions that update them.
pub(super) struct Indexes<K> {
    known: BTreeMap<TypeId, Box<dyn Any + Send + Sync>>,
    updates: Vec<super::Handler<K>>,
}

impl<K> Default for Indexes<K> {
    fn default() -> Self {
        Self { known: BTreeMap::new(), updates: Vec::new() }
    }
}

impl<K> Indexes<K> {
    pub(super) fn apply(&self, change: &Change<K>) {
        self.updates.iter().for_each(|update| update(change));
    }
}

impl<K: Projection + Send + Sync> Cache<K> {
    /// Returns the index of this name, which is built when it is first asked for and follows all changes from then on.
    pub fn index<I: IndexBy<K>>(&self) -> Index<K, I> {
        let mut watched = lock(&self.0.watched);
        let known = watched.indexes.known.get(&TypeId::of::<I>());
        if let Some(index) = known.and_then(|any| any.downcast_ref::<Index<K, I>>()) {
            return index.clone();
        }
        let index = Index::<K, I>(Arc::default());
        self.read(|objects| {
            for Named(object) in objects {
                index.apply(&Change::Applied { old: None, new: Arc::clone(object) });
            }
        });
        watched.indexes.known.insert(TypeId::of::<I>(), Box::new(index.clone()));
        let updated = index.clone();
        watched.indexes.updates.push(Box::new(move |change| updated.apply(change)));
        index
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::cache::ObjectKey;

    /// The keys of the data.
    struct ByData;

    impl IndexBy<ConfigMap> for ByData {
        type Value = String;

        fn values(object: &ConfigMap) -> Vec<String> {
            object.data.iter().flatten().map(|(key, _)| key.clone()).collect()
        }
    }

    fn map(name: &str, version: &str, keys: &[&str]) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some("ns".to_owned());
        object.metadata.name = Some(name.to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        object.data = Some(keys.iter().map(|key| ((*key).to_owned(), String::new())).collect());
        object
    }

    fn found(index: &Index<ConfigMap, ByData>, value: &str) -> Vec<String> {
        let version = |object: &ConfigMap| object.metadata.resource_version.clone().unwrap();
        let objects = index.get(&value.to_owned());
        objects
            .iter()
            .map(|object| format!("{}@{}", ObjectKey::of(&**object).name, version(object)))
            .collect()
    }

    #[test]
    fn objects_are_found_by_their_present_values_in_their_present_version() {
        let cache = Cache::default();
        cache.apply(map("b", "1", &["x"]));
        let index = cache.index::<ByData>();
        cache.apply(map("a", "2", &["x", "y"]));
        assert_eq!(found(&index, "x"), ["a@2", "b@1"]);
        cache.apply(map("a", "3", &["y", "z"]));
        assert_eq!(found(&index, "x"), ["b@1"]);
        assert_eq!(found(&index, "y"), ["a@3"]);
        assert_eq!((index.count(&"z".to_owned()), index.count(&"none".to_owned())), (1, 0));
        assert!(index.any(&"z".to_owned(), |object| object.metadata.name.as_deref() == Some("a")));
        cache.delete(&ObjectKey::new("ns", "a"));
        cache.delete(&ObjectKey::new("ns", "b"));
        assert!(index.read(BTreeMap::is_empty), "values that nothing has are forgotten");
    }

    #[test]
    fn index_added_after_a_handler_is_updated_before_the_handler_runs() {
        let cache = Cache::<ConfigMap>::default();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, place) = (Arc::clone(&seen), Arc::new(Mutex::new(None::<Index<ConfigMap, ByData>>)));
        let index = Arc::clone(&place);
        cache.on_change(move |_| {
            let index = index.lock().unwrap();
            log.lock().unwrap().push(index.as_ref().map_or(0, |index| index.count(&"x".to_owned())));
        });
        *place.lock().unwrap() = Some(cache.index::<ByData>());
        cache.apply(map("a", "1", &["x"]));
        cache.apply(map("b", "2", &["x"]));
        cache.delete(&ObjectKey::new("ns", "b"));
        assert_eq!(*seen.lock().unwrap(), [1, 2, 1]);
        let again = cache.index::<ByData>();
        assert!(Arc::ptr_eq(&again.0, &place.lock().unwrap().as_ref().unwrap().0), "the index exists once");
    }
}
