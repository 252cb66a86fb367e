//! The programs behind `cargo xtask bench`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "rows are printed")]
#![allow(clippy::cast_precision_loss, reason = "counts become figures")]

mod api;
mod asm;
mod bpf;
mod cluster;
mod conntrack;
mod controllers;
mod hook;
mod memory;
mod network;
mod node;
mod north_south;
mod objects;
mod page;
mod peers;
mod place;
mod plot;
mod programs;
mod row;
mod running;
mod scheduler;
mod sockets;
mod stage;
mod subject;
mod sync;
mod wire;
mod worker;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};

use crate::row::Report;
use crate::subject::{Plan, SUBJECTS, Subject};

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

#[derive(Parser)]
struct Args {
    suites: Vec<Suite>,
    /// Append the rows to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draw the rows of the file as SVG charts into this directory
    #[arg(long, requires = "json")]
    plot: Option<PathBuf>,
    /// Write the rows of the file into the tables of this page
    #[arg(long, requires = "json")]
    page: Option<PathBuf>,
    /// Small sizes and few repeats
    #[arg(long)]
    quick: bool,
    /// Run only cases whose names begin with one of these: `connect_rate,xdp`
    #[arg(long, value_delimiter = ',')]
    cases: Vec<String>,
    /// Measure only these subjects
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = SUBJECTS)]
    subjects: Vec<Subject>,
    /// Numbers of services, or of pods, in place of a case's own
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Factor by which turns are longer, for slow machines
    #[arg(long, default_value_t = 1.0)]
    stretch: f64,
    /// Identifier of the run, which is written into the rows
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run as a worker process of a benchmark (internal)
    #[arg(long, hide = true, num_args = 1.., value_name = "WORK")]
    worker: Vec<String>,
}

fn main() -> Result<()> {
    let Args { suites, json, plot, page, quick, cases, subjects, sizes, stretch, seed, worker } =
        Args::parse();
    if !worker.is_empty() {
        return work(&worker.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let plan = Plan { quick, cases, subjects, sizes, stretch };
    let report = Report::new(json.clone(), seed);
    for suite in suites {
        match suite {
            Suite::Dataplane => {
                programs::run(&report, &plan);
                north_south::run(&report, &plan);
                sockets::run(&report, &plan);
            }
            Suite::Sync => sync::run(&report, &plan),
            Suite::Apiserver => api::run(&report, &plan),
            Suite::Cluster => report.attempt("cluster", || cluster::run(&report, &plan)),
            Suite::Network => network::run(&report, &plan),
            Suite::Controllers => controllers::run(&report, &plan),
            Suite::Scheduler => scheduler::run(&report, &plan),
        }
    }
    let rows = || row::read(json.as_deref().context("no file of rows was given")?);
    if let Some(directory) = plot {
        plot::write(&rows()?, &directory)?;
    }
    if let Some(file) = page {
        page::write(&rows()?, &file)?;
    }
    report.end()
}

/// Runs the work of a worker process.
fn work(args: &[&str]) -> Result<()> {
    match args {
        ["serve", addresses] => worker::serve(&worker::sockets(addresses)?),
        ["client"] => worker::client(),
        ["hook", vip, backend, cgroup, empty] => hook::worker(vip, backend, cgroup, empty),
        ["populate", kubeconfig, services, endpoints] => {
            memory::populate(kubeconfig, services.parse()?, endpoints.parse()?)
        }
        ["queries", server, services] => network::dns_load(server, services.parse()?),
        ["readiness", kubeconfig, pod, service, dns] => {
            network::readiness_rounds(kubeconfig, pod, service, dns)
        }
        ["echo", directory, bytes] => api::echo(directory, bytes.parse()?),
        ["fill", directory, from, to] => api::fill(directory, from.parse()?, to.parse()?),
        ["scheduler-memory", pods] => scheduler::hold(pods.parse()?),
        ["fill-workloads", directory, pods] => controllers::fill(directory, pods.parse()?),
        ["lists", directory, pods, rounds] => {
            api::lists_in_process(directory, pods.parse()?, rounds.parse()?)
        }
        other => bail!("there is no work {other:?}"),
    }
}
