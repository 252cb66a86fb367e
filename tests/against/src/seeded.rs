//! Choices from a seed: equal seeds give equal requests, on every machine.

/// A generator of 64-bit numbers (SplitMix64).
pub struct Seeded(u64);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a separate generator for the case with this number, so that a case can be repeated without those
    /// before it.
    pub fn nth(seed: u64, case: u64) -> Self {
        let mut first = Self(seed ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self(first.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`; 0 if there is none.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next() % bound).unwrap_or_default()
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of some values; there must be one.
    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// One of some values; `None` if there is none.
    pub fn choose<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::Seeded;

    #[test]
    fn equal_seeds_give_equal_choices_and_cases_differ() {
        let choices = |seed, case| {
            let mut from = Seeded::nth(seed, case);
            (0..20).map(|_| from.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(choices(7, 3), choices(7, 3));
        assert_ne!(choices(7, 3), choices(7, 4));
        assert_ne!(choices(7, 3), choices(8, 3));
    }
}
