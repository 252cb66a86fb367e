//! Our own writes that the cache does not show yet.
//!
//! After creating three pods the cache may still show none; counting again then would create three more. So
//! each ReplicaSet records how many creations and which deletions it waits for, and changes no pods before
//! they have been seen or have timed out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use apiserver_client::ObjectKey;
use tokio::time::Instant;

use crate::limits::EXPECTATION_TIMEOUT;

#[derive(Default)]
pub(crate) struct Expectations(Mutex<BTreeMap<ObjectKey, Expected>>);

struct Expected {
    creations: usize,
    /// Uids of pods whose deletion is expected.
    deletions: BTreeSet<String>,
    since: Instant,
}

impl Expectations {
    /// Replaces the expectations of `key`.
    pub fn expect(&self, key: &ObjectKey, creations: usize, deletions: impl IntoIterator<Item = String>) {
        let expected =
            Expected { creations, deletions: deletions.into_iter().collect(), since: Instant::now() };
        self.lock().insert(key.clone(), expected);
    }

    /// Records that a creation was seen or has failed.
    pub fn created(&self, key: &ObjectKey) {
        if let Some(expected) = self.lock().get_mut(key) {
            expected.creations = expected.creations.saturating_sub(1);
        }
    }

    /// Records that a deletion was seen to begin or has failed.
    pub fn deleted(&self, key: &ObjectKey, uid: &str) {
        if let Some(expected) = self.lock().get_mut(key) {
            expected.deletions.remove(uid);
        }
    }

    /// Returns `true` if the cache shows everything that was done for `key`. What is met is forgotten.
    pub fn are_met(&self, key: &ObjectKey) -> bool {
        let mut all = self.lock();
        let met = all.get(key).is_none_or(|expected| {
            (expected.creations == 0 && expected.deletions.is_empty())
                || expected.since.elapsed() > EXPECTATION_TIMEOUT
        });
        if met {
            all.remove(key);
        }
        met
    }

    /// Removes the expectations of a ReplicaSet that is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Expected>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn expectations_are_met_when_all_is_seen_or_after_the_timeout() {
        let expectations = Expectations::default();
        let key = ObjectKey::new("ns", "rs");
        assert!(expectations.are_met(&key));
        expectations.expect(&key, 2, []);
        expectations.created(&key);
        assert!(!expectations.are_met(&key));
        expectations.created(&key);
        assert!(expectations.are_met(&key));
        expectations.expect(&key, 0, ["a".to_owned(), "b".to_owned()]);
        expectations.deleted(&key, "a");
        expectations.deleted(&key, "a");
        assert!(!expectations.are_met(&key));
        tokio::time::advance(EXPECTATION_TIMEOUT + Duration::from_secs(1)).await;
        assert!(expectations.are_met(&key));
        assert!(expectations.lock().is_empty());
    }
}
