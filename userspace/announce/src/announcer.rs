//! The decisions of one node about all addresses, without IO.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnetwork::IpNetwork;
use tokio::time::Instant;

use crate::address::{Reaction, Role, Say, State};
use crate::choice::contenders;
use crate::peers::Peers;
use crate::wire::{Frame, Message, Ping, PingKind, solicited_node};
use crate::{Desired, Member, Note, limits};

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a frame, on one link or on all.
    Send(Option<u32>, Message),
    /// Send a datagram to a node.
    Ping(IpAddr, Ping),
    Tell(Note),
}

/// The state of this node.
#[derive(Debug)]
pub struct Announcer {
    own: Arc<str>,
    desired: Arc<Desired>,
    /// The addresses of all nodes: others get no answer.
    known: BTreeSet<IpAddr>,
    peers: Peers,
    /// The state of each address, with the nodes that may announce it in the order of preference.
    addresses: BTreeMap<IpAddr, (State, Vec<Arc<str>>)>,
    /// The last call of [`Announcer::tick`].
    ticked: Option<Instant>,
    leaving: bool,
}

impl Announcer {
    pub fn new(own: &str) -> Self {
        Self {
            own: Arc::from(own),
            desired: Arc::default(),
            known: BTreeSet::new(),
            peers: Peers::default(),
            addresses: BTreeMap::new(),
            ticked: None,
            leaving: false,
        }
    }

    /// Takes over what is to be announced. Addresses above the limit are left out, the highest first.
    pub fn set(&mut self, desired: Arc<Desired>, now: Instant, out: &mut Vec<Action>) {
        let mut addresses = BTreeMap::new();
        let mut wanted = BTreeMap::new();
        let own = desired.nodes.get(&self.own);
        for address in desired.addresses.keys().take(limits::ADDRESSES) {
            let contenders = contenders(&desired, *address);
            let state = self.addresses.remove(address).map(|(state, _)| state).unwrap_or_default();
            if contenders.contains(&self.own) {
                let others = contenders.iter().filter(|name| **name != self.own);
                wanted.extend(others.filter_map(|name| {
                    Some((Arc::clone(name), address_from(own, desired.nodes.get(name)?)?))
                }));
            }
            addresses.insert(*address, (state, contenders));
        }
        let gone = std::mem::replace(&mut self.addresses, addresses);
        let gone = gone.iter().filter(|(_, (state, _))| state.announces());
        out.extend(gone.map(|(address, _)| Action::Tell(Note::Withdrawn(*address))));
        self.peers.set(&wanted, now);
        self.known = desired.nodes.values().flat_map(|node| node.addresses.iter().copied()).collect();
        self.desired = desired;
    }

    /// Begins to leave: other nodes take all addresses.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Returns `true` if this node still answers for an address.
    pub fn is_busy(&self) -> bool {
        self.addresses.values().any(|(state, _)| state.announces())
    }

    /// Takes all steps that are due.
    pub fn tick(&mut self, now: Instant, nonce: impl FnMut() -> u64, out: &mut Vec<Action>) {
        // Nobody could be heard while this process did not run.
        if self.ticked.is_some_and(|last| now.saturating_duration_since(last) > limits::SILENCE) {
            self.peers.slept(now);
        }
        self.ticked = Some(now);
        for (address, nonce) in self.peers.ping(now, nonce) {
            out.push(Action::Ping(address, Ping { nonce, kind: PingKind::Ping }));
        }
        let alive = self.peers.alive(now);
        let mut addresses = std::mem::take(&mut self.addresses);
        for (address, (state, contenders)) in &mut addresses {
            let before = *state;
            let say = state.step(self.role(*address, contenders, &alive), now);
            match say {
                Say::Nothing => {}
                Say::Probe => out.push(Action::Send(None, Message::Probe(*address))),
                Say::Announce => out.push(Action::Send(None, Message::Announce(*address))),
            }
            match (before.announces(), state.announces()) {
                (false, true) => out.push(Action::Tell(Note::Announced(*address))),
                (true, false) => out.push(Action::Tell(Note::Withdrawn(*address))),
                _ => {}
            }
        }
        self.addresses = addresses;
    }

    fn role(&self, address: IpAddr, contenders: &[Arc<str>], alive: &BTreeSet<Arc<str>>) -> Role {
        let willing = |name: &Arc<str>| {
            if *name == self.own { self.is_willing() } else { alive.contains(name) }
        };
        let off_link = |name: &Arc<str>| {
            if *name == self.own {
                !self.networks().any(|network| network.contains(address))
            } else {
                !self.peers.is_on_link(name, address)
            }
        };
        // Nodes whose links have the address come first; `min_by_key` keeps the order among equals.
        match contenders.iter().filter(|name| willing(name)).min_by_key(|name| off_link(name)) {
            Some(name) if *name == self.own => Role::Lead,
            Some(_) => Role::Follow,
            None => Role::None,
        }
    }

    fn is_willing(&self) -> bool {
        self.desired.willing && !self.leaving && !self.desired.links.is_empty()
    }

    fn networks(&self) -> impl Iterator<Item = &IpNetwork> {
        self.desired.links.iter().flat_map(|link| &link.networks)
    }

    /// Takes a frame that arrived on a link.
    pub fn hear(&mut self, frame: &Frame, link: u32, now: Instant, out: &mut Vec<Action>) {
        let Some((state, _)) = self.addresses.get_mut(&frame.address) else { return };
        let before = *state;
        match state.hear(frame.heard, now) {
            Reaction::Nothing => {}
            Reaction::Answer => {
                out.push(Action::Send(Some(link), Message::Answer(frame.address, frame.sender)));
            }
            Reaction::Announce => out.push(Action::Send(Some(link), Message::Announce(frame.address))),
            Reaction::Report(mac) => out.push(Action::Tell(Note::Contested(frame.address, mac))),
        }
        if before.announces() && !state.announces() {
            out.push(Action::Tell(Note::Withdrawn(frame.address)));
        }
    }

    /// Returns `true` if a host that asks gets an answer.
    #[cfg(test)]
    pub fn would_answer(&self, question: &Frame) -> bool {
        self.addresses.get(&question.address).is_some_and(|(state, _)| state.announces())
    }

    /// Takes a datagram, and returns the answer if it needs one. Only nodes are answered.
    pub fn datagram(&mut self, ping: Ping, from: IpAddr, now: Instant) -> Option<Ping> {
        match ping.kind {
            PingKind::Pong { willing, networks } => {
                self.peers.pong(ping.nonce, willing, networks, now);
                None
            }
            PingKind::Ping => {
                let networks = self.networks().copied().take(limits::NETWORKS).collect();
                let kind = PingKind::Pong { willing: self.is_willing(), networks };
                self.known.contains(&from).then_some(Ping { nonce: ping.nonce, kind })
            }
        }
    }

    /// Returns the time of the next step; `None` if only an event leads on.
    pub fn due(&self) -> Option<Instant> {
        let states = self.addresses.values().filter_map(|(state, _)| state.due());
        states.chain(self.peers.due(self.ticked)).min()
    }

    /// Returns the multicast groups in which questions about the addresses of this node are asked.
    pub fn groups(&self) -> BTreeSet<Ipv6Addr> {
        let announced = self.addresses.iter().filter(|(_, (state, _))| *state != State::Idle);
        announced
            .filter_map(|(address, _)| match address {
                IpAddr::V6(address) => Some(solicited_node(*address)),
                IpAddr::V4(_) => None,
            })
            .collect()
    }
}

/// Returns the address at which this node asks another one: the first of a family that both have.
fn address_from(own: Option<&Member>, other: &Member) -> Option<IpAddr> {
    let own = own.map(|own| own.addresses.as_slice()).unwrap_or_default();
    let shared = |ip: &&IpAddr| own.iter().any(|one| one.is_ipv4() == ip.is_ipv4());
    other.addresses.iter().find(shared).or(other.addresses.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_asked_at_an_address_of_a_family_that_both_have() {
        let member = |addresses: &[&str]| Member {
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ready: true,
        };
        let other = member(&["2001:db8::2", "192.0.2.2"]);
        for (own, expected) in [
            (Some(member(&["192.0.2.1"])), "192.0.2.2"),
            (Some(member(&["2001:db8::1"])), "2001:db8::2"),
            (Some(member(&["192.0.2.1", "2001:db8::1"])), "2001:db8::2"),
            (Some(member(&[])), "2001:db8::2"),
            (None, "2001:db8::2"),
        ] {
            assert_eq!(address_from(own.as_ref(), &other), expected.parse().ok(), "{own:?}");
        }
        let apart = member(&["192.0.2.2"]);
        let own = member(&["2001:db8::1"]);
        assert_eq!(address_from(Some(&own), &apart), "192.0.2.2".parse().ok());
        assert_eq!(address_from(Some(&own), &member(&[])), None);
    }
}
