//! Distributions of durations.

use std::time::Duration;

/// Upper bounds of the buckets in nanoseconds: from 10 ns to 10 s, as in the metrics of queues of client-go.
const BOUNDS: [u64; 10] =
    [10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];

/// Counts of durations by size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Counts for each bound, and of what is longer than the last; not cumulative.
    buckets: [u64; BOUNDS.len() + 1],
    sum: Duration,
    longest: Duration,
}

impl Durations {
    /// Adds a duration.
    pub fn observe(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < nanos);
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(duration);
        self.longest = self.longest.max(duration);
    }

    /// Returns the bounds with the count of durations up to each.
    pub fn cumulated(&self) -> impl Iterator<Item = (Duration, u64)> {
        let counts = self.buckets.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        BOUNDS.iter().map(|bound| Duration::from_nanos(*bound)).zip(counts)
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of all durations.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Returns the longest duration; zero if there is none.
    pub fn longest(&self) -> Duration {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_count_at_and_above_their_bounds() {
        let mut durations = Durations::default();
        for nanos in [0, 10, 11, 10_000_000_000, 10_000_000_001] {
            durations.observe(Duration::from_nanos(nanos));
        }
        let rows: Vec<_> = durations.cumulated().collect();
        assert_eq!(rows.len(), 10);
        assert_eq!(rows[0], (Duration::from_nanos(10), 2));
        assert_eq!(rows[1].1, 3);
        assert_eq!(rows[9], (Duration::from_secs(10), 4));
        assert_eq!((durations.count(), durations.sum()), (5, Duration::from_nanos(20_000_000_022)));
        durations.observe(Duration::from_nanos(3));
        assert_eq!(durations.longest(), Duration::from_nanos(10_000_000_001));
    }
}
