//! Metrics under kube-proxy's names, and those of the data plane under ours.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::counters::Counters;
use crate::process;
use crate::requests::Requests;
use crate::serve::blocking;

type Seconds = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Code {
    pub code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct TrafficPolicy {
    pub traffic_policy: PolicyLabel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PolicyLabel {
    Internal,
    External,
}

impl prometheus_client::encoding::EncodeLabelValue for PolicyLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        let text = match self {
            Self::Internal => "internal",
            Self::External => "external",
        };
        prometheus_client::encoding::EncodeLabelValue::encode(&text, encoder)
    }
}

/// All metrics of the proxy.
pub(crate) struct Metrics {
    registry: Registry,
    /// Any apply, whole or of one Service.
    pub sync: Histogram,
    pub full_sync: Histogram,
    pub partial_sync: Histogram,
    /// From the change that made a slice change to its being in the tables.
    pub programming: Histogram,
    pub last_applied: Seconds,
    pub last_queued: Seconds,
    pub service_changes: Counter,
    pub endpoint_changes: Counter,
    pub service_changes_pending: Gauge,
    pub endpoint_changes_pending: Gauge,
    pub no_local_endpoints: Family<TrafficPolicy, Gauge>,
    pub apply_failures: Counter,
    pub healthz: Family<Code, Counter>,
    pub livez: Family<Code, Counter>,
    /// Warnings about what Services ask for.
    pub warnings: Counter,
    /// Faults of the data path that were found.
    pub faults: Counter,
    /// Sockets of clients that were told to begin anew, because their backend went.
    pub sockets_destroyed: Counter,
    /// Health check node ports that are wanted, and those that somebody else holds.
    pub health_checks: Gauge,
    pub health_checks_failing: Gauge,
    pub health_check_requests: Family<Code, Counter>,
    /// Network namespaces whose sockets are left alone.
    pub exempt: Gauge,
    /// What programs count.
    pub counters: Arc<Counters>,
}

impl Metrics {
    /// With what the client of the API server counts.
    pub fn new(requests: &Requests) -> Self {
        let sync = || Histogram::new(sync_buckets());
        let mut metrics = Self {
            registry: Registry::default(),
            sync: sync(),
            full_sync: sync(),
            partial_sync: sync(),
            programming: Histogram::new(programming_buckets()),
            last_applied: Seconds::default(),
            last_queued: Seconds::default(),
            service_changes: Counter::default(),
            endpoint_changes: Counter::default(),
            service_changes_pending: Gauge::default(),
            endpoint_changes_pending: Gauge::default(),
            no_local_endpoints: Family::default(),
            apply_failures: Counter::default(),
            healthz: Family::default(),
            livez: Family::default(),
            warnings: Counter::default(),
            faults: Counter::default(),
            sockets_destroyed: Counter::default(),
            health_checks: Gauge::default(),
            health_checks_failing: Gauge::default(),
            health_check_requests: Family::default(),
            exempt: Gauge::default(),
            counters: Arc::default(),
        };
        metrics.register();
        metrics.register_own();
        requests.register(&mut metrics.registry);
        process::register(&mut metrics.registry);
        metrics
    }

    fn register(&mut self) {
        let r = self.registry.sub_registry_with_prefix("kubeproxy");
        r.register("sync_proxy_rules_duration_seconds", "Time of one apply", self.sync.clone());
        let name = "sync_full_proxy_rules_duration_seconds";
        r.register(name, "Time of one apply of everything", self.full_sync.clone());
        let name = "sync_partial_proxy_rules_duration_seconds";
        r.register(name, "Time of one apply of one Service", self.partial_sync.clone());
        let name = "network_programming_duration_seconds";
        r.register(name, "From a change of a pod or Service to its being served", self.programming.clone());
        let name = "sync_proxy_rules_last_timestamp_seconds";
        r.register(name, "When tables were last applied", self.last_applied.clone());
        let name = "sync_proxy_rules_last_queued_timestamp_seconds";
        r.register(name, "When a change last arrived", self.last_queued.clone());
        let name = "sync_proxy_rules_service_changes";
        r.register(name, "Changes of Services", self.service_changes.clone());
        let name = "sync_proxy_rules_endpoint_changes";
        r.register(name, "Changes of EndpointSlices", self.endpoint_changes.clone());
        let name = "sync_proxy_rules_service_changes_pending";
        r.register(name, "Changes of Services not yet applied", self.service_changes_pending.clone());
        let name = "sync_proxy_rules_endpoint_changes_pending";
        r.register(name, "Changes of EndpointSlices not yet applied", self.endpoint_changes_pending.clone());
        let name = "sync_proxy_rules_no_local_endpoints_total";
        r.register(
            name,
            "Services of policy Local without an endpoint here",
            self.no_local_endpoints.clone(),
        );
        r.register("sync_proxy_rules_failures", "Applies that failed", self.apply_failures.clone());
        r.register("proxy_healthz", "Answers of /healthz by code", self.healthz.clone());
        r.register("proxy_livez", "Answers of /livez by code", self.livez.clone());
    }

    /// What kube-proxy has no name for.
    fn register_own(&mut self) {
        let r = self.registry.sub_registry_with_prefix("hawser_proxy");
        r.register("warnings", "What Services ask for and do not get", self.warnings.clone());
        r.register(
            "data_path_faults",
            "Times that the data path was not as it was left",
            self.faults.clone(),
        );
        let name = "sockets_destroyed";
        r.register(
            name,
            "Datagram sockets closed because their backend went",
            self.sockets_destroyed.clone(),
        );
        r.register("health_checks", "Health check node ports wanted", self.health_checks.clone());
        let name = "health_checks_failing";
        r.register(
            name,
            "Health check node ports that cannot be listened on",
            self.health_checks_failing.clone(),
        );
        let name = "health_check_requests";
        r.register(name, "Answers of health check node ports by code", self.health_check_requests.clone());
        let name = "exempt_namespaces";
        r.register(name, "Network namespaces without socket hooks", self.exempt.clone());
        let r = self.registry.sub_registry_with_prefix("hawser_dataplane");
        r.register_collector(Box::new(Arc::clone(&self.counters)));
    }

    /// The page of `/metrics`. Counters of programs are read for it, at most once in a while.
    pub async fn text(&self) -> Result<String, std::fmt::Error> {
        if self.counters.is_due(Instant::now()) {
            let counters = Arc::clone(&self.counters);
            blocking(move || counters.read()).await;
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// kube-proxy's, from 1 ms to 16 s, and finer ones below.
fn sync_buckets() -> impl Iterator<Item = f64> {
    [0.000_05, 0.000_1, 0.000_2, 0.000_5].into_iter().chain(exponential_buckets(0.001, 2.0, 15))
}

/// kube-proxy's, from 0.25 s to 5 min, and finer ones below, where we expect to be.
fn programming_buckets() -> impl Iterator<Item = f64> {
    let fine = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5];
    let seconds = (1..=59).map(f64::from);
    let coarse = (1..=12).map(|n| f64::from(60 + 5 * (n - 1)));
    let minutes = [120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0];
    fine.into_iter().chain(seconds).chain(coarse).chain(minutes)
}
