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

use anyhow::{Context, Result};
use tests_e2e::Lab;
use userspace_dataplane::DataPlane;
use userspace_dataplane::XdpMode;
use userspace_dataplane::tables::{Interface, Role};

use crate::asm::{self, Traffic};
use crate::peers::{self, Service};
use crate::place::{self, Place, in_namespace};
use crate::row::Report;
use crate::subject::{Plan, Subject};
use crate::wire::{NEW_FLOWS, Wire, measure};
use crate::{bpf, node};

pub const NODE_LINK: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub const CLIENT_LINK: [u8; 6] = [2, 0, 0, 0, 1, 2];
pub const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Measures packets per second.
pub fn run(report: &Report, plan: &Plan) {
    if plan.has("xdp_north_south") {
        for count in plan.sizes(&[1, 65_536], &[1, 100, 10_000, 65_536]) {
            let case = format!("xdp_north_south/services={count}");
            let backends = if count <= 100 { 8 } else { 2 };
            report.attempt(&case, || {
                let wires = wires(plan, &peers::external_services(count, "udp", backends))?;
                numbers_of_flows(plan, count).iter().try_for_each(|flows| {
                    let case = format!("{case}/flows={flows}");
                    measure(
                        report,
                        plan,
                        &wires.iter().collect::<Vec<_>>(),
                        ("dataplane", &case),
                        &traffic(*flows, count),
                    )
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
                measure(
                    report,
                    plan,
                    &wires.iter().collect::<Vec<_>>(),
                    ("dataplane", &case),
                    &traffic(NEW_FLOWS, count),
                )
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

/// Returns datagrams of this many flows to the services.
fn traffic(flows: u32, services: usize) -> Traffic {
    Traffic::new(None, 80, (NODE_LINK, CLIENT_LINK), (flows, services as u32), peers::FIRST_VIP)
}

fn wires(plan: &Plan, services: &[Service]) -> Result<Vec<Wire>> {
    plan.subjects(services.len()).into_iter().map(|subject| wire(subject, services)).collect()
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

/// Puts a subject between the other host's generator and its sink.
fn wire(subject: Subject, services: &[Service]) -> Result<Wire> {
    let lab = Lab::new()?;
    prepare(&lab)?;
    let (port, source) = match subject {
        // Without translation, frames return unchanged.
        Subject::Limit => (80, None),
        _ => (8080, Some(NODE_ADDRESS)),
    };
    let from = place::client_namespace(&lab);
    let mut wire = Wire::new(subject, lab, from, port, source)?;
    let node = place::node_namespace(&wire.lab);
    match subject {
        // etcd balances nothing, so the plan does not contain it.
        Subject::Limit | Subject::Etcd => {
            wire.attach(&node, "uplink", &bpf::load(bpf::XDP, &asm::reflect())?)?;
        }
        Subject::Hawser => in_namespace(&node, || hawser(&wire.lab, services))?,
        Subject::Iptables | Subject::Nftables | Subject::Ipvs => {
            let pass = bpf::load(bpf::XDP, &asm::constant(asm::XDP_PASS))?;
            wire.attach(&node, "uplink", &pass)?;
        }
    }
    peers::load_rules(subject, &Place::node(&wire.lab), services)?;
    Ok(wire)
}

/// Programs the data plane and attaches it to the uplink, as on a node whose device supports XDP.
fn hawser(lab: &Lab, services: &[Service]) -> Result<()> {
    let mut kernel = node::open(lab, node::limits(services.len()), XdpMode::ForceNative)?;
    kernel.apply_full(&node::tables(services)).context("cannot program the tables")?;
    node::set_node(&mut kernel, NODE_ADDRESS)?;
    let uplink = Interface { name: "uplink".into(), index: place::interface("uplink")?, role: Role::Uplink };
    kernel.set_interfaces(&[uplink]).context("cannot attach to the uplink")
}
