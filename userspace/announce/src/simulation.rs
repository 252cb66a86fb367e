//! Several announcers on one link, on times that the test sets: deaths, returns, partitions and strangers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::announcer::{Action, Announcer};
use crate::wire::{Frame, Heard, Mac, Message, Ping, Sender};
use crate::{Desired, Link, Member, Note, seeded};

const STEP: Duration = Duration::from_millis(25);

struct Machine {
    announcer: Announcer,
    alive: bool,
    /// Machines with the same number hear each other's frames, and each other's pings.
    segment: u8,
    island: u8,
    willing: bool,
}

/// A link with machines, and what travels on it.
struct Lan {
    now: Instant,
    machines: BTreeMap<u8, Machine>,
    addresses: BTreeMap<IpAddr, Option<BTreeSet<Arc<str>>>>,
    random: u64,
    frames: Vec<(u8, Frame)>,
    datagrams: Vec<(u8, u8, Ping)>,
    notes: Vec<(u8, Note)>,
    /// A machine of somebody else that has an address.
    stranger: Option<IpAddr>,
}

fn name(number: u8) -> Arc<str> {
    Arc::from(format!("node-{number}"))
}

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

fn host(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

fn balancer(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, 200 + number])
}

impl Lan {
    fn new(nodes: u8, addresses: u8) -> Self {
        let mut lan = Self {
            now: Instant::now(),
            machines: BTreeMap::new(),
            addresses: (0..addresses).map(|number| (balancer(number), None)).collect(),
            random: 1,
            frames: Vec::new(),
            datagrams: Vec::new(),
            notes: Vec::new(),
            stranger: None,
        };
        (1..=nodes).for_each(|number| lan.start(number));
        lan.publish();
        lan
    }

    /// Starts the process of a node anew.
    fn start(&mut self, number: u8) {
        let (segment, island) = self.machines.get(&number).map_or((0, 0), |old| (old.segment, old.island));
        let announcer = Announcer::new(&name(number));
        self.machines.insert(number, Machine { announcer, alive: true, segment, island, willing: true });
    }

    fn kill(&mut self, number: u8) {
        self.machines.get_mut(&number).unwrap().alive = false;
    }

    fn desired(&self, willing: bool) -> Arc<Desired> {
        let member = |number: &u8| (name(*number), Member { addresses: vec![host(*number)], ready: true });
        Arc::new(Desired {
            nodes: self.machines.keys().map(member).collect(),
            addresses: self.addresses.clone(),
            links: vec![Link { index: 7, networks: vec!["192.0.2.0/24".parse().unwrap()] }],
            willing,
        })
    }

    fn publish(&mut self) {
        for number in self.numbers() {
            let desired = self.desired(self.machines[&number].willing);
            let mut out = Vec::new();
            let machine = self.machines.get_mut(&number).unwrap();
            machine.announcer.set(desired, self.now, &mut out);
            self.act(number, out);
        }
    }

    fn numbers(&self) -> Vec<u8> {
        self.machines.iter().filter(|(_, machine)| machine.alive).map(|(number, _)| *number).collect()
    }

    fn act(&mut self, from: u8, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Tell(note) => self.notes.push((from, note)),
                Action::Ping(to, ping) => {
                    let IpAddr::V4(to) = to else { panic!("all are of IPv4") };
                    self.datagrams.push((from, to.octets()[3], ping));
                }
                Action::Send(_, message) => {
                    let (address, heard, asker) = match message {
                        Message::Probe(address) => (address, Heard::Probe, IpAddr::from([0, 0, 0, 0])),
                        Message::Announce(address) => (address, Heard::Claim(mac(from)), address),
                        // The answer goes to one machine; that others do not hear it makes no difference here.
                        Message::Answer(address, _) => (address, Heard::Claim(mac(from)), address),
                    };
                    self.frames.push((
                        from,
                        Frame { address, heard, sender: Sender { mac: mac(from), address: asker } },
                    ));
                }
            }
        }
    }

    /// Lets time pass, and returns the longest time for which each address had no announcer, and several that
    /// reach each other.
    fn pass(&mut self, time: Duration) -> (Duration, Duration) {
        let (mut unserved, mut contested) = (Duration::ZERO, Duration::ZERO);
        let mut since: BTreeMap<IpAddr, (Instant, Instant)> = BTreeMap::new();
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            self.step();
            for address in self.addresses.keys() {
                let (served, single) = since.entry(*address).or_insert((self.now, self.now));
                match self.announcers(*address).len() {
                    0 => unserved = unserved.max(self.now - *served),
                    1 => (*served, *single) = (self.now, self.now),
                    _ => {
                        *served = self.now;
                        contested = contested.max(self.now - *single);
                    }
                }
            }
        }
        (unserved, contested)
    }

    fn step(&mut self) {
        for number in self.numbers() {
            let (now, mut out) = (self.now, Vec::new());
            let random = &mut self.random;
            let nonce = || {
                *random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *random
            };
            self.machines.get_mut(&number).unwrap().announcer.tick(now, nonce, &mut out);
            self.act(number, out);
        }
        for (from, to, ping) in std::mem::take(&mut self.datagrams) {
            let reach = self.machines[&from].island == self.machines[&to].island && self.machines[&to].alive;
            if !reach {
                continue;
            }
            let (now, machine) = (self.now, self.machines.get_mut(&to).unwrap());
            if let Some(answer) = machine.announcer.datagram(ping, host(from), now) {
                self.datagrams.push((to, from, answer));
            }
        }
        // Answers of this step arrive in the next one.
        for (from, frame) in std::mem::take(&mut self.frames) {
            if self.stranger == Some(frame.address) && frame.heard == Heard::Probe {
                let claim = Frame { heard: Heard::Claim(mac(99)), ..frame };
                self.frames.push((99, claim));
            }
            for to in self.numbers().into_iter().filter(|to| *to != from) {
                let near =
                    self.machines.get(&from).is_none_or(|from| from.segment == self.machines[&to].segment);
                if near {
                    let mut out = Vec::new();
                    self.machines.get_mut(&to).unwrap().announcer.hear(&frame, 7, self.now, &mut out);
                    self.act(to, out);
                }
            }
        }
    }

    /// Returns the nodes that answer a host that asks for an address: on each segment, if there are several.
    fn announcers(&self, address: IpAddr) -> Vec<u8> {
        let asker = Sender { mac: mac(98), address: host(98) };
        let frame = Frame { address, heard: Heard::Question, sender: asker };
        let answers = |machine: &Machine| machine.announcer.would_answer(&frame);
        self.numbers().into_iter().filter(|number| answers(&self.machines[number])).collect()
    }

    fn owner(&self, address: IpAddr) -> u8 {
        let [owner] = self.announcers(address)[..] else {
            panic!("{address}: {:?}", self.announcers(address))
        };
        owner
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// The promise: an address is taken over within two seconds.
const TAKEOVER: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn each_address_has_one_announcer_and_a_dead_one_is_replaced_in_time() {
    let mut lan = Lan::new(3, 20);
    lan.pass(3 * SECOND);
    let before: BTreeMap<_, _> =
        lan.addresses.keys().map(|address| (*address, lan.owner(*address))).collect();
    assert!((1..=3).all(|number| before.values().any(|owner| *owner == number)), "{before:?}");
    lan.kill(2);
    let (unserved, contested) = lan.pass(5 * SECOND);
    assert!(unserved < TAKEOVER && contested == Duration::ZERO, "{unserved:?} {contested:?}");
    for (address, owner) in &before {
        let now = lan.owner(*address);
        assert!(if *owner == 2 { now != 2 } else { now == *owner }, "{address} moved from {owner} to {now}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_returns_gets_its_addresses_back_without_a_gap() {
    let mut lan = Lan::new(2, 20);
    lan.pass(3 * SECOND);
    let before: Vec<u8> = lan.addresses.keys().map(|address| lan.owner(*address)).collect();
    lan.kill(1);
    lan.pass(5 * SECOND);
    lan.start(1);
    lan.publish();
    let (unserved, _) = lan.pass(10 * SECOND);
    assert!(unserved < 4 * STEP, "{unserved:?}");
    let after: Vec<u8> = lan.addresses.keys().map(|address| lan.owner(*address)).collect();
    assert_eq!(before, after);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_leaves_hands_its_addresses_over_first() {
    let mut lan = Lan::new(2, 20);
    lan.pass(3 * SECOND);
    lan.machines.get_mut(&1).unwrap().announcer.leave();
    let (unserved, _) = lan.pass(crate::limits::FAREWELL);
    assert!(unserved < 4 * STEP, "{unserved:?}");
    assert!(!lan.machines[&1].announcer.is_busy());
    assert!(lan.addresses.keys().all(|address| lan.owner(*address) == 2));
}

#[tokio::test(start_paused = true)]
async fn nodes_that_cannot_ping_each_other_do_not_both_announce() {
    let mut lan = Lan::new(2, 10);
    lan.pass(3 * SECOND);
    // A firewall between the nodes; the link works.
    lan.machines.get_mut(&2).unwrap().island = 1;
    let (unserved, contested) = lan.pass(60 * SECOND);
    assert_eq!((unserved, contested), (Duration::ZERO, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn both_sides_of_a_parted_link_are_served_and_one_yields_when_it_heals() {
    let mut lan = Lan::new(2, 10);
    lan.pass(3 * SECOND);
    let before: Vec<u8> = lan.addresses.keys().map(|address| lan.owner(*address)).collect();
    let cut = |lan: &mut Lan, number| {
        let machine = lan.machines.get_mut(&2).unwrap();
        (machine.segment, machine.island) = (number, number);
    };
    cut(&mut lan, 1);
    lan.pass(5 * SECOND);
    assert!(lan.addresses.keys().all(|address| lan.announcers(*address) == [1, 2]));
    cut(&mut lan, 0);
    let (_, contested) = lan.pass(10 * SECOND);
    assert!(contested < 4 * SECOND, "{contested:?}");
    let after: Vec<u8> = lan.addresses.keys().map(|address| lan.owner(*address)).collect();
    assert_eq!(before, after);
}

#[tokio::test(start_paused = true)]
async fn the_announcer_moves_with_the_endpoints() {
    let mut lan = Lan::new(3, 1);
    let address = balancer(0);
    for wanted in [1, 3, 2, 1] {
        lan.addresses.insert(address, Some([name(wanted)].into()));
        lan.publish();
        lan.pass(3 * SECOND);
        assert_eq!(lan.owner(address), wanted);
    }
    lan.addresses.insert(address, Some(BTreeSet::new()));
    lan.publish();
    lan.pass(3 * SECOND);
    assert!(lan.announcers(address).is_empty(), "no node has endpoints");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_forward_announces_nothing() {
    let mut lan = Lan::new(2, 10);
    lan.machines.get_mut(&1).unwrap().willing = false;
    lan.publish();
    lan.pass(3 * SECOND);
    assert!(lan.addresses.keys().all(|address| lan.owner(*address) == 2));
}

#[tokio::test(start_paused = true)]
async fn an_address_of_a_stranger_is_left_alone_until_the_stranger_goes() {
    let mut lan = Lan::new(2, 2);
    lan.stranger = Some(balancer(1));
    lan.pass(20 * SECOND);
    assert!(lan.announcers(balancer(1)).is_empty());
    let contested = lan.notes.iter().filter(|(_, note)| *note == Note::Contested(balancer(1), mac(99)));
    assert_eq!(contested.count(), 1, "told once");
    lan.stranger = None;
    lan.pass(3 * SECOND);
    lan.owner(balancer(1));
    lan.owner(balancer(0));
}

#[tokio::test(start_paused = true)]
async fn a_forged_pong_does_not_keep_a_dead_node_alive() {
    let mut lan = Lan::new(2, 1);
    lan.pass(3 * SECOND);
    let owner = lan.owner(balancer(0));
    let other = 3 - owner;
    lan.kill(owner);
    for nonce in 0..200 {
        let kind = crate::wire::PingKind::Pong { willing: true, networks: Vec::new() };
        let now = lan.now;
        let machine = lan.machines.get_mut(&other).unwrap();
        machine.announcer.datagram(Ping { nonce, kind }, host(owner), now);
        lan.pass(STEP);
    }
    assert_eq!(lan.owner(balancer(0)), other);
}

#[tokio::test(start_paused = true)]
async fn after_any_history_each_address_has_one_announcer() {
    for seed in seeded::seeds(30) {
        let mut lan = Lan::new(4, 6);
        let mut random = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        for _ in 0..20 {
            let number = below(4) as u8 + 1;
            match below(5) {
                0 => lan.kill(number),
                1 => lan.start(number),
                2 => lan.machines.get_mut(&number).unwrap().segment = below(2) as u8,
                3 => lan.machines.get_mut(&number).unwrap().island = below(2) as u8,
                _ => lan.machines.get_mut(&number).unwrap().willing = below(3) > 0,
            }
            lan.publish();
            lan.pass(Duration::from_millis(below(3_000)));
        }
        for number in 1..=4 {
            let machine = lan.machines.get_mut(&number).unwrap();
            (machine.segment, machine.island, machine.willing) = (0, 0, true);
            if !machine.alive {
                lan.start(number);
            }
        }
        lan.publish();
        lan.pass(8 * SECOND);
        for address in lan.addresses.keys() {
            assert_eq!(
                lan.announcers(*address).len(),
                1,
                "LIFE_SEED={seed}: {address} {:?}",
                lan.announcers(*address)
            );
        }
    }
}
