//! Rate limiting of log messages about frequent failures.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Minimum interval between two messages.
const QUIET: Duration = Duration::from_secs(10);

/// Counts repeated failures: the first is logged immediately, later ones at most once every ten seconds.
#[derive(Debug, Default)]
pub struct LogThrottle {
    /// Time of the last message, and the number of failures since then.
    state: Mutex<(Option<Instant>, u64)>,
}

impl LogThrottle {
    /// Counts a failure. Returns `Some` if it is to be logged, with the number of unlogged failures before
    /// it.
    pub fn count(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.0.is_some_and(|logged| now.duration_since(logged) < QUIET) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_failure_is_logged_and_then_one_every_ten_seconds() {
        let throttle = LogThrottle::default();
        let mut logged = Vec::new();
        for second in 0..25 {
            for _ in 0..100 {
                logged.extend(throttle.count().map(|unlogged| (second, unlogged)));
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(logged, [(0, 0), (10, 999), (20, 999)]);
    }
}
