//! The desired tables of all Services, kept up to date one Service at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use userspace_dataplane::tables::{FrontendKey, ServiceTables, Tables};

/// Orders Services that claim the same address and port; the lowest has it, and among equals the
/// first by name. Seconds since the epoch at which the Service was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(pub i64);

type Claim = (Rank, Arc<str>);

/// What the tables shall hold. Each frontend key belongs to one Service, although several may
/// claim it (external addresses, or an address that moves from a deleted Service to a new one).
#[derive(Debug, Default)]
pub struct Desired {
    services: BTreeMap<Arc<str>, (Rank, ServiceTables)>,
    claims: BTreeMap<FrontendKey, BTreeSet<Claim>>,
}

/// What a change of one Service means for the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Services whose tables are now others.
    pub changed: BTreeSet<Arc<str>>,
    /// Those of them that lost a frontend key. They are to be applied after the others, one of
    /// which may have the key now: so it changes hands without a moment in which nobody has it.
    pub yielded: BTreeSet<Arc<str>>,
}

impl Effect {
    /// Both, one after the other.
    pub fn merge(&mut self, other: Self) {
        self.changed.extend(other.changed);
        self.yielded.extend(other.yielded);
    }
}

impl Desired {
    /// Replaces what one Service claims; `None`, or tables without frontends, removes it.
    pub fn set(&mut self, service: &str, rank: Rank, tables: Option<ServiceTables>) -> Effect {
        let name: Arc<str> = Arc::from(service);
        let tables = tables.filter(|tables| !tables.frontends.is_empty());
        let mut effect = Effect::default();
        let old = self.services.remove(&name);
        let same = match (&old, &tables) {
            (Some(old), Some(new)) => old.0 == rank && old.1 == *new,
            (None, None) => true,
            _ => false,
        };
        if let Some(tables) = &tables {
            self.services.insert(Arc::clone(&name), (rank, tables.clone()));
        }
        if same {
            return effect;
        }
        let old_keys = keys(old.as_ref().map(|(_, tables)| tables));
        let new_keys = keys(tables.as_ref());
        let old_claim = old.map(|(rank, _)| (rank, Arc::clone(&name)));
        for key in old_keys.union(&new_keys) {
            let before = self.winner(key);
            if let (Some(claim), Some(claims)) = (&old_claim, self.claims.get_mut(key)) {
                claims.remove(claim);
            }
            if new_keys.contains(key) {
                self.claims.entry(*key).or_default().insert((rank, Arc::clone(&name)));
            }
            if self.claims.get(key).is_some_and(BTreeSet::is_empty) {
                self.claims.remove(key);
            }
            effect.note(before, self.winner(key));
        }
        effect.changed.insert(name);
        effect
    }

    /// What a Service really has: its frontends without those that another one holds. `None`
    /// when nothing is left, or there is no such Service.
    pub fn effective(&self, service: &str) -> Option<ServiceTables> {
        let (_, tables) = self.services.get(service)?;
        let own = |key: &FrontendKey| {
            let first = self.claims.get(key).and_then(BTreeSet::first);
            first.is_some_and(|(_, winner)| winner.as_ref() == service)
        };
        let frontends = tables.frontends.iter().filter(|frontend| own(&frontend.key)).cloned().collect();
        Some(ServiceTables { frontends }).filter(|tables| !tables.frontends.is_empty())
    }

    /// Everything, for a full apply. Services that have nothing are left out.
    pub fn tables(&self) -> Tables {
        let effective = |name: &Arc<str>| Some((name.to_string(), self.effective(name)?));
        self.services.keys().filter_map(effective).collect()
    }

    fn winner(&self, key: &FrontendKey) -> Option<Arc<str>> {
        self.claims.get(key).and_then(BTreeSet::first).map(|(_, name)| Arc::clone(name))
    }
}

impl Effect {
    fn note(&mut self, before: Option<Arc<str>>, after: Option<Arc<str>>) {
        if before == after {
            return;
        }
        if let Some(loser) = before {
            self.yielded.insert(Arc::clone(&loser));
            self.changed.insert(loser);
        }
        self.changed.extend(after);
    }
}

fn keys(tables: Option<&ServiceTables>) -> BTreeSet<FrontendKey> {
    tables.into_iter().flat_map(|tables| tables.frontends.iter().map(|frontend| frontend.key)).collect()
}
