//! Both families and all protocols through every hook.

use std::net::{Ipv4Addr, Ipv6Addr};

use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::Protocol;
use userspace_dataplane::{Kernel, Program};

use super::net::*;
use super::support::packet::{ACK, Packet, RST, SCTP, SYN, TCP};
use super::support::topology::*;
use super::support::{Node, sysctl};
use super::{metric, on_node};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Runs a body for both families on one node.
macro_rules! both {
    ($name:ident, $body:ident) => {
        #[test]
        #[ignore = "needs root and eBPF: cargo xtask test"]
        fn $name() {
            on_node(|kernel, topology, node| {
                $body::<Ipv4Addr>(kernel, topology, node);
                $body::<Ipv6Addr>(kernel, topology, node);
            });
        }
    };
}
pub(crate) use both;

both!(a_pod_reaches_another_one_and_hears_the_service, pod_to_pod);

fn pod_to_pod<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    for protocol in PROTOCOLS {
        kernel.apply_service("a/b", Some(&inside::<A>(protocol, &[at(A::OTHER_POD, true)]))).unwrap();
        let client = (A::LOCAL_POD.0, 51_000);
        let run = tcx(kernel, Program::PodIngress, &first(protocol, client, A::VIP), topology.pod);
        let expected = Packet { ttl: 63, ..first(protocol, client, A::OTHER_POD) };
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        let reply = following(protocol, A::OTHER_POD, client, SYN | ACK);
        let run = tcx(kernel, Program::PodIngress, &reply, topology.other_pod);
        let expected = Packet { ttl: 63, ..following(protocol, A::VIP, client, SYN | ACK) };
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
    }
}

both!(packets_of_a_flow_keep_its_next_hop, kept_hop);

fn kept_hop<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    const LINK: [u8; 6] = [2, 0, 0, 0, 0, 6];
    let address: std::net::IpAddr = A::OTHER_POD.0.into();
    super::support::ip(&format!("neigh replace {address} lladdr 02:00:00:00:00:06 dev pod2"));
    kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Tcp, &[at(A::OTHER_POD, true)]))).unwrap();
    let client = (A::LOCAL_POD.0, 51_000);
    let links: Vec<_> = (0..4)
        .map(|_| {
            let run = tcx(kernel, Program::PodIngress, &Packet::tcp(client, A::VIP, SYN), topology.pod);
            let there = Packet::<A>::parse(&run.packet);
            assert_eq!((run.verdict, there.destination, there.ttl), (REDIRECT, A::OTHER_POD, 63));
            there.link
        })
        .collect();
    // The first one of a tick leaves by the neighbour, which writes the link header.
    assert_eq!(links[0][..6], [2, 0, 0, 0, 0, 1]);
    assert!(links[1..].iter().any(|link| link[..6] == LINK), "{links:?}");
}

both!(a_client_outside_keeps_its_address_at_a_local_pod, outside_to_local_pod);

fn outside_to_local_pod<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    for protocol in PROTOCOLS {
        kernel.apply_service("a/b", Some(&outside::<A>(protocol, &[at(A::LOCAL_POD, true)]))).unwrap();
        // The type of service stays.
        let packet = Packet { tos: 0x28, ..first(protocol, A::CLIENT, A::node_port()) };
        assert_eq!(xdp(kernel, &packet, topology.uplink).verdict, XDP_PASS);
        let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
        let expected = Packet { ttl: 63, tos: 0x28, ..first(protocol, A::CLIENT, A::LOCAL_POD) };
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        let reply = following(protocol, A::LOCAL_POD, A::CLIENT, SYN | ACK);
        let run = tcx(kernel, Program::PodIngress, &reply, topology.pod);
        let expected = Packet { ttl: 63, ..following(protocol, A::node_port(), A::CLIENT, SYN | ACK) };
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        // XDP leaves an established flow too if it ends on this node.
        let packet = following(protocol, A::CLIENT, A::node_port(), ACK);
        assert_eq!(xdp(kernel, &packet, topology.uplink).verdict, XDP_PASS);
    }
}

both!(without_forwarding_packets_are_translated_for_the_node_itself_alone, without_forwarding);

/// The kernel looks up no next hop for a node that does not forward. The stack gets the translated packet,
/// and accepts it if it is for the node.
fn without_forwarding<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    let host = (A::NODE, 6_443);
    let switches = ["net/ipv4/conf/up0/forwarding", "net/ipv6/conf/up0/forwarding"];
    switches.iter().for_each(|switch| sysctl(switch, "0"));
    for (port, backend, local) in [(1, A::LOCAL_POD, true), (2, host, true), (3, A::REMOTE_POD, false)] {
        kernel.apply_service("a/b", Some(&outside::<A>(Protocol::Tcp, &[at(backend, local)]))).unwrap();
        let client = (A::CLIENT.0, A::CLIENT.1 + port);
        let packet = Packet::tcp(client, A::node_port(), SYN);
        let run = xdp(kernel, &packet, topology.uplink);
        assert_eq!((run.verdict, run.packet), (XDP_PASS, packet.bytes()));
        let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
        let there = Packet::<A>::parse(&run.packet);
        assert_eq!((run.verdict, there.destination), (NEXT, backend));
        assert_eq!(there.source == client, local);
        if backend == host {
            let reply = Packet::tcp(host, client, SYN | ACK);
            let run = tcx(kernel, Program::Egress, &reply, topology.uplink);
            let expected = Packet::tcp(A::node_port(), client, SYN | ACK);
            assert_eq!((run.verdict, Packet::parse(&run.packet)), (NEXT, expected));
        }
    }
    switches.iter().for_each(|switch| sysctl(switch, "1"));
}

both!(xdp_carries_between_outside_and_other_nodes, through);

fn through<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let before = metric(node, "xdp_transmitted");
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        kernel.apply_service("a/b", Some(&outside::<A>(protocol, &[at(A::REMOTE_POD, false)]))).unwrap();
        for flags in [SYN, ACK] {
            let packet = Packet { tos: 0x28, ..following(protocol, A::CLIENT, A::node_port(), flags) };
            let run = xdp(kernel, &packet, topology.uplink);
            let there = Packet::<A>::parse(&run.packet);
            assert_eq!(there.tos, packet.tos);
            assert_eq!((run.verdict, there.source.0, there.destination), (XDP_TX, A::NODE, A::REMOTE_POD));
            assert_eq!((there.ttl, &there.link[..6]), (63, OTHER_NODE_LINK.as_slice()));
            assert_eq!(there.payload, packet.payload);
            // tcx knows the same flow, in case XDP is absent.
            let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
            let same = Packet::<A>::parse(&run.packet);
            assert_eq!((run.verdict, same.source, same.destination), (REDIRECT, there.source, A::REMOTE_POD));
            let reply = following(protocol, A::REMOTE_POD, there.source, ACK);
            let run = xdp(kernel, &reply, topology.uplink);
            let back = Packet::<A>::parse(&run.packet);
            assert_eq!((run.verdict, back.source, back.destination), (XDP_TX, A::node_port(), A::CLIENT));
            assert_eq!((back.ttl, &back.link[..6]), (63, CLIENT_LINK.as_slice()));
        }
    }
    assert_eq!(metric(node, "xdp_transmitted") - before, 8);
}

both!(what_xdp_leaves_tcx_carries, tcx_through);

fn tcx_through<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    // SCTP, and headers with options or extensions.
    for protocol in PROTOCOLS {
        kernel.apply_service("a/b", Some(&outside::<A>(protocol, &[at(A::REMOTE_POD, false)]))).unwrap();
        for options in [&[][..], A::OPTIONS] {
            if options.is_empty() && protocol != Protocol::Sctp {
                continue;
            }
            let packet = Packet { options: options.to_vec(), ..first(protocol, A::CLIENT, A::node_port()) };
            let run = xdp(kernel, &packet, topology.uplink);
            assert_eq!((run.verdict, run.packet), (XDP_PASS, packet.bytes()));
            let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
            let there = Packet::<A>::parse(&run.packet);
            assert_eq!((run.verdict, there.source.0, there.destination), (REDIRECT, A::NODE, A::REMOTE_POD));
            assert_eq!((&there.payload, &there.options), (&packet.payload, &packet.options));
            let reply = Packet {
                options: options.to_vec(),
                ..following(protocol, A::REMOTE_POD, there.source, SYN | ACK)
            };
            let run = tcx(kernel, Program::UplinkIngress, &reply, topology.uplink);
            let back = Packet::<A>::parse(&run.packet);
            assert_eq!((run.verdict, back.source, back.destination), (REDIRECT, A::node_port(), A::CLIENT));
        }
    }
}

both!(a_pod_that_reaches_itself_sees_the_node, hairpin);

fn hairpin<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    for protocol in PROTOCOLS {
        kernel.apply_service("a/b", Some(&inside::<A>(protocol, &[at(A::LOCAL_POD, true)]))).unwrap();
        let client = (A::LOCAL_POD.0, 51_000);
        let run = tcx(kernel, Program::PodIngress, &first(protocol, client, A::VIP), topology.pod);
        let there = Packet::<A>::parse(&run.packet);
        assert_eq!((run.verdict, there.source.0, there.destination), (REDIRECT, A::NODE, A::LOCAL_POD));
        assert!((1_024..30_000).contains(&there.source.1));
        let reply = following(protocol, A::LOCAL_POD, there.source, SYN | ACK);
        let run = tcx(kernel, Program::PodIngress, &reply, topology.pod);
        let expected = Packet { ttl: 63, ..following(protocol, A::VIP, client, SYN | ACK) };
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
    }
}

both!(egress_translates_what_the_node_made_and_what_it_forwards, egress);

fn egress<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    let host = (A::NODE, 6_443);
    let client = (A::LOCAL_POD.0, 51_000);
    for protocol in PROTOCOLS {
        kernel.apply_service("a/b", Some(&inside::<A>(protocol, &[at(host, true)]))).unwrap();
        let run = tcx(kernel, Program::PodIngress, &first(protocol, client, A::VIP), topology.pod);
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (NEXT, first(protocol, client, host)));
        let reply = following(protocol, host, client, SYN | ACK);
        let expected = following(protocol, A::VIP, client, SYN | ACK);
        let run = tcx(kernel, Program::Egress, &reply, topology.pod);
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (NEXT, expected.clone()));
        // One that came in on another interface.
        let mut context = [0_u8; 192];
        context[36..40].copy_from_slice(&topology.other_pod.to_ne_bytes());
        context[40..44].copy_from_slice(&topology.pod.to_ne_bytes());
        let run = kernel.test_run(Program::Egress, &reply.bytes(), &context, 1).unwrap();
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (NEXT, expected.clone()));
        // A translated packet is not a reply any more, nor is a packet to the service.
        for other in [expected, first(protocol, client, A::VIP), first(protocol, client, host)] {
            let run = tcx(kernel, Program::Egress, &other, topology.pod);
            assert_eq!((run.verdict, run.packet), (NEXT, other.bytes()));
        }
    }
}

both!(without_backends_the_sender_is_told_at_once, refused);

fn refused<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let client = (A::LOCAL_POD.0, 51_000);
    let before = metric(node, "packet_refused");
    for protocol in PROTOCOLS {
        kernel.apply_service("a/b", Some(&inside::<A>(protocol, &[]))).unwrap();
        for options in [&[][..], A::OPTIONS] {
            let packet = Packet { options: options.to_vec(), ..first(protocol, client, A::VIP) };
            let run = tcx(kernel, Program::PodIngress, &packet, topology.pod);
            let answer = Packet::<A>::parse(&run.packet);
            assert_eq!(run.verdict, REDIRECT);
            assert_eq!(answer.link, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
            assert_eq!((answer.source.0, answer.destination.0), (A::VIP.0, client.0));
            match answer.protocol {
                TCP => {
                    assert_eq!((answer.source, answer.destination), (A::VIP, client));
                    let numbers = (answer.flags, answer.sequence, answer.acknowledged);
                    assert_eq!(numbers, (RST | ACK, 0, packet.sequence + 1));
                }
                // The chunk ABORT, with the tag from the client.
                SCTP => {
                    assert_eq!((answer.source, answer.destination), (A::VIP, client));
                    assert_eq!(
                        (answer.sequence, answer.payload.as_slice()),
                        (0xdead_beef, &[6, 0, 0, 4][..])
                    );
                }
                _ => {
                    assert_eq!(answer.protocol, A::ICMP);
                    assert_eq!(answer.payload[..2], A::PORT_UNREACHABLE);
                    // The quote has no options.
                    let plain = first(protocol, client, A::VIP).bytes();
                    let quote = &answer.payload[8..];
                    let transport = 14 + A::HEADER;
                    assert_eq!(quote[..A::HEADER], plain[14..transport]);
                    assert_eq!(quote[A::HEADER..], plain[transport..transport + 8]);
                }
            }
        }
    }
    assert_eq!(metric(node, "packet_refused") - before, 6);
    // In the middle of an association the only known tag is the packet's own.
    kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Sctp, &[]))).unwrap();
    let packet = Packet { sequence: 77, ..following(Protocol::Sctp, client, A::VIP, ACK) };
    let run = tcx(kernel, Program::PodIngress, &packet, topology.pod);
    let answer = Packet::<A>::parse(&run.packet);
    assert_eq!((answer.sequence, answer.payload.as_slice()), (77, &[6, 1, 0, 4][..]));
    let abort = Packet::sctp(client, A::VIP, &[6, 1, 0, 4]);
    assert_eq!(tcx(kernel, Program::PodIngress, &abort, topology.pod).verdict, DROP);
}

both!(one_backend_behind_two_services_keeps_replies_apart, two_services);

fn two_services<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    use userspace_dataplane::tables::Scope;
    let client = (A::LOCAL_POD.0, 51_000);
    for protocol in PROTOCOLS {
        let backends = [at(A::OTHER_POD, true)];
        kernel.apply_service("a/one", Some(&inside::<A>(protocol, &backends))).unwrap();
        let second = with([front(A::NEXT_VIP, protocol, Scope::Internal, &backends)]);
        kernel.apply_service("a/two", Some(&second)).unwrap();
        let mut sources = Vec::new();
        for service in [A::VIP, A::NEXT_VIP] {
            let run = tcx(kernel, Program::PodIngress, &first(protocol, client, service), topology.pod);
            let there = Packet::<A>::parse(&run.packet);
            assert_eq!(there.destination, A::OTHER_POD);
            let reply = following(protocol, A::OTHER_POD, there.source, SYN | ACK);
            let run = tcx(kernel, Program::PodIngress, &reply, topology.other_pod);
            let back = Packet::<A>::parse(&run.packet);
            assert_eq!((back.source, back.destination), (service, client));
            sources.push(there.source);
        }
        assert_ne!(sources[0], sources[1]);
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn sctp_s_checksum_is_right_at_every_length() {
    on_node(|kernel, topology, _| {
        let tables = inside::<Ipv4Addr>(Protocol::Sctp, &[at(OTHER_POD, true)]);
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let client = (LOCAL_POD.0, 51_000);
        for length in (4..120).chain([1_000, 1_401, 1_460]) {
            let chunk: Vec<u8> = (0..length).map(|byte: u32| (byte * 37) as u8).collect();
            let packet = Packet::sctp(client, VIP, &chunk);
            let run = tcx(kernel, Program::PodIngress, &packet, topology.pod);
            let there = Packet::<Ipv4Addr>::parse(&run.packet);
            assert_eq!((run.verdict, there.destination, there.payload), (REDIRECT, OTHER_POD, chunk));
        }
        // A checksum that a device has yet to fill in stays empty.
        let mut bytes = Packet::sctp(client, VIP, &[7; 40]).bytes();
        bytes[42..46].fill(0);
        let run = tcx_bytes(kernel, Program::PodIngress, &bytes, topology.pod);
        assert_eq!((run.verdict, &run.packet[42..46]), (REDIRECT, [0; 4].as_slice()));
        // A service at the backend's own port has nothing to change.
        let same = with([front(
            (VIP.0, OTHER_POD.1),
            Protocol::Sctp,
            super::Scope::Internal,
            &[at(OTHER_POD, true)],
        )]);
        kernel.apply_service("a/c", Some(&same)).unwrap();
        let packet = Packet::sctp((client.0, 51_001), (VIP.0, OTHER_POD.1), &[7; 40]);
        let run = tcx(kernel, Program::PodIngress, &packet, topology.pod);
        let there = Packet::<Ipv4Addr>::parse(&run.packet);
        assert_eq!((run.verdict, there.destination), (REDIRECT, OTHER_POD));
        assert_eq!(run.packet[42..46], packet.bytes()[42..46]);
    });
}
