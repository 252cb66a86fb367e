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

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
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
/// Frames that are sent at least.
const WARM: u32 = 1 << 17;
/// Time between two looks at the sink.
const SAMPLE: Duration = Duration::from_millis(10);

/// Services, backends of each, and numbers of flows.
type Case = (usize, usize, &'static [u32]);

/// Measures packets per second.
pub fn run(report: &Report, quick: bool) -> Result<()> {
    let (cases, rounds, seconds): (&[Case], usize, f64) = if quick {
        (&[(1, 8, &[1, 8192]), (1000, 4, &[8192])], 5, 0.5)
    } else {
        (&[(1, 8, &[1, 8192, 1 << 17]), (1000, 4, &[8192, 1 << 17]), (10_000, 2, &[1 << 17])], 9, 2.0)
    };
    for (count, backends, flows) in cases {
        let services = peers::external_services(*count, "udp", *backends);
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
        let (port, source) = match subject {
            // Without translation, frames come back as they went.
            Subject::Limit => (80, None),
            _ => (8080, Some(NODE_ADDRESS)),
        };
        let sink = bpf::load(Kind::Xdp, &asm::sink(port, source, wire.counted.as_fd()))?;
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
        let links = (NODE_LINK, CLIENT_LINK);
        let traffic = Traffic::new(None, 80, links, (flows, services), peers::FIRST_VIP);
        let next = bpf::counter()?;
        let code = asm::fill(Kind::Xdp, &traffic, next.as_fd(), &Then::Return(asm::XDP_TX));
        let generator = bpf::load(Kind::Xdp, &code)?;
        let client = stage::client_namespace(&self.lab);
        let send = |frames| {
            in_namespace(&client, || {
                one_processor()?;
                let context = bpf::xdp_context(FRAME, stage::interface("eth0")?);
                let start = Instant::now();
                bpf::run_live(generator.as_fd(), &traffic.frame, &context, frames)
                    .context("cannot send frames")?;
                Ok(f64::from(frames) / start.elapsed().as_secs_f64())
            })
        };
        // Every flow once, so that what is measured are known ones.
        let estimate = send(flows.max(WARM))?;
        let frames = (estimate * seconds) as u32;
        let samples = std::thread::scope(|scope| {
            let sending = scope.spawn(|| send(frames.max(WARM)));
            let mut samples = Vec::new();
            let start = Instant::now();
            while !sending.is_finished() {
                samples.push((start.elapsed().as_secs_f64(), bpf::read_counter(self.counted.as_fd())?));
                std::thread::sleep(SAMPLE);
            }
            sending.join().map_err(|_| anyhow!("the generator panicked"))??;
            anyhow::Ok(samples)
        })?;
        rate(&samples).with_context(|| format!("too few frames came through: {samples:?}"))
    }
}

/// The rate of a count between the first and the last time that it was seen to have grown: the
/// kernel takes its time before the first frame and after the last.
fn rate(samples: &[(f64, u64)]) -> Option<f64> {
    let grown: Vec<_> = samples.windows(2).filter(|pair| pair[1].1 > pair[0].1).map(|pair| pair[1]).collect();
    // When counting ended before the last of them is not known.
    let (first, last) = (grown.first()?, grown.iter().rev().nth(1)?);
    (last.0 > first.0).then(|| (last.1 - first.1) as f64 / (last.0 - first.0))
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

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn only_the_time_of_counting_counts() {
        let samples = [(0.0, 5), (1.0, 5), (2.0, 7), (3.0, 17), (4.0, 27), (5.0, 30), (6.0, 30)];
        assert_eq!(rate(&samples), Some(10.0));
        assert_eq!(rate(&samples[..4]), None);
        assert_eq!(rate(&[]), None);
    }
}
