//! The suite `sync`: the time until the tables follow a change, and their memory.
//!
//! The measured work is that of the proxy: objects are compiled, and differences are written. The transport
//! of the objects from the API server is not included.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tests_e2e::Lab;
use userspace_dataplane::DataPlane;
use userspace_dataplane::{Kernel, Limits, XdpMode};
use userspace_proxy::compile::{Desired, compile_service, rank};
use userspace_proxy::{Context, NodeView};

use crate::objects::{service, slice};
use crate::peers::{self, Service};
use crate::place::Place;
use crate::row::{Metric, Report, quantile};
use crate::subject::{Plan, Subject};
use crate::{bpf, memory, node};

const SECONDS: Metric = ("seconds", "seconds");
const P99: Metric = ("p99_seconds", "seconds");
const BYTES: Metric = ("bytes", "bytes");
const ENDPOINTS: usize = 2;
/// Number of single changes in a round.
const CHANGES: usize = 100;

/// Measures full programming, one change, restart, and memory; peers in the same run.
pub fn run(report: &Report, plan: &Plan) {
    let tables = ["full_program", "one_change", "restart", "map_memory"];
    if tables.iter().any(|case| plan.has(case)) {
        for size in plan.sizes(&[1000, 10_000], &[1000, 10_000, 50_000, 100_000]) {
            report.attempt(&format!("sync/services={size}"), || one_size(report, plan, size));
        }
    }
    if plan.has("agent_memory") && plan.subjects.contains(&Subject::Hawser) {
        memory::run(report, plan);
    }
}

fn one_size(report: &Report, plan: &Plan, size: usize) -> Result<()> {
    let objects = objects(size, ENDPOINTS)?;
    let services = peers::cluster_services(size, ENDPOINTS);
    let mut hawser = Times::default();
    let (mut iptables, mut nftables) = (Times::default(), Times::default());
    // iptables can hold as many services as hawser, but not translate their packets.
    let has = |subject| plan.subjects.contains(&subject);
    for round in 0..plan.choose(3, 5) {
        if has(Subject::Hawser) {
            measure(&objects, &mut hawser)?;
        }
        // Loading takes half a minute for a hundred thousand.
        if has(Subject::Iptables) && (size <= 10_000 || round < 2) {
            iptables_times(&services, &mut iptables)?;
        }
        // Loading takes half a minute for ten thousand.
        if has(Subject::Nftables) && Subject::Nftables.takes(size, plan.quick) && (size < 10_000 || round < 3)
        {
            nftables_times(&services, &mut nftables)?;
        }
    }
    let of = |case: &str| format!("{case}/services={size}/endpoints={ENDPOINTS}");
    for (subject, times) in
        [(Subject::Hawser, hawser), (Subject::Iptables, iptables), (Subject::Nftables, nftables)]
    {
        let Times { full, compile, change, restart, maps } = times;
        for (case, metric, values) in [
            (of("full_program"), SECONDS, full),
            (of("full_program"), ("compile_seconds", "seconds"), compile),
            (format!("one_change/services={size}"), P99, p99(&change)),
            (format!("one_change/services={size}"), SECONDS, change),
            (format!("restart/services={size}"), SECONDS, restart),
            (of("map_memory"), BYTES, maps),
        ] {
            let name = case.split('/').next().unwrap_or_default();
            if !values.is_empty() && plan.has(name) {
                report.row("sync", &case, subject.name(), metric, &values)?;
            }
        }
    }
    Ok(())
}

fn p99(values: &[f64]) -> Vec<f64> {
    if values.len() < CHANGES { Vec::new() } else { vec![quantile(values, 0.99)] }
}

/// Results of one subject, in seconds and bytes.
#[derive(Default)]
struct Times {
    full: Vec<f64>,
    /// Part of `full` until the tables are computed.
    compile: Vec<f64>,
    change: Vec<f64>,
    restart: Vec<f64>,
    maps: Vec<f64>,
}

type Objects = Vec<(v1::Service, EndpointSlice)>;

/// Returns services with cluster addresses, and their endpoints.
pub fn objects(count: usize, endpoints: usize) -> Result<Objects> {
    (0..count).map(|i| Ok((service(i, true)?, slice(i, endpoints)?))).collect()
}

fn compile_all(objects: &Objects, context: &Context) -> Desired {
    let mut desired = Desired::default();
    for (service, slice) in objects {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        desired.set(
            &format!("default/{name}"),
            rank(service),
            Some(compile_service(service, [slice], context)),
        );
    }
    desired
}

fn measure(objects: &Objects, times: &mut Times) -> Result<()> {
    let lab = Lab::new()?;
    let outcome = measure_in(&lab, objects, times);
    node::clear(&lab);
    outcome
}

fn measure_in(lab: &Lab, objects: &Objects, times: &mut Times) -> Result<()> {
    let context = Context { node: NodeView::named("node-1"), ..Context::default() };
    // Default map sizes of a node, as long as they suffice.
    let limits = if objects.len() > 50_000 { node::limits(objects.len()) } else { Limits::default() };
    let mut kernel = node::open(lab, limits, XdpMode::Off)?;
    let start = Instant::now();
    let mut desired = compile_all(objects, &context);
    let tables = desired.tables();
    times.compile.push(start.elapsed().as_secs_f64());
    kernel.apply_full(&tables).context("cannot program the tables")?;
    times.full.push(start.elapsed().as_secs_f64());
    changes(objects, &context, &mut desired, &mut kernel, times)?;
    times.maps.push(map_memory(&kernel.maps_directory())?);
    drop(kernel);
    // Adoption: programs are loaded, tables are read back, and nothing is written.
    let tables = desired.tables();
    let start = Instant::now();
    let mut kernel = node::open(lab, limits, XdpMode::Off)?;
    let applied = kernel.apply_full(&tables).context("cannot adopt the tables")?;
    times.restart.push(start.elapsed().as_secs_f64());
    ensure!(applied.frontends_written == 0, "adoption wrote {applied:?}");
    Ok(())
}

/// Measures the removal of endpoints of various services: from the arrival of the slice to the tables that
/// packets use.
fn changes(
    objects: &Objects,
    context: &Context,
    desired: &mut Desired,
    kernel: &mut Kernel,
    times: &mut Times,
) -> Result<()> {
    for change in 0..CHANGES {
        let (service, slice) = &objects[change * objects.len() / CHANGES];
        let mut slice = slice.clone();
        slice.endpoints.as_mut().and_then(Vec::pop).context("the slice has no endpoint")?;
        let name = format!("default/{}", service.metadata.name.as_deref().unwrap_or_default());
        let start = Instant::now();
        let effect = desired.set(&name, rank(service), Some(compile_service(service, [&slice], context)));
        ensure!(effect.changed.len() == 1, "{effect:?}");
        for name in &effect.changed {
            let tables = desired.effective(name);
            kernel.apply_service(name, tables.as_ref()).context("cannot change one service")?;
        }
        times.change.push(start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Returns the kernel memory of all maps that are pinned in a directory, in bytes.
fn map_memory(directory: &Path) -> Result<f64> {
    let mut sum = 0.0;
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let path = entry.context("cannot list maps")?.path();
        let map = bpf::pinned(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut text = String::new();
        fs::File::open(format!("/proc/self/fdinfo/{}", map.as_raw_fd()))
            .and_then(|mut file| file.read_to_string(&mut text))
            .context("cannot ask about a map")?;
        let memory = text.lines().find_map(|line| line.strip_prefix("memlock:"));
        let memory = memory.with_context(|| format!("no memory in {text:?}"))?;
        sum += memory.trim().parse::<f64>().context("not a number")?;
    }
    Ok(sum)
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn iptables_times(services: &[Service], times: &mut Times) -> Result<()> {
    let lab = Lab::new()?;
    let node = Place::node(&lab);
    let text = peers::iptables(services);
    let program = peers::iptables_restore();
    times.full.push(timed(|| peers::load(&mut node.command(program), &text))?);
    let mut service = services[services.len() / 2].clone();
    service.backends.truncate(1);
    let text = peers::iptables_change(services.len() / 2, &service);
    let mut change = node.command(program);
    times.change.push(timed(|| peers::load(change.arg("--noflush"), &text))?);
    Ok(())
}

fn nftables_times(services: &[Service], times: &mut Times) -> Result<()> {
    let lab = Lab::new()?;
    let node = Place::node(&lab);
    let text = peers::nftables(services);
    times.full.push(timed(|| peers::load(node.command("nft").args(["-f", "-"]), &text))?);
    let mut service = services[services.len() / 2].clone();
    service.backends.truncate(1);
    let text = peers::nftables_change(services.len() / 2, &service);
    times.change.push(timed(|| peers::load(node.command("nft").args(["-f", "-"]), &text))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_compile_to_their_tables() {
        let objects = objects(3, 2).unwrap();
        let context = Context { node: NodeView::named("node-1"), ..Context::default() };
        let tables = compile_all(&objects, &context).tables();
        assert_eq!(tables.len(), 3);
        let service = &tables["default/service-2"];
        assert!(service.frontends.iter().filter(|frontend| frontend.backends.len() == 2).count() >= 2);
    }
}
