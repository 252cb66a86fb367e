//! Shared caches: one list and one watch per kind, however many readers there are.
//!
//! Handlers only record what has changed (for example a key in a work queue); they run on the watching task,
//! so they may neither wait nor work. Readers take `Arc`s from an ordered map, so that equal histories give
//! equal iteration order.

mod follow;
mod index;

use std::any::{Any, TypeId};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering as AtomicOrdering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use apiserver_messages::Unread;
use apiserver_meta::ambient::Ambient;
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::follow::list_and_watch;
pub use self::follow::version_of;
use self::index::Indexes;
pub use self::index::{Index, IndexBy};
use crate::object::{Metadata as _, Object};
use crate::pace::paced;
use crate::source::Source;

/// Identifies an object within its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the key of an object.
    pub fn of<K: Object>(object: &K) -> Self {
        let meta = object.metadata();
        Self::new(meta.namespace(), meta.name())
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The part of an API object that a cache stores. Objects can be stored whole (without their
/// `managedFields`); a reader that needs little of many objects defines a projection of its own.
pub trait Projection: Sized + 'static {
    /// The object as the API has it.
    type Object: Resource;

    /// Extracts the part that is stored.
    fn project(object: Self::Object) -> Self;

    /// Returns namespace (empty for cluster-scoped kinds) and name, which never change.
    fn names(&self) -> (&str, &str);

    fn key(&self) -> ObjectKey {
        let (namespace, name) = self.names();
        ObjectKey::new(namespace, name)
    }

    /// Returns whether both are known to be the same version of the object.
    fn is_version_of(&self, other: &Self) -> bool;

    /// Returns fields that [`Self::project`] does not read. They are not decoded where the encoding allows for it, which is
    /// protobuf.
    fn unread() -> Option<&'static Unread> {
        None
    }
}

impl<K: Resource + 'static> Projection for K {
    type Object = K;

    fn project(object: K) -> K {
        object
    }

    fn names(&self) -> (&str, &str) {
        let meta = self.meta();
        (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }

    fn is_version_of(&self, other: &K) -> bool {
        let version = &self.meta().resource_version;
        version.is_some() && *version == other.meta().resource_version
    }
}

/// Change of an object.
#[derive(Debug)]
pub enum Change<K> {
    /// The object was added (`old` is `None`) or changed.
    Applied { old: Option<Arc<K>>, new: Arc<K> },
    /// The object is gone; contains its last known state.
    Deleted(Arc<K>),
}

impl<K: Projection> Change<K> {
    /// Returns the newest known state of the object.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Self::Applied { new, .. } => new,
            Self::Deleted(last) => last,
        }
    }

    pub fn key(&self) -> ObjectKey {
        self.object().key()
    }
}

/// An entry of a set that is ordered by name. The names are taken from the entry itself rather than stored
/// twice.
struct Named<K>(Arc<K>);

/// Namespace and name, by which a [`Named`] is looked up.
trait Names {
    /// Returns namespace and name.
    fn names(&self) -> (&str, &str);
}

impl<K: Projection> Names for Named<K> {
    fn names(&self) -> (&str, &str) {
        self.0.names()
    }
}

impl Names for (&str, &str) {
    fn names(&self) -> (&str, &str) {
        *self
    }
}

impl Names for ObjectKey {
    fn names(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl<'a, K: Projection> Borrow<dyn Names + 'a> for Named<K> {
    fn borrow(&self) -> &(dyn Names + 'a) {
        self
    }
}

impl PartialEq for dyn Names + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.names() == other.names()
    }
}

impl Eq for dyn Names + '_ {}

impl PartialOrd for dyn Names + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Names + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.names().cmp(&other.names())
    }
}

impl<K: Projection> PartialEq for Named<K> {
    fn eq(&self, other: &Self) -> bool {
        self.names() == other.names()
    }
}

impl<K: Projection> Eq for Named<K> {}

impl<K: Projection> PartialOrd for Named<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Projection> Ord for Named<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.names().cmp(&other.names())
    }
}

/// A list that is being received.
struct Listing<K> {
    /// Objects with their versions.
    read: Vec<(Arc<K>, u64)>,
    /// Keys of objects that exist but cannot be deserialized.
    unreadable: BTreeSet<ObjectKey>,
    /// Time before it was requested.
    begin: Option<Instant>,
    /// The version that it shows; 0 if that is not known.
    version: u64,
}

impl<K> Default for Listing<K> {
    fn default() -> Self {
        Self { read: Vec::new(), unreadable: BTreeSet::new(), begin: None, version: 0 }
    }
}

/// A change that is not applied yet.
enum Update<K> {
    Put(Arc<K>),
    Take(ObjectKey),
}

impl<K: Projection> Update<K> {
    /// Applies it to the objects; returns the change, `None` for a version that is known and an object that is gone.
    fn apply(self, objects: &mut BTreeSet<Named<K>>) -> Option<Change<K>> {
        let new = match self {
            Self::Put(kept) => Named(kept),
            Self::Take(key) => return Some(Change::Deleted(objects.take(&key as &dyn Names)?.0)),
        };
        let old = objects.get(&new).map(|old| Arc::clone(&old.0));
        if old.as_ref().is_some_and(|old| old.is_version_of(&new.0)) {
            return None;
        }
        let change = Change::Applied { old, new: Arc::clone(&new.0) };
        objects.replace(new);
        Some(change)
    }
}

type Handler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

struct Shared<K> {
    objects: RwLock<BTreeSet<Named<K>>>,
    watched: Mutex<Watched<K>>,
    /// The newest version of an object that the cache has shown.
    newest: AtomicU64,
    /// Time before the request of the last list that the cache shows.
    listed: Mutex<Option<Instant>>,
    /// Becomes true when the first complete list has arrived.
    synced: watch::Sender<bool>,
}

/// Everything that follows the changes of a cache.
struct Watched<K> {
    indexes: Indexes<K>,
    handlers: Vec<Handler<K>>,
}

impl<K> Default for Watched<K> {
    fn default() -> Self {
        Self { indexes: Indexes::default(), handlers: Vec::new() }
    }
}

/// A read handle on the cached objects of a kind, or on a selection or a projection of them.
pub struct Cache<K>(Arc<Shared<K>>);

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            objects: RwLock::default(),
            watched: Mutex::default(),
            newest: AtomicU64::new(0),
            listed: Mutex::default(),
            synced: watch::Sender::new(false),
        }))
    }
}

impl<K: Projection> Cache<K> {
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|objects| objects.get(key as &dyn Names).map(|object| Arc::clone(&object.0)))
    }

    /// Returns all objects, ordered by key.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read(|objects| objects.iter().map(|object| Arc::clone(&object.0)).collect())
    }

    /// Returns the objects of one namespace, ordered by name.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let first = (namespace, "");
        let from = (Bound::Included(&first as &dyn Names), Bound::Unbounded);
        self.read(|objects| {
            objects
                .range::<dyn Names, _>(from)
                .take_while(|object| object.names().0 == namespace)
                .map(|object| Arc::clone(&object.0))
                .collect()
        })
    }

    pub fn len(&self) -> usize {
        self.read(BTreeSet::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the first complete list has arrived.
    pub fn has_synced(&self) -> bool {
        *self.0.synced.borrow()
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        let mut synced = self.0.synced.subscribe();
        // The sender lives in `self`, so the wait cannot fail before the value is dropped.
        let _ = synced.wait_for(|done| *done).await;
    }

    /// Calls `handler` for each existing object and for each change from now on. The handler runs under the
    /// cache's locks: it must return quickly and must not call back into this cache.
    pub fn on_change(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        let mut watched = lock(&self.0.watched);
        self.read(|objects| {
            for Named(object) in objects {
                handler(&Change::Applied { old: None, new: Arc::clone(object) });
            }
        });
        watched.handlers.push(Box::new(handler));
    }

    fn read<T>(&self, f: impl FnOnce(&BTreeSet<Named<K>>) -> T) -> T {
        f(&self.0.objects.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns `true` if the cache shows everything that happened to its objects up to `version`, which an answer of
    /// the API server named: a reader that has written an object in that version finds it, or what came after it.
    pub fn has_seen(&self, version: u64) -> bool {
        self.0.newest.load(AtomicOrdering::Acquire) >= version
    }

    /// Returns `true` if the cache shows a list that was requested after `time`, and with it everything that the API
    /// server had answered by then.
    pub fn has_listed_since(&self, time: Instant) -> bool {
        lock(&self.0.listed).is_some_and(|begin| begin > time)
    }

    /// Applies an object as the watch does; public for tests of code that uses a cache.
    pub fn apply(&self, object: K::Object) {
        let version = version_of(object.meta());
        self.put(K::project(object), version);
    }

    fn put(&self, kept: K, version: u64) {
        self.update(vec![Update::Put(Arc::new(kept))], version);
    }

    /// Removes an object as the watch does; public for tests of code that uses a cache.
    pub fn delete(&self, key: &ObjectKey) {
        self.update(vec![Update::Take(key.clone())], 0);
    }

    /// Applies updates that have arrived together, up to a version: readers see all of them at once, and the handlers run
    /// after the last one.
    fn update(&self, updates: Vec<Update<K>>, version: u64) {
        let watched = lock(&self.0.watched);
        self.update_locked(&watched, updates, version);
    }

    fn update_locked(&self, watched: &Watched<K>, updates: Vec<Update<K>>, version: u64) {
        let mut changes = Vec::with_capacity(updates.len());
        if !updates.is_empty() {
            self.write(|objects| {
                changes.extend(updates.into_iter().filter_map(|update| update.apply(objects)));
            });
        }
        changes.iter().for_each(|change| watched.indexes.apply(change));
        self.publish(watched, version, changes);
    }

    /// Shows a version, which the objects and all indexes have by now, and then calls the handlers: work that they
    /// trigger finds the changes everywhere.
    fn publish(&self, watched: &Watched<K>, version: u64, changes: impl IntoIterator<Item = Change<K>>) {
        self.0.newest.fetch_max(version, AtomicOrdering::Release);
        for change in changes {
            watched.handlers.iter().for_each(|handler| handler(&change));
        }
    }

    /// Applies a complete list: objects that it does not contain are gone.
    fn replace(&self, listing: Listing<K>) {
        let Listing { read: listed, unreadable, begin, version } = listing;
        let gone: Vec<_> = {
            let unreadable = unreadable.iter().map(|key| (key.namespace.as_str(), key.name.as_str()));
            let keep: BTreeSet<_> = listed.iter().map(|(kept, _)| kept.names()).chain(unreadable).collect();
            let gone = |object: &&Named<K>| !keep.contains(&object.names());
            self.read(|objects| objects.iter().filter(gone).map(|object| object.0.key()).collect())
        };
        let watched = lock(&self.0.watched);
        let newest = listed.iter().map(|(_, version)| *version).max().unwrap_or(0).max(version);
        let mut updates: Vec<_> = gone.into_iter().map(Update::Take).collect();
        updates.extend(listed.into_iter().map(|(kept, _)| Update::Put(kept)));
        *lock(&self.0.listed) = begin;
        self.update_locked(&watched, updates, newest);
        drop(watched);
        self.0.synced.send_replace(true);
    }

    fn write<T>(&self, f: impl FnOnce(&mut BTreeSet<Named<K>>) -> T) -> T {
        f(&mut self.0.objects.write().unwrap_or_else(PoisonError::into_inner))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Selects the objects of a kind that a cache holds. Empty selectors match all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selection {
    pub labels: String,
    pub fields: String,
}

/// Objects that can be listed and watched.
pub trait Listed:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static
{
}

impl<K> Listed for K where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static
{
}

/// Identifies a cache: a kind, a namespace (empty for all) and a selection.
type Entry = (TypeId, String, Selection);

/// The caches of one component. Asking again for the same kind and selection returns the same cache.
#[derive(Clone)]
pub struct Informers {
    client: Client,
    ambient: Ambient,
    shutdown: CancellationToken,
    caches: Arc<Mutex<BTreeMap<Entry, Box<dyn Any + Send + Sync>>>>,
}

impl Informers {
    /// Creates a set of caches that are updated until `shutdown`.
    pub fn new(client: Client, ambient: Ambient, shutdown: CancellationToken) -> Self {
        Self { client, ambient, shutdown, caches: Arc::default() }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the cache of all objects of a kind.
    pub fn cache<K>(&self) -> Cache<K>
    where
        K: Projection<Object: Listed> + Send + Sync,
    {
        self.select(Selection::default())
    }

    /// Returns the cache of selected objects of a kind in all namespaces, without their `managedFields`. Must
    /// be called within a runtime; the watch begins immediately.
    pub fn select<K>(&self, selection: Selection) -> Cache<K>
    where
        K: Projection<Object: Listed> + Send + Sync,
    {
        self.of("", selection)
    }

    /// Like [`Informers::select`], in one namespace. The requests are made in that namespace, for clients
    /// that may read nothing else.
    pub fn select_in<K>(&self, namespace: &str, selection: Selection) -> Cache<K>
    where
        K: Projection<Object: Listed + Resource<Scope = NamespaceResourceScope>> + Send + Sync,
    {
        self.of(namespace, selection)
    }

    fn of<K>(&self, namespace: &str, selection: Selection) -> Cache<K>
    where
        K: Projection<Object: Listed> + Send + Sync,
    {
        let mut caches = lock(&self.caches);
        let entry = (TypeId::of::<K>(), namespace.to_owned(), selection.clone());
        if let Some(cache) = caches.get(&entry).and_then(|any| any.downcast_ref::<Cache<K>>()) {
            return cache.clone();
        }
        let cache = Cache::<K>::default();
        caches.insert(entry, Box::new(cache.clone()));
        let path = K::Object::url_path(&(), Some(namespace).filter(|name| !name.is_empty()));
        let client = paced(self.client.clone());
        let source = Source::new(client, path, &selection.labels, &selection.fields).without(K::unread());
        tokio::spawn(list_and_watch(self.clone(), source, cache.clone()));
        cache
    }
}

#[cfg(test)]
mod tests;
