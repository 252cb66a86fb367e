//! Maps in memory.

use std::collections::{BTreeMap, BTreeSet};

use ebpf_common::frontend::{Frontend, Lut};
use ipnetwork::IpNetwork;

use super::FakeLimits;
use crate::arena::Block;
use crate::store::{Contents, Family, Refused, Space, Store};
use crate::tables::{Backend, DataPlaneError, FrontendKey};

/// The content of the kernel's maps, as plain collections.
#[derive(Clone, Default)]
pub struct Memory {
    pub limits: FakeLimits,
    pub frontends: BTreeMap<FrontendKey, Frontend>,
    /// Backends with their weights, which programs do not have: tests see the weights that were given.
    pub backends: BTreeMap<(Family, u32), Backend>,
    /// Entries, four to an element.
    pub luts: BTreeMap<u32, u16>,
    pub names: BTreeMap<u32, String>,
    pub source_ranges: BTreeSet<(u32, IpNetwork)>,
    pub losses: BTreeMap<u32, u32>,
    pub epoch: u32,
    pub grace_periods: usize,
    /// Writes until the process dies; `None` if it does not.
    #[cfg(test)]
    pub writes_left: Option<usize>,
}

impl Memory {
    pub fn new(limits: FakeLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Returns the entry that a hash leads to.
    pub fn entry(&self, lut: Lut, hash: u32) -> u32 {
        let (element, place) = lut.place(hash);
        u32::from(self.luts.get(&(4 * element + place)).copied().unwrap_or_default())
    }

    fn is_full(&self, family: Family) -> bool {
        let limit = self.limits.frontends as usize;
        let of_family = |key: &&FrontendKey| Family::of(key) == family;
        // The total of both families is a quick first test.
        self.frontends.len() >= limit && self.frontends.keys().filter(of_family).count() >= limit
    }

    /// Counts a write, and returns `false` if the process has died before it.
    fn lives(&mut self) -> bool {
        #[cfg(test)]
        if let Some(left) = &mut self.writes_left {
            if *left == 0 {
                return false;
            }
            *left -= 1;
        }
        true
    }

    fn ends(&self, family: Family, block: Block) -> impl Iterator<Item = Option<(std::net::IpAddr, u16)>> {
        (block.start..block.start + block.length)
            .map(move |index| self.backends.get(&(family, index)).map(|one| (one.address, one.port)))
    }
}

impl Store for Memory {
    fn read(&mut self) -> Result<Contents, DataPlaneError> {
        Ok(Contents {
            frontends: self.frontends.iter().map(|(key, value)| (*key, *value)).collect(),
            names: self.names.iter().map(|(id, name)| (*id, name.clone())).collect(),
            source_ranges: self.source_ranges.iter().copied().collect(),
        })
    }

    fn units(&self, space: Space) -> u32 {
        match space {
            Space::Backends(_) => self.limits.backends,
            Space::Luts => self.limits.luts / space.unit(),
        }
    }

    fn services(&self) -> u32 {
        self.limits.services
    }

    fn write_block(&mut self, family: Family, block: Block, backends: &[Backend]) {
        assert_eq!(block.length as usize, backends.len(), "a block holds exactly its backends");
        for (index, backend) in (block.start..).zip(backends) {
            if self.lives() {
                self.backends.insert((family, index), *backend);
            }
        }
    }

    fn block_equals(&self, family: Family, block: Block, backends: &[Backend]) -> bool {
        let range = block.start..block.start + block.length;
        range.zip(backends).all(|(index, backend)| self.backends.get(&(family, index)) == Some(backend))
    }

    fn block_within(&self, family: Family, block: Block, other: Block) -> bool {
        self.ends(family, block)
            .all(|end| end.is_some() && self.ends(family, other).any(|other| other == end))
    }

    fn write_lut(&mut self, lut: Lut, entries: &[u16]) {
        for (index, entry) in (4 * lut.start..).zip(entries) {
            if self.lives() {
                self.luts.insert(index, *entry);
            }
        }
    }

    fn lut_equals(&self, lut: Lut, entries: &[u16]) -> bool {
        (4 * lut.start..).zip(entries).all(|(index, entry)| self.luts.get(&index) == Some(entry))
    }

    fn put_frontends(&mut self, frontends: &[(FrontendKey, Frontend)]) -> Refused {
        let mut refused = Refused::new();
        for (key, value) in frontends {
            let limit = self.limits.frontends;
            if self.is_full(Family::of(key)) && !self.frontends.contains_key(key) {
                let map = if key.address.is_ipv4() { "FRONTENDS4" } else { "FRONTENDS6" };
                refused.push((*key, DataPlaneError::Full { service: String::new(), map, limit }));
            } else if self.lives() {
                self.frontends.insert(*key, *value);
            }
        }
        refused
    }

    fn delete_frontends(&mut self, keys: &[FrontendKey], service: u32) -> Result<usize, DataPlaneError> {
        let before = self.frontends.len();
        for key in keys {
            if self.frontends.get(key).is_some_and(|value| value.service == service) && self.lives() {
                self.frontends.remove(key);
            }
        }
        Ok(before - self.frontends.len())
    }

    fn put_source_range(&mut self, service: u32, range: &IpNetwork) -> Result<(), DataPlaneError> {
        let limit = self.limits.source_ranges;
        let of_family = |(_, other): &&(u32, IpNetwork)| other.is_ipv4() == range.is_ipv4();
        let present = self.source_ranges.iter().filter(of_family).count();
        if present >= limit as usize && !self.source_ranges.contains(&(service, *range)) {
            let map = if range.is_ipv4() { "SOURCE_RANGES4" } else { "SOURCE_RANGES6" };
            return Err(DataPlaneError::Full { service: String::new(), map, limit });
        }
        if self.lives() {
            self.source_ranges.insert((service, *range));
        }
        Ok(())
    }

    fn delete_source_range(&mut self, service: u32, range: &IpNetwork) -> Result<(), DataPlaneError> {
        if self.lives() {
            self.source_ranges.remove(&(service, *range));
        }
        Ok(())
    }

    fn put_names(&mut self, names: &[(u32, &str)]) -> Result<(), DataPlaneError> {
        for (id, name) in names {
            if self.lives() {
                self.names.insert(*id, (*name).to_owned());
            }
        }
        Ok(())
    }

    fn delete_name(&mut self, service: u32) -> Result<(), DataPlaneError> {
        if self.lives() {
            self.names.remove(&service);
        }
        Ok(())
    }

    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn set_losses(&mut self, service: u32, epoch: u32) {
        if self.lives() {
            self.losses.insert(service, epoch);
        }
    }

    fn set_epoch(&mut self, epoch: u32) {
        if self.lives() {
            self.epoch = epoch;
        }
    }

    fn grace_period(&mut self) {
        self.grace_periods += 1;
    }
}
