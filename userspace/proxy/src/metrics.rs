//! Metrics under kube-proxy's names, and those of the data plane under ours.
//!
//! Labels are kube-proxy's too. kube-proxy has one proxier per family; here one apply covers both, and one
//! search for sockets: each is observed once for every family that has services. Names of kube-proxy 1.36
//! that are not served, because nothing here corresponds to what they count:
//!
//! | `kubeproxy_` | why |
//! |---|---|
//! | `sync_proxy_rules_iptables_total`, `_iptables_last`, `_iptables_restore_failures_total`, `_iptables_partial_restore_failures_total`, `_nftables_sync_failures_total`, `_nftables_cleanup_failures_total` | no rules are written; failed applies are `kubeproxy_sync_proxy_rules_failures_total` |
//! | `iptables_ct_state_invalid_dropped_packets_total` | works around the kernel's connection tracking, which takes no part |
//! | `iptables_localhost_nodeports_accepted_packets_total` | sockets are translated when they connect: none of their packets is addressed to a node port |

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::Instant;
use userspace_daemon::metrics::{Counter, Exposition, Family, FloatGauge, Format, Gauge, Histogram};
use userspace_dataplane::tables::Reconciled;

use crate::counters::Counters;
use crate::requests::Requests;

/// Seconds since the Unix epoch, by family.
pub(crate) type Seconds = Family<1, FloatGauge>;
/// Durations, by family.
type Times = Family<1, Histogram>;
/// Answers, by status code.
pub(crate) type Codes = Family<1, Counter>;

/// The label that separates IPv4 and IPv6; its values are [`FAMILIES`].
const IP_FAMILY: [&str; 1] = ["ip_family"];

/// Families as kube-proxy spells them.
pub(crate) const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// Returns the family of an address.
pub(crate) fn family(address: IpAddr) -> &'static str {
    let [ipv4, ipv6] = FAMILIES;
    if address.is_ipv4() { ipv4 } else { ipv6 }
}

/// Values of the label `traffic_policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyLabel {
    Internal,
    External,
}

impl PolicyLabel {
    pub fn name(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::External => "external",
        }
    }
}

/// kube-proxy's bounds, from 1 ms to 16 s, and finer ones below.
static SYNC_SECONDS: [f64; 19] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256,
    0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// kube-proxy's bounds, from 0.25 s to 5 min, and finer ones where values are expected: after half a second
/// each second of the first minute, then every five seconds, and every thirty from two minutes on.
static PROGRAMMING_SECONDS: [f64; 87] = {
    let mut bounds = [0.0; 87];
    let fine = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = match at {
            0..9 => fine[at],
            9..68 => (at - 8) as f64,
            68..80 => (60 + 5 * (at - 68)) as f64,
            _ => (120 + 30 * (at - 80)) as f64,
        };
        at += 1;
    }
    bounds
};

/// All metrics of the proxy.
pub(crate) struct Metrics {
    /// Duration of an apply, of everything or of one Service.
    pub sync: Times,
    pub full_sync: Times,
    pub partial_sync: Times,
    /// Time from the change that made a slice change until it is in the tables.
    pub programming: Times,
    pub last_applied: Seconds,
    pub last_queued: Seconds,
    pub service_changes: Counter,
    pub endpoint_changes: Counter,
    pub service_changes_pending: Gauge,
    pub endpoint_changes_pending: Gauge,
    /// Services without local endpoints, by family and traffic policy.
    pub no_local_endpoints: Family<2, Gauge>,
    pub apply_failures: Counter,
    pub healthz: Codes,
    pub livez: Codes,
    /// Warnings about settings of Services.
    pub warnings: Counter,
    /// Faults found in the data path.
    pub faults: Counter,
    /// Sockets of clients that were closed because their backend went.
    pub sockets_destroyed: Counter,
    /// Those sockets by the family of the frontend, under kube-proxy's name: it deletes the kernel's tracking
    /// entries of such datagrams, we close their sockets.
    pub stale_deleted: Family<1, Counter>,
    /// Duration of one search for such sockets.
    pub stale_looks: Times,
    /// Health check node ports: those in use, and those that somebody else holds.
    pub health_checks: Gauge,
    pub health_checks_failing: Gauge,
    pub health_check_requests: Codes,
    /// Network namespaces whose sockets are left alone.
    pub exempt: Gauge,
    requests: Requests,
    /// Counters of the programs.
    pub counters: Arc<Counters>,
}

impl Metrics {
    /// Creates the metrics, all at zero. The page includes the counts of `requests`.
    pub fn new(requests: &Requests) -> Self {
        let sync = || Times::new(|| Histogram::new(&SYNC_SECONDS));
        let metrics = Self {
            sync: sync(),
            full_sync: sync(),
            partial_sync: sync(),
            programming: Times::new(|| Histogram::new(&PROGRAMMING_SECONDS)),
            last_applied: Seconds::default(),
            last_queued: Seconds::default(),
            service_changes: Counter::default(),
            endpoint_changes: Counter::default(),
            service_changes_pending: Gauge::default(),
            endpoint_changes_pending: Gauge::default(),
            no_local_endpoints: Family::default(),
            apply_failures: Counter::default(),
            healthz: Codes::default(),
            livez: Codes::default(),
            warnings: Counter::default(),
            faults: Counter::default(),
            sockets_destroyed: Counter::default(),
            stale_deleted: Family::default(),
            stale_looks: sync(),
            health_checks: Gauge::default(),
            health_checks_failing: Gauge::default(),
            health_check_requests: Codes::default(),
            exempt: Gauge::default(),
            requests: requests.clone(),
            counters: Arc::default(),
        };
        // Both families are shown from the start, with nothing deleted.
        metrics.reconciled(&Reconciled::default());
        metrics
    }

    /// Adds durations and times of applies.
    fn sync_page(&self, page: &mut Exposition) {
        for (name, help, times) in [
            ("sync_proxy_rules_duration_seconds", "Time of one apply.", &self.sync),
            ("sync_full_proxy_rules_duration_seconds", "Time of one apply of everything.", &self.full_sync),
            (
                "sync_partial_proxy_rules_duration_seconds",
                "Time of one apply of one Service.",
                &self.partial_sync,
            ),
            (
                "network_programming_duration_seconds",
                "From a change of a pod or Service to its being served.",
                &self.programming,
            ),
            (
                "conntrack_reconciler_sync_duration_seconds",
                "Time of one look for datagram sockets whose backend went.",
                &self.stale_looks,
            ),
        ] {
            let name = format!("kubeproxy_{name}");
            page.family(&name, "histogram", help, |s| s.histograms(times, IP_FAMILY));
        }
        for (name, help, times) in [
            ("last_timestamp_seconds", "Time of the last apply of the tables.", &self.last_applied),
            ("last_queued_timestamp_seconds", "Time of the last change that arrived.", &self.last_queued),
        ] {
            let name = format!("kubeproxy_sync_proxy_rules_{name}");
            page.family(&name, "gauge", help, |s| s.float_gauges(times, IP_FAMILY));
        }
    }

    /// Adds the counts under kube-proxy's names.
    fn counts_page(&self, page: &mut Exposition) {
        page.family(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "gauge",
            "Services of policy Local without an endpoint here.",
            |s| s.gauges(&self.no_local_endpoints, ["ip_family", "traffic_policy"]),
        );
        page.family(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "counter",
            "Datagram sockets closed and entries of the kernel's connection tracking removed because their backend went, by family of the Service's address.",
            |s| s.counters(&self.stale_deleted, IP_FAMILY),
        );
        for (name, help, codes) in [
            ("kubeproxy_proxy_healthz_total", "Answers of /healthz by code.", &self.healthz),
            ("kubeproxy_proxy_livez_total", "Answers of /livez by code.", &self.livez),
            (
                "hawser_proxy_health_check_requests_total",
                "Answers of health check node ports by code.",
                &self.health_check_requests,
            ),
        ] {
            page.family(name, "counter", help, |s| s.counters(codes, ["code"]));
        }
    }

    /// Adds the metrics without labels.
    fn totals_page(&self, page: &mut Exposition) {
        for (name, help, counter) in [
            (
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "Changes of Services.",
                &self.service_changes,
            ),
            (
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "Changes of EndpointSlices.",
                &self.endpoint_changes,
            ),
            ("kubeproxy_sync_proxy_rules_failures_total", "Applies that failed.", &self.apply_failures),
            ("hawser_proxy_warnings_total", "Settings of Services that are not followed.", &self.warnings),
            ("hawser_proxy_data_path_faults_total", "Faults found in the data path.", &self.faults),
            (
                "hawser_proxy_sockets_destroyed_total",
                "Datagram sockets closed because their backend went.",
                &self.sockets_destroyed,
            ),
        ] {
            page.family(name, "counter", help, |s| s.value(&[], counter.value() as f64));
        }
        for (name, help, gauge) in [
            (
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Changes of Services not yet applied.",
                &self.service_changes_pending,
            ),
            (
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Changes of EndpointSlices not yet applied.",
                &self.endpoint_changes_pending,
            ),
            ("hawser_proxy_health_checks", "Health check node ports wanted.", &self.health_checks),
            (
                "hawser_proxy_health_checks_failing",
                "Health check node ports that cannot be listened on.",
                &self.health_checks_failing,
            ),
            ("hawser_proxy_exempt_namespaces", "Network namespaces without socket hooks.", &self.exempt),
        ] {
            page.family(name, "gauge", help, |s| s.value(&[], gauge.value() as f64));
        }
    }

    /// Records the duration of an apply, of everything or of one Service.
    pub fn applied(&self, whole: bool, took: Duration, families: &BTreeSet<&'static str>) {
        let kind = if whole { &self.full_sync } else { &self.partial_sync };
        for ip_family in families {
            for times in [&self.sync, kind] {
                times.get(&[*ip_family]).value.observe(took.as_secs_f64());
            }
        }
    }

    /// Records what the data plane did about sockets whose backend went.
    pub fn reconciled(&self, reconciled: &Reconciled) {
        let raise = |counter: &Counter, to: u64| {
            counter.add(to.saturating_sub(counter.value()));
        };
        let Reconciled { destroyed4, destroyed6, removed4, removed6, looks } = reconciled;
        raise(&self.sockets_destroyed, destroyed4 + destroyed6);
        let deleted = [destroyed4 + removed4, destroyed6 + removed6];
        for (ip_family, deleted) in FAMILIES.into_iter().zip(deleted) {
            raise(&self.stale_deleted.get(&[ip_family]).value, deleted);
        }
        for ip_family in FAMILIES {
            let times = self.stale_looks.get(&[ip_family]);
            looks.iter().for_each(|look| times.value.observe(look.as_secs_f64()));
        }
    }

    /// Returns the page of `/metrics`. Counters of programs are read for it, with a minimum interval.
    pub async fn page(&self, format: Format) -> String {
        if self.counters.is_due(Instant::now()) {
            let counters = Arc::clone(&self.counters);
            // After a panic, the page shows the values of the last reading.
            let _ = spawn_blocking(move || counters.read()).await;
        }
        let mut page = Exposition::new(format);
        self.sync_page(&mut page);
        self.counts_page(&mut page);
        self.totals_page(&mut page);
        self.requests.add(&mut page);
        self.counters.add(&mut page);
        page.process();
        page.build_info(&BUILD);
        page.finish()
    }
}

/// The build information of this program.
const BUILD: [(&str, &str); 9] = [
    ("major", env!("CARGO_PKG_VERSION_MAJOR")),
    ("minor", env!("CARGO_PKG_VERSION_MINOR")),
    ("git_version", concat!("v", env!("CARGO_PKG_VERSION"))),
    // Kubernetes' builds have these labels; ours does not know them.
    ("git_commit", ""),
    ("git_tree_state", ""),
    ("build_date", ""),
    ("go_version", ""),
    ("compiler", "rustc"),
    ("platform", PLATFORM),
];

/// The platform as Go names it.
const PLATFORM: &str = if cfg!(target_arch = "x86_64") {
    "linux/amd64"
} else if cfg!(target_arch = "aarch64") {
    "linux/arm64"
} else {
    "linux"
};

#[cfg(test)]
mod tests {
    use super::*;

    /// kube-proxy's own metrics in 1.36, and whether we serve them.
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
        let metrics = filled();
        let text = metrics.page(Format::Text).await;
        for (name, served) in NAMES {
            let name = format!("kubeproxy_{name}");
            let of = |line: &str| {
                let rest = line.strip_prefix(name.as_str());
                rest.is_some_and(|rest| rest.starts_with([' ', '{']) || rest.starts_with("_count{"))
            };
            assert_eq!(text.lines().any(of), served, "{name} in\n{text}");
        }
        let build = text.lines().find(|line| line.starts_with("kubernetes_build_info{")).unwrap();
        assert!(build.contains("git_version=\"v") && build.ends_with("} 1"), "{build}");
    }

    /// Returns metrics of which each has a value.
    fn filled() -> Metrics {
        let requests = Requests::to("192.0.2.1:6443");
        requests.note(&http::Method::GET, Some(http::StatusCode::OK), Duration::from_millis(5));
        requests.note(&http::Method::PATCH, None, Duration::from_millis(30));
        let metrics = Metrics::new(&requests);
        for code in ["200", "503"] {
            metrics.healthz.get(&[code]).value.add(1);
            metrics.livez.get(&[code]).value.add(2);
            metrics.health_check_requests.get(&[code]).value.add(3);
        }
        for (whole, milliseconds) in [true, false].into_iter().flat_map(|w| [0, 1, 3, 400].map(|ms| (w, ms)))
        {
            metrics.applied(whole, Duration::from_millis(milliseconds), &BTreeSet::from(FAMILIES));
        }
        for (n, family) in FAMILIES.into_iter().enumerate() {
            metrics.programming.get(&[family]).value.observe(0.25 + n as f64);
            for time in [&metrics.last_applied, &metrics.last_queued] {
                time.get(&[family]).value.set(1_700_000_000.25 + n as f64);
            }
            for policy in [PolicyLabel::Internal, PolicyLabel::External] {
                metrics.no_local_endpoints.get(&[family, policy.name()]).value.set(4 + n as i64);
            }
        }
        metrics.service_changes.add(5);
        metrics.endpoint_changes.add(6);
        metrics.service_changes_pending.set(7);
        metrics.endpoint_changes_pending.set(8);
        metrics.apply_failures.add(9);
        metrics.warnings.add(10);
        metrics.faults.add(11);
        metrics.health_checks.set(12);
        metrics.health_checks_failing.set(13);
        metrics.exempt.set(14);
        let looks = vec![Duration::from_millis(2)];
        metrics.reconciled(&Reconciled { destroyed4: 1, destroyed6: 2, removed4: 3, removed6: 4, looks });
        metrics.counters.fill();
        metrics
    }

    /// Parses types and samples; numbers, including those of bounds, are compared as numbers.
    fn parse(page: &str) -> BTreeSet<(String, Vec<String>, String)> {
        let number = |text: &str| text.parse::<f64>().unwrap().to_string();
        let line = |line: &str| {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                return (name.to_owned(), Vec::new(), kind.to_owned());
            }
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
            let mut labels: Vec<String> =
                labels.trim_end_matches('}').split(',').map(str::to_owned).collect();
            for label in &mut labels {
                if let Some(bound) = label.strip_prefix("le=") {
                    *label = number(bound.trim_matches('"'));
                }
            }
            labels.sort();
            (name.to_owned(), labels, number(value))
        };
        page.lines().filter(|line| !line.starts_with("# HELP") && *line != "# EOF").map(line).collect()
    }

    #[tokio::test]
    async fn the_page_has_the_same_series_as_ever() {
        let page = filled().page(Format::OpenMetrics).await;
        let apart = |name: &str| name.starts_with("process_") || name == "kubernetes_build_info";
        let found: BTreeSet<_> = parse(&page).into_iter().filter(|(name, ..)| !apart(name)).collect();
        let golden = parse(include_str!("../tests/golden/metrics.txt"));
        let missing: Vec<_> = golden.difference(&found).collect();
        let added: Vec<_> = found.difference(&golden).collect();
        assert!(missing.is_empty() && added.is_empty(), "missing {missing:?}, added {added:?}");
    }
}
