//! Equal values that are stored once, found by their order. Values without one, such as the types of the API, are shared by
//! the `FingerprintInterner` of `apiserver/client`.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Number of values up to which unused ones are not looked for.
const FEW: usize = 64;

/// Returns the same `Arc` for equal values, for as long as one is in use.
///
/// A value that nobody uses any more is forgotten when it is given back with [`Interner::release`], or else when there
/// are twice as many values as the last look for unused ones has left.
pub struct Interner<T: ?Sized> {
    values: BTreeSet<Arc<T>>,
    /// Number of values at which unused ones are looked for.
    full: usize,
}

impl<T: ?Sized> Default for Interner<T> {
    fn default() -> Self {
        Self { values: BTreeSet::new(), full: FEW }
    }
}

impl<T: ?Sized> fmt::Debug for Interner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interner").field("values", &self.values.len()).finish_non_exhaustive()
    }
}

impl<T: ?Sized + Ord> Interner<T> {
    /// Returns the shared value that equals this one, which becomes it if there is none.
    pub fn intern<V: Borrow<T> + Into<Arc<T>>>(&mut self, value: V) -> Arc<T> {
        if let Some(known) = self.values.get(value.borrow()) {
            return Arc::clone(known);
        }
        if self.values.len() >= self.full {
            self.forget_unused();
        }
        let value = value.into();
        self.values.insert(Arc::clone(&value));
        value
    }

    /// Drops a value that was interned here, and forgets it if that was its last use.
    pub fn release(&mut self, value: Arc<T>) {
        // This one, and that of the set.
        if Arc::strong_count(&value) <= 2 {
            self.values.remove(value.as_ref());
        }
    }

    /// Forgets all values that nobody uses.
    pub fn forget_unused(&mut self) {
        self.values.retain(|value| Arc::strong_count(value) > 1);
        self.full = (2 * self.values.len()).max(FEW);
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.values.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_stored_once() {
        let (mut texts, mut lists) = (Interner::<str>::default(), Interner::<Vec<u8>>::default());
        let (a, b) = (texts.intern("a"), texts.intern("b"));
        assert!(Arc::ptr_eq(&a, &texts.intern(String::from("a").as_str())) && !Arc::ptr_eq(&a, &b));
        assert_eq!((&*a, &*b, texts.len()), ("a", "b", 2));
        assert!(Arc::ptr_eq(&lists.intern(vec![1, 2]), &lists.intern(vec![1, 2])));
    }

    #[test]
    fn released_value_is_forgotten_with_its_last_use() {
        let mut texts = Interner::<str>::default();
        let (first, second) = (texts.intern("a"), texts.intern("a"));
        texts.release(first);
        assert_eq!(texts.iter().collect::<Vec<_>>(), [&second]);
        texts.release(second);
        assert!(texts.is_empty());
    }

    #[test]
    fn dropped_values_are_forgotten_before_there_are_twice_as_many_as_are_used() {
        let mut texts = Interner::<str>::default();
        let used: Vec<_> = (0..1000).map(|n| texts.intern(format!("used-{n}").as_str())).collect();
        for n in 0..100_000 {
            texts.intern(format!("dropped-{n}").as_str());
            assert!(texts.len() <= 2 * used.len());
        }
        assert!(used.iter().all(|text| Arc::ptr_eq(text, &texts.intern(&**text))));
        texts.forget_unused();
        assert_eq!(texts.len(), used.len());
        drop(used);
        for n in 0..=FEW {
            texts.intern(format!("dropped-{n}").as_str());
        }
        texts.forget_unused();
        assert!(texts.is_empty());
        assert_eq!(texts.full, FEW);
    }
}
