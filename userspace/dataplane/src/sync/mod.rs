//! Writes the differences from the desired tables, in an order in which each packet sees a service before
//! or after the change.
//!
//! ```text
//!   delete frontends ─▶ write ranges, blocks, look-up tables, names ─▶ replace frontends, one word
//!   each ─▶ losses ─▶ epoch ─▶ free blocks, delete ranges and names
//! ```
//!
//! A process may die between any two writes. The result is consistent: frontends name complete blocks, and
//! the next process finds unnamed ones free, and writes the rest with its first apply.

mod adopt;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ebpf_common::frontend::Frontend;
use ipnetwork::IpNetwork;

use crate::arena::{Arena, Block};
use crate::limits::FRONTENDS_AT_ONCE;
use crate::store::{Family, Space, Store};
use crate::tables::{Applied, DataPlaneError, FrontendKey, ServiceTables, Tables};

/// The content of the tables for one service.
#[derive(Debug, Default)]
struct Service {
    id: u32,
    /// Frontends by key.
    frontends: Vec<(FrontendKey, Value)>,
    /// Blocks in the arenas.
    runs: Vec<Run>,
    /// Properties that few services have.
    extra: Option<Box<Extra>>,
}

/// A block, and the arena that it is in.
type Run = (Space, Block);

/// The part of [`Frontend`] that differs between the frontends of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    switch: u64,
    lut: u32,
    affinity: u32,
}

impl Value {
    fn frontend(self, service: u32) -> Frontend {
        let Self { switch, lut, affinity } = self;
        Frontend { switch, lut, affinity, service, ..Frontend::default() }
    }

    /// Returns the block of backends that the value names; `None` without backends.
    fn block(self) -> Option<Block> {
        let frontend = self.frontend(0);
        let length = u32::from(frontend.count());
        (length > 0).then(|| Block { start: frontend.block(), length })
    }
}

#[derive(Debug, Default)]
struct Extra {
    /// Look-up tables that this process has written or compared, so that it need not do it again.
    luts: Vec<KnownLut>,
    source_ranges: Vec<IpNetwork>,
}

/// The look-up table over a block's backends with these weights.
#[derive(Debug)]
struct KnownLut {
    family: Family,
    block: Block,
    /// Weights in the order of the block.
    weights: Box<[u16]>,
    run: Block,
}

/// Keeps a store equal to the desired tables, and remembers its content.
pub struct Synchronizer<S> {
    pub store: S,
    services: BTreeMap<Box<str>, Service>,
    /// Arenas in the order of [`Space::ALL`].
    arenas: [Arena; 3],
    /// Ids below `next_id` that no service has.
    free_ids: BTreeSet<u32>,
    /// Starts at 1: id 0 is unused, so that memory full of zeros names no service.
    next_id: u32,
}

/// One service with its desired tables; `None` to remove it.
type Change<'a> = (&'a str, Option<&'a ServiceTables>);

/// The state of one pass over the changes.
#[derive(Default)]
struct Pass<'a> {
    applied: Applied,
    names: Vec<(u32, &'a str)>,
    puts: Vec<(FrontendKey, Frontend)>,
    /// Blocks that no frontend names once `puts` are written, with their owner.
    obsolete: Vec<(&'a str, Run)>,
    /// Ranges that no frontend asks for once `puts` are written.
    stale_ranges: Vec<(&'a str, u32, IpNetwork)>,
    /// Services that have lost a backend.
    losers: Vec<u32>,
    /// Ids of services that are gone.
    departed: Vec<u32>,
    /// Frontends that move from one service to another without a gap, with their previous owners.
    moved: BTreeMap<FrontendKey, u32>,
    /// Services some of whose frontends could not be deleted, and which are therefore unchanged.
    stuck: BTreeSet<&'a str>,
    /// Ids of services some of whose frontends could not be written.
    failed: BTreeSet<u32>,
    /// The first service for whose consistent choice there was no room, and the limit.
    without_table: Option<(&'a str, u32)>,
    /// The first error; the rest is done all the same.
    error: Option<DataPlaneError>,
}

impl Pass<'_> {
    fn fail(&mut self, error: DataPlaneError) {
        self.error.get_or_insert(error);
    }
}

impl<S: Store> Synchronizer<S> {
    /// Returns the names of the services in the tables, with their ids.
    pub fn service_ids(&self) -> impl Iterator<Item = (&str, u32)> {
        self.services.iter().map(|(name, service)| (&**name, service.id))
    }

    /// Makes the store hold `desired`, and nothing else.
    pub fn apply_full(&mut self, desired: &Tables) -> Result<Applied, DataPlaneError> {
        let gone: Vec<Box<str>> =
            self.services.keys().filter(|name| !desired.contains_key(&***name)).cloned().collect();
        let gone = gone.iter().map(|name| (&**name, None));
        let kept = desired.iter().map(|(name, tables)| (name.as_str(), Some(tables)));
        let changes: Vec<Change<'_>> = gone.chain(kept).collect();
        self.apply(&changes)
    }

    /// Makes the store's content for one service equal to `desired`.
    pub fn apply_service(
        &mut self,
        service: &str,
        desired: Option<&ServiceTables>,
    ) -> Result<Applied, DataPlaneError> {
        self.apply(&[(service, desired)])
    }

    fn apply(&mut self, changes: &[Change<'_>]) -> Result<Applied, DataPlaneError> {
        let mut pass = Pass::default();
        let gone = self.gone(changes);
        if changes.len() > 1 && !gone.is_empty() {
            pass.moved = moved(&gone, changes);
        }
        for (name, id, keys) in gone {
            self.delete_frontends(name, id, &keys, &mut pass);
        }
        for (name, desired) in changes {
            match desired {
                _ if pass.stuck.contains(name) => {}
                Some(desired) if !desired.frontends.is_empty() => self.plan(name, desired, &mut pass),
                _ => self.remove(name, &mut pass),
            }
            if pass.puts.len() >= FRONTENDS_AT_ONCE {
                self.write(&mut pass);
            }
        }
        self.write(&mut pass);
        // By now they have their new owners.
        pass.moved.clear();
        self.free_blocks(&mut pass);
        if let Some((service, limit)) = pass.without_table {
            tracing::warn!(
                service,
                limit,
                "no room for look-up tables (LUTS): connections move more when endpoints change"
            );
        }
        match pass.error {
            None => Ok(pass.applied),
            Some(error) => Err(error),
        }
    }

    /// Returns frontends that exist and are no longer desired, by service.
    fn gone<'a>(&self, changes: &[Change<'a>]) -> Vec<(&'a str, u32, Vec<FrontendKey>)> {
        let mut all = Vec::new();
        for (name, desired) in changes {
            let Some(service) = self.services.get(*name) else { continue };
            let mut wanted: Vec<FrontendKey> = desired
                .map(|tables| tables.frontends.iter().map(|frontend| frontend.key).collect())
                .unwrap_or_default();
            wanted.sort_unstable();
            let keys = service.frontends.iter().map(|(key, _)| *key);
            let keys: Vec<_> = keys.filter(|key| wanted.binary_search(key).is_err()).collect();
            if !keys.is_empty() {
                all.push((*name, service.id, keys));
            }
        }
        all
    }

    /// First step: deletes what is no longer desired, unless another service takes it over.
    fn delete_frontends<'a>(&mut self, name: &'a str, id: u32, gone: &[FrontendKey], pass: &mut Pass<'a>) {
        let Some(service) = self.services.get_mut(name) else {
            return;
        };
        let unwanted: Vec<FrontendKey> =
            gone.iter().filter(|key| !pass.moved.contains_key(key)).copied().collect();
        match self.store.delete_frontends(&unwanted, id) {
            Ok(deleted) => {
                pass.applied.frontends_deleted += deleted;
                service.frontends.retain(|(key, _)| gone.binary_search(key).is_err());
                pass.losers.push(id);
            }
            Err(error) => {
                pass.stuck.insert(name);
                pass.fail(error);
            }
        }
    }

    /// Forgets a service whose frontends have been deleted.
    fn remove<'a>(&mut self, name: &'a str, pass: &mut Pass<'a>) {
        // Those that could not be deleted stay; the error is recorded, and the next pass tries again.
        if self.services.get(name).is_none_or(|service| !service.frontends.is_empty()) {
            return;
        }
        let Some(service) = self.services.remove(name) else {
            return;
        };
        pass.obsolete.extend(service.runs.into_iter().map(|run| (name, run)));
        if let Some(extra) = service.extra {
            let stale = extra.source_ranges.into_iter().map(|range| (name, service.id, range));
            pass.stale_ranges.extend(stale);
        }
        pass.departed.push(service.id);
    }

    /// Writes the collected frontends, then frees what they no longer name.
    fn write(&mut self, pass: &mut Pass<'_>) {
        if let Err(error) = self.store.put_names(&pass.names) {
            pass.fail(error);
        }
        pass.names.clear();
        let puts = std::mem::take(&mut pass.puts);
        let refused = self.store.put_frontends(&puts);
        pass.applied.frontends_written += puts.len() - refused.len();
        if !refused.is_empty() {
            self.refused(&puts, refused, pass);
        }
        self.raise_epoch(pass);
        self.free_blocks(pass);
    }

    /// Frees the blocks, ranges and names that no frontend uses.
    fn free_blocks(&mut self, pass: &mut Pass<'_>) {
        if !pass.moved.is_empty() {
            // A frontend that has not moved yet names a block of its former service.
            return;
        }
        for (name, run) in std::mem::take(&mut pass.obsolete) {
            match self.services.get_mut(name) {
                // A frontend may still name it.
                Some(service) if pass.failed.contains(&service.id) => service.runs.push(run),
                _ => {
                    self.arenas[run.0.index()].free(run.1);
                    pass.applied.blocks_freed += usize::from(run.0 != Space::Luts);
                }
            }
        }
        self.delete_stale(pass);
    }

    /// Records what the store refused.
    fn refused(
        &mut self,
        puts: &[(FrontendKey, Frontend)],
        refused: Vec<(FrontendKey, DataPlaneError)>,
        pass: &mut Pass<'_>,
    ) {
        let owners: BTreeMap<FrontendKey, u32> =
            puts.iter().map(|(key, value)| (*key, value.service)).collect();
        let mut keys: BTreeMap<u32, BTreeSet<FrontendKey>> = BTreeMap::new();
        let mut first = None;
        for (key, error) in refused {
            let id = owners.get(&key).copied().unwrap_or_default();
            keys.entry(id).or_default().insert(key);
            first.get_or_insert((id, error));
            self.drop_moved(&key, pass);
        }
        for (name, service) in &mut self.services {
            let Some(keys) = keys.get(&service.id) else { continue };
            // Unknown now; written again by the next pass.
            service.frontends.retain(|(key, _)| !keys.contains(key));
            if let Some((id, error)) = first.take_if(|(id, _)| *id == service.id) {
                tracing::debug!(service = %name, id, "frontends refused");
                pass.fail(named(error, name));
            }
        }
        if let Some((_, error)) = first {
            pass.fail(error);
        }
        pass.failed.extend(keys.into_keys());
    }

    /// Deletes a frontend that its new service did not get: it must not go on naming blocks of the old one.
    fn drop_moved(&mut self, key: &FrontendKey, pass: &mut Pass<'_>) {
        if let Some(former) = pass.moved.remove(key) {
            match self.store.delete_frontends(&[*key], former) {
                Ok(deleted) => pass.applied.frontends_deleted += deleted,
                Err(error) => pass.fail(error),
            }
        }
    }

    /// Makes flows check that their backends still exist.
    fn raise_epoch(&mut self, pass: &mut Pass<'_>) {
        let losers = std::mem::take(&mut pass.losers);
        if losers.is_empty() {
            return;
        }
        let epoch = self.store.epoch().wrapping_add(1);
        losers.into_iter().for_each(|service| self.store.set_losses(service, epoch));
        self.store.set_epoch(epoch);
    }

    /// Last step: deletes what nothing names any more.
    fn delete_stale(&mut self, pass: &mut Pass<'_>) {
        let mut keep = BTreeSet::new();
        for (name, id, range) in std::mem::take(&mut pass.stale_ranges) {
            if let Err(error) = self.store.delete_source_range(id, &range) {
                pass.fail(named(error, name));
                keep.insert(id);
                if let Some(service) = self.services.get_mut(name) {
                    // Found and tried again by the next pass.
                    service.extra.get_or_insert_default().source_ranges.push(range);
                }
            }
        }
        for id in std::mem::take(&mut pass.departed) {
            match self.store.delete_name(id) {
                // With a range left over, the id would give the range to another service.
                Ok(()) if !keep.contains(&id) => drop(self.free_ids.insert(id)),
                Ok(()) => {}
                Err(error) => pass.fail(error),
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

/// Returns those of the old frontends that another service is to have.
fn moved(gone: &[(&str, u32, Vec<FrontendKey>)], changes: &[Change<'_>]) -> BTreeMap<FrontendKey, u32> {
    let owners: BTreeMap<FrontendKey, u32> =
        gone.iter().flat_map(|(_, id, keys)| keys.iter().map(|key| (*key, *id))).collect();
    let wanted = changes.iter().filter_map(|(_, desired)| *desired).flat_map(|tables| &tables.frontends);
    wanted.filter_map(|frontend| owners.get_key_value(&frontend.key)).map(|(key, id)| (*key, *id)).collect()
}

/// Adds the name of the service to an error.
fn named(error: DataPlaneError, name: &str) -> DataPlaneError {
    match error {
        DataPlaneError::Full { map, limit, .. } => {
            DataPlaneError::Full { service: name.to_owned(), map, limit }
        }
        other => other,
    }
}
