use std::collections::{BTreeMap, BTreeSet};

use ebpf_common::flow::flow_flag;
use ebpf_common::frontend::{Frontend, frontend_flag};
use ebpf_common::{Config, Range};

use super::super::snapshot::{KnownFlow, KnownFrontend, mark};
use super::*;
use crate::convert;
use crate::tables::{Backend, FrontendKey, Protocol, Scope};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn word(text: &str) -> u32 {
    convert::word(text.parse().unwrap())
}

fn frontend(flags: u16, backends: &[(&str, bool)]) -> KnownFrontend {
    let backends: Vec<Backend> =
        backends.iter().map(|(address, local)| Backend::new(ip(address), 8_080, *local)).collect();
    let switch = Frontend::pack(7, backends.len() as u16, flags);
    KnownFrontend { value: Frontend { switch, service: 3, ..Frontend::default() }, backends, lut: Vec::new() }
}

fn key(address: &str, port: u16, scope: Scope) -> FrontendKey {
    FrontendKey { address: ip(address), port, protocol: Protocol::Tcp, scope }
}

/// Returns a node with Service default/web at 10.96.0.1:80 and node port 30080.
fn snapshot(flags: u16, backends: &[(&str, bool)]) -> Snapshot {
    let config = Config {
        wildcard_port_min: 30_000,
        wildcard_port_max: 32_767,
        snat_address4: word("192.0.2.1"),
        snat_port_min: 1_024,
        snat_port_max: 29_999,
        ranges4: [Range { network: word("10.96.0.0"), mask: word("255.255.0.0") }, Range::default()],
        ..Config::default()
    };
    let mut frontends = BTreeMap::new();
    for scope in [Scope::Internal, Scope::External] {
        frontends.insert(key("10.96.0.1", 80, scope), frontend(flags, backends));
        frontends.insert(key("0.0.0.0", 30_080, scope), frontend(flags, backends));
    }
    frontends.insert(mark(ip("10.96.0.1")), frontend(0, &[]));
    Snapshot {
        config,
        frontends,
        local: BTreeSet::from([ip("192.0.2.1")]),
        names: BTreeMap::from([(3, "default/web".to_owned())]),
        counted: BTreeMap::from([(3, (10, 1))]),
        uplinks: Some(1),
        ..Snapshot::default()
    }
}

fn ask(snapshot: &Snapshot, words: &str, from: From) -> Explanation {
    explain(snapshot, &Query::parse(&[words], Some(from)).unwrap())
}

fn translated(explanation: &Explanation) -> (Option<(IpAddr, u16)>, Option<IpAddr>) {
    match explanation.outcome() {
        Outcome::Translated { backend, source, .. } => {
            (*backend, source.as_ref().map(|source| source.address))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn questions_are_read_in_several_forms() {
    let one = Query::parse(&["tcp", "10.0.0.1:40000", "10.96.0.1:443"], None).unwrap();
    assert_eq!(one, Query::parse(&["TCP 10.0.0.1:40000 -> 10.96.0.1:443"], None).unwrap());
    assert_eq!((one.from, one.source), (From::Pod, Some((ip("10.0.0.1"), 40_000))));
    assert_eq!(Query::parse(&["udp", "[fd00::1]:53"], None).unwrap().from, From::Host);
    // TCP is the default.
    assert_eq!(one, Query::parse(&["10.0.0.1:40000", "10.96.0.1:443"], None).unwrap());
    let v6 = Query::parse(&["[fd00::5]:40000", "[fd00:96::1]:443"], None).unwrap();
    assert_eq!(v6.destination, (ip("fd00:96::1"), 443));
}

#[test]
fn malformed_flows_are_refused_with_a_reason() {
    let error = |words: &str, from| Query::parse(&[words], from).unwrap_err();
    for words in ["", "tcp", "tcp 10.0.0.1:1 10.0.0.2:2 10.0.0.3:3"] {
        assert_eq!(error(words, None), QueryError::Form);
    }
    assert_eq!(error("gre 10.0.0.1:1", None), QueryError::First("gre".to_owned()));
    assert_eq!(error("default/web", None), QueryError::First("default/web".to_owned()));
    assert_eq!(error("tcp 10.0.0.1", None), QueryError::Place("10.0.0.1".to_owned()));
    assert_eq!(error("tcp fd00::1 fd00::2", None), QueryError::Place("fd00::1".to_owned()));
    let families = QueryError::Families { source_address: ip("fd00::1"), destination: ip("10.0.0.1") };
    assert_eq!(error("tcp [fd00::1]:1 10.0.0.1:1", None), families);
    assert_eq!(error("tcp 10.0.0.1:1", Some(From::Uplink)), QueryError::Source);
    // `explain tcp 10.0.0.1:1 -> 10.96.0.1:80` in a shell: the rest is the name of a file.
    assert_eq!(error("tcp 10.0.0.1:1 -", None), QueryError::Arrow);
}

#[test]
fn a_socket_goes_to_any_backend_and_is_translated_once() {
    let node = snapshot(0, &[("10.244.0.5", true), ("10.244.1.6", false)]);
    let explanation = ask(&node, "tcp 10.96.0.1:80", From::Host);
    let Outcome::Translated { service, backend, candidates, source, .. } = explanation.outcome() else {
        panic!("{explanation:?}");
    };
    assert_eq!((service.as_str(), *backend, source.is_none()), ("default/web", None, true));
    assert!(candidates.iter().all(|one| (one.share - 0.5).abs() < 1e-9) && candidates.len() == 2);
    assert_eq!(explanation.counted, Some(Counted { connections: 10, refused: 1 }));
    // Node ports are served on the node's loopback addresses, for its own processes only.
    assert!(matches!(ask(&node, "tcp 127.0.0.1:30080", From::Host).outcome(), Outcome::Translated { .. }));
    assert_eq!(*ask(&node, "tcp 127.0.0.1:30080", From::Pod).outcome(), Outcome::NotAService);
    assert_eq!(*ask(&node, "tcp 192.0.2.9:30080", From::Host).outcome(), Outcome::NotAService);
}

#[test]
fn destinations_without_a_service_are_refused_dropped_or_passed() {
    let node = snapshot(0, &[("10.244.0.5", true)]);
    let outcome = |words: &str| ask(&node, words, From::Host).outcome().clone();
    assert!(matches!(outcome("tcp 10.96.0.1:81"), Outcome::Refused { .. }));
    assert!(matches!(outcome("tcp 10.96.0.2:80"), Outcome::Dropped { .. }));
    assert_eq!(outcome("tcp 198.51.100.1:80"), Outcome::NotAService);
    let empty = snapshot(0, &[]);
    assert!(matches!(ask(&empty, "tcp 10.96.0.1:80", From::Host).outcome(), Outcome::Refused { .. }));
    let local = snapshot(frontend_flag::DROP_WHEN_EMPTY, &[]);
    let from_outside = ask(&local, "tcp 203.0.113.9:4000 192.0.2.1:30080", From::Uplink);
    assert!(matches!(from_outside.outcome(), Outcome::Dropped { .. }));
}

#[test]
fn the_source_is_replaced_only_where_replies_would_miss_the_node() {
    let outside = "tcp 203.0.113.9:4000 192.0.2.1:30080";
    let remote = snapshot(0, &[("10.244.1.6", false)]);
    let (backend, source) = translated(&ask(&remote, outside, From::Uplink));
    assert_eq!((backend, source), (Some((ip("10.244.1.6"), 8_080)), Some(ip("192.0.2.1"))));
    let local = snapshot(0, &[("10.244.0.5", true)]);
    assert_eq!(translated(&ask(&local, outside, From::Uplink)).1, None);
    // A pod reaches itself through its own service.
    let hairpin = "tcp 10.244.0.5:4000 10.96.0.1:80";
    assert_eq!(translated(&ask(&local, hairpin, From::Pod)).1, Some(ip("192.0.2.1")));
    assert_eq!(translated(&ask(&local, "tcp 10.244.0.7:4000 10.96.0.1:80", From::Pod)).1, None);
    let masked = snapshot(frontend_flag::MASQUERADE, &[("10.244.0.5", true)]);
    assert_eq!(
        translated(&ask(&masked, "tcp 10.244.0.7:4000 10.96.0.1:80", From::Pod)).1,
        Some(ip("192.0.2.1"))
    );
    // Direct server return leaves the source alone.
    let direct = snapshot(frontend_flag::DSR_OPTION, &[("10.244.1.6", false)]);
    assert_eq!(translated(&ask(&direct, outside, From::Uplink)).1, None);
    let mut homeless = remote;
    homeless.config.snat_address4 = 0;
    assert!(matches!(ask(&homeless, outside, From::Uplink).outcome(), Outcome::Dropped { .. }));
}

#[test]
fn xdp_leaves_to_the_stacks_hooks_what_ends_here() {
    let outside = "tcp 203.0.113.9:4000 192.0.2.1:30080";
    for (local, hooks) in [(true, vec!["xdp", "uplink"]), (false, vec!["xdp"])] {
        let mut node = snapshot(0, &[("10.244.0.5", local)]);
        node.xdp = 1;
        let explanation = ask(&node, outside, From::Uplink);
        assert_eq!(explanation.paths.iter().map(|path| path.hook).collect::<Vec<_>>(), hooks);
    }
}

#[test]
fn sources_outside_the_ranges_are_dropped() {
    let mut node = snapshot(frontend_flag::SOURCE_RANGES, &[("10.244.0.5", true)]);
    node.source_ranges.insert(3, vec!["203.0.113.0/24".parse().unwrap()]);
    let ask = |source: &str| ask(&node, &format!("tcp {source}:4000 192.0.2.1:30080"), From::Uplink);
    assert!(matches!(ask("203.0.113.9").outcome(), Outcome::Translated { .. }));
    assert!(matches!(ask("198.51.100.9").outcome(), Outcome::Dropped { .. }));
}

#[test]
fn a_client_with_affinity_keeps_its_backend_while_it_is_there() {
    let backends = [("10.244.0.5", true), ("10.244.1.6", false), ("10.244.1.7", false)];
    let mut node = snapshot(0, &backends);
    for known in node.frontends.values_mut() {
        known.value.affinity = 100;
    }
    let words = "tcp 10.244.0.9:4000 10.96.0.1:80";
    for (address, quiet) in [("10.244.1.7", 10), ("10.244.1.6", 100)] {
        node.affinity.insert((3, Scope::Internal), (ip(address), quiet));
        assert_eq!(translated(&ask(&node, words, From::Pod)).0, Some((ip(address), 8_080)));
    }
    let by_hash = {
        node.affinity.clear();
        translated(&ask(&node, words, From::Pod)).0
    };
    // Too long ago, or to a backend that is gone: like a new connection.
    for (address, quiet) in [("10.244.1.7", 101), ("10.244.1.99", 1)] {
        node.affinity.insert((3, Scope::Internal), (ip(address), quiet));
        assert_eq!(translated(&ask(&node, words, From::Pod)).0, by_hash);
    }
}

#[test]
fn a_flow_that_exists_decides_alone() {
    let mut node = snapshot(0, &[("10.244.0.5", true)]);
    let query = Query::parse(&["tcp 203.0.113.9:4000 192.0.2.1:30080"], Some(From::Uplink)).unwrap();
    let ends = Ends { source: query.source.unwrap(), destination: query.destination };
    let becomes = Ends { source: (ip("192.0.2.1"), 2_000), destination: (ip("10.244.1.9"), 8_080) };
    let flow = KnownFlow { becomes, service: 3, flags: flow_flag::THROUGH, quiet: 1, epoch: 0 };
    node.flows.insert((6, ends), flow);
    node.xdp = 1;
    let explanation = explain(&node, &query);
    assert_eq!(explanation.paths.len(), 1);
    assert_eq!(translated(&explanation), (Some((ip("10.244.1.9"), 8_080)), Some(ip("192.0.2.1"))));
    // Since then the service has lost this backend, or the connection has ended.
    node.config.epoch = 5;
    assert_eq!(translated(&explain(&node, &query)).0, Some((ip("10.244.1.9"), 8_080)));
    node.losses.insert(3, 4);
    assert_eq!(translated(&explain(&node, &query)).0, Some((ip("10.244.0.5"), 8_080)));
    node.losses.clear();
    node.flows.insert((6, ends), KnownFlow { flags: flow_flag::THROUGH | flow_flag::RESET, ..flow });
    assert_eq!(translated(&explain(&node, &query)).0, Some((ip("10.244.0.5"), 8_080)));
}

#[test]
fn tables_and_rendezvous_are_read_as_programs_read_them() {
    // All entries name one backend.
    let mut known = frontend(frontend_flag::CONSISTENT, &[("10.244.0.5", true), ("10.244.1.6", false)]);
    known.lut = vec![1; 64];
    for hash in [0, 1 << 26, u32::MAX] {
        assert_eq!(choose::backend(&known, hash).unwrap().address, ip("10.244.1.6"));
    }
    // The upper bits select the entry.
    known.lut[63] = 0;
    assert_eq!(choose::backend(&known, u32::MAX).unwrap().address, ip("10.244.0.5"));
    // A table of another list is replaced by a random choice.
    known.lut = vec![9; 64];
    assert_eq!(choose::backend(&known, u32::MAX).unwrap().address, ip("10.244.1.6"));
    // Rendezvous: a backend that leaves moves only its own flows.
    let all = frontend(
        frontend_flag::CONSISTENT,
        &[("10.244.0.5", true), ("10.244.1.6", false), ("10.244.1.7", false)],
    );
    let mut fewer = all.clone();
    fewer.backends.remove(1);
    let mut moved = 0;
    for n in 0..1_000_u32 {
        let hash = n.wrapping_mul(0x9e37_79b1);
        let (before, after) = (choose::backend(&all, hash).unwrap(), choose::backend(&fewer, hash).unwrap());
        if before.address == ip("10.244.1.6") {
            moved += 1;
        } else {
            assert_eq!(before, after);
        }
    }
    assert!((200..470).contains(&moved), "{moved} of 1,000 had the backend that left");
}

#[test]
fn without_an_uplink_nothing_sees_what_comes_from_outside() {
    let mut snapshot = snapshot(0, &[("10.244.0.7", true)]);
    let flow = "tcp 203.0.113.9:4000 192.0.2.1:30080";
    assert!(matches!(ask(&snapshot, flow, From::Uplink).outcome(), Outcome::Translated { .. }));
    snapshot.uplinks = Some(0);
    assert_eq!(*ask(&snapshot, flow, From::Uplink).outcome(), Outcome::NoUplink);
    // If the uplinks are unknown, the tables decide.
    snapshot.uplinks = None;
    assert!(matches!(ask(&snapshot, flow, From::Uplink).outcome(), Outcome::Translated { .. }));
}
