//! The desired tables of all Services, kept up to date one Service at a time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use userspace_dataplane::tables::{FrontendKey, Protocol, ServiceTables, Tables};

use super::packed::Packed;

/// The precedence of Services that claim the same address and port, as the creation time in seconds since the
/// epoch: the lowest wins, and among equals the first by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(pub i64);

type Claim = (Rank, Arc<str>);

/// An address, port and protocol. The owner of a place has it in both scopes.
type Place = (IpAddr, u16, Protocol);

/// The desired content of the tables. Each place belongs to one Service, although several may claim it
/// (external addresses, or an address that moves from a deleted Service to a new one).
#[derive(Debug, Default)]
pub struct Desired {
    services: BTreeMap<Arc<str>, (Rank, Packed)>,
    claims: Claims,
}

/// The claims of a place. Nearly every place has one claim, so that the first is stored without a set.
#[derive(Debug, Default)]
struct Claims {
    winners: BTreeMap<Place, Claim>,
    /// The other claims, for places that have any.
    losers: BTreeMap<Place, BTreeSet<Claim>>,
}

/// The effect of a change of one Service on the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Services whose tables have changed.
    pub changed: BTreeSet<Arc<str>>,
    /// Those of them that lost a place. They must be applied after the others, one of which may have it now,
    /// so that the place changes hands without a moment in which it has no owner.
    pub yielded: BTreeSet<Arc<str>>,
}

impl Effect {
    /// Combines the effects of two changes in a row.
    pub fn merge(&mut self, other: Self) {
        self.changed.extend(other.changed);
        self.yielded.extend(other.yielded);
    }
}

impl Desired {
    /// Replaces the claims of one Service; `None`, or tables without frontends, removes them.
    pub fn set(&mut self, service: &str, rank: Rank, tables: Option<ServiceTables>) -> Effect {
        let tables = tables.filter(|tables| !tables.frontends.is_empty());
        let tables = tables.as_ref().map(Packed::of);
        let mut effect = Effect::default();
        match (self.services.get(service), &tables) {
            (Some((old_rank, old)), Some(new)) if *old_rank == rank && old == new => return effect,
            (None, None) => return effect,
            _ => {}
        }
        let name: Arc<str> = Arc::from(service);
        let new_places = places(tables.as_ref());
        let old = match tables {
            Some(tables) => self.services.insert(Arc::clone(&name), (rank, tables)),
            None => self.services.remove(service),
        };
        let old_places = places(old.as_ref().map(|(_, tables)| tables));
        let old_claim = old.map(|(rank, _)| (rank, Arc::clone(&name)));
        for place in old_places.union(&new_places) {
            let before = self.claims.winner(place).cloned();
            if let Some(claim) = &old_claim {
                self.claims.remove(place, claim);
            }
            if new_places.contains(place) {
                self.claims.add(*place, (rank, Arc::clone(&name)));
            }
            effect.note(before, self.claims.winner(place).cloned());
        }
        effect.changed.insert(name);
        effect
    }

    /// Returns the tables of a Service without the frontends that another Service holds. `None` if nothing is
    /// left, or if there is no such Service.
    pub fn effective(&self, service: &str) -> Option<ServiceTables> {
        let (_, tables) = self.services.get(service)?;
        let own = |key: &FrontendKey| {
            self.claims.winner(&place(key)).is_some_and(|winner| winner.as_ref() == service)
        };
        let mut own = tables.read(own);
        if !own.frontends.iter().any(|frontend| frontend.limited) {
            own.source_ranges.clear();
        }
        Some(own).filter(|tables| !tables.frontends.is_empty())
    }

    /// Returns all tables, for a full apply. Services without any frontend are left out.
    pub fn tables(&self) -> Tables {
        let effective = |name: &Arc<str>| Some((name.to_string(), self.effective(name)?));
        self.services.keys().filter_map(effective).collect()
    }
}

impl Claims {
    fn winner(&self, place: &Place) -> Option<&Arc<str>> {
        self.winners.get(place).map(|(_, name)| name)
    }

    fn add(&mut self, place: Place, claim: Claim) {
        let loser = match self.winners.entry(place) {
            Entry::Vacant(entry) => {
                entry.insert(claim);
                return;
            }
            Entry::Occupied(mut entry) if claim < *entry.get() => entry.insert(claim),
            Entry::Occupied(_) => claim,
        };
        self.losers.entry(place).or_default().insert(loser);
    }

    fn remove(&mut self, place: &Place, claim: &Claim) {
        let won = self.winners.get(place) == Some(claim);
        let Some(losers) = self.losers.get_mut(place) else {
            if won {
                self.winners.remove(place);
            }
            return;
        };
        if !won {
            losers.remove(claim);
        } else if let Some(next) = losers.pop_first() {
            self.winners.insert(*place, next);
        }
        if losers.is_empty() {
            self.losers.remove(place);
        }
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

fn places(tables: Option<&Packed>) -> BTreeSet<Place> {
    tables.into_iter().flat_map(Packed::keys).map(|key| place(&key)).collect()
}

fn place(key: &FrontendKey) -> Place {
    (key.address, key.port, key.protocol)
}
