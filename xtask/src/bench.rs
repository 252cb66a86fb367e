//! `cargo xtask bench`: builds the product and the bench program in release and runs them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
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
    /// The suites, in order
    #[arg(required = true)]
    suites: Vec<Suite>,
    /// Append the rows as JSON lines to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Small sizes, few repeats: minutes instead of an hour
    #[arg(long)]
    quick: bool,
}

/// Builds, then runs the bench program with the same arguments.
pub fn run(args: &Args) -> Result<()> {
    setup::run(setup::Purpose::Everything, false)?;
    let object = build_ebpf::run()?;
    let hawser = up::build_hawser()?;
    let echo = image::echo()?;
    shell::run(
        shell::cargo()
            .args(["build", "--release", "--package", "tests-bench"])
            .env("HAWSER_EBPF_OBJECT", object),
    )?;
    let mut command = Command::new(shell::target_dir().join("release/bench"));
    for suite in &args.suites {
        if let Some(value) = suite.to_possible_value() {
            command.arg(value.get_name());
        }
    }
    if let Some(file) = &args.json {
        command.arg("--json").arg(file);
    }
    if args.quick {
        command.arg("--quick");
    }
    command.env("HAWSER", hawser).env("HAWSER_ECHO_IMAGE", echo);
    shell::run(&mut command)
}
