//! Metrics of this kubelet, with the names that Kubernetes uses.

use std::sync::atomic::{AtomicU64, Ordering};

use userspace_daemon::metrics::{Counter, Exposition, Format, Gauge, Histogram};

/// Upper bounds in seconds for durations from milliseconds to minutes.
static BUCKETS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Metrics of the kubelet.
pub(crate) struct Metrics {
    /// Duration of relists of the runtime.
    pub relist: Histogram,
    /// Time from the first sight of a pod until all of its containers are running.
    pub pod_start: Histogram,
    /// Time from a change until its status is acknowledged by the API server.
    pub status_push: Histogram,
    pub running_pods: Gauge,
    pub running_containers: Gauge,
    pub status_pushes: Counter,
    pub relist_failures: Counter,
    /// Number of consecutive failed relists.
    failing: AtomicU64,
}

impl Metrics {
    /// Makes the metrics, all at zero.
    pub(crate) fn new() -> Self {
        let histogram = || Histogram::new(&BUCKETS);
        Self {
            relist: histogram(),
            pod_start: histogram(),
            status_push: histogram(),
            running_pods: Gauge::default(),
            running_containers: Gauge::default(),
            status_pushes: Counter::default(),
            relist_failures: Counter::default(),
            failing: AtomicU64::new(0),
        }
    }

    /// Records whether a relist of the runtime succeeded.
    pub(crate) fn relisted(&self, succeeded: bool) {
        if succeeded {
            self.failing.store(0, Ordering::Relaxed);
        } else {
            self.failing.fetch_add(1, Ordering::Relaxed);
            self.relist_failures.add(1);
        }
    }

    /// Returns `true` if the runtime has been unavailable for some time.
    pub(crate) fn runtime_is_away(&self) -> bool {
        self.failing.load(Ordering::Relaxed) >= 3
    }

    /// Returns the page of `/metrics`.
    pub(crate) fn page(&self, format: Format) -> String {
        let mut page = Exposition::new(format);
        for (name, help, histogram) in [
            ("kubelet_pleg_relist_duration_seconds", "Lists of the runtime.", &self.relist),
            ("kubelet_pod_start_duration_seconds", "First sight to running.", &self.pod_start),
            ("kubelet_pod_status_sync_duration_seconds", "Change to acknowledged status.", &self.status_push),
        ] {
            page.family(name, "histogram", help, |s| s.histogram(&[], histogram));
        }
        for (name, help, gauge) in [
            ("kubelet_running_pods", "Pods with a ready sandbox.", &self.running_pods),
            ("kubelet_running_containers", "Running containers.", &self.running_containers),
        ] {
            page.family(name, "gauge", help, |s| s.value(&[], gauge.value() as f64));
        }
        for (name, help, counter) in [
            ("hawser_kubelet_status_pushes_total", "Acknowledged status patches.", &self.status_pushes),
            ("hawser_kubelet_relist_failures_total", "Failed lists.", &self.relist_failures),
        ] {
            page.family(name, "counter", help, |s| s.value(&[], counter.value() as f64));
        }
        page.process();
        page.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Reads types and samples; numbers, also those of bounds, are compared as numbers.
    fn parse(page: &str) -> BTreeSet<String> {
        let number = |text: &str| text.parse::<f64>().unwrap();
        let line = |line: &str| {
            if line.starts_with('#') {
                return line.to_owned();
            }
            let (sample, value) = line.rsplit_once(' ').unwrap();
            match sample.split_once("{le=\"") {
                Some((name, bound)) => {
                    format!("{name} {} {}", number(bound.trim_end_matches("\"}")), number(value))
                }
                None => format!("{sample} {}", number(value)),
            }
        };
        page.lines().filter(|line| !line.starts_with("# HELP")).map(line).collect()
    }

    #[test]
    fn the_page_has_the_same_series_as_ever() {
        let metrics = Metrics::new();
        metrics.relist.observe(0.003);
        metrics.relist.observe(1.0);
        metrics.status_push.observe(100.0);
        metrics.running_pods.set(3);
        metrics.running_containers.set(4);
        metrics.status_pushes.add(5);
        metrics.relisted(false);
        metrics.relisted(false);
        let page = parse(&metrics.page(Format::OpenMetrics));
        let (process, rest): (BTreeSet<_>, BTreeSet<_>) =
            page.into_iter().partition(|line| line.trim_start_matches("# TYPE ").starts_with("process_"));
        assert_eq!(rest, parse(include_str!("../tests/golden/metrics.txt")));
        assert!(process.iter().any(|line| line.starts_with("process_resident_memory_bytes ")), "{process:?}");
    }
}
