//! The objects that quotas count, as the books keep them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use apiserver_client::version_of;
use apiserver_meta::quota::{self, Object, Selector, Usage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::meta::{name, uid};

/// Kinds of which more than the number counts.
pub(super) const MEASURED: [&str; 3] = ["persistentvolumeclaims", "pods", "services"];

/// An object that is counted. There is one for each pod of the cluster, so that it is two words long, and what is in
/// the object is not stored again.
#[derive(Clone, Debug)]
pub(super) enum Record {
    /// A pod, and `false` if it only uses its place in the store.
    Pod(Arc<Pod>, bool),
    Service(Arc<Service>),
    Claim(Arc<PersistentVolumeClaim>),
    Other(Arc<Identity>),
}

const _: () = assert!(size_of::<Record>() == 16);

/// The known properties of an object of which only the number counts.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    name: String,
    uid: String,
    version: u64,
    created: Timestamp,
}

#[derive(Clone, Debug)]
pub(super) enum Held {
    Pod(Arc<Pod>),
    Service(Arc<Service>),
    Claim(Arc<PersistentVolumeClaim>),
    Other,
}

impl Record {
    /// Returns the record of the object with this metadata.
    pub fn new(meta: &ObjectMeta, held: Held, now: Timestamp) -> Self {
        match held {
            Held::Pod(pod) => {
                let counted = quota::is_counted(&pod, now);
                Self::Pod(pod, counted)
            }
            Held::Service(service) => Self::Service(service),
            Held::Claim(claim) => Self::Claim(claim),
            Held::Other => Self::Other(Arc::new(Identity {
                name: name(meta).to_owned(),
                uid: uid(meta).to_owned(),
                version: version_of(meta),
                created: created(meta),
            })),
        }
    }

    /// Returns the metadata of the object, or what is known of it.
    fn meta(&self) -> Result<&ObjectMeta, &Identity> {
        match self {
            Self::Pod(pod, _) => Ok(&pod.metadata),
            Self::Service(service) => Ok(&service.metadata),
            Self::Claim(claim) => Ok(&claim.metadata),
            Self::Other(identity) => Err(identity),
        }
    }

    pub fn name(&self) -> &str {
        self.meta().map_or_else(|identity| identity.name.as_str(), name)
    }

    pub fn uid(&self) -> &str {
        self.meta().map_or_else(|identity| identity.uid.as_str(), uid)
    }

    pub fn version(&self) -> u64 {
        self.meta().map_or_else(|identity| identity.version, version_of)
    }

    pub fn created(&self) -> Timestamp {
        self.meta().map_or_else(|identity| identity.created, created)
    }

    /// Decides again whether the object is counted; returns `true` if it no longer is.
    pub fn review(&mut self, now: Timestamp) -> bool {
        let Self::Pod(pod, counted) = self else { return false };
        let was_counted = std::mem::replace(counted, quota::is_counted(pod, now));
        was_counted && !*counted
    }

    /// Returns when the object stops being counted without another change.
    pub fn ends(&self) -> Option<Timestamp> {
        match self {
            Self::Pod(pod, true) => quota::ends(pod),
            _ => None,
        }
    }

    fn object(&self) -> Object<'_> {
        match self {
            Self::Pod(pod, _) => Object::Pod(pod),
            Self::Service(service) => Object::Service(service),
            Self::Claim(claim) => Object::Claim(claim),
            Self::Other(_) => Object::Other,
        }
    }

    /// Returns what the object uses of the resources of a quota with these scopes.
    pub fn usage(&self, kind: &str, resources: &Usage, selectors: &[Selector]) -> Usage {
        if !quota::in_scope(selectors, self.object()) {
            return Usage::new();
        }
        let usage = quota::usage(kind, self.object(), !matches!(self, Self::Pod(_, false)));
        quota::masked(&usage, |name| resources.contains_key(name))
    }

    /// Returns the record of another object of the same name, for tests.
    #[cfg(test)]
    pub fn with_uid(self, uid: &str) -> Self {
        match self {
            Self::Pod(mut pod, counted) => {
                Arc::make_mut(&mut pod).metadata.uid = Some(uid.to_owned());
                Self::Pod(pod, counted)
            }
            Self::Other(mut identity) => {
                uid.clone_into(&mut Arc::make_mut(&mut identity).uid);
                Self::Other(identity)
            }
            other => panic!("no test needs another {other:?}"),
        }
    }
}

/// Returns when an object was created. One without a time counts as old, which delays corrections.
fn created(meta: &ObjectMeta) -> Timestamp {
    meta.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0)
}

/// A record by the name of its object.
pub(super) struct Named(pub Record);

impl Borrow<str> for Named {
    fn borrow(&self) -> &str {
        self.0.name()
    }
}

impl PartialEq for Named {
    fn eq(&self, other: &Self) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for Named {}

impl PartialOrd for Named {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Named {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name().cmp(other.0.name())
    }
}
