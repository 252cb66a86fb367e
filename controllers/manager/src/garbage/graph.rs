//! The ownership graph as seen by the watches. It only produces hints: nothing is deleted before the server
//! has confirmed it.

use apiserver_client::Metadata;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use apiserver_meta::uid::Uid;

use super::object::{Object, Objects};
use super::plan::Owner;
use super::sets::{ByUid, Edge, Ends};
use crate::discovery::Kind;

/// Objects to examine after a change.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Hints {
    /// Uids to examine now.
    pub now: BTreeSet<Uid>,
    /// Uids of objects with an owner that has not been seen or cannot own them; to be examined if that remains so.
    pub later: BTreeSet<Uid>,
}

#[derive(Default)]
pub(super) struct Graph {
    objects: BTreeSet<ByUid>,
    /// From owners to dependents, even if the owner has not been seen.
    edges: BTreeSet<Edge>,
    /// Numbers of objects by the name of their kind.
    counts: BTreeMap<String, usize>,
    shared: Objects,
    /// True once the first lists have arrived: an owner that has not been seen before may be in one of them.
    is_complete: bool,
}

impl Graph {
    pub fn get(&self, uid: &Uid) -> Option<&Arc<Object>> {
        self.objects.get(uid).map(|ByUid(object)| object)
    }

    pub fn dependents(&self, uid: &Uid) -> Vec<Arc<Object>> {
        self.edges_from(uid).map(|edge| Arc::clone(&edge.dependent)).collect()
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns the state of an owner of an object; `None` if it has not been seen, or is in a namespace from which it
    /// cannot own the object: the server is queried and will not find it.
    pub fn owner(&self, object: &Object, owner: &Uid) -> Option<Owner> {
        let owner = self.get(owner).filter(|owner| object.can_be_owned_by(owner))?;
        Some(if owner.deletion.awaits_dependents() { Owner::Waiting } else { Owner::Solid })
    }

    /// Adds or updates the object of a kind with this metadata.
    pub fn apply(&mut self, kind: &Arc<Kind>, meta: &impl Metadata) -> Hints {
        let mut hints = Hints::default();
        let object = Arc::new(self.shared.object(kind, meta));
        let before = self.get(&object.uid).cloned();
        if before.as_ref() == Some(&object) {
            return hints;
        }
        if let Some(before) = &before {
            self.unlink(before);
        }
        self.link(&object);
        let owners_before = before.as_deref().map(Object::owners).unwrap_or_default();
        if before.is_none() || owners_before != object.owners() {
            // Waiting owners may have been waiting for this change.
            let waiting = owners_before.iter().filter(|owner| self.awaits(&owner.uid));
            hints.now.extend(waiting.map(|owner| owner.uid.clone()));
            if before.is_some() || object.owners().iter().any(|owner| self.awaits(&owner.uid)) {
                hints.now.insert(object.uid.clone());
            } else if self.is_complete && self.has_unknown_owner(&object) {
                hints.later.insert(object.uid.clone());
            }
        }
        let attended = before.as_ref().is_some_and(|before| before.deletion.needs_attention());
        if object.deletion.needs_attention() && !attended {
            hints.now.insert(object.uid.clone());
        }
        before.into_iter().for_each(|before| self.shared.release(before));
        hints
    }

    /// Notes that the first lists have arrived, and hints at the objects with an owner that was in none of them.
    pub fn complete(&mut self) -> Hints {
        self.is_complete = true;
        let unknown = self.objects.iter().filter(|ByUid(object)| self.has_unknown_owner(object));
        Hints { now: BTreeSet::new(), later: unknown.map(|ByUid(object)| object.uid.clone()).collect() }
    }

    /// Removes an object: its dependents have lost an owner, and its owners may have waited for it.
    pub fn remove(&mut self, uid: &Uid) -> Hints {
        let mut hints = Hints::default();
        let Some(ByUid(object)) = self.objects.take(uid) else { return hints };
        self.unlink(&object);
        hints.now.extend(self.edges_from(uid).map(|edge| edge.dependent.uid.clone()));
        let waiting = object.owners().iter().filter(|owner| self.awaits(&owner.uid));
        hints.now.extend(waiting.map(|owner| owner.uid.clone()));
        self.shared.release(object);
        hints
    }

    /// Applies a complete list of a kind: objects that it does not contain are gone.
    pub fn retain(&mut self, kind: &str, listed: &BTreeSet<Uid>) -> Hints {
        let mut hints = Hints::default();
        let is_known = |uid: &&Uid| self.get(uid).is_some_and(|object| object.kind().is_named(kind));
        let all = self.counts.get(kind).copied().unwrap_or(0);
        // Most lists are complete, and looking at all objects is only worth it for the others.
        if listed.iter().filter(is_known).count() == all {
            return hints;
        }
        let gone: Vec<Uid> = self
            .of_kind(kind)
            .map(|object| &object.uid)
            .filter(|uid| !listed.contains(uid))
            .cloned()
            .collect();
        for uid in gone {
            hints.now.extend(self.remove(&uid).now);
        }
        hints
    }

    /// Forgets a kind that no longer exists. Its objects cannot be queried any more, but are not known to be
    /// gone, so their dependents are not examined.
    pub fn forget_kind(&mut self, kind: &str) {
        let objects: Vec<_> = self.of_kind(kind).cloned().collect();
        for object in objects {
            self.objects.remove(&object.uid);
            self.unlink(&object);
            self.shared.release(object);
        }
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.iter().map(|ByUid(object)| object).filter(move |object| object.kind().is_named(kind))
    }

    fn awaits(&self, uid: &Uid) -> bool {
        self.get(uid).is_some_and(|object| object.deletion.awaits_dependents())
    }

    fn has_unknown_owner(&self, object: &Object) -> bool {
        object.owners().iter().any(|owner| self.owner(object, &owner.uid).is_none())
    }

    fn edges_from<'a>(&'a self, owner: &'a Uid) -> impl Iterator<Item = &'a Edge> {
        let first = (owner, None);
        let from = (Bound::Included(&first as &dyn Ends), Bound::Unbounded);
        self.edges.range::<dyn Ends, _>(from).take_while(move |edge| edge.ends().0 == owner)
    }

    /// Adds an object with its edges, in place of the one with its uid if that has none any more.
    fn link(&mut self, object: &Arc<Object>) {
        self.objects.replace(ByUid(Arc::clone(object)));
        self.edges
            .extend((0..object.owners().len()).map(|owner| Edge { dependent: Arc::clone(object), owner }));
        *self.counts.entry(object.kind().name()).or_default() += 1;
    }

    /// Removes the edges to an object.
    fn unlink(&mut self, object: &Object) {
        for owner in object.owners() {
            self.edges.remove(&(&owner.uid, Some(&object.uid)) as &dyn Ends);
        }
        let kind = object.kind().name();
        if let Some(count) = self.counts.get_mut(&kind) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&kind);
            }
        }
    }
}

#[cfg(test)]
mod footprint;
#[cfg(test)]
mod tests;
