//! Errors about translated packets, in both directions, as their receivers see them.

use std::net::{Ipv4Addr, Ipv6Addr};

use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::Protocol;
use userspace_dataplane::{Kernel, Program};

use super::families::both;
use super::net::*;
use super::support::Node;
use super::support::packet::{ACK, Packet, SYN};
use super::support::topology::*;
use super::{metric, on_node};

/// Returns an error about a packet, with as much of it as fits into `quoted` bytes of transport.
fn error<A: Net>(from: A, kind: [u8; 2], about: &Packet<A>, quoted: usize) -> Packet<A> {
    let bytes = about.bytes();
    let end = bytes.len().min(14 + A::HEADER + quoted);
    let rest = [&[0, 0, 5, 0x14], &bytes[14..end]].concat();
    Packet::icmp(from, about.source.0, kind[0], kind[1], &rest)
}

/// Returns the packet that an error quotes; if it is quoted completely, every checksum in it is verified.
fn quoted<A: Net>(error: &Packet<A>, whole: bool) -> ((A, u16), (A, u16)) {
    assert_eq!(error.payload[4..8], [0, 0, 5, 0x14], "the length of the next link");
    let quote = &error.payload[8..];
    if whole {
        let frame = [&[0; 12][..], if A::VERSION == 4 { &[8, 0] } else { &[0x86, 0xdd] }, quote].concat();
        let packet = Packet::<A>::parse(&frame);
        return (packet.source, packet.destination);
    }
    if A::VERSION == 4 {
        assert_eq!(super::support::packet::checksum(&[&quote[..20]]), 0, "checksum of the quoted header");
    }
    let (at, size) = if A::VERSION == 4 { (12, 4) } else { (8, 16) };
    let port = |at: usize| u16::from_be_bytes([quote[at], quote[at + 1]]);
    (
        (A::read(&quote[at..at + size]), port(A::HEADER)),
        (A::read(&quote[at + size..at + 2 * size]), port(A::HEADER + 2)),
    )
}

const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];
/// Bytes of the quoted transport: the minimum, and more than there is.
const LENGTHS: [(usize, bool); 2] = [(8, false), (2_000, true)];

both!(a_router_near_the_client_reaches_the_backend, from_the_client_s_side);

fn from_the_client_s_side<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let before = metric(node, "icmp_translated");
    for protocol in PROTOCOLS {
        // To a local pod, whose client keeps its address.
        kernel.apply_service("a/b", Some(&outside::<A>(protocol, &[at(A::LOCAL_POD, true)]))).unwrap();
        let packet = first(protocol, A::CLIENT, A::node_port());
        tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
        for (length, whole) in LENGTHS {
            let reply = following(protocol, A::node_port(), A::CLIENT, ACK);
            let packet = error(A::router(), A::TOO_BIG, &reply, length);
            let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
            let there = Packet::<A>::parse(&run.packet);
            assert_eq!((run.verdict, there.source.0), (REDIRECT, A::router()));
            assert_eq!((there.destination.0, there.ttl), (A::LOCAL_POD.0, 63));
            assert_eq!(quoted(&there, whole), (A::LOCAL_POD, A::CLIENT));
            assert_eq!(there.payload[..2], A::TOO_BIG);
        }
        // To a pod elsewhere, which knows the node as the client.
        let client = (A::CLIENT.0, 41_000);
        kernel.apply_service("a/b", Some(&outside::<A>(protocol, &[at(A::REMOTE_POD, false)]))).unwrap();
        let run = xdp(kernel, &first(protocol, client, A::node_port()), topology.uplink);
        let sent = Packet::<A>::parse(&run.packet);
        for (length, whole) in LENGTHS {
            let reply = following(protocol, A::node_port(), client, ACK);
            let packet = error(A::router(), A::TOO_BIG, &reply, length);
            assert_eq!(xdp(kernel, &packet, topology.uplink).verdict, XDP_PASS);
            let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
            let there = Packet::<A>::parse(&run.packet);
            assert_eq!((run.verdict, there.destination.0), (REDIRECT, A::REMOTE_POD.0));
            assert_eq!(quoted(&there, whole), (A::REMOTE_POD, sent.source));
        }
        kernel.apply_service("a/b", None).unwrap();
    }
    assert_eq!(metric(node, "icmp_translated") - before, 8);
}

both!(a_backend_s_error_comes_from_the_service, from_the_backend_s_side);

fn from_the_backend_s_side<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    for protocol in PROTOCOLS {
        kernel.apply_service("a/b", Some(&outside::<A>(protocol, &[at(A::REMOTE_POD, false)]))).unwrap();
        let run = xdp(kernel, &first(protocol, A::CLIENT, A::node_port()), topology.uplink);
        let sent = Packet::<A>::parse(&run.packet);
        for (length, whole) in LENGTHS {
            // The pod has closed its socket: the client gets the error from the service.
            let packet = error(A::REMOTE_POD.0, A::PORT_UNREACHABLE, &sent, length);
            assert_eq!(xdp(kernel, &packet, topology.uplink).verdict, XDP_PASS);
            let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
            let there = Packet::<A>::parse(&run.packet);
            assert_eq!((run.verdict, there.source.0), (REDIRECT, A::NODE));
            assert_eq!(there.destination.0, A::CLIENT.0);
            assert_eq!(quoted(&there, whole), (A::CLIENT, A::node_port()));
            // A router on the way there uses its own address.
            let packet = error(A::router(), A::TOO_BIG, &sent, length);
            let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
            let there = Packet::<A>::parse(&run.packet);
            assert_eq!(
                (run.verdict, there.source.0, there.destination.0),
                (REDIRECT, A::router(), A::CLIENT.0)
            );
            assert_eq!(quoted(&there, whole), (A::CLIENT, A::node_port()));
        }
        // From pod to pod.
        kernel.apply_service("a/b", Some(&inside::<A>(protocol, &[at(A::OTHER_POD, true)]))).unwrap();
        let client = (A::LOCAL_POD.0, 51_000);
        let run = tcx(kernel, Program::PodIngress, &first(protocol, client, A::VIP), topology.pod);
        let packet = error(A::OTHER_POD.0, A::PORT_UNREACHABLE, &Packet::<A>::parse(&run.packet), 2_000);
        let run = tcx(kernel, Program::PodIngress, &packet, topology.other_pod);
        let there = Packet::<A>::parse(&run.packet);
        assert_eq!((run.verdict, there.source.0, there.destination.0), (REDIRECT, A::VIP.0, client.0));
        assert_eq!(quoted(&there, true), (client, A::VIP));
        kernel.apply_service("a/b", None).unwrap();
    }
}

both!(the_node_s_own_errors_are_translated_where_they_leave, from_the_node);

fn from_the_node<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    kernel.apply_service("a/b", Some(&outside::<A>(Protocol::Tcp, &[at(A::LOCAL_POD, true)]))).unwrap();
    tcx(kernel, Program::UplinkIngress, &Packet::tcp(A::CLIENT, A::node_port(), SYN), topology.uplink);
    let packet = error(A::NODE, A::TOO_BIG, &Packet::tcp(A::CLIENT, A::LOCAL_POD, ACK), 2_000);
    let run = tcx(kernel, Program::Egress, &packet, topology.uplink);
    let there = Packet::<A>::parse(&run.packet);
    assert_eq!((run.verdict, there.source.0, there.destination.0), (NEXT, A::NODE, A::CLIENT.0));
    assert_eq!((quoted(&there, true), there.ttl), ((A::CLIENT, A::node_port()), 64));
    // An error about something else is not changed.
    let packet = error(A::router(), A::TOO_BIG, &Packet::tcp(A::LOCAL_POD, (A::CLIENT.0, 7), ACK), 2_000);
    for (program, interface) in [(Program::UplinkIngress, topology.uplink), (Program::Egress, topology.pod)] {
        let run = tcx(kernel, program, &packet, interface);
        assert_eq!((run.verdict, run.packet), (NEXT, packet.bytes()));
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_quoted_datagram_without_a_checksum_stays_without_one() {
    on_node(|kernel, topology, _| {
        let tables = outside::<Ipv4Addr>(Protocol::Udp, &[at(REMOTE_POD, false)]);
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let run = xdp(kernel, &Packet::udp(CLIENT, Ipv4Addr::node_port(), b"x"), topology.uplink);
        let mut quote = run.packet[14..42].to_vec();
        quote[26..28].fill(0);
        let rest = [&[0, 0, 0, 0], quote.as_slice()].concat();
        let packet = Packet::icmp(REMOTE_POD.0, NODE, 3, 3, &rest);
        let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
        let there = Packet::<Ipv4Addr>::parse(&run.packet);
        assert_eq!((run.verdict, there.destination.0), (REDIRECT, CLIENT.0));
        assert_eq!(there.payload[8 + 26..8 + 28], [0, 0]);
    });
}
