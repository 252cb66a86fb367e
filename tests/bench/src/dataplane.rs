//! The suite `dataplane`: what a packet, a connection and a round trip cost, subject after subject
//! in one run.

use anyhow::{Context, Result};

use crate::peers::{self, Service};
use crate::row::Report;
use crate::stage::{SUBJECTS, Stage, Subject, in_turn};
use crate::{north_south, programs};

const RATE: (&str, &str) = ("per_second", "per_second");
const SECONDS: (&str, &str) = ("seconds", "seconds");
const P50: (&str, &str) = ("p50_seconds", "seconds");
const P99: (&str, &str) = ("p99_seconds", "seconds");

/// Measures programs, sockets, and packets from outside.
pub fn run(report: &Report, quick: bool) -> Result<()> {
    programs::run(report, quick)?;
    sockets(report, quick)?;
    north_south::run(report, quick)
}

/// Connections and round trips of local sockets.
fn sockets(report: &Report, quick: bool) -> Result<()> {
    let (sizes, rounds, seconds): (&[usize], usize, f64) =
        if quick { (&[1, 1000], 9, 0.5) } else { (&[1, 100, 10_000], 9, 3.0) };
    for &size in sizes {
        let stages = stages(&peers::services(size, "tcp", &backends()))?;
        let case = format!("connect_rate/services={size}");
        let rates = in_turn(&stages, rounds, |stage| first(&stage.work("connect_rate", seconds)?))?;
        for (stage, rates) in stages.iter().zip(&rates) {
            report.row("dataplane", &case, stage.subject.name(), RATE, rates)?;
        }
        round_trips(report, "tcp_rr", size, &stages, rounds, seconds / 2.0)?;
        drop(stages);
        let stages = self::stages(&peers::services(size, "udp", &backends()))?;
        round_trips(report, "udp_rr", size, &stages, rounds, seconds / 2.0)?;
        connect_hook(report, size, &stages, rounds)?;
    }
    Ok(())
}

/// Backends that really listen.
fn backends() -> Vec<String> {
    (1..=3).map(|i| format!("10.200.0.{i}:8080")).collect()
}

fn stages(services: &[Service]) -> Result<Vec<Stage>> {
    SUBJECTS.into_iter().map(|subject| Stage::new(subject, services)).collect()
}

fn first(numbers: &[f64]) -> Result<f64> {
    numbers.first().copied().context("the worker printed no number")
}

fn round_trips(
    report: &Report,
    work: &str,
    size: usize,
    stages: &[Stage],
    rounds: usize,
    seconds: f64,
) -> Result<()> {
    let case = format!("{work}/services={size}");
    let turns = in_turn(stages, rounds, |stage| stage.work(work, seconds))?;
    for (stage, turns) in stages.iter().zip(&turns) {
        for (i, metric) in [RATE, P50, P99].into_iter().enumerate() {
            let values: Option<Vec<f64>> = turns.iter().map(|numbers| numbers.get(i).copied()).collect();
            let values = values.context("the worker printed too few numbers")?;
            report.row("dataplane", &case, stage.subject.name(), metric, &values)?;
        }
    }
    Ok(())
}

/// A UDP connect(2) in the cgroup of a data plane, less one to a backend in another cgroup.
fn connect_hook(report: &Report, size: usize, stages: &[Stage], rounds: usize) -> Result<()> {
    let pair: Vec<&Stage> =
        stages.iter().filter(|stage| matches!(stage.subject, Subject::Limit | Subject::Hawser)).collect();
    let times = in_turn(&pair, rounds, |stage| first(&stage.work("udp_connect", 0.2)?))?;
    let [limit, hawser] = times.as_slice() else {
        anyhow::bail!("the pair of stages is not complete");
    };
    let hook: Vec<f64> = hawser.iter().zip(limit).map(|(with, without)| with - without).collect();
    report.row("dataplane", &format!("connect_hook/services={size}"), "hawser", SECONDS, &hook)
}
