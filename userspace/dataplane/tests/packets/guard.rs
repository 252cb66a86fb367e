//! Packets that are not admitted, and addresses that no service has.

use std::net::{Ipv4Addr, Ipv6Addr};

use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{Frontend, NodeTables, Protocol, Scope};
use userspace_dataplane::{Kernel, Program};

use super::families::both;
use super::net::*;
use super::support::Node;
use super::support::packet::{ACK, Packet, RST, SYN};
use super::support::topology::*;
use super::{metric, on_node};

/// Returns settings of the test's node.
fn settings() -> NodeTables {
    NodeTables {
        addresses: vec![NODE.into(), NODE6.into()],
        service_ranges: vec![Ipv4Addr::RANGE.parse().unwrap(), Ipv6Addr::RANGE.parse().unwrap()],
        ..NodeTables::default()
    }
}

both!(only_sources_in_a_service_s_ranges_come_in, source_ranges);

fn source_ranges<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let before = metric(node, "source_range_dropped");
    for backend in [at(A::REMOTE_POD, false), at(A::LOCAL_POD, true)] {
        let mut tables = outside::<A>(Protocol::Tcp, &[backend]);
        tables.frontends[0].limited = true;
        tables.source_ranges = vec![A::CLIENT_RANGE.parse().unwrap()];
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        for (source, allowed) in [(A::CLIENT.0, true), (A::router(), false), (A::REMOTE_POD.0, false)] {
            let packet = Packet::tcp((source, 40_123), A::node_port(), SYN);
            let by_xdp = xdp(kernel, &packet, topology.uplink).verdict;
            let by_tcx = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink).verdict;
            match allowed {
                true => {
                    assert_eq!((by_xdp, by_tcx), (if backend.local { XDP_PASS } else { XDP_TX }, REDIRECT))
                }
                false => assert_eq!((by_xdp, by_tcx), (XDP_DROP, DROP)),
            }
        }
    }
    assert_eq!(metric(node, "source_range_dropped") - before, 8);
    kernel.apply_service("a/b", None).unwrap();
}

both!(nothing_goes_on_to_a_service_range, ranges);

fn ranges<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let client = (A::LOCAL_POD.0, 51_000);
    let marked = with([
        front(A::VIP, Protocol::Tcp, Scope::Internal, &[at(A::OTHER_POD, true)]),
        Frontend::mark(A::VIP.0.into()),
    ]);
    kernel.apply_service("a/b", Some(&marked)).unwrap();
    let counts = || {
        let names = ["unknown_port_refused", "unallocated_dropped", "echo_answered"];
        names.map(|name| metric(node, name))
    };
    // Without ranges everything passes.
    let unknown_port = (A::VIP.0, 81);
    let packet = Packet::tcp(client, unknown_port, SYN);
    assert_eq!(tcx(kernel, Program::PodIngress, &packet, topology.pod).verdict, NEXT);
    kernel.set_node(&settings()).unwrap();
    let before = counts();
    for (program, interface, from) in
        [(Program::PodIngress, topology.pod, client), (Program::UplinkIngress, topology.uplink, A::CLIENT)]
    {
        let run = tcx(kernel, program, &Packet::tcp(from, unknown_port, SYN), interface);
        let answer = Packet::<A>::parse(&run.packet);
        assert_eq!((run.verdict, answer.flags & RST, answer.source), (REDIRECT, RST, unknown_port));
        let run = tcx(kernel, program, &Packet::udp(from, A::VIP, b"x"), interface);
        let answer = Packet::<A>::parse(&run.packet);
        assert_eq!((run.verdict, &answer.payload[..2]), (REDIRECT, A::PORT_UNREACHABLE.as_slice()));
        for packet in [Packet::tcp(from, A::NEXT_VIP, SYN), Packet::udp(from, A::NEXT_VIP, b"x")] {
            assert_eq!(tcx(kernel, program, &packet, interface).verdict, DROP);
            assert_eq!(xdp(kernel, &packet, interface).verdict, XDP_PASS);
        }
        let echo = |to| Packet::icmp(from.0, to, A::ECHO, 0, &[0, 1, 0, 2, 9, 9, 9]);
        let run = tcx(kernel, program, &echo(A::VIP.0), interface);
        let answer = Packet::<A>::parse(&run.packet);
        let expected = Packet {
            link: [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1],
            ..Packet::icmp(A::VIP.0, from.0, A::ECHO_REPLY, 0, &[0, 1, 0, 2, 9, 9, 9])
        };
        assert_eq!((run.verdict, answer), (REDIRECT, expected));
        assert_eq!(tcx(kernel, program, &echo(A::NEXT_VIP.0), interface).verdict, DROP);
        let run = tcx(kernel, program, &echo(A::REMOTE_POD.0), interface);
        assert_eq!((run.verdict, run.packet), (NEXT, echo(A::REMOTE_POD.0).bytes()));
    }
    let difference: Vec<u64> = counts().iter().zip(before).map(|(now, before)| now - before).collect();
    assert_eq!(difference, [4, 6, 2]);
    // The service itself is not affected.
    let run = tcx(kernel, Program::PodIngress, &Packet::tcp(client, A::VIP, SYN), topology.pod);
    assert_eq!(Packet::<A>::parse(&run.packet).destination, A::OTHER_POD);
    kernel.set_node(&NodeTables { service_ranges: Vec::new(), ..settings() }).unwrap();
}

both!(a_masqueraded_client_is_the_node_to_every_pod, masquerade);

fn masquerade<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    for (backend, interface) in [(A::OTHER_POD, topology.other_pod), (A::REMOTE_POD, topology.uplink)] {
        let mut tables = inside::<A>(Protocol::Tcp, &[at(backend, backend == A::OTHER_POD)]);
        tables.frontends[0].masquerade = true;
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let client = (A::LOCAL_POD.0, 51_000);
        let run = tcx(kernel, Program::PodIngress, &Packet::tcp(client, A::VIP, SYN), topology.pod);
        let there = Packet::<A>::parse(&run.packet);
        assert_eq!((run.verdict, there.source.0, there.destination), (REDIRECT, A::NODE, backend));
        let local = backend == A::OTHER_POD;
        let program = if local { Program::PodIngress } else { Program::UplinkIngress };
        let reply = Packet::tcp(backend, there.source, SYN | ACK);
        if !local {
            assert_eq!(xdp(kernel, &reply, interface).verdict, XDP_PASS, "it ends at a pod of this node");
        }
        let run = tcx(kernel, program, &reply, interface);
        let back = Packet::<A>::parse(&run.packet);
        assert_eq!((run.verdict, back.source, back.destination), (REDIRECT, A::VIP, client));
    }
    // The node itself must not get packets from its own address.
    let host = (A::NODE, 6_443);
    let mut tables = inside::<A>(Protocol::Tcp, &[at(host, true)]);
    tables.frontends[0].masquerade = true;
    kernel.apply_service("a/b", Some(&tables)).unwrap();
    let client = (A::LOCAL_POD.0, 51_001);
    let run = tcx(kernel, Program::PodIngress, &Packet::tcp(client, A::VIP, SYN), topology.pod);
    assert_eq!((run.verdict, Packet::parse(&run.packet)), (NEXT, Packet::tcp(client, host, SYN)));
}

both!(packets_may_go_through_the_stack, through_stack);

fn through_stack<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    kernel.set_node(&NodeTables { through_stack: true, ..settings() }).unwrap();
    kernel.apply_service("a/b", Some(&outside::<A>(Protocol::Tcp, &[at(A::LOCAL_POD, true)]))).unwrap();
    let packet = Packet::tcp(A::CLIENT, A::node_port(), SYN);
    let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
    let expected = Packet::tcp(A::CLIENT, A::LOCAL_POD, SYN);
    assert_eq!((run.verdict, Packet::parse(&run.packet)), (NEXT, expected));
    // Filters see the reply to the packet that they have seen; it becomes the service's where it leaves.
    let reply = Packet::tcp(A::LOCAL_POD, A::CLIENT, SYN | ACK);
    let run = tcx(kernel, Program::PodIngress, &reply, topology.pod);
    assert_eq!((run.verdict, run.packet), (NEXT, reply.bytes()));
    let run = tcx(kernel, Program::Egress, &reply, topology.uplink);
    let expected = Packet::tcp(A::node_port(), A::CLIENT, SYN | ACK);
    assert_eq!((run.verdict, Packet::parse(&run.packet)), (NEXT, expected));
    // If the node's address is the source, the stack would refuse the packet.
    kernel.apply_service("a/c", Some(&inside::<A>(Protocol::Tcp, &[at(A::LOCAL_POD, true)]))).unwrap();
    let client = (A::LOCAL_POD.0, 51_000);
    let run = tcx(kernel, Program::PodIngress, &Packet::tcp(client, A::VIP, SYN), topology.pod);
    assert_eq!((run.verdict, Packet::<A>::parse(&run.packet).source.0), (REDIRECT, A::NODE));
    kernel.set_node(&NodeTables { service_ranges: Vec::new(), ..settings() }).unwrap();
}
