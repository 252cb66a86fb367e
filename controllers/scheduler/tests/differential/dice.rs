//! Random choices from a seed.

use std::ops::RangeInclusive;

/// A source of random choices; the same seed gives the same choices.
pub struct Dice {
    random: fastrand::Rng,
}

impl Dice {
    /// Returns the source for `seed`.
    pub fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed) }
    }

    /// Returns true with the probability `chance`.
    pub fn chance(&mut self, chance: f64) -> bool {
        self.random.f64() < chance
    }

    /// Returns a number of `range`.
    pub fn number(&mut self, range: RangeInclusive<i64>) -> i64 {
        self.random.i64(range)
    }

    /// Returns an index below `length`.
    pub fn index(&mut self, length: usize) -> usize {
        self.random.usize(..length)
    }

    /// Returns a small count of `range`, small ones more often.
    pub fn few(&mut self, range: RangeInclusive<i64>) -> i64 {
        self.number(range.clone()).min(self.number(range))
    }

    /// Returns one of `values`.
    pub fn pick<'v, T: ?Sized>(&mut self, values: &[&'v T]) -> &'v T {
        values[self.index(values.len())]
    }

    /// Returns each of `values` with the probability `chance`, in order.
    pub fn some<'v, T: ?Sized>(&mut self, values: &[&'v T], chance: f64) -> Vec<&'v T> {
        values.iter().copied().filter(|_| self.chance(chance)).collect()
    }

    /// Returns a random permutation of `values`.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        self.random.shuffle(values);
    }
}
