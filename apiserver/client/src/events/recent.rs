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

    /// Sets the value of a key.
    pub fn insert(&mut self, key: K, value: V) {
        self.remove(&key);
        while self.values.len() >= self.limit {
            let Some((_, oldest)) = self.uses.pop_first() else { break };
            self.values.remove(&oldest);
        }
        self.uses.insert(self.next, key.clone());
        self.values.insert(key, (self.next, value));
        self.next += 1;
    }

    /// Forgets a key.
    pub fn remove(&mut self, key: &K) {
        if let Some((used, _)) = self.values.remove(key) {
            self.uses.remove(&used);
        }
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
        recent.insert("c", 3);
        assert!(recent.get(&"b").is_none());
        recent.insert("a", 4);
        recent.insert("a", 5);
        assert_eq!((recent.get(&"a").copied(), recent.get(&"c").copied()), (Some(5), Some(3)));
        recent.remove(&"a");
        recent.remove(&"a");
        assert!(recent.get(&"a").is_none());
        assert_eq!((recent.values.len(), recent.uses.len()), (1, 1));
    }
}
