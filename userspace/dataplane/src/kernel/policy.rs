//! The maps that decide which packets may leave and reach pods.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use ebpf_common::masquerade::Prefix;
use ebpf_common::policy::{Endpoint, GRACE, RuleKey, endpoint_flag};

use super::failed;
use super::policy_steps::{self, Between, Version};
use crate::convert::{self, RawPrefix};
use crate::map::{HashTable, Name, Plain};
use crate::policy::{PolicyEndpoint, PolicyRule, PolicyTables};
use crate::tables::DataPlaneError;

/// Maps of policies. Connections are written by the programs alone.
pub struct Maps {
    endpoints: Mirror<u32, Endpoint>,
    peers4: Mirror<Prefix<u32>, u32>,
    peers6: Mirror<Prefix<[u32; 4]>, u32>,
    rules: Mirror<RuleKey, u32>,
    names: Mirror<u32, Name>,
}

/// A map, and its content as this process knows it: maps with many elements are read once only.
struct Mirror<K, V> {
    name: &'static str,
    map: HashTable<K, V>,
    known: Option<BTreeMap<K, V>>,
}

impl<K, V> Mirror<K, V>
where
    K: Plain + Default + Ord,
    V: Plain + Default + PartialEq,
{
    fn open(directory: &Path, name: &'static str) -> Result<Self, DataPlaneError> {
        let map = HashTable::open(&directory.join(name))
            .map_err(|error: io::Error| failed(format!("opening map {name}"), error))?;
        Ok(Self { name, map, known: None })
    }

    fn known(&mut self) -> Result<&BTreeMap<K, V>, DataPlaneError> {
        let name = self.name;
        let to = |error| failed(format!("reading map {name}"), error);
        if self.known.is_none() {
            let mut all = BTreeMap::new();
            for key in self.map.keys().map_err(to)? {
                if let Some(value) = self.map.get(&key).map_err(to)? {
                    all.insert(key, value);
                }
            }
            self.known = Some(all);
        }
        Ok(self.known.get_or_insert_default())
    }

    /// Writes what is missing or differs.
    fn add(&mut self, wanted: &BTreeMap<K, V>) -> Result<(), DataPlaneError> {
        let known = self.known()?;
        let missing: Vec<_> = wanted
            .iter()
            .filter(|(key, value)| known.get(*key) != Some(*value))
            .map(|(k, v)| (*k, *v))
            .collect();
        for (key, value) in &missing {
            let written = self.map.insert(key, value);
            written.map_err(|error| match error.raw_os_error() {
                Some(libc::E2BIG | libc::ENOSPC | libc::ENOMEM) => DataPlaneError::Full {
                    service: "network policies".to_owned(),
                    map: self.name,
                    limit: self.map.max_entries(),
                },
                _ => failed(format!("writing map {}", self.name), error),
            })?;
            self.known.get_or_insert_default().insert(*key, *value);
        }
        Ok(())
    }

    /// Removes what is not wanted.
    fn retain(&mut self, wanted: impl Fn(&K) -> bool) -> Result<(), DataPlaneError> {
        let old: Vec<_> = self.known()?.keys().filter(|key| !wanted(key)).copied().collect();
        for key in &old {
            self.map
                .remove(key)
                .map_err(|error| failed(format!("deleting from map {}", self.name), error))?;
            self.known.get_or_insert_default().remove(key);
        }
        Ok(())
    }
}

impl Maps {
    /// Opens the maps pinned in `directory`.
    pub fn open(directory: &Path) -> Result<Self, DataPlaneError> {
        Ok(Self {
            endpoints: Mirror::open(directory, "POLICY_ENDPOINTS")?,
            peers4: Mirror::open(directory, "POLICY_PEERS4")?,
            peers6: Mirror::open(directory, "POLICY_PEERS6")?,
            rules: Mirror::open(directory, "POLICY_RULES")?,
            names: Mirror::open(directory, "POLICY_NAMES")?,
        })
    }

    /// Makes the maps equal to `tables`. Rules are written before the addresses and pods that refer to them,
    /// and what nothing refers to any more is removed last, so that each pod changes at once; see
    /// [`policy_steps`].
    pub fn write(&mut self, tables: &PolicyTables, now: u32) -> Result<(), DataPlaneError> {
        let rules: BTreeMap<_, _> = tables.rules.iter().map(|(rule, name)| (raw_rule(rule), *name)).collect();
        let (mut peers4, mut peers6) = (BTreeMap::new(), BTreeMap::new());
        for (range, class) in &tables.peers {
            match convert::raw_prefix(range) {
                RawPrefix::V4(prefix) => drop(peers4.insert(prefix, *class)),
                RawPrefix::V6(prefix) => drop(peers6.insert(prefix, *class)),
            }
        }
        let names = tables.names.iter().map(|(number, name)| (*number, Name::new(name))).collect();
        self.names.add(&names)?;
        let sets = tables.endpoints.values().flat_map(|one| [one.ingress, one.egress]).flatten();
        let sets = sets.map(|one| one.set).collect();
        let new = Version { sets, rules: &rules, peers4: &peers4, peers6: &peers6 };
        let between = self.between(&new)?;
        let mut changed = self.rules.known()? != &rules;
        self.rules.add(&rules)?;
        self.rules.add(&between.rules)?;
        changed |= self.peers4.known()? != &peers4 || self.peers6.known()? != &peers6;
        if between.is_empty() {
            self.write_peers(&new)?;
        } else {
            self.peers4.add(&between.peers4)?;
            self.peers6.add(&between.peers6)?;
        }
        let known = self.endpoints.known()?;
        let endpoints = tables
            .endpoints
            .iter()
            .map(|(index, wanted)| (*index, endpoint(wanted, known.get(index), changed, now)))
            .collect();
        self.endpoints.add(&endpoints)?;
        self.endpoints.retain(|index| endpoints.contains_key(index))?;
        if !between.is_empty() {
            self.write_peers(&new)?;
        }
        self.rules.retain(|key| rules.contains_key(key))?;
        self.names.retain(|number| names.contains_key(number))?;
        Ok(())
    }

    /// Returns what is written between the content of the maps and a new one. Nothing if there is no room for
    /// it: then connections that begin meanwhile may be dropped.
    fn between(&mut self, new: &Version<'_>) -> Result<Between, DataPlaneError> {
        let pods = self.endpoints.known()?.values();
        let sets = pods.flat_map(|one| [one.ingress, one.egress]).filter(|set| *set != 0).collect();
        let (rules, peers4, peers6) = (self.rules.known()?, self.peers4.known()?, self.peers6.known()?);
        let between = policy_steps::between(&Version { sets, rules, peers4, peers6 }, new);
        let (all, limit) =
            (rules.len() + new.rules.len() + between.rules.len(), self.rules.map.max_entries());
        Ok(if all > limit as usize { Between::default() } else { between })
    }

    /// Makes the classes of addresses equal to those of a version.
    fn write_peers(&mut self, new: &Version<'_>) -> Result<(), DataPlaneError> {
        self.peers4.add(new.peers4)?;
        self.peers6.add(new.peers6)?;
        self.peers4.retain(|key| new.peers4.contains_key(key))?;
        self.peers6.retain(|key| new.peers6.contains_key(key))
    }
}

/// Returns a pod's element. With a new generation, connections of the pod are judged again by their next
/// packets.
fn endpoint(wanted: &PolicyEndpoint, old: Option<&Endpoint>, changed: bool, now: u32) -> Endpoint {
    let mut new = Endpoint {
        ingress: wanted.ingress.map_or(0, |one| one.set),
        egress: wanted.egress.map_or(0, |one| one.set),
        ingress_name: wanted.ingress.map_or(0, |one| one.name),
        egress_name: wanted.egress.map_or(0, |one| one.name),
        generation: old.map_or(1, |old| old.generation),
        since: old.map_or(now, |old| old.since),
        flags: if wanted.closed { endpoint_flag::CLOSED } else { 0 },
        pod: wanted.pod,
    };
    if wanted.closed {
        // No connection of a pod that has just been made is older than its policies.
        new.since = now.wrapping_sub(GRACE + 1);
    }
    if old.is_some_and(|old| changed || *old != new) {
        new.generation = new.generation.wrapping_add(1);
    }
    new
}

/// Returns a rule as its key in the trie.
fn raw_rule(rule: &PolicyRule) -> RuleKey {
    let bits = RuleKey::ALL_PROTOCOLS;
    let mut key = RuleKey { bits, set: rule.set, class: rule.class, ..RuleKey::default() };
    if let Some(ports) = rule.ports {
        key.bits = RuleKey::ALL_PORTS + u32::from(ports.bits);
        key.protocol = ports.protocol as u8;
        key.port = ports.port.to_be();
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PolicyPorts, PolicySet};
    use crate::tables::Protocol;

    #[test]
    fn a_change_of_any_rule_begins_a_generation_of_each_pod() {
        let ingress = Some(PolicySet { set: 7, name: 8 });
        let wanted = PolicyEndpoint { ingress, ..PolicyEndpoint::default() };
        let first = endpoint(&wanted, None, true, 1_000);
        assert_eq!((first.generation, first.since, first.ingress), (1, 1_000, 7));
        assert_eq!(endpoint(&wanted, Some(&first), false, 2_000), first);
        let second = endpoint(&wanted, Some(&first), true, 2_000);
        assert_eq!((second.generation, second.since), (2, 1_000));
        let isolated = PolicyEndpoint { egress: Some(PolicySet { set: 9, name: 8 }), ..wanted };
        assert_eq!(endpoint(&isolated, Some(&second), false, 3_000).generation, 3);
    }

    #[test]
    fn connections_of_a_new_pod_get_no_grace() {
        let closed = endpoint(&PolicyEndpoint { closed: true, ..PolicyEndpoint::default() }, None, true, 50);
        assert!(50_u32.wrapping_sub(closed.since) > GRACE);
        let known =
            PolicyEndpoint { ingress: Some(PolicySet { set: 7, name: 8 }), ..PolicyEndpoint::default() };
        assert_eq!(endpoint(&known, Some(&closed), false, 51).since, closed.since);
    }

    #[test]
    fn wider_rules_are_shorter_prefixes() {
        let ports = |port, bits| Some(PolicyPorts::new(Protocol::Udp, port, bits));
        let key = |ports| raw_rule(&PolicyRule { set: 1, class: 2, ports });
        assert_eq!((key(None).bits, key(ports(0, 0)).bits, key(ports(53, 16)).bits), (64, 80, 96));
        assert_eq!((key(ports(53, 16)).port, key(ports(1_023, 6)).port), (53_u16.to_be(), 0));
    }
}
