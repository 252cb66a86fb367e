//! What every component of Kubernetes tells about its process, under the same names: from /proc,
//! when somebody asks.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

/// Ticks a second in /proc; of every architecture that we run on.
const TICKS: f64 = 100.0;
/// How a limit that is none is written.
const UNLIMITED: f64 = u64::MAX as f64;

/// Adds the process's metrics, and the build's.
pub(crate) fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(Process));
    let build: Family<Vec<(&str, &str)>, Gauge> = Family::default();
    let labels = vec![
        ("major", env!("CARGO_PKG_VERSION_MAJOR")),
        ("minor", env!("CARGO_PKG_VERSION_MINOR")),
        ("git_version", concat!("v", env!("CARGO_PKG_VERSION"))),
        // Kubernetes' own have these; a build of ours does not know them.
        ("git_commit", ""),
        ("git_tree_state", ""),
        ("build_date", ""),
        ("go_version", ""),
        ("compiler", "rustc"),
        ("platform", PLATFORM),
    ];
    build.get_or_create(&labels).set(1);
    registry.register("kubernetes_build_info", "The version of this program; always 1", build);
}

/// As Go names it.
const PLATFORM: &str = if cfg!(target_arch = "x86_64") {
    "linux/amd64"
} else if cfg!(target_arch = "aarch64") {
    "linux/arm64"
} else {
    "linux"
};

/// The process that this code runs in.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    /// What cannot be read is left out.
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let found = read();
        for (name, help, value) in found.gauges {
            add(&mut encoder, name, help, value.map(ConstGauge::new))?;
        }
        for (name, help, value) in found.counters {
            add(&mut encoder, name, help, value.map(ConstCounter::new))?;
        }
        Ok(())
    }
}

fn add(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    metric: Option<impl EncodeMetric>,
) -> fmt::Result {
    let Some(metric) = metric else { return Ok(()) };
    let of = encoder.encode_descriptor(name, help, None, metric.metric_type())?;
    metric.encode(of)
}

/// Name, explanation and value, where that is known.
type Row = (&'static str, &'static str, Option<f64>);

struct Found {
    gauges: [Row; 6],
    counters: [Row; 3],
}

fn read() -> Found {
    let file = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let (stat, status, limits) = (file("stat"), file("status"), file("limits"));
    let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
    let open = fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as f64);
    let network = octets(&file("net/netstat"));
    Found {
        gauges: [
            ("process_resident_memory_bytes", "Resident memory size in bytes", kilobytes(&status, "VmRSS")),
            ("process_virtual_memory_bytes", "Virtual memory size in bytes", kilobytes(&status, "VmSize")),
            (
                "process_virtual_memory_max_bytes",
                "Maximum amount of virtual memory available in bytes",
                limit(&limits, "Max address space"),
            ),
            ("process_open_fds", "Number of open file descriptors", open),
            ("process_max_fds", "Maximum number of open file descriptors", limit(&limits, "Max open files")),
            (
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds",
                start(&stat, &machine),
            ),
        ],
        counters: [
            ("process_cpu_seconds", "Total user and system CPU time spent in seconds", processor(&stat)),
            (
                "process_network_receive_bytes",
                "Number of bytes received by the process's network namespace",
                network.map(|(received, _)| received),
            ),
            (
                "process_network_transmit_bytes",
                "Number of bytes sent by the process's network namespace",
                network.map(|(_, sent)| sent),
            ),
        ],
    }
}

/// A field of `stat` by its number in proc(5). The name of the program may have spaces in it.
fn field(stat: &str, number: usize) -> Option<f64> {
    let rest = stat.rsplit_once(')')?.1;
    rest.split_whitespace().nth(number - 3)?.parse().ok()
}

fn processor(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS)
}

fn start(stat: &str, machine: &str) -> Option<f64> {
    let boot: f64 = machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + field(stat, 22)? / TICKS)
}

/// A line of `status`.
fn kilobytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0)
}

/// The soft limit in a line of `limits`.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(UNLIMITED),
        number => number.parse().ok(),
    }
}

/// Received and sent: two lines of `netstat` begin alike, the first has the names.
fn octets(netstat: &str) -> Option<(f64, f64)> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted: &str| {
        let place = names.split_whitespace().position(|name| name == wanted)?;
        values.split_whitespace().nth(place)?.parse().ok()
    };
    Some((value("InOctets")?, value("OutOctets")?))
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 9 0 0 0 150 50 0 0 20 0 4 0 1234 999 88 0";
        assert_eq!(processor(stat), Some(2.0));
        assert_eq!(start(stat, "cpu 1 2\nbtime 1700000000\nprocesses 4\n"), Some(1_700_000_012.34));
        assert_eq!(kilobytes("VmPeak:\t 9 kB\nVmRSS:\t    1024 kB\n", "VmRSS"), Some(1_048_576.0));
        let limits = "Limit   Soft Limit  Hard Limit  Units\nMax open files      1024   4096  files\n\
            Max address space   unlimited  unlimited  bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(limit(limits, "Max address space"), Some(18_446_744_073_709_551_615.0));
        let netstat = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 3 4 5\n";
        assert_eq!(octets(netstat), Some((4.0, 5.0)));
        assert_eq!((processor(""), octets(""), limit("", "Max open files")), (None, None, None));
    }

    #[test]
    fn the_page_has_what_every_component_has() {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
        };
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!((0.0..600.0).contains(&(now - value("process_start_time_seconds"))), "{text}");
        assert!(value("process_resident_memory_bytes") > 1e6 && value("process_virtual_memory_bytes") > 1e6);
        assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_cpu_seconds_total") >= 0.0 && value("process_virtual_memory_max_bytes") > 0.0);
        assert!(value("process_network_receive_bytes_total") >= 0.0);
        let build = text.lines().find(|line| line.starts_with("kubernetes_build_info{")).unwrap();
        assert!(build.contains("git_version=\"v") && build.ends_with("} 1"), "{build}");
        for line in ["# TYPE process_cpu_seconds counter", "# TYPE process_open_fds gauge"] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
