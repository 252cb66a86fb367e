//! `cargo xtask bench`: builds the product and the bench program in release and runs them.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::{build_ebpf, image, kernel, setup, shell, up};

/// Suite of measurements.
#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    Dataplane,
    Sync,
    Apiserver,
    Cluster,
    Network,
    Controllers,
    Scheduler,
}

#[derive(clap::Args)]
pub struct Args {
    /// The suites to run, in order; none to only draw existing rows
    suites: Vec<Suite>,
    /// Append the rows as JSON lines to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw the rows of the file as SVG charts into this directory
    #[arg(long, value_name = "DIR", requires = "json")]
    plot: Option<PathBuf>,
    /// Write the rows of the file into the tables of this page: docs/benchmarks.md
    #[arg(long, value_name = "FILE", requires = "json")]
    page: Option<PathBuf>,
    /// Small sizes, few repeats: minutes instead of an hour
    #[arg(long)]
    quick: bool,
    /// Run only cases whose names begin with one of these: `connect_rate,xdp`
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Measure only these subjects: limit, hawser, iptables, nftables, ipvs, etcd
    #[arg(long, value_delimiter = ',')]
    subjects: Vec<String>,
    /// Numbers of services, pods or nodes, in place of a case's own
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Measure in an emulated machine with this kernel, such as 6.12, which has IPVS: meaningful for ratios,
    /// not for times. Cases are then named `…/kernel=VERSION`
    #[arg(long, value_name = "VERSION", conflicts_with_all = ["plot", "page"])]
    kernel: Option<String>,
}

/// Factor by which turns of sockets are longer in an emulated machine, where an instruction takes a
/// nanosecond.
const EMULATION: &str = "2";
/// Time limit of all suites in an emulated machine.
const GUEST_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// Builds, then runs the bench program with the same arguments.
pub fn run(args: &Args) -> Result<()> {
    let Args { suites, json, plot, page, quick, cases, subjects, sizes, kernel } = args;
    if suites.is_empty() && plot.is_none() && page.is_none() {
        bail!("nothing to do: name a suite, or pass --plot or --page");
    }
    setup::run(setup::Purpose::Everything, false)?;
    build_ebpf::run()?;
    let program = shell::target_dir().join("release/bench");
    let mut command = Command::new(&program);
    // The suite of the data plane embeds it itself.
    if suites.iter().any(|suite| !matches!(suite, Suite::Dataplane)) {
        command.env("HAWSER", up::build_hawser()?).env("HAWSER_ECHO_IMAGE", image::echo()?);
    }
    shell::run(shell::cargo().args(["build", "--release", "--package", "tests-bench"]))?;
    let mut words: Vec<String> =
        suites.iter().filter_map(|suite| Some(suite.to_possible_value()?.get_name().to_owned())).collect();
    if *quick {
        words.push("--quick".to_owned());
    }
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    for (flag, list) in [("--cases", cases), ("--subjects", subjects), ("--sizes", &sizes)] {
        if !list.is_empty() {
            words.extend([flag.to_owned(), list.join(",")]);
        }
    }
    if let Some(version) = kernel {
        words.extend(["--stretch".to_owned(), EMULATION.to_owned()]);
        return emulated(version, &program, &words, json.as_deref());
    }
    command.args(words);
    for (flag, path) in [("--json", json), ("--plot", plot), ("--page", page)] {
        if let Some(path) = path {
            command.arg(flag).arg(path);
        }
    }
    shell::run(&mut command)
}

/// Runs the bench program on another kernel, and collects its rows.
fn emulated(version: &str, program: &Path, words: &[String], json: Option<&Path>) -> Result<()> {
    let mut rows = String::new();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome =
        kernel::bench(version, program, &words, GUEST_LIMIT, &mut |line| match row(line, version) {
            Some(row) => {
                println!("{row}");
                rows.push_str(&row);
                rows.push('\n');
            }
            None => eprintln!("{line}"),
        });
    if let Some(path) = json {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        file.write_all(rows.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    outcome
}

/// Parses a line of the guest's output as a row and adds the kernel to its case; `None` if it is not a row.
fn row(line: &str, version: &str) -> Option<String> {
    let mut row: Value = serde_json::from_str(line).ok()?;
    let case = format!("{}/kernel={version}", row["case"].as_str()?);
    row["case"] = case.into();
    Some(row.to_string())
}

#[cfg(test)]
mod tests {
    use super::row;

    #[test]
    fn rows_of_a_guest_name_its_kernel() {
        let line = r#"{"suite":"dataplane","case":"tcp_rr/services=1","value":1.5}"#;
        let expected = r#"{"case":"tcp_rr/services=1/kernel=6.12","suite":"dataplane","value":1.5}"#;
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(parse(&row(line, "6.12").unwrap()), parse(expected));
        assert_eq!(row("bench: tcp_rr", "6.12"), None);
    }
}
