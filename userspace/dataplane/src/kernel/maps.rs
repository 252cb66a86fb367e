//! The kernel's maps as a [`Store`].

use std::io;
use std::net::IpAddr;
use std::path::Path;

use ebpf_common::frontend::{Backend4, Backend6, Frontend, FrontendKey4, FrontendKey6};
use ebpf_common::{Config as NodeConfig, ServiceMetrics};

use super::failed;
use crate::arena::Block;
use crate::convert::{self, RawKey};
use crate::map::{HashTable, MappedArray, Name, PerProcessor};
use crate::store::{Contents, Family, Refused, Store};
use crate::sys;
use crate::tables::{Backend, DataPlaneError, FrontendKey};

/// Typed access to the pinned maps that hold the tables.
pub struct Maps {
    frontends4: HashTable<FrontendKey4, Frontend>,
    frontends6: HashTable<FrontendKey6, Frontend>,
    backends4: MappedArray<Backend4>,
    backends6: MappedArray<Backend6>,
    generations: MappedArray<u64>,
    names: HashTable<u32, Name>,
    counters: PerProcessor<ServiceMetrics>,
    local4: HashTable<u32, u32>,
    local6: HashTable<[u32; 4], u32>,
    config: MappedArray<NodeConfig>,
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
            generations: MappedArray::open(&at("GENERATIONS"), true).map_err(to("GENERATIONS"))?,
            names: HashTable::open(&at("SERVICE_NAMES")).map_err(to("SERVICE_NAMES"))?,
            counters: PerProcessor::open(&at("SERVICE_METRICS")).map_err(to("SERVICE_METRICS"))?,
            local4: HashTable::open(&at("LOCAL_ADDRS4")).map_err(to("LOCAL_ADDRS4"))?,
            local6: HashTable::open(&at("LOCAL_ADDRS6")).map_err(to("LOCAL_ADDRS6"))?,
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

    /// Makes the node's addresses these.
    pub fn set_local_addresses(&self, addresses: &[IpAddr]) -> Result<(), DataPlaneError> {
        let mut wanted4 = Vec::new();
        let mut wanted6 = Vec::new();
        for address in addresses {
            match address {
                IpAddr::V4(address) => wanted4.push(convert::word(*address)),
                IpAddr::V6(address) => wanted6.push(convert::words(*address)),
            }
        }
        replace(&self.local4, &wanted4, "LOCAL_ADDRS4")?;
        replace(&self.local6, &wanted6, "LOCAL_ADDRS6")
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

/// Makes a set of addresses equal to `wanted`: additions first.
fn replace<K>(map: &HashTable<K, u32>, wanted: &[K], name: &'static str) -> Result<(), DataPlaneError>
where
    K: crate::map::Plain + PartialEq + Default,
{
    let to = |error| failed(format!("writing map {name}"), error);
    let present = map.read_all().map_err(to)?;
    for key in wanted {
        if !present.iter().any(|(other, _)| other == key) {
            map.insert(key, &1).map_err(to)?;
        }
    }
    for (key, _) in present.iter().filter(|(key, _)| !wanted.contains(key)) {
        map.remove(key).map_err(to)?;
    }
    Ok(())
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
        self.generations.len() as u32
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

    fn generation(&self, service: u32) -> u32 {
        self.generations.get(service as usize) as u32
    }

    fn set_generation(&mut self, service: u32, generation: u32) {
        self.generations.set(service as usize, u64::from(generation));
    }

    fn grace_period(&mut self) {
        sys::grace_period();
    }
}
