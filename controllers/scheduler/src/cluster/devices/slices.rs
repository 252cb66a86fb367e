//! The devices that drivers offer, by node and by pool.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use apiserver_cel::{DeviceAttribute, DeviceValue};
use apiserver_meta::quantity::{self, Quantity};
use k8s_openapi::api::resource::v1::{self, ResourceSlice, ResourceSliceSpec};

use super::capacity::Capacity;
use super::selectors::Compiled;
use crate::limits;

/// The name of a pool: pools of several drivers may have the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolId {
    pub driver: String,
    pub pool: String,
}

/// Amounts by counter.
pub type Counters = BTreeMap<String, Quantity>;

/// The answers of a selector, as far as it was asked, for each device of a slice.
#[derive(Debug)]
struct Answers {
    /// The number of the selector.
    selector: u64,
    by_device: Box<[Option<bool>]>,
}

/// A slice of a pool, with what allocation reads of it.
#[derive(Debug)]
pub struct Slice {
    pub object: Arc<ResourceSlice>,
    pub pool: PoolId,
    pub devices: Vec<Device>,
    /// Amounts of shared counters, by set.
    pub counter_sets: Vec<(String, Counters)>,
    /// Those of the selectors that were asked last.
    answers: Mutex<VecDeque<Answers>>,
}

/// The parsed parts of a device.
#[derive(Debug)]
pub struct Device {
    pub capacity: BTreeMap<String, Capacity>,
    /// Amounts that the device takes of shared counters, by set.
    pub consumes: Vec<(String, Counters)>,
    pub allows_multiple: bool,
}

fn counters(source: &BTreeMap<String, v1::Counter>) -> Counters {
    let amount = |counter: &v1::Counter| quantity::read(&counter.value).unwrap_or(Quantity::from_value(0));
    source.iter().map(|(name, counter)| (name.clone(), amount(counter))).collect()
}

impl Device {
    fn parse(device: &v1::Device) -> Self {
        let capacity = device.capacity.iter().flatten();
        let consumes = device.consumes_counters.iter().flatten();
        Self {
            capacity: capacity.map(|(name, capacity)| (name.clone(), Capacity::parse(capacity))).collect(),
            consumes: consumes.map(|one| (one.counter_set.clone(), counters(&one.counters))).collect(),
            allows_multiple: device.allow_multiple_allocations == Some(true),
        }
    }
}

impl Slice {
    pub fn new(object: Arc<ResourceSlice>) -> Self {
        let spec = &object.spec;
        let sets = spec.shared_counters.iter().flatten();
        Self {
            pool: PoolId { driver: spec.driver.clone(), pool: spec.pool.name.clone() },
            devices: spec.devices.iter().flatten().map(Device::parse).collect(),
            counter_sets: sets.map(|set| (set.name.clone(), counters(&set.counters))).collect(),
            answers: Mutex::default(),
            object,
        }
    }

    pub fn spec(&self) -> &ResourceSliceSpec {
        &self.object.spec
    }

    pub fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns a device as the API has it.
    pub fn source(&self, device: usize) -> &v1::Device {
        &self.spec().devices.as_deref().unwrap_or_default()[device]
    }

    /// Returns the only node that the slice is for, which may have written it itself.
    pub fn node(&self) -> Option<&str> {
        self.spec().node_name.as_deref().filter(|name| !name.is_empty())
    }

    /// Returns the only node that has to do with the slice: counters decide about the devices of other slices.
    pub fn only_node(&self) -> Option<&str> {
        self.node().filter(|_| self.counter_sets.is_empty())
    }

    /// Returns the answer of a selector for a device, or why there is none, in the words of Kubernetes; and the steps that this
    /// takes. Answers are remembered, as a slice never changes; errors are not: they end a search.
    pub fn answer(
        &self,
        device: usize,
        selector: &Compiled,
        value: &Result<DeviceValue, String>,
    ) -> (Result<bool, String>, u64) {
        let (answer, steps) = match value {
            Ok(value) => selector.judge(value),
            Err(error) => (Err(error.clone()), 0),
        };
        if let Ok(answer) = answer {
            self.remember(device, selector.number, answer);
        }
        (answer, steps)
    }

    /// Returns the answer that is remembered of a selector for a device.
    pub fn remembered(&self, device: usize, selector: u64) -> Option<bool> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.iter().find(|one| one.selector == selector)?.by_device[device]
    }

    fn remember(&self, device: usize, selector: u64, answer: bool) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = answers.iter_mut().find(|one| one.selector == selector) {
            one.by_device[device] = Some(answer);
            return;
        }
        if answers.len() >= limits::SLICE_ANSWERS {
            answers.pop_front();
        }
        let mut by_device = vec![None; self.devices.len()].into_boxed_slice();
        by_device[device] = Some(answer);
        answers.push_back(Answers { selector, by_device });
    }

    /// Returns the number of answers that are remembered.
    #[cfg(test)]
    pub fn answers(&self) -> usize {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.iter().flat_map(|one| &one.by_device).filter(|answer| answer.is_some()).count()
    }

    /// Returns a device as selectors see it, or why it cannot be seen, in the words of Kubernetes; and the steps that this
    /// takes.
    pub fn value(&self, device: usize) -> (Result<DeviceValue, String>, u64) {
        let source = self.source(device);
        let fields = source.attributes.as_ref().map_or(0, BTreeMap::len)
            + source.capacity.as_ref().map_or(0, BTreeMap::len);
        (value(&self.pool.driver, source), 1 + (fields / 4) as u64)
    }
}

/// Returns a device as selectors see it.
fn value(driver: &str, device: &v1::Device) -> Result<DeviceValue, String> {
    let attributes = device.attributes.iter().flatten().map(|(name, value)| (name.as_str(), typed(value)));
    let capacity = device.capacity.iter().flatten();
    let capacity = capacity.map(|(name, capacity)| (name.as_str(), capacity.value.0.as_str()));
    DeviceValue::new(driver, device.allow_multiple_allocations == Some(true), attributes, capacity)
}

/// Returns the value of an attribute. Lists are behind a gate that is off.
fn typed(attribute: &v1::DeviceAttribute) -> DeviceAttribute<'_> {
    match attribute {
        v1::DeviceAttribute { int: Some(number), .. } => DeviceAttribute::Int(*number),
        v1::DeviceAttribute { bool: Some(flag), .. } => DeviceAttribute::Bool(*flag),
        v1::DeviceAttribute { string: Some(text), .. } => DeviceAttribute::Text(text),
        v1::DeviceAttribute { version: Some(version), .. } => DeviceAttribute::Version(version),
        _ => DeviceAttribute::Unsupported,
    }
}

type ByName = BTreeMap<String, Arc<Slice>>;

/// All slices.
#[derive(Debug, Default)]
pub struct Slices {
    by_name: ByName,
    /// Slices that only one node can use.
    on_node: BTreeMap<String, ByName>,
    /// The others, among them those with shared counters.
    shared: ByName,
    by_pool: BTreeMap<PoolId, ByName>,
}

impl Slices {
    /// Adds a slice, or removes it; returns it as it was.
    pub fn set(&mut self, name: &str, new: Option<Arc<ResourceSlice>>) -> Option<Arc<ResourceSlice>> {
        let old = self.by_name.remove(name);
        if let Some(old) = &old {
            match old.only_node() {
                Some(node) => take(&mut self.on_node, node, name),
                None => drop(self.shared.remove(name)),
            }
            take(&mut self.by_pool, &old.pool, name);
        }
        if let Some(new) = new {
            let (slice, name) = (Arc::new(Slice::new(new)), name.to_owned());
            let same_place = match slice.only_node() {
                Some(node) => self.on_node.entry(node.to_owned()).or_default(),
                None => &mut self.shared,
            };
            same_place.insert(name.clone(), Arc::clone(&slice));
            let same_pool = self.by_pool.entry(slice.pool.clone()).or_default();
            same_pool.insert(name.clone(), Arc::clone(&slice));
            self.by_name.insert(name, slice);
        }
        old.map(|old| Arc::clone(&old.object))
    }

    /// Returns the slices that a node may be able to use.
    pub fn for_node(&self, node: &str) -> impl Iterator<Item = &Slice> {
        let own = self.on_node.get(node).into_iter().flat_map(BTreeMap::values);
        own.chain(self.shared.values()).map(Arc::as_ref)
    }

    /// Returns the slices of a pool, ordered by name.
    pub fn of_pool(&self, pool: &PoolId) -> impl Iterator<Item = &Slice> + Clone {
        self.by_pool.get(pool).into_iter().flat_map(BTreeMap::values).map(Arc::as_ref)
    }
}

fn take<K: Ord + std::borrow::Borrow<Q>, Q: Ord + ?Sized>(
    groups: &mut BTreeMap<K, ByName>,
    group: &Q,
    name: &str,
) {
    if let Some(slices) = groups.get_mut(group) {
        slices.remove(name);
        if slices.is_empty() {
            groups.remove(group);
        }
    }
}
