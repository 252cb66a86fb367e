//! A fake API server with bad days, and clocks: what the tests of the manager and of the scheduler share.
#![allow(clippy::unwrap_used, reason = "only tests use it")]

pub mod api;
pub mod faults;
mod kinds;
pub mod merge;
pub mod scale;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use apiserver_meta::ambient::{Ambient, Clock, Random};
use jiff::Timestamp;
use tokio::time::Instant;

/// Returns a fixed time plus `second` seconds.
pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

struct Paused(Instant);

impl Clock for Paused {
    fn now(&self) -> Timestamp {
        at(0) + self.0.elapsed()
    }
}

struct Counting(AtomicU64);

impl Random for Counting {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// A clock that follows tokio's and can be set, as an administrator or NTP does. Clones share it.
#[derive(Clone)]
pub struct WallClock {
    start: Instant,
    ahead: Arc<AtomicI64>,
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl WallClock {
    pub fn new() -> Self {
        Self { start: Instant::now(), ahead: Arc::default() }
    }

    /// Sets it forward by a number of seconds, or back.
    pub fn jump(&self, seconds: i64) {
        self.ahead.fetch_add(seconds, Ordering::Relaxed);
    }

    pub fn ambient(&self) -> Ambient {
        Ambient { clock: Arc::new(self.clone()), ..ambient() }
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        at(self.ahead.load(Ordering::Relaxed)) + self.start.elapsed()
    }
}

/// Returns a clock that starts at second 0 and follows tokio's, and sequential random numbers.
pub fn ambient() -> Ambient {
    Ambient { clock: Arc::new(Paused(Instant::now())), random: Arc::new(Counting(AtomicU64::new(0))) }
}
