//! A server with many pods: the time to become ready, its memory, and its lists.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::server::Running;
use super::{BYTES, SECONDS, SUITE, lines_of, lists, text, wants};
use crate::row::{Metric, Report};
use crate::subject::{Plan, Subject};

/// Resident bytes per object above those of an empty server.
const PER_OBJECT: Metric = ("bytes_per_object", "bytes");
/// Those bytes relative to the encoded size of the object, including its key.
const TO_ENCODED: Metric = ("ratio_to_encoded", "ratio");
/// Peak of resident memory during the start.
const PEAK: Metric = ("peak_bytes", "bytes");
/// Time after which a server has released what only its start needed.
const REST: Duration = Duration::from_secs(7);

/// Measures for each number of pods.
pub fn run(report: &Report, plan: &Plan) {
    let mut empty = None;
    report.attempt("memory/pods=0", || {
        empty = Some(of_empty(report, plan)?);
        Ok(())
    });
    let sizes: &[usize] =
        if plan.sizes.is_empty() { plan.choose(&[1, 500, 20_000], &[1, 500, 150_000]) } else { &plan.sizes };
    for pods in sizes.iter().copied().filter(|pods| *pods > 0) {
        report.attempt(&format!("pods={pods}"), || of_pods(report, plan, pods, empty));
    }
}

/// Measures starts on empty directories and the memory of the last one; returns the latter.
fn of_empty(report: &Report, plan: &Plan) -> Result<f64> {
    let mut times = Vec::new();
    for round in 0..plan.choose(3, 10) {
        let directory = super::directory()?;
        let hawser = Running::hawser(directory.path(), None)?;
        times.push(hawser.ready.as_secs_f64());
        if round + 1 < plan.choose(3, 10) {
            continue;
        }
        std::thread::sleep(REST);
        let weight = hawser.resident()?;
        if plan.has("start") {
            report.row(SUITE, "start/pods=0", "hawser", SECONDS, &times)?;
        }
        if plan.has("memory") {
            report.row(SUITE, "memory/pods=0", "hawser", BYTES, &[weight])?;
        }
        return Ok(weight);
    }
    anyhow::bail!("there was no round")
}

fn of_pods(report: &Report, plan: &Plan, pods: usize, empty: Option<f64>) -> Result<()> {
    let directory = super::directory()?;
    let data = directory.path().join("hawser");
    // The program only accepts a directory that it has created itself.
    Running::hawser(&data, None)?.stop()?;
    let store = data.join("store");
    let filled = lines_of(&["fill", &text(&store), "0", &pods.to_string()])?;
    let encoded =
        filled.first().and_then(|(_, bytes)| bytes.first()).copied().context("nothing was filled")?;
    let hawser = starts(report, plan, &directory, pods)?;
    if plan.has("memory") {
        std::thread::sleep(REST);
        let case = format!("memory/pods={pods}");
        let weight = hawser.resident()?;
        report.row(SUITE, &case, "hawser", BYTES, &[weight])?;
        report.row(SUITE, &case, "hawser", PEAK, &[hawser.peak()?])?;
        if let Some(empty) = empty.filter(|_| pods >= 1_000) {
            let count = pods as f64;
            report.row(SUITE, &case, "hawser", PER_OBJECT, &[(weight - empty) / count])?;
            report.row(SUITE, &case, "hawser", TO_ENCODED, &[(weight - empty) / encoded])?;
        }
    }
    if plan.has("list") {
        let echo = Running::echo(&directory.path().join("echo"), 0)?;
        lists::over_tls(report, plan, &hawser, &echo, pods)?;
    }
    hawser.stop()?;
    if plan.has("list") {
        lists::in_process(report, plan, &text(&store), pods)?;
    }
    Ok(())
}

/// Measures repeated starts on the same data; returns the last server. The limit is reading the files.
fn starts(report: &Report, plan: &Plan, directory: &TempDir, pods: usize) -> Result<Running> {
    let data = directory.path().join("hawser");
    let (mut times, mut reads) = (Vec::new(), Vec::new());
    let rounds = plan.choose(3, 7);
    loop {
        let hawser = Running::hawser(&data, None)?;
        times.push(hawser.ready.as_secs_f64());
        if times.len() < rounds {
            hawser.stop()?;
            reads.push(read_all(&data.join("store"))?);
            continue;
        }
        if plan.has("start") {
            let case = format!("start/pods={pods}");
            report.row(SUITE, &case, "hawser", SECONDS, &times)?;
            if wants(plan, Subject::Limit) {
                report.row(SUITE, &case, "limit", SECONDS, &reads)?;
            }
        }
        return Ok(hawser);
    }
}

/// Returns the seconds that it takes to read all files of a directory.
fn read_all(directory: &Path) -> Result<f64> {
    let start = Instant::now();
    for entry in std::fs::read_dir(directory).context("cannot read a directory")? {
        let path = entry.context("cannot read a directory")?.path();
        if path.is_file() {
            std::hint::black_box(std::fs::read(&path).context("cannot read a file")?);
        }
    }
    Ok(start.elapsed().as_secs_f64())
}
