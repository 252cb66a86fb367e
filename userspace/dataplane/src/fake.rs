//! A data plane in memory, for simulation and tests: the same tables, arena and order of writes
//! as the kernel's, and a plain reading of what a connection would get.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ebpf_common::frontend::{Frontend, frontend_flag};
use ebpf_common::limits;

use crate::arena::Block;
use crate::store::{Contents, Family, Refused, Store};
use crate::sync::Synchronizer;
use crate::tables::{
    Applied, Backend, DataPlane, DataPlaneError, FrontendKey, Interface, NodeTables, Protocol, Scope,
    ServiceTables, Tables,
};

/// What a connection would get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// No frontend has the address: it goes where it says.
    NotAService,
    /// No backend: refused at once.
    Refused,
    /// No backend, and the frontend says to drop.
    Dropped,
    Backend(Backend),
}

/// Sizes of the fake's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeLimits {
    pub frontends: u32,
    pub backends: u32,
    pub services: u32,
}

impl Default for FakeLimits {
    fn default() -> Self {
        Self { frontends: limits::FRONTENDS, backends: limits::BACKENDS, services: limits::SERVICES }
    }
}

/// The data plane in memory.
pub struct Fake {
    tables: Synchronizer<Memory>,
    node: NodeTables,
    interfaces: Vec<Interface>,
}

impl Default for Fake {
    fn default() -> Self {
        Self::new(FakeLimits::default())
    }
}

impl Fake {
    /// An empty one.
    pub fn new(limits: FakeLimits) -> Self {
        let memory = Memory { limits, ..Memory::default() };
        match Synchronizer::new(memory) {
            Ok(tables) => Self { tables, node: NodeTables::default(), interfaces: Vec::new() },
            Err(error) => unreachable!("memory that holds nothing is read: {error}"),
        }
    }

    /// What a new process finds: the same maps, nothing remembered.
    pub fn restarted(self) -> Self {
        match Synchronizer::new(self.tables.store) {
            Ok(tables) => Self { tables, ..self },
            Err(error) => unreachable!("memory is read: {error}"),
        }
    }

    /// What a connection to an address gets. `hash` chooses among the backends as the programs
    /// do: index `hash * count / 2^32`.
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
        let wildcard = FrontendKey {
            address: match address {
                IpAddr::V4(_) => IpAddr::from([0; 4]),
                IpAddr::V6(_) => IpAddr::from([0; 16]),
            },
            ..key
        };
        let here = self.node.addresses.contains(&address);
        let found = memory.frontends.get(&key).or_else(|| memory.frontends.get(&wildcard).filter(|_| here));
        let Some(frontend) = found else {
            return Resolution::NotAService;
        };
        let count = u32::from(frontend.count());
        if count == 0 {
            return if frontend.flags() & frontend_flag::DROP_WHEN_EMPTY != 0 {
                Resolution::Dropped
            } else {
                Resolution::Refused
            };
        }
        let index = frontend.block() + ((u64::from(hash) * u64::from(count)) >> 32) as u32;
        match memory.backends.get(&(Family::of(&key), index)) {
            Some(backend) => Resolution::Backend(*backend),
            None => Resolution::Refused,
        }
    }

    /// Backends of a frontend, in order; none if there is no such frontend.
    pub fn backends(&self, key: &FrontendKey) -> Option<Vec<Backend>> {
        let memory = &self.tables.store;
        let frontend = memory.frontends.get(key)?;
        let range = frontend.block()..frontend.block() + u32::from(frontend.count());
        Some(range.filter_map(|index| memory.backends.get(&(Family::of(key), index)).copied()).collect())
    }

    /// Number of frontends in the tables.
    pub fn frontends(&self) -> usize {
        self.tables.store.frontends.len()
    }

    /// Names of the services in the tables.
    pub fn services(&self) -> BTreeSet<String> {
        self.tables.store.names.values().cloned().collect()
    }

    /// What [`DataPlane::set_interfaces`] was last given.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// What [`DataPlane::set_node`] was last given.
    pub fn node(&self) -> &NodeTables {
        &self.node
    }

    /// Grace periods waited for so far.
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

    fn set_interfaces(&mut self, interfaces: &[Interface]) -> Result<(), DataPlaneError> {
        self.interfaces = interfaces.to_vec();
        Ok(())
    }
}

/// Maps in memory.
#[derive(Default)]
struct Memory {
    limits: FakeLimits,
    frontends: BTreeMap<FrontendKey, Frontend>,
    backends: BTreeMap<(Family, u32), Backend>,
    names: BTreeMap<u32, String>,
    losses: BTreeMap<u32, u32>,
    epoch: u32,
    grace_periods: usize,
}

impl Store for Memory {
    fn read(&mut self) -> Result<Contents, DataPlaneError> {
        Ok(Contents {
            frontends: self.frontends.iter().map(|(key, value)| (*key, *value)).collect(),
            names: self.names.iter().map(|(id, name)| (*id, name.clone())).collect(),
        })
    }

    fn arena(&self, _family: Family) -> u32 {
        self.limits.backends
    }

    fn services(&self) -> u32 {
        self.limits.services
    }

    fn write_block(&mut self, family: Family, block: Block, backends: &[Backend]) {
        self.backends.extend((block.start..).map(|index| (family, index)).zip(backends.iter().copied()));
    }

    fn block_equals(&self, family: Family, block: Block, backends: &[Backend]) -> bool {
        let range = block.start..block.start + block.length;
        range.zip(backends).all(|(index, backend)| self.backends.get(&(family, index)) == Some(backend))
    }

    fn put_frontends(&mut self, frontends: &[(FrontendKey, Frontend)]) -> Refused {
        let mut refused = Refused::new();
        for (key, value) in frontends {
            let limit = self.limits.frontends;
            if self.frontends.len() >= limit as usize && !self.frontends.contains_key(key) {
                let map = if key.address.is_ipv4() { "FRONTENDS4" } else { "FRONTENDS6" };
                refused.push((*key, DataPlaneError::Full { service: String::new(), map, limit }));
            } else {
                self.frontends.insert(*key, *value);
            }
        }
        refused
    }

    fn delete_frontends(&mut self, keys: &[FrontendKey], service: u32) -> Result<usize, DataPlaneError> {
        let before = self.frontends.len();
        for key in keys {
            if self.frontends.get(key).is_some_and(|value| value.service == service) {
                self.frontends.remove(key);
            }
        }
        Ok(before - self.frontends.len())
    }

    fn put_name(&mut self, service: u32, name: &str) -> Result<(), DataPlaneError> {
        self.names.insert(service, name.to_owned());
        Ok(())
    }

    fn delete_name(&mut self, service: u32) -> Result<(), DataPlaneError> {
        self.names.remove(&service);
        Ok(())
    }

    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn set_losses(&mut self, service: u32, epoch: u32) {
        self.losses.insert(service, epoch);
    }

    fn set_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    fn grace_period(&mut self) {
        self.grace_periods += 1;
    }
}

#[cfg(test)]
mod tests;
