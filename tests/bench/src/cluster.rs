//! The suite `cluster`: the time to start a cluster, and its memory.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tests_e2e::{Cluster, Lab, eventually};

use crate::row::{Metric, Report};
use crate::subject::Plan;

const SECONDS: Metric = ("seconds", "seconds");
const BYTES: Metric = ("bytes", "bytes");

/// Repeats `up`, then measures memory on the last cluster.
pub fn run(report: &Report, plan: &Plan) -> Result<()> {
    let rounds = plan.choose(3, 10);
    let (mut ups, mut first_pods) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let lab = Lab::new()?;
        let mut cluster = Cluster::up(&lab)?;
        ups.push(milliseconds(&cluster.ready)? / 1000.0);
        first_pods.push(first_pod(&cluster)?);
        if round + 1 == rounds {
            rest(report, &cluster, 1)?;
            run_pods(&cluster, 30)?;
            rest(report, &cluster, 30)?;
        }
        cluster.stop()?;
    }
    report.row("cluster", "up", "hawser", SECONDS, &ups)?;
    report.row("cluster", "first_pod", "hawser", SECONDS, &first_pods)?;
    let binary = tests_e2e::hawser()?;
    let size = fs::metadata(&binary).with_context(|| format!("cannot read {}", binary.display()))?.len();
    report.row("cluster", "binary", "hawser", BYTES, &[size as f64])
}

/// Parses N of `ready in N ms`.
fn milliseconds(line: &str) -> Result<f64> {
    let number = line.split("ready in ").nth(1).and_then(|rest| rest.split(' ').next());
    number.and_then(|n| n.parse().ok()).with_context(|| format!("no time in {line:?}"))
}

/// Measures from `kubectl create` to a running pod, as seen by `kubectl wait`.
fn first_pod(cluster: &Cluster<'_>) -> Result<f64> {
    let start = Instant::now();
    cluster.kubectl("run first --image=hawser.local/echo:1 --restart=Never")?;
    cluster.kubectl("wait pod/first --for=jsonpath={.status.phase}=Running --timeout=60s")?;
    Ok(start.elapsed().as_secs_f64())
}

fn run_pods(cluster: &Cluster<'_>, count: usize) -> Result<()> {
    cluster
        .kubectl(&format!("create deployment many --image=hawser.local/echo:1 --replicas={}", count - 1))?;
    cluster.kubectl("rollout status deploy/many --timeout=120s")?;
    Ok(())
}

/// Measures the resident memory of `hawser` and of everything that it started except the pods' own processes.
fn rest(report: &Report, cluster: &Cluster<'_>, pods: usize) -> Result<()> {
    // Memory that only the start needed is released by then; the figure is for a cluster at rest.
    std::thread::sleep(Duration::from_secs(5));
    let hawser = resident(cluster.pid()?)?;
    report.row("cluster", &format!("memory/pods={pods}"), "hawser", BYTES, &[hawser])?;
    let data = cluster.lab.data_dir().display().to_string();
    let containerd = eventually("containerd's process", || process(&["containerd", "--config", &data]))?;
    report.row("cluster", &format!("memory/pods={pods}"), "containerd", BYTES, &[resident(containerd)?])
}

fn process(words: &[&str]) -> Result<Option<u32>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if words.iter().all(|word| line.contains(word)) && !line.contains("shim") {
            found.insert(pid);
        }
    }
    Ok(found.into_iter().next())
}

/// Returns `VmRSS` in bytes.
fn resident(pid: u32) -> Result<f64> {
    memory(pid, "VmRSS:")
}

/// Returns a field of `/proc/PID/status` in bytes.
pub fn memory(pid: u32, of: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(of));
    match line.and_then(|rest| rest.split_whitespace().next()).and_then(|n| n.parse::<f64>().ok()) {
        Some(kibibytes) => Ok(kibibytes * 1024.0),
        None => bail!("no {of} in {path}"),
    }
}
