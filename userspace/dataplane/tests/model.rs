//! The programs against the plain model, over random tables and packets.
#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use support::model::{Allowed, allowed};
use support::packet::{End, ICMP, Packet, RST, SYN, UDP};
use support::topology::*;
use support::{Node, in_namespace, key};
use userspace_dataplane::tables::{
    Applied, Backend, DataPlane, Frontend, Protocol, Scope, ServiceTables, Tables,
};
use userspace_dataplane::{Kernel, Program};

const NODE_PORT: u16 = 30_080;

/// Places that backends are at: beside the client, elsewhere, and the client itself.
const PLACES: [(End, bool); 6] = [
    (OTHER_POD, true),
    ((OTHER_POD.0, 9_090), true),
    (LOCAL_POD, true),
    (REMOTE_POD, false),
    ((REMOTE_POD.0, 9_090), false),
    ((Ipv4Addr::new(10, 2, 0, 8), 8_080), false),
];

/// Addresses that frontends have, with "any of the node's" among them.
const FRONTENDS: [(Ipv4Addr, u16); 5] = [
    (Ipv4Addr::new(10, 96, 0, 10), 80),
    (Ipv4Addr::new(10, 96, 0, 10), 81),
    (Ipv4Addr::new(10, 96, 0, 11), 80),
    (Ipv4Addr::UNSPECIFIED, NODE_PORT),
    (Ipv4Addr::UNSPECIFIED, NODE_PORT + 1),
];

/// Addresses that packets are sent to: all of those, and some that are nobody's.
const TARGETS: [(Ipv4Addr, u16); 7] = [
    (Ipv4Addr::new(10, 96, 0, 10), 80),
    (Ipv4Addr::new(10, 96, 0, 10), 81),
    (Ipv4Addr::new(10, 96, 0, 11), 80),
    (NODE, NODE_PORT),
    (NODE, NODE_PORT + 1),
    (Ipv4Addr::new(10, 96, 0, 12), 80),
    (Ipv4Addr::new(192, 0, 2, 9), NODE_PORT),
];

#[derive(Clone, Copy, Debug)]
enum Way {
    Pod,
    Uplink,
    /// Through XDP first, as an uplink has it; what it leaves goes on to tcx.
    Xdp,
}

#[derive(Clone, Debug)]
struct Sent {
    target: usize,
    udp: bool,
    way: Way,
    port: u16,
    payload: Vec<u8>,
}

fn frontends() -> impl Strategy<Value = Tables> {
    let list = prop::collection::btree_set(0..PLACES.len(), 0..4);
    let frontend = (list, any::<bool>(), prop::bool::weighted(0.2));
    let index = (0..FRONTENDS.len(), any::<bool>(), any::<bool>());
    prop::collection::btree_map(index, frontend, 0..12).prop_map(|frontends| {
        let mut tables = Tables::new();
        for ((place, udp, external), (list, drop_when_empty, affinity)) in frontends {
            let (address, port) = FRONTENDS[place];
            let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
            let scope = if external { Scope::External } else { Scope::Internal };
            let backends: Vec<Backend> =
                list.iter().map(|place| at(PLACES[*place].0, PLACES[*place].1)).collect();
            let service: &mut ServiceTables = tables.entry(format!("test/{place}")).or_default();
            service.frontends.push(Frontend {
                key: key(&address.to_string(), port, protocol, scope),
                backends,
                affinity_seconds: if affinity { 60 } else { 0 },
                drop_when_empty,
            });
        }
        for service in tables.values_mut() {
            service.frontends.sort_by_key(|frontend| frontend.key);
        }
        tables
    })
}

fn sent() -> impl Strategy<Value = Sent> {
    let way = prop_oneof![Just(Way::Pod), Just(Way::Uplink), Just(Way::Xdp)];
    let payload = prop::collection::vec(any::<u8>(), 0..80);
    (0..TARGETS.len(), any::<bool>(), way, 50_000_u16..50_040, payload)
        .prop_map(|(target, udp, way, port, payload)| Sent { target, udp, way, port, payload })
}

impl Sent {
    fn packet(&self) -> Packet {
        let from = match self.way {
            Way::Pod => LOCAL_POD.0,
            _ => CLIENT.0,
        };
        let (source, destination) = ((from, self.port), TARGETS[self.target]);
        if self.udp {
            Packet::udp(source, destination, &self.payload)
        } else {
            Packet { payload: self.payload.clone(), ..Packet::tcp(source, destination, SYN) }
        }
    }

    fn scope(&self) -> Scope {
        match self.way {
            Way::Pod => Scope::Internal,
            _ => Scope::External,
        }
    }
}

/// What came out of the programs.
#[derive(Debug)]
enum Outcome {
    Unchanged,
    Dropped,
    Became(Packet),
}

/// Sends a packet through the programs of an interface.
fn send(kernel: &Kernel, topology: &Topology, packet: &Packet, way: Way) -> Outcome {
    if let Way::Xdp = way {
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

/// The reply of a backend, through the interface it arrives on.
fn reply(kernel: &Kernel, topology: &Topology, there: &Packet, way: Way) -> Outcome {
    let reply = Packet {
        source: there.destination,
        destination: there.source,
        flags: if there.protocol == UDP { 0 } else { SYN | support::packet::ACK },
        ttl: 64,
        ..there.clone()
    };
    let remote = there.destination.0.octets()[1] == 2;
    let way = match (remote, way) {
        (false, _) => Way::Pod,
        (true, Way::Xdp) => Way::Xdp,
        (true, _) => Way::Uplink,
    };
    send(kernel, topology, &reply, way)
}

fn check(
    kernel: &Kernel,
    topology: &Topology,
    tables: &Tables,
    sent: &Sent,
    chosen: &mut BTreeMap<(End, End, u8), End>,
) -> Result<(), TestCaseError> {
    let packet = sent.packet();
    let outcome = send(kernel, topology, &packet, sent.way);
    let became = match (allowed(tables, &[NODE], &packet, sent.scope()), outcome) {
        (Allowed::Unchanged, Outcome::Unchanged) | (Allowed::Dropped, Outcome::Dropped) => return Ok(()),
        (Allowed::Refused, Outcome::Became(answer)) => {
            prop_assert_eq!((answer.source.0, answer.destination.0), (packet.destination.0, packet.source.0));
            if sent.udp {
                prop_assert_eq!(answer.protocol, ICMP);
            } else {
                prop_assert_eq!(answer.flags & RST, RST);
            }
            return Ok(());
        }
        (Allowed::To(ends), Outcome::Became(there)) if ends.contains(&there.destination) => there,
        (expected, outcome) => {
            return Err(TestCaseError::fail(format!("{expected:?} expected, but: {outcome:?}")));
        }
    };
    prop_assert_eq!(&became.payload, &packet.payload);
    // The client's address is kept but where replies would not come back through this node.
    let through = sent.scope() == Scope::External && became.destination.0.octets()[1] == 2;
    let itself = became.destination.0 == packet.source.0;
    prop_assert_eq!(became.source.0, if through || itself { NODE } else { packet.source.0 });
    // The same connection goes to the same backend.
    let flow = (packet.source, packet.destination, packet.protocol);
    prop_assert_eq!(*chosen.entry(flow).or_insert(became.destination), became.destination);
    match reply(kernel, topology, &became, sent.way) {
        Outcome::Became(back) => {
            prop_assert_eq!((back.source, back.destination), (packet.destination, packet.source));
        }
        other => return Err(TestCaseError::fail(format!("the reply was {other:?}"))),
    }
    Ok(())
}

#[test]
#[ignore = "needs root and eBPF: cargo xtask test"]
fn packets_become_what_the_model_allows() {
    in_namespace(|| {
        let topology = Topology::new();
        let node = Node::new();
        support::ip("neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev up0");
        let kernel = RefCell::new(topology.open(&node));
        let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
        let strategy = prop::collection::vec((frontends(), prop::collection::vec(sent(), 1..40)), 1..3);
        // Tables follow one another in the same maps, and flows of earlier ones are still there.
        let result = TestRunner::new(config).run(&strategy, |steps| {
            let mut kernel = kernel.borrow_mut();
            for (tables, packets) in steps {
                kernel.apply_full(&tables).unwrap();
                prop_assert_eq!(kernel.apply_full(&tables).unwrap(), Applied::default());
                let mut chosen = BTreeMap::new();
                for sent in &packets {
                    check(&kernel, &topology, &tables, sent, &mut chosen)?;
                }
            }
            Ok(())
        });
        if let Err(error) = result {
            panic!("{error}");
        }
    });
}
