//! The suite `apiserver`: the cost of requests over TLS and HTTP/2 to a real `hawser apiserver`
//! on the embedded store and on etcd.
//!
//! ```text
//!   this process                 `hawser apiserver`          embedded store │ etcd
//!     clients (h2, rustls) ─TLS──▶ chain ▶ verbs ▶ storage ──▶ log + fdatasync
//!   `limit`: a bare TLS + HTTP/2 server, bare writes with fdatasync, bare copies of memory
//! ```

mod bare;
pub mod client;
mod echo;
mod fanout;
mod h2load;
mod in_process;
mod lists;
pub mod objects;
mod requests;
pub mod server;
mod weight;

use std::path::Path;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use crate::row::{Metric, Report};
use crate::subject::{Plan, Subject};

pub use echo::serve as echo;
pub use in_process::{fill, fill_with, lists as lists_in_process};

const SUITE: &str = "apiserver";
pub const PER_SECOND: Metric = ("per_second", "per_second");
const BYTES_PER_SECOND: Metric = ("bytes_per_second", "bytes_per_second");
pub const SECONDS: Metric = ("seconds", "seconds");
const P99: Metric = ("p99_seconds", "seconds");
pub const BYTES: Metric = ("bytes", "bytes");
pub const RATIO_TO_LIMIT: Metric = ("ratio_to_limit", "ratio");

/// Runs the measurements of the plan.
pub fn run(report: &Report, plan: &Plan) {
    requests::run(report, plan);
    if plan.has("fanout") {
        report.attempt("fanout", || fanout::run(report, plan));
    }
    if ["list", "start", "memory"].iter().any(|case| plan.has(case)) {
        weight::run(report, plan);
    }
    if plan.has("h2load") {
        report.attempt("h2load", || h2load::run(report, plan));
    }
}

/// Returns `true` if the plan contains this subject.
pub fn wants(plan: &Plan, subject: Subject) -> bool {
    plan.subjects.contains(&subject)
}

/// Returns the generator's runtime, which has one thread, so that it takes no more than one CPU from the
/// server.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot make a runtime")
}

/// Creates a directory for this run.
pub fn directory() -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("hawser-bench-").tempdir().context("cannot make a directory")
}

/// Runs this program as another process and returns the lines that it prints, each a word followed by
/// numbers.
pub fn lines_of(work: &[&str]) -> Result<Vec<(String, Vec<f64>)>> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let output = std::process::Command::new(program)
        .arg("--worker")
        .args(work)
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {work:?}"))?;
    anyhow::ensure!(output.status.success(), "{work:?} ended with {}", output.status);
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default().to_owned();
            let numbers = words.map(|word| word.parse().with_context(|| format!("{line:?} is not a figure")));
            Ok((name, numbers.collect::<Result<_>>()?))
        })
        .collect()
}

/// Returns the ratios of the two values of each turn.
fn shares(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

pub fn text(path: &Path) -> String {
    path.display().to_string()
}
