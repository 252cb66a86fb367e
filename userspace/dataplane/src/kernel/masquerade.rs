//! The maps that decide which packets of pods take the node's address.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use ebpf_common::masquerade::{Masquerade as Settings, Prefix};
use ipnetwork::IpNetwork;

use super::failed;
use crate::convert::{self, RawPrefix};
use crate::map::{HashTable, MappedArray, Plain};
use crate::tables::{DataPlaneError, Masquerade, NonMasquerade};

/// `MASQUERADE`, and the tries of destinations that keep the pod's address.
pub struct Maps {
    settings: MappedArray<Settings>,
    exempt4: HashTable<Prefix<u32>, u32>,
    exempt6: HashTable<Prefix<[u32; 4]>, u32>,
}

impl Maps {
    /// Opens the maps pinned in `directory`.
    pub fn open(directory: &Path) -> Result<Self, DataPlaneError> {
        let to = |name: &'static str| move |error: io::Error| failed(format!("opening map {name}"), error);
        let at = |name: &str| directory.join(name);
        Ok(Self {
            settings: MappedArray::open(&at("MASQUERADE"), true).map_err(to("MASQUERADE"))?,
            exempt4: HashTable::open(&at("NON_MASQUERADE4")).map_err(to("NON_MASQUERADE4"))?,
            exempt6: HashTable::open(&at("NON_MASQUERADE6")).map_err(to("NON_MASQUERADE6"))?,
        })
    }

    /// Writes the ranges; returns `true` if any has changed. New ranges are there before the ones that are
    /// compared first, and those before old ranges go.
    pub fn write(&mut self, tables: &Masquerade) -> Result<bool, DataPlaneError> {
        let (wanted4, wanted6) = split(&tables.exempt);
        let settings = settings(tables);
        let to = |error| failed("reading the ranges of packets that keep their source".to_owned(), error);
        let old4 = old_keys(&self.exempt4, &wanted4).map_err(to)?;
        let old6 = old_keys(&self.exempt6, &wanted6).map_err(to)?;
        let mut changed = add(&self.exempt4, &wanted4, "NON_MASQUERADE4")?;
        changed |= add(&self.exempt6, &wanted6, "NON_MASQUERADE6")?;
        if self.settings.get(0) != settings {
            self.settings.set(0, settings);
            changed = true;
        }
        changed |= !old4.is_empty() || !old6.is_empty();
        remove(&self.exempt4, &old4, "NON_MASQUERADE4")?;
        remove(&self.exempt6, &old6, "NON_MASQUERADE6")?;
        Ok(changed)
    }
}

/// Returns the ranges that programs compare packets with before they look anything up.
fn settings(tables: &Masquerade) -> Settings {
    let cluster = tables.exempt.iter().filter(|(_, reason)| **reason == NonMasquerade::Cluster);
    let (cluster4, cluster6) = convert::raw_ranges(cluster.map(|(range, _)| *range));
    let (pods4, pods6) = convert::raw_ranges(tables.pods.iter().copied());
    Settings { cluster4, pods4, cluster6, pods6 }
}

/// Elements of a trie.
type Elements<A> = BTreeMap<Prefix<A>, u32>;

fn split(exempt: &BTreeMap<IpNetwork, NonMasquerade>) -> (Elements<u32>, Elements<[u32; 4]>) {
    let (mut v4, mut v6) = (Elements::new(), Elements::new());
    for (range, reason) in exempt {
        let reason = convert::raw_reason(*reason);
        match convert::raw_prefix(range) {
            RawPrefix::V4(prefix) => drop(v4.insert(prefix, reason)),
            RawPrefix::V6(prefix) => drop(v6.insert(prefix, reason)),
        }
    }
    (v4, v6)
}

/// Returns the keys in a trie that are not wanted.
fn old_keys<A>(trie: &HashTable<Prefix<A>, u32>, wanted: &Elements<A>) -> io::Result<Vec<Prefix<A>>>
where
    Prefix<A>: Plain + Default + Ord,
{
    Ok(trie.keys()?.into_iter().filter(|key| !wanted.contains_key(key)).collect())
}

/// Adds what is missing; returns `true` if something was.
fn add<A>(
    trie: &HashTable<Prefix<A>, u32>,
    wanted: &Elements<A>,
    name: &'static str,
) -> Result<bool, DataPlaneError>
where
    Prefix<A>: Plain + Default + Ord,
{
    let to = |error: io::Error| match error.raw_os_error() {
        Some(libc::E2BIG | libc::ENOSPC | libc::ENOMEM) => {
            DataPlaneError::Full { service: "node".to_owned(), map: name, limit: trie.max_entries() }
        }
        _ => failed(format!("writing map {name}"), error),
    };
    let mut changed = false;
    let present = trie.keys().map_err(to)?;
    for (key, reason) in wanted {
        // A look-up in a trie finds the longest prefix, so that a key may be found under another.
        if present.contains(key) && trie.get(key).map_err(to)? == Some(*reason) {
            continue;
        }
        trie.insert(key, reason).map_err(to)?;
        changed = true;
    }
    Ok(changed)
}

fn remove<A>(
    trie: &HashTable<Prefix<A>, u32>,
    keys: &[Prefix<A>],
    name: &'static str,
) -> Result<(), DataPlaneError>
where
    Prefix<A>: Plain,
{
    keys.iter().try_for_each(|key| {
        trie.remove(key).map(drop).map_err(|error| failed(format!("deleting from map {name}"), error))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_s_ranges_are_compared_first_and_are_in_the_tries_as_well() {
        let range = |text: &str| text.parse::<IpNetwork>().unwrap();
        let exempt = BTreeMap::from([
            (range("10.244.0.0/16"), NonMasquerade::Cluster),
            (range("fd01::/48"), NonMasquerade::Cluster),
            (range("10.0.0.0/8"), NonMasquerade::Configured),
        ]);
        let tables = Masquerade { pods: vec![range("10.244.3.0/24"), range("fd01:3::/64")], exempt };
        let found = settings(&tables);
        assert_eq!(found.cluster4[0].network.to_ne_bytes(), [10, 244, 0, 0]);
        assert_eq!(found.cluster4[1].mask, 0, "a configured range is looked up only");
        assert_eq!(found.pods4[0].mask.to_ne_bytes(), [255, 255, 255, 0]);
        assert_eq!(found.cluster6[0].mask[1].to_ne_bytes(), [255, 255, 0, 0]);
        let (v4, v6) = split(&tables.exempt);
        assert_eq!((v4.len(), v6.len()), (2, 1));
        assert_eq!(v4.keys().filter_map(convert::prefix4).next(), Some(range("10.0.0.0/8")));
    }
}
