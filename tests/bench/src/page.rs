//! The page of figures: rows of a run as Markdown tables, each between two marks in the page, `<!-- rows:
//! NAME -->` and `<!-- end of rows -->`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::row::{RATIO_TO_ONE, Row};

const BEGIN: &str = "<!-- rows: ";
const END: &str = "<!-- end of rows -->";
/// Order of the first columns; others follow.
pub const SUBJECTS: [&str; 10] = [
    "limit",
    "hawser",
    "store",
    "etcd",
    "iptables",
    "nftables",
    "ipvs",
    "containerd",
    "kube-scheduler",
    "goal",
];
/// Metrics that are shown in brackets after another figure: rates relative to the limit, times relative to
/// those with one service.
const RATIOS: [&str; 2] = ["ratio_to_limit", RATIO_TO_ONE];

/// Part of the names of cases of emulated machines, which have a table of their own.
const EMULATED: &str = "/kernel=";

/// Cases of each table.
const TABLES: [(&str, &[&str]); 14] = [
    ("cluster", &["memory", "up", "first_pod", "binary"]),
    ("requests", &["create", "get", "update", "patch", "apply"]),
    ("lists", &["list", "fanout"]),
    ("weight", &["start", "memory"]),
    ("h2load", &["h2load_create", "h2load_get", "h2load_list"]),
    ("programs", &["not_a_service", "hit_path", "miss_path", "connect_hook"]),
    ("packets", &["xdp_north_south", "xdp_new_flows"]),
    ("connections", &["connect_rate", "tcp_rr", "udp_rr"]),
    ("throughput", &["throughput"]),
    ("sync", &["full_program", "one_change", "restart", "agent_memory", "map_memory"]),
    (
        "network",
        &[
            "pod_connect_rate",
            "pod_tcp_rr",
            "pod_udp_rr",
            "pod_throughput",
            "policy_connect_rate",
            "policy_tcp_rr",
            "policy_udp_rr",
            "bandwidth",
            "egress_packets",
            "egress_new_flows",
            "dns_queries",
            "peers",
            "readiness",
        ],
    ),
    ("controllers", &["deployment", "rollout", "daemons", "indexed_job", "autoscalers", "caches", "idle"]),
    (
        "scheduler",
        &[
            "core",
            "alone",
            "SchedulingBasic",
            "OwnedPods",
            "TopologySpreading",
            "PreferredTopologySpreading",
            "SchedulingPodAffinity",
            "SchedulingPodAntiAffinity",
            "SchedulingPreferredPodAffinity",
            "SchedulingPreferredPodAntiAffinity",
            "SchedulingRequiredPodAntiAffinityWithNSSelector",
            "SchedulingPreferredAntiAffinityWithNSSelector",
            "SchedulingNodeAffinity",
            "MixedSchedulingBasePod",
            "PreemptionBasic",
            "PreemptionAsync",
            "Unschedulable",
            "SchedulingCSIPVs",
            "SchedulingWithResourceClaimTemplate",
            "SchedulingDaemonset",
        ],
    ),
    ("emulated", &["xdp_north_south", "xdp_new_flows", "connect_rate", "tcp_rr", "udp_rr"]),
];

/// Writes the rows into the page; tables without rows stay unchanged.
pub fn write(rows: &[Row], file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    fs::write(file, filled(&text, rows)?).with_context(|| format!("cannot write {}", file.display()))
}

fn filled(page: &str, rows: &[Row]) -> Result<String> {
    let mut out = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(" -->").context("a mark of the page does not end")?;
        let (old, after) = after.split_once(END).with_context(|| format!("{name:?} has no end"))?;
        let (_, cases) =
            TABLES.iter().find(|(table, _)| *table == name).with_context(|| format!("no table {name:?}"))?;
        let of_table: Vec<&Row> =
            rows.iter().filter(|row| cases.contains(&row.name()) && belongs(row, name)).collect();
        let table = if of_table.is_empty() { old.to_owned() } else { table(&of_table, cases) };
        let _ = write!(out, "{before}{BEGIN}{name} -->{table}{END}");
        rest = after;
    }
    Ok(out + rest)
}

/// Tables of the suite `apiserver`, whose cases may have the same names as those of other suites.
const OF_APISERVER: [&str; 4] = ["requests", "lists", "weight", "h2load"];

/// Returns `true` if a row belongs to a table. Of emulated machines only rates are meaningful, as ratios.
fn belongs(row: &Row, table: &str) -> bool {
    if OF_APISERVER.contains(&table) != (row.suite == "apiserver") {
        return false;
    }
    let emulated = row.case.contains(EMULATED);
    if table == "emulated" { emulated && !row.metric.ends_with("_seconds") } else { !emulated }
}

/// Renders a table with one line per case and metric, and one column per subject.
fn table(rows: &[&Row], cases: &[&str]) -> String {
    let subjects = subjects(rows);
    let mut lines: Vec<(&str, &str)> = Vec::new();
    let mut cells: BTreeMap<(&str, &str, &str), String> = BTreeMap::new();
    for row in rows.iter().filter(|row| !RATIOS.contains(&row.metric.as_str())) {
        if !lines.contains(&(&row.case, &row.metric)) {
            lines.push((&row.case, &row.metric));
        }
        let ratio = ratio_beside(&row.metric).and_then(|name| {
            rows.iter().find(|other| {
                (&other.case, &other.subject, other.metric.as_str()) == (&row.case, &row.subject, name)
            })
        });
        let ratio = ratio.map(|ratio| format!(" ({:.0} %)", ratio.value * 100.0)).unwrap_or_default();
        cells.insert((&row.case, &row.metric, &row.subject), figure(row.value, &row.unit) + &ratio);
    }
    // Rows are in the order of measurement, possibly from several runs.
    lines.sort_by_cached_key(|(case, _)| {
        (cases.iter().position(|name| case.split('/').next() == Some(name)), natural(case))
    });
    let mut text = format!("\n\n| case | metric | {} |\n", subjects.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "---|".repeat(subjects.len()));
    for (case, metric) in lines {
        let of = |subject: &&str| cells.get(&(case, metric, *subject)).cloned().unwrap_or("–".to_owned());
        let values: Vec<String> = subjects.iter().map(of).collect();
        let _ = writeln!(text, "| `{case}` | {metric} | {} |", values.join(" | "));
    }
    text + "\n"
}

/// Returns a sort key that compares numbers in a case's name by value, so that 100 comes after 2.
pub fn natural(case: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = case;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (before, after) = rest.split_at(text);
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        parts.push((before.to_owned(), after[..end].parse().unwrap_or(0)));
        rest = &after[end..];
    }
    parts
}

/// Returns which of [`RATIOS`] is shown beside a metric.
fn ratio_beside(metric: &str) -> Option<&'static str> {
    let [to_limit, to_one] = RATIOS;
    match metric {
        "seconds" => Some(to_one),
        _ if metric.ends_with("per_second") => Some(to_limit),
        _ => None,
    }
}

/// Returns the subjects in the order of columns.
pub fn subjects<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut subjects: Vec<&str> = Vec::new();
    for row in rows {
        if !subjects.contains(&row.subject.as_str()) {
            subjects.push(&row.subject);
        }
    }
    subjects.sort_by_key(|name| SUBJECTS.iter().position(|known| known == name).unwrap_or(SUBJECTS.len()));
    subjects
}

impl Row {
    /// Returns the case without its parameters.
    pub fn name(&self) -> &str {
        self.case.split('/').next().unwrap_or_default()
    }
}

/// Formats a value with three digits and a readable unit.
pub fn figure(value: f64, unit: &str) -> String {
    let scales: &[(f64, &str)] = match unit {
        "seconds" => &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")],
        "bytes" => &[(1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1024.0, "KiB"), (1.0, "B")],
        "bytes_per_second" => &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")],
        "share" => &[(0.01, "%")],
        "per_second" => &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")],
        _ => &[(1.0, "")],
    };
    let scale = scales.iter().find(|(size, _)| value.abs() >= *size).or(scales.last());
    let (size, name) = scale.copied().unwrap_or((1.0, ""));
    let value = value / size;
    let digits = match value.abs() {
        large if large >= 99.95 => 0,
        middle if middle >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {name}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, subject: &str, (metric, unit): (&str, &str), value: f64) -> Row {
        Row {
            suite: "dataplane".into(),
            case: case.into(),
            subject: subject.into(),
            metric: metric.into(),
            unit: unit.into(),
            value,
            n: 3,
            seed: 1,
        }
    }

    #[test]
    fn a_table_is_replaced_between_its_marks_and_others_stay() {
        let rate = ("per_second", "per_second");
        let rows = [
            row("connect_rate/services=1", "hawser", rate, 49_500.0),
            row("connect_rate/services=1", "limit", rate, 50_000.0),
            row("connect_rate/services=1", "hawser", (RATIOS[0], "ratio"), 0.99),
            row("tcp_rr/services=1", "limit", ("p50_seconds", "seconds"), 0.000_012_34),
        ];
        let page = "a\n<!-- rows: connections -->\nold\n<!-- end of rows -->\nb\n\
                    <!-- rows: sync -->\nkept\n<!-- end of rows -->\nc";
        let table = "\n\n| case | metric | limit | hawser |\n|---|---|---|---|\n\
             | `connect_rate/services=1` | per_second | 50.0 k/s | 49.5 k/s (99 %) |\n\
             | `tcp_rr/services=1` | p50_seconds | 12.3 µs | – |\n\n";
        let filled = filled(page, &rows).unwrap();
        assert_eq!(filled, page.replace("\nold\n", table));
        assert!(super::filled("<!-- rows: nothing --><!-- end of rows -->", &rows).is_err());
    }

    #[test]
    fn times_are_shown_relative_to_one_service() {
        let seconds = ("seconds", "seconds");
        let rows = [
            row("hit_path/services=1", "hawser", seconds, 0.000_000_05),
            row("hit_path/services=100000", "hawser", seconds, 0.000_000_08),
            row("hit_path/services=100000", "hawser", (RATIO_TO_ONE, "ratio"), 1.04),
        ];
        let filled = filled("<!-- rows: programs --><!-- end of rows -->", &rows).unwrap();
        assert!(filled.contains("| `hit_path/services=1` | seconds | 50.0 ns |"), "{filled}");
        assert!(filled.contains("| `hit_path/services=100000` | seconds | 80.0 ns (104 %) |"), "{filled}");
        assert!(!filled.contains("ratio"), "{filled}");
    }

    #[test]
    fn emulated_machines_get_a_separate_table() {
        let rate = ("per_second", "per_second");
        let rows = [
            row("tcp_rr/services=1", "hawser", rate, 50_000.0),
            row("tcp_rr/services=1/kernel=6.12", "ipvs", rate, 500.0),
            row("tcp_rr/services=1/kernel=6.12", "ipvs", ("p50_seconds", "seconds"), 0.002),
        ];
        let page =
            "<!-- rows: connections --><!-- end of rows --><!-- rows: emulated --><!-- end of rows -->";
        let filled = filled(page, &rows).unwrap();
        let (machine, emulated) = filled.split_once("<!-- rows: emulated").unwrap();
        assert!(machine.contains("50.0 k/s") && !machine.contains("ipvs"));
        assert!(emulated.contains("| ipvs |") && !emulated.contains("p50_seconds"));
    }

    #[test]
    fn cases_are_sorted_by_their_numbers() {
        let mut cases = ["a/services=100/flows=1", "a/services=2/flows=10", "a/services=2/flows=9"];
        cases.sort_by_key(|case| natural(case));
        assert_eq!(cases, ["a/services=2/flows=9", "a/services=2/flows=10", "a/services=100/flows=1"]);
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(figure(0.000_000_033, "seconds"), "33.0 ns");
        assert_eq!(figure(1.5, "seconds"), "1.50 s");
        assert_eq!(figure(0.0, "seconds"), "0.00 ns");
        assert_eq!(figure(12_000_000.0, "per_second"), "12.0 M/s");
        assert_eq!(figure(1_073_741_824.0, "bytes"), "1.00 GiB");
        assert_eq!(figure(-0.000_000_5, "seconds"), "-500 ns");
        assert_eq!(figure(0.005, "share"), "0.50 %");
    }
}
