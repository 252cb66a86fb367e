//! `cargo xtask bench`: builds the product and the bench program in release and runs them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::{build_ebpf, image, setup, shell, up};

/// What to measure.
#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    Dataplane,
    Sync,
    Cluster,
}

#[derive(clap::Args)]
pub struct Args {
    /// The suites, in order; none to draw what a file has
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
    /// Only cases whose names begin so: `connect_rate,xdp`
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Only these subjects: limit, hawser, iptables, nftables, ipvs
    #[arg(long, value_delimiter = ',')]
    subjects: Vec<String>,
    /// Numbers of services instead of those that a case has by itself
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
}

/// Builds, then runs the bench program with the same arguments.
pub fn run(args: &Args) -> Result<()> {
    let Args { suites, json, plot, page, quick, cases, subjects, sizes } = args;
    if suites.is_empty() && plot.is_none() && page.is_none() {
        bail!("there is nothing to do: name a suite, or --plot or --page");
    }
    setup::run(setup::Purpose::Everything, false)?;
    let object = build_ebpf::run()?;
    let mut command = Command::new(shell::target_dir().join("release/bench"));
    if !suites.is_empty() {
        command.env("HAWSER", up::build_hawser()?).env("HAWSER_ECHO_IMAGE", image::echo()?);
    }
    shell::run(
        shell::cargo()
            .args(["build", "--release", "--package", "tests-bench"])
            .env("HAWSER_EBPF_OBJECT", object),
    )?;
    command.args(suites.iter().filter_map(|suite| Some(suite.to_possible_value()?.get_name().to_owned())));
    for (flag, path) in [("--json", json), ("--plot", plot), ("--page", page)] {
        if let Some(path) = path {
            command.arg(flag).arg(path);
        }
    }
    if *quick {
        command.arg("--quick");
    }
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    for (flag, list) in [("--cases", cases), ("--subjects", subjects), ("--sizes", &sizes)] {
        if !list.is_empty() {
            command.arg(flag).arg(list.join(","));
        }
    }
    shell::run(&mut command)
}
