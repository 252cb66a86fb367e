//! Packets from another host to a service whose backends are on yet another one: in through the
//! node's uplink and out of it again.
//!
//! ```text
//!   client's namespace          node's namespace
//!     generator ──▶ eth0 ───────▶ uplink ─┐ translated by the subject
//!          sink ◀── eth0 ◀─────── uplink ◀┘
//! ```
//! The other host is client and backend in one. Its generator makes frames in a test run that
//! sends them, its sink counts frames to the backends' port, so that only what was translated
//! counts, and drops them. Both ends of the pair have an XDP program in any case, as frames that
//! did not come from a stack need that. All of it runs on one processor: the rate is the inverse
//! of what a packet costs from end to end.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tests_e2e::Lab;
use userspace_dataplane::XdpMode;
use userspace_dataplane::tables::{DataPlane, Interface, Role};

use crate::asm::{self, FRAME, Kind, Then, Traffic};
use crate::bpf;
use crate::peers::{self, Service};
use crate::row::Report;
use crate::stage::{self, SUBJECTS, Subject, in_namespace, in_turn, on_client, on_node};

pub const NODE_LINK: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub const CLIENT_LINK: [u8; 6] = [2, 0, 0, 0, 1, 2];
pub const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Frames of one system call.
const CHUNK: u32 = 1 << 14;

/// Measures packets per second.
pub fn run(report: &Report, quick: bool) -> Result<()> {
    // Services, backends each, flows.
    let (cases, rounds, seconds): (&[(usize, usize, &[u32])], usize, f64) = if quick {
        (&[(1, 8, &[1, 8192]), (1000, 4, &[8192])], 5, 0.5)
    } else {
        (&[(1, 8, &[1, 8192, 1 << 17]), (1000, 4, &[8192, 1 << 17]), (10_000, 2, &[1 << 17])], 9, 2.0)
    };
    for (count, backends, flows) in cases {
        let services = peers::external_services(*count, *backends);
        let wires = SUBJECTS.map(|subject| Wire::new(subject, &services));
        let wires = wires.into_iter().collect::<Result<Vec<_>>>()?;
        for flows in *flows {
            let rates = in_turn(&wires, rounds, |wire| {
                wire.measure(*flows, *count as u32, seconds)
                    .with_context(|| format!("packets through {}", wire.subject.name()))
            })?;
            let case = format!("xdp_north_south/services={count}/flows={flows}");
            for (wire, rates) in wires.iter().zip(&rates) {
                let metric = ("packets_per_second", "per_second");
                report.row("dataplane", &case, wire.subject.name(), metric, rates)?;
            }
        }
    }
    Ok(())
}

/// Link addresses, routes and neighbours as the traffic wants them.
pub fn prepare(lab: &Lab) -> Result<()> {
    let link = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    on_client(lab, &format!("ip link set eth0 address {}", link(CLIENT_LINK)))?;
    for line in [
        format!("ip link set uplink address {}", link(NODE_LINK)),
        "ip route add default via 192.0.2.2 dev uplink".to_owned(),
        format!("ip neigh replace 192.0.2.2 lladdr {} dev uplink nud permanent", link(CLIENT_LINK)),
        "sysctl -qw net.ipv4.ip_forward=1".to_owned(),
        // In and out by the same interface is meant so.
        "sysctl -qw net.ipv4.conf.all.send_redirects=0".to_owned(),
        "sysctl -qw net.ipv4.conf.uplink.send_redirects=0".to_owned(),
        "sysctl -qw net.ipv4.conf.all.rp_filter=0".to_owned(),
        "sysctl -qw net.ipv4.conf.uplink.rp_filter=0".to_owned(),
    ] {
        on_node(lab, &line)?;
    }
    Ok(())
}

/// A subject between its generator and its sink.
struct Wire {
    subject: Subject,
    counted: OwnedFd,
    /// Programs stay on their interfaces as long as these do.
    _links: Vec<OwnedFd>,
    lab: Lab,
}

impl Wire {
    fn new(subject: Subject, services: &[Service]) -> Result<Self> {
        let counted = bpf::counter()?;
        let mut wire = Self { subject, counted, _links: Vec::new(), lab: Lab::new()? };
        prepare(&wire.lab)?;
        // Without translation, frames come back as they went.
        let port = if subject == Subject::Limit { 80 } else { 8080 };
        let sink = bpf::load(Kind::Xdp, &asm::sink(port, wire.counted.as_fd()))?;
        wire._links.push(attach(&stage::client_namespace(&wire.lab), "eth0", &sink)?);
        let node = stage::node_namespace(&wire.lab);
        match subject {
            Subject::Limit => {
                wire._links.push(attach(&node, "uplink", &bpf::load(Kind::Xdp, &asm::reflect())?)?);
            }
            Subject::Hawser => in_namespace(&node, || hawser(&wire.lab, services))?,
            Subject::Iptables | Subject::Nftables => {
                let pass = bpf::load(Kind::Xdp, &asm::constant(asm::XDP_PASS))?;
                wire._links.push(attach(&node, "uplink", &pass)?);
            }
        }
        stage::load_rules(subject, &wire.lab, services)?;
        Ok(wire)
    }

    /// Frames per second that reach the sink, as long as the generator runs.
    fn measure(&self, flows: u32, services: u32, seconds: f64) -> Result<f64> {
        in_namespace(&stage::client_namespace(&self.lab), || {
            one_processor()?;
            let links = (NODE_LINK, CLIENT_LINK);
            let traffic = Traffic::new(None, 80, links, (flows, services), peers::FIRST_VIP);
            let next = bpf::counter()?;
            let code = asm::fill(Kind::Xdp, &traffic, next.as_fd(), &Then::Return(asm::XDP_TX));
            let generator = bpf::load(Kind::Xdp, &code)?;
            let context = bpf::xdp_context(FRAME, stage::interface("eth0")?);
            let send = |frames| {
                bpf::run_live(generator.as_fd(), &traffic.frame, &context, frames)
                    .context("cannot send frames")
            };
            // Every flow once, so that the rate is that of known ones.
            send(flows.max(CHUNK))?;
            let before = bpf::read_counter(self.counted.as_fd())?;
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs_f64(seconds) {
                send(CHUNK)?;
            }
            let counted = bpf::read_counter(self.counted.as_fd())? - before;
            let elapsed = start.elapsed().as_secs_f64();
            ensure!(counted > 0, "no frame came through, of {}", bpf::read_counter(next.as_fd())?);
            Ok(counted as f64 / elapsed)
        })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        stage::clear(&self.lab);
    }
}

/// Programs the data plane and attaches it to the uplink, as on a node whose device has XDP.
fn hawser(lab: &Lab, services: &[Service]) -> Result<()> {
    let mut kernel = stage::open(lab, XdpMode::Native)?;
    kernel.apply_full(&stage::tables(services)).context("cannot program the tables")?;
    kernel.set_node_addresses(&[IpAddr::from(NODE_ADDRESS)]).context("cannot set the node's address")?;
    let uplink = Interface { name: "uplink".into(), index: stage::interface("uplink")?, role: Role::Uplink };
    kernel.set_interfaces(&[uplink]).context("cannot attach to the uplink")
}

fn attach(namespace: &std::path::Path, name: &str, program: &OwnedFd) -> Result<OwnedFd> {
    in_namespace(namespace, || {
        bpf::attach_xdp(program.as_fd(), stage::interface(name)?)
            .with_context(|| format!("cannot attach to {name}"))
    })
}

/// Keeps this thread on the first processor that it may use.
fn one_processor() -> Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this).context("cannot ask for the processors")?;
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(first.context("there is no processor")?).context("cannot choose a processor")?;
    sched_setaffinity(this, &one).context("cannot stay on one processor")
}
