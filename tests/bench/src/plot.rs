//! Charts of rows: one SVG file per kind of case, with one group of bars per case and one bar per subject.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::page::{figure, natural, subjects};
use crate::row::Row;

/// Charts: case, metric, and title.
const CHARTS: [(&str, &str, &str); 20] = [
    ("hit_path", "seconds", "Program time of a packet of a known flow"),
    ("miss_path", "seconds", "Program time of the first packet of a flow"),
    ("not_a_service", "seconds", "Program time of a packet that is not for a service"),
    ("connect_hook", "seconds", "What the hook adds to a connect"),
    ("xdp_north_south", "packets_per_second", "Packets per second from outside to remote backends"),
    ("xdp_new_flows", "packets_per_second", "Packets per second, each of a new flow"),
    ("connect_rate", "per_second", "Connections per second"),
    ("tcp_rr", "p50_seconds", "TCP round trip, median"),
    ("udp_rr", "p50_seconds", "UDP round trip, median"),
    ("throughput", "bytes_per_second", "Bulk data"),
    ("full_program", "seconds", "Programming all services"),
    ("one_change", "seconds", "One change"),
    ("agent_memory", "bytes", "Resident memory of the proxy"),
    ("create", "per_second", "Durable creates per second"),
    ("get", "per_second", "Gets per second"),
    ("update", "per_second", "Updates per second"),
    ("patch", "per_second", "Merge patches per second"),
    ("apply", "per_second", "Server-side applies per second"),
    ("list", "bytes_per_second", "Lists of pods"),
    ("fanout", "seconds", "From a change to the last watcher that hears of it"),
];

/// Charts with all workloads of schedulers: file, beginning of the cases, and title.
const WORKLOADS: [(&str, &str, &str); 2] = [
    ("scheduler_core", "core/", "Pods placed per second, the core alone"),
    ("scheduler", "", "Pods created and bound per second, whole schedulers"),
];
/// Metric of these.
const PODS: &str = "pods_per_second";

const WIDTH: f64 = 900.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 70.0;
/// Height of the bars.
const BARS: f64 = 220.0;
const BASE: f64 = TOP + BARS;
/// Room for the labels of cases below the bars.
const BOTTOM: f64 = 70.0;
const BOTTOM_OF_WORKLOADS: f64 = 150.0;
/// Ratio of the largest to the smallest value above which the scale is logarithmic.
const LOGARITHMIC: f64 = 50.0;

/// Draws the rows into a directory, which is created if needed.
pub fn write(rows: &[Row], directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for (case, metric, title) in CHARTS {
        let of_chart: Vec<&Row> =
            rows.iter().filter(|row| row.name() == case && row.metric == metric).collect();
        if of_chart.is_empty() {
            continue;
        }
        save(directory, case, &chart(title, &of_chart, Labels::Parameters))?;
    }
    for (name, begin, title) in WORKLOADS {
        let belongs = |row: &&Row| {
            let is_core = row.case.starts_with("core/");
            row.suite == "scheduler" && row.metric == PODS && is_core == (begin == "core/")
        };
        let of_chart: Vec<&Row> = rows.iter().filter(belongs).collect();
        if !of_chart.is_empty() {
            save(directory, name, &chart(title, &of_chart, Labels::Workload(begin)))?;
        }
    }
    Ok(())
}

fn save(directory: &Path, name: &str, svg: &str) -> Result<()> {
    let file = directory.join(format!("{name}.svg"));
    fs::write(&file, svg).with_context(|| format!("cannot write {}", file.display()))
}

/// The text below the bars of a case.
#[derive(Clone, Copy)]
enum Labels {
    /// Its parameters, one below the other.
    Parameters,
    /// The name of its workload, which follows this text, slanted.
    Workload(&'static str),
}

impl Labels {
    fn room(self) -> f64 {
        match self {
            Self::Parameters => BOTTOM,
            Self::Workload(_) => BOTTOM_OF_WORKLOADS,
        }
    }

    fn draw(self, svg: &mut String, case: &str, middle: f64) {
        let mut put = |text: &str, y: f64, anchor: &str| {
            let text = escaped(text);
            let _ = writeln!(svg, "<text x=\"{middle:.1}\" y=\"{y:.1}\" {anchor}>{text}</text>");
        };
        match self {
            Self::Parameters => {
                for (line, parameter) in case.split('/').skip(1).enumerate() {
                    put(parameter, BASE + 16.0 + 14.0 * line as f64, "text-anchor=\"middle\"");
                }
            }
            Self::Workload(begin) => {
                let rest = case.strip_prefix(begin).unwrap_or(case);
                let name = rest.split('/').next().unwrap_or(rest);
                let y = BASE + 14.0;
                let slanted = format!("text-anchor=\"end\" transform=\"rotate(-35 {middle:.1} {y:.1})\"");
                put(name.strip_prefix("Scheduling").unwrap_or(name), y, &slanted);
            }
        }
    }
}

fn colour(subject: &str) -> &'static str {
    match subject {
        "limit" => "#9aa0a6",
        "hawser" => "#1f6feb",
        "iptables" => "#d9822b",
        "nftables" => "#2e9e5b",
        "ipvs" => "#8e44ad",
        "etcd" | "kube-scheduler" => "#2e9e5b",
        "goal" => "#d9822b",
        "store" => "#7fb3ff",
        _ => "#b03a48",
    }
}

/// Maps values to positions between the bottom (0) and the top (1) of the chart.
struct Scale {
    logarithmic: bool,
    low: f64,
    high: f64,
}

impl Scale {
    fn new(rows: &[&Row]) -> Self {
        let positive = rows.iter().map(|row| row.value).filter(|value| *value > 0.0);
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for value in positive {
            (least, most) = (least.min(value), most.max(value));
        }
        if most <= 0.0 {
            return Self { logarithmic: false, low: 0.0, high: 1.0 };
        }
        if most / least < LOGARITHMIC {
            return Self { logarithmic: false, low: 0.0, high: step(most) * 5.0 };
        }
        let (low, high) = (least.log10().floor(), most.log10().ceil());
        Self { logarithmic: true, low, high: high.max(low + 1.0) }
    }

    fn place(&self, value: f64) -> f64 {
        let at = if self.logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value };
        ((at - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Returns the values that get a line across the chart.
    fn lines(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = (self.high - self.low) as i32;
            return (0..=decades).map(|i| 10_f64.powf(self.low + f64::from(i))).collect();
        }
        (0..=5).map(|i| self.high * f64::from(i) / 5.0).collect()
    }
}

/// Returns the distance of lines, about a fifth of the scale: 1, 2, 2.5 or 5 times a power of ten.
fn step(most: f64) -> f64 {
    let fifth = most / 5.0;
    let power = 10_f64.powf(fifth.log10().floor());
    let nice = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|nice| nice * power >= fifth * 0.999);
    nice.unwrap_or(10.0) * power
}

fn chart(title: &str, rows: &[&Row], labels: Labels) -> String {
    let (subjects, scale, height) = (subjects(rows), Scale::new(rows), BASE + labels.room());
    let mut cases: Vec<&str> = Vec::new();
    for row in rows {
        if !cases.contains(&row.case.as_str()) {
            cases.push(&row.case);
        }
    }
    cases.sort_by_cached_key(|case| natural(case));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    legend(&mut svg, &subjects);
    axis(&mut svg, &scale, rows.first().map_or("", |row| row.unit.as_str()));
    let group = (WIDTH - LEFT - RIGHT) / cases.len() as f64;
    let bar = (group * 0.8 / subjects.len() as f64).min(60.0);
    for (i, case) in cases.iter().enumerate() {
        let middle = LEFT + group * (i as f64 + 0.5);
        for (j, subject) in subjects.iter().enumerate() {
            let of_bar = rows.iter().find(|row| row.case == *case && row.subject == *subject);
            if let Some(row) = of_bar {
                let x = middle + bar * (j as f64 - subjects.len() as f64 / 2.0);
                draw(&mut svg, row, x, bar, &scale);
            }
        }
        labels.draw(&mut svg, case, middle);
    }
    svg + "</svg>\n"
}

fn legend(svg: &mut String, subjects: &[&str]) {
    for (i, subject) in subjects.iter().enumerate() {
        let x = LEFT + 100.0 * i as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"36\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"46\">{subject}</text>",
            colour(subject),
            x + 17.0
        );
    }
}

fn axis(svg: &mut String, scale: &Scale, unit: &str) {
    for value in scale.lines() {
        let y = height(scale.place(value));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            figure(value, unit)
        );
    }
}

fn draw(svg: &mut String, row: &Row, x: f64, width: f64, scale: &Scale) {
    let y = height(scale.place(row.value));
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{}: {}</title>\
         </rect><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"8\">{}</text>",
        width * 0.9,
        BASE - y,
        colour(&row.subject),
        escaped(&row.subject),
        figure(row.value, &row.unit),
        x + width * 0.45,
        y - 3.0,
        figure(row.value, &row.unit),
    );
}

fn height(share: f64) -> f64 {
    BASE - share * BARS
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &str, subject: &str, value: f64) -> Row {
        Row {
            suite: "sync".into(),
            case: case.into(),
            subject: subject.into(),
            metric: "seconds".into(),
            unit: "seconds".into(),
            value,
            n: 3,
            seed: 1,
        }
    }

    #[test]
    fn each_row_is_a_bar_and_wide_ranges_are_logarithmic() {
        let rows = [
            row("full_program/services=1000", "hawser", 0.002),
            row("full_program/services=1000", "nftables", 0.2),
            row("full_program/services=10000", "hawser", 0.02),
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        let svg = chart("a < b", &rows, Labels::Parameters);
        assert_eq!(svg.matches("<title>").count(), 3);
        assert!(svg.contains("a &lt; b") && svg.contains("services=10000</text>"));
        let scale = Scale::new(&rows);
        assert!(scale.logarithmic);
        assert_eq!(scale.lines().len(), 4);
        assert!((scale.place(0.01) - 1.0 / 3.0).abs() < 1e-9);
        let narrow = Scale::new(&rows[..1]);
        assert!(!narrow.logarithmic && narrow.high >= 0.002);
    }

    #[test]
    fn workloads_of_schedulers_share_a_chart_and_the_core_has_its_own() {
        let row = |case: &str, subject: &str| Row {
            suite: "scheduler".into(),
            metric: PODS.into(),
            ..row(case, subject, 10.0)
        };
        let rows = [
            row("core/SchedulingBasic/nodes=5000", "hawser"),
            row("SchedulingBasic/nodes=5000/pods=10000", "limit"),
            row("TopologySpreading/nodes=5000/pods=5000", "hawser"),
        ];
        let directory = tempfile::tempdir().unwrap();
        write(&rows, directory.path()).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let (core, whole) = (read("scheduler_core.svg"), read("scheduler.svg"));
        assert_eq!((core.matches("<title>").count(), whole.matches("<title>").count()), (1, 2));
        assert!(core.contains(">Basic</text>") && whole.contains(">TopologySpreading</text>"));
    }

    #[test]
    fn scales_end_at_round_numbers() {
        assert!((step(0.98) - 0.2).abs() < 1e-12);
        assert!((step(5.0) - 1.0).abs() < 1e-12);
        assert!((step(11.0) - 2.5).abs() < 1e-12);
    }
}
