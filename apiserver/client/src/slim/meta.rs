//! Metadata in a third of the memory of `ObjectMeta`, and with labels, annotations, owners and finalizers shared.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use apiserver_meta::intern::Interner;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::intern::FingerprintInterner;
use super::time::OptionalTime;
use crate::object::{Labels, Metadata};

/// Sizes in bytes above which a map or a list, and a text, are not shared: an interner remembers values for a while after
/// their last use, and tenants choose what is in them.
const SHARED_BYTES: usize = 4096;
const SHARED_TEXT: usize = 253;

type Shared<T> = LazyLock<Mutex<Interner<T>>>;

/// Names of namespaces and nodes.
static TEXTS: Shared<str> = Shared::new(Mutex::default);
static LABELS: Shared<Labels> = Shared::new(Mutex::default);
static FINALIZERS: Shared<Vec<String>> = Shared::new(Mutex::default);
static OWNERS: FingerprintInterner<Vec<OwnerReference>> = FingerprintInterner::new();

/// Metadata of a slim object: everything but `generateName`, `selfLink` and `managedFields`.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    name: Box<str>,
    uid: Box<str>,
    resource_version: Box<str>,
    namespace: Arc<str>,
    labels: Option<Arc<Labels>>,
    annotations: Option<Arc<Labels>>,
    owners: Option<Arc<Vec<OwnerReference>>>,
    finalizers: Option<Arc<Vec<String>>>,
    /// 0 if it is not set.
    generation: i64,
    created: OptionalTime,
    deleted: OptionalTime,
    /// Negative if it is not set.
    grace: i64,
}

impl Drop for Meta {
    fn drop(&mut self) {
        release(&LABELS, self.labels.take());
        release(&LABELS, self.annotations.take());
        release(&FINALIZERS, self.finalizers.take());
    }
}

impl Default for Meta {
    fn default() -> Self {
        Self::from(ObjectMeta::default())
    }
}

/// Returns the one copy of a text that many objects have, such as the name of a node.
pub fn shared_text(text: &str) -> Arc<str> {
    if text.len() > SHARED_TEXT {
        return text.into();
    }
    TEXTS.lock().unwrap_or_else(PoisonError::into_inner).intern(text)
}

/// Returns the one copy of a value that many objects have, or a copy of its own of one that is large; `None` if it has no
/// bytes.
fn shared<T: Ord>(interner: &Shared<T>, value: Option<T>, bytes: fn(&T) -> usize) -> Option<Arc<T>> {
    let value = value?;
    match bytes(&value) {
        0 => None,
        1..=SHARED_BYTES => Some(interner.lock().unwrap_or_else(PoisonError::into_inner).intern(value)),
        _ => Some(Arc::new(value)),
    }
}

/// Drops a value, which the interner forgets if nobody else has it.
fn release<T: Ord>(interner: &Shared<T>, value: Option<Arc<T>>) {
    // One is here, and one in the interner; a large value is here alone.
    if let Some(value) = value.filter(|value| Arc::strong_count(value) == 2) {
        interner.lock().unwrap_or_else(PoisonError::into_inner).release(value);
    }
}

fn bytes_of_labels(labels: &Labels) -> usize {
    labels.iter().map(|(key, value)| key.len() + value.len()).sum()
}

fn set(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

impl From<ObjectMeta> for Meta {
    fn from(meta: ObjectMeta) -> Self {
        let own = |text: Option<String>| text.unwrap_or_default().into_boxed_str();
        Self {
            name: own(meta.name),
            uid: own(meta.uid),
            resource_version: own(meta.resource_version),
            namespace: shared_text(meta.namespace.as_deref().unwrap_or_default()),
            labels: shared(&LABELS, meta.labels, bytes_of_labels),
            annotations: shared(&LABELS, meta.annotations, bytes_of_labels),
            owners: meta
                .owner_references
                .filter(|owners| !owners.is_empty())
                .map(|owners| OWNERS.share(owners)),
            finalizers: shared(&FINALIZERS, meta.finalizers, |all| all.iter().map(String::len).sum()),
            generation: meta.generation.unwrap_or(0),
            created: meta.creation_timestamp.into(),
            deleted: meta.deletion_timestamp.into(),
            grace: meta.deletion_grace_period_seconds.unwrap_or(-1),
        }
    }
}

impl Meta {
    pub fn generation(&self) -> Option<i64> {
        (self.generation != 0).then_some(self.generation)
    }

    /// Returns the grace period of an object that is being deleted, in seconds.
    pub fn grace(&self) -> Option<i64> {
        (self.grace >= 0).then_some(self.grace)
    }

    /// Returns the labels, which equal ones of other objects share; `None` if there are none.
    pub fn shared_labels(&self) -> Option<&Arc<Labels>> {
        self.labels.as_ref()
    }

    /// Returns the namespace, which other objects share.
    pub fn shared_namespace(&self) -> &Arc<str> {
        &self.namespace
    }

    /// Returns the metadata as the types of the API have it.
    pub fn to_api(&self) -> ObjectMeta {
        ObjectMeta {
            name: set(&self.name),
            namespace: set(&self.namespace),
            uid: set(&self.uid),
            resource_version: set(&self.resource_version),
            labels: self.labels.as_deref().cloned(),
            annotations: self.annotations.as_deref().cloned(),
            owner_references: self.owners.as_deref().cloned(),
            finalizers: self.finalizers.as_deref().cloned(),
            generation: self.generation(),
            creation_timestamp: self.created.to_api(),
            deletion_timestamp: self.deleted.to_api(),
            deletion_grace_period_seconds: self.grace(),
            ..ObjectMeta::default()
        }
    }
}

impl Metadata for Meta {
    fn name(&self) -> &str {
        &self.name
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

    fn labels(&self) -> Option<&Labels> {
        self.labels.as_deref()
    }

    fn annotations(&self) -> Option<&Labels> {
        self.annotations.as_deref()
    }

    fn owners(&self) -> &[OwnerReference] {
        self.owners.as_deref().map_or(&[], Vec::as_slice)
    }

    fn finalizers(&self) -> &[String] {
        self.finalizers.as_deref().map_or(&[], Vec::as_slice)
    }

    fn created(&self) -> Option<Timestamp> {
        self.created.get()
    }

    fn deleted(&self) -> Option<Timestamp> {
        self.deleted.get()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn full() -> ObjectMeta {
        from_value(json!({
            "name": "web-1", "namespace": "ns", "uid": "3f1d7a52-8d5e-4b0e-9a60-0f2b6f6f1c11", "resourceVersion": "17",
            "labels": {"app": "web"}, "annotations": {"a": "b"}, "finalizers": ["f"], "generation": 3,
            "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:05:05Z",
            "deletionGracePeriodSeconds": 0,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
                "controller": true, "blockOwnerDeletion": true}],
        }))
        .unwrap()
    }

    #[test]
    fn all_but_managed_fields_is_kept_and_read_alike() {
        let (meta, slim) = (full(), Meta::from(full()));
        assert_eq!(slim.to_api(), meta);
        assert_eq!((slim.name(), slim.namespace(), slim.uid()), (meta.name(), meta.namespace(), meta.uid()));
        assert_eq!((slim.labels(), slim.annotations()), (meta.labels(), meta.annotations()));
        assert_eq!((slim.owners(), slim.finalizers()), (meta.owners(), meta.finalizers()));
        assert_eq!((slim.created(), slim.deleted()), (meta.created(), meta.deleted()));
        assert_eq!(slim.resource_version(), meta.resource_version());
        assert_eq!(Meta::default().to_api(), ObjectMeta::default());
    }

    #[test]
    fn large_annotations_and_names_are_not_shared() {
        let large = |bytes: usize| {
            let annotations = Some([("a".to_owned(), "b".repeat(bytes))].into());
            Meta::from(ObjectMeta { annotations, namespace: Some("n".repeat(bytes)), ..full() })
        };
        let same = |bytes: usize| {
            let (a, b) = (large(bytes), large(bytes));
            assert_eq!(a, b);
            (
                Arc::ptr_eq(a.annotations.as_ref().unwrap(), b.annotations.as_ref().unwrap()),
                Arc::ptr_eq(&a.namespace, &b.namespace),
            )
        };
        assert_eq!((same(SHARED_TEXT), same(SHARED_BYTES)), ((true, true), (false, false)));
        assert_eq!(same(SHARED_BYTES - 1), (true, false));
    }

    #[test]
    fn values_are_forgotten_with_the_last_object_that_has_them() {
        let labels: Labels = [("only".to_owned(), "here".to_owned())].into();
        let is_known = || {
            let known = LABELS.lock().unwrap();
            known.iter().any(|known| **known == labels)
        };
        let meta = || Meta::from(ObjectMeta { labels: Some(labels.clone()), ..full() });
        let (first, second) = (meta(), meta());
        drop(first);
        assert!(is_known());
        drop(second);
        assert!(!is_known());
    }

    #[test]
    fn pods_of_a_template_share_labels_owners_and_namespace() {
        let (a, b) =
            (Meta::from(full()), Meta::from(ObjectMeta { name: Some("web-2".to_owned()), ..full() }));
        assert!(Arc::ptr_eq(a.labels.as_ref().unwrap(), b.labels.as_ref().unwrap()));
        assert!(Arc::ptr_eq(a.owners.as_ref().unwrap(), b.owners.as_ref().unwrap()));
        assert!(Arc::ptr_eq(&a.namespace, &b.namespace));
        assert!(size_of::<Meta>() <= 128, "{} bytes", size_of::<Meta>());
    }
}
