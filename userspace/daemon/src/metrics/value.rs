//! Counters, gauges, histograms, and families of them by labels. Recording is a few atomic
//! additions; finding a member of a family takes no lock and makes no string.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use imbl::OrdMap;

use crate::limits::METRIC_MEMBERS;

/// A count that only increases.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A whole number that increases and decreases.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    #[inline]
    pub fn add(&self, more: i64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    #[inline]
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub fn value(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that is set, such as a time in seconds.
#[derive(Debug, Default)]
pub struct FloatGauge(AtomicU64);

impl FloatGauge {
    #[inline]
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    #[inline]
    pub fn value(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// The number of observed values up to each bound, and the sum of all.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds, ascending; one more bucket lies above the last.
    bounds: &'static [f64],
    /// Counts per bucket, not cumulative.
    buckets: Box<[AtomicU64]>,
    /// The sum as the bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    /// Creates an empty histogram; `bounds` ascend.
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0) }
    }

    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let mut old = self.sum.load(Ordering::Relaxed);
        loop {
            let new = (f64::from_bits(old) + value).to_bits();
            match self.sum.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Adds the values of another histogram with the same bounds.
    pub fn absorb(&self, other: &Self) {
        for (mine, more) in self.buckets.iter().zip(&other.buckets) {
            mine.fetch_add(more.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let sum = |histogram: &Self| f64::from_bits(histogram.sum.load(Ordering::Relaxed));
        self.sum.store((sum(self) + sum(other)).to_bits(), Ordering::Relaxed);
    }

    /// Returns the bounds with the count of values up to each, the count of all values, and their sum.
    pub fn cumulated(&self) -> (Vec<(f64, u64)>, u64, f64) {
        let mut count = 0;
        let mut rows = Vec::with_capacity(self.bounds.len());
        for (bound, bucket) in self.bounds.iter().zip(&self.buckets) {
            count += bucket.load(Ordering::Relaxed);
            rows.push((*bound, count));
        }
        count += self.buckets[self.bounds.len()].load(Ordering::Relaxed);
        (rows, count, f64::from_bits(self.sum.load(Ordering::Relaxed)))
    }
}

/// One member of a family.
#[derive(Debug)]
pub struct Member<const N: usize, T> {
    /// Values of the labels, in the family's order.
    pub labels: [Box<str>; N],
    pub value: T,
}

type Bucket<const N: usize, T> = Vec<Arc<Member<N, T>>>;

/// Metrics of one name, by the values of their labels. Labels beyond [`METRIC_MEMBERS`] are counted together
/// under empty ones, so that made-up labels cannot fill the memory.
#[derive(Debug)]
pub struct Family<const N: usize, T> {
    make: fn() -> T,
    /// Members by a hash of the labels; the few with equal hashes share a bucket.
    members: ArcSwap<OrdMap<u64, Bucket<N, T>>>,
}

impl<const N: usize, T: Default> Default for Family<N, T> {
    fn default() -> Self {
        Self::new(T::default)
    }
}

impl<const N: usize, T> Family<N, T> {
    /// Creates a family without members; `make` creates the initial value of each.
    pub fn new(make: fn() -> T) -> Self {
        Self { make, members: ArcSwap::from_pointee(OrdMap::new()) }
    }

    /// Returns the member with these labels, created if necessary.
    pub fn get(&self, labels: &[&str; N]) -> Arc<Member<N, T>> {
        let mut hasher = DefaultHasher::new();
        labels.hash(&mut hasher);
        let hash = hasher.finish();
        let find = |members: &OrdMap<u64, Bucket<N, T>>| {
            let bucket = members.get(&hash)?;
            bucket.iter().find(|m| m.labels.iter().zip(labels).all(|(a, b)| **a == **b)).cloned()
        };
        let members = self.members.load();
        if let Some(found) = find(&members) {
            return found;
        }
        if members.len() >= METRIC_MEMBERS && labels.iter().any(|label| !label.is_empty()) {
            return self.get(&[""; N]);
        }
        drop(members);
        let new = Arc::new(Member { labels: labels.map(Box::from), value: (self.make)() });
        self.members.rcu(|members| {
            let mut members = OrdMap::clone(members);
            if find(&members).is_none() {
                members.entry(hash).or_default().push(Arc::clone(&new));
            }
            members
        });
        find(&self.members.load()).unwrap_or(new)
    }

    /// Calls `show` for each member with its labels under the family's names, in the order of their values.
    pub fn each(&self, names: [&str; N], mut show: impl FnMut(&[(&str, &str)], &T)) {
        for member in self.all() {
            let labels: Vec<(&str, &str)> =
                names.iter().copied().zip(member.labels.iter().map(|label| &**label)).collect();
            show(&labels, &member.value);
        }
    }

    /// Returns all members, in the order of their labels.
    pub fn all(&self) -> Vec<Arc<Member<N, T>>> {
        let mut all: Vec<_> = self.members.load().values().flatten().cloned().collect();
        all.sort_by(|a, b| a.labels.cmp(&b.labels));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_again_whoever_makes_them_first() {
        let family: Family<2, Counter> = Family::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..200 {
                        let (a, b) = ((number % 20).to_string(), (number % 7).to_string());
                        family.get(&[&a, &b]).value.add(1);
                    }
                });
            }
        });
        let all = family.all();
        assert_eq!(all.len(), 140);
        assert_eq!(all.iter().map(|member| member.value.value()).sum::<u64>(), 800);
        assert!(all.windows(2).all(|pair| pair[0].labels < pair[1].labels));
    }

    #[test]
    fn a_value_on_a_bound_is_below_it() {
        static BOUNDS: [f64; 2] = [1.0, 2.0];
        let histogram = Histogram::new(&BOUNDS);
        [1.0, 1.5, 2.0, 9.0].into_iter().for_each(|value| histogram.observe(value));
        assert_eq!(histogram.cumulated(), (vec![(1.0, 1), (2.0, 3)], 4, 13.5));
        let other = Histogram::new(&BOUNDS);
        other.absorb(&histogram);
        other.absorb(&histogram);
        assert_eq!(other.cumulated(), (vec![(1.0, 2), (2.0, 6)], 8, 27.0));
    }
}
