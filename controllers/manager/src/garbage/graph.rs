//! The ownership graph as seen by the watches. It only produces hints: nothing is deleted before the server
//! has confirmed it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_client::ObjectKey;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::discovery::Kind;
use crate::meta::{is_deleted, name, namespace, uid};

/// Finalizer of an owner that waits until the dependents that block it are gone.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an owner whose dependents are to be released first.
pub(super) const ORPHAN: &str = "orphan";

/// The properties of an object that the graph needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Object {
    pub kind: Arc<Kind>,
    pub key: ObjectKey,
    pub uid: String,
    pub owners: Vec<OwnerReference>,
    pub deleting: bool,
    pub foreground: bool,
    pub orphan: bool,
}

impl Object {
    pub fn new(kind: &Arc<Kind>, meta: &ObjectMeta) -> Self {
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|known| known == finalizer);
        Self {
            kind: Arc::clone(kind),
            key: ObjectKey::new(namespace(meta), name(meta)),
            uid: uid(meta).to_owned(),
            owners: meta.owner_references.clone().unwrap_or_default(),
            deleting: is_deleted(meta),
            foreground: has(FOREGROUND),
            orphan: has(ORPHAN),
        }
    }

    /// Returns `true` if the object is being deleted and waits for its dependents to go first.
    pub fn awaits_dependents(&self) -> bool {
        self.deleting && self.foreground
    }

    fn needs_attention(&self) -> bool {
        self.deleting && (self.foreground || self.orphan)
    }

    /// Returns `true` if the object blocks the deletion of an owner.
    pub fn blocks(&self, owner: &str) -> bool {
        self.owners
            .iter()
            .any(|reference| reference.uid == owner && reference.block_owner_deletion == Some(true))
    }
}

/// Objects to examine after a change.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Hints {
    /// Uids to examine now.
    pub now: BTreeSet<String>,
    /// Uids of objects whose owners have not been seen; to be examined if that remains so.
    pub later: BTreeSet<String>,
}

#[derive(Default)]
pub(super) struct Graph {
    objects: BTreeMap<String, Object>,
    /// Uids of dependents by the uid of their owner, even if the owner has not been seen.
    dependents: BTreeMap<String, BTreeSet<String>>,
    /// Uids by the name of their kind.
    by_kind: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    pub fn get(&self, uid: &str) -> Option<&Object> {
        self.objects.get(uid)
    }

    pub fn dependents(&self, uid: &str) -> Vec<Object> {
        let uids = self.dependents.get(uid).into_iter().flatten();
        uids.filter_map(|uid| self.objects.get(uid)).cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Adds or updates an object.
    pub fn apply(&mut self, object: Object) -> Hints {
        let mut hints = Hints::default();
        let uid = object.uid.clone();
        let before = self.objects.insert(uid.clone(), object.clone());
        if before.as_ref() == Some(&object) {
            return hints;
        }
        self.by_kind.entry(object.kind.name()).or_default().insert(uid.clone());
        let owners_before = before.as_ref().map(|before| before.owners.as_slice()).unwrap_or_default();
        if before.is_none() || owners_before != object.owners {
            self.relink(&uid, owners_before, &object.owners);
            // Waiting owners may have been waiting for this change.
            let waiting = owners_before.iter().filter(|owner| self.awaits(&owner.uid));
            hints.now.extend(waiting.map(|owner| owner.uid.clone()));
            if before.is_some() || object.owners.iter().any(|owner| self.awaits(&owner.uid)) {
                hints.now.insert(uid.clone());
            } else if object.owners.iter().any(|owner| !self.objects.contains_key(&owner.uid)) {
                hints.later.insert(uid.clone());
            }
        }
        let attended = before.as_ref().is_some_and(Object::needs_attention);
        if object.needs_attention() && !attended {
            hints.now.insert(uid);
        }
        hints
    }

    /// Removes an object: its dependents have lost an owner, and its owners may have waited for it.
    pub fn remove(&mut self, uid: &str) -> Hints {
        let mut hints = Hints::default();
        let Some(object) = self.objects.remove(uid) else { return hints };
        if let Some(uids) = self.by_kind.get_mut(&object.kind.name()) {
            uids.remove(uid);
        }
        self.relink(uid, &object.owners, &[]);
        hints.now.extend(self.dependents.get(uid).into_iter().flatten().cloned());
        let waiting = object.owners.iter().filter(|owner| self.awaits(&owner.uid));
        hints.now.extend(waiting.map(|owner| owner.uid.clone()));
        hints
    }

    /// Applies a complete list of a kind: objects that it does not contain are gone.
    pub fn retain(&mut self, kind: &str, listed: &BTreeSet<String>) -> Hints {
        let gone: Vec<String> = self
            .by_kind
            .get(kind)
            .into_iter()
            .flatten()
            .filter(|uid| !listed.contains(*uid))
            .cloned()
            .collect();
        let mut hints = Hints::default();
        for uid in gone {
            hints.now.extend(self.remove(&uid).now);
        }
        hints
    }

    /// Forgets a kind that no longer exists. Its objects cannot be queried any more, but are not known to be
    /// gone, so their dependents are not examined.
    pub fn forget_kind(&mut self, kind: &str) {
        for uid in self.by_kind.remove(kind).unwrap_or_default() {
            if let Some(object) = self.objects.remove(&uid) {
                self.relink(&uid, &object.owners, &[]);
            }
        }
    }

    fn awaits(&self, uid: &str) -> bool {
        self.objects.get(uid).is_some_and(Object::awaits_dependents)
    }

    fn relink(&mut self, uid: &str, before: &[OwnerReference], after: &[OwnerReference]) {
        for owner in before {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
        for owner in after {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.to_owned());
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::discovery;

    pub fn object(uid: &str, owners: &[&str]) -> Object {
        Object {
            kind: Arc::new(discovery::kind("", "v1", "Pod", "pods", true)),
            key: ObjectKey::new("ns", uid),
            uid: uid.to_owned(),
            owners: owners
                .iter()
                .map(|owner| OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Pod".to_owned(),
                    name: (*owner).to_owned(),
                    uid: (*owner).to_owned(),
                    block_owner_deletion: Some(true),
                    controller: Some(true),
                })
                .collect(),
            deleting: false,
            foreground: false,
            orphan: false,
        }
    }

    fn set(uids: &[&str]) -> BTreeSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    #[test]
    fn removal_of_an_owner_hints_at_its_dependents() {
        let mut graph = Graph::default();
        assert_eq!(graph.apply(object("owner", &[])), Hints::default());
        assert_eq!(graph.apply(object("a", &["owner"])), Hints::default());
        graph.apply(object("b", &["owner"]));
        assert_eq!(graph.remove("owner").now, set(&["a", "b"]));
        assert_eq!(graph.len(), 2);
    }

    #[test]
    fn a_dependent_seen_before_its_owner_is_examined_later() {
        let mut graph = Graph::default();
        assert_eq!(graph.apply(object("a", &["owner"])).later, set(&["a"]));
        graph.apply(object("owner", &[]));
        assert_eq!(graph.dependents("owner").len(), 1);
    }

    #[test]
    fn a_waiting_owner_is_examined_when_it_starts_waiting_and_when_dependents_leave() {
        let mut graph = Graph::default();
        graph.apply(object("owner", &[]));
        for dependent in ["a", "b"] {
            graph.apply(object(dependent, &["owner"]));
        }
        let waiting = Object { deleting: true, foreground: true, ..object("owner", &[]) };
        assert_eq!(graph.apply(waiting).now, set(&["owner"]));
        assert_eq!(graph.remove("a").now, set(&["owner"]));
        assert_eq!(graph.apply(object("b", &[])).now, set(&["b", "owner"]));
        // A dependent that is added late must go as well.
        assert_eq!(graph.apply(object("c", &["owner"])).now, set(&["c"]));
    }

    #[test]
    fn a_list_removes_missing_objects_and_a_removed_kind_gives_no_hints() {
        let mut graph = Graph::default();
        graph.apply(object("owner", &[]));
        graph.apply(object("a", &["owner"]));
        assert_eq!(graph.retain("pods", &set(&["a"])).now, set(&["a"]));
        graph.apply(object("owner", &[]));
        graph.forget_kind("pods");
        assert_eq!(graph.len(), 0);
        assert!(graph.dependents("owner").is_empty());
    }
}
