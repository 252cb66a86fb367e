//! Metrics under kube-proxy's names, and those of the data plane under ours.
//!
//! Labels are kube-proxy's too. Where it has one proxier a family, one apply here covers both, and
//! one look for sockets: each is observed once for every family that has services. Names of
//! kube-proxy 1.36 that are not served, as nothing here is what they count:
//!
//! | `kubeproxy_` | why |
//! |---|---|
//! | `sync_proxy_rules_iptables_total`, `_iptables_last`, `_iptables_restore_failures_total`, `_iptables_partial_restore_failures_total`, `_nftables_sync_failures_total`, `_nftables_cleanup_failures_total` | no rules are written; failed applies are `kubeproxy_sync_proxy_rules_failures_total` |
//! | `iptables_ct_state_invalid_dropped_packets_total` | works around the kernel's connection tracking, which takes no part |
//! | `iptables_localhost_nodeports_accepted_packets_total` | sockets are translated when they connect: no packet of theirs is one for a node port |

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use userspace_dataplane::tables::Reconciled;

use crate::counters::Counters;
use crate::process;
use crate::requests::Requests;

pub(crate) type Seconds = Family<IpFamily, Gauge<f64, AtomicU64>>;
type Times = Family<IpFamily, Histogram, fn() -> Histogram>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Code {
    pub code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct IpFamily {
    /// Of [`FAMILIES`].
    pub ip_family: &'static str,
}

/// As kube-proxy spells them.
pub(crate) const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// That of an address.
pub(crate) fn family(address: IpAddr) -> &'static str {
    let [ipv4, ipv6] = FAMILIES;
    if address.is_ipv4() { ipv4 } else { ipv6 }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct TrafficPolicy {
    pub ip_family: &'static str,
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
    pub sync: Times,
    pub full_sync: Times,
    pub partial_sync: Times,
    /// From the change that made a slice change to its being in the tables.
    pub programming: Times,
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
    /// The same by the family of the frontend, under kube-proxy's name: it deletes what its kernel
    /// keeps of such datagrams, we close their sockets.
    pub stale_deleted: Family<IpFamily, Counter>,
    /// Time of one look for such sockets.
    pub stale_looks: Times,
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
        let sync = || Times::new_with_constructor(|| Histogram::new(sync_buckets()));
        let mut metrics = Self {
            registry: Registry::default(),
            sync: sync(),
            full_sync: sync(),
            partial_sync: sync(),
            programming: Times::new_with_constructor(|| Histogram::new(programming_buckets())),
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
            stale_deleted: Family::default(),
            stale_looks: sync(),
            health_checks: Gauge::default(),
            health_checks_failing: Gauge::default(),
            health_check_requests: Family::default(),
            exempt: Gauge::default(),
            counters: Arc::default(),
        };
        metrics.register();
        metrics.register_own();
        // Both families are there from the beginning, with nothing deleted.
        metrics.reconciled(&Reconciled::default());
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
        let name = "conntrack_reconciler_deleted_entries";
        r.register(
            name,
            "Datagram sockets closed and entries of the kernel's connection tracking removed because their \
             backend went, by family of the Service's address",
            self.stale_deleted.clone(),
        );
        let name = "conntrack_reconciler_sync_duration_seconds";
        r.register(
            name,
            "Time of one look for datagram sockets whose backend went",
            self.stale_looks.clone(),
        );
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

    /// An apply, of everything or of one Service, took so long.
    pub fn applied(&self, whole: bool, took: Duration, families: &BTreeSet<&'static str>) {
        let kind = if whole { &self.full_sync } else { &self.partial_sync };
        for ip_family in families {
            for times in [&self.sync, kind] {
                times.get_or_create(&IpFamily { ip_family }).observe(took.as_secs_f64());
            }
        }
    }

    /// Takes over what the data plane did about sockets whose backend went.
    pub fn reconciled(&self, reconciled: &Reconciled) {
        let raise = |counter: &Counter, to: u64| {
            counter.inc_by(to.saturating_sub(counter.get()));
        };
        let Reconciled { destroyed4, destroyed6, removed4, removed6, looks } = reconciled;
        raise(&self.sockets_destroyed, destroyed4 + destroyed6);
        let deleted = [destroyed4 + removed4, destroyed6 + removed6];
        for (ip_family, deleted) in FAMILIES.into_iter().zip(deleted) {
            raise(&self.stale_deleted.get_or_create(&IpFamily { ip_family }), deleted);
        }
        for ip_family in FAMILIES {
            let times = self.stale_looks.get_or_create(&IpFamily { ip_family });
            looks.iter().for_each(|look| times.observe(look.as_secs_f64()));
        }
    }

    /// The page of `/metrics`. Counters of programs are read for it, at most once in a while.
    pub async fn text(&self) -> Result<String, std::fmt::Error> {
        if self.counters.is_due(Instant::now()) {
            let counters = Arc::clone(&self.counters);
            // After a panic the page has the values of the last reading.
            let _ = spawn_blocking(move || counters.read()).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// kube-proxy's own in 1.36, and whether we serve them.
    const NAMES: [(&str, bool); 24] = [
        ("conntrack_reconciler_deleted_entries_total", true),
        ("conntrack_reconciler_sync_duration_seconds", true),
        ("iptables_ct_state_invalid_dropped_packets_total", false),
        ("iptables_localhost_nodeports_accepted_packets_total", false),
        ("network_programming_duration_seconds", true),
        ("proxy_healthz_total", true),
        ("proxy_livez_total", true),
        ("sync_full_proxy_rules_duration_seconds", true),
        ("sync_partial_proxy_rules_duration_seconds", true),
        ("sync_proxy_rules_duration_seconds", true),
        ("sync_proxy_rules_endpoint_changes_pending", true),
        ("sync_proxy_rules_endpoint_changes_total", true),
        ("sync_proxy_rules_iptables_last", false),
        ("sync_proxy_rules_iptables_partial_restore_failures_total", false),
        ("sync_proxy_rules_iptables_restore_failures_total", false),
        ("sync_proxy_rules_iptables_total", false),
        ("sync_proxy_rules_last_queued_timestamp_seconds", true),
        ("sync_proxy_rules_last_timestamp_seconds", true),
        ("sync_proxy_rules_nftables_cleanup_failures_total", false),
        ("sync_proxy_rules_nftables_sync_failures_total", false),
        ("sync_proxy_rules_no_local_endpoints_total", true),
        ("sync_proxy_rules_service_changes_pending", true),
        ("sync_proxy_rules_service_changes_total", true),
        // Ours, beside them.
        ("sync_proxy_rules_failures_total", true),
    ];

    #[tokio::test]
    async fn kube_proxys_names_are_served_where_there_is_something_to_tell() {
        let metrics = Metrics::new(&Requests::to("https://192.0.2.1:6443"));
        // Families have no line before their first label.
        metrics.healthz.get_or_create(&Code { code: 200 }).inc();
        metrics.livez.get_or_create(&Code { code: 200 }).inc();
        let [ip_family, _] = FAMILIES;
        for whole in [true, false] {
            metrics.applied(whole, Duration::from_millis(1), &BTreeSet::from([ip_family]));
        }
        metrics.programming.get_or_create(&IpFamily { ip_family }).observe(1.0);
        for time in [&metrics.last_applied, &metrics.last_queued] {
            time.get_or_create(&IpFamily { ip_family }).set(1.0);
        }
        let local = TrafficPolicy { ip_family, traffic_policy: PolicyLabel::Internal };
        metrics.no_local_endpoints.get_or_create(&local).set(1);
        let text = metrics.text().await.unwrap();
        for (name, served) in NAMES {
            let name = format!("kubeproxy_{name}");
            let of = |line: &str| {
                let rest = line.strip_prefix(name.as_str());
                rest.is_some_and(|rest| rest.starts_with([' ', '{']) || rest.starts_with("_count{"))
            };
            assert_eq!(text.lines().any(of), served, "{name} in\n{text}");
        }
        for line in [
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"internal\"} 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 2",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1.0",
            "kubeproxy_conntrack_reconciler_sync_duration_seconds_count{ip_family=\"IPv6\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
