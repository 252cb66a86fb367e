//! The part of the embedded store's quota that is kept for administrators and the control plane, so that
//! nobody who may only create objects can bring a cluster to a halt.

use std::fmt::Display;

use apiserver_api::auth::Identity;
use apiserver_api::error::ApiError;
use apiserver_store::Usage;
use apiserver_store::limits::SMALL_GROWTH;

use crate::clients::lanes::{Lane, lane};
use crate::limits::kept;
use crate::request::RequestInfo;
use crate::server::Server;
use crate::storage;

/// Whether the author of a request must leave that part alone.
pub fn is_kept_from(info: &RequestInfo, identity: &Identity) -> bool {
    matches!(lane(info, identity), Lane::Common | Lane::Nodes)
}

/// Refuses a value of `new` bytes that would take of that part. Values that are being written at the same
/// time are not counted.
pub async fn check(server: &Server, key: &str, new: usize) -> Result<(), ApiError> {
    let Some(Usage { used, quota }) = server.store().usage() else { return Ok(()) };
    let new = new as u64;
    // The value in its place is looked up only where it matters.
    if fits(used, new, None, quota) {
        return Ok(());
    }
    let old = server.store().get(key).await.map_err(storage::store_error)?.kv.map(|kv| kv.value.len() as u64);
    if fits(used, new, old, quota) {
        return Ok(());
    }
    Err(none(format!(
        "{used} bytes are stored, and the last {} of the quota of {quota} (--quota-backend-bytes) are kept for \
         administrators and the control plane; delete objects to make room",
        kept(quota)
    )))
}

/// The words that etcd has for a store that is full, and Kubernetes passes on.
pub const NONE: &str = "etcdserver: mvcc: database space exceeded";

/// Those words, and what to do.
pub fn none(why: impl Display) -> ApiError {
    ApiError::new(500, "", format!("{NONE}: {why}"))
}

/// Whether a value of `new` bytes may take the place of one of `old` where `used` bytes are stored. What
/// does not grow always may; the first half of what is kept is for updates that grow a little, such as a
/// condition in a status.
fn fits(used: u64, new: u64, old: Option<u64>, quota: u64) -> bool {
    let growth = new.saturating_sub(old.unwrap_or(0));
    let kept = match old {
        Some(_) if growth <= SMALL_GROWTH => kept(quota) / 2,
        _ => kept(quota),
    };
    old.is_some() && growth == 0 || used.saturating_add(growth) <= quota - kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_the_quota_takes_no_new_objects() {
        const QUOTA: u64 = 8 << 20;
        let shared = QUOTA - kept(QUOTA);
        let half = kept(QUOTA) / 2;
        let table = [
            // (used, new, old)
            (0, shared, None, true),
            (1, shared, None, false),
            (shared, 1, None, false),
            (shared, 0, None, true),
            (QUOTA * 2, 500, Some(500), true),
            (QUOTA * 2, 400, Some(500), true),
            (shared, 600, Some(500), true),
            (shared + half, 600, Some(500), false),
            (shared, 501 + SMALL_GROWTH, Some(500), false),
            (u64::MAX, u64::MAX, None, false),
        ];
        for (used, new, old, expected) in table {
            assert_eq!(fits(used, new, old, QUOTA), expected, "{used} {new} {old:?}");
        }
        assert!(fits(0, 0, None, 0), "no quota is no reason to panic");
    }
}
