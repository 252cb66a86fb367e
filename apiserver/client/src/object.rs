//! Objects with metadata, as the API has them or [slim](crate::slim): what code that works with both needs to know.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;

/// Labels or annotations.
pub type Labels = BTreeMap<String, String>;

/// Metadata of an object. Texts that are not set are empty.
pub trait Metadata {
    fn name(&self) -> &str;
    /// Returns the namespace; empty for cluster-scoped kinds.
    fn namespace(&self) -> &str;
    fn uid(&self) -> &str;
    fn resource_version(&self) -> &str;
    fn labels(&self) -> Option<&Labels>;
    fn annotations(&self) -> Option<&Labels>;
    fn owners(&self) -> &[OwnerReference];
    fn finalizers(&self) -> &[String];
    fn created(&self) -> Option<Timestamp>;
    /// Returns when the object is, or was to be, deleted; `None` if it is not being deleted.
    fn deleted(&self) -> Option<Timestamp>;
}

impl Metadata for ObjectMeta {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.uid.as_deref().unwrap_or_default()
    }

    fn resource_version(&self) -> &str {
        self.resource_version.as_deref().unwrap_or_default()
    }

    fn labels(&self) -> Option<&Labels> {
        self.labels.as_ref()
    }

    fn annotations(&self) -> Option<&Labels> {
        self.annotations.as_ref()
    }

    fn owners(&self) -> &[OwnerReference] {
        self.owner_references.as_deref().unwrap_or_default()
    }

    fn finalizers(&self) -> &[String] {
        self.finalizers.as_deref().unwrap_or_default()
    }

    fn created(&self) -> Option<Timestamp> {
        self.creation_timestamp.as_ref().map(|time| time.0)
    }

    fn deleted(&self) -> Option<Timestamp> {
        self.deletion_timestamp.as_ref().map(|time| time.0)
    }
}

/// An object with metadata.
pub trait Object {
    /// The object as the API has it.
    type Kind: Resource;
    type Meta: Metadata;

    fn metadata(&self) -> &Self::Meta;

    /// Returns the object as the types of the API have it, to write a change of it as a patch. What a slim object does
    /// not store is not there, so it must not be written as a whole.
    fn to_api(&self) -> Self::Kind
    where
        Self::Kind: Clone;
}

impl<K: Resource> Object for K {
    type Kind = K;
    type Meta = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }

    fn to_api(&self) -> K
    where
        K: Clone,
    {
        self.clone()
    }
}
