//! The bounds on connections, in total and per client.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// The maximum numbers of connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The total.
    pub connections: usize,
    /// Connections of one address of another machine.
    pub per_address: usize,
    /// Connections reserved for clients on this machine.
    pub reserved: usize,
}

impl Bounds {
    /// Returns bounds with a quarter for each address of another machine, and an eighth reserved for this
    /// one.
    pub fn new(connections: usize) -> Self {
        Self { connections, per_address: (connections / 4).max(1), reserved: connections / 8 }
    }
}

/// Connections by number, in ascending order: the oldest is the first.
type Numbered = BTreeMap<u64, CancellationToken>;

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Number of the next connection.
    next: u64,
    /// Connections from other machines whose peers have not proved who they are.
    unproved: BTreeMap<IpAddr, Numbered>,
}

impl Taken {
    fn of(&self, address: IpAddr) -> usize {
        self.unproved.get(&address).map_or(0, Numbered::len)
    }

    /// Returns the address with the most unproved connections, or of several the one with the oldest.
    fn busiest(&self) -> Option<IpAddr> {
        let rank = |connections: &Numbered| (connections.len(), Reverse(connections.keys().next().copied()));
        self.unproved.iter().max_by_key(|(_, connections)| rank(connections)).map(|(address, _)| *address)
    }

    fn add(&mut self, address: IpAddr, evicted: CancellationToken) -> u64 {
        let number = self.next;
        self.next += 1;
        self.unproved.entry(address).or_default().insert(number, evicted);
        number
    }

    /// Removes a connection. Returns `true` if it was there: one that was evicted is not.
    fn remove(&mut self, address: IpAddr, number: u64) -> bool {
        let Some(connections) = self.unproved.get_mut(&address) else { return false };
        let removed = connections.remove(&number).is_some();
        if connections.is_empty() {
            self.unproved.remove(&address);
        }
        removed
    }

    /// Ends the oldest unproved connection of an address.
    fn evict(&mut self, address: IpAddr) {
        let oldest = self.unproved.get(&address).and_then(|connections| connections.first_key_value());
        let Some((number, evicted)) = oldest.map(|(number, evicted)| (*number, evicted.clone())) else {
            return;
        };
        evicted.cancel();
        self.remove(address, number);
        self.all -= 1;
    }
}

/// The connections of one listener.
#[derive(Debug)]
pub struct Places {
    bounds: Bounds,
    taken: Mutex<Taken>,
}

impl Places {
    /// Creates bounds of which no place is taken.
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, taken: Mutex::default() })
    }

    /// Takes a place for a connection from `peer` to `local`. If none is left, or the peer's address has had
    /// its share, the oldest connection from another machine whose peer has not proved who it is gives way:
    /// one of the same address, or else of the address that has most of them. `None` if there is no such
    /// connection.
    pub fn take(self: &Arc<Self>, peer: IpAddr, local: IpAddr) -> Option<Place> {
        let (peer, local) = (peer.to_canonical(), local.to_canonical());
        let stranger = (!peer.is_loopback() && peer != local).then_some(peer);
        let mut taken = self.lock();
        let limit = match stranger {
            Some(_) => self.bounds.connections.saturating_sub(self.bounds.reserved),
            None => self.bounds.connections,
        };
        // The machine itself may have taken more than its reservation.
        if taken.all > limit {
            return None;
        }
        match stranger {
            Some(address) if taken.of(address) >= self.bounds.per_address => taken.evict(address),
            _ if taken.all >= limit => {
                let address = taken.busiest()?;
                taken.evict(address);
            }
            _ => {}
        }
        taken.all += 1;
        let evicted = CancellationToken::new();
        let unproved = stranger.map(|address| (address, taken.add(address, evicted.clone())));
        Some(Place { places: Arc::clone(self), unproved, evicted })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place; released when dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    /// The address on another machine that it counts for, and its number, until the peer has proved who it
    /// is.
    unproved: Option<(IpAddr, u64)>,
    evicted: CancellationToken,
}

impl Place {
    /// Records that the peer has proved who it is: the connection no longer counts for its address and is
    /// never evicted. It still counts in the total.
    pub fn prove(&mut self) {
        if let Some((address, number)) = self.unproved
            && self.places.lock().remove(address, number)
        {
            self.unproved = None;
        }
    }

    /// Returns a token that is cancelled when the connection has to give way to a newer one.
    pub fn evicted(&self) -> CancellationToken {
        self.evicted.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        let counted = self.unproved.is_none_or(|(address, number)| taken.remove(address, number));
        if counted {
            taken.all -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "192.0.2.1";

    fn take(places: &Arc<Places>, peer: &str) -> Option<Place> {
        places.take(peer.parse().unwrap(), HERE.parse().unwrap())
    }

    fn live(held: &[Place]) -> Vec<bool> {
        held.iter().map(|place| !place.evicted().is_cancelled()).collect()
    }

    #[test]
    fn one_address_takes_no_more_than_its_share_and_its_oldest_connection_gives_way() {
        let places = Places::new(Bounds::new(16));
        let mut held: Vec<Place> = (0..4).map(|_| take(&places, "198.51.100.1").unwrap()).collect();
        held.push(take(&places, "198.51.100.2").unwrap());
        assert_eq!(live(&held), [true; 5]);
        held.push(take(&places, "198.51.100.1").unwrap());
        held.push(take(&places, "::ffff:198.51.100.1").unwrap());
        assert_eq!(live(&held), [false, false, true, true, true, true, true]);
        assert_eq!(places.lock().all, 5);
        drop(held);
        assert!(places.lock().unproved.is_empty() && places.lock().all == 0);
    }

    #[test]
    fn strangers_from_many_addresses_do_not_keep_a_newcomer_out_or_push_it_out_again() {
        let places = Places::new(Bounds::new(16));
        let flood = |round: usize| format!("198.51.100.{}", 1 + round % 4);
        let mut held: Vec<Place> = (0..100).map(|round| take(&places, &flood(round)).unwrap()).collect();
        let newcomer = take(&places, "203.0.113.9").unwrap();
        held.extend((0..100).map(|round| take(&places, &flood(round)).unwrap()));
        assert!(!newcomer.evicted().is_cancelled(), "those who have most give way");
        assert_eq!(places.lock().all, 14);
        drop((held, newcomer));
        assert_eq!(places.lock().all, 0);
    }

    #[test]
    fn a_proved_connection_counts_among_all_and_never_gives_way() {
        let places = Places::new(Bounds::new(16));
        let mut held = Vec::new();
        while let Some(mut place) = take(&places, "198.51.100.1") {
            place.prove();
            place.prove();
            held.push(place);
        }
        assert_eq!(held.len(), 14, "all but those that are kept for the machine itself");
        assert_eq!(live(&held), [true; 14]);
        assert!(places.lock().unproved.is_empty());
        drop(held);
        assert_eq!(places.lock().all, 0);
    }

    #[test]
    fn an_evicted_connection_that_proves_itself_too_late_is_counted_once() {
        let places = Places::new(Bounds::new(4));
        let mut late = take(&places, "198.51.100.1").unwrap();
        let next = take(&places, "198.51.100.1").unwrap();
        late.prove();
        assert!(late.evicted().is_cancelled());
        drop(late);
        assert_eq!(places.lock().all, 1);
        drop(next);
        assert_eq!(places.lock().all, 0);
    }

    #[test]
    fn strangers_leave_places_for_the_machine_itself_and_give_way_to_it() {
        let places = Places::new(Bounds::new(16));
        let addresses = (1..200).map(|last| format!("198.51.100.{last}"));
        let held: Vec<Place> = addresses.filter_map(|peer| take(&places, &peer)).collect();
        assert_eq!(places.lock().all, 14);
        let own: Vec<Place> =
            ["127.0.0.1", HERE, "::1"].iter().cycle().take(40).filter_map(|p| take(&places, p)).collect();
        assert_eq!(own.len(), 16, "no more than there are");
        assert_eq!(live(&own), [true; 16]);
        assert!(take(&places, "198.51.100.1").is_none());
        drop((held, own));
        assert_eq!(places.lock().all, 0);
    }
}
