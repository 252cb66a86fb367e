//! A bounded map that forgets what was used the longest time ago.

use std::collections::BTreeMap;

/// Values by key, of which the least recently used are forgotten.
pub(super) struct Recent<K, V> {
    limit: usize,
    /// Values, each with the number of its last use.
    values: BTreeMap<K, (u64, V)>,
    /// Keys by the number of their last use.
    uses: BTreeMap<u64, K>,
    next: u64,
}

impl<K: Ord + Clone, V> Recent<K, V> {
    pub fn new(limit: usize) -> Self {
        Self { limit, values: BTreeMap::new(), uses: BTreeMap::new(), next: 0 }
    }

    /// Returns the value of a key, which counts as a use.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let (used, value) = self.values.get_mut(key)?;
        if let Some(key) = self.uses.remove(used) {
            *used = self.next;
            self.uses.insert(self.next, key);
            self.next += 1;
        }
        Some(value)
    }

    /// Returns the value of a key, which does not count as a use.
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.values.get(key).map(|(_, value)| value)
    }

    /// Sets the value of a key; returns the value that is forgotten for it, which is one of another key.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.remove(&key);
        let is_full = self.values.len() >= self.limit;
        let oldest = if is_full { self.uses.pop_first() } else { None };
        let forgotten = oldest.and_then(|(_, key)| self.values.remove(&key)).map(|(_, value)| value);
        self.uses.insert(self.next, key.clone());
        self.values.insert(key, (self.next, value));
        self.next += 1;
        forgotten
    }

    /// Forgets a key; returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (used, value) = self.values.remove(key)?;
        self.uses.remove(&used);
        Some(value)
    }

    /// Returns all values, the one whose last use is the longest ago first.
    pub fn oldest_first(&self) -> impl Iterator<Item = (&K, &V)> {
        self.uses.values().filter_map(|key| self.peek(key).map(|value| (key, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_is_forgotten() {
        let mut recent = Recent::new(2);
        recent.insert("a", 1);
        recent.insert("b", 2);
        assert_eq!(recent.get(&"a"), Some(&mut 1));
        assert_eq!(recent.insert("c", 3), Some(2));
        assert!(recent.get(&"b").is_none());
        recent.insert("a", 4);
        assert_eq!(recent.insert("a", 5), None);
        assert_eq!(recent.oldest_first().collect::<Vec<_>>(), [(&"c", &3), (&"a", &5)]);
        assert_eq!((recent.get(&"a").copied(), recent.get(&"c").copied()), (Some(5), Some(3)));
        assert_eq!((recent.remove(&"a"), recent.remove(&"a")), (Some(5), None));
        assert!(recent.get(&"a").is_none());
        assert_eq!((recent.values.len(), recent.uses.len()), (1, 1));
    }
}
