//! How long it takes to fill the kernel's tables, to change one service among many, and to find
//! everything again after a restart; and how much memory the process has then.
//!
//! `cargo run --release -p userspace-dataplane --example tables -- [SERVICES [ENDPOINTS]]`, as root.
#![allow(clippy::print_stdout, reason = "what it measures is what it prints")]

use std::error::Error;
use std::fs;
use std::net::IpAddr;
use std::time::Instant;

use userspace_dataplane::tables::{
    Backend, DataPlane, Frontend, FrontendKey, Protocol, Scope, ServiceTables, Tables,
};
use userspace_dataplane::{Config, Kernel, Limits, XdpMode, find_cgroup2, remove};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u32>());
    let services = arguments.next().transpose()?.unwrap_or(50_000);
    let endpoints = arguments.next().transpose()?.unwrap_or(2);
    let directory = tempfile::Builder::new().prefix("hawser-tables-").tempdir()?;
    let name = directory.path().file_name().ok_or("a name")?.to_owned();
    let cgroup = find_cgroup2().ok_or("no cgroup2 hierarchy is mounted")?.join(name);
    fs::create_dir(&cgroup)?;
    let root = directory.path().join("bpf");
    let config = Config {
        bpf_root: root.clone(),
        cgroup: cgroup.clone(),
        limits: Limits::default(),
        xdp: XdpMode::Off,
        xdp_redirect: false,
    };
    let result = measure(&config, services, endpoints);
    remove(&root)?;
    fs::remove_dir(&cgroup)?;
    result
}

fn measure(config: &Config, services: u32, endpoints: u32) -> Result<(), Box<dyn Error>> {
    let mut desired: Tables = (0..services)
        .map(|number| (format!("default/service-{number}"), service(number, endpoints, 0)))
        .collect();
    println!("resident with the desired tables: {:.1} MiB", resident()?);
    let mut kernel = Kernel::open(config.clone())?;
    println!("resident with the data plane open: {:.1} MiB", resident()?);
    let start = Instant::now();
    let applied = kernel.apply_full(&desired)?;
    println!("full program: {:.3} s, {applied:?}", start.elapsed().as_secs_f64());
    println!("resident: {:.1} MiB", resident()?);
    let start = Instant::now();
    kernel.apply_full(&desired)?;
    println!("full program, nothing to do: {:.3} s", start.elapsed().as_secs_f64());
    let mut changes: Vec<f64> = Vec::new();
    for round in 0..1_000_u32 {
        let number = round.wrapping_mul(7_919) % services;
        let changed = service(number, endpoints, 1 + round % 2);
        let name = format!("default/service-{number}");
        let start = Instant::now();
        kernel.apply_service(&name, Some(&changed))?;
        changes.push(start.elapsed().as_secs_f64());
        desired.insert(name, changed);
    }
    changes.sort_by(f64::total_cmp);
    println!("one change: median {:.1} µs, 99 % {:.1} µs", changes[500] * 1e6, changes[990] * 1e6);
    drop(kernel);
    let start = Instant::now();
    let mut kernel = Kernel::open(config.clone())?;
    println!("open again: {:.3} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let applied = kernel.apply_full(&desired)?;
    println!("adopt: {:.3} s, {applied:?}", start.elapsed().as_secs_f64());
    println!("resident: {:.1} MiB", resident()?);
    let start = Instant::now();
    kernel.apply_full(&Tables::new())?;
    println!("remove all: {:.3} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// One service with a mark and its address inside and outside.
fn service(number: u32, endpoints: u32, shift: u32) -> ServiceTables {
    let address = IpAddr::from((0x0a60_0000 + number).to_be_bytes());
    let key = |scope| FrontendKey { address, port: 80, protocol: Protocol::Tcp, scope };
    let backends: Vec<Backend> = (0..endpoints)
        .map(|endpoint| {
            let place = 0x0b00_0000 + (number * endpoints + endpoint) * 4 + shift;
            Backend::new(IpAddr::from(place.to_be_bytes()), 8_080, endpoint == 0)
        })
        .collect();
    let frontends = vec![
        Frontend::mark(address),
        Frontend::new(key(Scope::Internal), backends.clone()),
        Frontend::new(key(Scope::External), backends),
    ];
    ServiceTables { frontends, ..ServiceTables::default() }
}

/// Memory of this process in MiB.
fn resident() -> Result<f64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = status.split(' ').nth(1).ok_or("a number of pages")?.parse()?;
    Ok(pages * 4_096.0 / 1_048_576.0)
}
