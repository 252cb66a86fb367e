//! The part of the embedded store's quota that is reserved for administrators and the control plane, so that
//! a client that may only create objects cannot halt a cluster.

use apiserver_meta::identity::Identity;
use apiserver_schema::error::ApiError;
use apiserver_store::limits::SMALL_GROWTH;
use apiserver_store::{Store, Usage};

use crate::clients::lanes::{Lane, lane};
use crate::errors::{full, store_error};
use crate::limits::reserved_quota;
use crate::request::RequestInfo;

/// The part of the quota that the author of a request may fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// The whole quota: administrators, the server itself, and heartbeats.
    #[default]
    All,
    /// Half of the reserved part too: the control plane, which creates objects on behalf of others, such as
    /// the pods of a Deployment.
    ControlPlane,
    /// Nothing of the reserved part, except for updates that grow a little: without them no pod would ever be
    /// removed.
    Node,
    /// Nothing of the kept part, and a little of it for such updates.
    Tenant,
}

impl Share {
    /// Returns the share of a request's author.
    pub fn of(info: &RequestInfo, identity: &Identity) -> Self {
        match lane(info, identity) {
            Lane::Exempt | Lane::Leases | Lane::Heartbeats => Self::All,
            Lane::System => Self::ControlPlane,
            Lane::Nodes => Self::Node,
            Lane::Common => Self::Tenant,
        }
    }

    /// Returns the bytes of the quota that it must leave free: with new objects, and with updates that grow a
    /// little.
    fn leaves(self, quota: u64) -> (u64, u64) {
        let quarter = reserved_quota(quota) / 4;
        match self {
            Self::All => (0, 0),
            Self::ControlPlane => (2 * quarter, quarter),
            Self::Node => (4 * quarter, quarter),
            Self::Tenant => (4 * quarter, 3 * quarter),
        }
    }
}

/// Refuses a value of `new` bytes that would take more than the share. Values that are being written at the
/// same time are not counted.
pub async fn check(store: &dyn Store, key: &str, new: usize, share: Share) -> Result<(), ApiError> {
    let Some(Usage { used, quota }) = store.usage().filter(|_| share != Share::All) else {
        return Ok(());
    };
    let new = new as u64;
    // The value in its place is looked up only where it matters.
    if fits(used, new, None, share, quota) {
        return Ok(());
    }
    let old = store.get(key).await.map_err(store_error)?.kv.map(|kv| kv.value.len() as u64);
    if fits(used, new, old, share, quota) {
        return Ok(());
    }
    Err(full(format!(
        "{used} bytes are stored, and the last {} of the quota of {quota} (--quota-backend-bytes) are kept for \
         administrators{}; delete objects to make room",
        share.leaves(quota).0,
        if share == Share::ControlPlane { "" } else { " and the control plane" }
    )))
}

/// Decides if a value of `new` bytes may take the place of one of `old` where `used` bytes are stored: always
/// if it does not grow.
fn fits(used: u64, new: u64, old: Option<u64>, share: Share, quota: u64) -> bool {
    let growth = new.saturating_sub(old.unwrap_or(0));
    let (by_new, by_small_growth) = share.leaves(quota);
    let left = match old {
        Some(_) if growth == 0 => return true,
        Some(_) if growth <= SMALL_GROWTH => by_small_growth,
        _ => by_new,
    };
    used.saturating_add(growth) <= quota - left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_is_full_takes_no_new_objects() {
        const QUOTA: u64 = 8 << 20;
        // The ends of the shares: quarters of the reserved part before the end of the quota.
        let at = |quarters: u64| QUOTA - quarters * reserved_quota(QUOTA) / 4;
        let table = [
            // (share, used, new, old)
            (Share::Tenant, 0, at(4), None, true),
            (Share::Tenant, 1, at(4), None, false),
            (Share::Tenant, at(4), 1, None, false),
            (Share::Tenant, at(4), 600, Some(500), true),
            (Share::Tenant, at(3), 600, Some(500), false),
            (Share::Tenant, at(4), 501 + SMALL_GROWTH, Some(500), false),
            (Share::Tenant, QUOTA * 2, 500, Some(500), true),
            (Share::Tenant, QUOTA * 2, 400, Some(500), true),
            (Share::Tenant, u64::MAX, u64::MAX, None, false),
            (Share::Node, at(4), 1, None, false),
            // When tenants and controllers have filled theirs, statuses are still written.
            (Share::Node, at(2), 600, Some(500), true),
            (Share::Node, at(1), 600, Some(500), false),
            (Share::ControlPlane, at(4), 5_000, None, true),
            (Share::ControlPlane, at(2), 1, None, false),
            (Share::ControlPlane, at(2), 600, Some(500), true),
            (Share::ControlPlane, at(1), 600, Some(500), false),
            // No other share extends this far.
            (Share::All, at(1), reserved_quota(QUOTA) / 4, None, true),
        ];
        for (share, used, new, old, expected) in table {
            assert_eq!(fits(used, new, old, share, QUOTA), expected, "{share:?} {used} {new} {old:?}");
        }
        assert!(!fits(1, 1, None, Share::Tenant, 0), "no quota is no reason to panic");
    }
}
