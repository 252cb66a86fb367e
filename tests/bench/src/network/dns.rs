//! Queries a second of the cluster's DNS server, and its memory: the real `hawser dns` with a real API server.

use anyhow::{Context, Result};
use tests_e2e::{Lab, eventually};

use crate::cluster::memory;
use crate::place::Place;
use crate::row::{Metric, Report};
use crate::running::{Running, api_server};
use crate::subject::Plan;
use crate::worker::Worker;

const RATE: Metric = ("per_second", "per_second");
const P50: Metric = ("p50_seconds", "seconds");
const P99: Metric = ("p99_seconds", "seconds");
const BYTES: Metric = ("bytes", "bytes");
const LOST: Metric = ("lost", "count");
/// Address on which the server listens.
const SERVER: &str = "127.0.0.1:1053";

/// Measures the server with different numbers of services.
pub fn run(report: &Report, plan: &Plan) {
    for services in plan.sizes(&[10_000], &[1, 10_000]) {
        let case = format!("dns_queries/services={services}");
        if plan.has(&case) {
            report.attempt(&case, || measure(report, plan, &case, services));
        }
    }
}

fn measure(report: &Report, plan: &Plan, case: &str, services: usize) -> Result<()> {
    let lab = Lab::new()?;
    let (_api_server, kubeconfig) = api_server(&lab)?;
    Worker::start(&Place::node(&lab), &["populate", &kubeconfig, &services.to_string(), "1"])?;
    let (address, port) = SERVER.split_once(':').context("not an address")?;
    let dns = Running::start(
        &lab,
        "dns",
        &[
            "--kubeconfig",
            &kubeconfig,
            "--node-name",
            "bench-node",
            "--dns-bind-address",
            address,
            "--dns-port",
            port,
        ],
    )?;
    let count = services.to_string();
    let generator = || Worker::start(&Place::node(&lab), &["queries", SERVER, &count]);
    let mut generator = eventually("answers of the DNS server", || {
        let mut generator = generator()?;
        Ok(generator.ask("0.1").is_ok().then_some(generator))
    })
    .with_context(|| std::fs::read_to_string(lab.dir().join("dns.log")).unwrap_or_default())?;
    let (rounds, seconds) = plan.choose((5, 1.0), (15, 2.0));
    let turns: Result<Vec<Vec<f64>>> =
        (0..rounds).map(|_| generator.ask(&(seconds * plan.stretch).to_string())).collect();
    let turns = turns?;
    for (i, metric) in [RATE, P50, P99, LOST].into_iter().enumerate() {
        let column: Option<Vec<f64>> = turns.iter().map(|turn| turn.get(i).copied()).collect();
        report.row(
            "network",
            case,
            "hawser",
            metric,
            &column.context("the generator gave too few numbers")?,
        )?;
    }
    report.row("network", case, "hawser", BYTES, &[memory(dns.id(), "VmRSS:")?])
}
