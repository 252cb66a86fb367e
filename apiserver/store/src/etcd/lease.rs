//! Times to live with etcd leases. A lease costs etcd more than a key, so keys with the same time to live
//! share one for a while, which gives some of them up to a minute more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::LeaseClient;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{TIMEOUT, request, server_message};
use crate::StoreError;
use crate::limits::{ETCD_LEASE_KEYS, ETCD_LEASE_REUSE_SECONDS};

/// The leases that accept further keys, by time to live in seconds.
#[derive(Clone)]
pub(super) struct Leases {
    client: LeaseClient,
    current: Arc<Mutex<BTreeMap<u32, Lease>>>,
}

struct Lease {
    id: i64,
    /// Time after which a new key would expire too early.
    until: Instant,
    keys: u32,
}

impl Leases {
    pub(super) fn new(client: LeaseClient) -> Self {
        Self { client, current: Arc::default() }
    }

    /// Returns a lease that lasts at least this long. Fails with `Unavailable` if none is granted in time,
    /// however many callers wait.
    pub(super) async fn lease(&self, ttl_seconds: u32) -> Result<i64, StoreError> {
        tokio::time::timeout(TIMEOUT, self.shared(ttl_seconds)).await.unwrap_or_else(|elapsed| {
            Err(StoreError::Unavailable { attempted: attempted(ttl_seconds), cause: Some(Box::new(elapsed)) })
        })
    }

    async fn shared(&self, ttl_seconds: u32) -> Result<i64, StoreError> {
        // Held during the request, so that concurrent callers share the lease.
        let mut current = self.current.lock().await;
        let now = Instant::now();
        current.retain(|_, lease| lease.until > now && lease.keys < ETCD_LEASE_KEYS);
        if let Some(lease) = current.get_mut(&ttl_seconds) {
            lease.keys += 1;
            return Ok(lease.id);
        }
        let ttl = i64::from(ttl_seconds);
        let extra = extra_seconds(ttl);
        let ask = || {
            let mut client = self.client.clone();
            async move { client.grant(ttl + extra, None).await }
        };
        // A lease whose grant was lost expires on its own.
        let granted = request(&attempted(ttl_seconds), |_| true, ask).await?;
        if extra > 0 {
            let until = now + Duration::from_secs(extra.unsigned_abs());
            current.insert(ttl_seconds, Lease { id: granted.id(), until, keys: 1 });
        }
        Ok(granted.id())
    }

    /// Stops using a lease.
    pub(super) async fn forget(&self, ttl_seconds: u32, id: i64) {
        let mut current = self.current.lock().await;
        if current.get(&ttl_seconds).is_some_and(|lease| lease.id == id) {
            current.remove(&ttl_seconds);
        }
    }
}

fn attempted(ttl_seconds: u32) -> String {
    format!("get a lease of {ttl_seconds} s")
}

/// Returns how much longer than requested a shared lease lasts: a twentieth, and at most a minute.
fn extra_seconds(ttl_seconds: i64) -> i64 {
    (ttl_seconds / 20).min(ETCD_LEASE_REUSE_SECONDS)
}

/// Returns `true` if a write failed because its lease has expired.
pub(super) fn is_gone(error: &StoreError) -> bool {
    server_message(error).is_some_and(|message| message.contains("requested lease not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_lease_lasts_a_twentieth_longer_but_no_more_than_a_minute() {
        assert_eq!(extra_seconds(1), 0);
        assert_eq!(extra_seconds(100), 5);
        assert_eq!(extra_seconds(3_600), 60);
    }
}
