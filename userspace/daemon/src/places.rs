//! Who may have how many connections.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// How many connections a listener has at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// All together.
    pub connections: usize,
    /// Those of one address of another machine.
    pub per_address: usize,
    /// Kept free for clients on this machine.
    pub reserved: usize,
}

impl Bounds {
    /// A quarter for each address of another machine, and an eighth kept for this one.
    pub fn new(connections: usize) -> Self {
        Self { connections, per_address: (connections / 4).max(1), reserved: connections / 8 }
    }
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Of other machines.
    by_address: BTreeMap<IpAddr, usize>,
}

impl Taken {
    fn release(&mut self, address: IpAddr) {
        let Some(count) = self.by_address.get_mut(&address) else { return };
        *count -= 1;
        if *count == 0 {
            self.by_address.remove(&address);
        }
    }
}

/// The connections of one listener.
#[derive(Debug)]
pub struct Places {
    bounds: Bounds,
    taken: Mutex<Taken>,
}

impl Places {
    /// None of them is taken.
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, taken: Mutex::default() })
    }

    /// A place for a connection from `peer` to `local`; none if the peer has had its share.
    pub fn take(self: &Arc<Self>, peer: IpAddr, local: IpAddr) -> Option<Place> {
        let (peer, local) = (peer.to_canonical(), local.to_canonical());
        let stranger = (!peer.is_loopback() && peer != local).then_some(peer);
        let mut taken = self.lock();
        let limit = match stranger {
            Some(_) => self.bounds.connections - self.bounds.reserved.min(self.bounds.connections),
            None => self.bounds.connections,
        };
        if taken.all >= limit {
            return None;
        }
        if let Some(address) = stranger {
            let count = taken.by_address.entry(address).or_default();
            if *count >= self.bounds.per_address {
                return None;
            }
            *count += 1;
        }
        taken.all += 1;
        Some(Place { places: Arc::clone(self), stranger })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place; free again when dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    /// Address on another machine that it counts for.
    stranger: Option<IpAddr>,
}

impl Place {
    /// No longer counts the connection for its address, once its peer has proved who it is. It still
    /// counts among all.
    pub fn release_address(&mut self) {
        if let Some(address) = self.stranger.take() {
            self.places.lock().release(address);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.release_address();
        self.places.lock().all -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "192.0.2.1";

    fn take(places: &Arc<Places>, peer: &str) -> Option<Place> {
        places.take(peer.parse().unwrap(), HERE.parse().unwrap())
    }

    #[test]
    fn one_address_takes_no_more_than_its_share() {
        let places = Places::new(Bounds::new(16));
        let mut held: Vec<Place> = (0..4).map(|_| take(&places, "198.51.100.1").unwrap()).collect();
        assert!(take(&places, "198.51.100.1").is_none());
        assert!(take(&places, "::ffff:198.51.100.1").is_none(), "another spelling of the same address");
        held.push(take(&places, "198.51.100.2").unwrap());
        held.remove(0);
        assert!(take(&places, "198.51.100.1").is_some());
        drop(held);
        assert!(places.lock().by_address.is_empty());
    }

    #[test]
    fn a_released_connection_counts_among_all_and_not_for_its_address() {
        let places = Places::new(Bounds::new(16));
        let mut held = Vec::new();
        while let Some(mut place) = take(&places, "198.51.100.1") {
            place.release_address();
            place.release_address();
            held.push(place);
        }
        assert_eq!(held.len(), 14, "all but those that are kept for the machine itself");
        assert!(places.lock().by_address.is_empty());
        drop(held);
        assert_eq!(places.lock().all, 0);
    }

    #[test]
    fn strangers_leave_places_for_the_machine_itself() {
        let places = Places::new(Bounds::new(16));
        let addresses = (1..200).map(|last| format!("198.51.100.{last}"));
        let held: Vec<Place> = addresses.filter_map(|peer| take(&places, &peer)).collect();
        assert_eq!(held.len(), 14);
        let own: Vec<Place> =
            ["127.0.0.1", HERE, "::1"].iter().filter_map(|peer| take(&places, peer)).collect();
        assert_eq!(own.len(), 2, "no more than there are");
    }
}
