//! Fragments: in order and out of order, in both directions.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{NodeTables, Protocol, Scope};
use userspace_dataplane::{Kernel, Program};

use super::families::both;
use super::net::*;
use super::support::packet::{Fragment, Packet};
use super::support::topology::*;
use super::support::wire::Wire;
use super::support::{Node, ip, scaled};
use super::{metric, on_node};

/// Returns a datagram of two fragments; the second one begins after 64 bytes.
fn datagram<A: Net>(from: (A, u16), to: (A, u16)) -> Packet<A> {
    let payload: Vec<u8> = (0..150).map(|byte| byte as u8 ^ 0x5a).collect();
    Packet::udp(from, to, &payload)
}

/// Reassembles two fragments, which verifies every checksum.
fn together<A: Net>(first: &[u8], second: &[u8], identification: u32) -> Packet<A> {
    let (head, place) = Packet::<A>::parse_fragment(first);
    assert_eq!(place, Fragment { identification, offset: 0, more: true });
    let (tail, place) = Packet::<A>::parse_fragment(second);
    assert_eq!(place, Fragment { identification, offset: 64, more: false });
    assert_eq!((head.source.0, head.destination.0), (tail.source.0, tail.destination.0));
    assert_eq!(head.ttl, tail.ttl);
    let transport = [head.payload, tail.payload].concat();
    let whole = Packet::udp(head.source, head.destination, &transport[8..]);
    let bytes = whole.bytes();
    assert_eq!(bytes[14 + A::HEADER..], transport, "the checksum is that of the whole datagram");
    Packet { ttl: head.ttl, ..whole }
}

both!(fragments_follow_their_first_one, in_order);

fn in_order<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let before = metric(node, "fragment_translated");
    kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Udp, &[at(A::OTHER_POD, true)]))).unwrap();
    let client = (A::LOCAL_POD.0, 51_000);
    let pod = |frame: &[u8], interface| {
        let run = tcx_bytes(kernel, Program::PodIngress, frame, interface);
        assert_eq!(run.verdict, REDIRECT);
        run.packet
    };
    for identification in 7..9 {
        let [first, second] = datagram(client, A::VIP).fragments(identification, 64);
        let (first, second) = (pod(&first, topology.pod), pod(&second, topology.pod));
        let expected = Packet { ttl: 63, ..datagram(client, A::OTHER_POD) };
        assert_eq!(together::<A>(&first, &second, identification), expected);
        let [first, second] = datagram(A::OTHER_POD, client).fragments(identification, 64);
        let (first, second) = (pod(&first, topology.other_pod), pod(&second, topology.other_pod));
        let expected = Packet { ttl: 63, ..datagram(A::VIP, client) };
        assert_eq!(together::<A>(&first, &second, identification), expected);
    }
    assert_eq!(metric(node, "fragment_translated") - before, 4);
}

both!(fragments_of_the_node_s_own_replies_are_translated, from_the_node);

fn from_the_node<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    let host = (A::NODE, 9_053);
    kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Udp, &[at(host, true)]))).unwrap();
    let client = (A::LOCAL_POD.0, 51_000);
    tcx(kernel, Program::PodIngress, &Packet::udp(client, A::VIP, b"x"), topology.pod);
    let [first, second] = datagram(host, client).fragments(9, 64);
    let out = |frame: &[u8]| {
        let run = tcx_bytes(kernel, Program::Egress, frame, topology.pod);
        assert_eq!(run.verdict, NEXT);
        run.packet
    };
    let (first, second) = (out(&first), out(&second));
    assert_eq!(together::<A>(&first, &second, 9), datagram(A::VIP, client));
}

both!(xdp_leaves_fragments_to_tcx_which_carries_them_elsewhere, through);

fn through<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    kernel.apply_service("a/b", Some(&outside::<A>(Protocol::Udp, &[at(A::REMOTE_POD, false)]))).unwrap();
    let uplink = |frame: &[u8]| {
        let run = xdp_bytes(kernel, frame, topology.uplink);
        assert_eq!((run.verdict, run.packet.as_slice()), (XDP_PASS, frame));
        let run = tcx_bytes(kernel, Program::UplinkIngress, frame, topology.uplink);
        assert_eq!(run.verdict, REDIRECT);
        run.packet
    };
    let [first, second] = datagram(A::CLIENT, A::node_port()).fragments(11, 64);
    let there = together::<A>(&uplink(&first), &uplink(&second), 11);
    assert_eq!((there.source.0, there.destination), (A::NODE, A::REMOTE_POD));
    let [first, second] = datagram(A::REMOTE_POD, there.source).fragments(12, 64);
    let back = together::<A>(&uplink(&first), &uplink(&second), 12);
    assert_eq!((back.source, back.destination), (A::node_port(), A::CLIENT));
}

both!(a_fragment_before_its_first_one_waits, out_of_order);

fn out_of_order<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Udp, &[at(A::OTHER_POD, true)]))).unwrap();
    let client = (A::LOCAL_POD.0, 51_000);
    let [first, second] = datagram(client, A::VIP).fragments(21, 64);
    let pod = |frame: &[u8]| tcx_bytes(kernel, Program::PodIngress, frame, topology.pod);
    let counters = || ["fragment_held", "fragment_unknown"].map(|label| metric(node, label));
    let [held, unknown] = counters();
    // It waits as bytes: the packet itself is not needed any more.
    assert_eq!(pod(&second).verdict, DROP);
    assert_eq!(counters(), [held + 1, unknown]);
    // Both go through the queue of their interface, and then on as if they had come in order.
    assert_eq!(pod(&first).verdict, DROP);
    let (first, second) = (pod(&first), pod(&second));
    assert_eq!((first.verdict, second.verdict), (REDIRECT, REDIRECT));
    let expected = Packet { ttl: 63, ..datagram(client, A::OTHER_POD) };
    assert_eq!(together::<A>(&first.packet, &second.packet, 21), expected);
    assert_eq!(counters(), [held + 1, unknown]);
}

both!(what_waits_gives_way_to_what_comes_later_from_the_same_source, many_wait);

/// Number of places for waiting fragments of one source.
const PLACES: u32 = ebpf_common::limits::HELD_PER_GROUP;

fn many_wait<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let counters = || ["fragment_held", "fragment_unknown"].map(|label| metric(node, label));
    let group = |source: A| {
        let mut words = [0; 4];
        let octets = source.bytes();
        for (word, bytes) in words.iter_mut().zip(octets.chunks(4)) {
            *word = u32::from_ne_bytes(bytes.try_into().unwrap());
        }
        ebpf_common::waiting::group(&words, topology.pod)
    };
    let flooder = A::LOCAL_POD.0;
    let others = [A::OTHER_POD.0, A::REMOTE_POD.0, A::CLIENT.0, A::NODE];
    let other =
        others.into_iter().find(|other| group(*other) != group(flooder)).expect("one of another group");
    let pieces = |source, identification| datagram((source, 51_000), A::VIP).fragments(identification, 64);
    let pod = |frame: &[u8]| {
        let run = tcx_bytes(kernel, Program::PodIngress, frame, topology.pod);
        assert_eq!(run.verdict, DROP);
    };
    let hold = |source, first: u32, count: u32| {
        for identification in first..first + count {
            let [_, second] = pieces(source, identification);
            pod(&second);
        }
    };
    // Remains of earlier tests.
    hold(flooder, 1_000, PLACES);
    hold(other, 1_000, PLACES);
    let [held, unknown] = counters();
    hold(other, 2_000, PLACES);
    let places = u64::from(PLACES);
    assert_eq!(counters(), [held + places, unknown + places]);
    // Ten times as many as there are places do not evict the other's: their first ones find them all, and
    // free their places for the next.
    hold(flooder, 3_000, 10 * ebpf_common::limits::HELD);
    let [held, unknown] = counters();
    for identification in 2_000..2_000 + PLACES {
        let [first, _] = pieces(other, identification);
        pod(&first);
    }
    hold(other, 4_000, PLACES);
    assert_eq!(counters(), [held + places, unknown]);
}

both!(fragments_of_what_was_refused_go_nowhere, refused);

fn refused<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    let settings = NodeTables {
        addresses: vec![NODE.into(), NODE6.into()],
        service_ranges: vec![A::RANGE.parse().unwrap()],
        ..NodeTables::default()
    };
    kernel.set_node(&settings).unwrap();
    kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Udp, &[]))).unwrap();
    let client = (A::LOCAL_POD.0, 51_000);
    let [first, second] = datagram(client, A::VIP).fragments(31, 64);
    let run = tcx_bytes(kernel, Program::PodIngress, &first, topology.pod);
    let answer = Packet::<A>::parse(&run.packet);
    assert_eq!((run.verdict, &answer.payload[..2]), (REDIRECT, A::PORT_UNREACHABLE.as_slice()));
    assert_eq!(tcx_bytes(kernel, Program::PodIngress, &second, topology.pod).verdict, DROP);
    // Fragments of others pass.
    let [first, second] = datagram(client, A::REMOTE_POD).fragments(32, 64);
    for frame in [first, second] {
        let run = tcx_bytes(kernel, Program::PodIngress, &frame, topology.pod);
        assert_eq!((run.verdict, run.packet), (NEXT, frame));
    }
    kernel.set_node(&NodeTables { service_ranges: Vec::new(), ..settings }).unwrap();
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn on_a_wire_a_fragment_waits_for_its_first_one_and_nothing_is_translated_twice() {
    on_node(|kernel, topology, node| {
        ip(&format!("neigh add {} lladdr 02:00:00:00:00:06 dev pod2", OTHER_POD.0));
        ip(&format!("neigh add {} lladdr 02:00:00:00:00:05 dev pod0", LOCAL_POD.0));
        kernel.set_interfaces(&topology.interfaces()).unwrap();
        // The first service's backend is the second service, so that a packet translated twice is noticed.
        let second = (Ipv4Addr::new(10, 96, 0, 11), 80);
        kernel
            .apply_service("a/b", Some(&inside::<Ipv4Addr>(Protocol::Udp, &[at(OTHER_POD, true)])))
            .unwrap();
        let chained = with([front(second, Protocol::Udp, Scope::Internal, &[at(VIP, true)])]);
        kernel.apply_service("a/c", Some(&chained)).unwrap();
        let mac = std::fs::read_to_string("/sys/class/net/pod0/address");
        let mac = mac.unwrap_or_else(|_| {
            // The namespace's own sysfs is not mounted.
            let text =
                std::process::Command::new("ip").args(["-br", "link", "show", "pod0"]).output().unwrap();
            String::from_utf8(text.stdout).unwrap().split_whitespace().nth(2).unwrap().to_owned()
        });
        let octets: Vec<u8> =
            mac.trim().split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
        let addressed = |frame: &[u8]| [octets.as_slice(), &frame[6..]].concat();
        let (from, to) =
            (Wire::open(super::support::index_of("pod1")), Wire::open(super::support::index_of("pod3")));
        let client = (LOCAL_POD.0, 51_000);
        let [first, last] = datagram(client, VIP).fragments(41, 64);
        from.send(&addressed(&last));
        let end = Instant::now() + scaled(Duration::from_secs(1));
        while metric(node, "fragment_held") == 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(metric(node, "fragment_held"), 1);
        // The time that this takes.
        std::thread::sleep(Duration::from_millis(200));
        from.send(&addressed(&first));
        let is = |more: bool| {
            move |frame: &[u8]| {
                frame[12..14] == [8, 0] && frame[18..20] == [0, 41] && (frame[20] & 0x20 != 0) == more
            }
        };
        let first = to.receive(is(true)).expect("the first fragment");
        let last = to.receive(is(false)).expect("the second fragment");
        let whole = together::<Ipv4Addr>(&first, &last, 41);
        assert_eq!((whole.source, whole.destination), (client, OTHER_POD));
    });
}
