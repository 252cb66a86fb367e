//! From the handlers of caches, which only record, to the task that acts: a queue that holds no more than one
//! entry an object.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A queue of the latest value of each key, in the order in which the keys last changed. A value that was not
/// taken yet gives way to a newer one of its key, so that the queue never grows beyond the keys there are,
/// however far its one reader lags behind. Clones share it.
pub struct Latest<K, V>(Arc<Shared<K, V>>);

struct Shared<K, V> {
    entries: Mutex<Entries<K, V>>,
    added: Notify,
}

struct Entries<K, V> {
    /// Keys and values by number: the oldest change first.
    queue: BTreeMap<u64, (K, V)>,
    /// The number of each key.
    numbers: BTreeMap<K, u64>,
    next: u64,
}

impl<K: Ord + Clone, V> Latest<K, V> {
    /// Makes an empty queue.
    pub fn new() -> Self {
        let entries = Entries { queue: BTreeMap::new(), numbers: BTreeMap::new(), next: 0 };
        Self(Arc::new(Shared { entries: Mutex::new(entries), added: Notify::new() }))
    }

    /// Puts a value last, in place of an earlier one of the same key. Never waits.
    pub fn put(&self, key: K, value: V) {
        let mut entries = self.lock();
        let number = entries.next;
        entries.next += 1;
        if let Some(earlier) = entries.numbers.insert(key.clone(), number) {
            entries.queue.remove(&earlier);
        }
        entries.queue.insert(number, (key, value));
        drop(entries);
        self.0.added.notify_one();
    }

    /// Takes the first value, if there is one.
    pub fn try_take(&self) -> Option<V> {
        let mut entries = self.lock();
        let (_, (key, value)) = entries.queue.pop_first()?;
        entries.numbers.remove(&key);
        Some(value)
    }

    /// Takes the first value, once there is one. Nothing is lost if the future is dropped.
    pub async fn take(&self) -> V {
        loop {
            if let Some(value) = self.try_take() {
                return value;
            }
            self.0.added.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries<K, V>> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone, V> Default for Latest<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Clone for Latest<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_changes_often_has_one_entry() {
        let queue = Latest::new();
        for version in 0..10_000 {
            queue.put("a", version);
            queue.put("b", version);
        }
        let entries = queue.lock();
        assert_eq!((entries.queue.len(), entries.numbers.len()), (2, 2));
        drop(entries);
        assert_eq!((queue.try_take(), queue.try_take(), queue.try_take()), (Some(9_999), Some(9_999), None));
        assert!(queue.lock().numbers.is_empty());
    }

    #[test]
    fn values_come_in_the_order_of_the_last_changes() {
        let queue = Latest::new();
        for (key, value) in [("a", 1), ("b", 2), ("c", 3), ("a", 4)] {
            queue.put(key, value);
        }
        let taken: Vec<_> = std::iter::from_fn(|| queue.try_take()).collect();
        assert_eq!(taken, [2, 3, 4]);
    }

    #[tokio::test]
    async fn a_reader_waits_for_the_next_value() {
        let queue = Latest::new();
        let reader = tokio::spawn({
            let queue = queue.clone();
            async move { [queue.take().await, queue.take().await] }
        });
        queue.put("a", 1);
        tokio::task::yield_now().await;
        queue.put("b", 2);
        assert_eq!(reader.await.unwrap(), [1, 2]);
    }
}
