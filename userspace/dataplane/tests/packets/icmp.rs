//! Errors about translated packets, and echo requests.

use userspace_dataplane::Program;
use userspace_dataplane::tables::{DataPlane, Protocol};

use super::support::packet::{ACK, End, ICMP, Packet, SYN, checksum};
use super::support::topology::*;
use super::{NODE_PORT, node_port, on_node};

/// An ICMP error about a packet: its header of 8 bytes, then what it quotes.
fn error(from: std::net::Ipv4Addr, kind: [u8; 2], about: &Packet) -> Packet {
    let mut payload = vec![kind[0], kind[1], 0, 0, 0, 0, 5, 0x14];
    payload.extend(&about.bytes()[14..42]);
    let check = checksum(&[&payload]);
    payload[2..4].copy_from_slice(&check.to_be_bytes());
    Packet { protocol: ICMP, payload, ..Packet::tcp((from, 0), (about.source.0, 0), 0) }
}

/// Source and destination of the packet that an error quotes; the quote's checksum is checked.
fn quoted(error: &Packet) -> (End, End) {
    let quote = &error.payload[8..];
    assert_eq!(checksum(&[&quote[..20]]), 0, "checksum of the quoted header");
    let end = |address: usize, port: usize| {
        let octets: [u8; 4] = quote[address..address + 4].try_into().unwrap();
        (octets.into(), u16::from_be_bytes([quote[port], quote[port + 1]]))
    };
    (end(12, 20), end(16, 22))
}

const FRAGMENTATION_NEEDED: [u8; 2] = [3, 4];
const PORT_UNREACHABLE: [u8; 2] = [3, 3];

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn errors_about_translated_packets_reach_the_sender_in_its_own_words() {
    on_node(|kernel, topology, _| {
        let router = std::net::Ipv4Addr::new(192, 0, 2, 254);
        kernel.apply_service("a/local", Some(&node_port(Protocol::Tcp, &[at(LOCAL_POD, true)]))).unwrap();
        tcx(kernel, Program::UplinkIngress, &Packet::tcp(CLIENT, NODE_PORT, SYN), topology.uplink);
        // A router on the way to the client finds the pod's reply too long.
        let reply = Packet::tcp(NODE_PORT, CLIENT, ACK);
        let packet = error(router, FRAGMENTATION_NEEDED, &reply);
        let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
        let there = Packet::parse(&run.packet);
        assert_eq!((run.verdict, there.source.0, there.destination.0), (REDIRECT, router, LOCAL_POD.0));
        assert_eq!(quoted(&there), (LOCAL_POD, CLIENT));
        assert_eq!(there.payload[..2], FRAGMENTATION_NEEDED);
        assert_eq!(there.payload[6..8], [5, 0x14]);

        // A pod elsewhere has closed its socket: the client hears it from the service.
        kernel.apply_service("a/far", Some(&node_port(Protocol::Udp, &[at(REMOTE_POD, false)]))).unwrap();
        let run = xdp(kernel, &Packet::udp(CLIENT, NODE_PORT, b"hello"), topology.uplink);
        let sent = Packet::parse(&run.packet);
        let packet = error(REMOTE_POD.0, PORT_UNREACHABLE, &sent);
        assert_eq!(xdp(kernel, &packet, topology.uplink).verdict, XDP_PASS);
        let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
        let there = Packet::parse(&run.packet);
        assert_eq!((run.verdict, there.source.0, there.destination.0), (REDIRECT, NODE, CLIENT.0));
        assert_eq!(quoted(&there), (CLIENT, NODE_PORT));

        // The node itself says that a translated packet is too long for the way to the pod.
        let packet = error(NODE, FRAGMENTATION_NEEDED, &Packet::tcp(CLIENT, LOCAL_POD, ACK));
        let run = tcx(kernel, Program::Egress, &packet, topology.uplink);
        let there = Packet::parse(&run.packet);
        assert_eq!((run.verdict, there.source.0, there.destination.0), (NEXT, NODE, CLIENT.0));
        assert_eq!(quoted(&there), (CLIENT, NODE_PORT));

        // An error about something else is not touched.
        let packet = error(router, FRAGMENTATION_NEEDED, &Packet::tcp(LOCAL_POD, (CLIENT.0, 7), ACK));
        let run = tcx(kernel, Program::UplinkIngress, &packet, topology.uplink);
        assert_eq!((run.verdict, run.packet), (NEXT, packet.bytes()));
    });
}
