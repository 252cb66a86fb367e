//! A ledger of own writes: no reconciliation decides before the cache shows what the last one wrote.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use apiserver_client::{Cache, Projection, version_of};
use kube::Resource;
use tokio::time::Instant;

use crate::limits::UNSEEN_WRITE;

/// The newest version of an object of one kind that was written for each key of a queue.
///
/// A cache may be behind the writes of its own process. A decision that is based on it would then repeat what was
/// done already, such as the creation of an object whose name the server chooses.
pub struct Ledger<K>(Mutex<BTreeMap<K, Entry>>);

#[derive(Clone, Copy)]
struct Entry {
    version: u64,
    since: Instant,
}

impl<K> Default for Ledger<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord + Clone> Ledger<K> {
    /// Notes that `object`, as the server answered, was written for `key`.
    pub fn wrote<T: Resource>(&self, key: &K, object: &T) {
        let written = Entry { version: version_of(object.meta()), since: Instant::now() };
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_insert(written);
        if written.version > entry.version {
            *entry = written;
        }
    }

    /// Returns `true` if the cache shows everything that was written for `key`. A write that the cache has not shown
    /// within [`UNSEEN_WRITE`] no longer counts: its object may have been deleted before a new list.
    pub fn is_shown<T: Projection>(&self, key: &K, cache: &Cache<T>) -> bool {
        let mut entries = self.lock();
        let Some(entry) = entries.get(key) else { return true };
        let shown = cache.has_seen(entry.version) || entry.since.elapsed() >= UNSEEN_WRITE;
        if shown {
            entries.remove(key);
        }
        shown
    }

    /// Forgets what was written for a key that is gone.
    pub fn forget(&self, key: &K) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        tokio::time::sleep(UNSEEN_WRITE - Duration::from_secs(1)).await;
        assert!(!ledger.is_shown(&"key", &cache));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(ledger.is_shown(&"key", &cache));
    }
}
