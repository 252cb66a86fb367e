//! Counts of the loop for metrics.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Config, Scheduler};
use crate::framework::{Event, Interrupted};
use crate::limits;
use crate::metrics::{self, Metrics, State};
use crate::queue::{Queue, QueueTimes};

/// The metrics, and when the loop shows its counts there.
pub(super) struct Measured {
    pub metrics: Metrics,
    /// Time at which the counts are shown next; `None` if nothing has changed since they were.
    due: Option<Instant>,
    /// Time at which they were shown last.
    shown: Option<Instant>,
    attempts: u64,
}

impl Measured {
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, due: None, shown: None, attempts: 0 }
    }

    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns `true` for the attempts whose plugins are timed: every tenth on average. They are as evenly spread as multiples
    /// of the golden ratio, so that no rhythm of the pods agrees with them.
    fn times_plugins(&mut self) -> bool {
        self.attempts += 1;
        let spread = self.attempts.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (spread * limits::TIMED_ATTEMPTS) >> 32 == 0
    }
}

/// Returns the queue of a configuration, whose times are taken.
pub(super) fn queue(config: &Config) -> Queue {
    let mut queue = Queue::new(config.queue, Arc::clone(&config.profiles));
    queue.measure(QueueTimes::new(Instant::now, metrics::OF_THE_QUEUE));
    queue
}

impl Scheduler {
    /// Begins an attempt.
    pub(super) fn begin(&mut self) {
        // Some taints of devices and some claims depend on the time.
        self.cluster.devices.begin(self.ambient.now());
        let times_plugins = self.measured.times_plugins();
        self.meter.begin(times_plugins);
    }

    /// Takes an attempt up again that was interrupted.
    pub(super) fn resume(&mut self, attempt: Interrupted) {
        self.cluster.devices.begin(self.ambient.now());
        self.meter.resume(attempt);
    }

    /// Counts an event that has been applied since a time.
    pub(super) fn applied(&mut self, event: Event, began: Instant) {
        self.measured.metrics.applied(event, began.elapsed());
    }

    /// Notes that what queue and cluster count may have changed.
    pub(super) fn counts_changed(&mut self, now: Instant) {
        let measured = &mut self.measured;
        if measured.due.is_none() {
            let earliest = measured.shown.map_or(now, |shown| shown + limits::COUNTS_SHOWN);
            measured.due = Some(now.max(earliest));
        }
    }

    /// Shows what queue and cluster count, if it is time.
    pub(super) fn show_counts(&mut self, now: Instant) {
        if self.measured.shown.is_none() {
            self.counts_changed(now);
        }
        if self.measured.due.is_none_or(|due| due > now) {
            return;
        }
        let refusals =
            self.queue.refusals().map(|(profile, plugin, pods)| (profile.to_owned(), plugin, pods));
        let refusals = refusals.collect();
        let (in_flight, events) = self.queue.in_flight();
        let state = State {
            pending: self.queue.counts(),
            incoming: self.queue.incoming().clone(),
            refusals,
            times: self.queue.times().cloned(),
            in_flight,
            events,
            nodes: self.cluster.len(),
            pods: self.cluster.pods(),
            assumed: self.binding.len(),
        };
        self.measured.metrics.publish(state);
        (self.measured.shown, self.measured.due) = (Some(now), None);
    }
}
