//! Adoption of the tables of an earlier process.

use std::collections::{BTreeMap, BTreeSet};

use ebpf_common::frontend::{Frontend, Lut};
use ipnetwork::IpNetwork;

use super::{Extra, Run, Service, Synchronizer, Value};
use crate::arena::{Arena, Block};
use crate::store::{Family, Space, Store, lut_block};
use crate::tables::{DataPlaneError, FrontendKey};

/// The content found for one service.
#[derive(Default)]
struct Found {
    frontends: Vec<(FrontendKey, Frontend)>,
    source_ranges: Vec<IpNetwork>,
}

impl<S: Store> Synchronizer<S> {
    /// Adopts the content of the store.
    pub fn new(mut store: S) -> Result<Self, DataPlaneError> {
        let contents = store.read()?;
        let mut arenas = Space::ALL.map(|space| Arena::new(store.units(space)));
        // Element 0 of the look-up tables is unused: the word for no table would name it.
        arenas[Space::Luts.index()].reserve(Block { start: 0, length: 1 });
        let mut this =
            Self { store, services: BTreeMap::new(), arenas, free_ids: BTreeSet::new(), next_id: 1 };
        let names: BTreeMap<u32, String> = contents.names.into_iter().collect();
        let mut by_id: BTreeMap<u32, Found> = BTreeMap::new();
        for id in names.keys() {
            by_id.entry(*id).or_default();
        }
        for (key, value) in contents.frontends {
            by_id.entry(value.service).or_default().frontends.push((key, value));
        }
        for (id, range) in contents.source_ranges {
            by_id.entry(id).or_default().source_ranges.push(range);
        }
        let epoch = this.store.epoch().wrapping_add(1);
        let limit = this.store.services();
        for (id, found) in by_id {
            if id >= limit {
                // Foreign content; nothing of it can be used.
                continue;
            }
            // A name that no object has: the first full apply removes the service.
            let name = names.get(&id).cloned().unwrap_or_else(|| format!("?{id}"));
            this.adopt(id, name.into(), found);
            // The earlier process may have died between replacing a frontend and recording the loss: all
            // flows check once.
            this.store.set_losses(id, epoch);
        }
        this.store.set_epoch(epoch);
        Ok(this)
    }

    fn adopt(&mut self, id: u32, name: Box<str>, found: Found) {
        let Found { mut frontends, mut source_ranges } = found;
        frontends.sort_by_key(|(key, _)| *key);
        source_ranges.sort_unstable();
        let mut runs: BTreeSet<Run> = BTreeSet::new();
        let mut values = Vec::with_capacity(frontends.len());
        for (key, frontend) in &frontends {
            let Frontend { switch, lut, affinity, .. } = *frontend;
            let value = Value { switch, lut, affinity };
            values.push((*key, value));
            runs.extend(value.block().map(|block| (Space::Backends(Family::of(key)), block)));
            runs.extend(Lut::unpack(lut).and_then(lut_block).map(|block| (Space::Luts, block)));
        }
        // A block that overlaps another is not reused: its frontends get a new one.
        let runs = runs.into_iter().filter(|(space, block)| self.arenas[space.index()].reserve(*block));
        let runs = runs.collect();
        self.free_ids.extend(self.next_id..id);
        self.next_id = self.next_id.max(id.saturating_add(1));
        self.free_ids.remove(&id);
        let extra = (!source_ranges.is_empty()).then(|| Box::new(Extra { luts: Vec::new(), source_ranges }));
        self.services.insert(name, Service { id, frontends: values, runs, extra });
    }
}
