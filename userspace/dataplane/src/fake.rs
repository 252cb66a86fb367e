//! A data plane in memory, for simulation and tests: the same tables, arena and order of writes as the
//! kernel's, and a plain evaluation of the outcome of a connection.

pub(crate) mod memory;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ebpf_common::frontend::{Frontend, Lut, frontend_flag};
use ebpf_common::limits;

use self::memory::Memory;
use crate::convert;
use crate::data_plane::DataPlane;
use crate::policy::PolicyTables;
use crate::store::{Family, Store};
use crate::sync::Synchronizer;
use crate::tables::{
    self, Applied, Backend, Bandwidths, DataPlaneError, FrontendKey, Interface, NodeTables, Protocol, Scope,
    ServiceTables, Tables,
};

/// The outcome of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// No service has the address: the destination is unchanged.
    NotAService,
    /// No backend, or no such port at a service's address: refused at once.
    Refused,
    /// No backend, and the frontend says to drop; or no service in the ranges of services.
    Dropped,
    Backend(Backend),
}

/// Sizes of the fake's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeLimits {
    pub frontends: u32,
    pub backends: u32,
    pub services: u32,
    /// Elements of look-up tables, four entries each.
    pub luts: u32,
    /// Maximum number of source ranges, per family.
    pub source_ranges: u32,
}

impl Default for FakeLimits {
    fn default() -> Self {
        Self {
            frontends: limits::FRONTENDS,
            backends: limits::BACKENDS,
            services: limits::SERVICES,
            luts: limits::LUTS,
            source_ranges: limits::SOURCE_RANGES,
        }
    }
}

/// The data plane in memory.
pub struct Fake {
    tables: Synchronizer<Memory>,
    node: NodeTables,
    interfaces: Vec<Interface>,
    policies: PolicyTables,
    bandwidths: Bandwidths,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new(FakeLimits::default())
    }
}

impl Fake {
    /// Creates an empty data plane.
    pub fn new(limits: FakeLimits) -> Self {
        let memory = Memory::new(limits);
        match Synchronizer::new(memory) {
            Ok(tables) => {
                let (node, policies) = (NodeTables::default(), PolicyTables::default());
                Self { tables, node, interfaces: Vec::new(), policies, bandwidths: Bandwidths::new() }
            }
            Err(error) => unreachable!("memory that holds nothing is read: {error}"),
        }
    }

    /// Returns the data plane as a new process finds it: the same maps, nothing remembered.
    pub fn restarted(self) -> Self {
        match Synchronizer::new(self.tables.store) {
            Ok(tables) => Self { tables, ..self },
            Err(error) => unreachable!("memory is read: {error}"),
        }
    }

    /// Returns the outcome of a connection to an address, from any source. `hash` selects among the backends
    /// as in the programs: by the look-up table if there is one, else index `hash * count / 2^32`.
    pub fn resolve(
        &self,
        address: IpAddr,
        port: u16,
        protocol: Protocol,
        scope: Scope,
        hash: u32,
    ) -> Resolution {
        let key = FrontendKey { address, port, protocol, scope };
        let memory = &self.tables.store;
        let wildcard = FrontendKey { address: convert::unspecified(address), ..key };
        let here = self.node.addresses.contains(&address);
        let found = memory.frontends.get(&key).or_else(|| memory.frontends.get(&wildcard).filter(|_| here));
        let Some(frontend) = found else {
            return self.without_frontend(address);
        };
        let count = u32::from(frontend.count());
        if count == 0 {
            return if frontend.flags() & frontend_flag::DROP_WHEN_EMPTY != 0 {
                Resolution::Dropped
            } else {
                Resolution::Refused
            };
        }
        let offset = match Lut::unpack(frontend.lut) {
            Some(lut) => memory.entry(lut, hash),
            None => ((u64::from(hash) * u64::from(count)) >> 32) as u32,
        };
        match memory.backends.get(&(Family::of(&key), frontend.block() + offset)) {
            Some(backend) => Resolution::Backend(*backend),
            None => Resolution::Refused,
        }
    }

    /// Returns the outcome on a port that no frontend has.
    fn without_frontend(&self, address: IpAddr) -> Resolution {
        if self.tables.store.frontends.contains_key(&tables::Frontend::mark(address).key) {
            Resolution::Refused
        } else if self.node.service_ranges.iter().any(|range| range.contains(address)) {
            Resolution::Dropped
        } else {
            Resolution::NotAService
        }
    }

    /// Returns `true` if a frontend admits a source; `None` if there is no such frontend.
    pub fn admits(&self, key: &FrontendKey, source: IpAddr) -> Option<bool> {
        let memory = &self.tables.store;
        let frontend = memory.frontends.get(key)?;
        let limited = frontend.flags() & frontend_flag::SOURCE_RANGES != 0;
        let ranges = memory.source_ranges.iter().filter(|(service, _)| *service == frontend.service);
        Some(!limited || ranges.into_iter().any(|(_, range)| range.contains(source)))
    }

    /// Returns the backends of a frontend, local ones first, then by address and port; `None` if there is no
    /// such frontend.
    pub fn backends(&self, key: &FrontendKey) -> Option<Vec<Backend>> {
        let memory = &self.tables.store;
        let frontend = memory.frontends.get(key)?;
        let range = frontend.block()..frontend.block() + u32::from(frontend.count());
        let held = range.filter_map(|index| memory.backends.get(&(Family::of(key), index)).copied());
        let mut backends: Vec<Backend> = held.collect();
        backends.sort_by_key(|backend| (!backend.local, backend.address, backend.port));
        Some(backends)
    }

    /// Returns the frontend in the layout of programs; `None` if there is no such frontend.
    pub fn frontend(&self, key: &FrontendKey) -> Option<Frontend> {
        self.tables.store.frontends.get(key).copied()
    }

    /// Returns the epoch, the number of times that services have lost backends so far.
    pub fn epoch(&self) -> u32 {
        self.tables.store.epoch()
    }

    /// Returns the number of frontends in the tables.
    pub fn frontends(&self) -> usize {
        self.tables.store.frontends.len()
    }

    /// Returns the names of the services in the tables.
    pub fn services(&self) -> BTreeSet<String> {
        self.tables.store.names.values().cloned().collect()
    }

    /// Returns the last argument of [`DataPlane::set_interfaces`].
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Returns the last argument of [`DataPlane::set_node`].
    pub fn node(&self) -> &NodeTables {
        &self.node
    }

    /// Returns the last argument of [`DataPlane::set_policies`].
    pub fn policies(&self) -> &PolicyTables {
        &self.policies
    }

    /// Returns the last argument of [`DataPlane::set_bandwidths`].
    pub fn bandwidths(&self) -> &Bandwidths {
        &self.bandwidths
    }

    /// Returns the number of grace periods waited for so far.
    pub fn grace_periods(&self) -> usize {
        self.tables.store.grace_periods
    }
}

impl DataPlane for Fake {
    fn apply_full(&mut self, desired: &Tables) -> Result<Applied, DataPlaneError> {
        self.tables.apply_full(desired)
    }

    fn apply_service(
        &mut self,
        service: &str,
        desired: Option<&ServiceTables>,
    ) -> Result<Applied, DataPlaneError> {
        self.tables.apply_service(service, desired)
    }

    fn set_node(&mut self, node: &NodeTables) -> Result<(), DataPlaneError> {
        self.node = node.clone();
        Ok(())
    }

    fn set_policies(&mut self, policies: &PolicyTables) -> Result<(), DataPlaneError> {
        self.policies = policies.clone();
        Ok(())
    }

    fn set_bandwidths(&mut self, limits: &Bandwidths) -> Result<(), DataPlaneError> {
        self.bandwidths = limits.clone();
        Ok(())
    }

    fn set_interfaces(&mut self, interfaces: &[Interface]) -> Result<(), DataPlaneError> {
        self.interfaces = interfaces.to_vec();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
