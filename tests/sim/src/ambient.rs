//! Clock and randomness of the simulation.

use std::sync::{Arc, Mutex, PoisonError};

use apiserver_meta::ambient::{Ambient, Clock, Random};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::entropy;

/// Wall-clock time at which every simulation begins, in seconds since 1970.
const EPOCH: i64 = 1_800_000_000;

/// A wall clock that follows tokio's paused clock.
#[derive(Clone, Debug)]
pub struct SimClock {
    began: Instant,
}

impl SimClock {
    /// Starts a clock. Must be called within the runtime.
    pub fn start() -> Self {
        Self { began: Instant::now() }
    }

    /// Returns nanoseconds since 1970.
    pub fn nanoseconds(&self) -> i64 {
        i64::try_from(self.now().as_nanosecond()).unwrap_or(i64::MAX)
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.began.elapsed()).unwrap_or(SignedDuration::MAX);
        Timestamp::from_second(EPOCH).unwrap_or_default().saturating_add(passed).unwrap_or(Timestamp::MAX)
    }
}

/// Random numbers from a seed. Clones draw from the same sequence.
#[derive(Clone, Debug)]
pub struct SimRandom(Arc<Mutex<u64>>);

impl SimRandom {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    /// Returns a number below `bound`; 0 if the bound is 0.
    pub fn below(&self, bound: u64) -> u64 {
        self.next_u64().checked_rem(bound).unwrap_or_default()
    }

    /// Returns one of `all`, or `None` if it is empty.
    pub fn choose<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        all.get(usize::try_from(self.below(all.len() as u64)).unwrap_or_default())
    }
}

impl Random for SimRandom {
    fn next_u64(&self) -> u64 {
        entropy::next(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns clock and randomness for the components.
pub fn ambient(clock: &SimClock, random: SimRandom) -> Ambient {
    Ambient { clock: Arc::new(clock.clone()), random: Arc::new(random) }
}
