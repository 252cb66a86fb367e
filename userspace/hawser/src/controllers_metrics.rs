//! `/metrics` of the controllers, with the names of kube-controller-manager.

use controllers_manager::Metrics;
use controllers_runtime::{Durations, QueueMetrics};
use userspace_daemon::metrics::{Exposition, Format, Samples};

/// Returns the page in the given format.
pub fn page(metrics: &Metrics, format: Format) -> String {
    let mut page = Exposition::new(format);
    page.process();
    let (queues, controllers) = (metrics.queues(), metrics.controllers());
    page.family(
        "running_managed_controllers",
        "gauge",
        "[ALPHA] Controllers that run in this process.",
        |samples| {
            for name in controllers {
                samples.value(&[("manager", "kube-controller-manager"), ("name", name)], 1.0);
            }
        },
    );
    let mut add = |name: &str, kind: &str, help: &str, fill: Fill| {
        page.family(name, kind, help, |samples| {
            queues.iter().for_each(|(name, queue)| fill(samples, &[("name", name)], queue));
        });
    };
    add("workqueue_depth", "gauge", "[BETA] Keys that are ready for a worker.", |to, labels, queue| {
        to.value(labels, queue.depth as f64);
    });
    add("workqueue_adds_total", "counter", "[BETA] Keys that became ready.", |to, labels, queue| {
        to.value(labels, queue.adds as f64);
    });
    add(
        "workqueue_retries_total",
        "counter",
        "[BETA] Keys added again after a failure.",
        |to, labels, queue| {
            to.value(labels, queue.retries as f64);
        },
    );
    add(
        "workqueue_queue_duration_seconds",
        "histogram",
        "[BETA] Time that keys wait for a worker.",
        |to, labels, queue| {
            histogram(to, labels, &queue.waits);
        },
    );
    add(
        "workqueue_work_duration_seconds",
        "histogram",
        "[BETA] Time that keys are processed.",
        |to, labels, queue| {
            histogram(to, labels, &queue.work);
        },
    );
    add(
        "workqueue_unfinished_work_seconds",
        "gauge",
        "[BETA] Sum of the times for which the keys in progress have been processed.",
        |to, labels, queue| to.value(labels, queue.unfinished.as_secs_f64()),
    );
    add(
        "workqueue_longest_running_processor_seconds",
        "gauge",
        "[BETA] Time for which the oldest key in progress has been processed.",
        |to, labels, queue| to.value(labels, queue.longest.as_secs_f64()),
    );
    add_measured(&mut page, &queues);
    page.finish()
}

/// Adds what client-go does not have: the longest times, and the times without waiting.
fn add_measured(page: &mut Exposition, queues: &[(&'static str, QueueMetrics)]) {
    let mut add = |name: &str, kind: &str, help: &str, fill: Fill| {
        page.family(name, kind, help, |samples| {
            queues.iter().for_each(|(name, queue)| fill(samples, &[("name", name)], queue));
        });
    };
    add(
        "workqueue_longest_work_seconds",
        "gauge",
        "[ALPHA] Longest time for which a key has been processed since the start.",
        |to, labels, queue| to.value(labels, queue.work.longest().as_secs_f64()),
    );
    add(
        "workqueue_computing_duration_seconds",
        "histogram",
        "[ALPHA] Time that keys are processed without the time of waiting for answers.",
        |to, labels, queue| histogram(to, labels, &queue.computing),
    );
    add(
        "workqueue_longest_computing_seconds",
        "gauge",
        "[ALPHA] Longest time of that kind since the start.",
        |to, labels, queue| to.value(labels, queue.computing.longest().as_secs_f64()),
    );
}

type Fill = fn(&mut Samples<'_>, &[(&str, &str)], &QueueMetrics);

fn histogram(to: &mut Samples<'_>, labels: &[(&str, &str)], durations: &Durations) {
    let rows = durations.cumulated().map(|(bound, count)| (bound.as_secs_f64(), count));
    to.rows(labels, rows, durations.count(), durations.sum().as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_no_controllers_has_the_process_alone() {
        let text = page(&Metrics::default(), Format::Text);
        assert!(text.contains("process_start_time_seconds") && !text.contains("workqueue"), "{text}");
    }
}
