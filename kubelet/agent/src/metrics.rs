//! Metrics of this kubelet in the Prometheus text format, with the names that Kubernetes uses.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Upper bounds in seconds, for durations from milliseconds to minutes.
const BUCKETS: [f64; 14] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Metrics of the kubelet.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    /// Duration of relists of the runtime.
    pub relist: Histogram,
    /// Time from the first sight of a pod until all of its containers are running.
    pub pod_start: Histogram,
    /// Time from a change until its status is acknowledged by the API server.
    pub status_push: Histogram,
    pub running_pods: Gauge<i64, std::sync::atomic::AtomicI64>,
    pub running_containers: Gauge<i64, std::sync::atomic::AtomicI64>,
    pub status_pushes: Counter<u64, AtomicU64>,
    pub relist_failures: Counter<u64, AtomicU64>,
    /// Number of consecutive failed relists.
    failing: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let histogram = || Histogram::new(BUCKETS);
        let this = Self {
            registry: Mutex::default(),
            relist: histogram(),
            pod_start: histogram(),
            status_push: histogram(),
            running_pods: Gauge::default(),
            running_containers: Gauge::default(),
            status_pushes: Counter::default(),
            relist_failures: Counter::default(),
            failing: AtomicU64::new(0),
        };
        let mut registry = Registry::default();
        registry.register(
            "kubelet_pleg_relist_duration_seconds",
            "Duration of relists of the container runtime",
            this.relist.clone(),
        );
        registry.register(
            "kubelet_pod_start_duration_seconds",
            "Time from the first sight of a pod until its containers run",
            this.pod_start.clone(),
        );
        registry.register(
            "kubelet_pod_status_sync_duration_seconds",
            "Time from a status change until the API server acknowledges it",
            this.status_push.clone(),
        );
        registry.register(
            "kubelet_running_pods",
            "Number of pods with a ready sandbox",
            this.running_pods.clone(),
        );
        registry.register(
            "kubelet_running_containers",
            "Number of running containers",
            this.running_containers.clone(),
        );
        registry.register(
            "hawser_kubelet_status_pushes",
            "Number of status patches that the API server acknowledged",
            this.status_pushes.clone(),
        );
        registry.register(
            "hawser_kubelet_relist_failures",
            "Number of failed relists of the container runtime",
            this.relist_failures.clone(),
        );
        *this.registry.lock().unwrap_or_else(PoisonError::into_inner) = registry;
        this
    }

    /// Records whether a relist of the runtime succeeded.
    pub(crate) fn relisted(&self, succeeded: bool) {
        if succeeded {
            self.failing.store(0, Ordering::Relaxed);
        } else {
            self.failing.fetch_add(1, Ordering::Relaxed);
            self.relist_failures.inc();
        }
    }

    /// Returns whether the runtime has been unavailable for some time.
    pub(crate) fn runtime_is_away(&self) -> bool {
        self.failing.load(Ordering::Relaxed) >= 3
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        if encode(&mut text, &registry).is_err() {
            text.clear();
        }
        text
    }
}
