//! Relations of objects to nodes: the data by which the Node authorizer decides.
//!
//! ```text
//! node ◀── Pod ◀── Secret, ConfigMap, ServiceAccount, ResourceClaim
//!           ▲
//!           └── PersistentVolumeClaim ◀── PersistentVolume ◀── Secret
//! node ◀── VolumeAttachment, ResourceSlice, PodCertificateRequest
//! ```
//!
//! Names are interned, so that an edge is a number. For each node the graph counts how many of its pods refer
//! to an object: an answer takes a few look-ups, and a change of a pod costs as much as it has references,
//! whatever the size of the cluster. `docs/limits.md` has its memory.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The kinds of objects in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Node,
    Pod,
    VolumeAttachment,
    ResourceSlice,
    PodCertificateRequest,
    Secret,
    ConfigMap,
    ServiceAccount,
    ResourceClaim,
    PersistentVolumeClaim,
    PersistentVolume,
}

/// The number of kinds.
const KINDS: usize = Kind::PersistentVolume as usize + 1;

/// A namespace, empty for kinds without one, and a name.
pub type Name<'a> = (&'a str, &'a str);

/// The objects that a pod refers to in its own namespace.
pub type References = BTreeSet<(Kind, String)>;

/// An interned object.
type Id = u32;

/// The relations between objects and nodes.
#[derive(Default)]
pub struct Graph {
    names: Names,
    /// Objects that belong to one node: pods, attachments, slices, certificate requests.
    anchors: HashMap<Id, Anchor>,
    /// The objects that the pods of each node refer to.
    held: HashMap<Id, Held>,
    /// The volumes that are bound to a claim.
    volumes: HashMap<Id, Volume>,
    /// The volumes by their claim: one, except while two claim to be bound to it.
    volumes_of: HashMap<Id, Vec<Id>>,
}

struct Anchor {
    node: Id,
    references: Box<[Id]>,
}

/// Objects with the number of the node's pods that refer to them.
#[derive(Default)]
struct Held {
    claims: HashMap<Id, u32>,
    others: HashMap<Id, u32>,
}

struct Volume {
    claim: Id,
    secrets: Box<[Id]>,
}

impl Graph {
    /// Places an object on a node, with its references in its namespace; earlier data about it is replaced.
    pub fn place(&mut self, kind: Kind, (namespace, name): Name<'_>, node: &str, references: &References) {
        self.forget(kind, (namespace, name));
        let id = self.names.acquire(kind, (namespace, name));
        let node = self.names.acquire(Kind::Node, ("", node));
        let references: Box<[Id]> =
            references.iter().map(|(kind, name)| self.names.acquire(*kind, (namespace, name))).collect();
        for &reference in &references {
            let counts = self.held.entry(node).or_default().of(self.names.kind(reference));
            *counts.entry(reference).or_default() += 1;
        }
        self.anchors.insert(id, Anchor { node, references });
    }

    /// Returns `true` if [`Graph::place`] with these arguments would change nothing.
    pub fn is_placed(
        &self,
        kind: Kind,
        (namespace, name): Name<'_>,
        node: &str,
        references: &References,
    ) -> bool {
        let anchor = self.names.find(kind, (namespace, name)).and_then(|id| self.anchors.get(&id));
        anchor.is_some_and(|anchor| {
            self.names.find(Kind::Node, ("", node)) == Some(anchor.node)
                && anchor.references.len() == references.len()
                && anchor
                    .references
                    .iter()
                    .zip(references)
                    .all(|(id, (kind, name))| self.names.find(*kind, (namespace, name)) == Some(*id))
        })
    }

    /// Removes an object from its node, if it is on one.
    pub fn forget(&mut self, kind: Kind, name: Name<'_>) {
        let Some(id) = self.names.find(kind, name) else { return };
        let Some(Anchor { node, references }) = self.anchors.remove(&id) else { return };
        if let Some(held) = self.held.get_mut(&node) {
            for &reference in &references {
                let counts = held.of(self.names.kind(reference));
                if let Some(count) = counts.get_mut(&reference) {
                    *count -= 1;
                    if *count == 0 {
                        counts.remove(&reference);
                    }
                }
            }
            if held.claims.is_empty() && held.others.is_empty() {
                self.held.remove(&node);
            }
        }
        references.into_iter().chain([node, id]).for_each(|id| self.names.release(id));
    }

    /// Binds a volume to a claim, with the Secrets that a kubelet needs to mount it.
    pub fn bind(&mut self, volume: &str, claim: Name<'_>, secrets: &BTreeSet<(String, String)>) {
        self.unbind(volume);
        let id = self.names.acquire(Kind::PersistentVolume, ("", volume));
        let claim = self.names.acquire(Kind::PersistentVolumeClaim, claim);
        let secret = |(namespace, name): &(String, String)| {
            self.names.acquire(Kind::Secret, (namespace.as_str(), name.as_str()))
        };
        let secrets = secrets.iter().map(secret).collect();
        self.volumes.insert(id, Volume { claim, secrets });
        self.volumes_of.entry(claim).or_default().push(id);
    }

    /// Forgets to which claim a volume is bound.
    pub fn unbind(&mut self, volume: &str) {
        let Some(id) = self.names.find(Kind::PersistentVolume, ("", volume)) else { return };
        let Some(Volume { claim, secrets }) = self.volumes.remove(&id) else { return };
        if let Some(volumes) = self.volumes_of.get_mut(&claim) {
            volumes.retain(|volume| *volume != id);
            if volumes.is_empty() {
                self.volumes_of.remove(&claim);
            }
        }
        secrets.into_iter().chain([claim, id]).for_each(|id| self.names.release(id));
    }

    /// Returns `true` if an object belongs to the node, or a pod on the node refers to it, directly or through
    /// a claim.
    pub fn relates(&self, node: &str, kind: Kind, name: Name<'_>) -> bool {
        let find = |kind, name| self.names.find(kind, name);
        let (Some(node), Some(id)) = (find(Kind::Node, ("", node)), find(kind, name)) else { return false };
        if let Some(anchor) = self.anchors.get(&id) {
            return anchor.node == node;
        }
        let Some(held) = self.held.get(&node) else { return false };
        match kind {
            Kind::PersistentVolumeClaim => held.claims.contains_key(&id),
            Kind::PersistentVolume => {
                self.volumes.get(&id).is_some_and(|volume| held.claims.contains_key(&volume.claim))
            }
            Kind::Secret => held.others.contains_key(&id) || self.mounts_with(held, id),
            _ => held.others.contains_key(&id),
        }
    }

    /// Returns `true` if a volume of one of the node's claims is mounted with the Secret. A node has few
    /// claims; how many volumes share the Secret does not matter.
    fn mounts_with(&self, held: &Held, secret: Id) -> bool {
        let volumes = held.claims.keys().filter_map(|claim| self.volumes_of.get(claim)).flatten();
        volumes.filter_map(|volume| self.volumes.get(volume)).any(|volume| volume.secrets.contains(&secret))
    }

    /// Returns `true` if the graph holds nothing.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let Self { names, anchors, held, volumes, volumes_of } = self;
        anchors.is_empty()
            && held.is_empty()
            && volumes.is_empty()
            && volumes_of.is_empty()
            && names.ids.iter().all(HashMap::is_empty)
            && names.slots.iter().all(Option::is_none)
    }
}

impl Held {
    /// The counts that objects of a kind are in.
    fn of(&mut self, kind: Kind) -> &mut HashMap<Id, u32> {
        if kind == Kind::PersistentVolumeClaim { &mut self.claims } else { &mut self.others }
    }
}

/// Names of one kind, by namespace.
type Namespaces = HashMap<Arc<str>, HashMap<Arc<str>, Id>>;

/// The interned objects, each kept while something uses it.
#[derive(Default)]
struct Names {
    ids: [Namespaces; KINDS],
    slots: Vec<Option<Slot>>,
    /// Vacant indexes of `slots`.
    free: Vec<Id>,
}

struct Slot {
    kind: Kind,
    namespace: Arc<str>,
    name: Arc<str>,
    uses: u32,
}

impl Names {
    fn find(&self, kind: Kind, (namespace, name): Name<'_>) -> Option<Id> {
        self.ids[kind as usize].get(namespace)?.get(name).copied()
    }

    fn kind(&self, id: Id) -> Kind {
        self.slots[id as usize].as_ref().expect("an id is acquired before it is used").kind
    }

    /// The id of an object, with one more use.
    fn acquire(&mut self, kind: Kind, (namespace, name): Name<'_>) -> Id {
        if let Some(id) = self.find(kind, (namespace, name)) {
            if let Some(slot) = &mut self.slots[id as usize] {
                slot.uses += 1;
            }
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            Id::try_from(self.slots.len() - 1).expect("memory ends before the ids do")
        });
        let known = self.ids[kind as usize].get_key_value(namespace).map(|(known, _)| Arc::clone(known));
        let (namespace, name) = (known.unwrap_or_else(|| Arc::from(namespace)), Arc::<str>::from(name));
        let names = self.ids[kind as usize].entry(Arc::clone(&namespace)).or_default();
        names.insert(Arc::clone(&name), id);
        self.slots[id as usize] = Some(Slot { kind, namespace, name, uses: 1 });
        id
    }

    /// Takes one use back; an object that nothing uses is forgotten.
    fn release(&mut self, id: Id) {
        let place = &mut self.slots[id as usize];
        let Some(slot) = place else { return };
        slot.uses -= 1;
        if slot.uses > 0 {
            return;
        }
        let Some(Slot { kind, namespace, name, .. }) = place.take() else { return };
        let namespaces = &mut self.ids[kind as usize];
        if let Some(names) = namespaces.get_mut(&namespace) {
            names.remove(&name);
            if names.is_empty() {
                namespaces.remove(&namespace);
            }
        }
        self.free.push(id);
    }
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
