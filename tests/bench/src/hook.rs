//! What the hook in connect(2) costs.
//!
//! A socket is balanced as the cgroup says in which it was made. So one process makes one socket
//! in the cgroup of the data plane and one in a cgroup whose hook does nothing, and connects with
//! both in turn, in the same namespace, on the same processor: their difference is the program. The
//! sockets are UDP's: no packet, a route, and the hook. They stay the same, so that making and
//! closing them is not in the figure.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tests_e2e::lab;

use crate::place::one_processor;
use crate::row::{Report, median};
use crate::stage::Stage;
use crate::subject::{Plan, Subject};
use crate::worker::{Worker, udp_socket};
use crate::{asm, bpf};

const CHUNK: u32 = 200;
const CHUNKS: usize = 150;

/// Measures the hook with so many services, one of them in use.
pub fn run(report: &Report, plan: &Plan, services: usize) -> Result<()> {
    let stage = Stage::new(Subject::Hawser, services, false)?;
    let (place, vip, backend) = stage.hook();
    let cgroup = place.cgroup.clone().context("the node has no cgroup")?;
    let empty = Cgroup::new(&cgroup)?;
    let program = bpf::load(bpf::CONNECT4, &asm::constant(1)).context("cannot load an empty hook")?;
    let _link = bpf::attach_cgroup(program.as_fd(), bpf::CONNECT4, &empty.0)
        .with_context(|| format!("cannot attach to {}", empty.0.display()))?;
    let (cgroup, empty) = (cgroup.display().to_string(), empty.0.display().to_string());
    let args = ["hook", &vip.to_string(), &backend.to_string(), &cgroup, &empty];
    let mut worker = Worker::start(&place, &args)?;
    let mut rounds = Vec::new();
    for _ in 0..plan.choose(9, 31) {
        rounds.push(worker.ask("more")?.first().copied().context("the worker gave no number")?);
    }
    report.row(
        "dataplane",
        &format!("connect_hook/services={services}"),
        "hawser",
        ("seconds", "seconds"),
        &rounds,
    )
}

/// A cgroup of its own beside the data plane's.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(beside: &Path) -> Result<Self> {
        let name = beside.file_name().context("a cgroup has a name")?.to_string_lossy();
        let path = lab::unified()?.join(format!("{name}-empty"));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that is about to end may still be in it; then it stays, empty.
        let _ = fs::remove_dir(&self.0);
    }
}

/// The process with both sockets; answers each line with the seconds that the hook takes.
pub fn worker(vip: &str, backend: &str, cgroup: &str, empty: &str) -> Result<()> {
    one_processor()?;
    let (vip, backend): (SocketAddr, SocketAddr) = (vip.parse()?, backend.parse()?);
    let without = socket_in(empty)?;
    let with = socket_in(cgroup)?;
    connect(&with, vip)?;
    let peer = with.peer_addr().context("the socket has no peer")?;
    ensure!(peer == vip, "the peer is {peer}, not {vip}: the hook does not work");
    println!("ok");
    for line in std::io::stdin().lines() {
        line.context("cannot read what to do")?;
        let mut differences = Vec::new();
        for _ in 0..CHUNKS {
            let (baseline, subject) = (chunk(&without, backend)?, chunk(&with, vip)?);
            differences.push(subject - baseline);
        }
        println!("ok {}", median(&differences));
    }
    Ok(())
}

fn socket_in(cgroup: &str) -> Result<UdpSocket> {
    let file = Path::new(cgroup).join("cgroup.procs");
    fs::write(&file, "0").with_context(|| format!("cannot write to {}", file.display()))?;
    udp_socket()
}

fn connect(socket: &UdpSocket, target: SocketAddr) -> Result<()> {
    socket.connect(target).with_context(|| format!("cannot connect to {target}"))
}

/// Mean seconds of a connect.
fn chunk(socket: &UdpSocket, target: SocketAddr) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..CHUNK {
        connect(socket, target)?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(CHUNK))
}
