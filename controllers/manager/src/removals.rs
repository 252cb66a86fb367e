//! Deletions of pods that the cache does not show yet.
//!
//! A pod that was deleted a moment ago still looks available in a cache that is behind, and a decision that counts it
//! would delete another one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use apiserver_client::{Cache, ObjectKey};

use crate::meta::{is_deleted, uid};
use crate::pods::Pod;

/// Names and UIDs of the pods whose deletion the server has accepted, for each key of a queue.
#[derive(Default)]
pub(crate) struct Removals(Mutex<BTreeMap<ObjectKey, Vec<(ObjectKey, String)>>>);

impl Removals {
    /// Records that `pod` was deleted for `key`.
    pub fn deleted(&self, key: &ObjectKey, pod: &Pod) {
        let deleted = (ObjectKey::of(pod), uid(&pod.metadata).to_owned());
        self.lock().entry(key.clone()).or_default().push(deleted);
    }

    /// Returns `true` if the cache shows each pod that was deleted for `key` as terminating, or no longer at all.
    pub fn are_shown(&self, key: &ObjectKey, pods: &Cache<Pod>) -> bool {
        let mut all = self.lock();
        let Some(deleted) = all.get_mut(key) else { return true };
        deleted.retain(|(pod, deleted)| {
            let shown = pods.get(pod);
            shown.is_some_and(|pod| uid(&pod.metadata) == deleted && !is_deleted(&pod.metadata))
        });
        let shown = deleted.is_empty();
        if shown {
            all.remove(key);
        }
        shown
    }

    /// Forgets what was deleted for a key that is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Vec<(ObjectKey, String)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1;

    use super::*;
    use crate::testing::{pod, time};

    #[test]
    fn removals_are_shown_when_each_pod_is_terminating_gone_or_another() {
        let (removals, cache, key) = (Removals::default(), Cache::default(), ObjectKey::new("ns", "web"));
        assert!(removals.are_shown(&key, &cache));
        for name in ["a", "b", "c"] {
            cache.apply(pod(name));
            removals.deleted(&key, &pod(name).into());
        }
        let changed = |name: &str, change: &dyn Fn(&mut v1::Pod)| {
            let mut pod = pod(name);
            pod.metadata.resource_version = Some("2".to_owned());
            change(&mut pod);
            cache.apply(pod);
        };
        changed("a", &|pod| pod.metadata.deletion_timestamp = time(1));
        assert!(!removals.are_shown(&key, &cache));
        cache.delete(&ObjectKey::new("ns", "b"));
        assert!(!removals.are_shown(&key, &cache));
        changed("c", &|pod| pod.metadata.uid = Some("uid-other".to_owned()));
        assert!(removals.are_shown(&key, &cache));
    }
}
