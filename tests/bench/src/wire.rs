//! A generator of frames, what they pass through, and a sink that counts them.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tests_e2e::Lab;

use crate::asm::{self, FRAME, Kind, Then, Traffic};
use crate::place::{self, in_namespace, one_processor};
use crate::row::{Metric, Report};
use crate::subject::{Plan, Subject, in_turn};
use crate::{bpf, conntrack, node};

const PACKETS: Metric = ("packets_per_second", "per_second");
const RATIO: Metric = ("ratio_to_limit", "ratio");
/// Minimum number of frames to send; an emulated machine sends fewer.
const WARM: u32 = 1 << 17;
/// Interval between samples of the sink.
const SAMPLE: Duration = Duration::from_millis(10);
/// Number of flows that is large enough that each has expired by its next turn.
pub const NEW_FLOWS: u32 = 1 << 24;
/// Number of consecutive new flows that a peer's connection tracking can hold.
const TRACKED: u32 = 200_000;

/// Measures all subjects in turn, and writes the rows of a case of a suite.
pub fn measure(
    report: &Report,
    plan: &Plan,
    wires: &[&Wire],
    (suite, case): (&str, &str),
    traffic: &Traffic,
) -> Result<()> {
    let (rounds, seconds) = plan.choose((5, 0.4), (11, 1.0));
    let warm = if plan.emulated() { WARM / 16 } else { WARM };
    let generators: Result<Vec<Generator>> = wires.iter().map(|_| Generator::new(traffic)).collect();
    let turns: Vec<_> = wires.iter().zip(generators?).collect();
    let rates = in_turn(&turns, rounds, |(wire, generator)| {
        wire.measure(generator, seconds, warm)
            .with_context(|| format!("packets through {}", wire.subject.name()))
    })?;
    let limit = wires.iter().position(|wire| wire.subject == Subject::Limit);
    for (wire, of_wire) in wires.iter().zip(&rates) {
        report.row(suite, case, wire.subject.name(), PACKETS, of_wire)?;
        if let Some(limit) = limit
            && wire.subject != Subject::Limit
        {
            let ratios: Vec<f64> = of_wire.iter().zip(&rates[limit]).map(|(rate, of)| rate / of).collect();
            report.row(suite, case, wire.subject.name(), RATIO, &ratios)?;
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
    fn new(traffic: &Traffic) -> Result<Self> {
        // The program keeps its counter, so that flows continue where they stopped.
        let next = bpf::counter().context("cannot make a counter")?;
        let code = asm::fill(Kind::Xdp, traffic, next.as_fd(), &Then::Return(asm::XDP_TX));
        let program = bpf::load(bpf::XDP, &code).context("cannot load the generator")?;
        Ok(Self { program, traffic: traffic.clone() })
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

/// A subject between its generator and its sink.
pub struct Wire {
    pub subject: Subject,
    /// The namespace with the generator's interface, `eth0`.
    from: PathBuf,
    counted: OwnedFd,
    /// Keep programs attached to their interfaces.
    links: Vec<OwnedFd>,
    pub lab: Lab,
}

impl Wire {
    /// Puts the sink on `eth0` of the lab's other host. It counts frames to this port, from the node's address
    /// if the subject replaces the source. Frames are generated in the namespace `from`.
    pub fn new(
        subject: Subject,
        lab: Lab,
        from: PathBuf,
        port: u16,
        source: Option<Ipv4Addr>,
    ) -> Result<Self> {
        let counted = bpf::counter()?;
        let mut wire = Self { subject, from, counted, links: Vec::new(), lab };
        let sink = bpf::load(bpf::XDP, &asm::sink(port, source, wire.counted.as_fd()))?;
        wire.attach(&place::client_namespace(&wire.lab), "eth0", &sink)?;
        Ok(wire)
    }

    /// Attaches an XDP program to an interface for as long as the wire exists.
    pub fn attach(&mut self, namespace: &Path, name: &str, program: &OwnedFd) -> Result<()> {
        let link = in_namespace(namespace, || {
            bpf::attach_xdp(program.as_fd(), place::interface(name)?)
                .with_context(|| format!("cannot attach to {name}"))
        })?;
        self.links.push(link);
        Ok(())
    }

    /// Returns the rate of frames that reach the sink while the generator runs: at least twice `least`
    /// frames, after `least` for warming up.
    fn measure(&self, generator: &Generator, seconds: f64, least: u32) -> Result<f64> {
        let send = |frames| in_namespace(&self.from, || generator.send(frames));
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
