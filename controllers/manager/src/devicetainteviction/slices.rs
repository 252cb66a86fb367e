//! What the controller reads of ResourceSlices: devices and their taints.

use std::sync::Arc;

use apiserver_client::{IndexBy, Projection};
use k8s_openapi::api::resource::v1::{DeviceTaint, ResourceClaim, ResourceSlice};

use super::plan::is_evicting;
use crate::device_claims::allocation;

/// Driver and name of a pool of devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PoolId {
    pub driver: String,
    pub pool: String,
}

/// A ResourceSlice without the attributes of its devices.
#[derive(Debug)]
pub(super) struct PoolSlice {
    name: String,
    version: Option<String>,
    pub id: PoolId,
    pub generation: i64,
    pub devices: Vec<PoolDevice>,
}

/// A device of a slice.
#[derive(Debug)]
pub(super) struct PoolDevice {
    pub name: String,
    pub taints: Vec<DeviceTaint>,
}

impl Projection for PoolSlice {
    type Object = ResourceSlice;

    fn project(slice: ResourceSlice) -> Self {
        let spec = slice.spec;
        let devices = spec
            .devices
            .unwrap_or_default()
            .into_iter()
            .map(|device| PoolDevice { name: device.name, taints: device.taints.unwrap_or_default() });
        Self {
            name: slice.metadata.name.unwrap_or_default(),
            version: slice.metadata.resource_version,
            id: PoolId { driver: spec.driver, pool: spec.pool.name },
            generation: spec.pool.generation,
            devices: devices.collect(),
        }
    }

    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version
    }
}

impl PoolSlice {
    /// Returns `true` if a taint of a device evicts pods.
    pub fn evicts(&self) -> bool {
        self.devices.iter().flat_map(|device| &device.taints).any(is_evicting)
    }
}

/// Returns the slices of a pool that are up to date.
pub(super) fn current(pool: &[Arc<PoolSlice>]) -> impl Iterator<Item = &PoolSlice> {
    let newest = pool.iter().map(|slice| slice.generation).max();
    pool.iter().map(AsRef::as_ref).filter(move |slice| Some(slice.generation) == newest)
}

/// Index of slices by their pools.
pub(super) struct ByPool;

impl IndexBy<PoolSlice> for ByPool {
    type Value = PoolId;

    fn values(slice: &PoolSlice) -> Vec<PoolId> {
        vec![slice.id.clone()]
    }
}

/// Where the devices of a claim are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Driver(String),
    Pool(PoolId),
}

/// Index of claims by the places of their devices.
pub(super) struct ByPlace;

impl IndexBy<ResourceClaim> for ByPlace {
    type Value = Place;

    fn values(claim: &ResourceClaim) -> Vec<Place> {
        let devices = allocation(claim).and_then(|allocation| allocation.devices.as_ref());
        let results = devices.and_then(|devices| devices.results.as_deref()).unwrap_or_default();
        let places = results.iter().flat_map(|result| {
            let id = PoolId { driver: result.driver.clone(), pool: result.pool.clone() };
            [Place::Driver(result.driver.clone()), Place::Pool(id)]
        });
        places.collect()
    }
}
