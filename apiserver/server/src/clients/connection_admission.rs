//! Admission of connections, and the choice of those that are closed to make room: decisions on plain data.
//!
//! The table is divided, so that nobody can keep out those who have more right to be in it:
//!
//! ```text
//! not authenticated │ from loopback │ tenants │ the control plane, nodes, administrators
//! ```
//!
//! A connection begins in one of the first two parts and leaves it with its first authenticated request
//! or with a valid client certificate. These parts are never closed to newcomers: the connection that has
//! been idle for longest gives way.

use std::net::IpAddr;
use std::time::Duration;

use super::accounts::Class;
use crate::limits;

/// Connections that a node may have however small the table is.
const NODE_LEAST: usize = 8;

/// The unit that counts as one client address: an IPv4 address, or an IPv6 network of 64 bits, the least that
/// one host or one site has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl Network {
    /// Returns the network of an address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let mut network = [0; 8];
                network.copy_from_slice(&address.octets()[..8]);
                Self::V6(network)
            }
        }
    }
}

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its TLS handshake is not complete.
    Handshake,
    /// No client has been authenticated on it.
    Unknown,
    /// A client of a class has been authenticated on it.
    Known(Class),
}

/// A connection as the decisions see it. Times are milliseconds of one clock.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub id: u64,
    pub network: Network,
    pub loopback: bool,
    pub stage: Stage,
    pub opened: u64,
    /// The time since which no request has been in flight; `None` while one is.
    pub idle_since: Option<u64>,
}

impl Seen {
    fn is_known(&self) -> bool {
        matches!(self.stage, Stage::Known(_))
    }

    /// Returns the order in which connections give way: idle ones before handshakes before active ones, and
    /// the oldest of each first.
    fn rank(&self) -> (u8, u64) {
        match (self.stage, self.idle_since) {
            (Stage::Handshake, _) => (1, self.opened),
            (_, Some(since)) => (0, since),
            (_, None) => (2, self.opened),
        }
    }
}

/// The limits on connections of each sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Unauthenticated ones, from other hosts.
    pub unknown: usize,
    /// Unauthenticated ones from other hosts with one address.
    pub network: usize,
    /// Unauthenticated ones, from this host.
    pub loopback: usize,
    /// Unauthenticated ones with an unfinished handshake, from any host.
    pub handshakes: usize,
    /// Authenticated.
    pub known: usize,
    /// Authenticated ones of tenants.
    pub tenants: usize,
    /// Authenticated ones of one account of tenants; also those of one component of the control plane, since
    /// the proxies of all nodes, and the ServiceAccounts of `kube-system`, are one account.
    pub account: usize,
    /// Authenticated, those of one node.
    pub node: usize,
}

impl Bounds {
    /// Returns the parts of a table with this many places.
    pub fn of(total: usize) -> Self {
        let part = |parts: usize, of: usize| (total * parts / of).max(1);
        let (unknown, loopback) = (part(3, 10), part(1, 50));
        Self {
            unknown,
            network: (unknown / 2).max(1),
            loopback,
            handshakes: (unknown / 3).max(1),
            known: total.saturating_sub(unknown + loopback).max(1),
            tenants: part(4, 10),
            account: part(1, 5),
            node: part(1, 50).max(NODE_LEAST),
        }
    }

    /// Returns `true` if a connection of `class` finds a place among the `known` authenticated ones, of which
    /// `tenants` are of tenants and `own` of the same account.
    pub fn admits_known(&self, class: Class, known: usize, tenants: usize, own: usize) -> bool {
        known < self.known
            && match class {
                Class::Tenants => tenants < self.tenants && own < self.account,
                Class::Nodes => own < self.node,
                Class::System => own < self.account,
                Class::Administrators => true,
                Class::Anonymous | Class::Probes => false,
            }
    }
}

/// Returns the connection that gives way to a new one from `network`, if one has to.
pub fn admit<'a>(
    seen: impl Iterator<Item = &'a Seen> + Clone,
    network: Network,
    loopback: bool,
    bounds: &Bounds,
) -> Option<u64> {
    let part = seen.filter(|c| !c.is_known() && c.loopback == loopback);
    let oldest = |of: &dyn Fn(&Seen) -> bool, most: usize| {
        let members = part.clone().filter(|c| of(c));
        (members.clone().count() >= most).then(|| members.min_by_key(|c| c.rank()).map(|c| c.id)).flatten()
    };
    let same = |c: &Seen| c.network == network;
    let handshake = |c: &Seen| c.stage == Stage::Handshake;
    if !loopback && let Some(id) = oldest(&same, bounds.network) {
        return Some(id);
    }
    // A client that only opens connections displaces its own before those of others.
    let own_handshakes = |c: &Seen| same(c) && handshake(c);
    oldest(&own_handshakes, (bounds.handshakes / 2).max(1))
        .or_else(|| oldest(&handshake, bounds.handshakes))
        .or_else(|| oldest(&|_| true, if loopback { bounds.loopback } else { bounds.unknown }))
}

/// Returns how long a connection may be idle in a part of the table in which `used` of `most` places are
/// taken.
pub fn idle_time(known: bool, used: usize, most: usize) -> Duration {
    let least = if known { limits::IDLE_LEAST } else { limits::IDLE_LEAST_UNKNOWN };
    let (half, most) = (most / 2, most.max(1));
    let over = used.clamp(half, most) - half;
    let shrinks = (limits::IDLE - least).as_millis() as usize * over / (most - half).max(1);
    limits::IDLE - Duration::from_millis(shrinks as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Network {
        Network::of(text.parse().unwrap())
    }

    fn idle(id: u64, network: Network, since: u64) -> Seen {
        Seen { id, network, loopback: false, stage: Stage::Unknown, opened: 0, idle_since: Some(since) }
    }

    #[test]
    fn one_site_counts_as_one_address() {
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1:2:3"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
        assert_ne!(address("10.0.0.1"), address("10.0.0.2"));
    }

    #[test]
    fn ten_thousand_idle_connections_give_way_to_a_newcomer_and_leave_the_rest_alone() {
        let bounds = Bounds::of(10_000);
        let parts = bounds.unknown + bounds.loopback + bounds.known;
        assert!(parts <= 10_000 && bounds.tenants < bounds.known, "{bounds:?}");
        let (bad, good) = (address("10.0.0.1"), address("10.0.0.2"));
        let mut table: Vec<Seen> = Vec::new();
        for id in 0..10_000 {
            if let Some(gone) = admit(table.iter(), bad, false, &bounds) {
                table.retain(|c| c.id != gone);
            }
            table.push(idle(id, bad, id));
        }
        assert_eq!(table.len(), bounds.network);
        assert_eq!(admit(table.iter(), good, false, &bounds), None, "others have room");
        assert_eq!(admit(table.iter(), good, true, &bounds), None);
        assert!(bounds.admits_known(Class::Administrators, 0, 0, 0));
        // From many addresses.
        let many: Vec<Seen> =
            (0..bounds.unknown as u64).map(|id| idle(id, Network::V6(id.to_be_bytes()), id + 5)).collect();
        assert_eq!(admit(many.iter(), good, false, &bounds), Some(0), "the one that was idle for longest");
        assert_eq!(admit(many.iter(), good, true, &bounds), None, "loopback has places of its own");
    }

    #[test]
    fn idle_connections_go_before_handshakes_and_these_before_active_ones() {
        let bounds = Bounds { unknown: 3, network: 3, handshakes: 3, ..Bounds::of(100) };
        let network = address("10.0.0.1");
        let mut table = [idle(1, network, 50), idle(2, network, 40), idle(3, network, 1)];
        table[1].stage = Stage::Handshake;
        table[2].idle_since = None;
        assert_eq!(admit(table.iter(), network, false, &bounds), Some(1));
        table[0].idle_since = None;
        assert_eq!(admit(table.iter(), network, false, &bounds), Some(2));
        table[1] = Seen { stage: Stage::Unknown, idle_since: None, opened: 7, ..table[1] };
        table[0].opened = 8;
        table[2].opened = 9;
        assert_eq!(admit(table.iter(), network, false, &bounds), Some(2), "the oldest");
        // Authenticated ones never give way.
        table.iter_mut().for_each(|c| c.stage = Stage::Known(Class::Tenants));
        assert_eq!(admit(table.iter(), network, false, &bounds), None);
    }

    #[test]
    fn unfinished_handshakes_have_a_bound_of_their_own() {
        let bounds = Bounds { unknown: 90, network: 50, handshakes: 4, ..Bounds::of(100) };
        let (bad, good) = (address("10.0.0.1"), address("10.0.0.2"));
        let handshake = |id, network| Seen { stage: Stage::Handshake, opened: id, ..idle(id, network, 0) };
        let table: Vec<Seen> = (0..2).map(|id| handshake(id, bad)).collect();
        assert_eq!(admit(table.iter(), bad, false, &bounds), Some(0), "its own");
        assert_eq!(admit(table.iter(), good, false, &bounds), None);
    }

    #[test]
    fn tenants_leave_places_to_the_control_plane() {
        let bounds = Bounds::of(1_000);
        assert!(!bounds.admits_known(Class::Tenants, bounds.tenants, bounds.tenants, 0));
        assert!(!bounds.admits_known(Class::Tenants, 300, 300, bounds.account));
        assert!(bounds.admits_known(Class::Tenants, 300, 300, bounds.account - 1));
        assert!(bounds.admits_known(Class::Administrators, bounds.tenants, bounds.tenants, 999));
        assert!(!bounds.admits_known(Class::Anonymous, 0, 0, 0));
        assert!(!bounds.admits_known(Class::Probes, 0, 0, 0));
    }

    #[test]
    fn one_node_leaves_places_to_the_others_and_to_administrators() {
        let bounds = Bounds::of(10_000);
        assert_eq!(bounds.node, 200);
        let admits = |class, own| bounds.admits_known(class, 5_000, 0, own);
        assert!(admits(Class::Nodes, bounds.node - 1) && !admits(Class::Nodes, bounds.node));
        // Each node may have a proxy of the same name.
        assert!(admits(Class::System, bounds.account - 1) && !admits(Class::System, bounds.account));
    }

    #[test]
    fn the_fuller_the_table_the_shorter_the_idle_time() {
        assert_eq!(idle_time(false, 10, 100), limits::IDLE);
        assert_eq!(idle_time(false, 50, 100), limits::IDLE);
        let middle = idle_time(false, 75, 100);
        assert!(middle < limits::IDLE && middle > limits::IDLE_LEAST_UNKNOWN, "{middle:?}");
        assert_eq!(idle_time(false, 100, 100), limits::IDLE_LEAST_UNKNOWN);
        assert_eq!(idle_time(true, 100, 100), limits::IDLE_LEAST);
        assert_eq!(idle_time(false, 7, 0), limits::IDLE_LEAST_UNKNOWN);
    }
}
