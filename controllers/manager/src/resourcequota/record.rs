//! The objects that quotas count, as the books keep them.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use apiserver_client::slim::Meta;
use apiserver_client::{Metadata, Object as _, version_of};
use apiserver_meta::quota::{self, Object, Selector, Usage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::pods::Pod;

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
    /// An object of which only the number counts.
    Other(Arc<Meta>),
}

const _: () = assert!(size_of::<Record>() == 16);

impl Record {
    pub fn of_pod(pod: Arc<Pod>, now: Timestamp) -> Self {
        let counted = is_counted(&pod, now);
        Self::Pod(pod, counted)
    }

    /// Returns the record of an object of which only the number counts.
    pub fn of_other(meta: ObjectMeta) -> Self {
        let ObjectMeta { name, uid, resource_version, creation_timestamp, .. } = meta;
        let kept = ObjectMeta { name, uid, resource_version, creation_timestamp, ..ObjectMeta::default() };
        Self::Other(Arc::new(kept.into()))
    }

    fn meta(&self) -> &dyn Metadata {
        match self {
            Self::Pod(pod, _) => &pod.metadata,
            Self::Service(service) => &service.metadata,
            Self::Claim(claim) => &claim.metadata,
            Self::Other(meta) => meta.as_ref(),
        }
    }

    pub fn name(&self) -> &str {
        self.meta().name()
    }

    pub fn uid(&self) -> &str {
        self.meta().uid()
    }

    pub fn version(&self) -> u64 {
        version_of(self.meta())
    }

    /// Returns when the object was created. One without a time counts as old, which delays corrections.
    pub fn created(&self) -> Timestamp {
        self.meta().created().unwrap_or(Timestamp::MIN)
    }

    /// Decides again whether the object is counted; returns `true` if it no longer is.
    pub fn review(&mut self, now: Timestamp) -> bool {
        let Self::Pod(pod, counted) = self else { return false };
        let was_counted = std::mem::replace(counted, is_counted(pod, now));
        was_counted && !*counted
    }

    /// Returns when the object stops being counted without another change.
    pub fn ends(&self) -> Option<Timestamp> {
        match self {
            Self::Pod(pod, true) => ends(pod),
            _ => None,
        }
    }

    /// Returns what the object uses of the resources of a quota with these scopes.
    pub fn usage(&self, kind: &str, resources: &Usage, selectors: &[Selector]) -> Usage {
        let usage = |object: Object<'_>| {
            if !quota::in_scope(selectors, object) {
                return Usage::new();
            }
            let usage = quota::usage(kind, object, !matches!(self, Self::Pod(_, false)));
            quota::masked(&usage, |name| resources.contains_key(name))
        };
        match self {
            Self::Pod(pod, _) => usage(Object::Pod(&pod.to_api())),
            Self::Service(service) => usage(Object::Service(service)),
            Self::Claim(claim) => usage(Object::Claim(claim)),
            Self::Other(_) => usage(Object::Other),
        }
    }

    /// Returns the record of another object of the same name, for tests.
    #[cfg(test)]
    pub fn with_uid(self, uid: &str) -> Self {
        let uid = Some(uid.to_owned());
        match self {
            Self::Pod(pod, counted) => {
                let mut pod = pod.to_api();
                pod.metadata.uid = uid;
                Self::Pod(Arc::new(pod.into()), counted)
            }
            Self::Other(meta) => Self::Other(Arc::new(ObjectMeta { uid, ..meta.to_api() }.into())),
            other => panic!("no test needs another {other:?}"),
        }
    }
}

/// Returns `true` if a pod counts as one that uses resources.
fn is_counted(pod: &Pod, now: Timestamp) -> bool {
    !pod.is_finished() && ends(pod).is_none_or(|end| now <= end)
}

/// Returns when a pod that is deleted is no longer counted.
fn ends(pod: &Pod) -> Option<Timestamp> {
    quota::ends(pod.metadata.deleted(), pod.metadata.grace())
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
