//! A ledger of own writes: no reconciliation decides before the cache shows what the last one wrote.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use apiserver_client::{Cache, Projection, version_of};
use kube::Resource;
use tokio::time::Instant;

use crate::limits::LOST_WRITE;

/// The newest version of an object of one kind that was written for each key of a queue.
///
/// A cache may be behind the writes of its own process. A decision that is based on it would then repeat what was
/// done already, such as the creation of an object whose name the server chooses.
///
/// There are two kinds. The ordinary one, [`Ledger::default`], gives up on a write that the cache does not show for a
/// long time. One that is [`Ledger::certain`] never does; it counts the writes of a key from the time on at which the
/// cache was [`Ledger::compared`] with the server, until the outcome of one is unknown and the key is forgotten: what a
/// former process wrote, or what was written before an answer was lost, is in no ledger.
pub struct Ledger<K> {
    entries: Mutex<BTreeMap<K, Entry>>,
    gives_up: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    version: u64,
    since: Instant,
}

impl<K> Default for Ledger<K> {
    fn default() -> Self {
        Self { entries: Mutex::default(), gives_up: true }
    }
}

impl<K: Ord + Clone> Ledger<K> {
    /// Returns a ledger that never gives up on a write.
    pub fn certain() -> Self {
        Self { entries: Mutex::default(), gives_up: false }
    }

    /// Notes that the cache showed what the server has for `key`.
    pub fn compared(&self, key: &K) {
        self.lock().entry(key.clone()).or_insert_with(|| Entry { version: 0, since: Instant::now() });
    }

    /// Returns `true` if nothing can have been written for `key` that the cache need not show: it was compared with the
    /// server, and the outcomes of all writes since then are known.
    pub fn is_certain(&self, key: &K) -> bool {
        !self.gives_up && self.lock().contains_key(key)
    }

    /// Notes that `object`, as the server answered, was written for `key`.
    pub fn wrote<T: Resource>(&self, key: &K, object: &T) {
        let written = Entry { version: version_of(object.meta()), since: Instant::now() };
        let mut entries = self.lock();
        if !self.gives_up && !entries.contains_key(key) {
            // The comparison will show it.
            return;
        }
        let entry = entries.entry(key.clone()).or_insert(written);
        if written.version > entry.version {
            *entry = written;
        }
    }

    /// Returns `true` if the cache shows everything that was written for `key`: its version, or a list that was requested
    /// after it. In an ordinary ledger, a write that has not been shown within [`LOST_WRITE`] no longer counts.
    pub fn is_shown<T: Projection>(&self, key: &K, cache: &Cache<T>) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.get(key) else { return true };
        let given_up = self.gives_up && entry.since.elapsed() >= LOST_WRITE;
        let shown = given_up || cache.has_seen(entry.version) || cache.has_listed_since(entry.since);
        if shown && self.gives_up {
            entries.remove(key);
        }
        shown
    }

    /// Forgets a key that is gone, or one of whose writes has an unknown outcome.
    pub fn forget(&self, key: &K) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn map(version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("a".to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        object
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_for_the_newest_of_its_writes_and_not_forever() {
        let (ledger, cache) = (Ledger::default(), Cache::<ConfigMap>::default());
        ledger.wrote(&"key", &map("5"));
        ledger.wrote(&"key", &map("3"));
        cache.apply(map("4"));
        assert!(!ledger.is_shown(&"key", &cache));
        assert!(ledger.is_shown(&"other", &cache));
        cache.apply(map("5"));
        assert!(ledger.is_shown(&"key", &cache));
        ledger.wrote(&"key", &map("9"));
        tokio::time::sleep(LOST_WRITE - Duration::from_secs(1)).await;
        assert!(!ledger.is_shown(&"key", &cache));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(ledger.is_shown(&"key", &cache));
    }

    #[tokio::test(start_paused = true)]
    async fn a_certain_ledger_never_gives_up_and_counts_from_the_comparison_to_an_unknown_outcome() {
        let (ledger, cache, key) = (Ledger::certain(), Cache::<ConfigMap>::default(), "key");
        assert!(ledger.is_shown(&key, &cache) && !ledger.is_certain(&key));
        ledger.wrote(&key, &map("7"));
        assert!(ledger.is_shown(&key, &cache) && !ledger.is_certain(&key), "the comparison will show it");
        ledger.compared(&key);
        assert!(ledger.is_shown(&key, &cache) && ledger.is_certain(&key));
        ledger.wrote(&key, &map("7"));
        ledger.wrote(&key, &map("5"));
        cache.apply(map("5"));
        tokio::time::sleep(LOST_WRITE * 10).await;
        assert!(!ledger.is_shown(&key, &cache));
        cache.apply(map("7"));
        assert!(ledger.is_shown(&key, &cache) && ledger.is_certain(&key));
        ledger.forget(&key);
        assert!(!ledger.is_certain(&key));
    }
}
