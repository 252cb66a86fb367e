//! The cost of the hook in connect(2).
//!
//! A socket is balanced according to the cgroup in which it was created. So one process creates one socket in
//! the cgroup of the data plane and one in a cgroup with an empty hook, and connects with both alternately,
//! in the same namespace and on the same CPU; the difference is the cost of the program. The sockets are UDP
//! sockets, so that a connect involves no packets, only a route lookup and the hook. They are reused, so that
//! creating and closing them is not measured.

use std::cell::RefCell;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tests_e2e::lab;

use crate::place::one_processor;
use crate::row::{Report, median};
use crate::stage::Stage;
use crate::subject::{Plan, Subject, in_turn};
use crate::worker::{Worker, udp_socket};
use crate::{asm, bpf};

const CHUNK: u32 = 200;
const CHUNKS: usize = 150;

/// Measures the hook with different numbers of services, one of them in use, alternately, so that external
/// influences affect all of them equally.
pub fn run(report: &Report, plan: &Plan, sizes: &[usize]) -> Result<()> {
    let subjects: Result<Vec<Hooked>> = sizes.iter().map(|size| Hooked::new(*size)).collect();
    let subjects = subjects?;
    let turns = in_turn(&subjects, plan.choose(9, 31), Hooked::turn)?;
    let cases: Vec<String> = sizes.iter().map(|size| format!("connect_hook/services={size}")).collect();
    report.sizes(&cases, sizes, &turns)
}

/// A data plane, an empty hook beside it, and the process that uses both.
struct Hooked {
    worker: RefCell<Worker>,
    // Dropped in this order, and needed until then.
    _link: OwnedFd,
    _empty: Cgroup,
    _stage: Stage,
}

impl Hooked {
    fn new(services: usize) -> Result<Self> {
        let stage = Stage::new(Subject::Hawser, services, false)?;
        let (place, vip, backend) = stage.hook();
        let cgroup = place.cgroup.clone().context("the node has no cgroup")?;
        let empty = Cgroup::new(&cgroup)?;
        let program = bpf::load(bpf::CONNECT4, &asm::constant(1)).context("cannot load an empty hook")?;
        let link = bpf::attach_cgroup(program.as_fd(), bpf::CONNECT4, &empty.0)
            .with_context(|| format!("cannot attach to {}", empty.0.display()))?;
        let (cgroup, without) = (cgroup.display().to_string(), empty.0.display().to_string());
        let args = ["hook", &vip.to_string(), &backend.to_string(), &cgroup, &without];
        let worker = RefCell::new(Worker::start(&place, &args)?);
        Ok(Self { worker, _link: link, _empty: empty, _stage: stage })
    }

    /// Returns the seconds that the hook takes.
    fn turn(&self) -> Result<f64> {
        let answer = self.worker.borrow_mut().ask("more")?;
        answer.first().copied().context("the worker gave no number")
    }
}

/// A cgroup beside the data plane's.
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
        // A process that is about to end may still be in it; then the cgroup stays behind.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Runs the process with both sockets, which answers each line with the seconds that the hook takes.
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

/// Returns the mean seconds of a connect.
fn chunk(socket: &UdpSocket, target: SocketAddr) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..CHUNK {
        connect(socket, target)?;
    }
    Ok(start.elapsed().as_secs_f64() / f64::from(CHUNK))
}
