//! Metrics of the server's background work: the depth of its queues and its duration.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use userspace_daemon::metrics::{Counter, Exposition, Gauge, Histogram};

use super::Metrics;

/// Seconds: 10 ns, and ten times as much each time.
static SECONDS: [f64; 12] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0];

/// The metrics of one queue whose items are worked on one after the other.
pub struct Queue {
    name: &'static str,
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waits: Histogram,
    work: Histogram,
    /// The time at which the work on the present item began.
    began: Mutex<Option<Instant>>,
}

impl Queue {
    pub(super) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            depth: Gauge::default(),
            adds: Counter::default(),
            retries: Counter::default(),
            waits: Histogram::new(&SECONDS),
            work: Histogram::new(&SECONDS),
            began: Mutex::default(),
        })
    }

    /// An item was added that was not in the queue.
    pub fn added(&self, depth: usize) {
        self.adds.add(1);
        self.depth.set(depth as i64);
    }

    /// An item that waited since then is worked on now.
    pub fn taken(&self, since: Instant) {
        self.waits.observe(since.elapsed().as_secs_f64());
        *self.began() = Some(Instant::now());
    }

    /// Records that the worker emptied the queue.
    pub fn emptied(&self) {
        self.depth.set(0);
    }

    /// The work on the item is done; `again`: it has to be done again.
    pub fn done(&self, again: bool) {
        if let Some(began) = self.began().take() {
            self.work.observe(began.elapsed().as_secs_f64());
        }
        if again {
            self.retries.add(1);
        }
    }

    fn began(&self) -> MutexGuard<'_, Option<Instant>> {
        self.began.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Metrics {
    /// Returns the metrics of the queue of definitions.
    pub fn definitions(&self) -> &Arc<Queue> {
        &self.0.definitions
    }

    pub(super) fn queues_page(&self, page: &mut Exposition) {
        let queue = &self.0.definitions;
        let labels = [("name", queue.name)];
        let under_way = queue.began().map_or(0.0, |began| began.elapsed().as_secs_f64());
        for (name, kind, help, value) in [
            ("workqueue_depth", "gauge", "Current depth of workqueue", queue.depth.value() as f64),
            (
                "workqueue_adds_total",
                "counter",
                "Total number of adds handled by workqueue",
                queue.adds.value() as f64,
            ),
            (
                "workqueue_retries_total",
                "counter",
                "Total number of retries handled by workqueue",
                queue.retries.value() as f64,
            ),
            (
                "workqueue_unfinished_work_seconds",
                "gauge",
                "How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.",
                under_way,
            ),
            (
                "workqueue_longest_running_processor_seconds",
                "gauge",
                "How many seconds has the longest running processor for workqueue been running.",
                under_way,
            ),
        ] {
            page.family(name, kind, &format!("[ALPHA] {help}"), |s| s.value(&labels, value));
        }
        for (name, help, histogram) in [
            (
                "workqueue_queue_duration_seconds",
                "[ALPHA] How long in seconds an item stays in workqueue before being requested.",
                &queue.waits,
            ),
            (
                "workqueue_work_duration_seconds",
                "[ALPHA] How long in seconds processing an item from workqueue takes.",
                &queue.work,
            ),
        ] {
            page.family(name, "histogram", help, |s| s.observed(&labels, histogram));
        }
    }
}
