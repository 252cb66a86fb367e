//! The other nodes, as far as they answer pings.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;
use tokio::time::Instant;

use crate::limits;

/// The state of other nodes.
#[derive(Debug, Default)]
pub struct Peers {
    peers: BTreeMap<Arc<str>, Peer>,
    next: Option<Instant>,
}

#[derive(Debug)]
struct Peer {
    address: IpAddr,
    /// The last answer, or the time since which the node is known: it counts as alive until it had time to answer.
    heard: Instant,
    /// Nonces of the last pings, the newest first.
    nonces: [Option<u64>; limits::NONCES],
    willing: bool,
    /// The networks on its links; `None` until it has answered.
    networks: Option<Vec<IpNetwork>>,
}

impl Peers {
    /// Replaces the nodes that are pinged.
    pub fn set(&mut self, wanted: &BTreeMap<Arc<str>, IpAddr>, now: Instant) {
        self.peers.retain(|name, peer| wanted.get(name) == Some(&peer.address));
        for (name, address) in wanted {
            self.peers.entry(Arc::clone(name)).or_insert_with(|| Peer {
                address: *address,
                heard: now,
                nonces: [None; limits::NONCES],
                willing: true,
                networks: None,
            });
        }
        self.next = (!self.peers.is_empty()).then_some(self.next.unwrap_or(now));
    }

    /// Returns the time of the next pings, or of the next death after `last`, whichever comes first.
    pub fn due(&self, last: Option<Instant>) -> Option<Instant> {
        let deaths = self.peers.values().filter(|peer| peer.willing).map(|peer| peer.heard + limits::SILENCE);
        deaths.filter(|death| last.is_none_or(|last| *death > last)).chain(self.next).min()
    }

    /// Returns the pings that are due.
    pub fn ping(&mut self, now: Instant, mut nonce: impl FnMut() -> u64) -> Vec<(IpAddr, u64)> {
        if self.next.is_none_or(|next| now < next) {
            return Vec::new();
        }
        self.next = Some(now + limits::PING);
        let peers = self.peers.values_mut();
        peers
            .map(|peer| {
                let nonce = nonce();
                peer.nonces.rotate_right(1);
                peer.nonces[0] = Some(nonce);
                (peer.address, nonce)
            })
            .collect()
    }

    /// Records an answer. One that repeats no recent nonce is forged or too late.
    pub fn pong(&mut self, nonce: u64, willing: bool, networks: Vec<IpNetwork>, now: Instant) {
        if let Some(peer) = self.peers.values_mut().find(|peer| peer.nonces.contains(&Some(nonce))) {
            (peer.heard, peer.willing, peer.networks) = (now, willing, Some(networks));
        }
    }

    /// Takes back the silence of a time in which this process did not run.
    pub fn slept(&mut self, now: Instant) {
        for peer in self.peers.values_mut() {
            peer.heard = now;
        }
    }

    /// Returns `true` if the node is alive and announces.
    pub fn is_alive(&self, name: &str, now: Instant) -> bool {
        let alive = |peer: &Peer| peer.willing && now.saturating_duration_since(peer.heard) < limits::SILENCE;
        self.peers.get(name).is_some_and(alive)
    }

    /// Returns `true` if the address is on a link of the node. One that has not answered yet is believed to be.
    pub fn is_on_link(&self, name: &str, address: IpAddr) -> bool {
        let networks = self.peers.get(name).and_then(|peer| peer.networks.as_ref());
        networks.is_none_or(|networks| networks.iter().any(|network| network.contains(address)))
    }

    /// Returns the nodes that are alive and announce.
    pub fn alive(&self, now: Instant) -> BTreeSet<Arc<str>> {
        self.peers.keys().filter(|name| self.is_alive(name, now)).cloned().collect()
    }
}
