//! Connections to services of IPv4, and what becomes of them.

use userspace_dataplane::Kernel;
use userspace_dataplane::Program;
use userspace_dataplane::inspect::{Inspector, State};
use userspace_dataplane::tables::{Backend, DataPlane, Protocol, Scope, ServiceTables};

use super::support::packet::{ACK, End, FIN, ICMP, Packet, RST, SYN, checksum};
use super::support::topology::*;
use super::support::{self, frontend, key, service};
use super::{NODE_PORT, forget_flow4, metric, node_port, on_node, vip};

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn what_is_not_a_service_goes_on_unchanged() {
    on_node(|kernel, topology, _| {
        kernel
            .apply_service("a/b", Some(&vip(Protocol::Tcp, Scope::Internal, &[at(LOCAL_POD, true)])))
            .unwrap();
        let other = (std::net::Ipv4Addr::new(10, 96, 0, 11), 80);
        for packet in [
            Packet::tcp(LOCAL_POD, other, SYN),
            Packet::tcp(LOCAL_POD, (VIP.0, 81), SYN),
            Packet::udp(LOCAL_POD, VIP, b"x"),
            Packet {
                payload: vec![8, 0, 0xf7, 0xff, 0, 0, 0, 0],
                protocol: ICMP,
                ..Packet::tcp(LOCAL_POD, VIP, 0)
            },
        ] {
            let run = tcx(kernel, Program::PodIngress, &packet, topology.pod);
            assert_eq!((run.verdict, run.packet), (NEXT, packet.bytes()));
        }
        // A cluster address is not answered from outside.
        let packet = Packet::tcp(CLIENT, VIP, SYN);
        assert_eq!(tcx(kernel, Program::UplinkIngress, &packet, topology.uplink).verdict, NEXT);
        assert_eq!(xdp(kernel, &packet, topology.uplink).verdict, XDP_PASS);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_reaches_another_pod_through_the_service_and_back() {
    on_node(|kernel, topology, node| {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let tables = vip(protocol, Scope::Internal, &[at(OTHER_POD, true)]);
            kernel.apply_service("a/b", Some(&tables)).unwrap();
            let packet = |from, to, flags| match protocol {
                Protocol::Udp => Packet::udp(from, to, b"hello"),
                _ => Packet::tcp(from, to, flags),
            };
            let client = (LOCAL_POD.0, 51_000);
            let run = tcx(kernel, Program::PodIngress, &packet(client, VIP, SYN), topology.pod);
            let expected = Packet { ttl: 63, ..packet(client, OTHER_POD, SYN) };
            assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
            let reply = packet(OTHER_POD, client, SYN | ACK);
            let run = tcx(kernel, Program::PodIngress, &reply, topology.other_pod);
            let expected = Packet { ttl: 63, ..packet(VIP, client, SYN | ACK) };
            assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        }
        assert_eq!(metric(node, "flow_created"), 2);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_node_port_reaches_a_local_pod_with_the_client_s_address() {
    on_node(|kernel, topology, _| {
        kernel.apply_service("a/b", Some(&node_port(Protocol::Tcp, &[at(LOCAL_POD, true)]))).unwrap();
        let packet = Packet::tcp(CLIENT, NODE_PORT, SYN);
        assert_eq!(xdp(kernel, &packet, topology.uplink).verdict, XDP_PASS);
        let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
        let expected = Packet { ttl: 63, ..Packet::tcp(CLIENT, LOCAL_POD, SYN) };
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        let reply = Packet::tcp(LOCAL_POD, CLIENT, SYN | ACK);
        let run = tcx(kernel, Program::PodIngress, &reply, topology.pod);
        let expected = Packet { ttl: 63, ..Packet::tcp(NODE_PORT, CLIENT, SYN | ACK) };
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        // An established flow is not for XDP either: it ends on this node.
        let packet = Packet::tcp(CLIENT, NODE_PORT, ACK);
        assert_eq!(xdp(kernel, &packet, topology.uplink).verdict, XDP_PASS);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_backend_on_the_node_itself_answers_through_egress() {
    on_node(|kernel, topology, _| {
        let host = (NODE, 6_443);
        let tables = vip(Protocol::Tcp, Scope::Internal, &[at(host, true)]);
        kernel.apply_service("default/kubernetes", Some(&tables)).unwrap();
        let client = (LOCAL_POD.0, 51_000);
        let run = tcx(kernel, Program::PodIngress, &Packet::tcp(client, VIP, SYN), topology.pod);
        // The stack delivers it: there is no way to redirect to.
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (NEXT, Packet::tcp(client, host, SYN)));
        let reply = Packet::tcp(host, client, SYN | ACK);
        let run = tcx(kernel, Program::Egress, &reply, topology.pod);
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (NEXT, Packet::tcp(VIP, client, SYN | ACK)));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_that_reaches_itself_sees_the_node() {
    on_node(|kernel, topology, _| {
        let tables = vip(Protocol::Tcp, Scope::Internal, &[at(LOCAL_POD, true)]);
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let client = (LOCAL_POD.0, 51_000);
        let run = tcx(kernel, Program::PodIngress, &Packet::tcp(client, VIP, SYN), topology.pod);
        let there = Packet::parse(&run.packet);
        assert_eq!((run.verdict, there.source.0, there.destination), (REDIRECT, NODE, LOCAL_POD));
        assert!((1_024..30_000).contains(&there.source.1));
        let reply = Packet::tcp(LOCAL_POD, there.source, SYN | ACK);
        let run = tcx(kernel, Program::PodIngress, &reply, topology.pod);
        let expected = Packet { ttl: 63, ..Packet::tcp(VIP, client, SYN | ACK) };
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn xdp_carries_flows_between_outside_and_other_nodes() {
    on_node(|kernel, topology, node| {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            kernel.apply_service("a/b", Some(&node_port(protocol, &[at(REMOTE_POD, false)]))).unwrap();
            let packet = |from, to, flags| match protocol {
                Protocol::Udp => Packet::udp(from, to, b"odd"),
                _ => Packet::tcp(from, to, flags),
            };
            let run = xdp(kernel, &packet(CLIENT, NODE_PORT, SYN), topology.uplink);
            let there = Packet::parse(&run.packet);
            assert_eq!((run.verdict, there.source.0, there.destination), (XDP_TX, NODE, REMOTE_POD));
            assert_eq!((there.ttl, &there.link[..6]), (63, OTHER_NODE_LINK.as_slice()));
            let reply = packet(REMOTE_POD, there.source, SYN | ACK);
            let run = xdp(kernel, &reply, topology.uplink);
            let back = Packet::parse(&run.packet);
            assert_eq!((run.verdict, back.source, back.destination), (XDP_TX, NODE_PORT, CLIENT));
            assert_eq!((back.ttl, &back.link[..6]), (63, CLIENT_LINK.as_slice()));
            // tcx knows the same flow, should XDP be absent.
            let run = tcx(kernel, Program::UplinkIngress, &packet(CLIENT, NODE_PORT, ACK), topology.uplink);
            assert_eq!((run.verdict, Packet::parse(&run.packet).source), (REDIRECT, there.source));
        }
        assert_eq!(metric(node, "xdp_transmitted"), 4);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn xdp_leaves_a_packet_whose_neighbour_is_unknown_to_the_stack_unchanged() {
    on_node(|kernel, topology, _| {
        support::ip("neigh del 192.0.2.2 dev up0");
        kernel.apply_service("a/b", Some(&node_port(Protocol::Tcp, &[at(REMOTE_POD, false)]))).unwrap();
        let packet = Packet::tcp(CLIENT, NODE_PORT, SYN);
        let run = xdp(kernel, &packet, topology.uplink);
        assert_eq!((run.verdict, run.packet), (XDP_PASS, packet.bytes()));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_datagram_without_a_checksum_stays_without_one() {
    on_node(|kernel, topology, _| {
        kernel.apply_service("a/b", Some(&node_port(Protocol::Udp, &[at(REMOTE_POD, false)]))).unwrap();
        let mut bytes = Packet::udp(CLIENT, NODE_PORT, b"x").bytes();
        bytes[40..42].copy_from_slice(&[0, 0]);
        let mut context = [0_u8; 24];
        context[4..8].copy_from_slice(&(bytes.len() as u32).to_ne_bytes());
        context[12..16].copy_from_slice(&topology.uplink.to_ne_bytes());
        let run = kernel.test_run(Program::UplinkXdp, &bytes, &context, 1).unwrap();
        assert_eq!((run.verdict, &run.packet[40..42]), (XDP_TX, [0, 0].as_slice()));
        let mut context = [0_u8; 192];
        context[40..44].copy_from_slice(&topology.uplink.to_ne_bytes());
        let run = kernel.test_run(Program::UplinkIngress, &bytes, &context, 1).unwrap();
        assert_eq!((run.verdict, &run.packet[40..42]), (REDIRECT, [0, 0].as_slice()));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn without_backends_tcp_is_reset() {
    on_node(|kernel, topology, node| {
        kernel.apply_service("a/b", Some(&vip(Protocol::Tcp, Scope::Internal, &[]))).unwrap();
        let client = (LOCAL_POD.0, 51_000);
        let syn = Packet::tcp(client, VIP, SYN);
        let run = tcx(kernel, Program::PodIngress, &syn, topology.pod);
        let expected = Packet {
            link: [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1],
            sequence: 0,
            acknowledged: syn.sequence + 1,
            ..Packet::tcp(VIP, client, RST | ACK)
        };
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        // In the middle of a connection, with data: as its peer's missing socket would answer.
        let data = Packet { acknowledged: 77, payload: vec![7; 100], ..Packet::tcp(client, VIP, ACK) };
        let run = tcx(kernel, Program::PodIngress, &data, topology.pod);
        let answer = Packet::<std::net::Ipv4Addr>::parse(&run.packet);
        assert_eq!((answer.flags, answer.sequence, answer.payload.len()), (RST, 77, 0));
        // No reset for a reset.
        let reset = Packet::tcp(client, VIP, RST);
        assert_eq!(tcx(kernel, Program::PodIngress, &reset, topology.pod).verdict, DROP);
        assert_eq!(metric(node, "packet_refused"), 3);
        let rows = Inspector::open(&node.bpf_root()).unwrap().services().unwrap();
        assert_eq!((rows[0].refused, rows[0].connections), (3, 0));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn without_backends_udp_gets_port_unreachable() {
    on_node(|kernel, topology, _| {
        kernel.apply_service("a/b", Some(&vip(Protocol::Udp, Scope::Internal, &[]))).unwrap();
        for payload in [b"x".as_slice(), &[9; 200]] {
            let datagram = Packet::udp((LOCAL_POD.0, 51_000), VIP, payload);
            let run = tcx(kernel, Program::PodIngress, &datagram, topology.pod);
            let answer = Packet::parse(&run.packet);
            assert_eq!((run.verdict, answer.protocol), (REDIRECT, ICMP));
            assert_eq!((answer.source.0, answer.destination.0), (VIP.0, LOCAL_POD.0));
            assert_eq!(answer.payload[..8], [3, 3, answer.payload[2], answer.payload[3], 0, 0, 0, 0]);
            assert_eq!(answer.payload[8..], datagram.bytes()[14..42]);
            assert_eq!(checksum(&[&answer.payload]), 0);
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_frontend_that_drops_when_empty_is_silent() {
    on_node(|kernel, topology, node| {
        let mut tables = node_port(Protocol::Tcp, &[]);
        tables.frontends[0].drop_when_empty = true;
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let packet = Packet::tcp(CLIENT, NODE_PORT, SYN);
        assert_eq!(xdp(kernel, &packet, topology.uplink).verdict, XDP_PASS);
        assert_eq!(tcx(kernel, Program::UplinkIngress, &packet, topology.uplink).verdict, DROP);
        assert_eq!(metric(node, "packet_dropped_empty"), 1);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn one_backend_behind_two_services_keeps_their_replies_apart() {
    on_node(|kernel, topology, _| {
        let second = (std::net::Ipv4Addr::new(10, 96, 0, 20), 80);
        let backends = [at(OTHER_POD, true)];
        kernel.apply_service("a/one", Some(&vip(Protocol::Tcp, Scope::Internal, &backends))).unwrap();
        let tables = service(key("10.96.0.20", 80, Protocol::Tcp, Scope::Internal), &backends);
        kernel.apply_service("a/two", Some(&tables)).unwrap();
        let client = (LOCAL_POD.0, 51_000);
        let mut sources = Vec::new();
        for frontend in [VIP, second] {
            let run = tcx(kernel, Program::PodIngress, &Packet::tcp(client, frontend, SYN), topology.pod);
            let there = Packet::parse(&run.packet);
            assert_eq!(there.destination, OTHER_POD);
            let reply = Packet::tcp(OTHER_POD, there.source, SYN | ACK);
            let run = tcx(kernel, Program::PodIngress, &reply, topology.other_pod);
            let back = Packet::parse(&run.packet);
            assert_eq!((back.source, back.destination), (frontend, client));
            sources.push(there.source);
        }
        // The same client port cannot serve both.
        assert_ne!(sources[0], sources[1]);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn source_ports_run_out_with_a_count_and_come_back() {
    on_node(|kernel, topology, node| {
        kernel.set_snat_ports(2_000, 2_003);
        kernel.apply_service("a/b", Some(&node_port(Protocol::Tcp, &[at(REMOTE_POD, false)]))).unwrap();
        let client = |number: u16| (CLIENT.0, 40_000 + number);
        let mut used = std::collections::BTreeMap::new();
        for number in 0..64 {
            let run = xdp(kernel, &Packet::tcp(client(number), NODE_PORT, SYN), topology.uplink);
            match run.verdict {
                XDP_TX => assert_eq!(
                    used.insert(Packet::<std::net::Ipv4Addr>::parse(&run.packet).source, client(number)),
                    None
                ),
                verdict => assert_eq!(verdict, XDP_DROP),
            }
        }
        assert_eq!(used.len(), 4);
        assert_eq!(metric(node, "snat_exhausted"), 60);
        // Connections that were reset make room, a moment later.
        for client in used.values() {
            xdp(kernel, &Packet::tcp(*client, NODE_PORT, RST), topology.uplink);
        }
        std::thread::sleep(std::time::Duration::from_millis(2_300));
        let run = xdp(kernel, &Packet::tcp(client(99), NODE_PORT, SYN), topology.uplink);
        assert_eq!(run.verdict, XDP_TX);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn established_tcp_keeps_a_removed_backend_and_everything_new_leaves_it() {
    on_node(|kernel, topology, node| {
        let both =
            |protocol| frontend(key("10.96.0.10", 80, protocol, Scope::Internal), &[at(OTHER_POD, true)]);
        let mut tables = ServiceTables {
            frontends: vec![both(Protocol::Tcp), both(Protocol::Udp)],
            ..ServiceTables::default()
        };
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let client = (LOCAL_POD.0, 51_000);
        let to = |kernel: &Kernel, packet: Packet| {
            let run = tcx(kernel, Program::PodIngress, &packet, topology.pod);
            Packet::parse(&run.packet).destination
        };
        assert_eq!(to(kernel, Packet::tcp(client, VIP, SYN)), OTHER_POD);
        assert_eq!(to(kernel, Packet::udp(client, VIP, b"x")), OTHER_POD);
        for frontend in &mut tables.frontends {
            frontend.backends = vec![at(REMOTE_POD, false)];
        }
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        assert_eq!(to(kernel, Packet::tcp(client, VIP, ACK)), OTHER_POD);
        assert_eq!(to(kernel, Packet::udp(client, VIP, b"x")), REMOTE_POD);
        assert_eq!(to(kernel, Packet::tcp(client, VIP, SYN)), REMOTE_POD);
        assert_eq!(metric(node, "flow_moved"), 2);
        // Without any backend left, even a known flow of datagrams is refused.
        for frontend in &mut tables.frontends {
            frontend.backends.clear();
        }
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let run = tcx(kernel, Program::PodIngress, &Packet::udp(client, VIP, b"x"), topology.pod);
        assert_eq!(
            (run.verdict, Packet::<std::net::Ipv4Addr>::parse(&run.packet).protocol),
            (REDIRECT, ICMP)
        );
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_with_affinity_stays_with_its_backend() {
    on_node(|kernel, topology, _| {
        let backends: Vec<Backend> = (1..=20)
            .map(|number| at((std::net::Ipv4Addr::new(10, 1, 0, number + 100), 8_080), true))
            .collect();
        let mut tables = vip(Protocol::Tcp, Scope::Internal, &backends);
        tables.frontends[0].affinity_seconds = 600;
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let to = |kernel: &Kernel, port| {
            let packet = Packet::tcp((LOCAL_POD.0, port), VIP, SYN);
            Packet::parse(&tcx(kernel, Program::PodIngress, &packet, topology.pod).packet).destination
        };
        let first = to(kernel, 51_000);
        assert!((51_001..51_050).all(|port| to(kernel, port) == first));
        // When that backend goes, the client settles on another.
        let gone =
            backends.iter().position(|backend| std::net::IpAddr::V4(first.0) == backend.address).unwrap();
        tables.frontends[0].backends.remove(gone);
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let second = to(kernel, 52_000);
        assert_ne!(second, first);
        assert!((52_001..52_050).all(|port| to(kernel, port) == second));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_packet_that_is_cut_short_is_left_to_the_stack() {
    on_node(|kernel, topology, _| {
        kernel
            .apply_service("a/b", Some(&vip(Protocol::Udp, Scope::Internal, &[at(OTHER_POD, true)])))
            .unwrap();
        let mut bytes = Packet::udp((LOCAL_POD.0, 51_000), VIP, &[1; 64]).bytes();
        bytes.truncate(40);
        let run = tcx_bytes(kernel, Program::PodIngress, &bytes, topology.pod);
        assert_eq!((run.verdict, run.packet), (NEXT, bytes));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn connections_are_seen_with_both_ends_and_their_end() {
    on_node(|kernel, topology, node| {
        kernel
            .apply_service("a/b", Some(&vip(Protocol::Tcp, Scope::Internal, &[at(OTHER_POD, true)])))
            .unwrap();
        let client = (LOCAL_POD.0, 51_000);
        let send = |from: End, to: End, flags, interface| {
            tcx(kernel, Program::PodIngress, &Packet::tcp(from, to, flags), interface);
        };
        let row = || Inspector::open(&node.bpf_root()).unwrap().connections().unwrap().remove(0);
        send(client, VIP, SYN, topology.pod);
        let seen = row();
        assert_eq!((seen.service.as_str(), seen.state, seen.source), ("a/b", State::Open, None));
        assert_eq!(seen.client, Some((client.0.into(), client.1)));
        assert_eq!(seen.frontend, (VIP.0.into(), VIP.1));
        assert_eq!(seen.backend, (OTHER_POD.0.into(), OTHER_POD.1));
        send(client, VIP, FIN | ACK, topology.pod);
        assert_ne!(row().state, State::Closed);
        send(OTHER_POD, client, FIN | ACK, topology.other_pod);
        assert_eq!(row().state, State::Closed);
        send(client, VIP, SYN, topology.pod);
        assert_ne!(row().state, State::Closed);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_flow_whose_replies_were_forgotten_gets_them_back() {
    on_node(|kernel, topology, node| {
        kernel
            .apply_service("a/b", Some(&vip(Protocol::Udp, Scope::Internal, &[at(OTHER_POD, true)])))
            .unwrap();
        let client = (LOCAL_POD.0, 51_000);
        let forward = || tcx(kernel, Program::PodIngress, &Packet::udp(client, VIP, b"x"), topology.pod);
        let reply =
            || tcx(kernel, Program::PodIngress, &Packet::udp(OTHER_POD, client, b"y"), topology.other_pod);
        forward();
        assert_eq!(reply().verdict, REDIRECT);
        let mut key = [OTHER_POD.0.octets(), client.0.octets()].concat();
        key.extend(OTHER_POD.1.to_be_bytes());
        key.extend(client.1.to_be_bytes());
        key.extend(17_u32.to_ne_bytes());
        forget_flow4(node, &key);
        assert_eq!(reply().verdict, NEXT);
        // Noticed once a tick.
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        forward();
        assert_eq!(reply().verdict, REDIRECT);
    });
}
