//! Connections, round trips and bulk data over real sockets, alternating between subjects in short turns.

use anyhow::{Context, Result};

use crate::hook;
use crate::row::{Metric, Report};
use crate::stage::{CONNECT_RATE, Stage, TCP_RR, THROUGHPUT, UDP_RR, Way, Work};
use crate::subject::{Plan, Subject, in_turn};

const RATE: Metric = ("per_second", "per_second");
pub const BYTES: Metric = ("bytes_per_second", "bytes_per_second");
const P50: Metric = ("p50_seconds", "seconds");
const P99: Metric = ("p99_seconds", "seconds");
/// Ratio of a figure to its direct counterpart: the median over pairs of turns.
pub const RATIO: Metric = ("ratio_to_limit", "ratio");

/// Measures all kinds of work in all ways, and the hook alone.
pub fn run(report: &Report, plan: &Plan) {
    for size in plan.sizes(&[1, 1000, 10_000], &[1, 100, 10_000]) {
        let works = works(plan, size);
        if !works.is_empty() {
            report.attempt(&format!("sockets/services={size}"), || all(report, plan, size, &works));
        }
    }
    if plan.has("connect_hook") && plan.subjects.contains(&Subject::Hawser) {
        let sizes = plan.sizes(&[1, 100_000], &[1, 100, 10_000, 100_000]);
        report.attempt("connect_hook", || hook::run(report, plan, &sizes));
    }
}

fn all(report: &Report, plan: &Plan, size: usize, works: &[(Way, Work)]) -> Result<()> {
    let with_pods = works.iter().any(|(way, _)| *way != Way::Local);
    let subjects = plan.subjects(size).into_iter();
    let stages: Result<Vec<Stage>> = subjects.map(|subject| Stage::new(subject, size, with_pods)).collect();
    let stages = stages?;
    for (way, work) in works {
        let case = format!("{}/services={size}{}", work.name, way.parameter());
        report.attempt(&case, || measure(report, plan, &case, &stages, (*way, *work)));
    }
    Ok(())
}

/// Returns the requested combinations; those between pods only for the smallest and the largest size.
fn works(plan: &Plan, size: usize) -> Vec<(Way, Work)> {
    let ways: &[Way] = match (plan.quick, size) {
        (_, 1) => &Way::ALL,
        (false, 10_000) => &[Way::Local, Way::PodPacket, Way::NodePort],
        _ => &[Way::Local],
    };
    let all = [CONNECT_RATE, TCP_RR, UDP_RR, THROUGHPUT];
    let pairs = ways.iter().flat_map(|way| all.map(|work| (*way, work)));
    pairs
        // Bulk data does not depend on the number of services.
        .filter(|(way, work)| *work != THROUGHPUT || (*way != Way::Local && size == 1))
        .filter(|(_, work)| plan.has(work.name))
        .collect()
}

fn measure(
    report: &Report,
    plan: &Plan,
    case: &str,
    stages: &[Stage],
    (way, work): (Way, Work),
) -> Result<()> {
    let (rounds, seconds) = match (plan.quick, way, work) {
        (true, Way::Local, CONNECT_RATE) => (41, 0.04),
        (true, ..) => (15, 0.03),
        // A difference of a few per cent needs many pairs to show.
        (false, Way::Local, CONNECT_RATE) => (201, 0.05),
        (false, ..) => (61, 0.05),
    };
    let seconds = seconds * plan.stretch;
    let turns = in_turn(stages, rounds, |stage| stage.work(way, work, seconds))?;
    let subjects: Vec<Subject> = stages.iter().map(|stage| stage.subject).collect();
    rows(report, ("dataplane", case), work, &subjects, &turns)
}

/// Writes the rows of a kind of work: the figures of each turn of each subject.
pub fn rows(
    report: &Report,
    (suite, case): (&str, &str),
    work: Work,
    subjects: &[Subject],
    turns: &[Vec<Vec<f64>>],
) -> Result<()> {
    let metrics: &[Metric] = match work {
        CONNECT_RATE => &[RATE],
        THROUGHPUT => &[BYTES],
        _ => &[RATE, P50, P99],
    };
    let limit = subjects.iter().position(|subject| *subject == Subject::Limit);
    for (subject, of_stage) in subjects.iter().zip(turns) {
        let name = subject.name();
        for (i, metric) in metrics.iter().enumerate() {
            report.row(suite, case, name, *metric, &column(of_stage, i)?)?;
        }
        if let Some(limit) = limit
            && *subject != Subject::Limit
        {
            let pairs = column(of_stage, 0)?.into_iter().zip(column(&turns[limit], 0)?);
            let ratios: Vec<f64> = pairs.map(|(figure, direct)| figure / direct).collect();
            report.row(suite, case, name, RATIO, &ratios)?;
        }
    }
    Ok(())
}

fn column(turns: &[Vec<f64>], i: usize) -> Result<Vec<f64>> {
    let values: Option<Vec<f64>> = turns.iter().map(|numbers| numbers.get(i).copied()).collect();
    values.context("a worker gave too few numbers")
}
