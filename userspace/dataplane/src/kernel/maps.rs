//! The kernel's maps as a [`Store`].

use std::io;
use std::mem::offset_of;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use ebpf_common::flow::{Flow4, Flow6};
use ebpf_common::frontend::{Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6, Lut, SourceRangeKey};
use ebpf_common::{Config as NodeConfig, ServiceMetrics, config_flag};
use ipnetwork::IpNetwork;

use super::{bandwidth, failed, masquerade, node, policy};
use crate::arena::Block;
use crate::convert::{self, RawKey, RawRange};
use crate::inspect;
use crate::map::{self, HashTable, MappedArray, Name};
use crate::policy::PolicyTables;
use crate::store::{Contents, Family, Refused, Space, Store};
use crate::sys;
use crate::tables::{Backend, Bandwidths, DataPlaneError, FrontendKey, NodeTables, Protocol, Scope};

/// Typed access to the pinned maps that hold the tables.
pub struct Maps {
    frontends4: HashTable<FrontendKey4, Frontend>,
    frontends6: HashTable<FrontendKey6, Frontend>,
    backends4: MappedArray<Backend4>,
    backends6: MappedArray<Backend6>,
    luts: MappedArray<u64>,
    losses: MappedArray<u64>,
    source_ranges4: HashTable<SourceRangeKey<u32>, u32>,
    source_ranges6: HashTable<SourceRangeKey<[u32; 4]>, u32>,
    names: HashTable<u32, Name>,
    counters: MappedArray<ServiceMetrics>,
    local4: HashTable<u32, u32>,
    local6: HashTable<[u32; 4], u32>,
    exempt: HashTable<u64, u64>,
    config: MappedArray<NodeConfig>,
    masquerade: masquerade::Maps,
    policy: policy::Maps,
    bandwidth: bandwidth::Maps,
    /// Slots of `FLOWS4` and of `FLOWS6`.
    flows: [u32; 2],
}

impl Maps {
    /// Opens the maps pinned in `directory`.
    pub fn open(directory: &Path) -> Result<Self, DataPlaneError> {
        let at = |name: &str| directory.join(name);
        let to = |name: &'static str| move |error: io::Error| failed(format!("opening map {name}"), error);
        Ok(Self {
            frontends4: HashTable::open(&at("FRONTENDS4")).map_err(to("FRONTENDS4"))?,
            frontends6: HashTable::open(&at("FRONTENDS6")).map_err(to("FRONTENDS6"))?,
            backends4: MappedArray::open(&at("BACKENDS4"), true).map_err(to("BACKENDS4"))?,
            backends6: MappedArray::open(&at("BACKENDS6"), true).map_err(to("BACKENDS6"))?,
            luts: MappedArray::open(&at("LUTS"), true).map_err(to("LUTS"))?,
            source_ranges4: HashTable::open(&at("SOURCE_RANGES4")).map_err(to("SOURCE_RANGES4"))?,
            source_ranges6: HashTable::open(&at("SOURCE_RANGES6")).map_err(to("SOURCE_RANGES6"))?,
            losses: MappedArray::open(&at("LOSSES"), true).map_err(to("LOSSES"))?,
            names: HashTable::open(&at("SERVICE_NAMES")).map_err(to("SERVICE_NAMES"))?,
            counters: MappedArray::open(&at("SERVICE_METRICS"), true).map_err(to("SERVICE_METRICS"))?,
            local4: HashTable::open(&at("LOCAL_ADDRS4")).map_err(to("LOCAL_ADDRS4"))?,
            local6: HashTable::open(&at("LOCAL_ADDRS6")).map_err(to("LOCAL_ADDRS6"))?,
            exempt: HashTable::open(&at("EXEMPT")).map_err(to("EXEMPT"))?,
            flows: [
                map::length::<Flow4>(&at("FLOWS4")).map_err(to("FLOWS4"))?,
                map::length::<Flow6>(&at("FLOWS6")).map_err(to("FLOWS6"))?,
            ],
            config: MappedArray::open(&at("CONFIG"), true).map_err(to("CONFIG"))?,
            masquerade: masquerade::Maps::open(directory)?,
            policy: policy::Maps::open(directory)?,
            bandwidth: bandwidth::Maps::open(directory)?,
        })
    }

    /// Returns the node's settings as programs see them.
    pub fn config(&self) -> NodeConfig {
        self.config.get(0)
    }

    /// Replaces the node's settings. Programs may see some fields of the old and some of the new.
    pub fn set_config(&mut self, config: NodeConfig) {
        if self.config.get(0) != config {
            self.config.set(0, config);
        }
    }

    /// Returns the settings that a process starts with; `seed` is used if there is none yet.
    pub fn first_settings(&self, seed: u32) -> NodeConfig {
        node::first_settings(self.config(), self.flows[0], self.flows[1], seed)
    }

    /// Writes the node's own settings.
    pub fn set_node(&mut self, tables: &NodeTables) -> Result<(), DataPlaneError> {
        let (mut local4, mut local6) = (Vec::new(), Vec::new());
        for address in &tables.addresses {
            match address {
                IpAddr::V4(address) => local4.push(convert::word(*address)),
                IpAddr::V6(address) => local6.push(convert::words(*address)),
            }
        }
        let exempt: Vec<u64> = tables.exempt.iter().copied().collect();
        node::replace(&self.local4, &local4, 1, "LOCAL_ADDRS4")?;
        node::replace(&self.local6, &local6, 1, "LOCAL_ADDRS6")?;
        node::replace(&self.exempt, &exempt, 1, "EXEMPT")?;
        let mut settings = node::with_node(self.config(), tables);
        settings.flags = node::flag(settings.flags, config_flag::EXEMPTIONS, !exempt.is_empty());
        let wanted = tables.masquerade.is_some();
        let mut changed = wanted != (settings.flags & config_flag::MASQUERADE != 0);
        if let Some(tables) = &tables.masquerade {
            changed |= self.masquerade.write(tables)?;
        }
        settings.flags = node::flag(settings.flags, config_flag::MASQUERADE, wanted);
        if changed || wanted && snat_differs(&settings, &self.config()) {
            // Datagrams of flows that exist are looked up again.
            settings.epoch = settings.epoch.wrapping_add(1);
        }
        self.set_config(settings);
        Ok(())
    }

    /// Writes what policies allow. Programs look at it once it is written, and no longer before it goes.
    pub fn set_policies(&mut self, tables: &PolicyTables) -> Result<(), DataPlaneError> {
        self.policy.write(tables, inspect::tick_now())?;
        let mut settings = self.config();
        settings.flags = node::flag(settings.flags, config_flag::POLICY, !tables.endpoints.is_empty());
        self.set_config(settings);
        Ok(())
    }

    /// Writes what pods may send and receive.
    pub fn set_bandwidths(&mut self, limits: &Bandwidths) -> Result<(), DataPlaneError> {
        self.bandwidth.write(limits)
    }

    /// Returns all backends that an address and port lead to, for inside and outside; `None` if they are not
    /// a service's.
    pub fn candidates(
        &self,
        end: (IpAddr, u16),
        protocol: Protocol,
    ) -> io::Result<Option<Vec<(IpAddr, u16)>>> {
        let everywhere = self.is_local(end.0)?.then(|| convert::unspecified(end.0));
        let mut found: Option<Vec<_>> = None;
        for address in [Some(end.0), everywhere].into_iter().flatten() {
            for scope in [Scope::Internal, Scope::External] {
                let key = FrontendKey { address, port: end.1, protocol, scope };
                let value = match convert::raw_key(&key) {
                    RawKey::V4(key) => self.frontends4.get(&key)?,
                    RawKey::V6(key) => self.frontends6.get(&key)?,
                };
                if let Some(value) = value {
                    found.get_or_insert_default().extend(self.ends(address.is_ipv4(), &value));
                }
            }
        }
        Ok(found)
    }

    fn ends(&self, v4: bool, frontend: &Frontend) -> Vec<(IpAddr, u16)> {
        let start = frontend.block() as usize;
        let places = |length: usize| start.min(length)..(start + usize::from(frontend.count())).min(length);
        let of = |backend: Backend| (backend.address, backend.port);
        if v4 {
            places(self.backends4.len()).map(|at| of(convert::backend4(&self.backends4.get(at)))).collect()
        } else {
            places(self.backends6.len()).map(|at| of(convert::backend6(&self.backends6.get(at)))).collect()
        }
    }

    /// Returns `true` if the address serves node ports.
    pub fn is_local(&self, address: IpAddr) -> io::Result<bool> {
        let found = match address {
            IpAddr::V4(address) => self.local4.get(&convert::word(address))?,
            IpAddr::V6(address) => self.local6.get(&convert::words(address))?,
        };
        Ok(found.is_some() || address.is_loopback())
    }

    /// Switches flags on or off; they are one word, which programs read atomically.
    pub fn switch(&mut self, flags: u32, on: bool) {
        let mut config = self.config();
        config.flags = node::flag(config.flags, flags, on);
        self.set_config(config);
    }

    /// Widens the range of wildcard ports before a frontend in it appears.
    fn note_wildcards<'a>(&mut self, keys: impl Iterator<Item = &'a FrontendKey>) {
        let mut config = self.config.get(0);
        for key in keys.filter(|key| key.address.is_unspecified()) {
            config.wildcard_port_min = config.wildcard_port_min.min(key.port);
            config.wildcard_port_max = config.wildcard_port_max.max(key.port);
        }
        self.set_config(config);
    }
}

/// Returns `true` if packets of pods get another source by these settings than by those.
fn snat_differs(these: &NodeConfig, those: &NodeConfig) -> bool {
    (these.snat_address4, these.snat_address6) != (those.snat_address4, those.snat_address6)
}

/// Packs four entries of a look-up table into one element, the first in the lowest bits.
fn packed(four: &[u16]) -> u64 {
    four.iter().rev().fold(0, |element, entry| element << 16 | u64::from(*entry))
}

/// Inserts all entries. An entry that the kernel refuses is recorded and skipped.
fn put<K: crate::map::Plain>(
    map: &HashTable<K, Frontend>,
    name: &'static str,
    entries: &[(FrontendKey, K, Frontend)],
    refused: &mut Refused,
) {
    let keys: Vec<K> = entries.iter().map(|(_, key, _)| *key).collect();
    let values: Vec<Frontend> = entries.iter().map(|(.., value)| *value).collect();
    let mut done = 0;
    while let Err((count, error)) = map.insert_all(&keys[done..], &values[done..]) {
        let index = done + count;
        let Some((key, ..)) = entries.get(index) else {
            break;
        };
        let limit = map.max_entries();
        refused.push((
            *key,
            match error.raw_os_error() {
                Some(libc::E2BIG | libc::ENOSPC | libc::ENOMEM) => {
                    DataPlaneError::Full { service: String::new(), map: name, limit }
                }
                _ => failed(format!("writing frontend {key:?} to map {name}"), error),
            },
        ));
        done = index + 1;
    }
}

impl Store for Maps {
    fn read(&mut self) -> Result<Contents, DataPlaneError> {
        let to = |name: &'static str| move |error: io::Error| failed(format!("reading map {name}"), error);
        let frontends4 = self.frontends4.read_all().map_err(to("FRONTENDS4"))?;
        let frontends6 = self.frontends6.read_all().map_err(to("FRONTENDS6"))?;
        let names = self.names.read_all().map_err(to("SERVICE_NAMES"))?;
        let v4 = frontends4.iter().filter_map(|(key, value)| {
            (value.check == value.checksum(key.fold())).then_some(())?;
            Some((convert::key4(key)?, *value))
        });
        let v6 = frontends6.iter().filter_map(|(key, value)| {
            (value.check == value.checksum(key.fold())).then_some(())?;
            Some((convert::key6(key)?, *value))
        });
        let ranges4 = self.source_ranges4.keys().map_err(to("SOURCE_RANGES4"))?;
        let ranges6 = self.source_ranges6.keys().map_err(to("SOURCE_RANGES6"))?;
        Ok(Contents {
            source_ranges: ranges4
                .iter()
                .map(|key| (key.service, convert::range4(key)))
                .chain(ranges6.iter().map(|key| (key.service, convert::range6(key))))
                .collect(),
            frontends: v4.chain(v6).collect(),
            names: names.iter().map(|(id, name)| (*id, name.text())).collect(),
        })
    }

    fn units(&self, space: Space) -> u32 {
        let elements = match space {
            Space::Backends(Family::V4) => self.backends4.len(),
            Space::Backends(Family::V6) => self.backends6.len(),
            Space::Luts => self.luts.len(),
        };
        elements as u32 / space.unit()
    }

    fn services(&self) -> u32 {
        self.losses.len() as u32
    }

    fn write_block(&mut self, family: Family, block: Block, backends: &[Backend]) {
        let places = block.start as usize..;
        match family {
            Family::V4 => places
                .zip(backends.iter().filter_map(convert::raw_backend4))
                .for_each(|(place, raw)| self.backends4.set(place, raw)),
            Family::V6 => places
                .zip(backends.iter().filter_map(convert::raw_backend6))
                .for_each(|(place, raw)| self.backends6.set(place, raw)),
        }
        // The block is complete before any frontend that names it: the system call that writes the frontend
        // orders the stores.
        fence(Ordering::SeqCst);
    }

    fn block_equals(&self, family: Family, block: Block, backends: &[Backend]) -> bool {
        let places = block.start as usize..(block.start + block.length) as usize;
        if places.len() != backends.len() {
            return false;
        }
        let mut pairs = places.zip(backends);
        match family {
            Family::V4 => {
                pairs.all(|(place, one)| convert::raw_backend4(one) == Some(self.backends4.get(place)))
            }
            Family::V6 => {
                pairs.all(|(place, one)| convert::raw_backend6(one) == Some(self.backends6.get(place)))
            }
        }
    }

    fn block_within(&self, family: Family, block: Block, other: Block) -> bool {
        let places = |block: Block| block.start as usize..(block.start + block.length) as usize;
        match family {
            Family::V4 => {
                let ends = |place| {
                    let backend = self.backends4.get(place);
                    (backend.address, backend.port)
                };
                let mut others = places(other).map(ends);
                places(block).map(ends).all(|end| others.any(|other| other == end))
            }
            Family::V6 => {
                let ends = |place| {
                    let backend = self.backends6.get(place);
                    (backend.address, backend.port)
                };
                let mut others = places(other).map(ends);
                places(block).map(ends).all(|end| others.any(|other| other == end))
            }
        }
    }

    fn write_lut(&mut self, lut: Lut, entries: &[u16]) {
        for (place, four) in (lut.start as usize..).zip(entries.chunks_exact(4)) {
            self.luts.set(place, packed(four));
        }
        fence(Ordering::SeqCst);
    }

    fn lut_equals(&self, lut: Lut, entries: &[u16]) -> bool {
        let mut places = (lut.start as usize..).zip(entries.chunks_exact(4));
        places.all(|(place, four)| place < self.luts.len() && self.luts.get(place) == packed(four))
    }

    fn put_frontends(&mut self, frontends: &[(FrontendKey, Frontend)]) -> Refused {
        self.note_wildcards(frontends.iter().map(|(key, _)| key));
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (key, value) in frontends {
            match convert::raw_key(key) {
                RawKey::V4(raw) => v4.push((*key, raw, value.sealed(raw.fold()))),
                RawKey::V6(raw) => v6.push((*key, raw, value.sealed(raw.fold()))),
            }
        }
        let mut refused = Refused::new();
        put(&self.frontends4, "FRONTENDS4", &v4, &mut refused);
        put(&self.frontends6, "FRONTENDS6", &v6, &mut refused);
        refused
    }

    fn delete_frontends(&mut self, keys: &[FrontendKey], service: u32) -> Result<usize, DataPlaneError> {
        let mut deleted = 0;
        for key in keys {
            let to = |error| failed(format!("deleting frontend {key:?}"), error);
            // Another service may have taken the address meanwhile.
            let removed = match convert::raw_key(key) {
                RawKey::V4(raw) => {
                    let ours = self.frontends4.get(&raw).map_err(to)?.is_some_and(|v| v.service == service);
                    ours && self.frontends4.remove(&raw).map_err(to)?
                }
                RawKey::V6(raw) => {
                    let ours = self.frontends6.get(&raw).map_err(to)?.is_some_and(|v| v.service == service);
                    ours && self.frontends6.remove(&raw).map_err(to)?
                }
            };
            deleted += usize::from(removed);
        }
        Ok(deleted)
    }

    fn put_source_range(&mut self, service: u32, range: &IpNetwork) -> Result<(), DataPlaneError> {
        let full = |map, limit| {
            move |error: io::Error| match error.raw_os_error() {
                Some(libc::E2BIG | libc::ENOSPC | libc::ENOMEM) => {
                    DataPlaneError::Full { service: String::new(), map, limit }
                }
                _ => failed(format!("writing range {range} of service {service} to map {map}"), error),
            }
        };
        let (v4, v6) = (&self.source_ranges4, &self.source_ranges6);
        match convert::raw_range(service, range) {
            RawRange::V4(key) => v4.insert(&key, &1).map_err(full("SOURCE_RANGES4", v4.max_entries())),
            RawRange::V6(key) => v6.insert(&key, &1).map_err(full("SOURCE_RANGES6", v6.max_entries())),
        }
    }

    fn delete_source_range(&mut self, service: u32, range: &IpNetwork) -> Result<(), DataPlaneError> {
        let deleted = match convert::raw_range(service, range) {
            RawRange::V4(key) => self.source_ranges4.remove(&key),
            RawRange::V6(key) => self.source_ranges6.remove(&key),
        };
        deleted
            .map(drop)
            .map_err(|error| failed(format!("deleting range {range} of service {service}"), error))
    }

    fn put_names(&mut self, names: &[(u32, &str)]) -> Result<(), DataPlaneError> {
        let ids: Vec<u32> = names.iter().map(|(id, _)| *id).collect();
        let texts: Vec<Name> = names.iter().map(|(_, name)| Name::new(name)).collect();
        self.names.insert_all(&ids, &texts).map_err(|(done, error)| {
            let name = names.get(done).map_or("", |(_, name)| *name);
            failed(format!("{name}: writing map SERVICE_NAMES"), error)
        })
    }

    fn delete_name(&mut self, service: u32) -> Result<(), DataPlaneError> {
        let result = self.names.remove(&service);
        result.map_err(|error| failed(format!("deleting name of service {service}"), error))?;
        // The next service with this id starts from zero.
        for stripe in 0..ServiceMetrics::STRIPES {
            let place = ServiceMetrics::place(service, stripe) as usize;
            if place < self.counters.len() {
                self.counters.set(place, ServiceMetrics::default());
            }
        }
        Ok(())
    }

    fn epoch(&self) -> u32 {
        self.config().epoch
    }

    fn set_losses(&mut self, service: u32, epoch: u32) {
        self.losses.set(service as usize, u64::from(epoch));
    }

    fn set_epoch(&mut self, epoch: u32) {
        fence(Ordering::SeqCst);
        // A single word: programs never read it half written.
        self.config.set_word(0, offset_of!(NodeConfig, epoch), epoch);
    }

    fn grace_period(&mut self) {
        sys::grace_period();
    }
}
