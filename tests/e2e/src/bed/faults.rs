//! Faults of a node's link. Not every kernel can delay packets itself (`sch_netem`), so a program carries the frames
//! between two interfaces, in a namespace of its own, where nothing else sees them:
//!
//! ```text
//!   node 2 ─ uplink ── near ─ relay.py ─ far ── n2 ─ hub
//! ```

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Node, ip};
use crate::{Process, eventually, root};

/// Changes that a link makes to a stream of frames, in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Time for which a frame is held back, more or less by the jitter.
    pub delay: Duration,
    pub jitter: Duration,
    /// Percentage of the frames that are not held back, and so overtake others.
    pub reorder: u8,
    /// Percentage of the frames that do not arrive.
    pub loss: u8,
}

/// Numbers of frames that passed a link with faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    pub frames: u64,
    pub reordered: u64,
    pub lost: u64,
    /// Frames that the link could not take, such as while it was cut.
    pub failed: u64,
}

/// A link with faults. It is as before when this is dropped.
pub struct Faulty<'a> {
    node: &'a Node,
    relay: Option<Process>,
    restored: bool,
}

impl Node {
    /// Lets faults act on the node's link, which is down for a moment. The same seed leads to the same choices among
    /// the same frames.
    pub fn disturb(&self, faults: Faults, seed: u32) -> Result<Faulty<'_>> {
        let mut faulty = Faulty { node: self, relay: None, restored: false };
        faulty.insert().with_context(|| format!("cannot disturb the link of {}", self.name()))?;
        faulty.relay = Some(self.relay(faults, seed)?);
        Ok(faulty)
    }

    /// Returns the name of the namespace between node and hub.
    fn between(&self) -> String {
        format!("{}r", self.id)
    }

    /// Starts the program that carries the frames.
    fn relay(&self, faults: Faults, seed: u32) -> Result<Process> {
        let log = self.dir.join("relay.log");
        // The one of an earlier link with faults.
        let _ = fs::remove_file(&log);
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.between())).args(["--", "python3"]);
        command.arg(root().join("tests/e2e/src/bed/relay.py")).args(["near", "far"]);
        let [delay, jitter] = [faults.delay, faults.jitter].map(|time| time.as_millis().to_string());
        command.args([seed.to_string(), delay, jitter, faults.reorder.to_string(), faults.loss.to_string()]);
        let relay = Process::start(&mut command, log.clone())?;
        eventually("frames to be carried", || {
            Ok(fs::read_to_string(&log)?.lines().any(|line| line == "ready").then_some(()))
        })
        .with_context(|| relay.log_tail())?;
        Ok(relay)
    }
}

impl Faulty<'_> {
    /// Puts two interfaces between node and hub.
    fn insert(&self) -> Result<()> {
        let Node { id, hub, number, .. } = self.node;
        let (between, mac) = (self.node.between(), self.node.mac_at_hub());
        ip(&format!("netns add {between}"))?;
        ip(&format!("-n {hub} link set n{number} netns {between} name near"))?;
        ip(&format!("-n {between} link add far type veth peer name n{number} address {mac} netns {hub}"))?;
        for end in ["near", "far"] {
            ip(&format!("-n {between} link set {end} addrgenmode none up"))?;
        }
        // Frames of the length that they have on a wire, not many in one piece.
        ip(&format!("-n {id} link set uplink gso_max_segs 1"))?;
        ip(&format!("-n {hub} link set n{number} gso_max_segs 1"))?;
        self.node.connect()
    }

    /// Removes the faults; returns what has passed.
    pub fn heal(mut self) -> Result<Passed> {
        self.restore()?;
        let log = self.node.dir.join("relay.log");
        let text = fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
        let counts = text.lines().next_back().and_then(|line| serde_json::from_str::<Value>(line).ok());
        let counts = counts.with_context(|| format!("the relay printed no counts: {text}"))?;
        let count =
            |name: &str| counts[name].as_u64().with_context(|| format!("no number of {name}: {text}"));
        Ok(Passed {
            frames: count("frames")?,
            reordered: count("reordered")?,
            lost: count("lost")?,
            failed: count("failed")?,
        })
    }

    fn restore(&mut self) -> Result<()> {
        self.restored = true;
        let Node { id, hub, number, .. } = self.node;
        let between = self.node.between();
        let stopped = self.relay.take().map_or(Ok(()), Process::stop);
        // Takes its other end with it, whose name is needed next.
        ip(&format!("-n {between} link del far"))?;
        ip(&format!("-n {between} link set near netns {hub} name n{number}"))?;
        ip(&format!("-n {id} link set uplink gso_max_segs 65535"))?;
        ip(&format!("netns del {between}"))?;
        self.node.connect()?;
        stopped.context("the relay failed")
    }
}

impl Drop for Faulty<'_> {
    fn drop(&mut self) {
        if self.restored {
            return;
        }
        if let Err(error) = self.restore() {
            println!("{error:#}");
            // The node stays cut off. Fails if the namespace was never made.
            let _ = Command::new("ip").args(["netns", "del", &self.node.between()]).output();
        }
    }
}
