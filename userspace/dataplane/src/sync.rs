//! From desired tables to writes: what differs, in an order in which no packet sees a half.
//!
//! ```text
//!   delete frontends ─▶ write blocks ─▶ replace frontends, one word each ─▶ losses, epoch ─▶ free blocks
//! ```

use std::collections::{BTreeMap, BTreeSet};

use ebpf_common::frontend::{Frontend, frontend_flag};
use ebpf_common::limits;

use crate::arena::{Arena, Block};
use crate::convert;
use crate::store::{Family, Store};
use crate::tables::{self, Applied, Backend, DataPlaneError, FrontendKey, ServiceTables, Tables};

/// Frontends written by one system call.
const BATCH: usize = 4_096;

/// What one service has in the tables.
#[derive(Debug, Default)]
struct Service {
    id: u32,
    /// By key.
    frontends: Vec<(FrontendKey, Frontend)>,
    blocks: Vec<(Family, Block)>,
}

/// Keeps a store equal to the desired tables, and remembers what is in it.
pub struct Synchronizer<S> {
    pub store: S,
    services: BTreeMap<Box<str>, Service>,
    arenas: [Arena; 2],
    /// Ids below `next_id` that no service has.
    free_ids: BTreeSet<u32>,
    /// Id 0 is nobody's, so that memory full of zeros names no service.
    next_id: u32,
}

/// What one pass over the changes collects.
#[derive(Default)]
struct Pass {
    applied: Applied,
    puts: Vec<(FrontendKey, Frontend)>,
    /// Blocks that no frontend names once `puts` are written, with their owner.
    obsolete: Vec<(Box<str>, Family, Block)>,
    /// Services that have lost a backend.
    losers: Vec<u32>,
    /// The first thing that went wrong; the rest is done all the same.
    error: Option<DataPlaneError>,
}

impl Pass {
    fn failed(&mut self, error: DataPlaneError) {
        self.error.get_or_insert(error);
    }
}

impl<S: Store> Synchronizer<S> {
    /// Adopts what the store holds.
    pub fn new(mut store: S) -> Result<Self, DataPlaneError> {
        let contents = store.read()?;
        let arenas = [Arena::new(store.arena(Family::V4)), Arena::new(store.arena(Family::V6))];
        let mut this =
            Self { store, services: BTreeMap::new(), arenas, free_ids: BTreeSet::new(), next_id: 1 };
        let names: BTreeMap<u32, String> = contents.names.into_iter().collect();
        let mut by_id: BTreeMap<u32, Vec<(FrontendKey, Frontend)>> = BTreeMap::new();
        for id in names.keys() {
            by_id.entry(*id).or_default();
        }
        for (key, value) in contents.frontends {
            by_id.entry(value.service).or_default().push((key, value));
        }
        for (id, frontends) in by_id {
            // A name that no Kubernetes object has: the first full apply removes the service.
            let name = names.get(&id).cloned().unwrap_or_else(|| format!("?{id}"));
            this.adopt(id, name.into(), frontends);
        }
        Ok(this)
    }

    fn adopt(&mut self, id: u32, name: Box<str>, mut frontends: Vec<(FrontendKey, Frontend)>) {
        frontends.sort_by_key(|(key, _)| *key);
        let blocks: BTreeSet<(Family, Block)> = frontends
            .iter()
            .filter(|(_, value)| value.count() > 0)
            .map(|(key, value)| {
                (Family::of(key), Block { start: value.block(), length: u32::from(value.count()) })
            })
            .collect();
        // A block that overlaps another is not reused: its frontends get a new one.
        let blocks = blocks
            .into_iter()
            .filter(|(family, block)| self.arenas[*family as usize].reserve(*block))
            .collect();
        self.free_ids.extend(self.next_id..id);
        self.next_id = self.next_id.max(id.saturating_add(1));
        self.free_ids.remove(&id);
        self.services.insert(name, Service { id, frontends, blocks });
    }

    /// Names of the services in the tables, with their ids.
    pub fn service_ids(&self) -> impl Iterator<Item = (&str, u32)> {
        self.services.iter().map(|(name, service)| (&**name, service.id))
    }

    /// Makes the store hold `desired`, and nothing else.
    pub fn apply_full(&mut self, desired: &Tables) -> Result<Applied, DataPlaneError> {
        let gone: Vec<Box<str>> =
            self.services.keys().filter(|name| !desired.contains_key(&***name)).cloned().collect();
        let gone = gone.iter().map(|name| (&**name, None));
        let kept = desired.iter().map(|(name, tables)| (name.as_str(), Some(tables)));
        self.apply(gone.chain(kept).collect())
    }

    /// Makes what the store holds of one service equal to `desired`.
    pub fn apply_service(
        &mut self,
        service: &str,
        desired: Option<&ServiceTables>,
    ) -> Result<Applied, DataPlaneError> {
        self.apply(vec![(service, desired)])
    }

    fn apply(&mut self, changes: Vec<(&str, Option<&ServiceTables>)>) -> Result<Applied, DataPlaneError> {
        let mut pass = Pass::default();
        for (name, desired) in &changes {
            self.delete_frontends(name, *desired, &mut pass);
        }
        for (name, desired) in &changes {
            match desired {
                Some(desired) if !desired.frontends.is_empty() => self.plan(name, desired, &mut pass),
                _ => self.remove(name, &mut pass),
            }
            if pass.puts.len() >= BATCH {
                self.write(&mut pass);
            }
        }
        self.write(&mut pass);
        match pass.error {
            None => Ok(pass.applied),
            Some(error) => Err(error),
        }
    }

    /// First step: what is no longer wanted goes.
    fn delete_frontends(&mut self, name: &str, desired: Option<&ServiceTables>, pass: &mut Pass) {
        let Some(service) = self.services.get_mut(name) else {
            return;
        };
        let wanted = |key: &FrontendKey| {
            desired.is_some_and(|tables| tables.frontends.iter().any(|frontend| frontend.key == *key))
        };
        let gone: Vec<FrontendKey> =
            service.frontends.iter().map(|(key, _)| *key).filter(|key| !wanted(key)).collect();
        if gone.is_empty() {
            return;
        }
        match self.store.delete_frontends(&gone, service.id) {
            Ok(deleted) => {
                pass.applied.frontends_deleted += deleted;
                service.frontends.retain(|(key, _)| !gone.contains(key));
                pass.losers.push(service.id);
            }
            Err(error) => pass.failed(error),
        }
    }

    /// Forgets a service whose frontends have been deleted.
    fn remove(&mut self, name: &str, pass: &mut Pass) {
        let Some(service) = self.services.get(name) else {
            return;
        };
        if !service.frontends.is_empty() {
            // They could not be deleted; the error is on record, and the next pass tries again.
            return;
        }
        let Some(service) = self.services.remove(name) else {
            return;
        };
        for (family, block) in service.blocks {
            self.arenas[family as usize].free(block);
            pass.applied.blocks_freed += 1;
        }
        if let Err(error) = self.store.delete_name(service.id) {
            pass.failed(error);
        }
        self.free_ids.insert(service.id);
    }

    /// Writes the blocks of a service and notes which frontends are to name them.
    fn plan(&mut self, name: &str, desired: &ServiceTables, pass: &mut Pass) {
        let (service, is_new) = match self.services.remove(name) {
            Some(service) => (service, false),
            None => match self.take_id(name) {
                Ok(id) => (Service { id, ..Service::default() }, true),
                Err(error) => return pass.failed(error),
            },
        };
        let mut planned = Planned { written: 0, blocks: Vec::new(), service };
        let result = self.plan_frontends(name, desired, &mut planned);
        let Planned { written, blocks, mut service } = planned;
        match result {
            Err(error) => {
                // What was there before stays; blocks written in vain go back.
                for (family, block) in blocks {
                    if !service.blocks.contains(&(family, block)) {
                        self.arenas[family as usize].free(block);
                    }
                }
                pass.failed(error);
                if is_new {
                    self.free_ids.insert(service.id);
                    return;
                }
            }
            Ok(values) => {
                pass.applied.blocks_written += written;
                let obsolete: Vec<_> =
                    service.blocks.iter().copied().filter(|block| !blocks.contains(block)).collect();
                if !obsolete.is_empty() {
                    pass.losers.push(service.id);
                }
                pass.obsolete
                    .extend(obsolete.into_iter().map(|(family, block)| (Box::from(name), family, block)));
                service.blocks = blocks;
                merge(&mut service, values, &mut pass.puts);
                if is_new && let Err(error) = self.store.put_name(service.id, name) {
                    pass.failed(error);
                }
            }
        }
        self.services.insert(name.into(), service);
    }

    /// Values for the frontends, with every block they need written.
    fn plan_frontends(
        &mut self,
        name: &str,
        desired: &ServiceTables,
        planned: &mut Planned,
    ) -> Result<Vec<(FrontendKey, Frontend)>, DataPlaneError> {
        let mut lists: Vec<(Family, &[Backend], Block)> = Vec::new();
        let mut values = Vec::with_capacity(desired.frontends.len());
        for frontend in &desired.frontends {
            let family = Family::of(&frontend.key);
            let of_family = |backend: &Backend| backend.address.is_ipv4() == (family == Family::V4);
            let filtered: Vec<Backend>;
            let backends: &[Backend] = if frontend.backends.iter().all(of_family) {
                &frontend.backends
            } else {
                filtered = frontend.backends.iter().copied().filter(of_family).collect();
                &filtered
            };
            let block = if backends.is_empty() {
                None
            } else if let Some((.., block)) =
                lists.iter().find(|(other, list, _)| *other == family && *list == backends)
            {
                Some(*block)
            } else {
                let block = self.block(name, family, backends, planned)?;
                if std::ptr::eq(backends, frontend.backends.as_slice()) {
                    lists.push((family, &frontend.backends, block));
                }
                Some(block)
            };
            values.push((frontend.key, value(frontend, block, planned.service.id)));
        }
        values.sort_by_key(|(key, _)| *key);
        values.dedup_by_key(|(key, _)| *key);
        Ok(values)
    }

    /// A block with these backends: one that the service has, or a new one.
    fn block(
        &mut self,
        name: &str,
        family: Family,
        backends: &[Backend],
        planned: &mut Planned,
    ) -> Result<Block, DataPlaneError> {
        let full = |limit| DataPlaneError::Full { service: name.to_owned(), map: family.backends(), limit };
        let length = u32::try_from(backends.len()).unwrap_or(u32::MAX);
        if length > limits::BACKENDS_PER_FRONTEND {
            return Err(full(limits::BACKENDS_PER_FRONTEND));
        }
        let owned = planned.service.blocks.iter().chain(&planned.blocks).find(|(other, block)| {
            *other == family && block.length == length && self.store.block_equals(family, *block, backends)
        });
        if let Some((_, block)) = owned.copied() {
            if !planned.blocks.contains(&(family, block)) {
                planned.blocks.push((family, block));
            }
            return Ok(block);
        }
        let arena = &mut self.arenas[family as usize];
        let block = match arena.allocate(length) {
            Some(block) => block,
            None if arena.resting() > 0 => {
                self.store.grace_period();
                self.arenas.iter_mut().for_each(Arena::rested);
                let arena = &mut self.arenas[family as usize];
                arena.allocate(length).ok_or_else(|| full(arena.capacity()))?
            }
            None => return Err(full(arena.capacity())),
        };
        self.store.write_block(family, block, backends);
        planned.blocks.push((family, block));
        planned.written += 1;
        Ok(block)
    }

    /// Writes the frontends collected, then lets go of what they no longer name.
    fn write(&mut self, pass: &mut Pass) {
        let puts = std::mem::take(&mut pass.puts);
        let refused = self.store.put_frontends(&puts);
        pass.applied.frontends_written += puts.len() - refused.len();
        let mut failed: BTreeSet<Box<str>> = BTreeSet::new();
        for (key, error) in refused {
            let service = puts.iter().find(|(other, _)| *other == key).map_or(0, |(_, value)| value.service);
            for (name, owner) in &mut self.services {
                if owner.id == service {
                    // Unknown now; written again by the next pass.
                    owner.frontends.retain(|(other, _)| *other != key);
                    failed.insert(name.clone());
                    pass.failed(named(error, name));
                    break;
                }
            }
        }
        let losers = std::mem::take(&mut pass.losers);
        if !losers.is_empty() {
            let epoch = self.store.epoch().wrapping_add(1);
            losers.into_iter().for_each(|service| self.store.set_losses(service, epoch));
            self.store.set_epoch(epoch);
        }
        for (name, family, block) in std::mem::take(&mut pass.obsolete) {
            match self.services.get_mut(&name) {
                // A frontend may still name it.
                Some(service) if failed.contains(&name) => service.blocks.push((family, block)),
                _ => {
                    self.arenas[family as usize].free(block);
                    pass.applied.blocks_freed += 1;
                }
            }
        }
    }

    fn take_id(&mut self, name: &str) -> Result<u32, DataPlaneError> {
        if let Some(id) = self.free_ids.pop_first() {
            return Ok(id);
        }
        let limit = self.store.services();
        if self.next_id >= limit {
            return Err(DataPlaneError::Full { service: name.to_owned(), map: "SERVICES", limit });
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }
}

/// What planning one service collects.
struct Planned {
    /// Blocks written.
    written: usize,
    /// Blocks that the service shall have.
    blocks: Vec<(Family, Block)>,
    service: Service,
}

fn value(frontend: &tables::Frontend, block: Option<Block>, service: u32) -> Frontend {
    let flags = if frontend.drop_when_empty { frontend_flag::DROP_WHEN_EMPTY } else { 0 };
    let (start, count) = block.map_or((0, 0), |block| (block.start, block.length as u16));
    Frontend {
        switch: Frontend::pack(start, count, flags),
        service,
        affinity: convert::ticks(frontend.affinity_seconds),
        ..Frontend::default()
    }
}

/// Puts what differs on the list, and remembers it as written.
fn merge(
    service: &mut Service,
    values: Vec<(FrontendKey, Frontend)>,
    puts: &mut Vec<(FrontendKey, Frontend)>,
) {
    let old = std::mem::take(&mut service.frontends);
    service.frontends = values
        .into_iter()
        .map(|(key, value)| {
            let present = old.binary_search_by_key(&key, |(key, _)| *key).ok().map(|index| old[index].1);
            match present {
                Some(old) if (old.switch, old.affinity) == (value.switch, value.affinity) => (key, old),
                _ => {
                    puts.push((key, value));
                    (key, value)
                }
            }
        })
        .collect();
}

/// The error with the name of the service it concerns.
fn named(error: DataPlaneError, name: &str) -> DataPlaneError {
    match error {
        DataPlaneError::Full { map, limit, .. } => {
            DataPlaneError::Full { service: name.to_owned(), map, limit }
        }
        other => other,
    }
}
