//! The programs against the plain model, over random tables and packets of both families.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

#[path = "../../../tests/support/seeded.rs"]
mod seeded;
mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use support::model::{Allowed, allowed};
use support::packet::{ACK, Address, Packet, RST, SCTP, SYN, TCP, UDP};
use support::topology::*;
use support::{Node, in_namespace, share};
use userspace_dataplane::DataPlane;
use userspace_dataplane::tables::{
    Algorithm, Applied, Backend, Frontend, FrontendKey, NodeTables, Protocol, Scope, Tables,
};
use userspace_dataplane::{Kernel, Program};

const NODE_PORT: u16 = 30_080;

/// An address of either family, by number.
fn address(v6: bool, v4: [u8; 4], last: [u16; 3]) -> IpAddr {
    if v6 {
        Ipv6Addr::new(last[0], last[1], 0, 0, 0, 0, 0, last[2]).into()
    } else {
        Ipv4Addr::from(v4).into()
    }
}

/// Returns a place of a backend: beside the client, the client itself, elsewhere; and whether the place is on
/// this node.
fn place(v6: bool, number: usize) -> Backend {
    let pod = |node: u8, host: u8| address(v6, [10, node, 0, host], [0xfd00, node.into(), host.into()]);
    let (address, port, local) = [
        (pod(1, 6), 8_080, true),
        (pod(1, 6), 9_090, true),
        (pod(1, 5), 8_080, true),
        (pod(2, 7), 8_080, false),
        (pod(2, 7), 9_090, false),
        (pod(2, 8), 8_080, false),
    ][number];
    Backend::new(address, port, local)
}
const PLACES: usize = 6;

fn vip(v6: bool, host: u8) -> IpAddr {
    address(v6, [10, 96, 0, host], [0xfd00, 0x96, host.into()])
}

/// Returns a place of a frontend, with "any of the node's addresses" among them.
fn frontend_at(v6: bool, number: usize) -> (IpAddr, u16) {
    let any = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    [(vip(v6, 10), 80), (vip(v6, 10), 81), (vip(v6, 11), 80), (any, NODE_PORT), (any, NODE_PORT + 1)][number]
}
const FRONTENDS: usize = 5;

/// Returns a destination of packets: all of those, and some of no frontend.
fn target(v6: bool, number: usize) -> (IpAddr, u16) {
    let node = if v6 { NODE6.into() } else { NODE.into() };
    let beside = address(v6, [192, 0, 2, 9], [0x2001, 0xdb8, 9]);
    [
        (vip(v6, 10), 80),
        (vip(v6, 10), 81),
        (vip(v6, 11), 80),
        (node, NODE_PORT),
        (node, NODE_PORT + 1),
        (vip(v6, 12), 80),
        (beside, NODE_PORT),
        (vip(v6, 10), 82),
    ][number]
}
const TARGETS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Pod,
    Uplink,
    /// Through XDP first, as on an uplink; packets that it leaves go on to tcx.
    Xdp,
}

#[derive(Clone, Debug)]
struct Sent {
    v6: bool,
    target: usize,
    kind: u8,
    way: Way,
    port: u16,
    payload: Vec<u8>,
}

const ECHO: u8 = 1;

fn frontends() -> impl Strategy<Value = Tables> {
    let list = prop::collection::btree_set(0..PLACES, 0..4);
    let choices = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    let frontend = (list, choices, prop::bool::weighted(0.2), any::<bool>());
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
    let index = (any::<bool>(), 0..FRONTENDS, protocol, any::<bool>());
    let marks = prop::collection::btree_set((any::<bool>(), 10_u8..13), 0..4);
    (prop::collection::btree_map(index, frontend, 0..14), marks, any::<bool>()).prop_map(
        |(frontends, marks, client)| {
            let mut tables = Tables::new();
            for ((v6, number, protocol, external), (list, choices, limited, weighted)) in frontends {
                let (address, port) = frontend_at(v6, number);
                let scope = if external { Scope::External } else { Scope::Internal };
                let (drop_when_empty, consistent, affinity, masquerade) = choices;
                let mut backends: Vec<Backend> = list.iter().map(|place_of| place(v6, *place_of)).collect();
                if let (true, [first, ..]) = (weighted, backends.as_mut_slice()) {
                    first.weight = 3;
                }
                let mut frontend = Frontend::new(FrontendKey { address, port, protocol, scope }, backends);
                frontend.affinity_seconds = if affinity { 60 } else { 0 };
                frontend.drop_when_empty = drop_when_empty;
                frontend.algorithm = if consistent { Algorithm::Consistent } else { Algorithm::Random };
                frontend.masquerade = masquerade;
                frontend.limited = limited;
                tables.entry(format!("test/{number}")).or_default().frontends.push(frontend);
            }
            for (v6, host) in marks {
                let service = tables.entry(format!("mark/{host}")).or_default();
                service.frontends.push(Frontend::mark(vip(v6, host)));
            }
            for service in tables.values_mut() {
                service.frontends.sort_by_key(|frontend| frontend.key);
                if service.frontends.iter().any(|frontend| frontend.limited) {
                    service.source_ranges = ranges(client);
                }
            }
            tables
        },
    )
}

/// Returns the admitted sources: pods and, optionally, the client outside.
fn ranges(client: bool) -> Vec<IpNetwork> {
    let pods = ["10.1.0.0/24", "fd00:1::/64"];
    let outside = ["192.0.2.96/27", "2001:db8::100/120"];
    let mut ranges: Vec<IpNetwork> = pods.iter().map(|range| range.parse().unwrap()).collect();
    if client {
        ranges.extend(outside.iter().map(|range| range.parse::<IpNetwork>().unwrap()));
    }
    ranges.sort();
    ranges
}

fn sent() -> impl Strategy<Value = Sent> {
    let way = prop_oneof![Just(Way::Pod), Just(Way::Uplink), Just(Way::Xdp)];
    let payload = prop::collection::vec(any::<u8>(), 0..80);
    let kind = prop_oneof![4 => Just(TCP), 4 => Just(UDP), 2 => Just(SCTP), 1 => Just(ECHO)];
    (any::<bool>(), 0..TARGETS, kind, way, 50_000_u16..50_020, payload)
        .prop_map(|(v6, target, kind, way, port, payload)| Sent { v6, target, kind, way, port, payload })
}

/// An address of a family that the test's packets have.
trait Net: Address {
    const ECHO: u8;
    fn of(address: IpAddr) -> Self;
}

impl Net for Ipv4Addr {
    const ECHO: u8 = 8;
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => unreachable!("an address of the other family"),
        }
    }
}

impl Net for Ipv6Addr {
    const ECHO: u8 = 128;
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V6(address) => address,
            IpAddr::V4(_) => unreachable!("an address of the other family"),
        }
    }
}

impl Sent {
    fn packet<A: Net>(&self) -> Packet<A> {
        let (pod, client): (IpAddr, IpAddr) = match self.v6 {
            false => (LOCAL_POD.0.into(), CLIENT.0.into()),
            true => (LOCAL_POD6.0.into(), CLIENT6.0.into()),
        };
        let from = A::of(if self.way == Way::Pod { pod } else { client });
        let (address, port) = target(self.v6, self.target);
        let (source, destination) = ((from, self.port), (A::of(address), port));
        match self.kind {
            UDP => Packet::udp(source, destination, &self.payload),
            SCTP => {
                Packet::sctp(source, destination, &[&[1, 0, 0, 8, 0, 0, 0, 9], &self.payload[..]].concat())
            }
            ECHO => {
                Packet::icmp(from, destination.0, A::ECHO, 0, &[&[0, 7, 0, 1], &self.payload[..]].concat())
            }
            _ => Packet { payload: self.payload.clone(), ..Packet::tcp(source, destination, SYN) },
        }
    }

    fn scope(&self) -> Scope {
        if self.way == Way::Pod { Scope::Internal } else { Scope::External }
    }
}

/// The result of the programs.
#[derive(Debug)]
enum Outcome<A> {
    Unchanged,
    Dropped,
    Became(Packet<A>),
}

/// Sends a packet through the programs of an interface.
fn send<A: Net>(kernel: &Kernel, topology: &Topology, packet: &Packet<A>, way: Way) -> Outcome<A> {
    if way == Way::Xdp {
        let run = xdp(kernel, packet, topology.uplink);
        match run.verdict {
            XDP_TX => return Outcome::Became(Packet::parse(&run.packet)),
            XDP_DROP => return Outcome::Dropped,
            XDP_PASS => assert_eq!(run.packet, packet.bytes(), "what XDP leaves is as it was"),
            verdict => panic!("XDP gave {verdict}"),
        }
    }
    let (program, interface) = match way {
        Way::Pod => (Program::PodIngress, topology.pod),
        _ => (Program::UplinkIngress, topology.uplink),
    };
    let run = tcx(kernel, program, packet, interface);
    match run.verdict {
        DROP => Outcome::Dropped,
        NEXT if run.packet == packet.bytes() => Outcome::Unchanged,
        NEXT | REDIRECT => Outcome::Became(Packet::parse(&run.packet)),
        verdict => panic!("tcx gave {verdict}"),
    }
}

/// Returns `true` if the place is on another node.
fn is_remote(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[1] == 2,
        IpAddr::V6(address) => address.segments()[1] == 2,
    }
}

/// Sends the reply of a backend, through the interface on which it arrives.
fn reply<A: Net>(kernel: &Kernel, topology: &Topology, there: &Packet<A>, way: Way) -> Outcome<A> {
    let reply = Packet {
        source: there.destination,
        destination: there.source,
        flags: if there.protocol == TCP { SYN | ACK } else { 0 },
        ttl: 64,
        // For SCTP, a chunk that begins nothing.
        payload: if there.protocol == SCTP { vec![2, 0, 0, 4] } else { there.payload.clone() },
        ..there.clone()
    };
    let way = match (is_remote(there.destination.0.into()), way) {
        (false, _) => Way::Pod,
        (true, Way::Xdp) => Way::Xdp,
        (true, _) => Way::Uplink,
    };
    send(kernel, topology, &reply, way)
}

/// Both ends and the protocol of a connection.
type Flow = (IpAddr, u16, IpAddr, u16, u8);

/// The state of connections.
#[derive(Default)]
struct Known {
    /// The backend, by these tables.
    chosen: BTreeMap<Flow, (IpAddr, u16)>,
    /// Connections from earlier tables: source ranges, and whether the node is the client, are decided when a
    /// connection begins.
    earlier: BTreeSet<Flow>,
}

fn check<A: Net>(
    (kernel, topology): (&Kernel, &Topology),
    (tables, node): (&Tables, &NodeTables),
    sent: &Sent,
    known: &mut Known,
) -> Result<(), TestCaseError> {
    let packet = sent.packet::<A>();
    let (from, to) = (packet.source, packet.destination);
    let flow = (from.0.into(), from.1, to.0.into(), to.1, packet.protocol);
    let earlier = known.earlier.contains(&flow);
    let outcome = send(kernel, topology, &packet, sent.way);
    let mut expected = allowed(tables, node, &packet, sent.scope());
    if earlier && expected == Allowed::Dropped && matches!(outcome, Outcome::Became(_)) {
        expected = allowed(&unlimited(tables), node, &packet, sent.scope());
    }
    let (there, masquerade) = match (expected, outcome) {
        (Allowed::Unchanged, Outcome::Unchanged) | (Allowed::Dropped, Outcome::Dropped) => return Ok(()),
        (Allowed::Refused, Outcome::Became(answer)) => return check_refusal(sent, &packet, &answer),
        (Allowed::Answered, Outcome::Became(answer)) => {
            prop_assert_eq!((answer.source.0, answer.destination.0), (packet.destination.0, packet.source.0));
            prop_assert_eq!(answer.payload[0], if A::VERSION == 4 { 0 } else { 129 });
            prop_assert_eq!(&answer.payload[4..], &packet.payload[4..]);
            return Ok(());
        }
        (Allowed::To { ends, masquerade }, Outcome::Became(there))
            if ends.contains(&(there.destination.0.into(), there.destination.1)) =>
        {
            (there, masquerade)
        }
        (expected, outcome) => {
            return Err(TestCaseError::fail(format!("{expected:?} expected, but: {outcome:?}")));
        }
    };
    prop_assert_eq!(&there.payload, &packet.payload);
    // The client's address is kept unless replies would not come back through this node, or the frontend
    // replaces it.
    let through = sent.scope() == Scope::External && is_remote(there.destination.0.into());
    let itself = there.destination.0 == packet.source.0;
    let own = A::of(if sent.v6 { NODE6.into() } else { NODE.into() });
    let source = if through || itself || masquerade { own } else { packet.source.0 };
    if earlier {
        prop_assert!(there.source.0 == own || there.source.0 == packet.source.0);
    } else {
        prop_assert_eq!(there.source.0, source);
    }
    // The same connection goes to the same backend.
    let backend = (there.destination.0.into(), there.destination.1);
    prop_assert_eq!(*known.chosen.entry(flow).or_insert(backend), backend);
    match reply(kernel, topology, &there, sent.way) {
        Outcome::Became(back) => {
            prop_assert_eq!((back.source, back.destination), (packet.destination, packet.source));
            Ok(())
        }
        other => Err(TestCaseError::fail(format!("the reply was {other:?}"))),
    }
}

/// Returns the tables without source ranges.
fn unlimited(tables: &Tables) -> Tables {
    let mut tables = tables.clone();
    for frontend in tables.values_mut().flat_map(|tables| &mut tables.frontends) {
        frontend.limited = false;
    }
    tables
}

fn check_refusal<A: Net>(sent: &Sent, packet: &Packet<A>, answer: &Packet<A>) -> Result<(), TestCaseError> {
    prop_assert_eq!((answer.source.0, answer.destination.0), (packet.destination.0, packet.source.0));
    match sent.kind {
        TCP => prop_assert_eq!(answer.flags & RST, RST),
        SCTP => prop_assert_eq!((answer.sequence, answer.payload[0]), (9, 6), "an abort with the tag"),
        _ => prop_assert_eq!(&answer.payload[..2], if sent.v6 { &[1, 4] } else { &[3, 3] }),
    }
    Ok(())
}

/// Returns settings of the node, with or without service ranges.
fn settings(ranges: bool) -> NodeTables {
    let service_ranges = if ranges { vec!["10.96.0.0/16", "fd00:96::/112"] } else { Vec::new() };
    NodeTables {
        addresses: vec![NODE.into(), NODE6.into()],
        service_ranges: service_ranges.iter().map(|range| range.parse().unwrap()).collect(),
        ..NodeTables::default()
    }
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_become_what_the_model_allows() {
    in_namespace(|| {
        let topology = Topology::new();
        let node = Node::new();
        support::ip("neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev up0");
        support::ip("neigh add 2001:db8::9 lladdr 02:00:00:00:00:09 dev up0");
        let kernel = RefCell::new(topology.open(&node));
        let met = RefCell::new(BTreeSet::new());
        let known = RefCell::new(Known::default());
        let config = seeded::config(share(1_500));
        let packets = prop::collection::vec(sent(), 1..40);
        let strategy = prop::collection::vec((frontends(), any::<bool>(), packets), 1..3);
        // Tables follow one another in the same maps, which still contain flows of earlier ones.
        let result = TestRunner::new(config).run(&strategy, |steps| {
            let mut kernel = kernel.borrow_mut();
            for (tables, ranges, packets) in steps {
                let node = settings(ranges);
                kernel.set_node(&node).unwrap();
                kernel.apply_full(&tables).unwrap();
                prop_assert_eq!(kernel.apply_full(&tables).unwrap(), Applied::default());
                let known = &mut *known.borrow_mut();
                let flows = std::mem::take(&mut known.chosen);
                known.earlier.extend(flows.into_keys());
                for sent in &packets {
                    let (programs, tables) = ((&*kernel, &topology), (&tables, &node));
                    let outcome = if sent.v6 {
                        check::<Ipv6Addr>(programs, tables, sent, known)?;
                        allowed(tables.0, tables.1, &sent.packet::<Ipv6Addr>(), sent.scope())
                    } else {
                        check::<Ipv4Addr>(programs, tables, sent, known)?;
                        allowed(tables.0, tables.1, &sent.packet::<Ipv4Addr>(), sent.scope())
                    };
                    met.borrow_mut().insert(kind(&outcome));
                }
            }
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
        assert_eq!(met.borrow().len(), 5, "every outcome was met");
    });
}

fn kind(allowed: &Allowed) -> u8 {
    match allowed {
        Allowed::Unchanged => 0,
        Allowed::Dropped => 1,
        Allowed::Refused => 2,
        Allowed::Answered => 3,
        Allowed::To { .. } => 4,
    }
}
