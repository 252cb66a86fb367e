//! The kernel's maps as a [`Store`].

use std::io;
use std::net::IpAddr;
use std::path::Path;

use ebpf_common::flow::{Flow4, Flow6};
use ebpf_common::frontend::{Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6};
use ebpf_common::{Config as NodeConfig, ServiceMetrics, config_flag};

use super::{failed, node};
use crate::arena::Block;
use crate::convert::{self, RawKey};
use crate::map::{self, HashTable, MappedArray, Name, PerProcessor};
use crate::store::{Contents, Family, Refused, Store};
use crate::sys;
use crate::tables::{Backend, DataPlaneError, FrontendKey, NodeTables};

/// Typed access to the pinned maps that hold the tables.
pub struct Maps {
    frontends4: HashTable<FrontendKey4, Frontend>,
    frontends6: HashTable<FrontendKey6, Frontend>,
    backends4: MappedArray<Backend4>,
    backends6: MappedArray<Backend6>,
    losses: MappedArray<u64>,
    names: HashTable<u32, Name>,
    counters: PerProcessor<ServiceMetrics>,
    local4: HashTable<u32, u32>,
    local6: HashTable<[u32; 4], u32>,
    exempt: HashTable<u64, u64>,
    config: MappedArray<NodeConfig>,
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
            losses: MappedArray::open(&at("LOSSES"), true).map_err(to("LOSSES"))?,
            names: HashTable::open(&at("SERVICE_NAMES")).map_err(to("SERVICE_NAMES"))?,
            counters: PerProcessor::open(&at("SERVICE_METRICS")).map_err(to("SERVICE_METRICS"))?,
            local4: HashTable::open(&at("LOCAL_ADDRS4")).map_err(to("LOCAL_ADDRS4"))?,
            local6: HashTable::open(&at("LOCAL_ADDRS6")).map_err(to("LOCAL_ADDRS6"))?,
            exempt: HashTable::open(&at("EXEMPT")).map_err(to("EXEMPT"))?,
            flows: [
                map::length::<Flow4>(&at("FLOWS4")).map_err(to("FLOWS4"))?,
                map::length::<Flow6>(&at("FLOWS6")).map_err(to("FLOWS6"))?,
            ],
            config: MappedArray::open(&at("CONFIG"), true).map_err(to("CONFIG"))?,
        })
    }

    /// The node's settings as programs see them.
    pub fn config(&self) -> NodeConfig {
        self.config.get(0)
    }

    /// Replaces the node's settings. Programs may see some fields of the old and some of the new.
    pub fn set_config(&mut self, config: NodeConfig) {
        if self.config.get(0) != config {
            self.config.set(0, config);
        }
    }

    /// The settings that a process begins with; `seed` is used where there is none yet.
    pub fn first_settings(&self, seed: u32) -> NodeConfig {
        node::first_settings(self.config(), self.flows[0], self.flows[1], seed)
    }

    /// Writes what the node says of itself.
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
        self.set_config(settings);
        Ok(())
    }

    /// Widens the range of wildcard ports before a frontend there appears.
    fn note_wildcards<'a>(&mut self, keys: impl Iterator<Item = &'a FrontendKey>) {
        let mut config = self.config.get(0);
        for key in keys.filter(|key| key.address.is_unspecified()) {
            config.wildcard_port_min = config.wildcard_port_min.min(key.port);
            config.wildcard_port_max = config.wildcard_port_max.max(key.port);
        }
        self.set_config(config);
    }
}

/// The v4 backends in the order of a block.
fn sorted4(backends: &[Backend]) -> Vec<Backend4> {
    let mut raw: Vec<Backend4> = backends.iter().filter_map(convert::raw_backend4).collect();
    raw.sort_unstable_by_key(|backend| (Backend4::order(backend.address, backend.port), *backend));
    raw
}

/// As [`sorted4`].
fn sorted6(backends: &[Backend]) -> Vec<Backend6> {
    let mut raw: Vec<Backend6> = backends.iter().filter_map(convert::raw_backend6).collect();
    raw.sort_unstable_by_key(|backend| (Backend6::order(&backend.address, backend.port), *backend));
    raw
}

/// Inserts all; where one is refused, notes it and goes on with the rest.
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
        Ok(Contents {
            frontends: v4.chain(v6).collect(),
            names: names.iter().map(|(id, name)| (*id, name.text())).collect(),
        })
    }

    fn arena(&self, family: Family) -> u32 {
        match family {
            Family::V4 => self.backends4.len() as u32,
            Family::V6 => self.backends6.len() as u32,
        }
    }

    fn services(&self) -> u32 {
        self.losses.len() as u32
    }

    fn write_block(&mut self, family: Family, block: Block, backends: &[Backend]) {
        let start = block.start as usize;
        match family {
            Family::V4 => {
                for (offset, raw) in sorted4(backends).into_iter().enumerate() {
                    self.backends4.set(start + offset, raw);
                }
            }
            Family::V6 => {
                for (offset, raw) in sorted6(backends).into_iter().enumerate() {
                    self.backends6.set(start + offset, raw);
                }
            }
        }
        // The block is complete before any frontend that names it: the system call that writes
        // the frontend orders the stores.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    fn block_equals(&self, family: Family, block: Block, backends: &[Backend]) -> bool {
        let places = block.start as usize..(block.start + block.length) as usize;
        if places.len() != backends.len() {
            return false;
        }
        match family {
            Family::V4 => places.zip(sorted4(backends)).all(|(place, raw)| self.backends4.get(place) == raw),
            Family::V6 => places.zip(sorted6(backends)).all(|(place, raw)| self.backends6.get(place) == raw),
        }
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

    fn put_name(&mut self, service: u32, name: &str) -> Result<(), DataPlaneError> {
        self.names
            .insert(&service, &Name::new(name))
            .map_err(|error| failed(format!("{name}: writing map SERVICE_NAMES"), error))
    }

    fn delete_name(&mut self, service: u32) -> Result<(), DataPlaneError> {
        let result = self.names.remove(&service);
        result.map_err(|error| failed(format!("deleting name of service {service}"), error))?;
        // The next service with this id counts from zero.
        let result = self.counters.clear(service);
        result.map_err(|error| failed(format!("clearing counters of service {service}"), error))
    }

    fn epoch(&self) -> u32 {
        self.config().epoch
    }

    fn set_losses(&mut self, service: u32, epoch: u32) {
        self.losses.set(service as usize, u64::from(epoch));
    }

    fn set_epoch(&mut self, epoch: u32) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.set_config(NodeConfig { epoch, ..self.config() });
    }

    fn grace_period(&mut self) {
        sys::grace_period();
    }
}
