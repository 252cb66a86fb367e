//! Fragments that come in any order, from real networks to real sockets: the receiver's own stack reassembles
//! them, which shows that every byte and checksum is right.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod support;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use support::namespace::*;
use support::packet::{Address, Packet, SCTP, crc32c};
use support::wire::Wire;
use support::{Node, backend, frontend, index_of, key, scaled};
use userspace_dataplane::DataPlane;
use userspace_dataplane::Kernel;
use userspace_dataplane::tables::{Backend, NodeTables, Protocol, Scope, ServiceTables};

const PORT: u16 = 8_080;
const NODE_PORT: u16 = 30_080;
/// Outside the range of source ports of the node.
const CLIENT_PORT: u16 = 51_000;
/// Lengths of datagrams, and of the payload of their fragments: fifteen fragments over the usual MTU, and the
/// 54 that the longest datagrams have over the smallest MTU of IPv6.
const SHAPES: [(usize, usize); 2] = [(21_000, 1_448), (65_507, 1_232)];

/// Link addresses of the node's interfaces.
const AT_CLIENT: [u8; 6] = [2, 0, 0, 0, 1, 1];
const AT_FAR: [u8; 6] = [2, 0, 0, 0, 1, 2];
const AT_POD_A: [u8; 6] = [2, 0, 0, 0, 2, 1];
const AT_POD_B: [u8; 6] = [2, 0, 0, 0, 2, 2];

/// The ends and the path of an exchange.
struct Case<A> {
    client: A,
    service: (A, u16),
    server: A,
    /// The client's address as the server sees it.
    seen: A,
    links: [[u8; 6]; 2],
}

fn open(cluster: &Cluster, node: &Node) -> Kernel {
    let config = node.config();
    cluster.node.run(move || {
        let mut kernel = Kernel::open(config).unwrap();
        let addresses = ["192.0.2.1", "192.0.3.1", "2001:db8:2::1", "2001:db8:3::1"];
        let addresses = addresses.map(|address| address.parse().unwrap()).to_vec();
        kernel.set_node(&NodeTables { addresses, ..NodeTables::default() }).unwrap();
        kernel.set_interfaces(&interfaces()).unwrap();
        kernel
    })
}

fn service(address: &str, port: u16, scope: Scope, backends: &[Backend]) -> ServiceTables {
    ServiceTables {
        frontends: vec![frontend(key(address, port, Protocol::Udp, scope), backends)],
        ..ServiceTables::default()
    }
}

/// Returns the orders in which fragments may come: the first one last, or in the middle.
fn shuffled(pieces: &[Vec<u8>]) -> [Vec<Vec<u8>>; 2] {
    let reversed: Vec<_> = pieces.iter().rev().cloned().collect();
    let mut turned = pieces.to_vec();
    turned.rotate_left(7);
    [reversed, turned]
}

/// Sends frames to the node, the first fragment only after a while.
fn send(from: &Namespace, frames: Vec<Vec<u8>>, first: Vec<u8>) {
    from.run(move || {
        let wire = Wire::open(index_of("eth0"));
        for frame in frames {
            if frame == first {
                std::thread::sleep(Duration::from_millis(100));
            }
            wire.send(&frame);
        }
    });
}

fn socket(at: &Namespace, address: IpAddr, port: u16) -> UdpSocket {
    at.run(move || {
        let socket = UdpSocket::bind((address, port)).unwrap();
        socket.set_read_timeout(Some(scaled(Duration::from_secs(5)))).unwrap();
        socket
    })
}

fn receive(socket: &UdpSocket, what: &str) -> (Vec<u8>, SocketAddr) {
    let mut buffer = vec![0; 65_536];
    let (length, from) = socket.recv_from(&mut buffer).unwrap_or_else(|error| panic!("{what}: {error}"));
    buffer.truncate(length);
    (buffer, from)
}

/// Exchanges a datagram, there and back, in every order.
fn exchange<A: Address>(case: &Case<A>, client: &Namespace, server: &Namespace) {
    let (at_client, at_server) =
        (socket(client, case.client.into(), CLIENT_PORT), socket(server, case.server.into(), PORT));
    let link = |to: [u8; 6]| [to, [2, 0, 0, 0, 9, 9]].concat().try_into().unwrap();
    for (turn, identification) in [(0, 0x4001), (1, 0x4002), (2, 0x4003), (3, 0x4004)] {
        let (length, piece) = SHAPES[turn / 2];
        let payload: Vec<u8> = (0..length).map(|byte| ((byte * 31) >> 3) as u8).collect();
        let there = Packet::udp((case.client, CLIENT_PORT), case.service, &payload);
        let pieces = Packet { link: link(case.links[0]), ..there }.pieces(identification, piece);
        let [reversed, turned] = shuffled(&pieces);
        send(client, if turn % 2 == 0 { reversed } else { turned }, pieces[0].clone());
        let (found, from) = receive(&at_server, "the server");
        assert!(found == payload, "what was sent has come");
        assert_eq!(from.ip(), case.seen.into());
        let seen = (case.seen, from.port());
        let back = Packet::udp((case.server, PORT), seen, &payload[1..]);
        let pieces = Packet { link: link(case.links[1]), ..back }.pieces(identification, piece);
        let [reversed, turned] = shuffled(&pieces);
        send(server, if turn % 2 == 0 { reversed } else { turned }, pieces[0].clone());
        let (found, from) = receive(&at_client, "the client");
        assert!(found == payload[1..], "what was sent has come back");
        assert_eq!(from, SocketAddr::from((case.service.0.into(), case.service.1)));
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_pod_s_fragments_reach_a_pod_in_any_order() {
    let (cluster, node) = (Cluster::new(), Node::new());
    let mut kernel = open(&cluster, &node);
    let vip = Ipv4Addr::new(10, 96, 0, 10);
    let vip6 = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10);
    let links = [AT_POD_A, AT_POD_B];
    for (name, vip, pod) in
        [("a/four", IpAddr::from(vip), IpAddr::from(POD_B)), ("a/six", vip6.into(), POD_B6.into())]
    {
        let tables = service(&vip.to_string(), 80, Scope::Internal, &[backend(pod, PORT, true)]);
        kernel.apply_service(name, Some(&tables)).unwrap();
    }
    let case = Case { client: POD_A, service: (vip, 80), server: POD_B, seen: POD_A, links };
    exchange(&case, &cluster.pod_a, &cluster.pod_b);
    let case = Case { client: POD_A6, service: (vip6, 80), server: POD_B6, seen: POD_A6, links };
    exchange(&case, &cluster.pod_a, &cluster.pod_b);
}

/// Addresses and ports of both ends change, although only the first fragment has the ports.
#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_client_s_fragments_reach_a_pod_elsewhere_in_any_order() {
    let (cluster, node) = (Cluster::new(), Node::new());
    let mut kernel = open(&cluster, &node);
    let links = [AT_CLIENT, AT_FAR];
    for (name, any, pod) in [("a/four", "0.0.0.0", FAR_POD.into()), ("a/six", "::", FAR_POD6.into())] {
        let tables = service(any, NODE_PORT, Scope::External, &[backend(pod, PORT, false)]);
        kernel.apply_service(name, Some(&tables)).unwrap();
    }
    let case = Case { client: CLIENT, service: (NODE, NODE_PORT), server: FAR_POD, seen: NODE, links };
    exchange(&case, &cluster.client, &cluster.far);
    let case = Case { client: CLIENT6, service: (NODE6, NODE_PORT), server: FAR_POD6, seen: NODE6, links };
    exchange(&case, &cluster.client, &cluster.far);
}

/// Collects and reassembles all fragments of a datagram of SCTP that arrive at an interface.
fn gather<A: Address>(wire: &Wire, to: A, identification: u32) -> ((u16, u16), Vec<u8>) {
    let is_ours = |frame: &[u8]| {
        let (version, protocol) = (frame[14] >> 4, if A::VERSION == 4 { frame[23] } else { frame[54] });
        version == A::VERSION && protocol == SCTP && (A::VERSION == 4 || frame[20] == 44)
    };
    let mut parts = BTreeMap::new();
    let mut end = None;
    while end.is_none_or(|end| parts.values().map(Vec::len).sum::<usize>() < end) {
        let frame = wire.receive(is_ours).expect("a fragment");
        let (packet, place) = Packet::<A>::parse_fragment(&frame);
        assert_eq!((packet.destination.0, place.identification), (to, identification));
        if !place.more {
            end = Some(usize::from(place.offset) + packet.payload.len());
        }
        parts.insert(place.offset, packet.payload);
    }
    let whole: Vec<u8> = parts.into_values().flatten().collect();
    let port = |at: usize| u16::from_be_bytes([whole[at], whole[at + 1]]);
    ((port(0), port(2)), whole)
}

fn sctp<A: Address>(case: &Case<A>, client: &Namespace, server: &Namespace) {
    let wire = server.run(|| Wire::open(index_of("eth0")));
    let link = [case.links[0], [2, 0, 0, 0, 9, 9]].concat().try_into().unwrap();
    for (turn, identification) in [(0, 0x5001), (1, 0x5002), (2, 0x5003)] {
        let chunk: Vec<u8> = (0..7_001 + turn).map(|byte| ((byte * 31) >> 3) as u8).collect();
        let there = Packet::sctp((case.client, CLIENT_PORT), case.service, &chunk);
        let pieces = Packet { link, ..there }.pieces(identification, 800);
        let [reversed, turned] = shuffled(&pieces);
        send(client, [pieces.clone(), reversed, turned][turn].clone(), pieces[0].clone());
        let (ports, mut whole) = gather(&wire, case.server, identification);
        assert_eq!(ports, (CLIENT_PORT, PORT));
        assert_eq!(whole[12..], chunk);
        let check = whole[8..12].to_vec();
        whole[8..12].fill(0);
        assert_eq!(crc32c(&whole).to_le_bytes(), *check, "the checksum of the whole datagram");
    }
}

/// Another port changes a checksum that depends on the length of the whole.
#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn fragments_of_sctp_keep_their_checksum_in_any_order() {
    let (cluster, node) = (Cluster::new(), Node::new());
    let mut kernel = open(&cluster, &node);
    let vip = Ipv4Addr::new(10, 96, 0, 10);
    let vip6 = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10);
    for (name, vip, pod) in
        [("a/four", IpAddr::from(vip), IpAddr::from(POD_B)), ("a/six", vip6.into(), POD_B6.into())]
    {
        let key = key(&vip.to_string(), 80, Protocol::Sctp, Scope::Internal);
        let frontends = vec![frontend(key, &[backend(pod, PORT, true)])];
        let tables = ServiceTables { frontends, ..ServiceTables::default() };
        kernel.apply_service(name, Some(&tables)).unwrap();
    }
    let links = [AT_POD_A, AT_POD_B];
    let case = Case { client: POD_A, service: (vip, 80), server: POD_B, seen: POD_A, links };
    sctp(&case, &cluster.pod_a, &cluster.pod_b);
    let case = Case { client: POD_A6, service: (vip6, 80), server: POD_B6, seen: POD_A6, links };
    sctp(&case, &cluster.pod_a, &cluster.pod_b);
}
