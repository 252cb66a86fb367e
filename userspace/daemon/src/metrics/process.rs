//! The kernel's figures of this process, under the names that every component of Kubernetes uses: from
//! `/proc` (proc(5)), when a page is built.

use std::fs;

use super::exposition::Exposition;

/// Ticks per second in `/proc`: Linux gives user space hundredths of a second on every machine.
const TICKS: f64 = 100.0;
/// The value of an unlimited resource, as in Go's client: the largest number of 64 bits.
const UNLIMITED: f64 = u64::MAX as f64;

/// Adds `process_*`; values that cannot be read are left out.
pub(super) fn add(page: &mut Exposition) {
    for (name, kind, help, value) in read() {
        if let Some(value) = value {
            page.family(name, kind, help, |samples| samples.value(&[], value));
        }
    }
}

/// Name, type, help and value, if known.
type Row = (&'static str, &'static str, &'static str, Option<f64>);

fn read() -> [Row; 9] {
    let file = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let (stat, status, limits) = (file("stat"), file("status"), file("limits"));
    let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
    let open = fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as f64);
    let (received, sent) = octets(&file("net/netstat")).unzip();
    let gauge = |name, help, value| (name, "gauge", help, value);
    let counter = |name, help, value| (name, "counter", help, value);
    [
        gauge("process_resident_memory_bytes", "Resident memory size in bytes.", kilobytes(&status, "VmRSS")),
        gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", field(&stat, 23)),
        gauge(
            "process_virtual_memory_max_bytes",
            "Maximum amount of virtual memory available in bytes.",
            limit(&limits, "Max address space"),
        ),
        gauge("process_open_fds", "Number of open file descriptors.", open),
        gauge(
            "process_max_fds",
            "Maximum number of open file descriptors.",
            limit(&limits, "Max open files"),
        ),
        gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            start(&stat, &machine),
        ),
        counter(
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            processor(&stat),
        ),
        counter(
            "process_network_receive_bytes_total",
            "Number of bytes received by the process over the network.",
            received,
        ),
        counter(
            "process_network_transmit_bytes_total",
            "Number of bytes sent by the process over the network.",
            sent,
        ),
    ]
}

/// Returns a field of `stat` by its number in proc(5). The name of the program may have spaces in it.
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

/// Returns the bytes in a line of `status`.
fn kilobytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0)
}

/// Returns the soft limit in a line of `limits`.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(UNLIMITED),
        number => number.parse().ok(),
    }
}

/// Returns the bytes received and sent: two lines of `netstat` begin alike, and the first has the names.
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
    use super::super::Format;
    use super::*;

    #[test]
    fn process_statistics_of_the_kernel_are_parsed() {
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
        let mut page = Exposition::new(Format::OpenMetrics);
        page.process();
        let text = page.finish();
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
        for line in ["# TYPE process_cpu_seconds counter", "# TYPE process_open_fds gauge"] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
