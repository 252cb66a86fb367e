//! The objects of the ownership graph: small, because there is one for each object of the cluster.

use std::sync::Arc;

use apiserver_client::{Metadata, ObjectKey};
use apiserver_meta::intern::Interner;
use apiserver_meta::uid::Uid;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::discovery::Kind;
use crate::meta::{is_deleted, name, namespace, owners, uid};

/// Finalizer of an owner that waits until the dependents that block it are gone.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an owner whose dependents are to be released first.
pub(super) const ORPHAN: &str = "orphan";

/// The length of the longest name (RFC 1123).
const NAME_LENGTH: usize = 253;

/// The deletion of an object, as far as it concerns the collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Deletion {
    pub has_begun: bool,
    /// True if a finalizer requests that dependents go first.
    pub foreground: bool,
    /// True if a finalizer requests that dependents are released.
    pub orphan: bool,
}

impl Deletion {
    /// Returns the deletion of the object with this metadata.
    pub fn of(meta: &impl Metadata) -> Self {
        let has = |finalizer: &str| meta.finalizers().iter().any(|known| known == finalizer);
        Self { has_begun: is_deleted(meta), foreground: has(FOREGROUND), orphan: has(ORPHAN) }
    }

    /// Returns `true` if the object is being deleted and waits for its dependents to go first.
    pub fn awaits_dependents(self) -> bool {
        self.has_begun && self.foreground
    }

    pub fn needs_attention(self) -> bool {
        self.has_begun && (self.foreground || self.orphan)
    }
}

/// The properties of an object that the graph needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub uid: Uid,
    pub name: Box<str>,
    pub(super) family: Arc<Family>,
    pub deletion: Deletion,
}

/// The properties that an object shares with others, such as all pods of a ReplicaSet. They are compared in this order:
/// the first of them differs in most cases.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Family {
    pub(super) owners: Box<[Reference]>,
    pub(super) namespace: Arc<str>,
    pub(super) kind: Arc<Kind>,
}

/// A reference to an owner. The graph reads uid and `block_owner_deletion`; the other fields make a change of any of
/// them a change of the object.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference {
    pub uid: Uid,
    pub(super) name: Box<str>,
    pub(super) kind: Arc<str>,
    pub(super) api_version: Arc<str>,
    pub(super) block_owner_deletion: Option<bool>,
    pub(super) controller: Option<bool>,
}

impl Object {
    pub fn kind(&self) -> &Arc<Kind> {
        &self.family.kind
    }

    /// Returns the namespace; empty for cluster-scoped kinds.
    pub fn namespace(&self) -> &str {
        &self.family.namespace
    }

    pub fn owners(&self) -> &[Reference] {
        &self.family.owners
    }

    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), &self.name)
    }

    /// Returns `true` if an object in the namespace of `owner`, or in any if it has none, may name it as its owner.
    pub fn can_be_owned_by(&self, owner: &Object) -> bool {
        !owner.kind().namespaced || owner.namespace() == self.namespace()
    }

    /// Returns `true` if the object blocks the deletion of an owner.
    pub fn blocks(&self, owner: &Uid) -> bool {
        let mut owners = self.owners().iter();
        owners.any(|reference| reference.uid == *owner && reference.block_owner_deletion == Some(true))
    }
}

/// Makes objects, and stores what several of them have in common only once.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) families: Interner<Family>,
    /// Namespaces, and kinds and API versions of owners.
    pub(super) texts: Interner<str>,
}

impl Objects {
    /// Returns the object of a kind with this metadata.
    pub fn object(&mut self, kind: &Arc<Kind>, meta: &impl Metadata) -> Object {
        let owners = owners(meta).iter().map(|owner| self.reference(owner)).collect();
        let namespace = self.texts.intern(namespace(meta));
        let family = Family { owners, namespace, kind: Arc::clone(kind) };
        Object {
            uid: Uid::from(uid(meta)),
            name: name(meta).into(),
            family: self.families.intern(family),
            deletion: Deletion::of(meta),
        }
    }

    /// Returns a shared copy of a text, unless it is longer than a name can be: tenants choose what is in a reference.
    fn text(&mut self, text: &str) -> Arc<str> {
        if text.len() > NAME_LENGTH { text.into() } else { self.texts.intern(text) }
    }

    fn reference(&mut self, owner: &OwnerReference) -> Reference {
        Reference {
            uid: Uid::from(owner.uid.as_str()),
            name: owner.name.as_str().into(),
            kind: self.text(&owner.kind),
            api_version: self.text(&owner.api_version),
            block_owner_deletion: owner.block_owner_deletion,
            controller: owner.controller,
        }
    }

    /// Drops an object that the graph has no more; what it had in common with no other one goes with it.
    pub fn release(&mut self, object: Arc<Object>) {
        if let Some(object) = Arc::into_inner(object) {
            self.families.release(object.family);
        }
    }
}
