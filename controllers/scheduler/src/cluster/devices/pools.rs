//! The pools of devices that a node can use.

use std::collections::{BTreeMap, BTreeSet};

use apiserver_client::Labels;
use apiserver_meta::node_selector;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::Device;

use super::in_use::{InUse, PoolUse};
use super::slices::{Counters, PoolId, Slice, Slices};

/// The state of a pool, as the driver has published it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Usable,
    /// The driver has not published all slices yet.
    Incomplete,
    /// Two devices have one name, or counters are missing.
    Invalid,
}

/// A pool with the devices that a node can use.
#[derive(Debug)]
pub struct Pool<'a> {
    pub id: &'a PoolId,
    pub state: State,
    /// All that the node needs of the pool was written for other nodes: counters.
    pub is_elsewhere: bool,
    /// Slices with devices that the node can use, ordered by name.
    pub slices: Vec<&'a Slice>,
    /// The other slices, whose devices take shared counters too.
    pub others: Vec<&'a Slice>,
    /// Amounts of shared counters, by set.
    pub counters: BTreeMap<&'a str, &'a Counters>,
    /// Devices of the pool that are in use; `None` if there are none.
    pub used: Option<&'a PoolUse>,
}

/// The node that devices are looked for on.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    pub name: &'a str,
    pub labels: &'a Labels,
}

impl Target<'_> {
    fn has_access(&self, name: Option<&str>, all: Option<bool>, selector: Option<&NodeSelector>) -> bool {
        match name.filter(|name| !name.is_empty()) {
            Some(name) => name == self.name,
            None if all == Some(true) => true,
            None => selector.is_some_and(|selector| node_selector::matches(selector, self.name, self.labels)),
        }
    }

    /// Returns `true` if the node can use a device that says itself which nodes can.
    pub fn can_use(&self, device: &Device) -> bool {
        self.has_access(device.node_name.as_deref(), device.all_nodes, device.node_selector.as_ref())
    }

    /// Returns `true` if the node can use the devices of a slice; `None` if each of them says that itself.
    pub fn has_slice(&self, slice: &Slice) -> Option<bool> {
        let spec = slice.spec();
        let access =
            || self.has_access(spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref());
        (spec.per_device_node_selection != Some(true)).then(access)
    }

    /// Returns `true` if a slice is another node's.
    fn is_foreign(&self, slice: &Slice) -> bool {
        slice.node().is_some_and(|node| node != self.name)
    }

    /// Returns `true` if a slice has something to do with the node. One with counters has: they decide about the devices of
    /// other slices.
    fn needs(&self, slice: &Slice) -> bool {
        let spec = slice.spec();
        let says = slice.node().is_some() || spec.all_nodes == Some(true) || spec.node_selector.is_some();
        if !slice.counter_sets.is_empty() {
            true
        } else if says {
            self.has_access(spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref())
        } else {
            spec.per_device_node_selection == Some(true)
                && spec.devices.iter().flatten().any(|device| self.can_use(device))
        }
    }
}

/// Returns the pools that a node can use, in the order in which devices are taken from them: by driver and name, those with
/// devices that have to be prepared last.
pub fn gather<'a>(slices: &'a Slices, in_use: &'a InUse, target: Target<'_>) -> Vec<Pool<'a>> {
    let mut pools: BTreeMap<&PoolId, Vec<&Slice>> = BTreeMap::new();
    for slice in slices.for_node(target.name).filter(|slice| target.needs(slice)) {
        pools.entry(&slice.pool).or_default().push(slice);
    }
    let pools = pools.into_iter().filter_map(|(id, own)| {
        let (own, others) = parts(id, own, slices, target)?;
        Some(pool(id, own, others, in_use, target))
    });
    let (to_prepare, ready): (Vec<_>, Vec<_>) = pools.partition(has_binding_conditions);
    ready.into_iter().chain(to_prepare).collect()
}

/// The slices of a pool that the node does not need; `None` if the pool is not whole.
type Others<'a> = Option<Vec<&'a Slice>>;

/// Returns the slices of a pool's newest generation, those that the node needs and the others; `None` if there is a newer
/// generation, which the node has nothing to do with.
///
/// A node may write slices of its own, of any pool, generation and number of slices, with counters or not. Those of other nodes
/// therefore count only if the pool is not whole without them.
fn parts<'a>(
    id: &PoolId,
    needed: Vec<&'a Slice>,
    slices: &'a Slices,
    target: Target<'_>,
) -> Option<(Vec<&'a Slice>, Others<'a>)> {
    let own = newest(needed.iter().copied().filter(|slice| !target.is_foreign(slice)));
    if !own.is_empty()
        && let Some(Some(others)) = beside(&own, slices.of_pool(id).filter(|slice| !target.is_foreign(slice)))
    {
        return Some((own, Some(others)));
    }
    let own = newest(needed.into_iter());
    let others = beside(&own, slices.of_pool(id))?;
    Some((own, others))
}

/// Returns the slices of the newest generation.
fn newest<'a>(slices: impl Iterator<Item = &'a Slice> + Clone) -> Vec<&'a Slice> {
    let generation = |slice: &Slice| slice.spec().pool.generation;
    let newest = slices.clone().map(generation).max();
    slices.filter(|slice| Some(generation(slice)) == newest).collect()
}

/// Returns the slices of a pool beside those that the node needs, which are of one generation; `None` if there is a newer one.
fn beside<'a>(own: &[&'a Slice], all: impl Iterator<Item = &'a Slice> + Clone) -> Option<Others<'a>> {
    let pool = &own.first()?.spec().pool;
    let count = usize::try_from(pool.resource_slice_count).ok();
    if count == Some(own.len()) {
        return Some(Some(Vec::new()));
    }
    if all.clone().any(|slice| slice.spec().pool.generation > pool.generation) {
        return None;
    }
    let same: Vec<&Slice> = all.filter(|slice| slice.spec().pool.generation == pool.generation).collect();
    if count != Some(same.len()) {
        return Some(None);
    }
    let known: BTreeSet<&str> = own.iter().map(|slice| slice.name()).collect();
    Some(Some(same.into_iter().filter(|slice| !known.contains(slice.name())).collect()))
}

/// Returns a pool with these slices of its newest generation that the node needs, and the others.
fn pool<'a>(
    id: &'a PoolId,
    mut own: Vec<&'a Slice>,
    others: Others<'a>,
    in_use: &'a InUse,
    target: Target<'_>,
) -> Pool<'a> {
    let is_elsewhere = own.iter().all(|slice| target.is_foreign(slice));
    let mut state = if others.is_some() { State::Usable } else { State::Incomplete };
    let mut others = others.unwrap_or_default();
    own.sort_by_key(|slice| slice.name());
    let mut counters = BTreeMap::new();
    let mut is_valid = true;
    for (set, amounts) in own.iter().flat_map(|slice| &slice.counter_sets) {
        is_valid &= counters.insert(set.as_str(), amounts).is_none();
    }
    own.retain(|slice| slice.counter_sets.is_empty());
    is_valid &= has_unique_names(&own) && own.iter().chain(&others).all(|slice| is_covered(slice, &counters));
    if state == State::Usable && !is_valid {
        state = State::Invalid;
    }
    if state != State::Usable {
        (own, others) = (Vec::new(), Vec::new());
    }
    Pool { id, state, is_elsewhere, slices: own, others, counters, used: in_use.of(id) }
}

fn has_unique_names(slices: &[&Slice]) -> bool {
    let devices = || slices.iter().flat_map(|slice| slice.spec().devices.iter().flatten());
    let names: BTreeSet<&str> = devices().map(|device| device.name.as_str()).collect();
    names.len() == devices().count()
}

/// Returns `true` if all counters exist that the devices of a slice take.
fn is_covered(slice: &Slice, counters: &BTreeMap<&str, &Counters>) -> bool {
    let mut consumed = slice.devices.iter().flat_map(|device| &device.consumes);
    consumed.all(|(set, taken)| {
        counters.get(set.as_str()).is_some_and(|set| taken.keys().all(|name| set.contains_key(name)))
    })
}

fn has_binding_conditions(pool: &Pool<'_>) -> bool {
    let mut devices = pool.slices.iter().flat_map(|slice| slice.spec().devices.iter().flatten());
    devices.any(|device| device.binding_conditions.is_some())
}
