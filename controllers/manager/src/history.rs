//! ControllerRevisions: former templates of an object, to which it can be rolled back.

use std::sync::Arc;

use apiserver_meta::fnv::fnv1a_32;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::Resource;
use serde_json::{Map, Value, json};

use crate::hash::safe;
use crate::meta::{Labels, controller_reference, name};

/// Label of a revision, and of the pods that were made from it.
pub(crate) const HASH_LABEL: &str = "controller-revision-hash";

/// Maximum length of the owner's part of a revision's name, in bytes.
const PREFIX_LENGTH: usize = 223;

/// Returns the strategic merge patch that restores `template`, as the data of a revision.
pub(crate) fn template_patch(template: &PodTemplateSpec) -> Value {
    // Kubernetes types always serialize to JSON.
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// Returns the hash of a revision's data. `collisions` distinguishes data with equal hashes.
pub(crate) fn hash(data: &Value, collisions: Option<i32>) -> String {
    let encoded = data.to_string();
    let salt = collisions.map(i32::to_le_bytes);
    safe(fnv1a_32(encoded.bytes().chain(salt.into_iter().flatten())))
}

/// Returns the value of the label [`HASH_LABEL`].
pub(crate) fn hash_of(meta: &ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get(HASH_LABEL).map(String::as_str)
}

/// Returns `true` if `data` is that of the revision. Fields that are `null` count as absent: older versions of
/// Kubernetes wrote `creationTimestamp: null`.
pub(crate) fn holds(revision: &ControllerRevision, data: &Value) -> bool {
    let held = revision.data.as_ref().map(|held| without_nulls(&held.0));
    held.is_some_and(|held| held == without_nulls(data))
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let given = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                given.map(|(key, value)| (key.clone(), without_nulls(value))).collect::<Map<_, _>>(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

/// Returns the number that follows those of all `revisions`.
pub(crate) fn next_number<'a>(revisions: impl IntoIterator<Item = &'a Arc<ControllerRevision>>) -> i64 {
    let newest = revisions.into_iter().map(|revision| revision.revision).max();
    newest.unwrap_or(0).max(0).saturating_add(1)
}

/// Returns a revision that `owner` controls. `labels` are those of its template.
pub(crate) fn new_revision<K: Resource<DynamicType = ()>>(
    owner: &K,
    labels: Labels,
    data: Value,
    number: i64,
    collisions: Option<i32>,
) -> ControllerRevision {
    let hash = hash(&data, collisions);
    let mut labels = labels;
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    let owner_meta = owner.meta();
    let prefix = name(owner_meta);
    let prefix = prefix.get(..PREFIX_LENGTH).unwrap_or(prefix);
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: owner_meta.namespace.clone(),
            labels: Some(labels),
            annotations: owner_meta.annotations.clone(),
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: number,
    }
}

/// Returns the oldest of the `old` revisions above `limit`, without those that are `live`: pods made from them exist.
pub(crate) fn surplus(
    old: &[Arc<ControllerRevision>],
    limit: usize,
    live: impl Fn(&ControllerRevision) -> bool,
) -> Vec<Arc<ControllerRevision>> {
    let mut old = old.to_vec();
    let count = old.len().saturating_sub(limit);
    old.sort_by_key(|revision| revision.revision);
    old.retain(|revision| !live(revision));
    old.truncate(count);
    old
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, template};

    fn revision(name: &str, number: i64) -> Arc<ControllerRevision> {
        let metadata = testing::meta(name);
        Arc::new(ControllerRevision { metadata, revision: number, ..ControllerRevision::default() })
    }

    fn names(revisions: &[Arc<ControllerRevision>]) -> Vec<&str> {
        revisions.iter().map(|revision| name(&revision.metadata)).collect()
    }

    #[test]
    fn patch_of_a_template_replaces_it_and_names_differ_by_template_and_collision() {
        let (one, two) = (template_patch(&template("image:1")), template_patch(&template("image:2")));
        assert_eq!(one.pointer("/spec/template/$patch"), Some(&json!("replace")));
        assert_eq!(hash(&one, None), hash(&one, None));
        assert_ne!(hash(&one, None), hash(&two, None));
        assert_ne!(hash(&one, None), hash(&one, Some(0)));
        assert_ne!(hash(&one, Some(0)), hash(&one, Some(1)));
    }

    #[test]
    fn new_revision_is_owned_labelled_and_named_by_its_hash() {
        let owner = testing::replica_set("web", 1);
        let data = template_patch(&template("image:1"));
        let new = new_revision(&owner, testing::labels(&[("app", "test")]), data.clone(), 3, None);
        let hash = hash(&data, None);
        assert_eq!(new.metadata.name, Some(format!("web-{hash}")));
        assert_eq!(new.metadata.labels, Some(testing::labels(&[("app", "test"), (HASH_LABEL, &hash)])));
        assert_eq!(new.metadata.owner_references, Some(vec![controller_reference(&owner)]));
        assert_eq!(
            (hash_of(&new.metadata), new.revision, holds(&new, &data)),
            (Some(hash.as_str()), 3, true)
        );
        let long = testing::replica_set(&"x".repeat(253), 1);
        assert_eq!(
            new_revision(&long, Labels::new(), data, 1, None).metadata.name.unwrap().len(),
            224 + hash.len()
        );
    }

    #[test]
    fn data_is_compared_without_nulls() {
        let data =
            json!({"spec": {"template": {"metadata": {"creationTimestamp": null, "labels": {"a": "b"}}}}});
        let older = ControllerRevision { data: Some(RawExtension(data)), ..ControllerRevision::default() };
        assert!(holds(&older, &json!({"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})));
        assert!(!holds(&older, &json!({"spec": {"template": {"metadata": {"labels": {"a": "c"}}}}})));
    }

    #[test]
    fn numbers_go_on_from_the_highest() {
        assert_eq!(next_number(&[]), 1);
        assert_eq!(next_number(&[revision("a", 7), revision("b", 2)]), 8);
        assert_eq!(next_number(&[revision("a", i64::MAX)]), i64::MAX);
    }

    #[test]
    fn oldest_revisions_above_the_limit_go_but_no_live_one() {
        let old = [revision("c", 3), revision("a", 1), revision("d", 4), revision("b", 2)];
        assert_eq!(names(&surplus(&old, 2, |_| false)), ["a", "b"]);
        assert_eq!(names(&surplus(&old, 2, |revision| revision.revision == 1)), ["b", "c"]);
        assert_eq!(names(&surplus(&old, 0, |revision| revision.revision < 4)), ["d"]);
        assert!(surplus(&old, 4, |_| false).is_empty() && surplus(&old, 10, |_| false).is_empty());
    }
}
