//! Figures under CoreDNS' names, so that its dashboards and alerts work.

use std::sync::Arc;
use std::time::Duration;

use userspace_daemon::metrics::{Counter, Exposition, Family, Format, Histogram, Member, Samples};

use crate::buckets::{BYTES, SECONDS};
use crate::cache::Cache;
use crate::forward::ForwardMetrics;
use crate::wire;

/// The label `server`; all zones are served on one port.
const SERVER: &str = "dns://:53";
const KINDS: [u16; 19] = [
    wire::A,
    wire::NS,
    wire::CNAME,
    wire::SOA,
    wire::PTR,
    15,
    wire::TXT,
    wire::AAAA,
    wire::SRV,
    35,
    43,
    46,
    47,
    48,
    50,
    65,
    wire::IXFR,
    wire::AXFR,
    wire::ANY,
];
const CODES: [u8; 7] = [
    wire::NO_ERROR,
    wire::FORMAT_ERROR,
    wire::SERVER_FAILURE,
    wire::NAME_ERROR,
    wire::NOT_IMPLEMENTED,
    wire::REFUSED,
    wire::BAD_VERSION,
];

/// The transport of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

/// The part of the server that made an answer: CoreDNS' label `plugin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Cluster,
    Hosts,
    Cache,
    Forward,
    Local,
    Any,
    Acl,
    Template,
    Rewrite,
    None,
}

const SOURCES: [(Source, &str); 10] = [
    (Source::Cluster, "kubernetes"),
    (Source::Hosts, "hosts"),
    (Source::Cache, "cache"),
    (Source::Forward, "forward"),
    (Source::Local, "local"),
    (Source::Any, "any"),
    (Source::Acl, "acl"),
    (Source::Template, "template"),
    (Source::Rewrite, "rewrite"),
    (Source::None, ""),
];

/// One answered query.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    pub transport: Transport,
    pub is_v4: bool,
    pub kind: u16,
    pub code: u8,
    pub source: Source,
    pub request: usize,
    pub response: usize,
    pub duration: Duration,
}

/// The figures of one zone. Fields are arrays, so that counting finds its place without a look-up.
#[derive(Debug)]
pub struct ZoneMetrics {
    /// By transport, family and type; the last type is all others.
    requests: [[[Counter; KINDS.len() + 1]; 2]; 2],
    /// By source and code; the last code is all others.
    responses: [[Counter; CODES.len() + 1]; SOURCES.len()],
    durations: Histogram,
    request_bytes: [Histogram; 2],
    response_bytes: [Histogram; 2],
}

impl ZoneMetrics {
    fn new() -> Self {
        Self {
            requests: Default::default(),
            responses: Default::default(),
            durations: Histogram::new(&SECONDS),
            request_bytes: [(); 2].map(|()| Histogram::new(&BYTES)),
            response_bytes: [(); 2].map(|()| Histogram::new(&BYTES)),
        }
    }

    /// Counts an answered query.
    pub fn observe(&self, seen: &Observation) {
        let transport = seen.transport as usize;
        let kind = KINDS.iter().position(|kind| *kind == seen.kind).unwrap_or(KINDS.len());
        let code = CODES.iter().position(|code| *code == seen.code).unwrap_or(CODES.len());
        self.requests[transport][usize::from(!seen.is_v4)][kind].add(1);
        self.responses[seen.source as usize][code].add(1);
        self.durations.observe(seen.duration.as_secs_f64());
        self.request_bytes[transport].observe(seen.request as f64);
        self.response_bytes[transport].observe(seen.response as f64);
    }
}

/// All figures of a server.
#[derive(Debug)]
pub struct Metrics {
    /// By zone.
    pub zones: Family<1, ZoneMetrics>,
    pub forward: ForwardMetrics,
    /// Datagrams and connections of clients that are not the cluster's.
    pub strangers: Counter,
    /// Queries that were refused because too many waited for upstreams.
    pub overloaded: Counter,
    /// Times from a change of a Service's endpoints to its records, in seconds, by kind of Service.
    pub programming: Family<1, Histogram>,
    pub reloads: Counter,
    pub failed_reloads: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            zones: Family::new(ZoneMetrics::new),
            forward: ForwardMetrics::default(),
            strangers: Counter::default(),
            overloaded: Counter::default(),
            programming: Family::new(|| Histogram::new(&SECONDS)),
            reloads: Counter::default(),
            failed_reloads: Counter::default(),
        }
    }
}

impl Metrics {
    /// Returns the page in a format. `caches` are those of the zones, by their names; `names` is the number
    /// of Services.
    pub fn page(&self, format: Format, caches: &[(String, Arc<Cache>)], services: usize) -> String {
        let mut page = Exposition::new(format);
        page.process();
        let version = env!("CARGO_PKG_VERSION");
        page.family(
            "coredns_build_info",
            "gauge",
            "A metric with a constant '1' value labeled by version.",
            |s| {
                s.value(&[("goversion", ""), ("revision", "hawser"), ("version", version)], 1.0);
            },
        );
        let zones = self.zones.all();
        requests(&mut page, &zones);
        sizes(&mut page, &zones);
        cache_figures(&mut page, caches);
        self.forwarding(&mut page);
        let counter = |page: &mut Exposition, name: &str, help: &str, counter: &Counter| {
            page.family(name, "counter", help, |s| s.value(&[], counter.value() as f64));
        };
        counter(
            &mut page,
            "hawser_dns_strangers_total",
            "Datagrams and connections from outside of the cluster, which get no answer.",
            &self.strangers,
        );
        counter(
            &mut page,
            "hawser_dns_overloaded_total",
            "Queries refused because too many waited for upstreams.",
            &self.overloaded,
        );
        counter(
            &mut page,
            "coredns_reload_failed_total",
            "Counter of the number of failed reload attempts.",
            &self.failed_reloads,
        );
        counter(
            &mut page,
            "hawser_dns_reloads_total",
            "Changes of the configuration that took effect.",
            &self.reloads,
        );
        page.family("hawser_dns_services", "gauge", "Services that have records.", |s| {
            s.value(&[], services as f64)
        });
        page.family(
            "coredns_kubernetes_dns_programming_duration_seconds",
            "histogram",
            "Histogram of the time (in seconds) it took to program a dns instance.",
            |s| s.histograms(&self.programming, ["service_kind"]),
        );
        page.finish()
    }

    fn forwarding(&self, page: &mut Exposition) {
        let forward = &self.forward;
        page.family(
            "coredns_forward_requests_total",
            "counter",
            "Counter of requests made per upstream.",
            |s| {
                s.counters(&forward.requests, ["to"]);
            },
        );
        page.family(
            "coredns_forward_responses_total",
            "counter",
            "Counter of responses received per upstream.",
            |s| {
                s.counters(&forward.responses, ["to", "rcode"]);
            },
        );
        for (name, extra) in [
            ("coredns_forward_request_duration_seconds", None),
            ("coredns_proxy_request_duration_seconds", Some("forward")),
        ] {
            page.family(name, "histogram", "Histogram of the time each request took.", |s| {
                forward.durations.each(["to", "rcode"], |labels, histogram| {
                    let mut labels = labels.to_vec();
                    labels.extend(extra.map(|value| ("proxy_name", value)));
                    s.histogram(&labels, histogram);
                });
            });
        }
        page.family(
            "coredns_forward_healthcheck_failures_total",
            "counter",
            "Counter of the number of times an upstream went down.",
            |s| s.counters(&forward.went_down, ["to"]),
        );
        page.family(
            "hawser_dns_wrong_answers_total",
            "counter",
            "Datagrams from an upstream's address that were not the answer: forged, late, or in another case.",
            |s| s.counters(&forward.wrong, ["to"]),
        );
        for (name, help, counter) in [
            (
                "coredns_forward_healthcheck_broken_total",
                "Counter of questions for which all upstreams were down.",
                &forward.all_down,
            ),
            (
                "coredns_forward_max_concurrent_rejects_total",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
                &forward.rejected,
            ),
        ] {
            page.family(name, "counter", help, |s| s.value(&[], counter.value() as f64));
        }
    }
}

type Zones = [Arc<Member<1, ZoneMetrics>>];

fn requests(page: &mut Exposition, zones: &Zones) {
    page.family(
        "coredns_dns_requests_total",
        "counter",
        "Counter of DNS requests made per zone, protocol and family.",
        |s| each_request(s, zones),
    );
    page.family("coredns_dns_responses_total", "counter", "Counter of response status codes.", |s| {
        for zone in zones {
            for (source, plugin) in SOURCES {
                for (at, counter) in zone.value.responses[source as usize].iter().enumerate() {
                    let rcode = CODES.get(at).map_or("other", |code| wire::code_name(*code));
                    let labels = [
                        ("plugin", plugin),
                        ("rcode", rcode),
                        ("server", SERVER),
                        ("view", ""),
                        ("zone", &zone.labels[0]),
                    ];
                    shown(s, &labels, counter);
                }
            }
        }
    });
    page.family(
        "coredns_dns_request_duration_seconds",
        "histogram",
        "Histogram of the time (in seconds) each request took per zone.",
        |s| {
            for zone in zones {
                s.histogram(
                    &[("server", SERVER), ("view", ""), ("zone", &zone.labels[0])],
                    &zone.value.durations,
                );
            }
        },
    );
}

fn each_request(samples: &mut Samples<'_>, zones: &Zones) {
    for zone in zones {
        for (proto, families) in ["udp", "tcp"].into_iter().zip(&zone.value.requests) {
            for (family, kinds) in ["1", "2"].into_iter().zip(families) {
                for (at, counter) in kinds.iter().enumerate() {
                    let kind = KINDS.get(at).map_or("other", |kind| wire::kind_name(*kind));
                    let labels = [
                        ("family", family),
                        ("proto", proto),
                        ("server", SERVER),
                        ("type", kind),
                        ("view", ""),
                        ("zone", &zone.labels[0]),
                    ];
                    shown(samples, &labels, counter);
                }
            }
        }
    }
}

fn shown(samples: &mut Samples<'_>, labels: &[(&str, &str)], counter: &Counter) {
    if counter.value() > 0 {
        samples.value(labels, counter.value() as f64);
    }
}

fn sizes(page: &mut Exposition, zones: &Zones) {
    for (name, help, of) in [
        (
            "coredns_dns_request_size_bytes",
            "Size of the EDNS0 UDP buffer in bytes (64K for TCP) per zone and protocol.",
            (|zone: &ZoneMetrics| &zone.request_bytes) as fn(&ZoneMetrics) -> &[Histogram; 2],
        ),
        ("coredns_dns_response_size_bytes", "Size of the returned response in bytes.", |zone| {
            &zone.response_bytes
        }),
    ] {
        page.family(name, "histogram", help, |s| {
            for zone in zones {
                for (proto, histogram) in ["udp", "tcp"].into_iter().zip(of(&zone.value)) {
                    let labels =
                        [("proto", proto), ("server", SERVER), ("view", ""), ("zone", &zone.labels[0])];
                    s.observed(&labels, histogram);
                }
            }
        });
    }
}

fn cache_figures(page: &mut Exposition, caches: &[(String, Arc<Cache>)]) {
    let by_type = |page: &mut Exposition, name, kind, help, of: fn(&Cache) -> [f64; 2]| {
        page.family(name, kind, help, |s| {
            for (zone, cache) in caches {
                for (sort, value) in ["success", "denial"].into_iter().zip(of(cache)) {
                    s.value(&[("server", SERVER), ("type", sort), ("view", ""), ("zones", zone)], value);
                }
            }
        });
    };
    by_type(page, "coredns_cache_hits_total", "counter", "The count of cache hits.", |cache| {
        [cache.metrics.success_hits.value() as f64, cache.metrics.denial_hits.value() as f64]
    });
    by_type(page, "coredns_cache_entries", "gauge", "The number of elements in the cache.", |cache| {
        let (success, denial) = cache.len();
        [success as f64, denial as f64]
    });
    let plain = |page: &mut Exposition, name, help, of: fn(&Cache) -> u64| {
        page.family(name, "counter", help, |s| {
            for (zone, cache) in caches {
                s.value(&[("server", SERVER), ("view", ""), ("zones", zone)], of(cache) as f64);
            }
        });
    };
    plain(page, "coredns_cache_misses_total", "The count of cache misses.", |c| c.metrics.misses.value());
    plain(page, "coredns_cache_requests_total", "The count of cache requests.", |c| {
        c.metrics.misses.value() + c.metrics.success_hits.value() + c.metrics.denial_hits.value()
    });
    plain(
        page,
        "coredns_cache_prefetch_total",
        "The number of times the cache has prefetched a cached item.",
        |c| c.metrics.prefetches.value(),
    );
    plain(
        page,
        "coredns_cache_served_stale_total",
        "The number of requests served from stale cache entries.",
        |c| c.metrics.stale.value(),
    );
    plain(page, "coredns_cache_evictions_total", "The count of cache evictions.", |c| {
        c.metrics.evictions.value()
    });
}
