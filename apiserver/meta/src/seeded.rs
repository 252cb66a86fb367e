//! Time and randomness for tests: both under the test's control.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::ambient::{Ambient, Clock, Random};
use jiff::Timestamp;

/// Seconds since 1970 at which tests begin: 2026-11-21T00:00:00Z.
pub const START: i64 = 1_795_219_200;

/// A clock that only moves when it is set.
pub struct TestClock(AtomicI64);

impl TestClock {
    /// Moves the clock forward.
    pub fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

struct TestRandom(AtomicU64);

impl Random for TestRandom {
    fn next_u64(&self) -> u64 {
        // SplitMix64: every seed gives a good sequence.
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Returns a clock that begins at [`START`] and numbers that follow from `seed`, and the clock itself.
pub fn ambient(seed: u64) -> (Ambient, Arc<TestClock>) {
    let clock = Arc::new(TestClock(AtomicI64::new(START)));
    (Ambient { clock: clock.clone(), random: Arc::new(TestRandom(AtomicU64::new(seed))) }, clock)
}
