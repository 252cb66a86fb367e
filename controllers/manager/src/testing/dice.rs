//! Random decisions of simulations, which a seed repeats.

use std::sync::Arc;

use apiserver_meta::ambient::Random;
use apiserver_meta::seeded;

pub struct Dice(Arc<dyn Random>);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seeded::ambient(seed).0.random)
    }

    /// Returns a number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    /// Returns the number of steps of a life, of which each eighth is as long as the longest, and the others are short: many
    /// different ones find more than few long ones in the same time.
    pub fn steps(&mut self, most: usize) -> usize {
        if self.once_in(8) {
            return most;
        }
        let short = most / 8;
        short + usize::try_from(self.below(short as u64 + 1)).unwrap()
    }

    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[usize::try_from(self.below(items.len() as u64)).unwrap()].clone()
    }
}
