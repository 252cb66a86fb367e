//! The packet programs as functions: packet and tables in; verdict, packet and flows out.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

#[path = "../support/mod.rs"]
mod support;

mod bandwidth;
mod families;
mod forward;
mod fragments;
mod guard;
mod icmp;
mod masquerade;
mod net;
mod services;
mod table;

use support::elements::Elements;
use support::packet::End;
use support::shared::with_kernel;
use support::topology::*;
use support::{Node, in_namespace, key, service};
use userspace_dataplane::Kernel;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{Backend, Protocol, Scope, ServiceTables};

pub const NODE_PORT: End = (NODE, 30_080);

/// Runs a test with a node, its data plane and its interfaces.
pub fn on_node(test: impl FnOnce(&mut Kernel, &Topology, &Node) + Send) {
    in_namespace(|| {
        let topology = Topology::new();
        with_kernel(|kernel, node| {
            topology.announce(kernel);
            test(kernel, &topology, node);
        });
    });
}

pub fn vip(protocol: Protocol, scope: Scope, backends: &[Backend]) -> ServiceTables {
    service(key("10.96.0.10", VIP.1, protocol, scope), backends)
}

pub fn node_port(protocol: Protocol, backends: &[Backend]) -> ServiceTables {
    service(key("0.0.0.0", NODE_PORT.1, protocol, Scope::External), backends)
}

/// Empties the slot of a v4 flow, as eviction would.
pub fn forget_flow4(node: &Node, key: &[u8]) {
    let maps = node.bpf_root().join(format!("v{}/maps", ebpf_common::LAYOUT_VERSION));
    let flows = Elements::open(&maps.join("FLOWS4"), 64);
    let tags = Elements::open(&maps.join("FLOW_TAGS4"), 64);
    let hints = Elements::open(&maps.join("FLOW_HINTS4"), 16);
    let (index, _) = flows.iter().find(|(_, flow)| flow.starts_with(key)).expect("the flow is there");
    flows.write(index, &[0; 64]);
    let sets = tags.iter().count() as u32;
    let (set, way) = (index % sets, (index / sets) as usize);
    let mut line = tags.read(set).unwrap();
    line[4 * way..][..4].fill(0);
    tags.write(set, &line);
    let mut line = hints.read(set).unwrap();
    line[way] = 0;
    hints.write(set, &line);
}

/// Makes all v4 flows look as if they had had no packet for longer than any limit.
pub fn make_quiet(node: &Node) {
    const SEEN: usize = std::mem::offset_of!(ebpf_common::flow::Flow4, seen);
    let maps = node.bpf_root().join(format!("v{}/maps", ebpf_common::LAYOUT_VERSION));
    let flows = Elements::open(&maps.join("FLOWS4"), 64);
    for (index, mut flow) in flows.iter().filter(|(_, flow)| flow.iter().any(|byte| *byte != 0)) {
        let seen = u32::from_ne_bytes(flow[SEEN..][..4].try_into().unwrap());
        let earlier = seen.wrapping_sub(ebpf_common::limits::idle::TCP + 1);
        flow[SEEN..][..4].copy_from_slice(&earlier.to_ne_bytes());
        flows.write(index, &flow);
    }
}

pub fn metric(node: &Node, label: &str) -> u64 {
    Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap()[label]
}
