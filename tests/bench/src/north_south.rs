//! Packets from another host to a service whose backends are on yet another one: in through the
//! node's uplink and out of it again.
//!
//! ```text
//!   client's namespace          node's namespace
//!     generator ──▶ eth0 ───────▶ uplink ─┐ translated by the subject
//!          sink ◀── eth0 ◀─────── uplink ◀┘
//! ```
//! The other host is client and backend in one. Its generator makes frames in a test run that
//! sends them, its sink counts frames from the node's address to the backends' port, so that only
//! what was translated counts, and drops them. Both ends of the pair have an XDP program in any case, as frames that
//! did not come from a stack need that. All of it runs on one processor: the rate is the inverse
//! of what a packet costs from end to end.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tests_e2e::Lab;
use userspace_dataplane::DataPlane;
use userspace_dataplane::XdpMode;
use userspace_dataplane::tables::{Interface, Role};

use crate::asm::{self, FRAME, Kind, Then, Traffic};
use crate::peers::{self, Service};
use crate::place::{self, Place, in_namespace, one_processor};
use crate::row::{Metric, Report};
use crate::subject::{Plan, Subject, in_turn};
use crate::{bpf, conntrack, node};

pub const NODE_LINK: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub const CLIENT_LINK: [u8; 6] = [2, 0, 0, 0, 1, 2];
pub const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const PACKETS: Metric = ("packets_per_second", "per_second");
const RATIO: Metric = ("ratio_to_limit", "ratio");
/// Minimum number of frames to send; an emulated machine sends fewer.
const WARM: u32 = 1 << 17;
/// Interval between samples of the sink.
const SAMPLE: Duration = Duration::from_millis(10);
/// Number of flows that is large enough that each has expired by its next turn.
const NEW_FLOWS: u32 = 1 << 24;
/// Number of consecutive new flows that a peer's connection tracking can hold.
const TRACKED: u32 = 200_000;

/// Measures packets per second.
pub fn run(report: &Report, plan: &Plan) {
    if plan.has("xdp_north_south") {
        for count in plan.sizes(&[1, 65_536], &[1, 100, 10_000, 65_536]) {
            let case = format!("xdp_north_south/services={count}");
            let backends = if count <= 100 { 8 } else { 2 };
            report.attempt(&case, || {
                let wires = wires(plan, &peers::external_services(count, "udp", backends))?;
                numbers_of_flows(plan, count).iter().try_for_each(|flows| {
                    measure(report, plan, &wires, &format!("{case}/flows={flows}"), (*flows, count as u32))
                })
            });
        }
    }
    if plan.has("xdp_new_flows") {
        for count in plan.sizes(&[1000, 10_000], &[1, 1000, 10_000]) {
            let case = format!("xdp_new_flows/services={count}");
            let backends = if count == 1 { 32 } else { 2 };
            report.attempt(&case, || {
                let wires = wires(plan, &peers::external_services(count, "udp", backends))?;
                measure(report, plan, &wires, &case, (NEW_FLOWS, count as u32))
            });
        }
    }
}

/// Returns the numbers of flows to measure with; flows to the first service only warm up immediately.
fn numbers_of_flows(plan: &Plan, services: usize) -> &'static [u32] {
    match (plan.emulated(), plan.quick, services) {
        (true, ..) => &[1, 1_000],
        (false, true, 65_536) => &[100_000],
        _ => &[1, 100_000],
    }
}

fn wires(plan: &Plan, services: &[Service]) -> Result<Vec<Wire>> {
    plan.subjects(services.len()).into_iter().map(|subject| Wire::new(subject, services)).collect()
}

/// Measures all subjects in turn.
fn measure(report: &Report, plan: &Plan, wires: &[Wire], case: &str, flows: (u32, u32)) -> Result<()> {
    let (rounds, seconds) = plan.choose((5, 0.4), (11, 1.0));
    let warm = if plan.emulated() { WARM / 16 } else { WARM };
    let generators: Result<Vec<Generator>> = wires.iter().map(|_| Generator::new(flows)).collect();
    let turns: Vec<_> = wires.iter().zip(generators?).collect();
    let rates = in_turn(&turns, rounds, |(wire, generator)| {
        wire.measure(generator, seconds, warm)
            .with_context(|| format!("packets through {}", wire.subject.name()))
    })?;
    let limit = wires.iter().position(|wire| wire.subject == Subject::Limit);
    for (wire, of_wire) in wires.iter().zip(&rates) {
        report.row("dataplane", case, wire.subject.name(), PACKETS, of_wire)?;
        if let Some(limit) = limit
            && wire.subject != Subject::Limit
        {
            let ratios: Vec<f64> = of_wire.iter().zip(&rates[limit]).map(|(rate, of)| rate / of).collect();
            report.row("dataplane", case, wire.subject.name(), RATIO, &ratios)?;
        }
    }
    Ok(())
}

/// Generates frames.
struct Generator {
    program: OwnedFd,
    traffic: Traffic,
}

impl Generator {
    fn new(flows: (u32, u32)) -> Result<Self> {
        let traffic = Traffic::new(None, 80, (NODE_LINK, CLIENT_LINK), flows, peers::FIRST_VIP);
        // The program keeps its counter, so that flows continue where they stopped.
        let next = bpf::counter().context("cannot make a counter")?;
        let code = asm::fill(Kind::Xdp, &traffic, next.as_fd(), &Then::Return(asm::XDP_TX));
        let program = bpf::load(bpf::XDP, &code).context("cannot load the generator")?;
        Ok(Self { program, traffic })
    }

    /// Sends this many frames; returns the rate of generation per second.
    fn send(&self, frames: u32) -> Result<f64> {
        one_processor()?;
        let context = bpf::xdp_context(FRAME, place::interface("eth0")?);
        let start = Instant::now();
        bpf::run_live(self.program.as_fd(), &self.traffic.frame, &context, frames)
            .context("cannot send frames")?;
        Ok(f64::from(frames) / start.elapsed().as_secs_f64())
    }

    fn makes_new_flows(&self) -> bool {
        self.traffic.flows == NEW_FLOWS
    }
}

/// Sets link addresses, routes and neighbours for the traffic.
pub fn prepare(lab: &Lab) -> Result<()> {
    let link = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    Place::client(lab).run(&format!("ip link set eth0 address {}", link(CLIENT_LINK)))?;
    let node = Place::node(lab);
    for line in [
        format!("ip link set uplink address {}", link(NODE_LINK)),
        "ip route add default via 192.0.2.2 dev uplink".to_owned(),
        format!("ip neigh replace 192.0.2.2 lladdr {} dev uplink nud permanent", link(CLIENT_LINK)),
        "sysctl -qw net.ipv4.ip_forward=1".to_owned(),
        // Entering and leaving by the same interface is intended.
        "sysctl -qw net.ipv4.conf.all.send_redirects=0".to_owned(),
        "sysctl -qw net.ipv4.conf.uplink.send_redirects=0".to_owned(),
        "sysctl -qw net.ipv4.conf.all.rp_filter=0".to_owned(),
        "sysctl -qw net.ipv4.conf.uplink.rp_filter=0".to_owned(),
    ] {
        node.run(&line)?;
    }
    Ok(())
}

/// A subject between its generator and its sink.
struct Wire {
    subject: Subject,
    counted: OwnedFd,
    /// Keep programs attached to their interfaces.
    _links: Vec<OwnedFd>,
    lab: Lab,
}

impl Wire {
    fn new(subject: Subject, services: &[Service]) -> Result<Self> {
        let counted = bpf::counter()?;
        let mut wire = Self { subject, counted, _links: Vec::new(), lab: Lab::new()? };
        prepare(&wire.lab)?;
        let (port, source) = match subject {
            // Without translation, frames return unchanged.
            Subject::Limit => (80, None),
            _ => (8080, Some(NODE_ADDRESS)),
        };
        let sink = bpf::load(bpf::XDP, &asm::sink(port, source, wire.counted.as_fd()))?;
        wire._links.push(attach(&place::client_namespace(&wire.lab), "eth0", &sink)?);
        let node = place::node_namespace(&wire.lab);
        match subject {
            // etcd balances nothing, so the plan does not contain it.
            Subject::Limit | Subject::Etcd => {
                wire._links.push(attach(&node, "uplink", &bpf::load(bpf::XDP, &asm::reflect())?)?);
            }
            Subject::Hawser => in_namespace(&node, || hawser(&wire.lab, services))?,
            Subject::Iptables | Subject::Nftables | Subject::Ipvs => {
                let pass = bpf::load(bpf::XDP, &asm::constant(asm::XDP_PASS))?;
                wire._links.push(attach(&node, "uplink", &pass)?);
            }
        }
        peers::load_rules(subject, &Place::node(&wire.lab), services)?;
        Ok(wire)
    }

    /// Returns the rate of frames that reach the sink while the generator runs: at least twice `least`
    /// frames, after `least` for warming up.
    fn measure(&self, generator: &Generator, seconds: f64, least: u32) -> Result<f64> {
        let client = place::client_namespace(&self.lab);
        let send = |frames| in_namespace(&client, || generator.send(frames));
        let new = generator.makes_new_flows();
        let tracks = matches!(self.subject, Subject::Iptables | Subject::Nftables | Subject::Ipvs);
        let warm = match (new, tracks) {
            // Each new flow costs time and table space.
            (true, true) => least / 8,
            (true, false) => least,
            // Send every flow once, so that only known flows are measured.
            (false, _) => generator.traffic.flows.max(least),
        };
        for share in [1.0, 2.0, 4.0] {
            if new && tracks {
                in_namespace(&place::node_namespace(&self.lab), conntrack::flush)?;
            }
            let frames = (send(warm)? * seconds * share) as u32;
            let frames = if new && tracks { frames.min(TRACKED) } else { frames.max(2 * least) };
            if let Some(rate) = self.watch(|| send(frames))? {
                return Ok(rate);
            }
            // The CPU was used by others during the estimate.
        }
        bail!("too few frames came through, three times in a row")
    }

    /// Returns the rate at which the sink counts while frames are sent; `None` if the time was too short.
    fn watch(&self, send: impl FnOnce() -> Result<f64> + Send) -> Result<Option<f64>> {
        let samples = std::thread::scope(|scope| {
            let sending = scope.spawn(send);
            let mut samples = Vec::new();
            let start = Instant::now();
            while !sending.is_finished() {
                samples.push((start.elapsed().as_secs_f64(), bpf::read_counter(self.counted.as_fd())?));
                std::thread::sleep(SAMPLE);
            }
            sending.join().map_err(|_| anyhow!("the generator panicked"))??;
            anyhow::Ok(samples)
        })?;
        Ok(rate(&samples))
    }
}

/// Returns the growth rate of a count between the first and the last time at which it had grown: the kernel
/// needs time before the first frame and after the last.
fn rate(samples: &[(f64, u64)]) -> Option<f64> {
    let grown: Vec<_> = samples.windows(2).filter(|pair| pair[1].1 > pair[0].1).map(|pair| pair[1]).collect();
    // It is unknown when counting ended after the last sample.
    let (first, last) = (grown.first()?, grown.iter().rev().nth(1)?);
    (last.0 > first.0).then(|| (last.1 - first.1) as f64 / (last.0 - first.0))
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.subject == Subject::Hawser {
            node::clear(&self.lab);
        }
    }
}

/// Programs the data plane and attaches it to the uplink, as on a node whose device supports XDP.
fn hawser(lab: &Lab, services: &[Service]) -> Result<()> {
    let mut kernel = node::open(lab, node::limits(services.len()), XdpMode::ForceNative)?;
    kernel.apply_full(&node::tables(services)).context("cannot program the tables")?;
    node::set_node(&mut kernel, NODE_ADDRESS)?;
    let uplink = Interface { name: "uplink".into(), index: place::interface("uplink")?, role: Role::Uplink };
    kernel.set_interfaces(&[uplink]).context("cannot attach to the uplink")
}

fn attach(namespace: &Path, name: &str, program: &OwnedFd) -> Result<OwnedFd> {
    in_namespace(namespace, || {
        bpf::attach_xdp(program.as_fd(), place::interface(name)?)
            .with_context(|| format!("cannot attach to {name}"))
    })
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn only_packets_in_the_measured_period_count() {
        let samples = [(0.0, 5), (1.0, 5), (2.0, 7), (3.0, 17), (4.0, 27), (5.0, 30), (6.0, 30)];
        assert_eq!(rate(&samples), Some(10.0));
        assert_eq!(rate(&samples[..4]), None);
        assert_eq!(rate(&[]), None);
    }
}
