//! The work of the searches of an attempt.

use std::sync::atomic::{AtomicU64, Ordering};

/// Steps that the searches of one attempt have taken together, in whatever stage: on each node, for the score, to reserve, and
/// for each pod that might be evicted.
#[derive(Debug, Default)]
pub struct Steps(AtomicU64);

impl Steps {
    pub fn taken(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn take(&self, steps: u64) {
        self.0.store(self.taken().saturating_add(steps), Ordering::Relaxed);
    }

    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
