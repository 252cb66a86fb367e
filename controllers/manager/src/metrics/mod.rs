//! Metrics and health of the controllers.

mod measure;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controllers_runtime::metrics::{Family, Measure, Series};
use controllers_runtime::{QueueMetrics, WorkQueue};

use crate::limits;
pub(crate) use measure::*;

type Read = Box<dyn Fn() -> QueueMetrics + Send>;
type ReadGauge = Box<dyn Fn() -> Vec<(Vec<String>, f64)> + Send>;

/// The metrics of the controllers that run; clones share them. Without controllers they are empty.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<Running>>);

#[derive(Default)]
struct Running {
    controllers: Vec<&'static str>,
    /// Controllers of which a task has failed.
    failed: BTreeSet<&'static str>,
    queues: Vec<(&'static str, Read)>,
    families: Vec<Family<Vec<String>>>,
    /// Gauges that are computed when they are read.
    gauges: Vec<(&'static Measure, ReadGauge)>,
}

impl Metrics {
    /// Returns the names of the controllers that run.
    pub fn controllers(&self) -> Vec<&'static str> {
        self.lock().controllers.clone()
    }

    /// Returns the controllers that run, with `false` for those of which a task has failed.
    pub fn health(&self) -> Vec<(&'static str, bool)> {
        let running = self.lock();
        running.controllers.iter().map(|name| (*name, !running.failed.contains(name))).collect()
    }

    /// Returns the names of the queues with their metrics.
    pub fn queues(&self) -> Vec<(&'static str, QueueMetrics)> {
        self.lock().queues.iter().map(|(name, read)| (*name, read())).collect()
    }

    /// Returns everything else that is measured, as far as it has values.
    pub fn series(&self) -> Vec<Series> {
        let running = self.lock();
        let counted = running.families.iter().map(|family| family.series(Clone::clone));
        let computed = running.gauges.iter().map(|(measure, read)| Series::of_numbers(measure, read()));
        counted.chain(computed).collect()
    }

    /// Counts one more.
    pub(crate) fn count(&self, measure: &'static Measure, labels: &[&str]) {
        self.add(measure, labels, 1);
    }

    /// Counts several more.
    pub(crate) fn add(&self, measure: &'static Measure, labels: &[&str], number: usize) {
        self.change(measure, labels, |family, labels| family.add(labels, number as f64));
    }

    /// Adds a value to a histogram.
    pub(crate) fn observe(&self, measure: &'static Measure, labels: &[&str], observed: f64) {
        self.change(measure, labels, |family, labels| family.observe(labels, observed));
    }

    /// Adds a duration to a histogram of seconds.
    pub(crate) fn time(&self, measure: &'static Measure, labels: &[&str], duration: Duration) {
        self.observe(measure, labels, duration.as_secs_f64());
    }

    /// Computes a gauge with `read` whenever it is read: labels and values.
    pub(crate) fn add_gauge(
        &self,
        measure: &'static Measure,
        read: impl Fn() -> Vec<(Vec<String>, f64)> + Send + 'static,
    ) {
        self.lock().gauges.push((measure, Box::new(read)));
    }

    fn change(
        &self,
        measure: &'static Measure,
        labels: &[&str],
        change: impl FnOnce(&mut Family<Vec<String>>, Vec<String>),
    ) {
        debug_assert_eq!(measure.labels.len(), labels.len(), "labels of {}", measure.name);
        let mut running = self.lock();
        let known = running.families.iter().position(|family| std::ptr::eq(family.measure(), measure));
        let place = known.unwrap_or_else(|| {
            running.families.push(Family::new(measure));
            running.families.len() - 1
        });
        let Some(family) = running.families.get_mut(place) else { return };
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        if family.len() < limits::SERIES || family.contains(&labels) {
            change(family, labels);
        }
    }

    /// Forgets the controllers of a former time as leader.
    pub(crate) fn clear(&self) {
        *self.lock() = Running::default();
    }

    pub(crate) fn add_controller(&self, name: &'static str) {
        self.lock().controllers.push(name);
    }

    /// Notes that a task of a controller has failed.
    pub(crate) fn fail(&self, name: &'static str) {
        self.lock().failed.insert(name);
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
