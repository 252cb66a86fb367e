//! Claims that several pods of a PodGroup are bound with at the same time: each writes the devices unless another one has, and
//! itself as one that uses them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult, ResourceClaim};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::is_older;
use crate::cluster::devices::allocation;

/// The newest version of a claim that was written.
type Newest = Option<Arc<ResourceClaim>>;

/// The claims that are being written, by uid: one write after another, so that none is in vain. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Writers(Arc<Mutex<BTreeMap<String, Arc<AsyncMutex<Newest>>>>>);

/// The permission to write a claim.
#[derive(Debug)]
pub(super) struct Writer {
    writers: Writers,
    uid: String,
    newest: OwnedMutexGuard<Newest>,
}

impl Writers {
    /// Waits until nobody else writes a claim. Replaces the claim if the last writer has left a newer version.
    pub async fn enter(&self, claim: &mut Arc<ResourceClaim>) -> Writer {
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let one = Arc::clone(self.lock().entry(uid.clone()).or_default());
        let newest = one.lock_owned().await;
        if let Some(newest) = newest.as_ref().filter(|newest| is_older(claim, newest)) {
            *claim = Arc::clone(newest);
        }
        Writer { writers: self.clone(), uid, newest }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<AsyncMutex<Newest>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Leaves the version that was written to the next one.
    pub fn wrote(&mut self, claim: &Arc<ResourceClaim>) {
        *self.newest = Some(Arc::clone(claim));
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut all = self.writers.lock();
        // The map and this one have it; further ones are those who wait.
        if all.get(&self.uid).is_some_and(|one| Arc::strong_count(one) <= 2) {
            all.remove(&self.uid);
        }
    }
}

/// Returns `true` if a claim has these devices.
pub(super) fn has(claim: &ResourceClaim, devices: &AllocationResult) -> bool {
    allocation(claim).is_some_and(|given| results(given).eq(results(devices)))
}

fn results(allocation: &AllocationResult) -> impl Iterator<Item = (&str, &str, &str, &str)> {
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    results.map(|result| {
        let DeviceRequestAllocationResult { request, driver, pool, device, .. } = result;
        (request.as_str(), driver.as_str(), pool.as_str(), device.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn writers_of_a_claim_follow_one_another_and_begin_with_what_the_last_one_wrote() {
        let writers = Writers::default();
        let claim = |uid: &str, version: &str| {
            let mut claim = ResourceClaim::default();
            claim.metadata.uid = Some(uid.to_owned());
            claim.metadata.resource_version = Some(version.to_owned());
            Arc::new(claim)
        };
        let mut first = writers.enter(&mut claim("u", "1")).await;
        let mut other = claim("v", "1");
        drop(writers.enter(&mut other).await);
        let next = tokio::spawn({
            let (writers, mut seen) = (writers.clone(), claim("u", "1"));
            async move {
                let _writer = writers.enter(&mut seen).await;
                seen
            }
        });
        tokio::task::yield_now().await;
        assert!(!next.is_finished(), "another one writes");
        first.wrote(&claim("u", "2"));
        drop(first);
        assert_eq!(next.await.unwrap(), claim("u", "2"));
        assert!(writers.lock().is_empty());
    }
}
