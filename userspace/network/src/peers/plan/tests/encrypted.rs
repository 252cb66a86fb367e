use std::collections::BTreeSet;

use super::*;

const WG: u32 = 7;

/// Returns a key that depends on a number.
fn published(number: u8, port: u16) -> Published {
    use base64::Engine;
    let key = base64::prelude::BASE64_STANDARD.encode([number; 32]);
    Published::parse(&format!(r#"{{"publicKey":"{key}","port":{port}}}"#)).unwrap()
}

fn with_key(peer: Arc<Peer>, published: Published) -> Arc<Peer> {
    Arc::new(Peer { wireguard: Some(Ok(published)), ..Arc::unwrap_or_clone(peer) })
}

fn planned(mode: Mode, own: &Peer, peers: &[Arc<Peer>]) -> Planned {
    let identity = Identity { published: published(1, 14_790), interface: WG, mtu: 1440 };
    let config = PeerConfig { node_ips: own.addresses.clone(), ..config(mode) };
    Planned::new(&config, own, peers, &underlay(), Some(identity))
}

fn without_guards(tables: Tables) -> Tables {
    assert_eq!(tables.guards.len(), 2, "one for each family");
    Tables { guards: BTreeSet::new(), ..tables }
}

#[test]
fn peer_on_the_link_is_reached_through_the_tunnel_alone_by_its_key() {
    let (near, far) = (published(2, 14_790), published(3, 51_820));
    let peers = [
        with_key(node("near", 1, &["10.244.2.0/24", "fd00:0:0:2::/64"], &["192.0.2.2"]), near),
        with_key(node("far", 2, &["10.244.3.0/24"], &["198.51.100.3"]), far),
    ];
    let plan = planned(Mode::Auto, &own(), &peers).plan;
    assert_eq!((plan.tables.routes.len(), plan.refused), (3, BTreeMap::new()));
    for (_, hop) in &plan.tables.routes {
        assert!(matches!(hop, Hop::Tunnel { .. }), "{hop:?}");
    }
    let at = |mac, key: Published| ([0x02, 0x48, 10, 244, mac, 0], IpAddr::V6(key.key.address()));
    assert_eq!(plan.tables.fdb, [at(2, near), at(3, far)]);
    let ends: Vec<_> = plan.tables.keys.iter().map(|(key, end)| (*key, end.unwrap().to_string())).collect();
    let expected = [(near.key, "192.0.2.2:14790"), (far.key, "198.51.100.3:51820")];
    assert_eq!(ends, expected.map(|(key, end)| (key, end.to_owned())));
    let tunnel = plan.tables.tunnel.unwrap();
    let own_address = IpAddr::V6(published(1, 1).key.address());
    assert_eq!((tunnel.local, tunnel.outer_ipv4), (Some(own_address), false));
    assert_eq!((tunnel.link, tunnel.mtu), (Some(WG), Some(1370)));
}

#[test]
fn endpoint_is_of_the_family_of_the_own_address() {
    let own = node("own", 100, &["10.244.1.0/24"], &["2001:db8::1"]);
    let peer = |addresses: &[&str]| with_key(node("b", 1, &["10.244.2.0/24"], addresses), published(2, 5));
    let plan = planned(Mode::Auto, &own, &[peer(&["192.0.2.2", "2001:db8::2"])]).plan;
    assert_eq!(plan.tables.keys[0].1, Some("[2001:db8::2]:5".parse().unwrap()));
    let plan = planned(Mode::Auto, &own, &[peer(&["192.0.2.2"])]).plan;
    assert_eq!(
        (without_guards(plan.tables), &plan.refused["b"]),
        (Tables::default(), &Refusal::NoAddress("IPv6"))
    );
}

#[test]
fn peer_without_a_usable_key_is_left_out_and_nothing_else_leads_to_it() {
    let keyless = node("keyless", 1, &["10.244.2.0/24"], &["192.0.2.2"]);
    let mut wrong = Arc::unwrap_or_clone(node("wrong", 2, &["10.244.3.0/24"], &["198.51.100.3"]));
    wrong.wireguard = Some(Published::parse("{}"));
    for mode in [Mode::Auto, Mode::Vxlan] {
        let plan = planned(mode, &own(), &[keyless.clone(), Arc::new(wrong.clone())]).plan;
        assert_eq!(without_guards(plan.tables), Tables::default());
        assert_eq!(plan.refused["keyless"], Refusal::NoKey);
        assert!(plan.refused["keyless"].is_passing() && !plan.refused["wrong"].is_passing());
        let reason = plan.refused["wrong"].to_string();
        assert!(reason.contains("hawser.dev/wireguard cannot be used: missing field"), "{reason}");
    }
}

#[test]
fn key_of_another_node_is_refused_for_the_younger_one_and_for_all_if_it_is_the_own() {
    let peer = |name: &str, created, last: u8, key| {
        let (range, address) = (format!("10.244.{last}.0/24"), format!("192.0.2.{last}"));
        with_key(node(name, created, &[&range], &[&address]), published(key, 1))
    };
    let victim = peer("victim", 5, 2, 2);
    // The second one is as old, and its UID comes first.
    for (thief, wins) in [(peer("thief", 6, 3, 2), false), (peer("a-thief", 5, 3, 2), true)] {
        for peers in [[victim.clone(), thief.clone()], [thief.clone(), victim.clone()]] {
            let plan = planned(Mode::Auto, &own(), &peers).plan;
            assert_eq!((plan.tables.keys.len(), plan.tables.routes.len()), (1, 1));
            let (holder, loser) = if wins { (&thief, &victim) } else { (&victim, &thief) };
            let end = SocketAddr::new(holder.addresses[0], 1);
            assert_eq!(plan.tables.keys[0].1, Some(end));
            let reason = plan.refused[&loser.name].to_string();
            assert!(reason.contains(&format!("that of node {} already", holder.name)), "{reason}");
        }
    }
    // Even an older Node does not get the key that is this machine's.
    let refused = planned(Mode::Auto, &own(), &[peer("thief", 0, 3, 1)]).plan.refused;
    assert!(refused["thief"].to_string().contains("that of node own already"), "{}", refused["thief"]);
}

#[test]
fn node_that_may_claim_nothing_does_not_hold_a_key() {
    let thief = with_key(node("thief", 1, &["192.0.2.0/24"], &["192.0.2.66"]), published(2, 1));
    let victim = with_key(node("victim", 2, &["10.244.2.0/24"], &["192.0.2.2"]), published(2, 1));
    let plan = planned(Mode::Auto, &own(), &[thief, victim]).plan;
    assert_eq!(plan.tables.keys.len(), 1);
    assert_eq!(plan.refused.keys().collect::<Vec<_>>(), ["thief"]);
}

#[test]
fn changed_key_touches_the_old_and_the_new_one() {
    let with = |key| with_key(node("b", 1, &["10.244.2.0/24"], &["192.0.2.2"]), published(key, 1));
    let mut planned = planned(Mode::Auto, &own(), &[with(2)]);
    let touched = planned.update("b", Some(&with(3)), &underlay()).unwrap();
    assert_eq!(touched.keys, [published(2, 1).key, published(3, 1).key]);
    assert_eq!(planned.plan.tables.keys.len(), 1);
    assert_eq!(planned.plan.tables.fdb[0].1, IpAddr::V6(published(3, 1).key.address()));
    assert!(planned.update("b", None, &underlay()).is_none(), "the tunnel goes with the last node");
    assert_eq!(planned.plan.tables.keys, []);
}

#[test]
fn changes_one_by_one_lead_to_the_same_keys_as_all_at_once() {
    let mut alone = 0;
    for seed in 0..100 {
        let mut numbers = Numbers(seed);
        let mut known = planned(Mode::Auto, &own(), &[]);
        let mut peers: BTreeMap<String, Arc<Peer>> = BTreeMap::new();
        for step in 0..30 {
            let (name, range) = (format!("n{}", step % 5), format!("10.244.{}.0/24", 2 + numbers.below(40)));
            let peer = node(&name, 1, &[&range], &[&format!("192.0.2.{}", 2 + numbers.below(9))]);
            let key = u8::try_from(1 + numbers.below(30)).unwrap();
            let new = (numbers.below(4) > 0).then(|| with_key(peer, published(key, 1)));
            match &new {
                Some(peer) => drop(peers.insert(name.clone(), peer.clone())),
                None => drop(peers.remove(&name)),
            }
            let all: Vec<_> = peers.values().cloned().collect();
            let full = planned(Mode::Auto, &own(), &all);
            let addresses: BTreeSet<_> = full.plan.tables.keys.iter().map(|(key, _)| key.address()).collect();
            assert_eq!(addresses.len(), full.plan.tables.fdb.len(), "seed {seed}, step {step}");
            match known.update(&name, new.as_deref(), &underlay()) {
                Some(_) => {
                    alone += 1;
                    assert_eq!(known.plan, full.plan, "seed {seed}, step {step}");
                }
                None => known = full,
            }
        }
    }
    assert!(alone > 300, "{alone} changes were planned alone");
}
