//! Direct server return, case by case: the packet after the first node, after the backend's node, and at the
//! client.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod support;

use std::net::{Ipv4Addr, Ipv6Addr};

use support::packet::{ACK, Address, Packet, SYN};
use support::shared::with_kernel;
use support::topology::*;
use support::{Node, frontend, in_namespace, key};
use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{Backend, Forwarding, Protocol, Scope, ServiceTables};
use userspace_dataplane::{Kernel, Program, TestRun};

/// The addresses of one family.
struct Places<A> {
    node: A,
    client: (A, u16),
    vip: (A, u16),
    local: (A, u16),
    remote: (A, u16),
    /// Length of the IP header.
    header: usize,
    /// The protocol number of the family inside another header.
    inside: u8,
}

const V4: Places<Ipv4Addr> = Places {
    node: NODE,
    client: CLIENT,
    vip: VIP,
    local: LOCAL_POD,
    remote: REMOTE_POD,
    header: 20,
    inside: 4,
};
const V6: Places<Ipv6Addr> = Places {
    node: NODE6,
    client: CLIENT6,
    vip: VIP6,
    local: LOCAL_POD6,
    remote: REMOTE_POD6,
    header: 40,
    inside: 41,
};

impl<A: Address + Sync> Places<A> {
    /// Returns the option that names the frontend the client asked.
    fn option(&self) -> Vec<u8> {
        let (address, port) = (self.vip.0.bytes(), self.vip.1.to_be_bytes());
        if A::VERSION == 4 {
            [&[0x9e, 8], port.as_slice(), &address].concat()
        } else {
            [&[2, 0x1e, 20], port.as_slice(), &address, &[0, 0]].concat()
        }
    }

    /// Returns the service at the virtual address, and on a node port, with direct replies.
    fn service(&self, protocol: Protocol, backends: &[Backend], forwarding: Forwarding) -> ServiceTables {
        let vip: std::net::IpAddr = self.vip.0.into();
        let any = if A::VERSION == 4 { "0.0.0.0" } else { "::" };
        let frontends = [(vip.to_string().as_str(), self.vip.1), (any, 30_080)]
            .map(|(address, port)| {
                let mut frontend = frontend(key(address, port, protocol, Scope::External), backends);
                frontend.forwarding = forwarding;
                frontend
            })
            .to_vec();
        ServiceTables { frontends, ..ServiceTables::default() }
    }

    /// Returns a packet in an outer header.
    fn wrapped(&self, inner: &[u8], from: A, to: A) -> Vec<u8> {
        let mut outer = Packet { protocol: self.inside, ..Packet::tcp((from, 0), (to, 0), 0) };
        outer.link = inner[..12].try_into().unwrap();
        // For an unknown transport only the ports are written, which are cut out again.
        let mut frame = outer.bytes();
        let body = inner[14..].to_vec();
        frame.truncate(14 + self.header);
        let length = body.len() + if A::VERSION == 4 { 20 } else { 0 };
        let at = if A::VERSION == 4 { 16 } else { 18 };
        frame[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
        if A::VERSION == 4 {
            frame[24..26].fill(0);
            let check = support::packet::checksum(&[&frame[14..34]]);
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
        [frame, body].concat()
    }

    /// Returns the inner packet of one with a correct outer header.
    fn unwrapped(&self, frame: &[u8], from: A, to: A) -> Packet<A> {
        let inner = [&frame[..14], &frame[14 + self.header..]].concat();
        let expected = self.wrapped(&inner, from, to);
        let (outer, rest) = frame[14..].split_at(self.header);
        let address = if A::VERSION == 4 { 12 } else { 8 };
        assert_eq!(outer[address..], expected[14 + address..14 + self.header], "addresses");
        let number = if A::VERSION == 4 { outer[9] } else { outer[6] };
        assert_eq!(number, self.inside);
        let length =
            u16::from_be_bytes(if A::VERSION == 4 { [outer[2], outer[3]] } else { [outer[4], outer[5]] });
        let header = if A::VERSION == 4 { self.header } else { 0 };
        assert_eq!(usize::from(length), rest.len() + header);
        if A::VERSION == 4 {
            assert_eq!(support::packet::checksum(&[outer]), 0, "checksum of the outer header");
        }
        Packet::parse(&inner)
    }
}

fn on_node(test: impl FnOnce(&mut Kernel, &Topology, &Node) + Send) {
    in_namespace(|| {
        let topology = Topology::new();
        with_kernel(|kernel, node| {
            topology.announce(kernel);
            test(kernel, &topology, node);
        });
    });
}

fn metric(node: &Node, label: &str) -> u64 {
    Inspector::open(&node.bpf_root()).unwrap().metrics().unwrap()[label]
}

fn packet<A: Address + Sync>(protocol: Protocol, from: (A, u16), to: (A, u16), flags: u8) -> Packet<A> {
    if protocol == Protocol::Udp { Packet::udp(from, to, b"hello") } else { Packet::tcp(from, to, flags) }
}

/// Returns a packet as XDP sends it on, with the link addresses of the next hop.
#[track_caller]
fn sent_by_xdp<A: Address>(run: &TestRun) -> Packet<A> {
    assert_eq!((run.verdict, &run.packet[..6]), (XDP_TX, OTHER_NODE_LINK.as_slice()));
    let plain = Packet::<A>::tcp((A::read(&vec![0; A::LENGTH]), 0), (A::read(&vec![0; A::LENGTH]), 0), 0);
    Packet { link: plain.link, ..Packet::parse(&run.packet) }
}

fn the_option_is_sent<A: Address + Sync>(places: &Places<A>) {
    on_node(|kernel, topology, node| {
        let backends = [at(places.remote, false)];
        let tables = places.service(Protocol::Tcp, &backends, Forwarding::DsrOption);
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let syn = Packet::tcp(places.client, places.vip, SYN);
        let there = Packet { ttl: 63, ..Packet::tcp(places.client, places.remote, SYN) };
        let expected = Packet { options: places.option(), ..there.clone() };
        // Sent again, it goes the same way; by tcx too.
        for _ in 0..2 {
            assert_eq!(sent_by_xdp(&xdp(kernel, &syn, topology.uplink)), expected);
        }
        let run = tcx(kernel, Program::UplinkIngress, &syn, topology.uplink);
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        // Later packets need nothing more.
        let ack = Packet { flags: ACK, payload: vec![7; 100], ..syn };
        let expected = Packet { flags: ACK, payload: vec![7; 100], ..there };
        assert_eq!(sent_by_xdp(&xdp(kernel, &ack, topology.uplink)), expected);
        let run = tcx(kernel, Program::UplinkIngress, &ack, topology.uplink);
        assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        assert_eq!((metric(node, "flow_created"), metric(node, "dsr_sent")), (1, 4));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn the_first_packet_tells_the_backend_s_node_in_an_option() {
    the_option_is_sent(&V4);
    the_option_is_sent(&V6);
}

fn every_datagram_has_the_option<A: Address + Sync>(places: &Places<A>) {
    on_node(|kernel, topology, _| {
        let tables = places.service(Protocol::Udp, &[at(places.remote, false)], Forwarding::DsrOption);
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        for _ in 0..2 {
            let datagram = Packet::udp(places.client, places.vip, b"hello");
            let there = Packet::udp(places.client, places.remote, b"hello");
            let expected = Packet { ttl: 63, options: places.option(), ..there };
            assert_eq!(sent_by_xdp(&xdp(kernel, &datagram, topology.uplink)), expected);
            let run = tcx(kernel, Program::UplinkIngress, &datagram, topology.uplink);
            assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        }
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn every_datagram_has_the_option_for_none_knows_whether_the_first_arrived() {
    every_datagram_has_the_option(&V4);
    every_datagram_has_the_option(&V6);
}

fn the_option_is_taken<A: Address + Sync>(places: &Places<A>) {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        on_node(|kernel, topology, node| {
            let tables = places.service(protocol, &[at(places.local, true)], Forwarding::DsrOption);
            kernel.apply_service("a/b", Some(&tables)).unwrap();
            let plain = packet(protocol, places.client, places.local, SYN);
            let told = Packet { options: places.option(), ..plain.clone() };
            for _ in 0..2 {
                assert_eq!(xdp(kernel, &told, topology.uplink).verdict, XDP_PASS);
                let run = tcx(kernel, Program::UplinkIngress, &told, topology.uplink);
                assert_eq!((run.verdict, Packet::parse(&run.packet)), (NEXT, plain.clone()));
            }
            let reply = packet(protocol, places.local, places.client, SYN | ACK);
            let run = tcx(kernel, Program::PodIngress, &reply, topology.pod);
            let expected = Packet { ttl: 63, ..packet(protocol, places.vip, places.client, SYN | ACK) };
            assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
            assert_eq!(metric(node, "dsr_received"), 2);
        });
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn the_backend_s_node_answers_under_the_address_in_the_option() {
    the_option_is_taken(&V4);
    the_option_is_taken(&V6);
}

fn a_node_port_of_another_node<A: Address + Sync>(places: &Places<A>, other: A) {
    on_node(|kernel, topology, _| {
        let tables = places.service(Protocol::Tcp, &[at(places.local, true)], Forwarding::DsrOption);
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let asked = Places { vip: (other, 30_080), ..Places { ..*places } };
        let told = Packet { options: asked.option(), ..Packet::tcp(places.client, places.local, SYN) };
        assert_eq!(tcx(kernel, Program::UplinkIngress, &told, topology.uplink).verdict, NEXT);
        let reply = Packet::tcp(places.local, places.client, SYN | ACK);
        let run = tcx(kernel, Program::PodIngress, &reply, topology.pod);
        assert_eq!(Packet::<A>::parse(&run.packet).source, (other, 30_080));
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_node_port_of_another_node_is_answered_under_its_address() {
    a_node_port_of_another_node(&V4, Ipv4Addr::new(192, 0, 2, 2));
    a_node_port_of_another_node(&V6, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));
}

fn what_nobody_asked_for<A: Address + Sync>(places: &Places<A>) {
    on_node(|kernel, topology, node| {
        let told = Packet { options: places.option(), ..Packet::tcp(places.client, places.local, SYN) };
        let dropped = |kernel: &Kernel| {
            let run = tcx(kernel, Program::UplinkIngress, &told, topology.uplink);
            assert_eq!(run.verdict, DROP);
        };
        // No such frontend; one with another forwarding mode; one without this backend.
        dropped(kernel);
        for (backend, forwarding) in [
            (places.local, Forwarding::Nat),
            (places.local, Forwarding::DsrIpip),
            (places.remote, Forwarding::DsrOption),
        ] {
            let tables = places.service(Protocol::Tcp, &[at(backend, true)], forwarding);
            kernel.apply_service("a/b", Some(&tables)).unwrap();
            dropped(kernel);
        }
        assert_eq!((metric(node, "malformed"), metric(node, "dsr_received")), (4, 0));
        // Replies stay as they are.
        let reply = Packet::tcp(places.local, places.client, SYN | ACK);
        assert_eq!(tcx(kernel, Program::PodIngress, &reply, topology.pod).verdict, NEXT);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn an_option_that_no_frontend_stands_for_is_not_believed() {
    what_nobody_asked_for(&V4);
    what_nobody_asked_for(&V6);
}

fn whole_packets_are_wrapped<A: Address + Sync>(places: &Places<A>) {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        on_node(|kernel, topology, node| {
            let tables = places.service(protocol, &[at(places.remote, false)], Forwarding::DsrIpip);
            kernel.apply_service("a/b", Some(&tables)).unwrap();
            for flags in [SYN, ACK] {
                let asked = packet(protocol, places.client, places.vip, flags);
                let run = xdp(kernel, &asked, topology.uplink);
                assert_eq!((run.verdict, &run.packet[..6]), (XDP_TX, OTHER_NODE_LINK.as_slice()));
                let mut inner = places.unwrapped(&run.packet, places.node, places.remote.0);
                inner.link = asked.link;
                assert_eq!(inner, Packet { ttl: 63, ..asked.clone() });
                let run = tcx(kernel, Program::UplinkIngress, &asked, topology.uplink);
                assert_eq!(run.verdict, REDIRECT);
                let inner = places.unwrapped(&run.packet, places.node, places.remote.0);
                assert_eq!(inner, Packet { ttl: 63, ..asked });
            }
            assert_eq!((metric(node, "flow_created"), metric(node, "dsr_sent")), (1, 4));
        });
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn whole_packets_go_to_the_backend_in_an_outer_header() {
    whole_packets_are_wrapped(&V4);
    whole_packets_are_wrapped(&V6);
}

fn wrapped_packets_arrive<A: Address + Sync>(places: &Places<A>) {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        on_node(|kernel, topology, node| {
            let tables = places.service(protocol, &[at(places.local, true)], Forwarding::DsrIpip);
            kernel.apply_service("a/b", Some(&tables)).unwrap();
            for flags in [SYN, ACK] {
                let asked = packet(protocol, places.client, places.vip, flags);
                let frame = places.wrapped(&asked.bytes(), places.node, places.local.0);
                assert_eq!(xdp_bytes(kernel, &frame, topology.uplink).verdict, XDP_PASS);
                let run = tcx_bytes(kernel, Program::UplinkIngress, &frame, topology.uplink);
                let expected = Packet { ttl: 63, ..packet(protocol, places.client, places.local, flags) };
                assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
            }
            let reply = packet(protocol, places.local, places.client, SYN | ACK);
            let run = tcx(kernel, Program::PodIngress, &reply, topology.pod);
            let expected = Packet { ttl: 63, ..packet(protocol, places.vip, places.client, SYN | ACK) };
            assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
            assert_eq!(metric(node, "dsr_received"), 2);
            // Without a backend here, or without such a service, it is a tunnel of others.
            let asked = packet(protocol, places.client, places.vip, SYN);
            let other = places.wrapped(&asked.bytes(), places.node, places.remote.0);
            let run = tcx_bytes(kernel, Program::UplinkIngress, &other, topology.uplink);
            assert_eq!((run.verdict, run.packet), (NEXT, other));
        });
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn the_backend_s_node_unwraps_and_answers_under_the_inner_address() {
    wrapped_packets_arrive(&V4);
    wrapped_packets_arrive(&V6);
}

/// Returns the answer to a datagram that fills the uplink's 1,500 bytes; it names the size that fits.
fn too_big<A: Address + Sync>(places: &Places<A>, forwarding: Forwarding, fits: u32) {
    on_node(|kernel, topology, node| {
        let tables = places.service(Protocol::Udp, &[at(places.remote, false)], forwarding);
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let datagram = |length: u32| {
            Packet::udp(places.client, places.vip, &vec![7; length as usize - places.header - 8])
        };
        let run = tcx(kernel, Program::UplinkIngress, &datagram(fits), topology.uplink);
        assert_eq!(run.verdict, REDIRECT, "{forwarding:?}: {fits} bytes fit");
        assert_eq!(xdp(kernel, &datagram(fits), topology.uplink).verdict, XDP_TX);
        // XDP leaves the answer to the program behind it.
        let frame = datagram(fits + 1).bytes();
        let run = xdp_bytes(kernel, &frame, topology.uplink);
        assert_eq!((run.verdict, run.packet), (XDP_PASS, frame));
        let run = tcx(kernel, Program::UplinkIngress, &datagram(fits + 1), topology.uplink);
        assert_eq!(run.verdict, REDIRECT);
        let answer = Packet::<A>::parse(&run.packet);
        assert_eq!((answer.source.0, answer.destination.0), (places.vip.0, places.client.0));
        let expected: [u8; 2] = if A::VERSION == 4 { [3, 4] } else { [2, 0] };
        assert_eq!(answer.payload[..2], expected);
        assert_eq!(answer.payload[4..8], fits.to_be_bytes());
        assert_eq!(metric(node, "too_big"), 1);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn oversized_dsr_packet_is_answered_with_the_path_mtu() {
    too_big(&V4, Forwarding::DsrOption, 1_492);
    too_big(&V4, Forwarding::DsrIpip, 1_480);
    too_big(&V6, Forwarding::DsrOption, 1_476);
    too_big(&V6, Forwarding::DsrIpip, 1_460);
}

/// The link to the backend has an MTU of 1,400 bytes, of which a router tells this node.
fn the_outer_header_is_too_big<A: Address + Sync>(places: &Places<A>, router: A) {
    on_node(|kernel, topology, node| {
        let tables = places.service(Protocol::Tcp, &[at(places.remote, false)], Forwarding::DsrIpip);
        kernel.apply_service("a/b", Some(&tables)).unwrap();
        let asked = Packet { payload: vec![7; 1_400], ..Packet::tcp(places.client, places.vip, ACK) };
        let told = |quoted: usize, from: A| {
            let frame = places.wrapped(&asked.bytes(), from, places.remote.0);
            let (kind, rest): ([u8; 2], [u8; 4]) =
                if A::VERSION == 4 { ([3, 4], [0, 0, 5, 0x78]) } else { ([2, 0], [0, 0, 5, 0x78]) };
            let rest = [rest.as_slice(), &frame[14..14 + quoted]].concat();
            let packet = Packet::icmp(router, from, kind[0], kind[1], &rest);
            tcx(kernel, Program::UplinkIngress, &packet, topology.uplink)
        };
        // Before the node has sent such a packet, the error is about nothing.
        assert_eq!(told(500, places.node).verdict, NEXT);
        let run = tcx(kernel, Program::UplinkIngress, &asked, topology.uplink);
        assert_eq!(run.verdict, REDIRECT);
        let fits = 1_400 - places.header as u32;
        for quoted in [2 * places.header + 8, 500] {
            let run = told(quoted, places.node);
            assert_eq!(run.verdict, REDIRECT);
            let answer = Packet::<A>::parse(&run.packet);
            assert_eq!((answer.source.0, answer.destination.0), (places.vip.0, places.client.0));
            assert_eq!(answer.payload[..2], if A::VERSION == 4 { [3, 4] } else { [2, 0] });
            assert_eq!(answer.payload[4..8], fits.to_be_bytes());
            let quote = asked.bytes()[14..14 + places.header + 8].to_vec();
            assert_eq!(answer.payload[8..], quote, "what the client has sent");
        }
        // Too little of the packet, or a foreign one.
        assert_eq!(told(2 * places.header, places.node).verdict, NEXT);
        assert_eq!(told(500, places.client.0).verdict, NEXT);
        assert_eq!(metric(node, "too_big"), 2);
    });
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_router_s_word_about_the_outer_header_is_passed_on_to_the_client() {
    the_outer_header_is_too_big(&V4, Ipv4Addr::new(192, 0, 2, 2));
    the_outer_header_is_too_big(&V6, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));
}

fn a_backend_beside_the_client<A: Address + Sync>(places: &Places<A>) {
    for forwarding in [Forwarding::DsrOption, Forwarding::DsrIpip] {
        on_node(|kernel, topology, _| {
            let tables = places.service(Protocol::Tcp, &[at(places.local, true)], forwarding);
            kernel.apply_service("a/b", Some(&tables)).unwrap();
            let syn = Packet::tcp(places.client, places.vip, SYN);
            let run = tcx(kernel, Program::UplinkIngress, &syn, topology.uplink);
            let expected = Packet { ttl: 63, ..Packet::tcp(places.client, places.local, SYN) };
            assert_eq!((run.verdict, Packet::parse(&run.packet)), (REDIRECT, expected));
        });
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn a_backend_on_this_node_needs_none_of_it() {
    a_backend_beside_the_client(&V4);
    a_backend_beside_the_client(&V6);
}
