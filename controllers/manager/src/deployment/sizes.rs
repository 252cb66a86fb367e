//! Certainty about the sizes of ReplicaSets: no new size is chosen before the cache shows the others.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use apiserver_client::{Cache, ObjectKey, version_of};
use k8s_openapi::api::apps::v1::ReplicaSet;

/// The newest write to a ReplicaSet of each Deployment whose sizes were compared with the server's once. It is forgotten
/// with each write whose outcome is unknown: what a former process wrote, or what was written before the answer was
/// lost, is in no ledger.
#[derive(Default)]
pub(super) struct Sizes(Mutex<BTreeMap<ObjectKey, u64>>);

impl Sizes {
    /// Returns `true` if the cache shows what was written for the Deployment.
    pub fn are_shown(&self, key: &ObjectKey, cache: &Cache<ReplicaSet>) -> bool {
        let version = self.lock().get(key).copied();
        version.is_none_or(|version| cache.has_seen(version))
    }

    /// Returns `true` if nothing can have been written that the cache need not show.
    pub fn are_certain(&self, key: &ObjectKey) -> bool {
        self.lock().contains_key(key)
    }

    /// Notes that the cache showed what the server has.
    pub fn compared(&self, key: &ObjectKey) {
        self.lock().entry(key.clone()).or_default();
    }

    /// Notes a write.
    pub fn wrote(&self, key: &ObjectKey, set: &ReplicaSet) {
        if let Some(version) = self.lock().get_mut(key) {
            *version = (*version).max(version_of(&set.metadata));
        }
    }

    /// Forgets a Deployment that is gone, or one of whose writes has an unknown outcome.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::replica_set;

    fn at(version: &str) -> ReplicaSet {
        let mut set = replica_set("web", 1);
        set.metadata.resource_version = Some(version.to_owned());
        set
    }

    #[test]
    fn sizes_are_certain_once_compared_until_an_outcome_is_unknown() {
        let (sizes, cache, key) = (Sizes::default(), Cache::default(), ObjectKey::new("ns", "web"));
        assert!(sizes.are_shown(&key, &cache) && !sizes.are_certain(&key));
        sizes.wrote(&key, &at("7"));
        assert!(sizes.are_shown(&key, &cache) && !sizes.are_certain(&key), "the comparison will show it");
        sizes.compared(&key);
        assert!(sizes.are_shown(&key, &cache) && sizes.are_certain(&key));
        sizes.wrote(&key, &at("7"));
        sizes.wrote(&key, &at("5"));
        cache.apply(at("5"));
        assert!(!sizes.are_shown(&key, &cache));
        cache.apply(at("7"));
        assert!(sizes.are_shown(&key, &cache));
        sizes.forget(&key);
        assert!(!sizes.are_certain(&key));
    }
}
