//! What one run of the packet programs costs.
//!
//! A test run that is repeated gives the program its own output, and a translated packet is no
//! longer one for a service. So what is repeated here is a program of ours that writes a fresh
//! packet over the last one and goes on in the program under test by a tail call. The baseline is
//! the same program going on in one that does nothing. That a figure is of what its name says is
//! checked with the verdict and with the data plane's own counters.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use tests_e2e::Lab;
use userspace_dataplane::tables::DataPlane;
use userspace_dataplane::{Kernel, Program, XdpMode};

use crate::asm::{self, ACK, FRAME, Kind, SYN, Then, Traffic};
use crate::peers::{self, Service};
use crate::place::{self, in_namespace};
use crate::row::{Report, middle_mean};
use crate::subject::{Plan, Subject};
use crate::{bpf, node, north_south};

/// So many flows that each has been evicted by the time its turn comes again.
const NEW_FLOWS: u32 = 1 << 24;
const REDIRECT: u32 = 7;
const NEXT: u32 = u32::MAX;

/// What packets find in the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    /// No flow, no frontend.
    NotAService,
    /// A flow.
    Hit,
    /// A frontend and no flow: one is made.
    Miss,
}

impl Path {
    fn name(self) -> &'static str {
        match self {
            Self::NotAService => "not_a_service",
            Self::Hit => "hit_path",
            Self::Miss => "miss_path",
        }
    }
}

struct Case {
    path: Path,
    kind: Kind,
    services: u32,
    flows: u32,
}

impl Case {
    fn name(&self) -> String {
        let hook = if self.kind == Kind::Xdp { "xdp" } else { "tcx" };
        let path = self.path.name();
        match self.path {
            // Each packet has a flow of its own.
            Path::Miss => format!("{path}/services={}/hook={hook}", self.services),
            _ => format!("{path}/services={}/flows={}/hook={hook}", self.services, self.flows),
        }
    }

    fn traffic(&self) -> Traffic {
        let flags = if self.path == Path::Miss { SYN } else { ACK };
        let links = (north_south::NODE_LINK, north_south::CLIENT_LINK);
        let vip =
            if self.path == Path::NotAService { Ipv4Addr::new(10, 112, 0, 1) } else { peers::FIRST_VIP };
        let mut traffic = Traffic::new(Some(flags), 80, links, (self.flows, self.services), vip);
        if self.kind == Kind::Tcx {
            // Others than those whose flows the other program has left in the table.
            traffic.first_source = Ipv4Addr::new(198, 24, 0, 1);
        }
        traffic
    }

    /// How many chunks a round has, and runs a chunk. Short chunks leave out interruptions best, but
    /// before each call the kernel takes tens of milliseconds to make an XDP program's call a
    /// direct one, in which others use the caches: it gets few and long ones.
    fn chunks(&self) -> (usize, u32) {
        match (self.kind, self.path) {
            (Kind::Xdp, Path::Miss) => (5, 25_000),
            (Kind::Xdp, _) => (5, 100_000),
            (Kind::Tcx, Path::Miss) => (12, 10_000),
            (Kind::Tcx, _) => (20, 20_000),
        }
    }

    /// What the program under test must say.
    fn verdict(&self) -> u32 {
        match (self.kind, self.path) {
            (Kind::Xdp, Path::NotAService) => asm::XDP_PASS as u32,
            (Kind::Tcx, Path::NotAService) => NEXT,
            (Kind::Xdp, _) => asm::XDP_TX as u32,
            (Kind::Tcx, _) => REDIRECT,
        }
    }
}

/// Measures all paths of both programs.
pub fn run(report: &Report, plan: &Plan) {
    let paths: Vec<Path> = [Path::NotAService, Path::Hit, Path::Miss]
        .into_iter()
        .filter(|path| plan.has(path.name()) && plan.subjects.contains(&Subject::Hawser))
        .collect();
    if paths.is_empty() {
        return;
    }
    for services in plan.sizes(&[1, 100_000], &[1, 100, 10_000, 100_000]) {
        report.attempt(&format!("programs/services={services}"), || size(report, plan, services, &paths));
    }
}

fn size(report: &Report, plan: &Plan, services: usize, paths: &[Path]) -> Result<()> {
    // Enough backends in all for the source ports of a full table of translated flows.
    let tables = peers::external_services(services, "tcp", if services > 1000 { 3 } else { 20 });
    let lab = Lab::new()?;
    north_south::prepare(&lab)?;
    let outcome = in_namespace(&place::node_namespace(&lab), || {
        let bench = Bench::new(&lab, &tables)?;
        for path in paths {
            let flows: &[u32] = if *path == Path::Miss { &[NEW_FLOWS] } else { &[1, 100_000] };
            for flows in flows {
                bench.both(report, plan.choose(5, 15), (*path, services as u32, *flows));
            }
        }
        Ok(())
    });
    node::clear(&lab);
    outcome
}

/// The data plane, opened in a lab's node namespace.
struct Bench {
    kernel: Kernel,
    uplink: u32,
}

impl Bench {
    fn new(lab: &Lab, services: &[Service]) -> Result<Self> {
        let mut kernel = node::open(lab, node::limits(services.len()), XdpMode::Off)?;
        kernel.apply_full(&node::tables(services)).context("cannot program the tables")?;
        node::set_node(&mut kernel, north_south::NODE_ADDRESS)?;
        Ok(Self { kernel, uplink: place::interface("uplink")? })
    }

    fn both(&self, report: &Report, rounds: usize, (path, services, flows): (Path, u32, u32)) {
        for kind in [Kind::Xdp, Kind::Tcx] {
            let case = Case { path, kind, services, flows };
            let name = case.name();
            report.attempt(&name, || {
                let seconds = self.measure(&case, rounds)?;
                report.row("dataplane", &name, "hawser", ("seconds", "seconds"), &seconds)
            });
        }
    }

    fn measure(&self, case: &Case, rounds: usize) -> Result<Vec<f64>> {
        let under_test = self.kernel.program(match case.kind {
            Kind::Xdp => Program::UplinkXdp,
            Kind::Tcx => Program::PodIngress,
        });
        let nothing = bpf::load(case.kind.of(), &asm::constant(asm::XDP_PASS))?;
        let baseline = Wrapped::new(case, nothing.as_fd(), self.uplink)?;
        let subject = Wrapped::new(case, under_test, self.uplink)?;
        // Every flow once, or the table full of flows that will not come again.
        let (chunks, length) = case.chunks();
        let warm = if case.path == Path::Miss { 1 << 18 } else { case.flows.max(length) };
        subject.run(warm)?;
        if case.path == Path::Hit {
            // The second time all of them are known, and their way.
            subject.run(warm)?;
        }
        baseline.run(warm)?;
        let before = self.flows_created()?;
        let verdict = subject.run(1)?.verdict;
        ensure!(verdict == case.verdict(), "the verdict is {verdict}, not {}", case.verdict());
        let (mut runs, mut seconds) = (1, Vec::new());
        for _ in 0..rounds {
            let (mut with, mut without) = (Vec::new(), Vec::new());
            for _ in 0..chunks {
                without.push(f64::from(baseline.run(length)?.nanoseconds));
                with.push(f64::from(subject.run(length)?.nanoseconds));
                runs += u64::from(length);
            }
            seconds.push((middle_mean(&with) - middle_mean(&without)) * 1e-9);
        }
        let created = self.flows_created()? - before;
        // Sets of slots are not filled alike: a few flows may have to go, and come again.
        let as_meant = match case.path {
            Path::Miss => created * 1000 >= runs * 999,
            _ => created * 1000 <= runs,
        };
        ensure!(as_meant, "{created} flows were made in {runs} runs");
        Ok(seconds)
    }

    fn flows_created(&self) -> Result<u64> {
        let metrics = self.kernel.inspector()?.metrics()?;
        metrics.get("flow_created").copied().context("there is no counter of flows")
    }
}

/// A program behind the one that writes its packets.
struct Wrapped {
    program: OwnedFd,
    context: Vec<u8>,
    packet: [u8; FRAME],
    /// Empties itself when the last descriptor is closed.
    _programs: OwnedFd,
}

impl Wrapped {
    fn new(case: &Case, behind: std::os::fd::BorrowedFd<'_>, interface: u32) -> Result<Self> {
        let programs = bpf::program_array()?;
        bpf::set_program(programs.as_fd(), behind).context("cannot put the program behind the wrapper")?;
        let (counter, traffic) = (bpf::counter()?, case.traffic());
        let code = asm::fill(case.kind, &traffic, counter.as_fd(), &Then::TailCall(programs.as_fd()));
        let program = bpf::load(case.kind.of(), &code).context("cannot load the wrapper")?;
        let context = match case.kind {
            Kind::Xdp => bpf::xdp_context(FRAME, interface),
            Kind::Tcx => bpf::skb_context(interface),
        };
        Ok(Self { program, context, packet: traffic.frame, _programs: programs })
    }

    fn run(&self, repeat: u32) -> Result<bpf::Run> {
        bpf::run(self.program.as_fd(), &self.packet, &self.context, repeat).context("cannot run the program")
    }
}
