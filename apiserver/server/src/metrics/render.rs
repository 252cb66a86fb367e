//! The pages of `/metrics` and `/metrics/slis`.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_store::Usage;
use userspace_daemon::metrics::{Exposition, Format, Member};

use apiserver_cache::Cache;

use super::{Clients, Metrics, Requests, Taken, Tunnels, features};

/// The figures about a kind's cache when the page is made.
pub struct CacheState {
    pub group: String,
    pub resource: String,
    pub objects: usize,
    pub revision: i64,
    /// Changes that the feed has brought.
    pub received: u64,
    /// Objects of the first load, and of later ones.
    pub initial: u64,
    /// Loads of the whole state.
    pub loads: u64,
    /// Watchers that were cut off because they were too slow.
    pub terminated: u64,
    /// Changes that the history has room for.
    pub capacity: usize,
    /// The cache, for its own counts.
    pub cache: Arc<Cache>,
}

/// The other figures of the page.
pub struct State {
    pub caches: Vec<CacheState>,
    /// Bytes of the store's files, where known.
    pub store_bytes: Option<u64>,
    /// The usage of the store, if the store bounds that.
    pub usage: Option<Usage>,
    /// `major`, `minor`, `git_version` and so on.
    pub build: Vec<(&'static str, String)>,
    pub taken: Taken,
    pub clients: Clients,
    pub tunnels: Tunnels,
}

const REQUEST: [&str; 7] = ["verb", "dry_run", "group", "version", "resource", "subresource", "scope"];

/// Returns the labels of a request in the order in which Go's client sorts them.
fn request_labels<'a>(
    member: &'a Member<7, Requests>,
    code: Option<&'a str>,
    dry_run: bool,
) -> Vec<(&'a str, &'a str)> {
    let mut labels: Vec<(&str, &str)> =
        REQUEST.iter().copied().zip(member.labels.iter().map(|label| &**label)).collect();
    labels.push(("component", "apiserver"));
    labels.retain(|(key, _)| dry_run || *key != "dry_run");
    labels.extend(code.map(|code| ("code", code)));
    labels.sort_unstable();
    labels
}

/// Returns the members with dry runs and others together: most metrics do not tell them apart.
fn without_dry_run(members: &[Arc<Member<7, Requests>>]) -> Vec<Member<7, Requests>> {
    let mut merged: BTreeMap<[Box<str>; 7], Requests> = BTreeMap::new();
    for member in members {
        let mut labels = member.labels.clone();
        labels[1] = Box::default();
        merged.entry(labels).or_default().absorb(&member.value);
    }
    merged.into_iter().map(|(labels, value)| Member { labels, value }).collect()
}

impl Metrics {
    /// Returns the page of `/metrics`.
    pub fn page(&self, format: Format, state: &State) -> String {
        let mut page = Exposition::new(format);
        self.requests_page(&mut page);
        self.watches_page(&mut page);
        self.store_page(&mut page, state);
        self.admission_page(&mut page);
        self.repairs_page(&mut page);
        self.access_page(&mut page);
        self.queues_page(&mut page);
        self.allocations_page(&mut page, &state.taken);
        self.bodies_page(&mut page);
        caches_page(&mut page, &state.caches);
        reads_page(&mut page, &state.caches);
        state.clients.add(&mut page);
        state.tunnels.add(&mut page);
        features::add(&mut page);
        page.process();
        let build: Vec<(&str, &str)> = state.build.iter().map(|(k, v)| (*k, v.as_str())).collect();
        page.build_info(&build);
        page.finish()
    }

    /// Returns the page of `/metrics/slis`.
    pub fn sli_page(&self, format: Format) -> String {
        let mut page = Exposition::new(format);
        page.family(
            "kubernetes_healthcheck",
            "gauge",
            "[STABLE] This metric records the result of a single healthcheck.",
            |s| s.gauges(&self.0.health, ["name", "type"]),
        );
        page.family(
            "kubernetes_healthchecks_total",
            "counter",
            "[STABLE] This metric records the results of all healthcheck.",
            |s| s.counters(&self.0.health_results, ["name", "status", "type"]),
        );
        page.finish()
    }

    fn requests_page(&self, page: &mut Exposition) {
        let members = self.0.requests.all();
        let merged = without_dry_run(&members);
        page.family(
            "apiserver_request_total",
            "counter",
            "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
            |s| {
                for member in &members {
                    for (code, count) in member.value.codes.used() {
                        s.value(&request_labels(member, Some(&code.to_string()), true), count as f64);
                    }
                }
            },
        );
        page.family(
            "apiserver_request_duration_seconds",
            "histogram",
            "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
            |s| members.iter().for_each(|m| s.observed(&request_labels(m, None, true), &m.value.seconds)),
        );
        page.family(
            "apiserver_request_sli_duration_seconds",
            "histogram",
            "[ALPHA] Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.",
            |s| merged.iter().for_each(|m| s.observed(&request_labels(m, None, false), &m.value.sli_seconds)),
        );
        page.family(
            "apiserver_response_sizes",
            "histogram",
            "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
            |s| merged.iter().for_each(|m| s.observed(&request_labels(m, None, false), &m.value.response_bytes)),
        );
        self.ends_page(page, &merged);
        self.now_page(page, &merged);
    }

    fn ends_page(&self, page: &mut Exposition, merged: &[Member<7, Requests>]) {
        page.family(
            "apiserver_request_aborts_total",
            "counter",
            "[ALPHA] Number of requests which apiserver aborted possibly due to a timeout, for each group, version, verb, resource, subresource and scope",
            |s| {
                for member in merged.iter().filter(|member| member.value.aborted.value() > 0) {
                    let mut labels = request_labels(member, None, false);
                    labels.retain(|(key, _)| *key != "component");
                    s.value(&labels, member.value.aborted.value() as f64);
                }
            },
        );
        page.family(
            "apiserver_request_terminations_total",
            "counter",
            "[ALPHA] Number of requests which apiserver terminated in self-defense.",
            |s| {
                for member in merged {
                    for (code, count) in member.value.terminated.used() {
                        s.value(&request_labels(member, Some(&code.to_string()), false), count as f64);
                    }
                }
            },
        );
    }

    /// Writes the metrics of the present moment.
    fn now_page(&self, page: &mut Exposition, merged: &[Member<7, Requests>]) {
        page.family(
            "apiserver_longrunning_requests",
            "gauge",
            "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.",
            |s| {
                for member in merged.iter().filter(|m| matches!(&*m.labels[0], "WATCH" | "CONNECT")) {
                    s.value(&request_labels(member, None, false), member.value.long_running.value() as f64);
                }
            },
        );
        page.family(
            "apiserver_current_inflight_requests",
            "gauge",
            "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
            |s| {
                for (kind, gauge) in ["readOnly", "mutating"].iter().zip(&self.0.in_flight) {
                    s.value(&[("request_kind", kind)], gauge.value() as f64);
                }
            },
        );
        page.family(
            "apiserver_requested_deprecated_apis",
            "gauge",
            "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
            |s| {
                let names = ["group", "removed_release", "resource", "subresource", "version"];
                s.gauges(&self.0.deprecated, names);
            },
        );
        page.family(
            "apiserver_tls_handshake_errors_total",
            "counter",
            "[ALPHA] Number of requests dropped with 'TLS handshake error from' error",
            |s| s.value(&[], self.0.handshake_errors.value() as f64),
        );
    }

    fn watches_page(&self, page: &mut Exposition) {
        const NAMES: [&str; 3] = ["group", "version", "resource"];
        page.family(
            "apiserver_registered_watchers",
            "gauge",
            "[ALPHA] Number of currently registered watchers for a given resources",
            |s| self.0.watches.each(NAMES, |labels, w| s.value(labels, w.open.value() as f64)),
        );
        page.family(
            "apiserver_watch_events_total",
            "counter",
            "[ALPHA] Number of events sent in watch clients",
            |s| self.0.watches.each(NAMES, |labels, w| s.value(labels, w.events.value() as f64)),
        );
        page.family(
            "apiserver_watch_events_sizes",
            "histogram",
            "[ALPHA] Watch event size distribution in bytes",
            |s| self.0.watches.each(NAMES, |labels, w| s.observed(labels, &w.bytes)),
        );
        const LIST: [&str; 2] = ["group", "resource"];
        page.family(
            "apiserver_cache_list_total",
            "counter",
            "[ALPHA] Number of LIST requests served from watch cache",
            |s| {
                self.0.lists.each(LIST, |labels, lists| {
                    let labels = [labels[0], ("index", ""), labels[1]];
                    s.value(&labels, lists.requests.value() as f64);
                });
            },
        );
        page.family(
            "apiserver_cache_list_fetched_objects_total",
            "counter",
            "[ALPHA] Number of objects read from watch cache in the course of serving a LIST request",
            |s| {
                self.0.lists.each(LIST, |labels, lists| {
                    let labels = [labels[0], ("index", ""), labels[1]];
                    s.value(&labels, lists.fetched.value() as f64);
                });
            },
        );
        page.family(
            "apiserver_cache_list_returned_objects_total",
            "counter",
            "[ALPHA] Number of objects returned for a LIST request from watch cache",
            |s| self.0.lists.each(LIST, |labels, lists| s.value(labels, lists.returned.value() as f64)),
        );
    }

    fn store_page(&self, page: &mut Exposition, state: &State) {
        const NAMES: [&str; 3] = ["group", "operation", "resource"];
        page.family(
            "etcd_request_duration_seconds",
            "histogram",
            "[ALPHA] Etcd request latency in seconds for each operation and object type.",
            |s| self.0.store.each(NAMES, |labels, calls| s.observed(labels, &calls.seconds)),
        );
        page.family(
            "etcd_requests_total",
            "counter",
            "[ALPHA] Etcd request counts for each operation and object type.",
            |s| {
                self.0.store.each(NAMES, |labels, calls| {
                    s.value(labels, calls.seconds.cumulated().1 as f64);
                });
            },
        );
        page.family(
            "etcd_request_errors_total",
            "counter",
            "[ALPHA] Etcd failed request counts for each operation and object type.",
            |s| {
                self.0.store.each(NAMES, |labels, calls| {
                    let failed = calls.failed.value();
                    if failed > 0 {
                        s.value(labels, failed as f64);
                    }
                });
            },
        );
        page.family(
            "apiserver_storage_size_bytes",
            "gauge",
            "[STABLE] Size of the storage database file physically allocated in bytes.",
            |s| {
                if let Some(bytes) = state.store_bytes {
                    s.value(&[("storage_cluster_id", "etcd-0")], bytes as f64);
                }
            },
        );
        if let Some(Usage { used, quota }) = state.usage {
            page.family(
                "hawser_apiserver_storage_used_bytes",
                "gauge",
                "[ALPHA] Bytes of the stored objects that count against the quota.",
                |s| s.value(&[], used as f64),
            );
            page.family(
                "hawser_apiserver_storage_quota_bytes",
                "gauge",
                "[ALPHA] Bytes of objects that the store accepts, as --quota-backend-bytes says.",
                |s| s.value(&[], quota as f64),
            );
        }
    }

    fn repairs_page(&self, page: &mut Exposition) {
        for (what, name, help) in [
            (
                "address",
                "apiserver_clusterip_repair_ip_errors_total",
                "[ALPHA] Number of errors detected on clusterips by the repair loop broken down by type of error: leak, repair, full, outOfRange, duplicate, unknown, invalid",
            ),
            (
                "port",
                "apiserver_nodeport_repair_port_errors_total",
                "[ALPHA] Number of errors detected on ports by the repair loop broken down by type of error: leak, repair, full, outOfRange, duplicate, unknown",
            ),
        ] {
            page.family(name, "counter", help, |s| {
                for member in self.0.repairs.all().iter().filter(|member| *member.labels[0] == *what) {
                    s.value(&[("type", &member.labels[1])], member.value.value() as f64);
                }
            });
        }
    }

    fn admission_page(&self, page: &mut Exposition) {
        page.family(
            "apiserver_admission_step_admission_duration_seconds",
            "histogram",
            "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or admit).",
            |s| s.histograms(&self.0.admission_steps, ["operation", "rejected", "type"]),
        );
        page.family(
            "apiserver_admission_controller_admission_duration_seconds",
            "histogram",
            "[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
            |s| s.histograms(&self.0.admission_plugins, ["name", "operation", "rejected", "type"]),
        );
    }
}

/// A metric of each kind's cache: name, type, help and value.
type OfCache = (&'static str, &'static str, &'static str, fn(&CacheState) -> f64);

const OF_CACHES: [OfCache; 9] = [
    (
        "apiserver_resource_objects",
        "gauge",
        "[ALPHA] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.",
        |cache| cache.objects as f64,
    ),
    (
        "apiserver_watch_cache_resource_version",
        "gauge",
        "[ALPHA] Current resource version of watch cache broken by resource type.",
        |cache| cache.revision as f64,
    ),
    (
        "apiserver_watch_cache_events_received_total",
        "counter",
        "[ALPHA] Counter of events received in watch cache broken by resource type.",
        |cache| cache.received as f64,
    ),
    (
        "apiserver_watch_cache_events_dispatched_total",
        "counter",
        "[ALPHA] Counter of events dispatched in watch cache broken by resource type.",
        |cache| cache.received as f64,
    ),
    (
        "apiserver_watch_cache_initializations_total",
        "counter",
        "[ALPHA] Counter of watch cache initializations broken by resource type.",
        |cache| cache.loads as f64,
    ),
    (
        "apiserver_init_events_total",
        "counter",
        "[ALPHA] Counter of init events processed in watch cache broken by resource type.",
        |cache| cache.initial as f64,
    ),
    (
        "apiserver_storage_events_received_total",
        "counter",
        "[ALPHA] Number of etcd events received split by kind.",
        |cache| cache.received as f64,
    ),
    (
        "apiserver_terminated_watchers_total",
        "counter",
        "[ALPHA] Counter of watchers closed due to unresponsiveness broken by resource type.",
        |cache| cache.terminated as f64,
    ),
    (
        "apiserver_watch_cache_capacity",
        "gauge",
        "[ALPHA] Total capacity of watch cache broken by resource type.",
        |cache| cache.capacity as f64,
    ),
];

fn caches_page(page: &mut Exposition, caches: &[CacheState]) {
    for (name, kind, help, value) in OF_CACHES {
        page.family(name, kind, help, |s| {
            for cache in caches {
                s.value(&[("group", &cache.group), ("resource", &cache.resource)], value(cache));
            }
        });
    }
    page.family(
        "apiserver_storage_objects",
        "gauge",
        "[STABLE] (Deprecated since 1.34.0) [DEPRECATED, consider using apiserver_resource_objects instead] Number of stored objects at the time of last check split by kind. In case of a fetching error, the value will be -1.",
        |s| {
            for cache in caches {
                let dotted = format!("{}.{}", cache.resource, cache.group);
                let name = if cache.group.is_empty() { &cache.resource } else { &dotted };
                s.value(&[("resource", name)], cache.objects as f64);
            }
        },
    );
}

/// Writes the metrics of reads that need the newest state.
fn reads_page(page: &mut Exposition, caches: &[CacheState]) {
    page.family(
        "apiserver_watch_cache_read_wait_seconds",
        "histogram",
        "[ALPHA] Histogram of time spent waiting for a watch cache to become fresh.",
        |s| {
            for state in caches {
                let labels = [("group", state.group.as_str()), ("resource", state.resource.as_str())];
                s.observed(&labels, &state.cache.counts.waits);
            }
        },
    );
    page.family(
        "apiserver_watch_cache_consistent_read_total",
        "counter",
        "[ALPHA] Counter for consistent reads from cache.",
        |s| {
            for state in caches {
                for (success, count) in ["false", "true"].into_iter().zip(&state.cache.counts.consistent) {
                    if count.value() > 0 {
                        let labels = [
                            ("fallback", "false"),
                            ("group", state.group.as_str()),
                            ("resource", state.resource.as_str()),
                            ("success", success),
                        ];
                        s.value(&labels, count.value() as f64);
                    }
                }
            }
        },
    );
}
