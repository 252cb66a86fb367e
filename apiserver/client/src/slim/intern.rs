//! One copy of equal values that have no order, such as the specifications of pods: where they have one,
//! [`apiserver_meta::intern`] needs no fingerprint.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use apiserver_meta::fnv::fnv1a_64_after;
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

/// Returns a number that is equal for equal values, and rarely for others: a hash of the value as JSON.
fn fingerprint(value: &impl Serialize) -> u64 {
    let mut hash = Hash(0);
    // Writing into a hash does not fail; a value without JSON has what was written before.
    let _ = serde_json::to_writer(&mut hash, value);
    hash.0
}

struct Hash(u64);

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = fnv1a_64_after(self.0, bytes.iter().copied());
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
