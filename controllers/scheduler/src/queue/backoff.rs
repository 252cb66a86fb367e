//! Pauses after failures.
//!
//! Time is divided into windows of a second. A pause ends with a window, so that pods whose pauses end at nearly the same
//! time are tried in the order of their priorities.

use std::time::Duration;

use tokio::time::Instant;

use super::QueueConfig;
use super::entry::Entry;

/// A window in which pauses end, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Window(u64);

/// Counts windows from the arrival of the first pod.
#[derive(Debug, Default)]
pub(super) struct Windows {
    origin: Option<Instant>,
}

impl Windows {
    /// Starts the count, if this is the first pod.
    pub fn begin(&mut self, now: Instant) {
        self.origin.get_or_insert(now);
    }

    fn of(&self, time: Instant) -> Window {
        let origin = self.origin.unwrap_or(time);
        Window(time.saturating_duration_since(origin).as_secs())
    }

    /// Returns when a window ends. Must not be called before [`Self::begin`].
    pub fn end(&self, window: Window) -> Instant {
        let origin = self.origin.expect("there are no windows before the first pod");
        origin + Duration::from_secs(window.0 + 1)
    }

    /// Returns `true` if a pause that ends in this window is not over.
    pub fn is_open(&self, window: Window, now: Instant) -> bool {
        window >= self.of(now)
    }

    /// Returns when the pause of a pod ends that has just failed; `None` if there is none. Errors in a row are counted apart
    /// from refusals, so that trouble with the API server does not lengthen the pauses of pods that do not fit.
    pub fn expiry(&self, config: &QueueConfig, entry: &Entry) -> Option<Window> {
        let failures = if entry.errors > 0 { entry.errors } else { entry.refused };
        (failures > 0 && !config.max_backoff.is_zero())
            .then(|| self.of(entry.queued + pause(config, failures)))
    }
}

/// Returns the pause after a number of failures: it doubles with each.
pub(super) fn pause(config: &QueueConfig, failures: u32) -> Duration {
    let factor = 2_u32.checked_pow(failures.saturating_sub(1));
    let pause = factor.and_then(|factor| config.initial_backoff.checked_mul(factor));
    pause.map_or(config.max_backoff, |pause| pause.min(config.max_backoff))
}
