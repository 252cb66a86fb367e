//! Compaction of the store's history, and the ageing of what the caches keep of it.

use std::time::Duration;

use apiserver_cache::Caches;
use apiserver_store::{Op, Revision, StoreError, Write, Written};

use crate::limits;
use crate::objects::Objects;

/// The key under which the servers of one store agree which one compacts it, as Kubernetes' servers do.
const KEY: &str = "compact_rev_key";

/// Drops old entries of the caches that no longer change, so that a burst leaves nothing behind.
pub async fn age(caches: &Caches) {
    loop {
        tokio::time::sleep(limits::AGE_EVERY).await;
        caches.age();
    }
}

/// Compacts history older than one `period`, never if it is zero. Of several servers over one store one does it: the
/// one whose write of the key succeeds.
pub async fn run(objects: &Objects, period: Duration) {
    if period.is_zero() {
        return std::future::pending().await;
    }
    let mut before: Revision = 0;
    let mut round = 0;
    loop {
        tokio::time::sleep(period).await;
        match once(objects, before, round).await {
            Ok((revision, next)) => (before, round) = (revision, next),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the store cannot be compacted");
            }
        }
    }
}

/// Compacts up to `before` if no other server has since `round`, the version of the key that was seen last;
/// returns the present revision and the version of the key.
async fn once(
    objects: &Objects,
    before: Revision,
    round: Revision,
) -> Result<(Revision, Revision), StoreError> {
    let store = objects.store();
    if !store.shared() {
        if before > 0 {
            store.compact(before).await?;
            objects.caches().compacted(before);
        }
        return Ok((store.revision().await?, 0));
    }
    let op = Op::Put { value: before.to_string().into(), ttl_seconds: 0 };
    match store.write(Write { key: KEY.to_owned(), expected: round, op }).await? {
        Written::Done { revision } => {
            if before > 0 {
                store.compact(before).await?;
                objects.caches().compacted(before);
            }
            Ok((revision, revision))
        }
        // Another server was faster.
        Written::Conflict { current, revision } => {
            let value = current.as_ref().and_then(|kv| std::str::from_utf8(&kv.value).ok());
            objects.caches().compacted(value.and_then(|value| value.parse().ok()).unwrap_or(0));
            Ok((revision, current.map_or(0, |kv| kv.mod_revision)))
        }
    }
}
