//! The objects that quotas count, as the books keep them.

use std::sync::Arc;

use apiserver_client::version_of;
use apiserver_meta::quota::{self, Object, Selector, Usage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::meta::uid;

/// Kinds of which more than the number counts.
pub(super) const MEASURED: [&str; 3] = ["persistentvolumeclaims", "pods", "services"];

/// An object that is counted.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub uid: String,
    pub version: u64,
    pub created: Timestamp,
    held: Held,
    /// `false` for a pod that only uses its place in the store.
    pub counted: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Held {
    Pod(Arc<Pod>),
    Service(Arc<Service>),
    Claim(Arc<PersistentVolumeClaim>),
    Other,
}

impl Record {
    pub fn new(meta: &ObjectMeta, held: Held, now: Timestamp) -> Self {
        let mut record = Self {
            uid: uid(meta).to_owned(),
            version: version_of(meta),
            // An object without a time counts as old, which delays corrections.
            created: meta.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0),
            held,
            counted: true,
        };
        record.review(now);
        record
    }

    /// Decides again whether the object is counted; returns `true` if it no longer is.
    pub fn review(&mut self, now: Timestamp) -> bool {
        let Held::Pod(pod) = &self.held else { return false };
        let was_counted = self.counted;
        self.counted = quota::is_counted(pod, now);
        was_counted && !self.counted
    }

    /// Returns when the object stops being counted without another change.
    pub fn ends(&self) -> Option<Timestamp> {
        match &self.held {
            Held::Pod(pod) if self.counted => quota::ends(pod),
            _ => None,
        }
    }

    fn object(&self) -> Object<'_> {
        match &self.held {
            Held::Pod(pod) => Object::Pod(pod),
            Held::Service(service) => Object::Service(service),
            Held::Claim(claim) => Object::Claim(claim),
            Held::Other => Object::Other,
        }
    }

    /// Returns what the object uses of the resources of a quota with these scopes.
    pub fn usage(&self, kind: &str, resources: &Usage, selectors: &[Selector]) -> Usage {
        if !quota::in_scope(selectors, self.object()) {
            return Usage::new();
        }
        let usage = quota::usage(kind, self.object(), self.counted);
        quota::masked(&usage, |name| resources.contains_key(name))
    }
}
