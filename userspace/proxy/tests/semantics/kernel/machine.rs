//! A node whose data plane is the real one: maps and programs in the kernel, interfaces that lead nowhere,
//! and routes through them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use userspace_dataplane::DataPlane;
use userspace_dataplane::{Kernel, Program};

use super::support::{self, index_of, ip, sysctl};
use super::wire::{self, Kind, Seen};
use crate::semantics::model::{Attempt, From, Source, Verdict, World};
use crate::semantics::tables::{compiled, node_tables};

/// Verdicts of tcx and XDP programs.
const NEXT: u32 = u32::MAX;
const DROP: u32 = 2;
const REDIRECT: u32 = 7;
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;
const XDP_REDIRECT: u32 = 4;

/// Interface of the pod that connects, and of all others on this node.
const POD: &str = "pod0";
const OTHER_POD: &str = "pod2";
const UPLINK: &str = "up0";

pub struct Machine {
    pub kernel: Kernel,
    uplink: u32,
    pod: u32,
    other_pod: u32,
    addresses: BTreeSet<IpAddr>,
    routes: BTreeSet<IpAddr>,
    world: World,
    port: u16,
}

/// The outcome of a packet.
#[derive(Debug)]
pub enum Outcome {
    Unchanged,
    Dropped,
    Became(Seen),
}

impl Machine {
    /// Creates a machine in the namespace of this thread.
    pub fn new(node: &support::Node) -> Self {
        sysctl("net/ipv4/ip_forward", "1");
        sysctl("net/ipv6/conf/all/forwarding", "1");
        for (name, peer) in [(UPLINK, "up1"), (POD, "pod1"), (OTHER_POD, "pod3")] {
            ip(&format!("link add {name} type veth peer name {peer}"));
            sysctl(&format!("net/ipv6/conf/{name}/accept_dad"), "0");
            ip(&format!("link set {name} up"));
            ip(&format!("link set {peer} up"));
        }
        // Every address that is not on this node is behind the uplink.
        for (family, gateway, own) in
            [("-4", "172.16.0.2", "172.16.0.1/30"), ("-6", "fdff::2", "fdff::1/64 nodad")]
        {
            ip(&format!("{family} addr add dev {UPLINK} {own}"));
            ip(&format!("{family} neigh add {gateway} lladdr 02:00:00:00:00:22 dev {UPLINK}"));
            ip(&format!("{family} route add default via {gateway} dev {UPLINK}"));
        }
        let kernel = node.open();
        Self {
            kernel,
            uplink: index_of(UPLINK),
            pod: index_of(POD),
            other_pod: index_of(OTHER_POD),
            addresses: BTreeSet::new(),
            routes: BTreeSet::new(),
            world: World::default(),
            port: 20_000,
        }
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    /// Replaces the tables by those of this cluster.
    pub fn become_(&mut self, world: &World) {
        let wanted: BTreeSet<IpAddr> =
            world.node_addresses.iter().chain(&world.node_port_addresses).copied().collect();
        for address in wanted.difference(&self.addresses.clone()) {
            let (bits, nodad) = if address.is_ipv4() { (32, "") } else { (128, " nodad") };
            ip(&format!("addr add {address}/{bits} dev {UPLINK}{nodad}"));
            self.addresses.insert(*address);
        }
        let endpoints = world.slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        for endpoint in endpoints.filter(|one| one.node_name.as_ref() == Some(&world.node_name)) {
            self.pod_at(endpoint.addresses[0].parse().unwrap());
        }
        self.kernel.set_node(&node_tables(world)).unwrap();
        self.kernel.apply_full(&compiled(world)).unwrap();
        self.world = world.clone();
    }

    /// Makes an address a pod's on this node.
    fn pod_at(&mut self, address: IpAddr) {
        if self.routes.insert(address) {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            ip(&format!("route add {address}/{bits} dev {OTHER_POD}"));
            ip(&format!("neigh add {address} lladdr 02:00:00:00:00:33 dev {OTHER_POD}"));
        }
    }

    /// Returns a source port that no attempt had before; there are several thousand.
    pub fn fresh_port(&mut self) -> u16 {
        self.port = if self.port == 60_000 { 20_000 } else { self.port + 1 };
        self.port
    }

    /// Sends the first packet of an attempt through the programs of the interface that it comes from: XDP and
    /// then tcx, or tcx alone.
    pub fn send(&self, attempt: &Attempt, port: u16, xdp: bool) -> Outcome {
        let interface = match attempt.from {
            From::Pod => self.pod,
            From::Outside => self.uplink,
            From::Host => unreachable!("packets of the node's own sockets pass no ingress"),
        };
        self.run(&wire::opening(attempt, port), interface, xdp)
    }

    /// Returns the packet that the client gets when a backend answers what it saw.
    pub fn answer(&self, seen: &Seen, xdp: bool) -> Outcome {
        let interface = if self.is_local(seen.destination.ip()) { self.other_pod } else { self.uplink };
        self.run(&wire::reply(seen), interface, xdp)
    }

    fn is_local(&self, address: IpAddr) -> bool {
        let endpoints = || self.world.slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        endpoints().any(|endpoint| {
            endpoint.node_name.as_ref() == Some(&self.world.node_name)
                && endpoint.addresses[0].parse() == Ok(address)
        })
    }

    fn run(&self, bytes: &[u8], interface: u32, xdp: bool) -> Outcome {
        if interface == self.uplink && xdp {
            let mut context = [0_u8; 24];
            context[4..8].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
            context[12..16].copy_from_slice(&interface.to_ne_bytes());
            let run = self.kernel.test_run(Program::UplinkXdp, bytes, &context, 1).unwrap();
            match run.verdict {
                XDP_TX | XDP_REDIRECT => return Outcome::Became(wire::read(&run.packet)),
                XDP_DROP => return Outcome::Dropped,
                XDP_PASS if run.packet == bytes => {}
                // Passed on to the stack, for a pod of this node.
                XDP_PASS => return Outcome::Became(wire::read(&run.packet)),
                verdict => panic!("XDP gave {verdict}"),
            }
        }
        let program = if interface == self.uplink { Program::UplinkIngress } else { Program::PodIngress };
        let mut context = [0_u8; 192];
        context[36..40].copy_from_slice(&interface.to_ne_bytes());
        context[40..44].copy_from_slice(&interface.to_ne_bytes());
        let run = self.kernel.test_run(program, bytes, &context, 1).unwrap();
        match run.verdict {
            DROP => Outcome::Dropped,
            NEXT if run.packet == bytes => Outcome::Unchanged,
            NEXT | REDIRECT => Outcome::Became(wire::read(&run.packet)),
            verdict => panic!("tcx gave {verdict}"),
        }
    }

    /// Compares an outcome with what the oracle allows. Returns the backend's view, if there is one.
    pub fn compare(
        &self,
        attempt: &Attempt,
        port: u16,
        outcome: Outcome,
        expected: &Verdict,
    ) -> Result<Option<Seen>, String> {
        match (outcome, expected) {
            (Outcome::Unchanged, Verdict::Untouched) | (Outcome::Dropped, Verdict::Dropped) => Ok(None),
            (Outcome::Became(answer), Verdict::Rejected) if answer.kind == Kind::Refusal => {
                let ends = (answer.source.ip(), answer.destination.ip());
                if ends == (attempt.to.ip(), attempt.source) {
                    Ok(None)
                } else {
                    Err(format!("refused, but {answer:?}"))
                }
            }
            (Outcome::Became(seen), Verdict::To(allowed)) if matches!(seen.kind, Kind::Data(_)) => {
                let Some(source) = allowed.get(&seen.destination) else {
                    return Err(format!("{seen:?}, where {allowed:?}"));
                };
                let fits = match source {
                    Source::Kept => seen.source == SocketAddr::new(attempt.source, port),
                    Source::Node => self.world.node_addresses.contains(&seen.source.ip()),
                };
                if fits { Ok(Some(seen)) } else { Err(format!("{seen:?}, where {source:?}")) }
            }
            (outcome, expected) => Err(format!("{outcome:?}, where {expected:?}")),
        }
    }
}
