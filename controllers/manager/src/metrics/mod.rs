//! Metrics of the controllers.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use controllers_runtime::{QueueMetrics, WorkQueue};

type Read = Box<dyn Fn() -> QueueMetrics + Send>;

/// The metrics of the controllers that run; clones share them. Without controllers they are empty.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<Running>>);

#[derive(Default)]
struct Running {
    controllers: Vec<&'static str>,
    queues: Vec<(&'static str, Read)>,
}

impl Metrics {
    /// Returns the names of the controllers that run.
    pub fn controllers(&self) -> Vec<&'static str> {
        self.lock().controllers.clone()
    }

    /// Returns the names of the queues with their metrics.
    pub fn queues(&self) -> Vec<(&'static str, QueueMetrics)> {
        self.lock().queues.iter().map(|(name, read)| (*name, read())).collect()
    }

    /// Forgets the controllers of a former time as leader.
    pub(crate) fn clear(&self) {
        *self.lock() = Running::default();
    }

    pub(crate) fn add_controller(&self, name: &'static str) {
        self.lock().controllers.push(name);
    }

    pub(crate) fn add_queue<K: Ord + Clone + Send + 'static>(&self, queue: &WorkQueue<K>) {
        let (name, queue) = (queue.name(), queue.clone());
        self.lock().queues.push((name, Box::new(move || queue.metrics())));
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_read_when_asked_and_forgotten_with_their_controllers() {
        let (metrics, queue) = (Metrics::default(), WorkQueue::new("job"));
        metrics.add_controller("job-controller");
        metrics.add_queue(&queue);
        queue.add("key");
        let [(name, read)] = metrics.queues().try_into().unwrap();
        assert_eq!((name, read.adds, read.depth), ("job", 1, 1));
        assert_eq!(metrics.controllers(), ["job-controller"]);
        metrics.clear();
        assert!(metrics.queues().is_empty() && metrics.controllers().is_empty());
    }
}
