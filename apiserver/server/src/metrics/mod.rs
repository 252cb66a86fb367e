//! Metrics, with the names, labels, buckets and stability that Kubernetes 1.36 gives them.
//!
//! What a request touches is found once by its labels and recorded with atomic additions; nothing
//! is formatted before somebody asks for the page.

mod access;
mod allocation;
mod bodies;
mod clients;
mod features;
mod queue;
mod render;
mod tunnels;

use std::sync::Arc;
use std::time::Duration;

use apiserver_registry::Resource;
use userspace_daemon::metrics::{Counter, Family, Gauge, Histogram, Member};

pub use access::{Authentication, Authorization};
pub use allocation::Taken;
pub use bodies::{StoredLists, WebhookFailure};
pub use clients::Clients;
pub use queue::Queue;
pub use render::{CacheState, State};
pub use tunnels::Tunnels;

/// Seconds, of requests and of the store.
pub(crate) static SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
/// Seconds, of the service level.
static SLI_SECONDS: [f64; 21] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// Bytes of answers.
static RESPONSE_BYTES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// Bytes of watch events.
static EVENT_BYTES: [f64; 8] = [1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0];
/// Seconds of one admission step.
static ADMISSION_SECONDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];

/// Codes that answers have; others are counted as 0.
static CODES: [u16; 26] = [
    0, 101, 200, 201, 202, 204, 302, 304, 400, 401, 403, 404, 405, 406, 409, 410, 413, 415, 422, 429, 500,
    501, 502, 503, 504, 505,
];

/// Counters by status code.
#[derive(Default)]
pub struct Codes([Counter; 26]);

impl Codes {
    fn add(&self, code: u16) {
        self.0[CODES.binary_search(&code).unwrap_or(0)].add(1);
    }

    fn absorb(&self, other: &Self) {
        self.0.iter().zip(&other.0).for_each(|(mine, more)| mine.add(more.value()));
    }

    fn used(&self) -> impl Iterator<Item = (u16, u64)> {
        CODES.iter().copied().zip(self.0.iter().map(Counter::value)).filter(|(_, count)| *count > 0)
    }
}

/// The metrics of requests of one kind.
pub struct Requests {
    seconds: Histogram,
    sli_seconds: Histogram,
    response_bytes: Histogram,
    codes: Codes,
    terminated: Codes,
    aborted: Counter,
    long_running: Gauge,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            seconds: Histogram::new(&SECONDS),
            sli_seconds: Histogram::new(&SLI_SECONDS),
            response_bytes: Histogram::new(&RESPONSE_BYTES),
            codes: Codes::default(),
            terminated: Codes::default(),
            aborted: Counter::default(),
            long_running: Gauge::default(),
        }
    }
}

/// The metrics of the watches of one kind.
pub struct Watches {
    open: Gauge,
    events: Counter,
    bytes: Histogram,
}

impl Default for Watches {
    fn default() -> Self {
        Self { open: Gauge::default(), events: Counter::default(), bytes: Histogram::new(&EVENT_BYTES) }
    }
}

/// The metrics of the lists of one kind.
#[derive(Default)]
pub struct Lists {
    requests: Counter,
    fetched: Counter,
    returned: Counter,
}

/// Counts the objects of one answer.
pub struct ListCount(Arc<Member<2, Lists>>);

impl ListCount {
    /// So many more were sent.
    pub fn returned(&self, more: u64) {
        self.0.value.returned.add(more);
    }
}

/// The metrics of one operation of the store on one kind.
pub struct StoreCalls {
    pub seconds: Histogram,
    pub failed: Counter,
}

impl Default for StoreCalls {
    fn default() -> Self {
        Self { seconds: Histogram::new(&SECONDS), failed: Counter::default() }
    }
}

fn admission_histogram() -> Histogram {
    Histogram::new(&ADMISSION_SECONDS)
}

/// Labels of [`Requests`]: verb, dry_run, group, version, resource, subresource, scope.
pub type RequestLabels<'a> = [&'a str; 7];

/// The metrics of the server. Clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    requests: Family<7, Requests>,
    /// Reads, writes.
    in_flight: [Arc<Gauge>; 2],
    /// group, version, resource
    watches: Family<3, Watches>,
    /// group, resource
    lists: Family<2, Lists>,
    /// group, operation, resource
    store: Arc<Family<3, StoreCalls>>,
    /// The labels are those of [`Metrics::deprecated`].
    deprecated: Family<5, Gauge>,
    /// operation, rejected, type
    admission_steps: Family<3, Histogram>,
    /// name, operation, rejected, type
    admission_plugins: Family<4, Histogram>,
    /// name, type
    health: Family<2, Gauge>,
    /// name, status, type
    health_results: Family<3, Counter>,
    /// `address` or `port`, type
    repairs: Family<2, Counter>,
    handshake_errors: Counter,
    access: access::Access,
    allocations: allocation::Allocations,
    bodies: bodies::Bodies,
    definitions: Arc<Queue>,
}

/// Counts something that is going on until it is dropped.
pub struct Guard(Arc<Gauge>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

/// A long-running request.
pub struct LongRunning(Arc<Member<7, Requests>>);

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.0.value.long_running.add(-1);
    }
}

/// An open watch.
pub struct WatchGuard(Arc<Member<3, Watches>>);

impl WatchGuard {
    /// Records an event of this many bytes made for the client.
    pub fn sent(&self, bytes: usize) {
        self.0.value.events.add(1);
        self.0.value.bytes.observe(bytes as f64);
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.value.open.add(-1);
    }
}

impl Metrics {
    /// Returns metrics that are all zero.
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            requests: Family::default(),
            in_flight: Default::default(),
            watches: Family::default(),
            lists: Family::default(),
            store: Arc::new(Family::default()),
            deprecated: Family::default(),
            admission_steps: Family::new(admission_histogram),
            admission_plugins: Family::new(admission_histogram),
            health: Family::default(),
            health_results: Family::default(),
            repairs: Family::default(),
            handshake_errors: Counter::default(),
            access: access::Access::default(),
            allocations: allocation::Allocations::default(),
            bodies: bodies::Bodies::default(),
            definitions: Queue::new("customresourcedefinitions"),
        }))
    }

    /// A request that is not long running is being worked on.
    pub fn request_began(&self, read: bool) -> Guard {
        let gauge = &self.0.in_flight[usize::from(!read)];
        gauge.add(1);
        Guard(Arc::clone(gauge))
    }

    /// Requests that are being worked on, long-running ones not counted.
    pub fn in_flight(&self) -> i64 {
        self.0.in_flight.iter().map(|gauge| gauge.value()).sum()
    }

    /// Returns the metrics under these labels.
    pub fn requests(&self, labels: &RequestLabels<'_>) -> Arc<Member<7, Requests>> {
        self.0.requests.get(labels)
    }

    /// Counts a watch, which ends when the guard is dropped.
    pub fn watch_opened(&self, resource: &Resource) -> WatchGuard {
        let member = self.0.watches.get(&[&resource.group, &resource.version, &resource.plural]);
        member.value.open.add(1);
        WatchGuard(member)
    }

    /// Records the answer to a list of this many objects; those that the answer contains are counted as they
    /// are sent.
    pub fn listed(&self, resource: &Resource, fetched: usize) -> ListCount {
        let member = self.0.lists.get(&[&resource.group, &resource.plural]);
        member.value.requests.add(1);
        member.value.fetched.add(fetched as u64);
        ListCount(member)
    }

    /// Returns the metrics of the store's calls.
    pub fn store(&self) -> Arc<Family<3, StoreCalls>> {
        Arc::clone(&self.0.store)
    }

    /// Records the use of a deprecated version of the API: group, the release that removes it, resource,
    /// subresource, version.
    pub fn deprecated(&self, labels: [&str; 5]) {
        self.0.deprecated.get(&labels).value.set(1);
    }

    /// All plugins of one type, `admit` or `validate`, have judged a request.
    pub fn admission_step(&self, operation: &str, rejected: bool, kind: &str, took: Duration) {
        let rejected = if rejected { "true" } else { "false" };
        self.0.admission_steps.get(&[operation, rejected, kind]).value.observe(took.as_secs_f64());
    }

    /// One plugin has.
    pub fn admission_plugin(&self, name: &str, operation: &str, rejected: bool, kind: &str, took: Duration) {
        let rejected = if rejected { "true" } else { "false" };
        self.0.admission_plugins.get(&[name, operation, rejected, kind]).value.observe(took.as_secs_f64());
    }

    /// A health check of `/healthz`, `/livez` or `/readyz` was made.
    pub fn health_checked(&self, name: &str, kind: &str, ok: bool) {
        self.0.health.get(&[name, kind]).value.set(i64::from(ok));
        let status = if ok { "success" } else { "error" };
        self.0.health_results.get(&[name, status, kind]).value.add(1);
    }

    /// Something is wrong with a cluster address (`address`) or a node port (`port`).
    pub fn repaired(&self, what: &str, kind: &str) {
        self.0.repairs.get(&[what, kind]).value.add(1);
    }

    /// A TLS handshake has failed.
    pub fn handshake_failed(&self) {
        self.0.handshake_errors.add(1);
    }
}

impl Requests {
    /// A request was answered. `bytes`: of an answer to a read, where it is known.
    pub fn ended(&self, code: u16, took: Duration, bytes: Option<u64>) {
        let seconds = took.as_secs_f64();
        self.seconds.observe(seconds);
        self.sli_seconds.observe(seconds);
        self.codes.add(code);
        if let Some(bytes) = bytes {
            self.response_bytes.observe(bytes as f64);
        }
    }

    /// An answer that was sent in pieces has ended.
    pub fn sent(&self, bytes: u64) {
        self.response_bytes.observe(bytes as f64);
    }

    /// Adds the counts of another one.
    fn absorb(&self, other: &Self) {
        self.seconds.absorb(&other.seconds);
        self.sli_seconds.absorb(&other.sli_seconds);
        self.response_bytes.absorb(&other.response_bytes);
        self.codes.absorb(&other.codes);
        self.terminated.absorb(&other.terminated);
        self.aborted.add(other.aborted.value());
        self.long_running.add(other.long_running.value());
    }

    /// The client has gone before the answer was there.
    pub fn aborted(&self) {
        self.aborted.add(1);
    }

    /// The server has given up a request to protect itself.
    pub fn terminated(&self, code: u16) {
        self.terminated.add(code);
    }
}

/// Counts a long-running request until the guard is dropped.
pub fn long_running(member: Arc<Member<7, Requests>>) -> LongRunning {
    member.value.long_running.add(1);
    LongRunning(member)
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
