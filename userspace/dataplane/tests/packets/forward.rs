//! Packets between pods that nothing translates: past the stack, if the stack has nothing to say about them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use userspace_dataplane::tables::{NodeTables, Protocol};
use userspace_dataplane::{DataPlane, Kernel, Program};

use super::families::both;
use super::masquerade::settings;
use super::net::*;
use super::support::packet::{ACK, Packet, SYN};
use super::support::topology::*;
use super::support::{Node, ip, scaled};
use super::{metric, on_node};

/// Link address of the other pod.
const POD_LINK: [u8; 6] = [2, 0, 0, 0, 0, 6];
/// Link address of a router that takes the place of the other node.
const NEW_LINK: [u8; 6] = [2, 0, 0, 0, 0, 0x33];
/// Offsets in the context of a tcx program.
const INGRESS_IFINDEX: usize = 36;
const IFINDEX: usize = 40;
const GSO_SIZE: usize = 176;
const MARK: usize = 8;

/// Prepares the node, and makes the pods' link addresses known, which is the pod network's business elsewhere.
fn prepare<A: Net>(kernel: &mut Kernel, topology: &Topology) {
    kernel.set_node(&settings(&[])).unwrap();
    let own: IpAddr = A::LOCAL_POD.0.into();
    ip(&format!("neigh replace {own} lladdr 02:00:00:00:00:05 dev pod0"));
    let pod: IpAddr = A::OTHER_POD.0.into();
    ip(&format!("neigh replace {pod} lladdr 02:00:00:00:00:06 dev pod2"));
    // Answers that another test got in this tick, in a namespace of its own, may still be stored.
    for to in [A::REMOTE_POD, A::OTHER_POD] {
        let packet = Packet::tcp((A::LOCAL_POD.0, 51_000), to, ACK);
        eventually(|| leave(kernel, topology, &packet).0 == REDIRECT);
    }
    eventually(|| arrive(kernel, topology, &Packet::tcp(A::REMOTE_POD, A::OTHER_POD, ACK)).0 == REDIRECT);
}

fn leave<A: Net>(kernel: &Kernel, topology: &Topology, packet: &Packet<A>) -> (u32, Packet<A>) {
    let run = tcx_bytes(kernel, Program::PodIngress, &packet.bytes(), topology.pod);
    (run.verdict, Packet::parse(&run.packet))
}

/// Receives a packet by the uplink.
fn arrive<A: Net>(kernel: &Kernel, topology: &Topology, packet: &Packet<A>) -> (u32, Vec<u8>) {
    let run = tcx_bytes(kernel, Program::UplinkIngress, &packet.bytes(), topology.uplink);
    (run.verdict, run.packet)
}

/// Asserts that a packet of the pod reaches the stack as it was.
fn stays<A: Net>(kernel: &Kernel, topology: &Topology, packet: &Packet<A>, why: &str) {
    // An answer of the routing table that is known and one that is not.
    for _ in 0..2 {
        let frame = packet.bytes();
        let run = tcx_bytes(kernel, Program::PodIngress, &frame, topology.pod);
        assert_eq!(run.verdict, NEXT, "{why}");
        assert!(run.packet == frame, "{why}");
    }
}

both!(packets_between_pods_go_past_the_stack, past_the_stack);

fn past_the_stack<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    prepare::<A>(kernel, topology);
    let before = metric(node, "tcx_redirected");
    let pod = (A::LOCAL_POD.0, 51_000);
    for (to, link) in [(A::REMOTE_POD, OTHER_NODE_LINK), (A::OTHER_POD, POD_LINK)] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let packet = first(protocol, pod, to);
            // The first one of a tick gets its link addresses on the way out.
            for _ in 0..2 {
                let (verdict, sent) = leave(kernel, topology, &packet);
                let expected = Packet { ttl: 63, link: sent.link, ..packet.clone() };
                assert_eq!((verdict, sent), (REDIRECT, expected));
            }
            let run = tcx_bytes(kernel, Program::PodIngress, &packet.bytes(), topology.pod);
            assert_eq!((run.verdict, &run.packet[..6]), (REDIRECT, &link[..]));
        }
    }
    // From another node.
    let packet = first(Protocol::Tcp, A::REMOTE_POD, A::OTHER_POD);
    let (verdict, frame) = arrive(kernel, topology, &packet);
    let sent = Packet::<A>::parse(&frame);
    assert_eq!((verdict, sent.ttl, sent.destination), (REDIRECT, 63, A::OTHER_POD));
    assert_eq!(metric(node, "tcx_redirected") - before, 13);
}

both!(packets_that_the_stack_has_to_answer_reach_it_unchanged, to_the_stack);

fn to_the_stack<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    prepare::<A>(kernel, topology);
    let pod = (A::LOCAL_POD.0, 51_000);
    let plain = Packet::tcp(pod, A::REMOTE_POD, ACK);
    assert_eq!(leave(kernel, topology, &plain).0, REDIRECT);
    stays(kernel, topology, &Packet { ttl: 1, ..plain.clone() }, "its hops are used up");
    stays(kernel, topology, &first(Protocol::Sctp, pod, A::REMOTE_POD), "SCTP");
    stays(kernel, topology, &Packet { options: A::OPTIONS.to_vec(), ..plain.clone() }, "options");
    for fragment in Packet::udp(pod, A::REMOTE_POD, &[1; 128]).fragments(7, 64) {
        let run = tcx_bytes(kernel, Program::PodIngress, &fragment, topology.pod);
        assert_eq!((run.verdict, run.packet), (NEXT, fragment), "a fragment");
    }
    stays(kernel, topology, &Packet::tcp(pod, (A::NOBODY, 80), ACK), "there is no route");
    stays(kernel, topology, &Packet::tcp(pod, (pod.0, 80), ACK), "it leads back");
    let other: IpAddr = A::OTHER_POD.0.into();
    ip(&format!("neigh del {other} dev pod2"));
    // In a tick in which the neighbour was not known yet.
    let unknown = Packet::tcp(pod, A::OTHER_POD, ACK);
    eventually(|| leave(kernel, topology, &unknown).0 == NEXT);
}

both!(packets_larger_than_the_route_takes_reach_the_stack, too_big);

fn too_big<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    prepare::<A>(kernel, topology);
    let (prefix, via) = A::REMOTE_ROUTE;
    ip(&format!("route replace {prefix} via {via} mtu lock 1400"));
    let pod = (A::LOCAL_POD.0, 51_000);
    let sized = |payload: usize| Packet { payload: vec![7; payload], ..Packet::tcp(pod, A::REMOTE_POD, ACK) };
    let fits = 1_400 - A::HEADER - 20;
    // The route may have been asked for in this tick before it was replaced.
    eventually(|| leave(kernel, topology, &sized(fits + 1)).0 == NEXT);
    assert_eq!(leave(kernel, topology, &sized(fits)).0, REDIRECT);
    stays(kernel, topology, &sized(fits + 1), "too big");
    // Segments that are yet to be made.
    for (segment, verdict) in [(fits, REDIRECT), (fits + 1, NEXT)] {
        let packet = sized(2 * segment);
        for _ in 0..2 {
            let mut context = [0_u8; 192];
            for (at, value) in
                [(INGRESS_IFINDEX, topology.pod), (IFINDEX, topology.pod), (GSO_SIZE, segment as u32)]
            {
                context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            }
            let frame = packet.bytes();
            let run = kernel.test_run(Program::PodIngress, &frame, &context, 1).unwrap();
            assert_eq!(run.verdict, verdict, "segments of {segment} bytes");
        }
    }
    ip(&format!("route replace {prefix} via {via}"));
}

both!(packets_that_others_may_translate_reach_the_stack, others);

fn others<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    prepare::<A>(kernel, topology);
    let pod = (A::LOCAL_POD.0, 51_000);
    let packet = Packet::tcp(pod, A::REMOTE_POD, SYN);
    assert_eq!(leave(kernel, topology, &packet).0, REDIRECT);
    kernel.set_node(&NodeTables { through_stack: true, ..settings(&[]) }).unwrap();
    stays(kernel, topology, &packet, "filters of others see it");
    kernel.set_node(&NodeTables { masquerade: None, ..settings(&[]) }).unwrap();
    stays(kernel, topology, &packet, "the pods of the cluster are not known");
    kernel.set_node(&settings(&[])).unwrap();
    assert_eq!(leave(kernel, topology, &packet).0, REDIRECT);
    // The node itself, and hosts outside, are no pods.
    for packet in [Packet::tcp(A::CLIENT, A::OTHER_POD, SYN), Packet::tcp((A::NODE, 80), A::OTHER_POD, SYN)] {
        assert_eq!(arrive(kernel, topology, &packet), (NEXT, packet.bytes()));
    }
}

both!(packets_whose_source_is_elsewhere_reach_the_stack, forged_sources);

fn forged_sources<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    prepare::<A>(kernel, topology);
    // The pod's own address may be answered, and known, before.
    assert_eq!(
        leave(kernel, topology, &Packet::tcp((A::LOCAL_POD.0, 51_000), A::REMOTE_POD, ACK)).0,
        REDIRECT
    );
    for (source, why) in [
        (A::OTHER_POD.0, "another pod's address"),
        (A::REMOTE_POD.0, "the address of a pod elsewhere"),
        (A::NOBODY, "nobody's address"),
    ] {
        stays(kernel, topology, &Packet::tcp((source, 51_000), A::OTHER_POD, ACK), why);
    }
    // From outside, a pod of this node has sent nothing.
    for source in [A::LOCAL_POD, A::OTHER_POD] {
        let packet = Packet::tcp(source, A::LOCAL_POD, ACK);
        assert_eq!(arrive(kernel, topology, &packet), (NEXT, packet.bytes()));
    }
}

both!(frames_for_other_hosts_and_marked_packets_reach_the_stack, not_ours);

fn not_ours<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    prepare::<A>(kernel, topology);
    let packet = Packet::tcp((A::LOCAL_POD.0, 51_000), A::REMOTE_POD, ACK);
    assert_eq!(leave(kernel, topology, &packet).0, REDIRECT);
    for link in [[2, 0, 0, 0, 0, 9], [0xff; 6], [0x01, 0, 0x5e, 0, 0, 1]] {
        let mut frame = packet.bytes();
        frame[..6].copy_from_slice(&link);
        let run = tcx_bytes(kernel, Program::PodIngress, &frame, topology.pod);
        assert_eq!((run.verdict, run.packet), (NEXT, frame), "{link:?}");
    }
    let frame = packet.bytes();
    let mut context = [0_u8; 192];
    for (at, value) in [(MARK, 7), (INGRESS_IFINDEX, topology.pod), (IFINDEX, topology.pod)] {
        context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    let run = kernel.test_run(Program::PodIngress, &frame, &context, 1).unwrap();
    assert_eq!((run.verdict, run.packet), (NEXT, frame), "routes may depend on the mark");
}

both!(another_route_is_taken_with_the_next_tick, another_route);

fn another_route<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    prepare::<A>(kernel, topology);
    let packet = Packet::tcp((A::LOCAL_POD.0, 51_000), A::REMOTE_POD, ACK);
    let frame = packet.bytes();
    let leads_to =
        |link: [u8; 6]| tcx_bytes(kernel, Program::PodIngress, &frame, topology.pod).packet[..6] == link;
    eventually(|| leads_to(OTHER_NODE_LINK));
    let (prefix, via) = A::REMOTE_ROUTE;
    let router: IpAddr = A::router().into();
    ip(&format!("neigh replace {router} lladdr 02:00:00:00:00:33 dev up0"));
    ip(&format!("route replace {prefix} via {router}"));
    eventually(|| leads_to(NEW_LINK));
    ip(&format!("route del {prefix}"));
    eventually(|| leave(kernel, topology, &packet).0 == NEXT);
    ip(&format!("route add {prefix} via {via}"));
    eventually(|| leads_to(OTHER_NODE_LINK));
}

/// Waits for something that the next tick brings.
fn eventually(mut found: impl FnMut() -> bool) {
    let end = Instant::now() + scaled(Duration::from_secs(10));
    while !found() {
        assert!(Instant::now() < end, "it did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
