//! Domains of the nodes by topology key.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cluster::{ChangeLog, NodeFacts, NodeId};

/// Domain of a node whose object does not exist.
pub const GONE: u32 = 0;
/// Domain of nodes without a label of the key.
pub const MISSING: u32 = 1;
/// Smallest number of a domain that has a value.
pub const FIRST: u32 = 2;

/// The domains of one topology key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Domain of each node, by index of the node; nodes beyond its end are [`GONE`].
    of: Vec<u32>,
    by_value: BTreeMap<Arc<str>, u32>,
    /// Value and number of nodes of each domain.
    domains: Vec<(Arc<str>, u32)>,
    /// Domains without nodes, for other values.
    free: Vec<u32>,
}

impl Default for Key {
    fn default() -> Self {
        Self::new("", &[])
    }
}

impl Key {
    fn new(name: &str, facts: &[Option<Arc<NodeFacts>>]) -> Self {
        let none: Arc<str> = "".into();
        let reserved = vec![(Arc::clone(&none), 0); FIRST as usize];
        let mut key = Self { of: Vec::new(), by_value: BTreeMap::new(), domains: reserved, free: Vec::new() };
        for (index, facts) in facts.iter().enumerate() {
            key.set(name, NodeId::new(index), facts.as_deref());
        }
        key
    }

    /// Returns the domain of each node, by index of the node.
    pub fn column(&self) -> &[u32] {
        &self.of
    }

    pub fn of(&self, id: NodeId) -> u32 {
        self.of.get(id.index()).copied().unwrap_or(GONE)
    }

    /// Returns a number that is greater than each domain.
    pub fn end(&self) -> usize {
        self.domains.len()
    }

    /// Returns the sums of a column, which is by index of the node, over the nodes of each domain.
    pub fn sums(&self, column: &[i32]) -> Vec<i32> {
        let mut sums = vec![0; self.end()];
        for (domain, count) in self.of.iter().zip(column) {
            sums[*domain as usize] += count;
        }
        sums
    }

    /// Returns the domain of a value.
    pub fn domain(&self, value: &str) -> Option<u32> {
        self.by_value.get(value).copied()
    }

    fn set(&mut self, name: &str, id: NodeId, facts: Option<&NodeFacts>) {
        let domain = match facts.map(|facts| facts.labels.get(name)) {
            None => GONE,
            Some(None) => MISSING,
            Some(Some(value)) => self.enter(value),
        };
        if id.index() >= self.of.len() {
            self.of.resize(id.index() + 1, GONE);
        }
        let before = std::mem::replace(&mut self.of[id.index()], domain);
        if before >= FIRST {
            let (value, nodes) = &mut self.domains[before as usize];
            *nodes -= 1;
            if *nodes == 0 {
                self.by_value.remove(value);
                self.free.push(before);
            }
        }
    }

    /// Counts a node in the domain of a value.
    fn enter(&mut self, value: &str) -> u32 {
        if let Some(domain) = self.domain(value) {
            self.domains[domain as usize].1 += 1;
            return domain;
        }
        let value: Arc<str> = value.into();
        let entry = (Arc::clone(&value), 1);
        let domain = if let Some(domain) = self.free.pop() {
            self.domains[domain as usize] = entry;
            domain
        } else {
            self.domains.push(entry);
            u32::try_from(self.domains.len() - 1).expect("a cluster has fewer than 2^32 nodes")
        };
        self.by_value.insert(value, domain);
        domain
    }
}

/// The domains of the topology keys that are in use.
#[derive(Debug, Default)]
pub struct Topology {
    /// By index of the node; `None` if its object does not exist.
    facts: Vec<Option<Arc<NodeFacts>>>,
    keys: BTreeMap<Arc<str>, Key>,
    /// Keys in use that no node has a label of. A tenant chooses them, so they take no column.
    absent: BTreeSet<Arc<str>>,
    /// The domains of each of these.
    nowhere: Key,
    /// Changes of nodes themselves, without those of their pods.
    log: ChangeLog,
}

impl Topology {
    pub fn log(&self) -> &ChangeLog {
        &self.log
    }

    /// Returns the nodes that exist.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &NodeFacts)> {
        let known = |(index, facts): (usize, &'_ Option<Arc<NodeFacts>>)| facts.as_ref().map(|_| index);
        self.facts.iter().enumerate().filter_map(known).filter_map(|index| {
            let id = NodeId::new(index);
            Some((id, self.facts(id)?))
        })
    }

    /// Returns the node with an id, if its object exists.
    pub fn facts(&self, id: NodeId) -> Option<&NodeFacts> {
        self.facts.get(id.index())?.as_deref()
    }

    /// Returns a number that is greater than the index of each node.
    pub fn capacity(&self) -> usize {
        self.facts.len()
    }

    pub fn len(&self) -> usize {
        self.keys.len() + self.absent.len()
    }

    #[cfg(test)]
    pub fn columns(&self) -> usize {
        self.keys.len()
    }

    /// Returns `true` if the domains of a key are kept.
    pub fn knows(&self, name: &str) -> bool {
        self.keys.contains_key(name) || self.absent.contains(name)
    }

    /// Keeps the domains of a key from now on.
    pub fn add(&mut self, name: &Arc<str>) {
        if self.knows(name) {
            return;
        }
        if self.facts.iter().flatten().any(|facts| facts.labels.contains_key(&**name)) {
            self.keys.insert(Arc::clone(name), Key::new(name, &self.facts));
        } else {
            self.absent.insert(Arc::clone(name));
        }
    }

    /// Drops the keys for which `is_used` returns `false`.
    pub fn retain(&mut self, mut is_used: impl FnMut(&Arc<str>) -> bool) {
        self.keys.retain(|name, _| is_used(name));
        self.absent.retain(is_used);
    }

    /// Returns the domains of a key.
    pub fn key(&self, name: &str) -> Cow<'_, Key> {
        match self.keys.get(name) {
            Some(key) => Cow::Borrowed(key),
            None if self.absent.contains(name) => Cow::Borrowed(&self.nowhere),
            None => Cow::Owned(Key::new(name, &self.facts)),
        }
    }

    /// Returns the domain of a node in a key that was added.
    pub fn domain(&self, name: &str, id: NodeId) -> u32 {
        self.keys.get(name).map_or(GONE, |key| key.of(id))
    }

    /// Returns `true` if the labels of a node, or its existence, differ from what is known.
    pub fn differs(&self, id: NodeId, facts: Option<&NodeFacts>) -> bool {
        self.facts(id).map(|facts| &facts.labels) != facts.map(|facts| &facts.labels)
    }

    /// Sets what is known of a node.
    pub fn set(&mut self, id: NodeId, facts: Option<&Arc<NodeFacts>>) {
        self.log.push(id);
        let moved = self.differs(id, facts.map(Arc::as_ref));
        if id.index() >= self.facts.len() {
            self.facts.resize(id.index() + 1, None);
        }
        self.facts[id.index()] = facts.cloned();
        if moved {
            for (name, key) in &mut self.keys {
                key.set(name, id, facts.map(Arc::as_ref));
            }
            // No label has this name.
            self.nowhere.set("", id, facts.map(Arc::as_ref));
            self.sort(facts.map(Arc::as_ref));
        }
    }

    /// Gives columns to the keys that have come with a node, and takes them from those that no node has any more.
    fn sort(&mut self, facts: Option<&NodeFacts>) {
        let gone: Vec<Arc<str>> = self
            .keys
            .iter()
            .filter(|(_, key)| key.by_value.is_empty())
            .map(|(name, _)| Arc::clone(name))
            .collect();
        for name in gone {
            self.keys.remove(&name);
            self.absent.insert(name);
        }
        for label in facts.into_iter().flat_map(|facts| facts.labels.keys()) {
            if let Some(name) = self.absent.take(label.as_str()) {
                let key = Key::new(&name, &self.facts);
                self.keys.insert(name, key);
            }
        }
    }
}
