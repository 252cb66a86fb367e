//! Cluster addresses and node ports: how many are given out and how often that failed.

use std::time::Duration;

use userspace_daemon::metrics::{Counter, Exposition, Family, Histogram};

use super::Metrics;

/// Seconds.
static SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

fn seconds() -> Histogram {
    Histogram::new(&SECONDS)
}

/// Successes and failures.
#[derive(Default)]
pub struct Attempts {
    done: Counter,
    failed: Counter,
}

impl Attempts {
    fn count(&self, done: bool) {
        if done { self.done.add(1) } else { self.failed.add(1) }
    }
}

/// The metrics of allocations.
pub struct Allocations {
    /// Range, scope.
    addresses: Family<2, Attempts>,
    /// Range.
    seconds: Family<1, Histogram>,
    /// Scope.
    ports: Family<1, Attempts>,
}

impl Default for Allocations {
    fn default() -> Self {
        Self { addresses: Family::default(), seconds: Family::new(seconds), ports: Family::default() }
    }
}

/// The figures that are read when the page is made.
#[derive(Default)]
pub struct Taken {
    /// Range, addresses given out, addresses free.
    pub addresses: Vec<(String, u64, u64)>,
    /// Node ports given out and free, if the store could say.
    pub ports: Option<(u64, u64)>,
}

/// Returns `static` for a requested number, `dynamic` for any.
fn scope(explicit: bool) -> &'static str {
    if explicit { "static" } else { "dynamic" }
}

impl Metrics {
    /// Counts an attempt to allocate an address of a range.
    pub fn address_allocated(&self, range: &str, explicit: bool, done: bool, took: Duration) {
        self.0.allocations.addresses.get(&[range, scope(explicit)]).value.count(done);
        if done {
            self.0.allocations.seconds.get(&[range]).value.observe(took.as_secs_f64());
        }
    }

    /// A node port was allocated, or could not be.
    pub fn port_allocated(&self, explicit: bool, done: bool) {
        self.0.allocations.ports.get(&[scope(explicit)]).value.count(done);
    }

    pub(super) fn allocations_page(&self, page: &mut Exposition, taken: &Taken) {
        const ADDRESSES: &str = "kube_apiserver_clusterip_allocator";
        const PORTS: &str = "kube_apiserver_nodeport_allocator";
        let allocations = &self.0.allocations;
        for (name, help, failed) in [
            ("allocation_total", "[ALPHA] Number of Cluster IPs allocations", false),
            ("allocation_errors_total", "[ALPHA] Number of errors trying to allocate Cluster IPs", true),
        ] {
            page.family(&format!("{ADDRESSES}_{name}"), "counter", help, |s| {
                allocations.addresses.each(["cidr", "scope"], |labels, attempts| {
                    let count = if failed { &attempts.failed } else { &attempts.done };
                    if count.value() > 0 {
                        s.value(labels, count.value() as f64);
                    }
                });
            });
            let help = help.replace("Cluster IPs", "NodePort");
            page.family(&format!("{PORTS}_{name}"), "counter", &help, |s| {
                allocations.ports.each(["scope"], |labels, attempts| {
                    let count = if failed { &attempts.failed } else { &attempts.done };
                    if count.value() > 0 {
                        s.value(labels, count.value() as f64);
                    }
                });
            });
        }
        page.family(
            &format!("{ADDRESSES}_allocation_duration_seconds"),
            "histogram",
            "[ALPHA] Duration in seconds to allocate a Cluster IP by ServiceCIDR",
            |s| s.histograms(&allocations.seconds, ["cidr"]),
        );
        for (name, help, free) in [
            ("allocated_ips", "[ALPHA] Gauge measuring the number of allocated IPs for Services", false),
            ("available_ips", "[ALPHA] Gauge measuring the number of available IPs for Services", true),
        ] {
            page.family(&format!("{ADDRESSES}_{name}"), "gauge", help, |s| {
                for (range, used, rest) in &taken.addresses {
                    s.value(&[("cidr", range)], if free { *rest } else { *used } as f64);
                }
            });
        }
        let Some((used, rest)) = taken.ports else { return };
        for (name, help, value) in [
            (
                "allocated_ports",
                "[ALPHA] Gauge measuring the number of allocated NodePorts for Services",
                used,
            ),
            (
                "available_ports",
                "[ALPHA] Gauge measuring the number of available NodePorts for Services",
                rest,
            ),
        ] {
            page.family(&format!("{PORTS}_{name}"), "gauge", help, |s| s.value(&[], value as f64));
        }
    }
}
