//! Pools of devices: what controllers read of ResourceSlices, and where the devices of claims are.

use std::sync::Arc;

use apiserver_client::{IndexBy, Projection};
use k8s_openapi::api::resource::v1::{DeviceTaint, ResourceClaim, ResourceSlice};

use crate::device_claims::allocated;

/// Driver and name of a pool of devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolId {
    pub driver: String,
    pub pool: String,
}

/// A ResourceSlice without the attributes of its devices.
#[derive(Debug)]
pub(crate) struct PoolSlice {
    name: String,
    version: Option<String>,
    pub id: PoolId,
    pub generation: i64,
    /// Number of slices that the pool has in this generation.
    pub slice_count: i64,
    /// The node that all devices are on; `None` if they are on several.
    pub node: Option<String>,
    pub devices: Vec<PoolDevice>,
}

/// A device of a slice.
#[derive(Debug)]
pub(crate) struct PoolDevice {
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
            slice_count: spec.pool.resource_slice_count,
            node: spec.node_name,
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

/// Returns the slices of a pool that are up to date.
pub(crate) fn current(pool: &[Arc<PoolSlice>]) -> impl Iterator<Item = &PoolSlice> {
    let newest = pool.iter().map(|slice| slice.generation).max();
    pool.iter().map(AsRef::as_ref).filter(move |slice| Some(slice.generation) == newest)
}

/// Index of slices by their pools.
pub(crate) struct ByPool;

impl IndexBy<PoolSlice> for ByPool {
    type Value = PoolId;

    fn values(slice: &PoolSlice) -> Vec<PoolId> {
        vec![slice.id.clone()]
    }
}

/// Index of slices by their drivers.
pub(crate) struct ByDriver;

impl IndexBy<PoolSlice> for ByDriver {
    type Value = String;

    fn values(slice: &PoolSlice) -> Vec<String> {
        vec![slice.id.driver.clone()]
    }
}

/// A place at which a claim has devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Driver(String),
    Pool(PoolId),
}

/// Index of claims by the places of their devices.
pub(crate) struct ByPlace;

impl IndexBy<ResourceClaim> for ByPlace {
    type Value = Place;

    fn values(claim: &ResourceClaim) -> Vec<Place> {
        let places = allocated(claim).iter().flat_map(|result| {
            let id = PoolId { driver: result.driver.clone(), pool: result.pool.clone() };
            [Place::Driver(result.driver.clone()), Place::Pool(id)]
        });
        places.collect()
    }
}
