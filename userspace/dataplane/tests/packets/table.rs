//! The table of flows: full, reused, and after its backends have gone.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use ebpf_common::flow::tag;
use userspace_dataplane::DataPlane;
use userspace_dataplane::inspect::Inspector;
use userspace_dataplane::tables::{Backend, Protocol};
use userspace_dataplane::{Kernel, Program};

use super::families::both;
use super::net::*;
use super::support::Node;
use super::support::packet::{ACK, FIN, Packet, RST, SYN};
use super::support::topology::*;
use super::{forget_flow4, metric, on_node};
use crate::support::elements::{Elements, run_tcx};

/// Returns twenty pods of this node.
fn many<A: Net>() -> Vec<Backend> {
    let mut bytes = A::OTHER_POD.0.bytes();
    (0..20)
        .map(|number| {
            *bytes.last_mut().unwrap() = 100 + number;
            at((A::read(&bytes), 8_080), true)
        })
        .collect()
}

/// Returns the destination of a packet of a pod.
fn goes<A: Net>(kernel: &Kernel, topology: &Topology, packet: &Packet<A>) -> (A, u16) {
    let run = tcx(kernel, Program::PodIngress, packet, topology.pod);
    Packet::parse(&run.packet).destination
}

both!(a_full_table_never_refuses_a_connection, full);

fn full<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Tcp, &many::<A>()))).unwrap();
    let before = metric(node, "flow_evicted");
    // The table has 8,192 slots, two for each connection.
    for number in 0..8_000_u32 {
        let client = (A::LOCAL_POD.0, 1_024 + (number % 60_000) as u16);
        let run = tcx(kernel, Program::PodIngress, &Packet::tcp(client, A::VIP, SYN), topology.pod);
        let there = Packet::<A>::parse(&run.packet);
        assert_eq!(there.destination.1, 8_080, "connection {number} was given a backend");
        // The flow that has just begun is there, in both directions.
        assert_eq!(goes(kernel, topology, &Packet::tcp(client, A::VIP, ACK)), there.destination);
        let reply = Packet::tcp(there.destination, there.source, SYN | ACK);
        let run = tcx(kernel, Program::PodIngress, &reply, topology.other_pod);
        assert_eq!(Packet::<A>::parse(&run.packet).source, A::VIP);
    }
    assert!(metric(node, "flow_evicted") - before > 3_000, "others gave way");
    assert_eq!(metric(node, "flow_insert_failed"), 0);
}

/// Returns the client port of a v4 flow of TCP between `client` and another end, by its key.
fn port_of(flow: &[u8], client: Ipv4Addr, as_source: bool) -> Option<u16> {
    let (address, port) = if as_source { (0, 8) } else { (4, 10) };
    (flow[address..][..4] == client.octets()).then(|| u16::from_be_bytes([flow[port], flow[port + 1]]))
}

/// Returns the slots of a client's flows: the indexes of both directions, by its port.
fn places(flows: &Elements, client: Ipv4Addr) -> BTreeMap<u16, (u32, u32)> {
    let (mut there, mut back) = (BTreeMap::new(), BTreeMap::new());
    for (index, flow) in flows.iter() {
        if let Some(port) = port_of(&flow, client, true) {
            there.insert(port, index);
        }
        if let Some(port) = port_of(&flow, client, false) {
            back.insert(port, index);
        }
    }
    there.into_iter().filter_map(|(port, index)| Some((port, (index, *back.get(&port)?)))).collect()
}

/// The element for replies to a client outlives the one that led to the backend. The client's next
/// connection, to another backend, may need its slot, which is of the flow that has been quiet for longest,
/// and looks like the new flow's own other direction.
#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn replies_of_a_flow_before_give_way_to_the_next_one_of_the_client() {
    on_node(|kernel, topology, node| {
        let backends = [at(OTHER_POD, true), at((OTHER_POD.0, 9_090), true)];
        let (pod, other) = (LOCAL_POD.0, Ipv4Addr::new(10, 1, 0, 99));
        let begin = |kernel: &Kernel, client| {
            tcx(kernel, Program::PodIngress, &Packet::tcp(client, Ipv4Addr::VIP, SYN), topology.pod)
        };
        kernel.apply_service("a/b", Some(&inside::<Ipv4Addr>(Protocol::Tcp, &backends[..1]))).unwrap();
        for port in 1_024..6_024 {
            begin(kernel, (pod, port));
        }
        let maps = node.bpf_root().join(format!("v{}/maps", ebpf_common::LAYOUT_VERSION));
        let flows = Elements::open(&maps.join("FLOWS4"), 64);
        let tags = Elements::open(&maps.join("FLOW_TAGS4"), 64);
        let sets = tags.iter().count() as u32;
        // Those with both directions in one set lose the one that leads to the backend.
        let mut left = Vec::new();
        for (port, (there, back)) in places(&flows, pod) {
            if there % sets == back % sets {
                forget_flow4(node, &flows.read(there).unwrap()[..16]);
                left.push((port, back, flows.read(back).unwrap()));
            }
        }
        // Others fill the table again.
        for port in 1_024..2_524 {
            begin(kernel, (other, port));
        }
        let before = metric(node, "flow_insert_failed");
        kernel.apply_service("a/b", Some(&inside::<Ipv4Addr>(Protocol::Tcp, &backends[1..]))).unwrap();
        let mut tried = 0;
        for (port, back, flow) in left {
            let (set, way) = (back % sets, 4 * (back / sets) as usize);
            let mut line = tags.read(set).unwrap();
            let full = [&line, &tags.read(set ^ 1).unwrap()]
                .iter()
                .all(|line| line.chunks(4).all(|mark| mark.iter().any(|byte| *byte != 0)));
            if !full || flows.read(back).unwrap()[..16] != flow[..16] {
                continue;
            }
            let mark = u32::from_ne_bytes(line[way..][..4].try_into().unwrap());
            let older = mark & !tag::AGE | mark.wrapping_sub(20) & tag::AGE;
            line[way..][..4].copy_from_slice(&older.to_ne_bytes());
            tags.write(set, &line);
            let run = begin(kernel, (pod, port));
            assert_eq!(Packet::<Ipv4Addr>::parse(&run.packet).destination, (OTHER_POD.0, 9_090));
            tried += 1;
        }
        assert!(tried > 0, "some could be tried");
        assert_eq!(metric(node, "flow_insert_failed"), before);
    });
}

both!(many_flows_find_themselves_again, many_flows);

fn many_flows<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Tcp, &many::<A>()))).unwrap();
    let before = (metric(node, "flow_created"), metric(node, "flow_evicted"));
    let mut chosen = BTreeMap::new();
    // A third of the slots.
    for port in 20_000..21_400 {
        let packet = Packet::tcp((A::LOCAL_POD.0, port), A::VIP, SYN);
        chosen.insert(port, goes(kernel, topology, &packet));
    }
    for (port, backend) in &chosen {
        let packet = Packet::tcp((A::LOCAL_POD.0, *port), A::VIP, ACK);
        assert_eq!(goes(kernel, topology, &packet), *backend);
    }
    let after = (metric(node, "flow_created"), metric(node, "flow_evicted"));
    assert_eq!((after.0 - before.0, after.1 - before.1), (1_400, 0));
    let used: std::collections::BTreeSet<_> = chosen.values().collect();
    assert_eq!(used.len(), 20, "all backends get some");
    kernel.apply_service("a/b", None).unwrap();
}

both!(ports_are_used_again_after_a_connection_has_ended, port_reuse);

fn port_reuse<A: Net>(kernel: &mut Kernel, topology: &Topology, _: &Node) {
    for (number, end) in [[RST | ACK, 0], [FIN | ACK, FIN | ACK]].into_iter().enumerate() {
        let pair = [at(A::OTHER_POD, true), at((A::OTHER_POD.0, 9_090), true)];
        let client = (A::LOCAL_POD.0, 51_000 + number as u16);
        kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Tcp, &pair[..1]))).unwrap();
        let to = |kernel: &Kernel, flags| goes(kernel, topology, &Packet::tcp(client, A::VIP, flags));
        assert_eq!(to(kernel, SYN), A::OTHER_POD);
        // Both could be chosen now, but a repeated request goes to the backend that has the first.
        kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Tcp, &pair))).unwrap();
        for _ in 0..4 {
            assert_eq!(to(kernel, SYN), A::OTHER_POD);
        }
        // The end, from both sides if it takes both.
        assert_eq!(to(kernel, end[0]), A::OTHER_POD);
        if end[1] != 0 {
            let reply = Packet::tcp(A::OTHER_POD, client, end[1]);
            tcx(kernel, Program::PodIngress, &reply, topology.other_pod);
        }
        assert_eq!(to(kernel, ACK), A::OTHER_POD, "what is left of it goes where it went");
        kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Tcp, &pair[1..]))).unwrap();
        assert_eq!(to(kernel, SYN).1, 9_090, "a new connection chooses anew");
        let reply = Packet::tcp((A::OTHER_POD.0, 9_090), client, SYN | ACK);
        let run = tcx(kernel, Program::PodIngress, &reply, topology.other_pod);
        assert_eq!(Packet::<A>::parse(&run.packet).source, A::VIP);
        assert_eq!(to(kernel, ACK).1, 9_090);
    }
}

both!(what_is_new_leaves_a_backend_that_is_gone, losses);

fn losses<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    let before = metric(node, "flow_moved");
    let pair = [at(A::OTHER_POD, true), at(A::REMOTE_POD, false)];
    let client = (A::LOCAL_POD.0, 52_000);
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        kernel.apply_service("a/b", Some(&inside::<A>(protocol, &pair[..1]))).unwrap();
        let to = |kernel: &Kernel, flags| goes(kernel, topology, &following(protocol, client, A::VIP, flags));
        assert_eq!(to(kernel, SYN), A::OTHER_POD);
        // Another service's loss does not concern this one.
        kernel.apply_service("a/c", Some(&outside::<A>(protocol, &pair))).unwrap();
        kernel.apply_service("a/c", Some(&outside::<A>(protocol, &pair[..1]))).unwrap();
        assert_eq!(to(kernel, SYN), A::OTHER_POD);
        kernel.apply_service("a/b", Some(&inside::<A>(protocol, &pair[1..]))).unwrap();
        if protocol != Protocol::Udp {
            assert_eq!(to(kernel, ACK), A::OTHER_POD, "what is established stays");
        }
        assert_eq!(to(kernel, SYN), A::REMOTE_POD);
        assert_eq!(to(kernel, ACK), A::REMOTE_POD);
    }
    assert_eq!(metric(node, "flow_moved") - before, 3);
    kernel.apply_service("a/c", None).unwrap();
}

both!(an_eviction_gives_an_event, events);

fn events<A: Net>(kernel: &mut Kernel, topology: &Topology, node: &Node) {
    // The next tick has a budget of its own.
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    let counters = || (metric(node, "flow_evicted"), metric(node, "events_suppressed"));
    let inspector = Inspector::open(&node.bpf_root()).unwrap();
    let mut ring = inspector.events().unwrap();
    while ring.read().is_some() {}
    kernel.apply_service("a/b", Some(&inside::<A>(Protocol::Tcp, &many::<A>()))).unwrap();
    let before = counters();
    for port in 1_024..11_024 {
        let client = (A::LOCAL_POD.0, port);
        tcx(kernel, Program::PodIngress, &Packet::tcp(client, A::VIP, SYN), topology.pod);
    }
    let after = counters();
    let (evicted, suppressed) = (after.0 - before.0, after.1 - before.1);
    let rows: Vec<_> = std::iter::from_fn(|| ring.read()).collect();
    // A bounded number per tick and processor; all the others are counted.
    assert!(evicted > 1_000 && rows.len() >= 32, "{evicted} evicted, {} told", rows.len());
    assert_eq!(rows.len() as u64 + suppressed, evicted);
    let row = &rows[0];
    assert_eq!((row.kind.as_str(), row.hook.as_str(), row.protocol), ("flow_evicted", "pod", 6));
    assert_eq!((row.service.as_deref(), row.interface), (Some("a/b"), Some(topology.pod)));
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn processors_that_begin_the_same_flows_agree() {
    on_node(|kernel, topology, node| {
        let elsewhere: Vec<Backend> =
            (1..=20).map(|number| at((Ipv4Addr::new(10, 2, 0, number), 8_080), false)).collect();
        kernel.apply_service("a/b", Some(&outside::<Ipv4Addr>(Protocol::Tcp, &elsewhere))).unwrap();
        // Sends each client's packets through two processors at once, in step, all with a source port of the
        // node's.
        let (program, step) = (kernel.program(Program::UplinkIngress), std::sync::Barrier::new(2));
        let uplink = topology.uplink;
        let run = || {
            let mut became = Vec::new();
            for number in 0..1_500 {
                let packet = Packet::tcp((CLIENT.0, 40_000 + number), Ipv4Addr::node_port(), SYN);
                step.wait();
                let (verdict, frame) = run_tcx(program, &packet.bytes(), uplink);
                became.push((verdict == REDIRECT).then(|| Packet::<Ipv4Addr>::parse(&frame)));
            }
            became
        };
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(run);
            (run(), other.join().unwrap())
        });
        // A packet may be lost while both are active; two that arrive go the same way.
        let lost = one.iter().chain(&other).filter(|packet| packet.is_none()).count();
        assert!(lost < 30, "{lost} packets were lost");
        for (one, other) in one.iter().zip(&other) {
            if let (Some(one), Some(other)) = (one, other) {
                assert_eq!((one.source, one.destination), (other.source, other.destination));
            }
        }
        // No key is in the table twice, and each forward element has its reply.
        let rows = Inspector::open(&node.bpf_root()).unwrap().connections().unwrap();
        let clients: std::collections::BTreeSet<_> = rows.iter().map(|row| row.client).collect();
        let sources: std::collections::BTreeSet<_> =
            rows.iter().map(|row| (row.source, row.backend)).collect();
        assert_eq!((rows.len(), clients.len(), sources.len()), (1_500, 1_500, 1_500));
        for packet in one.iter().flatten() {
            let reply = Packet::tcp(packet.destination, packet.source, SYN | ACK);
            let run = tcx(kernel, Program::UplinkIngress, &reply, topology.uplink);
            assert_eq!(Packet::<Ipv4Addr>::parse(&run.packet).source, Ipv4Addr::node_port());
        }
    });
}
