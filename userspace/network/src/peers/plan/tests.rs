use super::*;
use crate::peers::underlay::{ForeignRoute, UnderlayLink};

const ETH0: u32 = 2;

fn plan(config: &PeerConfig, own: &Peer, peers: &[Arc<Peer>], underlay: &Underlay) -> Plan {
    Planned::new(config, own, peers, underlay, None).plan
}

fn net(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node(name: &str, created: i64, ranges: &[&str], addresses: &[&str]) -> Arc<Peer> {
    Arc::new(Peer {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        created,
        ranges: Ok(ranges.iter().map(|range| net(range)).collect()),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        wireguard: None,
    })
}

/// A machine with 192.0.2.1/24 and 2001:db8::1/64 on eth0, its default routes, and the pods' address on lo.
fn underlay() -> Underlay {
    let mut underlay = Underlay::default();
    let link = |mtu, addresses: &[&str]| UnderlayLink {
        name: String::new(),
        mtu,
        addresses: addresses.iter().map(|address| ip(address)).collect(),
    };
    underlay.links.insert(1, link(65536, &["127.0.0.1", "10.244.1.1", "::1"]));
    underlay.given.insert(ip("10.244.1.1"));
    underlay.links.insert(ETH0, link(1500, &["192.0.2.1", "2001:db8::1"]));
    for (to, gateway) in [
        ("0.0.0.0/0", Some("192.0.2.254")),
        ("192.0.2.0/24", None),
        ("::/0", Some("fe80::1")),
        ("2001:db8::/64", None),
    ] {
        underlay.add_route(net(to), ForeignRoute { metric: 0, gateway: gateway.map(ip), link: Some(ETH0) });
    }
    underlay
}

fn config(mode: Mode) -> PeerConfig {
    PeerConfig {
        mode,
        cluster_cidrs: vec![net("10.244.0.0/16"), net("fd00::/48")],
        service_cidrs: vec![net("10.96.0.0/16"), net("10.244.200.0/24")],
        node_ips: vec![ip("192.0.2.1")],
        ..PeerConfig::default()
    }
}

fn own() -> Arc<Peer> {
    node("own", 100, &["10.244.1.0/24", "fd00:0:0:1::/64"], &["192.0.2.1"])
}

fn planned(mode: Mode, peers: &[Arc<Peer>]) -> Plan {
    let mut all = vec![own()];
    all.extend_from_slice(peers);
    plan(&config(mode), &own(), &all, &underlay())
}

fn refusal(peer: Arc<Peer>) -> String {
    let plan = planned(Mode::Auto, std::slice::from_ref(&peer));
    assert_eq!(plan.tables, Tables::default(), "{}", peer.name);
    plan.refused[&peer.name].to_string()
}

#[test]
fn a_peer_on_the_link_gets_a_route_and_one_behind_a_gateway_the_tunnel() {
    let peers = [
        node("near", 1, &["10.244.2.0/24"], &["192.0.2.2"]),
        node("far", 2, &["10.244.3.0/24"], &["198.51.100.3"]),
    ];
    let plan = planned(Mode::Auto, &peers);
    assert_eq!(
        plan.tables.routes,
        [
            (net("10.244.2.0/24"), Hop::Link { gateway: ip("192.0.2.2"), interface: ETH0 }),
            (net("10.244.3.0/24"), Hop::Tunnel { gateway: ip("10.244.3.1"), source: Some(ip("10.244.1.1")) }),
        ]
    );
    let mac = [0x02, 0x48, 10, 244, 3, 0];
    assert_eq!(plan.tables.neighbours, [(ip("10.244.3.1"), mac)]);
    assert_eq!(plan.tables.fdb, [(mac, ip("198.51.100.3"))]);
    let tunnel = plan.tables.tunnel.unwrap();
    assert_eq!(
        (tunnel.mtu, tunnel.local, tunnel.mac),
        (Some(1450), Some(ip("192.0.2.1")), [2, 72, 10, 244, 1, 0])
    );
    assert_eq!(tunnel.addresses, [ip("10.244.1.1"), ip("fd00:0:0:1::1")]);
    assert!(plan.refused.is_empty());
}

#[test]
fn modes_decide_for_all_peers() {
    let peers = [
        node("near", 1, &["10.244.2.0/24"], &["192.0.2.2"]),
        node("far", 2, &["10.244.3.0/24"], &["198.51.100.3"]),
    ];
    let routes = planned(Mode::Routes, &peers);
    assert_eq!((routes.tables.routes.len(), routes.tables.tunnel), (1, None));
    assert_eq!(routes.refused["far"], Refusal::BehindGateway(ip("198.51.100.3")));
    let vxlan = planned(Mode::Vxlan, &peers);
    assert_eq!((vxlan.tables.routes.len(), vxlan.tables.fdb.len()), (2, 2));
    // Without a peer that needs it there is no tunnel, and no open port.
    assert_eq!(planned(Mode::Auto, &peers[..1]).tables.tunnel, None);
}

#[test]
fn each_family_takes_its_own_way() {
    let both = &["10.244.2.0/24", "fd00:0:0:2::/64"];
    let plan = planned(Mode::Auto, &[node("b", 1, both, &["192.0.2.2", "2001:db8::2"])]);
    let link = |gateway| Hop::Link { gateway: ip(gateway), interface: ETH0 };
    assert_eq!(plan.tables.routes[0].1, link("192.0.2.2"));
    assert_eq!(plan.tables.routes[1].1, link("2001:db8::2"));
    // Without an IPv6 address, IPv6 goes through the tunnel over IPv4.
    let plan = planned(Mode::Auto, &[node("b", 1, both, &["192.0.2.2"])]);
    assert_eq!(plan.tables.routes[0].1, link("192.0.2.2"));
    let source = Some(ip("fd00:0:0:1::1"));
    assert_eq!(plan.tables.routes[1].1, Hop::Tunnel { gateway: ip("fd00:0:0:2::1"), source });
    assert_eq!(plan.tables.fdb, [([2, 72, 10, 244, 2, 0], ip("192.0.2.2"))]);
    // And the other way round.
    let own = node("own", 100, &["10.244.1.0/24"], &["2001:db8::1"]);
    let config = PeerConfig { node_ips: vec![ip("2001:db8::1")], ..config(Mode::Auto) };
    let peers = [node("b", 1, &["10.244.2.0/24"], &["2001:db8:1::2"])];
    let plan = super::tests::plan(&config, &own, &peers, &underlay());
    assert_eq!(plan.tables.fdb, [([2, 72, 10, 244, 2, 0], ip("2001:db8:1::2"))]);
    assert_eq!(plan.tables.tunnel.unwrap().mtu, Some(1430));
}

#[test]
fn tunnel_is_of_one_family_whatever_the_order_of_the_nodes_addresses() {
    let own = node("own", 100, &["10.244.1.0/24"], &["2001:db8::1", "192.0.2.1"]);
    let config = PeerConfig { node_ips: vec![ip("2001:db8::1"), ip("192.0.2.1")], ..config(Mode::Vxlan) };
    for addresses in [&["2001:db8::2", "192.0.2.2"], &["192.0.2.2", "2001:db8::2"]] {
        let plan = plan(&config, &own, &[node("b", 1, &["10.244.2.0/24"], addresses)], &underlay());
        assert_eq!(plan.tables.fdb, [([2, 72, 10, 244, 2, 0], ip("192.0.2.2"))]);
        let tunnel = plan.tables.tunnel.unwrap();
        assert_eq!((tunnel.local, tunnel.outer_ipv4), (Some(ip("192.0.2.1")), true));
    }
}

#[test]
fn a_family_that_this_node_lacks_is_left_out() {
    let own = node("own", 100, &["10.244.1.0/24"], &["192.0.2.1"]);
    let peers = [node("b", 1, &["10.244.2.0/24", "fd00:0:0:2::/64"], &["192.0.2.2"])];
    let plan = super::tests::plan(&config(Mode::Auto), &own, &peers, &underlay());
    assert_eq!(plan.tables.routes.len(), 1);
    assert_eq!(plan.tables.tunnel, None);
}

#[test]
fn hostile_ranges_are_refused() {
    let claim = |range: &str| refusal(node("x", 200, &[range], &["192.0.2.66"]));
    assert!(claim("0.0.0.0/0").contains("not within --cluster-cidr"));
    assert!(claim("192.0.2.0/24").contains("not within --cluster-cidr"));
    assert!(claim("10.96.0.0/24").contains("not within --cluster-cidr"));
    assert!(claim("10.244.0.0/16").contains("larger than that of this node, a /24"));
    assert!(claim("10.244.200.128/25").contains("range of Services 10.244.200.0/24"));
    assert!(claim("10.244.1.0/24").contains("that of node own already"));
    assert!(claim("10.244.1.128/25").contains("that of node own already"));
    assert!(claim("fd00:0:0:1::/64").contains("that of node own already"));
    assert!(claim("::/0").contains("not within --cluster-cidr"));
}

#[test]
fn a_range_with_an_address_that_nodes_need_is_refused() {
    // The nodes' network lies within that of the pods.
    let mut underlay = Underlay::default();
    underlay
        .links
        .insert(ETH0, UnderlayLink { name: String::new(), mtu: 1500, addresses: vec![ip("10.244.50.9")] });
    let gateway = Some(ip("10.244.60.254"));
    underlay.add_route(net("0.0.0.0/0"), ForeignRoute { metric: 0, gateway, link: Some(ETH0) });
    let config = PeerConfig { node_ips: vec![ip("10.244.50.9")], ..config(Mode::Auto) };
    let claim = |range: &str, address: &str| {
        let peers = [node("x", 1, &[range], &[address])];
        plan(&config, &own(), &peers, &underlay).refused.get("x").map(ToString::to_string)
    };
    assert!(claim("10.244.50.0/24", "10.244.50.10").unwrap().contains("contains 10.244.50.9"));
    assert!(claim("10.244.60.0/24", "10.244.50.10").unwrap().contains("contains 10.244.60.254"));
    assert!(claim("10.244.70.0/24", "10.244.70.1").unwrap().contains("contains 10.244.70.1"));
    assert_eq!(claim("10.244.71.0/24", "10.244.50.10"), None);
}

#[test]
fn an_address_left_of_an_earlier_range_does_not_keep_its_next_owner_out() {
    let mut underlay = underlay();
    let heir = [node("heir", 1, &["10.244.9.0/24"], &["192.0.2.9"])];
    underlay.links.get_mut(&1).unwrap().addresses.push(ip("10.244.9.1"));
    underlay.given.insert(ip("10.244.9.1"));
    let accepted = plan(&config(Mode::Auto), &own(), &heir, &underlay);
    assert_eq!((accepted.tables.routes.len(), accepted.refused), (1, BTreeMap::new()));
    // Any other address may be how this machine is reached, and so may the same one on a link, or if it is not ours.
    for (link, address, given) in
        [(1, "10.244.9.2", true), (ETH0, "10.244.9.1", true), (1, "10.244.9.1", false)]
    {
        let mut underlay = underlay.clone();
        if !given {
            underlay.given.clear();
        }
        underlay.links.get_mut(&link).unwrap().addresses.push(ip(address));
        let refused = plan(&config(Mode::Auto), &own(), &heir, &underlay).refused;
        assert_eq!(refused["heir"], Refusal::Covers(net("10.244.9.0/24"), ip(address)));
    }
}

#[test]
fn hostile_addresses_are_refused() {
    let at = |address: &str| refusal(node("x", 1, &["10.244.9.0/24"], &[address]));
    assert!(at("192.0.2.1").contains("is one of this node"));
    assert!(at("10.244.1.5").contains("not an address of a node"));
    assert!(at("10.96.0.1").contains("not an address of a node"));
    for address in
        ["127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "169.254.169.254", "fe80::1", "::1"]
    {
        assert!(
            refusal(node("x", 1, &["10.244.9.0/24"], &[address])).contains("its InternalIP"),
            "{address}"
        );
    }
    // A usable address after an unusable one counts.
    let plan = planned(Mode::Auto, &[node("b", 1, &["10.244.2.0/24"], &["127.0.0.1", "192.0.2.2"])]);
    assert_eq!(plan.tables.routes.len(), 1);
    let plan = planned(Mode::Auto, &[node("b", 1, &["10.244.2.0/24"], &[])]);
    assert!(plan.refused["b"].is_early());
}

#[test]
fn the_older_of_two_nodes_keeps_a_range_whatever_their_order() {
    let old = node("z-old", 5, &["10.244.2.0/24"], &["192.0.2.2"]);
    let young = node("a-young", 6, &["10.244.2.0/25"], &["192.0.2.3"]);
    for peers in [[old.clone(), young.clone()], [young.clone(), old.clone()]] {
        let plan = planned(Mode::Auto, &peers);
        assert_eq!(plan.tables.routes.len(), 1);
        assert_eq!(plan.tables.routes[0].1, Hop::Link { gateway: ip("192.0.2.2"), interface: ETH0 });
        assert_eq!(plan.refused["a-young"], Refusal::Claimed(net("10.244.2.0/25"), "z-old".to_owned()));
    }
    // It keeps it while its address is not known yet.
    let early = node("z-old", 5, &["10.244.2.0/24"], &[]);
    let plan = planned(Mode::Auto, &[young, early]);
    assert_eq!(plan.tables.routes, []);
}

#[test]
fn the_own_node_gives_way_to_an_older_one_and_has_no_route_to_it() {
    let peer = |created| node("other", created, &["10.244.1.128/25"], &["192.0.2.2"]);
    let young = planned(Mode::Auto, &[peer(101)]);
    let claimed = |range: &str, by: &str| Refusal::Claimed(net(range), by.to_owned());
    assert_eq!(young.refused, BTreeMap::from([("other".to_owned(), claimed("10.244.1.128/25", "own"))]));
    let old = planned(Mode::Auto, &[peer(99)]);
    assert_eq!(old.refused, BTreeMap::from([("own".to_owned(), claimed("10.244.1.0/24", "other"))]));
    assert_eq!((young.tables.routes, old.tables.routes), (Vec::new(), Vec::new()));
}

#[test]
fn nobody_shares_a_hardware_address() {
    // Both prefixes end in the same 32 bits.
    let config =
        PeerConfig { cluster_cidrs: vec![net("fd00::/16")], mode: Mode::Vxlan, ..config(Mode::Vxlan) };
    let own = node("own", 1, &["fd00:0:0:9::/64"], &["192.0.2.1"]);
    let peers = [
        node("b", 2, &["fd00:0:1:2::/64"], &["192.0.2.2"]),
        node("c", 3, &["fd00:7:1:2::/64"], &["192.0.2.3"]),
    ];
    let plan = super::tests::plan(&config, &own, &peers, &underlay());
    assert_eq!(plan.tables.fdb.len(), 1);
    assert_eq!(plan.refused.keys().collect::<Vec<_>>(), ["c"]);
}

/// A small generator of numbers, so that a failure can be repeated from its seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn routes_stay_disjoint_and_within_the_cluster_for_any_claims() {
    for seed in 0..300 {
        let mut numbers = Numbers(seed);
        let mut peers: Vec<_> = (0..12)
            .map(|index| {
                let range =
                    format!("10.{}.{}.0/{}", 243 + numbers.below(3), numbers.below(6), 22 + numbers.below(5));
                let range = net(&range);
                let range = format!("{}/{}", range.network(), range.prefix());
                let address = format!("192.0.2.{}", numbers.below(4));
                let created = i64::try_from(numbers.below(4)).unwrap();
                node(&format!("n{index}"), created, &[&range], &[&address])
            })
            .collect();
        let plan = planned(Mode::Auto, &peers);
        for (index, (range, hop)) in plan.tables.routes.iter().enumerate() {
            assert!(net("10.244.0.0/16").contains(range.network()) && range.prefix() >= 24, "seed {seed}");
            for (other, _) in &plan.tables.routes[index + 1..] {
                assert!(!range.contains(other.network()) && !other.contains(range.network()), "seed {seed}");
            }
            assert!(!net("10.244.1.0/24").contains(range.network()), "seed {seed}");
            assert_ne!(*hop, Hop::Link { gateway: ip("192.0.2.1"), interface: ETH0 }, "seed {seed}");
        }
        // All nodes come to the same decision, in whatever order they hear of the others.
        peers.reverse();
        assert_eq!(planned(Mode::Auto, &peers), plan, "seed {seed}");
    }
}

#[test]
fn changes_one_by_one_lead_to_the_same_plan_as_all_at_once() {
    let mut alone = 0;
    for seed in 0..300 {
        let mut numbers = Numbers(seed);
        let mut random = |name: u64| {
            let range = format!("10.244.{}.0/{}", 1 + numbers.below(9), 24 + numbers.below(2));
            let address = ["192.0.2.2", "192.0.2.3", "198.51.100.2", "127.0.0.1"]
                [usize::try_from(numbers.below(4)).unwrap()];
            let peer =
                node(&format!("n{name}"), i64::try_from(numbers.below(3)).unwrap(), &[&range], &[address]);
            (peer, numbers.below(4) == 0)
        };
        let mut peers: BTreeMap<String, Arc<Peer>> = BTreeMap::new();
        let all = |peers: &BTreeMap<String, Arc<Peer>>| peers.values().cloned().collect::<Vec<_>>();
        let (config, underlay) = (config(Mode::Auto), underlay());
        let mut planned = Planned::new(&config, &own(), &[], &underlay, None);
        for step in 0..30 {
            let (peer, gone) = random(step % 5);
            let name = peer.name.clone();
            let new = (!gone).then_some(peer);
            match &new {
                Some(peer) => drop(peers.insert(name.clone(), peer.clone())),
                None => drop(peers.remove(&name)),
            }
            let before = planned.plan.tables.clone();
            let full = Planned::new(&config, &own(), &all(&peers), &underlay, None);
            match planned.update(&name, new.as_deref(), &underlay) {
                Some(touched) => {
                    alone += 1;
                    assert_eq!(planned.plan, full.plan, "seed {seed}, step {step}");
                    // All that differs is named.
                    let differs = |(to, _): &&(IpNetwork, Hop)| !touched.routes.contains(to);
                    let rest =
                        |tables: &Tables| tables.routes.iter().filter(differs).copied().collect::<Vec<_>>();
                    assert_eq!(rest(&before), rest(&planned.plan.tables), "seed {seed}, step {step}");
                }
                None => planned = full,
            }
        }
    }
    assert!(alone > 1_000, "{alone} changes were planned alone");
}

/// Tests of the plan with encryption.
mod encrypted;
