//! Clock and randomness of the simulated world.

use std::sync::{Arc, Mutex, PoisonError};

use apiserver_meta::ambient::{Ambient, Clock, Random};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::entropy;

/// Wall-clock time at which every simulation begins, in seconds since 1970.
const EPOCH: i64 = 1_800_000_000;

/// Wall-clock time that goes with tokio's paused clock.
#[derive(Clone, Debug)]
pub struct SimClock {
    began: Instant,
}

impl SimClock {
    /// A clock that starts now. Must be called within the runtime.
    pub fn start() -> Self {
        Self { began: Instant::now() }
    }

    /// Nanoseconds since 1970.
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

/// Random numbers from a seed; clones draw from one series.
#[derive(Clone, Debug)]
pub struct SimRandom(Arc<Mutex<u64>>);

impl SimRandom {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    /// A number below `bound`; 0 where the bound is 0.
    pub fn below(&self, bound: u64) -> u64 {
        self.next_u64().checked_rem(bound).unwrap_or_default()
    }

    /// One of `all`, unless there is none.
    pub fn choose<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        all.get(usize::try_from(self.below(all.len() as u64)).unwrap_or_default())
    }
}

impl Random for SimRandom {
    fn next_u64(&self) -> u64 {
        entropy::next(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Clock and randomness for the components.
pub fn ambient(clock: &SimClock, random: SimRandom) -> Ambient {
    Ambient { clock: Arc::new(clock.clone()), random: Arc::new(random) }
}
