//! `cargo xtask up`: from a clean checkout to a running cluster.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{build_ebpf, image, setup, shell};

/// Data directory of the cluster unless `--data-dir` is among the arguments.
const DATA_DIR: &str = "/var/lib/hawser";

/// Sets up, builds, and replaces this process by `hawser up`.
pub fn run(args: &[String]) -> Result<()> {
    setup::run(setup::Purpose::Run, false)?;
    let binary = build_hawser()?;
    let echo = image::echo()?;
    let mut command = Command::new(binary);
    command.arg("up");
    if !args.iter().any(|a| a == "--data-dir" || a.starts_with("--data-dir=")) {
        command.args(["--data-dir", DATA_DIR]);
    }
    command.arg("--import").arg(echo).args(args);
    Err(command.exec()).context("cannot start hawser")
}

/// Builds the release binary with the eBPF programs in it.
pub fn build_hawser() -> Result<PathBuf> {
    build_ebpf::run()?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "userspace-hawser"]))?;
    Ok(shell::target_dir().join("release/hawser"))
}
