//! The cost of one run of the packet programs.
//!
//! A repeated test run passes a program its own output, and a translated packet no longer goes to a service.
//! So the program that is repeated is one of ours, which overwrites the packet with a fresh one and
//! tail-calls the program under test. The baseline is the same program with a tail call to one that does
//! nothing. The verdict and the data plane's own counters are used to check that a figure measures what its
//! name says.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use tests_e2e::Lab;
use userspace_dataplane::DataPlane;
use userspace_dataplane::{Kernel, Program, XdpMode};

use crate::asm::{self, ACK, FRAME, Kind, SYN, Then, Traffic};
use crate::peers;
use crate::place::{self, in_namespace};
use crate::row::{Report, interquartile_mean};
use crate::subject::{Plan, Subject, in_turn};
use crate::{bpf, node, north_south};

/// Number of flows that is large enough that each has been evicted by its next turn.
const NEW_FLOWS: u32 = 1 << 24;
const REDIRECT: u32 = 7;
const NEXT: u32 = u32::MAX;

/// Path of the packets through the tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Path {
    /// Neither a flow nor a frontend.
    NotAService,
    /// An existing flow.
    Hit,
    /// A frontend but no flow: one is created.
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

fn hook(kind: Kind) -> &'static str {
    if kind == Kind::Xdp { "xdp" } else { "tcx" }
}

struct Case {
    path: Path,
    kind: Kind,
    services: u32,
    flows: u32,
}

impl Case {
    fn name(&self) -> String {
        let hook = hook(self.kind);
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
            // Different from those whose flows the other program has left in the table.
            traffic.first_source = Ipv4Addr::new(198, 24, 0, 1);
        }
        traffic
    }

    /// Returns the number of chunks in a round, and of runs in a chunk. Short chunks avoid interruptions
    /// best, but before each call the kernel spends tens of milliseconds to make the call of an XDP program a
    /// direct one, during which the caches are used by others: XDP gets few and long chunks.
    fn chunks(&self) -> (usize, u32) {
        match (self.kind, self.path) {
            (Kind::Xdp, Path::Miss) => (5, 25_000),
            (Kind::Xdp, _) => (5, 100_000),
            (Kind::Tcx, Path::Miss) => (12, 10_000),
            (Kind::Tcx, _) => (20, 20_000),
        }
    }

    /// Returns the verdict that the program under test must return.
    fn verdict(&self) -> u32 {
        match (self.kind, self.path) {
            (Kind::Xdp, Path::NotAService) => asm::XDP_PASS as u32,
            (Kind::Tcx, Path::NotAService) => NEXT,
            (Kind::Xdp, _) => asm::XDP_TX as u32,
            (Kind::Tcx, _) => REDIRECT,
        }
    }
}

/// Measures all paths of both programs, alternating between numbers of services, so that external influences
/// affect all of them equally.
pub fn run(report: &Report, plan: &Plan) {
    let paths: Vec<Path> = [Path::NotAService, Path::Hit, Path::Miss]
        .into_iter()
        .filter(|path| plan.has(path.name()) && plan.subjects.contains(&Subject::Hawser))
        .collect();
    if paths.is_empty() {
        return;
    }
    report.attempt("programs", || {
        let sizes = plan.sizes(&[1, 100_000], &[1, 100, 10_000, 100_000]);
        let benches: Result<Vec<Bench>> = sizes.into_iter().map(Bench::new).collect();
        let (benches, rounds) = (benches?, plan.choose(5, 15));
        for path in paths {
            let flows: &[u32] = if path == Path::Miss { &[NEW_FLOWS] } else { &[1, 100_000] };
            for flows in flows {
                for kind in [Kind::Xdp, Kind::Tcx] {
                    let name = format!("{}/hook={}", path.name(), hook(kind));
                    report.attempt(&name, || measure(report, &benches, rounds, (path, kind, *flows)));
                }
            }
        }
        Ok(())
    });
}

fn measure(
    report: &Report,
    benches: &[Bench],
    rounds: usize,
    (path, kind, flows): (Path, Kind, u32),
) -> Result<()> {
    let prepared: Result<Vec<Prepared>> = benches
        .iter()
        .map(|bench| Prepared::new(bench, Case { path, kind, services: bench.services, flows }))
        .collect();
    let prepared = prepared?;
    let turns = in_turn(&prepared, rounds, Prepared::turn)?;
    let names: Vec<String> = prepared.iter().map(|prepared| prepared.case.name()).collect();
    for prepared in &prepared {
        prepared.check_flows()?;
    }
    let sizes: Vec<usize> = benches.iter().map(|bench| bench.services as usize).collect();
    report.sizes(&names, &sizes, &turns)
}

/// The data plane, opened in the network namespace of a lab's node.
struct Bench {
    /// `None` once it is about to be dropped.
    kernel: Option<Kernel>,
    uplink: u32,
    services: u32,
    lab: Lab,
}

impl Bench {
    fn new(services: usize) -> Result<Self> {
        // Enough backends in total for the source ports of a full table of translated flows.
        let tables = peers::external_services(services, "tcp", if services > 1000 { 3 } else { 20 });
        let lab = Lab::new()?;
        north_south::prepare(&lab)?;
        let mut this = Self { kernel: None, uplink: 0, services: services as u32, lab };
        let (kernel, uplink) = in_namespace(&place::node_namespace(&this.lab), || {
            let mut kernel = node::open(&this.lab, node::limits(services), XdpMode::Off)?;
            kernel.apply_full(&node::tables(&tables)).context("cannot program the tables")?;
            node::set_node(&mut kernel, north_south::NODE_ADDRESS)?;
            Ok((kernel, place::interface("uplink")?))
        })?;
        (this.kernel, this.uplink) = (Some(kernel), uplink);
        Ok(this)
    }

    fn kernel(&self) -> Result<&Kernel> {
        self.kernel.as_ref().context("the data plane is closed")
    }

    fn flows_created(&self) -> Result<u64> {
        let metrics = self.kernel()?.inspector()?.metrics()?;
        metrics.get("flow_created").copied().context("there is no counter of flows")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.kernel = None;
        node::clear(&self.lab);
    }
}

/// One warmed-up case on one data plane.
struct Prepared<'a> {
    bench: &'a Bench,
    case: Case,
    baseline: Wrapped,
    subject: Wrapped,
    /// Number of flows that existed before.
    before: u64,
    runs: Cell<u64>,
}

impl<'a> Prepared<'a> {
    fn new(bench: &'a Bench, case: Case) -> Result<Self> {
        let under_test = bench.kernel()?.program(match case.kind {
            Kind::Xdp => Program::UplinkXdp,
            Kind::Tcx => Program::PodIngress,
        });
        let nothing = bpf::load(case.kind.of(), &asm::constant(asm::XDP_PASS))?;
        let baseline = Wrapped::new(&case, nothing.as_fd(), bench.uplink)?;
        let subject = Wrapped::new(&case, under_test, bench.uplink)?;
        // Send every flow once, or fill the table with flows that will not come again.
        let (_, length) = case.chunks();
        let warm = if case.path == Path::Miss { 1 << 18 } else { case.flows.max(length) };
        // In the second pass all flows and their path are known.
        let times = if case.path == Path::Hit { 2 } else { 1 };
        in_namespace(&place::node_namespace(&bench.lab), || {
            for _ in 0..times {
                subject.run(warm)?;
            }
            baseline.run(warm)
        })?;
        let before = bench.flows_created()?;
        let verdict =
            in_namespace(&place::node_namespace(&bench.lab), || subject.run(1).map(|run| run.verdict))?;
        ensure!(verdict == case.verdict(), "the verdict is {verdict}, not {}", case.verdict());
        Ok(Self { bench, case, baseline, subject, before, runs: Cell::new(1) })
    }

    /// Returns the mean seconds of a run, less the baseline.
    fn turn(&self) -> Result<f64> {
        let (chunks, length) = self.case.chunks();
        let (baseline, subject) = (&self.baseline, &self.subject);
        let (with, without) = in_namespace(&place::node_namespace(&self.bench.lab), || {
            let (mut with, mut without) = (Vec::new(), Vec::new());
            for _ in 0..chunks {
                without.push(f64::from(baseline.run(length)?.nanoseconds));
                with.push(f64::from(subject.run(length)?.nanoseconds));
            }
            Ok((with, without))
        })?;
        self.runs.set(self.runs.get() + chunks as u64 * u64::from(length));
        Ok((interquartile_mean(&with) - interquartile_mean(&without)) * 1e-9)
    }

    /// Checks that the path has created the expected number of flows.
    fn check_flows(&self) -> Result<()> {
        let (created, runs) = (self.bench.flows_created()? - self.before, self.runs.get());
        // Hash sets are not filled evenly: a few flows may be evicted and created again.
        let as_meant = match self.case.path {
            Path::Miss => created * 1000 >= runs * 999,
            _ => created * 1000 <= runs,
        };
        ensure!(as_meant, "{}: {created} flows were made in {runs} runs", self.case.name());
        Ok(())
    }
}

/// A program behind the one that writes its packets.
struct Wrapped {
    program: OwnedFd,
    context: Vec<u8>,
    packet: [u8; FRAME],
    /// The array is emptied when its last descriptor is closed.
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
