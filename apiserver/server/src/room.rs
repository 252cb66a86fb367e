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

/// What the author of a request may fill of the quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// All of it: administrators, the server itself, and what shows that somebody lives.
    #[default]
    All,
    /// All but the last half of the kept part: the control plane, which creates for others too what they
    /// ask for, such as the pods of a Deployment.
    Most,
    /// All but the kept part: tenants and nodes.
    Part,
}

impl Share {
    /// The share of a request's author.
    pub fn of(info: &RequestInfo, identity: &Identity) -> Self {
        match lane(info, identity) {
            Lane::Exempt | Lane::Leases | Lane::Heartbeats => Self::All,
            Lane::System => Self::Most,
            Lane::Nodes | Lane::Common => Self::Part,
        }
    }

    /// Bytes of the quota that it leaves alone.
    fn leaves(self, quota: u64) -> u64 {
        match self {
            Self::All => 0,
            Self::Most => kept(quota) / 2,
            Self::Part => kept(quota),
        }
    }
}

/// Refuses a value of `new` bytes that would take more than the share. Values that are being written at the
/// same time are not counted.
pub async fn check(server: &Server, key: &str, new: usize, share: Share) -> Result<(), ApiError> {
    let Some(Usage { used, quota }) = server.store().usage().filter(|_| share != Share::All) else {
        return Ok(());
    };
    let left = share.leaves(quota);
    let new = new as u64;
    // The value in its place is looked up only where it matters.
    if fits(used, new, None, quota - left) {
        return Ok(());
    }
    let old = server.store().get(key).await.map_err(storage::store_error)?.kv.map(|kv| kv.value.len() as u64);
    if fits(used, new, old, quota - left) {
        return Ok(());
    }
    Err(none(format!(
        "{used} bytes are stored, and the last {} of the quota of {quota} (--quota-backend-bytes) are kept for \
         administrators{}; delete objects to make room",
        left,
        if share == Share::Part { " and the control plane" } else { "" }
    )))
}

/// The words that etcd has for a store that is full, and Kubernetes passes on.
pub const NONE: &str = "etcdserver: mvcc: database space exceeded";

/// Those words, and what to do.
pub fn none(why: impl Display) -> ApiError {
    ApiError::new(500, "", format!("{NONE}: {why}"))
}

/// Whether a value of `new` bytes may take the place of one of `old` where `used` bytes are stored and there
/// may be `most`. What does not grow always may; updates that grow a little, such as by a condition in a
/// status, may take a thirty-second more.
fn fits(used: u64, new: u64, old: Option<u64>, most: u64) -> bool {
    let growth = new.saturating_sub(old.unwrap_or(0));
    let more = match old {
        Some(_) if growth <= SMALL_GROWTH => most / 32,
        _ => 0,
    };
    old.is_some() && growth == 0 || used.saturating_add(growth) <= most + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_is_full_takes_no_new_objects() {
        const MOST: u64 = 8 << 20;
        let more = MOST / 32;
        let table = [
            // (used, new, old)
            (0, MOST, None, true),
            (1, MOST, None, false),
            (MOST, 1, None, false),
            (MOST * 2, 500, Some(500), true),
            (MOST * 2, 400, Some(500), true),
            (MOST, 600, Some(500), true),
            (MOST + more, 600, Some(500), false),
            (MOST, 501 + SMALL_GROWTH, Some(500), false),
            (u64::MAX, u64::MAX, None, false),
        ];
        for (used, new, old, expected) in table {
            assert_eq!(fits(used, new, old, MOST), expected, "{used} {new} {old:?}");
        }
    }

    #[test]
    fn small_growth_of_one_share_leaves_room_to_the_next() {
        const QUOTA: u64 = 1 << 30;
        let most = |share: Share| QUOTA - share.leaves(QUOTA);
        for (share, next) in [(Share::Part, Share::Most), (Share::Most, Share::All)] {
            assert!(most(share) + most(share) / 32 + QUOTA / 64 <= most(next), "{share:?}");
        }
        assert_eq!(most(Share::All), QUOTA);
    }
}
