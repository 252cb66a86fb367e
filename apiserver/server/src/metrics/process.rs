//! What the kernel says about this process, from `/proc` (proc(5)).

use std::fs;

use super::page::Page;

/// Units of `/proc/self/stat`: Linux shows user space hundredths of a second on every machine.
const TICKS: f64 = 100.0;

/// Adds `process_*`; what cannot be read is left out.
pub fn add(page: &mut Page) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program may hold anything but ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<f64>().ok());
    let mut gauge = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            page.family(name, kind, help, |samples| samples.value(&[], value));
        }
    };
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS);
    gauge("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", cpu);
    gauge("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", field(23));
    gauge(
        "process_virtual_memory_max_bytes",
        "gauge",
        "Maximum amount of virtual memory available in bytes.",
        max_memory(),
    );
    let started = boot_time().zip(field(22)).map(|(boot, ticks)| boot + ticks / TICKS);
    gauge(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
        started,
    );
    gauge("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", resident());
    let open = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
    gauge("process_open_fds", "gauge", "Number of open file descriptors.", open);
    gauge("process_max_fds", "gauge", "Maximum number of open file descriptors.", max_files());
}

fn line_value(path: &str, start: &str, word: usize) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(start))?;
    line.split_whitespace().nth(word)?.parse().ok()
}

fn boot_time() -> Option<f64> {
    line_value("/proc/stat", "btime", 0)
}

fn resident() -> Option<f64> {
    line_value("/proc/self/status", "VmRSS:", 0).map(|kib| kib * 1024.0)
}

/// Without a limit as many bytes as a number of 64 bits can say, as Go's client has it.
fn max_memory() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX as f64),
        bytes => bytes.parse().ok(),
    }
}

fn max_files() -> Option<f64> {
    line_value("/proc/self/limits", "Max open files", 0)
}
