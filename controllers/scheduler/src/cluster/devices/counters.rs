//! Counters that devices of a pool share, during a search.

use std::collections::BTreeMap;

use apiserver_meta::quantity::Quantity;

use super::pools::Pool;
use super::slices::{Counters, Slice};

/// A counter of a pool: number of the pool, set, name.
type Counter<'a> = (usize, &'a str, &'a str);

/// The amounts that devices take of counters.
#[derive(Debug, Default)]
pub struct CounterUse<'a> {
    /// The amounts that devices in use have left over, by pool; less than nothing if they have too much.
    left: BTreeMap<usize, Vec<(Counter<'a>, Quantity)>>,
    /// The amounts that the search has taken.
    taken: BTreeMap<Counter<'a>, Quantity>,
}

fn each<'a>(
    pool: usize,
    consumes: &'a [(String, Counters)],
) -> impl Iterator<Item = (Counter<'a>, Quantity)> {
    consumes.iter().flat_map(move |(set, counters)| {
        counters.iter().map(move |(name, amount)| ((pool, set.as_str(), name.as_str()), *amount))
    })
}

impl<'a> CounterUse<'a> {
    /// Takes amounts for a device, unless a counter of the pool has less left than was taken of it.
    pub fn take(&mut self, number: usize, pool: &Pool<'a>, consumes: &'a [(String, Counters)]) -> bool {
        for (counter, amount) in each(number, consumes) {
            let taken = self.taken.entry(counter).or_insert(Quantity::from_value(0));
            *taken = taken.plus(amount);
        }
        let taken = &self.taken;
        let of = |counter: &Counter<'a>| taken.get(counter).copied().unwrap_or(Quantity::from_value(0));
        let left = self.left.entry(number).or_insert_with(|| left(number, pool));
        let is_enough = left.iter().all(|(counter, left)| *left >= of(counter));
        if !is_enough {
            self.give_back(number, consumes);
        }
        is_enough
    }

    /// Undoes [`Self::take`].
    pub fn give_back(&mut self, number: usize, consumes: &'a [(String, Counters)]) {
        for (counter, amount) in each(number, consumes) {
            if let Some(taken) = self.taken.get_mut(&counter) {
                *taken = taken.minus(amount);
            }
        }
    }
}

/// Returns what the devices in use have left of each counter of a pool.
fn left<'a>(number: usize, pool: &Pool<'a>) -> Vec<(Counter<'a>, Quantity)> {
    let counters = pool.counters.iter().flat_map(|(set, counters)| {
        counters.iter().map(move |(name, amount)| ((number, *set, name.as_str()), *amount))
    });
    let mut left: BTreeMap<Counter<'a>, Quantity> = counters.collect();
    let slices: Vec<&'a Slice> = pool.slices.iter().chain(&pool.others).copied().collect();
    for slice in slices {
        for (index, device) in slice.devices.iter().enumerate() {
            let is_used = pool.used.is_some_and(|used| used.of(&slice.source(index).name).is_some());
            for (counter, amount) in each(number, &device.consumes).filter(|_| is_used) {
                if let Some(left) = left.get_mut(&counter) {
                    *left = left.minus(amount);
                }
            }
        }
    }
    left.into_iter().collect()
}
