//! The devices that claims have, counted claim by claim.

use std::collections::BTreeMap;

use apiserver_meta::quantity::{self, Quantity};
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult};

use super::capacity::Amounts;
use super::slices::PoolId;

/// The devices in use, by pool.
#[derive(Debug, Default)]
pub struct InUse {
    pools: BTreeMap<PoolId, PoolUse>,
}

/// The devices of a pool that are in use, by name.
#[derive(Debug, Default)]
pub struct PoolUse {
    devices: BTreeMap<String, DeviceUse>,
}

/// The uses of a device.
#[derive(Debug, Default)]
pub struct DeviceUse {
    /// Number of uses that leave the device to nobody else.
    alone: usize,
    /// Number of uses beside others.
    shared: usize,
    /// Number of those uses that take capacity.
    consumers: usize,
    /// Sum of the capacity that they take.
    capacity: Amounts,
}

impl DeviceUse {
    /// Returns the capacity that is taken; `None` if nobody takes any.
    pub fn capacity(&self) -> Option<&Amounts> {
        (self.consumers > 0).then_some(&self.capacity)
    }

    /// Returns `true` if a claim has the device alone.
    pub fn is_alone(&self) -> bool {
        self.alone > 0
    }

    fn change(&mut self, result: &DeviceRequestAllocationResult, adds: bool) {
        let count = |number: &mut usize| {
            *number = if adds { *number + 1 } else { number.saturating_sub(1) };
        };
        if result.share_id.is_none() {
            return count(&mut self.alone);
        }
        count(&mut self.shared);
        let Some(consumed) = &result.consumed_capacity else { return };
        count(&mut self.consumers);
        for (name, amount) in consumed {
            let amount = quantity::read(amount).unwrap_or(Quantity::from_value(0));
            let sum = self.capacity.entry(name.clone()).or_insert(Quantity::from_value(0));
            *sum = if adds { sum.plus(amount) } else { sum.minus(amount) };
        }
    }
}

impl PoolUse {
    /// Returns the uses of a device; `None` if nobody uses it.
    pub fn of(&self, device: &str) -> Option<&DeviceUse> {
        self.devices.get(device)
    }
}

impl InUse {
    pub fn of(&self, pool: &PoolId) -> Option<&PoolUse> {
        self.pools.get(pool)
    }

    /// Counts the devices of an allocation.
    pub fn add(&mut self, allocation: &AllocationResult) {
        self.change(allocation, true);
    }

    /// Undoes [`Self::add`].
    pub fn remove(&mut self, allocation: &AllocationResult) {
        self.change(allocation, false);
    }

    fn change(&mut self, allocation: &AllocationResult, adds: bool) {
        let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
        // Administrators may use what others have.
        for result in results.filter(|result| result.admin_access != Some(true)) {
            let id = PoolId { driver: result.driver.clone(), pool: result.pool.clone() };
            let pool = self.pools.entry(id.clone()).or_default();
            let device = pool.devices.entry(result.device.clone()).or_default();
            device.change(result, adds);
            if device.alone == 0 && device.shared == 0 {
                pool.devices.remove(&result.device);
            }
            if pool.devices.is_empty() {
                self.pools.remove(&id);
            }
        }
    }
}
