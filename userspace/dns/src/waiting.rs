//! The queries that wait for upstreams: bounded in total, and for each client by a share of the places that are
//! left. However many clients ask about names that nobody has, there are places for one more.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits;

/// Numbers of waiting queries by client.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    clients: HashMap<IpAddr, usize>,
}

/// A waiting query; it ends when dropped.
#[derive(Debug)]
pub struct Place {
    waiting: Arc<Waiting>,
    client: IpAddr,
}

impl Waiting {
    /// Lets a query wait, unless too many do.
    pub fn enter(self: &Arc<Self>, client: IpAddr) -> Option<Place> {
        let mut counts = self.lock();
        let own = counts.clients.get(&client).copied().unwrap_or(0);
        if own >= share(limits::WAITING - counts.all) {
            return None;
        }
        counts.all += 1;
        counts.clients.insert(client, own + 1);
        Some(Place { waiting: Arc::clone(self), client })
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of places that one client may have while that many are left. Clients that take all that they
/// can come to rest at half of what is left, which is never nothing.
fn share(left: usize) -> usize {
    left.div_ceil(2).min(limits::WAITING_PER_CLIENT)
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.waiting.lock();
        counts.all -= 1;
        if let Some(own) = counts.clients.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                counts.clients.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_places_to_others_and_all_have_a_bound() {
        let waiting = Arc::new(Waiting::default());
        let client = |number: usize| IpAddr::from([10, 0, 0, number as u8]);
        let own: Vec<_> = (0..2_000).filter_map(|_| waiting.enter(client(1))).collect();
        assert_eq!(own.len(), limits::WAITING_PER_CLIENT);
        let others: Vec<_> = (0..250_000).filter_map(|at| waiting.enter(client(2 + at % 200))).collect();
        let all = own.len() + others.len();
        assert!(all <= limits::WAITING && all > limits::WAITING * 9 / 10, "{all}");
        drop((own, others));
        assert_eq!(waiting.lock().all, 0);
        assert!(waiting.lock().clients.is_empty());
    }

    #[test]
    fn ten_greedy_clients_leave_places_to_an_eleventh() {
        let waiting = Arc::new(Waiting::default());
        let client = |number: u8| IpAddr::from([10, 0, 0, number]);
        for greedy in [1, 5, 10, 50, 200] {
            let held: Vec<_> = (0..200)
                .flat_map(|_| 1..=greedy)
                .filter_map(|number| waiting.enter(client(number)))
                .collect();
            let last: Vec<_> = (0..200).filter_map(|_| waiting.enter(client(250))).collect();
            let equal = held.len() / usize::from(greedy);
            assert!(!last.is_empty() && last.len() >= equal / 2, "{greedy}: {} {}", held.len(), last.len());
        }
    }
}
