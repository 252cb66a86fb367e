//! Limits of bandwidth, packet by packet. At the lowest rate a large packet is paid for in eleven seconds, which no
//! test takes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use userspace_dataplane::policy::{PolicyEndpoint, PolicyTables};
use userspace_dataplane::tables::{BANDWIDTH_RANGE, Bandwidths, PodBandwidth};
use userspace_dataplane::{DataPlane, Kernel, Program, TestRun};

use super::families::both;
use super::net::Net;
use super::support::Node;
use super::support::packet::{ACK, Packet};
use super::support::topology::*;
use super::{metric, on_node};

/// The payload of packets that take eleven seconds each at the lowest rate.
const LARGE: [u8; 1_400] = [7; 1_400];

fn limits(interface: u32, egress: Option<u64>, ingress: Option<u64>) -> Bandwidths {
    BTreeMap::from([(interface, PodBandwidth { egress, ingress })])
}

/// Runs a program on a packet that is `segments` on a wire, from the other pod's interface if it goes out.
fn run<A: Net>(
    kernel: &Kernel,
    program: Program,
    packet: &Packet<A>,
    at: (u32, u32),
    segments: u32,
) -> TestRun {
    const IN: usize = 36;
    const INTERFACE: usize = 40;
    const SEGMENTS: usize = 164;
    let mut context = [0_u8; 192];
    for (place, value) in [(IN, at.0), (INTERFACE, at.1), (SEGMENTS, segments)] {
        context[place..place + 4].copy_from_slice(&value.to_ne_bytes());
    }
    kernel.test_run(program, &packet.bytes(), &context, 1).unwrap()
}

both!(each_direction_of_a_pod_has_a_limit_of_its_own, directions);

fn directions<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let rate = Some(*BANDWIDTH_RANGE.start());
    let (pod, other) = (topology.pod, topology.other_pod);
    let large = |from, to| Packet::udp(from, to, &LARGE);
    let out = large(A::LOCAL_POD, A::CLIENT);
    let home = large(A::CLIENT, A::LOCAL_POD);
    let counts = || ["bandwidth_ingress", "bandwidth_egress"].map(|name| metric(node, name));
    let leave = |kernel: &Kernel, interface| {
        run(kernel, Program::PodIngress, &out, (interface, interface), 0).verdict
    };
    let arrive = |kernel: &Kernel, interface| {
        run(kernel, Program::Egress, &home, (topology.uplink, interface), 0).verdict
    };
    let before = counts();
    kernel.set_bandwidths(&limits(pod, rate, None)).unwrap();
    assert_eq!([leave(kernel, pod), leave(kernel, pod)], [NEXT, DROP]);
    assert_eq!([arrive(kernel, pod), arrive(kernel, pod)], [NEXT; 2]);
    // Traffic that has passed counts against another limit.
    kernel.set_bandwidths(&limits(pod, Some(1_001), rate)).unwrap();
    assert_eq!([arrive(kernel, pod), arrive(kernel, pod)], [NEXT, DROP]);
    assert_eq!(leave(kernel, pod), DROP);
    assert_eq!([leave(kernel, other), arrive(kernel, other), arrive(kernel, topology.uplink)], [NEXT; 3]);
    // An interface whose bit in the filter is the same.
    kernel.set_bandwidths(&limits(pod + 4_096, rate, rate)).unwrap();
    assert_eq!([leave(kernel, pod), leave(kernel, pod), arrive(kernel, pod)], [NEXT; 3]);
    kernel.set_bandwidths(&limits(pod, Some(*BANDWIDTH_RANGE.end()), None)).unwrap();
    assert!((0..100).all(|_| leave(kernel, pod) == NEXT));
    kernel.set_bandwidths(&Bandwidths::new()).unwrap();
    assert_eq!([leave(kernel, pod), leave(kernel, pod), arrive(kernel, pod)], [NEXT; 3]);
    let difference: Vec<u64> = counts().iter().zip(before).map(|(now, before)| now - before).collect();
    assert_eq!(difference, [1, 2]);
}

both!(headers_of_each_segment_count, segments);

fn segments<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    // The burst is 5,000 bytes, far more than the packet; at this rate the headers of 10,000 segments take half a
    // minute.
    const RATE: u64 = 100_000;
    let mut packet = Packet::<A>::tcp(A::LOCAL_POD, A::CLIENT, ACK);
    packet.payload = vec![7; 500];
    for (segments, expected) in [(10_000, [NEXT, DROP]), (1, [NEXT, NEXT]), (0, [NEXT, NEXT])] {
        kernel.set_bandwidths(&Bandwidths::new()).unwrap();
        kernel.set_bandwidths(&limits(topology.pod, Some(RATE), None)).unwrap();
        let send = |segments| {
            run(kernel, Program::PodIngress, &packet, (topology.pod, topology.pod), segments).verdict
        };
        assert_eq!([send(segments), send(0)], expected, "{segments} segments");
    }
    kernel.set_bandwidths(&Bandwidths::new()).unwrap();
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_that_no_policy_allows_take_nothing_of_the_limit() {
    on_node(|kernel, topology, node| {
        policies::<Ipv4Addr>(kernel, topology, node);
        policies::<Ipv6Addr>(kernel, topology, node);
    });
}

fn policies<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let pod = topology.pod;
    let home = Packet::udp(A::CLIENT, A::LOCAL_POD, &LARGE);
    let arrive = |kernel: &Kernel| run(kernel, Program::Egress, &home, (topology.uplink, pod), 0).verdict;
    let closed = PolicyEndpoint { closed: true, ..PolicyEndpoint::default() };
    let tables = PolicyTables { endpoints: BTreeMap::from([(pod, closed)]), ..PolicyTables::default() };
    kernel.set_bandwidths(&limits(pod, None, Some(*BANDWIDTH_RANGE.start()))).unwrap();
    kernel.set_policies(&tables).unwrap();
    let before = metric(node, "bandwidth_ingress");
    assert!((0..20).all(|_| arrive(kernel) == DROP));
    assert_eq!(metric(node, "bandwidth_ingress"), before);
    kernel.set_policies(&PolicyTables::default()).unwrap();
    assert_eq!([arrive(kernel), arrive(kernel)], [NEXT, DROP]);
    kernel.set_bandwidths(&Bandwidths::new()).unwrap();
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn drops_are_events_once_a_minute() {
    on_node(|kernel, topology, node| {
        events::<Ipv4Addr>(kernel, topology, node);
        events::<Ipv6Addr>(kernel, topology, node);
    });
}

fn events<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let pod = topology.pod;
    let rate = Some(*BANDWIDTH_RANGE.start());
    kernel.set_bandwidths(&limits(pod, rate, rate)).unwrap();
    let mut events = kernel.inspector().unwrap().events().unwrap();
    while events.read().is_some() {}
    let suppressed = metric(node, "events_suppressed");
    let out = Packet::udp(A::LOCAL_POD, A::CLIENT, &LARGE);
    let home = Packet::udp(A::CLIENT, A::LOCAL_POD, &LARGE);
    for _ in 0..100 {
        run(kernel, Program::PodIngress, &out, (pod, pod), 0);
        run(kernel, Program::Egress, &home, (topology.uplink, pod), 0);
    }
    let found: Vec<_> = std::iter::from_fn(|| events.read())
        .map(|event| (event.kind, event.hook, event.source, event.destination, event.interface))
        .collect();
    let (inside, outside) = ((A::LOCAL_POD.0.into(), A::LOCAL_POD.1), (A::CLIENT.0.into(), A::CLIENT.1));
    let event = |kind: &str, hook: &str, from, to| (kind.to_owned(), hook.to_owned(), from, to, Some(pod));
    let expected = [
        event("bandwidth_egress", "pod", inside, outside),
        event("bandwidth_ingress", "egress", outside, inside),
    ];
    assert_eq!(found, expected);
    assert_eq!(metric(node, "events_suppressed"), suppressed);
    kernel.set_bandwidths(&Bandwidths::new()).unwrap();
}
