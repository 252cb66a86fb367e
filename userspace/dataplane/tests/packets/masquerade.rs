//! Packets of pods that leave the cluster: the client of the other tests is the host outside.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::explain::{self, Outcome, Query};
use userspace_dataplane::inspect::{ConnectionRow, Inspector};
use userspace_dataplane::tables::{Masquerade, NodeTables, NonMasquerade, Protocol};
use userspace_dataplane::{Kernel, Program};

use super::families::both;
use super::net::*;
use super::support::Node;
use super::support::packet::{ACK, FIN, Fragment, Packet, RST, SYN};
use super::support::topology::*;
use super::{make_quiet, metric, on_node};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Returns the settings of a node whose pods are masqueraded, and these further ranges.
pub fn settings(more: &[(&str, NonMasquerade)]) -> NodeTables {
    let range = |text: &str| text.parse().unwrap();
    let mut exempt = BTreeMap::from([
        (range("10.0.0.0/14"), NonMasquerade::Cluster),
        (range("fd00::/30"), NonMasquerade::Cluster),
        (range("192.0.2.1/32"), NonMasquerade::Node),
        (range("2001:db8::1/128"), NonMasquerade::Node),
        (range("224.0.0.0/4"), NonMasquerade::NotRouted),
        (range("ff00::/8"), NonMasquerade::NotRouted),
    ]);
    exempt.extend(more.iter().map(|(text, reason)| (range(text), *reason)));
    let pods = vec![range("10.1.0.0/24"), range("fd00:1::/64")];
    NodeTables {
        addresses: vec![NODE.into(), NODE6.into()],
        masquerade: Some(Masquerade { pods, exempt }),
        ..NodeTables::default()
    }
}

/// Sends a packet of the pod.
fn out<A: Net>(kernel: &Kernel, topology: &Topology, packet: &Packet<A>) -> (u32, Packet<A>) {
    let run = tcx(kernel, Program::PodIngress, packet, topology.pod);
    (run.verdict, Packet::parse(&run.packet))
}

/// Receives a packet from outside, which XDP leaves to tcx.
fn back<A: Net>(kernel: &Kernel, topology: &Topology, packet: &Packet<A>) -> (u32, Packet<A>) {
    let run = xdp(kernel, packet, topology.uplink);
    assert_eq!((run.verdict, run.packet), (XDP_PASS, packet.bytes()));
    let run = tcx(kernel, Program::UplinkIngress, packet, topology.uplink);
    (run.verdict, Packet::parse(&run.packet))
}

fn connections(node: &Node) -> Vec<ConnectionRow> {
    Inspector::open(&node.bpf_root()).unwrap().connections().unwrap()
}

/// Returns an echo request or reply.
fn echo<A: Net>(kind: u8, from: A, to: A, identifier: u16, length: usize) -> Packet<A> {
    let mut rest = identifier.to_be_bytes().to_vec();
    rest.extend([0, 9]);
    rest.extend((0..length).map(|byte| byte as u8 ^ 0x5a));
    Packet::icmp(from, to, kind, 0, &rest)
}

fn identifier<A>(packet: &Packet<A>) -> u16 {
    u16::from_be_bytes([packet.payload[4], packet.payload[5]])
}

both!(a_pod_reaches_the_outside_with_the_nodes_address, there_and_back);

fn there_and_back<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    let before = metric(node, "masqueraded");
    for protocol in PROTOCOLS {
        let pod = (A::LOCAL_POD.0, 51_000);
        let (verdict, there) = out(kernel, topology, &first(protocol, pod, A::CLIENT));
        let expected = Packet { ttl: 63, ..first(protocol, (A::NODE, there.source.1), A::CLIENT) };
        assert_eq!((verdict, &there), (REDIRECT, &expected));
        assert!((1_024..30_000).contains(&there.source.1), "{}", there.source.1);
        let (_, again) = out(kernel, topology, &following(protocol, pod, A::CLIENT, ACK));
        assert_eq!(again.source, there.source, "one flow");
        let (verdict, reply) =
            back(kernel, topology, &following(protocol, A::CLIENT, there.source, SYN | ACK));
        let expected = Packet { ttl: 63, ..following(protocol, A::CLIENT, pod, SYN | ACK) };
        assert_eq!((verdict, reply), (REDIRECT, expected));
    }
    assert_eq!(metric(node, "masqueraded") - before, 3);
    let rows = connections(node);
    let row = rows.iter().find(|row| row.client == Some((A::LOCAL_POD.0.into(), 51_000))).unwrap();
    assert!(row.masqueraded && row.service.is_empty() && row.external == Some(false), "{row:?}");
    assert_eq!(row.frontend, row.backend);
}

both!(a_port_of_the_range_stays_unless_another_pod_has_it, own_port);

fn own_port<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    let mine = Packet::tcp((A::LOCAL_POD.0, 20_000), A::CLIENT, SYN);
    assert_eq!(out(kernel, topology, &mine).1.source, (A::NODE, 20_000));
    let others = Packet::tcp((A::OTHER_POD.0, 20_000), A::CLIENT, SYN);
    let run = tcx(kernel, Program::PodIngress, &others, topology.other_pod);
    let there = Packet::<A>::parse(&run.packet);
    assert_eq!(there.source.0, A::NODE);
    assert_ne!(there.source.1, 20_000);
    // Each gets the reply to its own.
    let (_, reply) = back(kernel, topology, &Packet::tcp(A::CLIENT, (A::NODE, 20_000), SYN | ACK));
    assert_eq!(reply.destination, (A::LOCAL_POD.0, 20_000));
    let (_, reply) = back(kernel, topology, &Packet::tcp(A::CLIENT, there.source, SYN | ACK));
    assert_eq!(reply.destination, (A::OTHER_POD.0, 20_000));
}

both!(pings_have_an_identifier_in_place_of_a_port, pings);

fn pings<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    let pod = A::LOCAL_POD.0;
    let (verdict, there) = out(kernel, topology, &echo(A::ECHO, pod, A::CLIENT.0, 51_000, 40));
    let given = identifier(&there);
    assert!((1_024..30_000).contains(&given), "{given}");
    let expected = Packet { ttl: 63, ..echo(A::ECHO, A::NODE, A::CLIENT.0, given, 40) };
    assert_eq!((verdict, there), (REDIRECT, expected));
    let (verdict, reply) = back(kernel, topology, &echo(A::ECHO_REPLY, A::CLIENT.0, A::NODE, given, 40));
    let expected = Packet { ttl: 63, ..echo(A::ECHO_REPLY, A::CLIENT.0, pod, 51_000, 40) };
    assert_eq!((verdict, reply), (REDIRECT, expected));
    // Another one's reply goes to the node.
    let other = echo(A::ECHO_REPLY, A::CLIENT.0, A::NODE, given ^ 1, 40);
    assert_eq!(back(kernel, topology, &other), (NEXT, other));
    // So do requests from outside, and the pod's replies to such keep its address.
    let request = echo(A::ECHO, A::CLIENT.0, A::NODE, given, 40);
    assert_eq!(back(kernel, topology, &request), (NEXT, request));
    let answer = echo(A::ECHO_REPLY, pod, A::CLIENT.0, 7, 40);
    assert_eq!(out(kernel, topology, &answer), (NEXT, answer));
    // Pods are pinged under the pod's address.
    let inside = echo(A::ECHO, pod, A::OTHER_POD.0, 51_000, 40);
    assert_eq!(out(kernel, topology, &inside), (NEXT, inside));
    let rows = connections(node);
    let row = rows.iter().find(|row| row.protocol == Some(Protocol::Icmp)).unwrap();
    assert!(row.masqueraded, "{row:?}");
}

/// Returns an error about a packet, with as much of it as fits into `quoted` bytes of transport.
fn error<A: Net>(from: A, kind: [u8; 2], about: &Packet<A>, quoted: usize) -> Packet<A> {
    let bytes = about.bytes();
    let end = bytes.len().min(14 + A::HEADER + quoted);
    let rest = [&[0, 0, 5, 0x14], &bytes[14..end]].concat();
    Packet::icmp(from, about.source.0, kind[0], kind[1], &rest)
}

/// Returns the packet that an error quotes completely; its checksums are verified.
fn quoted<A: Net>(error: &Packet<A>) -> Packet<A> {
    let kind = if A::VERSION == 4 { &[8, 0] } else { &[0x86, 0xdd] };
    Packet::parse(&[&[0; 12][..], kind, &error.payload[8..]].concat())
}

both!(errors_about_packets_that_left_reach_the_pod, errors);

fn errors<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    let pod = (A::LOCAL_POD.0, 51_000);
    let sent = [
        first(Protocol::Tcp, pod, A::CLIENT),
        first(Protocol::Udp, pod, A::CLIENT),
        first(Protocol::Sctp, pod, A::CLIENT),
        echo(A::ECHO, pod.0, A::CLIENT.0, 51_000, 40),
    ];
    for packet in sent {
        let (_, there) = out(kernel, topology, &packet);
        // From a router on the way, and from the host itself.
        for (from, kind) in [(A::router(), A::TOO_BIG), (A::CLIENT.0, A::PORT_UNREACHABLE)] {
            let (verdict, told) = back(kernel, topology, &error(from, kind, &there, 2_000));
            assert_eq!((verdict, told.source.0, told.destination.0), (REDIRECT, from, pod.0));
            assert_eq!(told.payload[..2], kind);
            // SCTP's checksum covers its ports, and the quote may be cut: it is not computed anew.
            if packet.protocol != super::support::packet::SCTP {
                let quote = quoted(&told);
                assert_eq!(Packet { ttl: 64, link: packet.link, ..quote }, packet);
            }
        }
        // With the least that is quoted.
        let (verdict, told) = back(kernel, topology, &error(A::router(), A::TOO_BIG, &there, 8));
        assert_eq!((verdict, told.destination.0), (REDIRECT, pod.0));
    }
    // The pod's own error about a reply leaves under the node's address.
    let (_, there) = out(kernel, topology, &first(Protocol::Udp, pod, A::CLIENT));
    let (_, reply) = back(kernel, topology, &following(Protocol::Udp, A::CLIENT, there.source, 0));
    let (verdict, told) = out(kernel, topology, &error(pod.0, A::PORT_UNREACHABLE, &reply, 2_000));
    assert_eq!((verdict, told.source.0, told.destination.0), (REDIRECT, A::NODE, A::CLIENT.0));
    assert_eq!(quoted(&told).destination, there.source);
}

both!(fragments_leave_with_their_first_one, fragments);

fn fragments<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    let pod = (A::LOCAL_POD.0, 51_000);
    let payload = [7_u8; 150];
    let long: [(Packet<A>, Packet<A>); 2] = [
        (Packet::udp(pod, A::CLIENT, &payload), Packet::udp(A::CLIENT, pod, &payload)),
        (
            echo(A::ECHO, pod.0, A::CLIENT.0, 51_000, 150),
            echo(A::ECHO_REPLY, A::CLIENT.0, pod.0, 51_000, 150),
        ),
    ];
    for (number, (request, reply)) in (40..).zip(long) {
        let pass = |program, packet: &Packet<A>, interface| {
            let parts = packet.fragments(number, 64).map(|part| {
                let run = tcx_bytes(kernel, program, &part, interface);
                assert_eq!(run.verdict, REDIRECT, "{packet:?}");
                Packet::<A>::parse_fragment(&run.packet)
            });
            let [(head, first), (tail, second)] = parts;
            assert_eq!(first, Fragment { identification: number, offset: 0, more: true });
            assert_eq!(second, Fragment { identification: number, offset: 64, more: false });
            assert_eq!(
                (head.source.0, head.destination.0, head.ttl),
                (tail.source.0, tail.destination.0, tail.ttl)
            );
            let transport = [head.payload.as_slice(), &tail.payload].concat();
            // Verifies the checksum of the whole.
            let mut whole = Packet { payload: transport, ..head };
            whole.source.1 = 0;
            whole.destination.1 = 0;
            let header = whole.clone();
            reassembled(&header)
        };
        let there = pass(Program::PodIngress, &request, topology.pod);
        assert_eq!((there.source.0, there.destination), (A::NODE, request.destination));
        let answer = if request.protocol == A::ICMP {
            echo(A::ECHO_REPLY, A::CLIENT.0, A::NODE, identifier(&there), 150)
        } else {
            Packet::udp(A::CLIENT, there.source, &payload)
        };
        let home = pass(Program::UplinkIngress, &answer, topology.uplink);
        assert_eq!(home, Packet { ttl: 63, ..reply });
    }
}

/// Parses a datagram whose whole transport part is in the payload, which verifies its checksum.
fn reassembled<A: Net>(packet: &Packet<A>) -> Packet<A> {
    // The payload has the transport header already: built as ICMP, for which the builder writes none, and then
    // given the right number.
    let mut frame = Packet { protocol: A::ICMP, ..packet.clone() }.bytes();
    let at = if A::VERSION == 4 { 14 + 9 } else { 14 + 6 };
    let change = u16::from(frame[at]);
    frame[at] = packet.protocol;
    if A::VERSION == 4 {
        let check = u16::from_be_bytes([frame[24], frame[25]]);
        let mut sum = u32::from(!check) + u32::from(!change) + u32::from(packet.protocol);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
    Packet::parse(&frame)
}

both!(packets_within_the_cluster_keep_their_source, inside_the_cluster);

fn inside_the_cluster<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let listed = [("192.0.2.96/28", NonMasquerade::Configured), ("2001:db8::/64", NonMasquerade::Configured)];
    kernel.set_node(&settings(&listed)).unwrap();
    let (masqueraded, foreign) = (metric(node, "masqueraded"), metric(node, "masquerade_source"));
    let multicast: A = match A::VERSION {
        4 => A::read(&[224, 0, 0, 251]),
        _ => A::read(&[&[0xff, 2][..], &[0; 13], &[0xfb]].concat()),
    };
    let pod = (A::LOCAL_POD.0, 51_000);
    for to in [A::OTHER_POD, A::REMOTE_POD, A::CLIENT, (A::NODE, 80), (multicast, 5_353)] {
        for protocol in PROTOCOLS {
            let packet = first(protocol, pod, to);
            let (_, sent) = out(kernel, topology, &packet);
            assert_eq!((sent.source, sent.destination), (packet.source, packet.destination));
        }
    }
    kernel.set_node(&settings(&[])).unwrap();
    // An address that is no pod's of this node is not hidden behind the node's.
    let packet = first(Protocol::Udp, (A::REMOTE_POD.0, 51_000), A::CLIENT);
    assert_eq!(out(kernel, topology, &packet), (NEXT, packet));
    assert_eq!(metric(node, "masquerade_source") - foreign, 1);
    // Packets from outside are not concerned, whatever their source.
    let packet = first(Protocol::Udp, pod, (A::router(), 53));
    assert_eq!(back(kernel, topology, &packet), (NEXT, packet));
    assert_eq!(metric(node, "masqueraded"), masqueraded);
    kernel.set_node(&NodeTables { masquerade: None, ..settings(&[]) }).unwrap();
    let packet = first(Protocol::Udp, pod, A::CLIENT);
    assert_eq!(out(kernel, topology, &packet), (NEXT, packet), "switched off");
}

both!(replies_to_datagrams_from_outside_keep_the_pods_address, asked_from_outside);

fn asked_from_outside<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    let masqueraded = metric(node, "masqueraded");
    let pod = (A::LOCAL_POD.0, 5_353);
    let passed = |(verdict, found): (u32, Packet<A>), sent: Packet<A>| {
        assert_eq!(verdict, REDIRECT);
        assert_eq!(found, Packet { ttl: sent.ttl - 1, link: found.link, ..sent });
    };
    let asked = first(Protocol::Udp, A::CLIENT, pod);
    for _ in 0..2 {
        passed(back(kernel, topology, &asked), asked.clone());
        let reply = first(Protocol::Udp, pod, A::CLIENT);
        passed(out(kernel, topology, &reply), reply);
    }
    let rows = connections(node);
    let row = rows.iter().find(|row| row.client == Some((A::CLIENT.0.into(), A::CLIENT.1))).unwrap();
    assert!(!row.masqueraded && row.service.is_empty() && row.external == Some(true), "{row:?}");
    assert_eq!(metric(node, "masqueraded"), masqueraded);
    // A connection that the pod has begun keeps its translation.
    let other = (A::LOCAL_POD.0, 53);
    let (_, there) = out(kernel, topology, &first(Protocol::Udp, other, A::CLIENT));
    assert_eq!(there.source.0, A::NODE);
    let forged = first(Protocol::Udp, A::CLIENT, other);
    assert_eq!(back(kernel, topology, &forged), (NEXT, forged));
    let (_, again) = out(kernel, topology, &first(Protocol::Udp, other, A::CLIENT));
    assert_eq!(again.source, there.source);
    // Pods of other nodes have no flows.
    let within = first(Protocol::Udp, A::REMOTE_POD, pod);
    assert_eq!(back(kernel, topology, &within), (NEXT, within));
}

both!(connections_opened_from_outside_keep_the_pods_address, opened_from_outside);

fn opened_from_outside<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    let masqueraded = metric(node, "masqueraded");
    let pod = (A::LOCAL_POD.0, 8_080);
    for flags in [SYN | ACK, ACK, FIN | ACK, RST] {
        let packet = following(Protocol::Tcp, pod, A::CLIENT, flags);
        assert_eq!(out(kernel, topology, &packet), (NEXT, packet), "{flags:#x}");
    }
    let data = following(Protocol::Sctp, pod, A::CLIENT, ACK);
    assert_eq!(out(kernel, topology, &data), (NEXT, data));
    assert_eq!(metric(node, "masqueraded"), masqueraded);
    // A connection that the pod opens has a flow, which its later packets find.
    assert_eq!(out(kernel, topology, &first(Protocol::Tcp, pod, A::CLIENT)).0, REDIRECT);
    let (verdict, later) = out(kernel, topology, &following(Protocol::Tcp, pod, A::CLIENT, ACK));
    assert_eq!((verdict, later.source.0), (REDIRECT, A::NODE));
}

both!(ports_that_run_out_break_no_flow, exhaustion);

fn exhaustion<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    kernel.set_snat_ports(2_000, 2_003);
    let before = metric(node, "masquerade_exhausted");
    let packet = |port: u16, flags| Packet::tcp((A::LOCAL_POD.0, port), A::CLIENT, flags);
    let sent: Vec<_> =
        (40_000..40_012).map(|port| (port, out(kernel, topology, &packet(port, SYN)))).collect();
    let (living, refused): (Vec<_>, Vec<_>) =
        sent.into_iter().partition(|(_, (verdict, _))| *verdict == REDIRECT);
    assert_eq!((living.len(), refused.len()), (4, 8));
    assert!(refused.iter().all(|(_, (verdict, _))| *verdict == DROP));
    assert_eq!(metric(node, "masquerade_exhausted") - before, 8);
    for (port, (_, there)) in &living {
        let (verdict, again) = out(kernel, topology, &packet(*port, ACK));
        assert_eq!((verdict, again.source), (REDIRECT, there.source));
        let (_, reply) = back(kernel, topology, &Packet::tcp(A::CLIENT, there.source, ACK));
        assert_eq!(reply.destination, (A::LOCAL_POD.0, *port));
    }
    let mut events = Inspector::open(&node.bpf_root()).unwrap().events().unwrap();
    let mut told = std::iter::from_fn(|| events.read()).filter(|event| event.kind == "masquerade_exhausted");
    let client = (A::CLIENT.0.into(), A::CLIENT.1);
    assert!(told.any(|event| event.destination == client && event.service.is_none()));
    // Each destination has all ports to itself.
    let elsewhere = Packet::tcp((A::LOCAL_POD.0, 40_000), (A::router(), 443), SYN);
    assert_eq!(out(kernel, topology, &elsewhere).0, REDIRECT);
    // A connection that has ended gives its port back.
    let (port, (_, there)) = &living[0];
    out(kernel, topology, &packet(*port, FIN | ACK));
    back(kernel, topology, &Packet::tcp(A::CLIENT, there.source, RST));
    if A::VERSION == 4 {
        make_quiet(node);
        assert_eq!(out(kernel, topology, &packet(41_000, SYN)).0, REDIRECT);
    }
    kernel.set_snat_ports(1_024, 29_999);
}

both!(a_service_may_have_a_backend_outside, service_outside);

fn service_outside<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    for protocol in PROTOCOLS {
        kernel.apply_service("a/b", Some(&inside::<A>(protocol, &[at(A::CLIENT, false)]))).unwrap();
        let pod = (A::LOCAL_POD.0, 51_000);
        let (verdict, there) = out(kernel, topology, &first(protocol, pod, A::VIP));
        let expected = Packet { ttl: 63, ..first(protocol, (A::NODE, there.source.1), A::CLIENT) };
        assert_eq!((verdict, &there), (REDIRECT, &expected));
        let (verdict, reply) = back(kernel, topology, &following(protocol, A::CLIENT, there.source, ACK));
        let expected = Packet { ttl: 63, ..following(protocol, A::VIP, pod, ACK) };
        assert_eq!((verdict, reply), (REDIRECT, expected));
        let rows = connections(node);
        let row = rows.iter().find(|row| row.frontend == (A::VIP.0.into(), A::VIP.1)).unwrap();
        assert_eq!((row.service.as_str(), row.masqueraded), ("a/b", true));
    }
    // A backend on another node keeps the pod's address.
    kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Tcp, &[at(A::REMOTE_POD, false)]))).unwrap();
    let (_, there) = out(kernel, topology, &Packet::tcp((A::LOCAL_POD.0, 51_001), A::VIP, SYN));
    assert_eq!(there.source, (A::LOCAL_POD.0, 51_001));
    kernel.apply_service("a/b", None).unwrap();
}

both!(packet_filters_see_the_pods_address, through_the_stack);

fn through_the_stack<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    kernel.set_node(&NodeTables { through_stack: true, ..settings(&[]) }).unwrap();
    let pod = (A::LOCAL_POD.0, 51_000);
    for packet in [first(Protocol::Tcp, pod, A::CLIENT), echo(A::ECHO, pod.0, A::CLIENT.0, 51_000, 8)] {
        assert_eq!(out(kernel, topology, &packet), (NEXT, packet.clone()));
        // Where the stack sends it out.
        let run = tcx(kernel, Program::Egress, &packet, topology.uplink);
        let there = Packet::<A>::parse(&run.packet);
        assert_eq!((run.verdict, there.source.0, there.destination), (NEXT, A::NODE, packet.destination));
        let reply = if packet.protocol == A::ICMP {
            echo(A::ECHO_REPLY, A::CLIENT.0, A::NODE, identifier(&there), 8)
        } else {
            Packet::tcp(A::CLIENT, there.source, SYN | ACK)
        };
        let (verdict, home) = back(kernel, topology, &reply);
        assert_eq!((verdict, home.source, home.destination), (NEXT, reply.source, packet.source));
    }
}

both!(the_stack_answers_for_packets_that_go_no_further, no_further);

fn no_further<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    let pod = (A::LOCAL_POD.0, 51_000);
    let nowhere: A = match A::VERSION {
        4 => A::read(&[198, 51, 100, 9]),
        _ => A::read(&[&[0x20, 1, 0xd, 0xb8, 0, 9][..], &[0; 9], &[9]].concat()),
    };
    for packet in [
        // Its last hop is this node.
        Packet { ttl: 1, ..first(Protocol::Udp, pod, A::CLIENT) },
        // There is no route.
        first(Protocol::Udp, pod, (nowhere, 53)),
    ] {
        assert_eq!(out(kernel, topology, &packet), (NEXT, packet));
    }
}

both!(changed_ranges_concern_new_flows_and_datagrams, changes);

fn changes<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    kernel.set_node(&settings(&[])).unwrap();
    let pod = (A::LOCAL_POD.0, 51_000);
    let sent = |kernel: &Kernel, protocol, flags| {
        out(kernel, topology, &following(protocol, pod, A::CLIENT, flags)).1.source.0
    };
    assert_eq!(sent(kernel, Protocol::Tcp, SYN), A::NODE);
    assert_eq!(sent(kernel, Protocol::Udp, 0), A::NODE);
    let listed = [("192.0.2.96/28", NonMasquerade::Configured), ("2001:db8::/64", NonMasquerade::Configured)];
    kernel.set_node(&settings(&listed)).unwrap();
    assert_eq!(sent(kernel, Protocol::Tcp, ACK), A::NODE, "an established connection goes on");
    assert_eq!(sent(kernel, Protocol::Udp, 0), pod.0);
    kernel.set_node(&settings(&[])).unwrap();
    assert_eq!(sent(kernel, Protocol::Udp, 0), A::NODE);
    // The destination becomes a service's, and a service somewhere loses a backend.
    let front = front(
        A::CLIENT,
        Protocol::Udp,
        userspace_dataplane::tables::Scope::Internal,
        &[at(A::OTHER_POD, true)],
    );
    kernel.apply_service("a/b", Some(&with([front]))).unwrap();
    kernel.apply_service("a/c", Some(&inside::<A>(Protocol::Tcp, &[at(A::OTHER_POD, true)]))).unwrap();
    kernel.apply_service("a/c", None).unwrap();
    let (_, there) = out(kernel, topology, &following(Protocol::Udp, pod, A::CLIENT, 0));
    assert_eq!((there.source, there.destination), (pod, A::OTHER_POD));
    kernel.apply_service("a/b", None).unwrap();
}

both!(explain_tells_which_range_a_destination_is_in, explained);

fn explained<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let (range, listed) = match A::VERSION {
        4 => ("198.51.100.0/24", "198.51.100.7"),
        _ => ("2001:db8:9::/48", "2001:db8:9::7"),
    };
    kernel.set_node(&settings(&[(range, NonMasquerade::Configured)])).unwrap();
    let end =
        |address: &str, port: u16| std::net::SocketAddr::new(address.parse().unwrap(), port).to_string();
    let address = |address: A| -> String { Into::<std::net::IpAddr>::into(address).to_string() };
    let ask = |words: &[&str]| {
        let query = Query::parse(words, None).unwrap();
        let snapshot = Inspector::open(&node.bpf_root()).unwrap().snapshot(&query).unwrap();
        let found = explain::explain(&snapshot, &query);
        let text = format!("{:?}", found.paths);
        (found.outcome().clone(), text)
    };
    let pod = end(&address(A::LOCAL_POD.0), 51_000);
    let (outcome, text) = ask(&["udp", &pod, &end(listed, 53)]);
    assert_eq!(outcome, Outcome::NotAService);
    assert!(text.contains(&format!("{listed} is in {range}")) && text.contains("ip-masq-agent"), "{text}");
    let there = end(&address(A::CLIENT.0), A::CLIENT.1);
    let (outcome, _) = ask(&["udp", &pod, &there]);
    let Outcome::Masqueraded { source: Some(source), .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!((source.address, source.port), (A::NODE.into(), None));
    let (_, sent) = out(kernel, topology, &first(Protocol::Udp, (A::LOCAL_POD.0, 51_000), A::CLIENT));
    let (outcome, _) = ask(&["udp", &pod, &there]);
    let Outcome::Masqueraded { source: Some(source), .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(source.port, Some(sent.source.1));
    let (outcome, text) = ask(&["udp", &end(&address(A::router()), 1), &there]);
    assert_eq!(outcome, Outcome::NotAService);
    assert!(text.contains("not the address of a pod of this node"), "{text}");
}
