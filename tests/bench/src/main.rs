//! The programs behind `cargo xtask bench`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "rows are printed")]
#![allow(clippy::cast_precision_loss, reason = "counts become figures")]

mod asm;
mod bpf;
mod cluster;
mod connect;
mod dataplane;
mod north_south;
mod peers;
mod programs;
mod row;
mod stage;
mod sync;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use crate::row::Report;

#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    Dataplane,
    Sync,
    Cluster,
}

#[derive(Parser)]
struct Args {
    suites: Vec<Suite>,
    /// Append the rows to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Small sizes and few repeats
    #[arg(long)]
    quick: bool,
    /// Of the order in which subjects take their turns
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Be the worker of a benchmark of sockets: this program calls itself with it
    #[arg(long, hide = true, num_args = 4, value_names = ["WORK", "TARGETS", "BACKENDS", "SECONDS"])]
    worker: Vec<String>,
    /// Measure the agent's memory in a process of its own: services, pins, cgroup
    #[arg(long, hide = true, num_args = 3, value_names = ["SERVICES", "BPF_ROOT", "CGROUP"])]
    agent: Vec<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let [work, targets, backends, seconds] = args.worker.as_slice() {
        return connect::worker(work, &sockets(targets)?, &sockets(backends)?, seconds.parse()?);
    }
    if let [services, bpf_root, cgroup] = args.agent.as_slice() {
        return sync::agent(services.parse()?, bpf_root.into(), cgroup.into());
    }
    let report = Report { json: args.json, seed: args.seed };
    for suite in args.suites {
        match suite {
            Suite::Dataplane => dataplane::run(&report, args.quick)?,
            Suite::Sync => sync::run(&report, args.quick)?,
            Suite::Cluster => cluster::run(&report, args.quick)?,
        }
    }
    Ok(())
}

/// Addresses with ports, separated by commas.
fn sockets(text: &str) -> Result<Vec<SocketAddr>> {
    text.split(',').map(|one| one.parse().with_context(|| format!("{one:?} is no address"))).collect()
}
