//! Connections to services of IPv4, beyond what `families` tests for both families.

use userspace_dataplane::DataPlane;
use userspace_dataplane::Kernel;
use userspace_dataplane::Program;
use userspace_dataplane::inspect::{Inspector, State};
use userspace_dataplane::tables::{Backend, Protocol, Scope, ServiceTables};

use super::support::packet::{ACK, End, FIN, ICMP, Packet, RST, SYN, checksum};
use super::support::topology::*;
use super::support::{self, frontend, key};
use super::{NODE_PORT, forget_flow4, make_quiet, metric, node_port, on_node, vip};

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packet_to_no_service_passes_unchanged() {
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
        // A cluster address is not served from outside.
        let packet = Packet::tcp(CLIENT, VIP, SYN);
        assert_eq!(tcx(kernel, Program::UplinkIngress, &packet, topology.uplink).verdict, NEXT);
        assert_eq!(xdp(kernel, &packet, topology.uplink).verdict, XDP_PASS);
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
fn without_backends_a_connection_under_way_is_reset() {
    on_node(|kernel, topology, node| {
        kernel.apply_service("a/b", Some(&vip(Protocol::Tcp, Scope::Internal, &[]))).unwrap();
        let client = (LOCAL_POD.0, 51_000);
        // In the middle of a connection, with data: the answer is that of a missing socket.
        let data = Packet { acknowledged: 77, payload: vec![7; 100], ..Packet::tcp(client, VIP, ACK) };
        let run = tcx(kernel, Program::PodIngress, &data, topology.pod);
        let answer = Packet::<std::net::Ipv4Addr>::parse(&run.packet);
        assert_eq!((answer.flags, answer.sequence, answer.payload.len()), (RST, 77, 0));
        // A reset is not answered by a reset.
        let reset = Packet::tcp(client, VIP, RST);
        assert_eq!(tcx(kernel, Program::PodIngress, &reset, topology.pod).verdict, DROP);
        assert_eq!(metric(node, "packet_refused"), 2);
        let rows = Inspector::open(&node.bpf_root()).unwrap().services().unwrap();
        assert_eq!((rows[0].refused, rows[0].connections), (2, 0));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn refusal_quotes_the_head_of_a_long_datagram() {
    on_node(|kernel, topology, _| {
        kernel.apply_service("a/b", Some(&vip(Protocol::Udp, Scope::Internal, &[]))).unwrap();
        let datagram = Packet::udp((LOCAL_POD.0, 51_000), VIP, &[9; 200]);
        let run = tcx(kernel, Program::PodIngress, &datagram, topology.pod);
        let answer = Packet::parse(&run.packet);
        assert_eq!((run.verdict, answer.protocol), (REDIRECT, ICMP));
        assert_eq!((answer.source.0, answer.destination.0), (VIP.0, LOCAL_POD.0));
        assert_eq!(answer.payload[..8], [3, 3, answer.payload[2], answer.payload[3], 0, 0, 0, 0]);
        assert_eq!(answer.payload[8..], datagram.bytes()[14..42]);
        assert_eq!(checksum(&[&answer.payload]), 0);
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
fn source_ports_run_out_with_a_count_and_come_back() {
    on_node(|kernel, topology, node| {
        // A free port is found among as many as are tried one after the other.
        kernel.set_snat_ports(2_000, 2_007);
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
        assert_eq!(used.len(), 8);
        assert_eq!(metric(node, "snat_exhausted"), 56);
        // Connections that were reset make room, a moment later.
        for client in used.values() {
            xdp(kernel, &Packet::tcp(*client, NODE_PORT, RST), topology.uplink);
        }
        std::thread::sleep(std::time::Duration::from_millis(2_300));
        let run = xdp(kernel, &Packet::tcp(client(199), NODE_PORT, SYN), topology.uplink);
        assert_eq!(run.verdict, XDP_TX);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_whose_source_port_another_has_got_begins_anew() {
    on_node(|kernel, topology, node| {
        kernel.set_snat_ports(2_000, 2_000);
        kernel.apply_service("a/b", Some(&node_port(Protocol::Udp, &[at(REMOTE_POD, false)]))).unwrap();
        let clients = [(CLIENT.0, 40_001), (CLIENT.0, 40_002)];
        let source = |kernel: &Kernel, client| {
            let run = xdp(kernel, &Packet::udp(client, NODE_PORT, b"?"), topology.uplink);
            assert_eq!(run.verdict, XDP_TX);
            Packet::<std::net::Ipv4Addr>::parse(&run.packet).source.1
        };
        assert_eq!(source(kernel, clients[0]), 2_000);
        // Both are quiet for so long that the port may be given to another.
        make_quiet(node);
        assert_eq!(source(kernel, clients[1]), 2_000);
        kernel.set_snat_ports(2_000, 2_001);
        assert_eq!(source(kernel, clients[0]), 2_001, "answers to the other port are not for it");
        let answer = |kernel: &Kernel, port| {
            let reply = Packet::udp(REMOTE_POD, (NODE_PORT.0, port), b"!");
            Packet::<std::net::Ipv4Addr>::parse(&xdp(kernel, &reply, topology.uplink).packet).destination
        };
        assert_eq!([answer(kernel, 2_001), answer(kernel, 2_000)], clients);
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
        // When that backend leaves, the client stays with another.
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
        // Checked once a tick.
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        forward();
        assert_eq!(reply().verdict, REDIRECT);
    });
}
