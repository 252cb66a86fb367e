//! Decides which writes are accepted when the store is nearly full.

use crate::limits::{SMALL_GROWTH, reserve};

/// Returns `true` if a value of weight `new` may replace one of weight `old` in a store that holds `used`
/// bytes. A write that does not grow the store is always accepted; half of the reserve beyond the quota is
/// for updates that grow it a little, all of it for `vital` keys.
pub(super) fn fits(used: u64, new: u64, old: Option<u64>, vital: bool, quota: u64) -> bool {
    let growth = new.saturating_sub(old.unwrap_or(0));
    let most = match old {
        _ if vital => quota.saturating_add(reserve(quota)),
        Some(_) if growth <= SMALL_GROWTH => quota.saturating_add(reserve(quota) / 2),
        _ => quota,
    };
    growth == 0 || used.saturating_add(growth) <= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_store_accepts_shrinking_and_vital_writes() {
        const QUOTA: u64 = 1 << 20;
        let half = reserve(QUOTA) / 2;
        let table = [
            // (used, new, old, vital)
            (0, QUOTA, None, false, true),
            (1, QUOTA, None, false, false),
            (QUOTA, 1, None, false, false),
            (QUOTA * 2, 500, Some(500), false, true),
            (QUOTA * 2, 400, Some(500), false, true),
            (QUOTA, 600, Some(500), false, true),
            (QUOTA + half, 600, Some(500), false, false),
            (QUOTA, 500 + SMALL_GROWTH + 1, Some(500), false, false),
            (QUOTA + half, 600, None, true, true),
            (QUOTA + reserve(QUOTA), 600, None, true, false),
            (QUOTA + reserve(QUOTA), 600, Some(600), true, true),
            (u64::MAX, u64::MAX, None, false, false),
        ];
        for (used, new, old, vital, expected) in table {
            assert_eq!(fits(used, new, old, vital, QUOTA), expected, "{used} {new} {old:?} {vital}");
        }
    }
}
