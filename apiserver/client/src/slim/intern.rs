//! One copy of equal values that have no order, such as the specifications of pods.
//!
//! Where values have an order, [`apiserver_meta::intern`] finds them by comparing a few, and is exact. The types of
//! `k8s-openapi` have none, and comparing a new one with all would cost too much, so these are found by a fingerprint. The two
//! have nothing in common but their purpose: that one is owned and told what is given back, this one is a static that
//! remembers values weakly.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use apiserver_meta::ambient::Ambient;
use serde::Serialize;

/// Values that are compared at most to share one. It bounds the work if somebody chooses values with equal fingerprints.
const CANDIDATES: usize = 4;
/// Number of values from which on those that nobody has any more are looked for.
const FIRST_SWEEP: usize = 1024;

/// Shares equal values: who asks for one gets the `Arc` that others have already. Values that nobody has any more are
/// forgotten.
///
/// Sharing is an economy alone: two equal values may still be two.
pub struct FingerprintInterner<T>(Mutex<Known<T>>);

struct Known<T> {
    by_fingerprint: BTreeMap<u64, Vec<Weak<T>>>,
    count: usize,
    next_sweep: usize,
}

impl<T> Default for FingerprintInterner<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> FingerprintInterner<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(Known { by_fingerprint: BTreeMap::new(), count: 0, next_sweep: FIRST_SWEEP }))
    }

    /// Returns the number of values that are known.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().unwrap().count
    }
}

impl<T: PartialEq + Serialize> FingerprintInterner<T> {
    /// Returns an equal value that is known, or this one, which is known from then on.
    pub fn share(&self, value: T) -> Arc<T> {
        self.share_as(fingerprint(&value), value)
    }
}

impl<T: PartialEq> FingerprintInterner<T> {
    fn share_as(&self, fingerprint: u64, value: T) -> Arc<T> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let candidates = known.by_fingerprint.entry(fingerprint).or_default();
        let found = candidates.iter().filter_map(Weak::upgrade).find(|known| **known == value);
        if let Some(found) = found {
            return found;
        }
        let value = Arc::new(value);
        let before = candidates.len();
        candidates.retain(|value| value.strong_count() > 0);
        if candidates.len() < CANDIDATES {
            candidates.push(Arc::downgrade(&value));
        }
        let after = candidates.len();
        known.count = known.count + after - before;
        known.sweep();
        value
    }
}

impl<T> Known<T> {
    /// Forgets what nobody has any more, when there are twice as many values as the last time.
    fn sweep(&mut self) {
        if self.count < self.next_sweep {
            return;
        }
        self.by_fingerprint.retain(|_, candidates| {
            candidates.retain(|value| value.strong_count() > 0);
            candidates.shrink_to_fit();
            !candidates.is_empty()
        });
        self.count = self.by_fingerprint.values().map(Vec::len).sum();
        self.next_sweep = FIRST_SWEEP.max(2 * self.count);
    }
}

/// The beginning of all fingerprints, another one in each process: who writes pods must not be able to choose some that have the
/// fingerprint of another template, which would then no longer be shared.
static SECRET: LazyLock<[u64; 2]> = LazyLock::new(|| {
    let random = Ambient::system().random;
    [random.next_u64(), random.next_u64()]
});

/// Returns a number that is equal for equal values, and rarely for others: a keyed hash of the value as JSON. It decides what
/// is shared and nothing else, so that runs of the simulation stay equal.
fn fingerprint(value: &impl Serialize) -> u64 {
    fingerprint_with(*SECRET, value)
}

fn fingerprint_with(secret: [u64; 2], value: &impl Serialize) -> u64 {
    let mut hash = Hash(DefaultHasher::new());
    secret.into_iter().for_each(|part| hash.0.write_u64(part));
    // Writing into a hash does not fail; a value without JSON has what was written before.
    let _ = serde_json::to_writer(&mut hash, value);
    hash.0.finish()
}

struct Hash(DefaultHasher);

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_others_are_not() {
        let interner = FingerprintInterner::new();
        let share = |text: &str| interner.share(text.to_owned());
        let (a, b, again) = (share("a"), share("b"), share("a"));
        assert!(Arc::ptr_eq(&a, &again) && *b == "b");
    }

    #[test]
    fn fingerprints_depend_on_the_secret() {
        let of = |secret| fingerprint_with(secret, &"a");
        assert_eq!(of([1, 2]), of([1, 2]));
        assert!(of([1, 2]) != of([1, 3]) && of([1, 2]) != of([2, 2]));
        assert_eq!(fingerprint(&"a"), fingerprint(&"a"));
    }

    #[test]
    fn values_with_one_fingerprint_are_told_apart_and_only_a_few_are_compared() {
        let interner = FingerprintInterner::new();
        let values: Vec<_> = (0..20).map(|number| interner.share_as(7, number)).collect();
        assert!(values.iter().enumerate().all(|(number, value)| **value == number));
        assert!(Arc::ptr_eq(&values[1], &interner.share_as(7, 1)));
        assert_eq!(interner.len(), CANDIDATES);
    }

    #[test]
    fn values_that_nobody_has_are_forgotten() {
        let interner = FingerprintInterner::new();
        let kept = interner.share(0);
        for number in 1..10 * FIRST_SWEEP {
            interner.share(number);
        }
        assert!(interner.len() <= FIRST_SWEEP, "{} are known", interner.len());
        assert!(Arc::ptr_eq(&kept, &interner.share(0)), "it is still known");
    }
}
