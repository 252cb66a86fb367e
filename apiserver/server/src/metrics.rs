//! Metrics, with the names that Kubernetes gives them.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use apiserver_api::registry::Resource;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::request::RequestInfo;

type Labels = Vec<(&'static str, String)>;
type InFlight = Gauge<i64, AtomicI64>;

/// Seconds.
const BUCKETS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// What the server counts.
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    in_flight: Family<Labels, InFlight>,
    watchers: Family<Labels, InFlight>,
}

/// Counts something that is going on until it is dropped.
pub struct Guard(InFlight);

/// An open watch.
pub type WatchGuard = Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let requests = Family::<Labels, Counter>::default();
        registry.register(
            "apiserver_request",
            "Requests by verb, kind and HTTP status code",
            requests.clone(),
        );
        let durations = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register(
            "apiserver_request_duration_seconds",
            "Time from a request's arrival to the head of its answer",
            durations.clone(),
        );
        let in_flight = Family::<Labels, InFlight>::default();
        registry.register(
            "apiserver_current_inflight_requests",
            "Requests that are being worked on",
            in_flight.clone(),
        );
        let watchers = Family::<Labels, InFlight>::default();
        registry.register("apiserver_registered_watchers", "Open watches by kind", watchers.clone());
        Self { registry, requests, durations, in_flight, watchers }
    }

    /// A request has arrived.
    pub fn request_began(&self, read: bool) -> Guard {
        let kind = if read { "readOnly" } else { "mutating" };
        let gauge = self.in_flight.get_or_create(&vec![("request_kind", kind.to_owned())]).clone();
        gauge.inc();
        Guard(gauge)
    }

    /// A request has been answered. `known`: its path names something that exists; others share
    /// one set of labels, so that nobody can fill the memory with labels.
    pub fn request_ended(&self, info: &RequestInfo, known: bool, code: u16, took: Duration) {
        let text = |value: &str| if known { value.to_owned() } else { String::new() };
        let scope = match (info.namespace.is_empty(), info.name.is_empty()) {
            _ if !known => "",
            (_, false) => "resource",
            (false, true) => "namespace",
            (true, true) => "cluster",
        };
        let labels = vec![
            ("verb", info.verb.to_ascii_uppercase()),
            ("group", text(&info.group)),
            ("version", text(&info.version)),
            ("resource", text(&info.resource)),
            ("subresource", text(&info.subresource)),
            ("scope", scope.to_owned()),
        ];
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
        let mut labels = labels;
        labels.push(("code", code.to_string()));
        self.requests.get_or_create(&labels).inc();
    }

    /// A watch has begun.
    pub fn watch_opened(&self, resource: &Resource) -> WatchGuard {
        let labels = vec![
            ("group", resource.group.clone()),
            ("version", resource.version.clone()),
            ("kind", resource.kind.clone()),
        ];
        let gauge = self.watchers.get_or_create(&labels).clone();
        gauge.inc();
        Guard(gauge)
    }

    /// The page of `/metrics`.
    pub fn page(&self, objects: impl Iterator<Item = (String, usize)>) -> Result<String, std::fmt::Error> {
        let mut storage = Registry::default();
        let family = Family::<Labels, InFlight>::default();
        storage.register("apiserver_storage_objects", "Objects by kind", family.clone());
        for (resource, count) in objects {
            family.get_or_create(&vec![("resource", resource)]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, &self.registry)?;
        prometheus_client::encoding::text::encode_registry(&mut text, &storage)?;
        prometheus_client::encoding::text::encode_eof(&mut text)?;
        Ok(text)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
