//! Retry times of failed operations.

use tokio::time::Instant;

use crate::limits;

/// The number of failures of an operation, and the time of its next attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    failures: u32,
    pub due: Instant,
    /// The time of the first failure.
    pub since: Instant,
}

impl Retry {
    /// Returns the state after one more failure. `jitter` is any number; it spreads the attempts of many
    /// nodes.
    pub fn after(earlier: Option<Self>, now: Instant, jitter: u64) -> Self {
        let failures = earlier.map_or(0, |retry| retry.failures).saturating_add(1);
        let pause = limits::MIN_RETRY.saturating_mul(1 << (failures - 1).min(16)).min(limits::MAX_RETRY);
        let spread = pause.mul_f64(0.1 * (jitter % 1000) as f64 / 1000.0);
        Self { failures, due: now + pause + spread, since: earlier.map_or(now, |retry| retry.since) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_remember_the_first_failure() {
        let start = Instant::now();
        let mut retry = Retry::after(None, start, 0);
        assert_eq!(retry.due - start, limits::MIN_RETRY);
        for _ in 0..40 {
            retry = Retry::after(Some(retry), start, 999);
        }
        assert!(
            retry.due - start >= limits::MAX_RETRY && retry.due - start <= limits::MAX_RETRY.mul_f64(1.1)
        );
        assert_eq!(retry.since, start);
    }
}
