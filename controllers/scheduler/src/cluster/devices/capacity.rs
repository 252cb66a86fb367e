//! Capacities of devices that several claims can share.

use std::collections::BTreeMap;

use apiserver_meta::quantity::{self, Quantity};
use k8s_openapi::api::resource::v1::DeviceCapacity;
use k8s_openapi::apimachinery::pkg::api::resource;

use super::slices::Device;

/// Amounts by capacity.
pub type Amounts = BTreeMap<String, Quantity>;

/// A capacity of a device, and the amounts of it that can be taken.
#[derive(Debug)]
pub struct Capacity {
    value: Quantity,
    policy: Option<Policy>,
}

#[derive(Debug)]
struct Policy {
    default: Option<Quantity>,
    range: Option<Range>,
    /// Ordered from the smallest.
    values: Vec<Quantity>,
}

#[derive(Debug)]
struct Range {
    min: Quantity,
    max: Option<Quantity>,
    step: Option<Quantity>,
}

fn read(source: &resource::Quantity) -> Quantity {
    quantity::read(source).unwrap_or(Quantity::from_value(0))
}

impl Range {
    /// Returns how far an amount is from the next one below it that can be taken, and the step between these.
    fn beyond_step(&self, amount: Quantity) -> Option<(i64, i64)> {
        let step = self.step.map(Quantity::value).filter(|step| *step != 0)?;
        Some((amount.value().wrapping_sub(self.min.value()).wrapping_rem(step), step))
    }

    fn rounded_up(&self, amount: Quantity) -> Quantity {
        if amount < self.min {
            return self.min;
        }
        if self.step.is_none() {
            return amount;
        }
        match self.beyond_step(amount) {
            Some((0, _)) | None => Quantity::from_bytes(amount.value()),
            Some((beyond, step)) => {
                Quantity::from_bytes(amount.value().wrapping_sub(beyond).saturating_add(step))
            }
        }
    }

    fn allows(&self, amount: Quantity) -> bool {
        self.max.is_none_or(|max| amount <= max)
            && self.beyond_step(amount).is_none_or(|(beyond, _)| beyond == 0)
    }
}

impl Policy {
    fn allows(&self, amount: Quantity) -> bool {
        if self.default == Some(amount) {
            return true;
        }
        match &self.range {
            Some(range) => range.allows(amount),
            None => self.values.is_empty() || self.values.contains(&amount),
        }
    }
}

impl Capacity {
    pub fn parse(source: &DeviceCapacity) -> Self {
        let policy = source.request_policy.as_ref().map(|policy| Policy {
            default: policy.default.as_ref().map(read),
            range: policy.valid_range.as_ref().map(|range| Range {
                min: read(&range.min),
                max: range.max.as_ref().map(read),
                step: range.step.as_ref().map(read),
            }),
            values: policy.valid_values.iter().flatten().map(read).collect(),
        });
        Self { value: read(&source.value), policy }
    }

    /// Returns the amount that a request takes: rounded up to one that can be taken, and the default without a request.
    fn taken(&self, requested: Option<Quantity>) -> Quantity {
        let Some(requested) = requested else {
            return self.policy.as_ref().and_then(|policy| policy.default).unwrap_or(self.value);
        };
        match &self.policy {
            None => requested,
            Some(Policy { range: Some(range), .. }) => range.rounded_up(requested),
            Some(Policy { values, .. }) => {
                values.iter().copied().find(|value| requested <= *value).unwrap_or(requested)
            }
        }
    }
}

/// Returns `true` if a device has room for a request besides what is taken already, by others and by the same search, and
/// allows such amounts.
pub fn has_room(device: &Device, requested: &Amounts, taken: [Option<&Amounts>; 2]) -> bool {
    let amount_in = |amounts: Option<&Amounts>, name: &str| amounts.and_then(|all| all.get(name)).copied();
    requested.keys().all(|name| device.capacity.contains_key(name))
        && device.capacity.iter().all(|(name, capacity)| {
            let amount = capacity.taken(requested.get(name).copied());
            let others = taken.iter().filter_map(|taken| amount_in(*taken, name));
            let total = others.fold(amount, Quantity::plus);
            capacity.policy.as_ref().is_none_or(|policy| policy.allows(amount)) && total <= capacity.value
        })
}

/// Returns what a request takes of a device that several can share.
pub fn consumed(device: &Device, requested: &Amounts) -> Amounts {
    let taken =
        |(name, capacity): (&String, &Capacity)| (name.clone(), capacity.taken(requested.get(name).copied()));
    device.capacity.iter().map(taken).collect()
}

/// Adds amounts.
pub fn add(sum: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        let sum = sum.entry(name.clone()).or_insert(Quantity::from_value(0));
        *sum = sum.plus(*amount);
    }
}

/// Undoes [`add`].
pub fn subtract(sum: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        if let Some(sum) = sum.get_mut(name) {
            *sum = sum.minus(*amount);
        }
    }
}
