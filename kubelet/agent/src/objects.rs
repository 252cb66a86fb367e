//! ConfigMaps and Secrets that pods refer to, with one watch per object for as long as a pod needs it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use apiserver_client::{Cache, Informers, ObjectKey, cache::Selection};
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::volumes::References;

/// Time that a pod waits for the first answer about an object.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    secret: bool,
    namespace: String,
    name: String,
}

type Wake = Arc<dyn Fn() + Send + Sync>;
type Users = Arc<Mutex<BTreeMap<String, Wake>>>;

struct Entry {
    cache: Object,
    users: Users,
    /// Ends the watch when the entry is dropped.
    _watch: tokio_util::sync::DropGuard,
}

#[derive(Clone)]
enum Object {
    ConfigMap(Cache<ConfigMap>),
    Secret(Cache<Secret>),
}

/// Cache of the watched objects. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Objects {
    client: Client,
    ambient: Ambient,
    shutdown: CancellationToken,
    entries: Arc<Mutex<BTreeMap<Key, Entry>>>,
}

/// The objects among those requested that exist.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub secrets: BTreeMap<String, Arc<Secret>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Objects {
    pub(crate) fn new(client: Client, ambient: Ambient, shutdown: CancellationToken) -> Self {
        Self { client, ambient, shutdown, entries: Arc::default() }
    }

    /// Watches exactly these objects for a pod, and calls `wake` whenever one of them changes.
    pub(crate) fn watch(&self, pod_uid: &str, namespace: &str, references: &References, wake: &Wake) {
        let key =
            |secret: bool, name: &String| Key { secret, namespace: namespace.to_owned(), name: name.clone() };
        let wanted: BTreeSet<Key> = references
            .config_maps
            .iter()
            .map(|name| key(false, name))
            .chain(references.secrets.iter().map(|name| key(true, name)))
            .collect();
        let mut entries = lock(&self.entries);
        for key in &wanted {
            let entry = entries.entry(key.clone()).or_insert_with(|| self.entry(key));
            lock(&entry.users).entry(pod_uid.to_owned()).or_insert_with(|| Arc::clone(wake));
        }
        entries.retain(|key, entry| {
            let mut users = lock(&entry.users);
            if !wanted.contains(key) {
                users.remove(pod_uid);
            }
            !users.is_empty()
        });
    }

    /// Stops watching the objects of a pod.
    pub(crate) fn forget(&self, pod_uid: &str) {
        lock(&self.entries).retain(|_, entry| {
            let mut users = lock(&entry.users);
            users.remove(pod_uid);
            !users.is_empty()
        });
    }

    /// Returns the current objects, once each of them has been answered for. Returns `None` if an answer is
    /// still missing after [`FIRST_ANSWER`].
    pub(crate) async fn get(&self, namespace: &str, references: &References) -> Option<Found> {
        tokio::time::timeout(FIRST_ANSWER, self.collect(namespace, references)).await.ok()
    }

    async fn collect(&self, namespace: &str, references: &References) -> Found {
        let mut found = Found::default();
        for (secret, name) in references
            .config_maps
            .iter()
            .map(|name| (false, name))
            .chain(references.secrets.iter().map(|name| (true, name)))
        {
            let key = Key { secret, namespace: namespace.to_owned(), name: name.clone() };
            let object = lock(&self.entries).get(&key).map(|entry| entry.cache.clone());
            let place = ObjectKey::new(namespace, name);
            match object {
                Some(Object::ConfigMap(cache)) => {
                    cache.synced().await;
                    found.config_maps.extend(cache.get(&place).map(|object| (name.clone(), object)));
                }
                Some(Object::Secret(cache)) => {
                    cache.synced().await;
                    found.secrets.extend(cache.get(&place).map(|object| (name.clone(), object)));
                }
                None => {}
            }
        }
        found
    }

    fn entry(&self, key: &Key) -> Entry {
        let token = self.shutdown.child_token();
        let informers = Informers::new(self.client.clone(), self.ambient.clone(), token.clone());
        // A node may only read single objects, each in its own namespace.
        let selection = Selection { fields: format!("metadata.name={}", key.name), ..Selection::default() };
        let users: Users = Arc::default();
        let wake_all = {
            let users = Arc::clone(&users);
            move || {
                let wakes: Vec<Wake> = lock(&users).values().cloned().collect();
                wakes.iter().for_each(|wake| wake());
            }
        };
        let cache = if key.secret {
            let cache = informers.select_in::<Secret>(&key.namespace, selection);
            cache.on_change(move |_| wake_all());
            Object::Secret(cache)
        } else {
            let cache = informers.select_in::<ConfigMap>(&key.namespace, selection);
            cache.on_change(move |_| wake_all());
            Object::ConfigMap(cache)
        };
        Entry { cache, users, _watch: token.drop_guard() }
    }
}
