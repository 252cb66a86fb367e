//! Fragments: in order and out of it, in both directions.
#![allow(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use userspace_dataplane::tables::{DataPlane, NodeTables, Protocol, Scope};
use userspace_dataplane::{Kernel, Program};

use super::families::both;
use super::net::*;
use super::support::packet::{Fragment, Packet};
use super::support::topology::*;
use super::support::{Node, ip, patience};
use super::{metric, on_node};

/// A datagram of two fragments; the second one begins after 64 bytes.
fn datagram<A: Net>(from: (A, u16), to: (A, u16)) -> Packet<A> {
    let payload: Vec<u8> = (0..150).map(|byte| byte as u8 ^ 0x5a).collect();
    Packet::udp(from, to, &payload)
}

/// Puts two fragments together again, which shows every checksum to be right.
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
    let pod = |frame: &[u8]| {
        let run = tcx_bytes(kernel, Program::PodIngress, frame, topology.pod);
        assert_eq!(run.verdict, REDIRECT);
        run.packet
    };
    let unknown = metric(node, "fragment_unknown");
    // Back into the queue of its interface, as it is.
    assert_eq!(pod(&second), second);
    let first = pod(&first);
    let expected = Packet { ttl: 63, ..datagram(client, A::OTHER_POD) };
    assert_eq!(together::<A>(&first, &pod(&second), 21), expected);
    assert_eq!(metric(node, "fragment_unknown"), unknown);
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
    // Others' fragments pass.
    let [first, second] = datagram(client, A::REMOTE_POD).fragments(32, 64);
    for frame in [first, second] {
        let run = tcx_bytes(kernel, Program::PodIngress, &frame, topology.pod);
        assert_eq!((run.verdict, run.packet), (NEXT, frame));
    }
    kernel.set_node(&NodeTables { service_ranges: Vec::new(), ..settings }).unwrap();
}

/// A raw socket on an interface.
struct Wire(i32);

impl Wire {
    fn open(interface: u32) -> Self {
        let protocol = i32::from((libc::ETH_P_ALL as u16).to_be());
        // SAFETY: takes numbers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, protocol) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: all fields are integers, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol as u16;
        address.sll_ifindex = interface as i32;
        // SAFETY: the address outlives the call, and its size is given.
        let result =
            unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        Self(fd)
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the frame outlives the call.
        let sent = unsafe { libc::send(self.0, frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// The next frame that is as wanted, within a second.
    fn receive(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        let end = Instant::now() + patience(Duration::from_secs(1));
        let mut frame = [0_u8; 2_048];
        while Instant::now() < end {
            // SAFETY: the buffer outlives the call, and its size is given.
            let length = unsafe { libc::recv(self.0, frame.as_mut_ptr().cast(), frame.len(), 0) };
            if length < 0 {
                std::thread::sleep(Duration::from_millis(5));
            } else if wanted(&frame[..length as usize]) {
                return Some(frame[..length as usize].to_vec());
            }
        }
        None
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { libc::close(self.0) };
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn on_a_wire_a_fragment_waits_a_bounded_time_and_nothing_is_translated_twice() {
    on_node(|kernel, topology, node| {
        ip(&format!("neigh add {} lladdr 02:00:00:00:00:06 dev pod2", OTHER_POD.0));
        ip(&format!("neigh add {} lladdr 02:00:00:00:00:05 dev pod0", LOCAL_POD.0));
        kernel.set_interfaces(&topology.interfaces()).unwrap();
        // The first service's backend is the second service, so that a packet translated twice shows.
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
        // Alone, the second one is given up after a while.
        from.send(&addressed(&last));
        let end = Instant::now() + patience(Duration::from_secs(1));
        while metric(node, "fragment_unknown") == 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(metric(node, "fragment_unknown"), 1);
        // In order both arrive, past the egress of the other interface.
        from.send(&addressed(&first));
        from.send(&addressed(&last));
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
