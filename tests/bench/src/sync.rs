//! The suite `sync`: how long the tables take to follow, and what the agent weighs.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use tests_e2e::{Lab, output};
use userspace_dataplane::tables::DataPlane;
use userspace_dataplane::{Kernel, XdpMode, remove};

use crate::peers::{self, Service};
use crate::row::Report;
use crate::stage::{bpf_root, limits, open, service_tables, tables};

const SECONDS: (&str, &str) = ("seconds", "seconds");

/// Measures full programming, one change, restart, and memory; peers in the same run.
pub fn run(report: &Report, quick: bool) -> Result<()> {
    let (sizes, rounds): (&[usize], usize) =
        if quick { (&[1000, 10_000], 3) } else { (&[1000, 10_000, 50_000], 5) };
    for &size in sizes {
        let services = two_endpoints(size);
        let (mut full, mut change, mut restart) = (Vec::new(), Vec::new(), Vec::new());
        let (mut iptables, mut nftables) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            hawser(&services, &mut full, &mut change, &mut restart)?;
            iptables.push(peer(&services, "iptables-restore", &[], peers::iptables)?);
            // nft takes minutes for ten thousand services; the figure for a thousand tells enough.
            if size <= 1000 || !quick {
                nftables.push(peer(&services, "nft", &["-f", "-"], peers::nftables)?);
            }
        }
        let case = format!("full_program/services={size}/endpoints=2");
        report.row("sync", &case, "hawser", SECONDS, &full)?;
        report.row("sync", &case, "iptables", SECONDS, &iptables)?;
        if !nftables.is_empty() {
            report.row("sync", &case, "nftables", SECONDS, &nftables)?;
        }
        report.row("sync", &format!("one_change/services={size}"), "hawser", SECONDS, &change)?;
        report.row("sync", &format!("restart/services={size}"), "hawser", SECONDS, &restart)?;
        let case = format!("agent_memory/services={size}/endpoints=2");
        report.row("sync", &case, "hawser", ("bytes", "bytes"), &[memory(size)?])?;
    }
    Ok(())
}

fn two_endpoints(count: usize) -> Vec<Service> {
    (0..count)
        .map(|i| {
            let (high, low) = (i / 250, i % 250 + 1);
            Service {
                vip: format!("10.{}.{}.{low}", 96 + high / 250, high % 250),
                port: 80,
                protocol: "tcp",
                external: false,
                backends: vec![
                    format!("10.{}.{}.{low}:8080", 128 + high / 250, high % 250),
                    format!("10.{}.{}.{low}:8080", 160 + high / 250, high % 250),
                ],
            }
        })
        .collect()
}

fn hawser(
    services: &[Service],
    full: &mut Vec<f64>,
    change: &mut Vec<f64>,
    restart: &mut Vec<f64>,
) -> Result<()> {
    let lab = Lab::new()?;
    let desired = tables(services);
    let outcome = (|| {
        let mut kernel = open(&lab, XdpMode::Off)?;
        full.push(timed(|| kernel.apply_full(&desired).context("cannot program the tables"))?);
        let mut one = service_tables(&services[services.len() / 2]);
        for frontend in &mut one.frontends {
            frontend.backends.truncate(1);
        }
        let name = format!("bench/service-{}", services.len() / 2);
        change.push(timed(|| kernel.apply_service(&name, Some(&one)).context("cannot change one service"))?);
        kernel.apply_full(&desired).context("cannot restore the tables")?;
        drop(kernel);
        // Adoption: programs loaded, tables read back, and nothing to write.
        restart.push(timed(|| {
            let applied =
                open(&lab, XdpMode::Off)?.apply_full(&desired).context("cannot adopt the tables")?;
            anyhow::ensure!(applied.frontends_written == 0, "adoption wrote {applied:?}");
            Ok(applied)
        })?);
        Ok(())
    })();
    remove(&bpf_root(&lab)).context("cannot remove the pins")?;
    outcome
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn peer(services: &[Service], program: &str, args: &[&str], rules: fn(&[Service]) -> String) -> Result<f64> {
    let lab = Lab::new()?;
    let text = rules(services);
    timed(|| peers::load(lab.on_node(program).args(args), &text))
}

/// Resident memory of a process that holds the tables.
fn memory(services: usize) -> Result<f64> {
    let lab = Lab::new()?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let outcome = output(
        lab.on_node(program).arg("--agent").arg(services.to_string()).arg(bpf_root(&lab)).arg(lab.cgroup()),
    );
    remove(&bpf_root(&lab)).context("cannot remove the pins")?;
    let text = outcome?;
    text.trim().parse().with_context(|| format!("the agent printed {text:?}"))
}

/// Programs so many services and prints the growth of resident memory in bytes.
pub fn agent(services: usize, bpf_root: PathBuf, cgroup: PathBuf) -> Result<()> {
    let before = resident()?;
    let config = userspace_dataplane::Config {
        bpf_root,
        cgroup,
        limits: limits(),
        xdp: XdpMode::Off,
        xdp_redirect: false,
    };
    let mut kernel = Kernel::open(config).context("cannot open the data plane")?;
    kernel.apply_full(&tables(&two_endpoints(services))).context("cannot program the tables")?;
    println!("{}", resident()? - before);
    Ok(())
}

fn resident() -> Result<f64> {
    crate::cluster::resident(std::process::id())
}
