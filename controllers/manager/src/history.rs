//! ControllerRevisions: the templates that a workload has had, each as a patch that restores it.
//!
//! A revision is recognized by the template that it restores, never by its bytes or its name: another encoding of
//! the same template must not replace any pod.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use apiserver_client::{Cache, ObjectKey};
use apiserver_meta::fnv::fnv1a_32;
use controllers_runtime::{Attempt, Error, Ledger, Result};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::{Value, json};

use crate::context::Context;
use crate::index::Owned;
use crate::meta::{self, Claims, controller_of, controller_reference, name, namespace, only_this, uid};
use crate::{hash, limits, patch};

/// Label with the hash of a revision's data, of most kinds of workloads.
pub(crate) const HASH: &str = "controller.kubernetes.io/hash";
/// Greatest length of the part of a revision's name that comes from its owner.
const PREFIX_LENGTH: usize = 223;
/// Fields of templates that mean the same whether they are absent or empty objects. Others, such as
/// `namespaceSelector` and `emptyDir`, do not.
const ABSENT_IF_EMPTY: [&str; 5] = ["metadata", "labels", "annotations", "resources", "securityContext"];

/// Returns the data of the revision of a template.
fn data(template: &PodTemplateSpec) -> Value {
    // Kubernetes types always serialize to JSON.
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// Returns the template that a revision restores; `None` if its data contains none.
pub(crate) fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    serde_json::from_value(template).ok()
}

/// Returns `true` if a revision restores this template.
pub(crate) fn restores(revision: &ControllerRevision, wanted: &PodTemplateSpec) -> bool {
    template(revision).is_some_and(|template| normal(&template) == normal(wanted))
}

/// Returns a form of a template that is the same for all encodings of it.
fn normal(template: &PodTemplateSpec) -> Value {
    let mut value = serde_json::to_value(template).unwrap_or_default();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("creationTimestamp");
    }
    normalize(&mut value);
    value
}

fn normalize(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(normalize),
        Value::Object(fields) => {
            fields.values_mut().for_each(normalize);
            fields.retain(|key, value| match value {
                Value::Null => false,
                Value::Array(items) => !items.is_empty(),
                Value::Object(fields) => !fields.is_empty() || !ABSENT_IF_EMPTY.contains(&key.as_str()),
                _ => true,
            });
        }
        _ => {}
    }
}

/// Returns the revisions from the oldest to the newest.
pub(crate) fn sorted(mut revisions: Vec<Arc<ControllerRevision>>) -> Vec<Arc<ControllerRevision>> {
    revisions.sort_by(|a, b| {
        let order = |revision: &ControllerRevision| {
            let created = revision.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (revision.revision, created)
        };
        order(a).cmp(&order(b)).then_with(|| name(&a.metadata).cmp(name(&b.metadata)))
    });
    revisions
}

/// The revision of a workload's template.
#[derive(Debug, PartialEq)]
pub(crate) enum Choice {
    /// It is the newest.
    Newest(Arc<ControllerRevision>),
    /// It is older, as after a rollback, and gets this number to become the newest.
    Renumber(Arc<ControllerRevision>, i64),
    /// There is none: it is created with this number.
    Create(i64),
}

/// Chooses the revision of the template `wanted` among those of the workload, which must be sorted. `settled` is the
/// name of the revision that was chosen before, if the workload's spec has not changed since.
pub(crate) fn choose(
    revisions: &[Arc<ControllerRevision>],
    wanted: &PodTemplateSpec,
    settled: Option<&str>,
) -> Choice {
    let number = revisions.last().map_or(1, |newest| newest.revision.saturating_add(1));
    let settled = settled.and_then(|known| revisions.iter().rposition(|one| name(&one.metadata) == known));
    let found = settled.or_else(|| revisions.iter().rposition(|one| restores(one, wanted)));
    match found {
        Some(index) if index + 1 == revisions.len() => Choice::Newest(Arc::clone(&revisions[index])),
        Some(index) => Choice::Renumber(Arc::clone(&revisions[index]), number),
        None => Choice::Create(number),
    }
}

/// Returns the revisions to delete: the oldest beyond `limit` of those that are not live. `revisions` must be sorted.
pub(crate) fn surplus(
    revisions: &[Arc<ControllerRevision>],
    live: &BTreeSet<&str>,
    limit: Option<i32>,
) -> Vec<Arc<ControllerRevision>> {
    let Ok(limit) = usize::try_from(limit.unwrap_or(10)) else { return Vec::new() };
    let mut history: Vec<_> =
        revisions.iter().filter(|one| !live.contains(name(&one.metadata))).cloned().collect();
    history.truncate(history.len().saturating_sub(limit));
    history
}

/// Returns a new revision of a template, with its hash in `label`. `collisions` distinguishes templates with equal
/// hashes.
pub(crate) fn new_revision<K>(
    parent: &K,
    template: &PodTemplateSpec,
    number: i64,
    collisions: i32,
    label: &str,
) -> ControllerRevision
where
    K: Resource<DynamicType = ()>,
{
    let data = data(template);
    let encoded = serde_json::to_vec(&data).unwrap_or_default();
    let hash = hash::safe(fnv1a_32(encoded.into_iter().chain(collisions.to_string().into_bytes())));
    let mut labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    labels.insert(label.to_owned(), hash.clone());
    let parent_meta = parent.meta();
    let prefix: String = name(parent_meta).chars().take(PREFIX_LENGTH).collect();
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: parent_meta.namespace.clone(),
            labels: Some(labels),
            annotations: parent_meta.annotations.clone(),
            owner_references: Some(vec![controller_reference(parent)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: number,
    }
}

/// The revisions of the workloads of one kind: found in a cache, and written.
pub(crate) struct History {
    client: Client,
    /// Label with the hash of a revision.
    label: &'static str,
    revisions: Owned<ControllerRevision>,
    ledger: Ledger<ObjectKey>,
}

impl History {
    /// Returns a history whose new revisions have their hash in `label`.
    pub fn new(context: &Context, label: &'static str) -> Self {
        Self {
            client: context.client.clone(),
            label,
            revisions: Owned::new(context.informers.cache()),
            ledger: Ledger::default(),
        }
    }

    pub fn cache(&self) -> &Cache<ControllerRevision> {
        self.revisions.cache()
    }

    /// Returns `true` if the cache shows everything that was written for the workload.
    pub fn is_shown(&self, key: &ObjectKey) -> bool {
        self.ledger.is_shown(key, self.cache())
    }

    /// Forgets what was written for a workload that is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.ledger.forget(key);
    }

    /// Returns the revisions that a workload owns or adopts. Those that no longer match its selector are neither used
    /// nor released, as in Kubernetes.
    pub fn claims(&self, owner: &ObjectMeta, selector: &LabelSelector) -> Claims<Arc<ControllerRevision>> {
        let candidates = self.revisions.concerned(namespace(owner), uid(owner), selector);
        Claims { release: Vec::new(), ..meta::claim(owner, selector, candidates) }
    }

    /// Creates the revision of a template. `collisions` grows with each of its names that was taken.
    pub async fn create<K>(
        &self,
        key: &ObjectKey,
        parent: &K,
        template: &PodTemplateSpec,
        number: i64,
        collisions: &mut i32,
    ) -> Result<Arc<ControllerRevision>>
    where
        K: Resource<DynamicType = ()> + Debug,
    {
        let api = self.api(key);
        for _ in 0..limits::REVISION_NAMES {
            let revision = new_revision(parent, template, number, *collisions, self.label);
            let wanted = name(&revision.metadata);
            let attempt = || format!("create controller revision {wanted}");
            match api.create(&PostParams::default(), &revision).await.attempt(attempt) {
                Ok(created) => {
                    self.ledger.wrote(key, &created);
                    return Ok(Arc::new(created));
                }
                Err(error) if error.is_already_exists() => {}
                Err(error) => return Err(error),
            }
            let live = api.get_opt(wanted).await.attempt(|| format!("get controller revision {wanted}"))?;
            let Some(live) = live else { continue };
            // One of a workload of the same name that was deleted goes with it.
            let usable = controller_of(&live.metadata).is_none_or(|owner| owner.uid == uid(parent.meta()));
            if usable && restores(&live, template) {
                self.ledger.wrote(key, &live);
                return Ok(Arc::new(live));
            }
            *collisions = collisions.saturating_add(1);
        }
        let object = format!("{} {key}", K::kind(&()));
        Err(Error::Unusable {
            object,
            problem: "all names of a new controller revision are taken".to_owned(),
        })
    }

    /// Makes a revision the newest.
    pub async fn renumber(
        &self,
        key: &ObjectKey,
        revision: &ControllerRevision,
        number: i64,
    ) -> Result<Arc<ControllerRevision>> {
        self.update(key, revision, ControllerRevision { revision: number, ..revision.clone() }).await
    }

    /// Replaces a revision of a workload.
    pub async fn update(
        &self,
        key: &ObjectKey,
        old: &ControllerRevision,
        new: ControllerRevision,
    ) -> Result<Arc<ControllerRevision>> {
        let written = patch::update(&self.api(key), old, &new).await?.unwrap_or(new);
        self.ledger.wrote(key, &written);
        Ok(Arc::new(written))
    }

    /// Deletes revisions; one that is gone already is no error.
    pub async fn delete(&self, key: &ObjectKey, revisions: &[Arc<ControllerRevision>]) -> Result<()> {
        let api = self.api(key);
        let mut results = Vec::new();
        for revision in revisions {
            let name = name(&revision.metadata);
            let options = only_this(&revision.metadata, DeleteParams::default());
            let deleted = api.delete(name, &options).await;
            let deleted = deleted.attempt(|| format!("delete controller revision {name}")).map(drop);
            if !deleted.as_ref().is_err_and(Error::is_not_found) {
                results.push(deleted);
            }
        }
        Error::collect(results)
    }

    fn api(&self, key: &ObjectKey) -> Api<ControllerRevision> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{replica_set, template as image, time};

    fn revision(name: &str, number: i64, template: &PodTemplateSpec) -> Arc<ControllerRevision> {
        let mut revision = new_revision(&replica_set("web", 1), template, number, 0, HASH);
        revision.metadata.name = Some(name.to_owned());
        Arc::new(revision)
    }

    #[test]
    fn a_revision_restores_its_template() {
        let revision = revision("web-a", 1, &image("image:1"));
        assert_eq!(template(&revision), Some(image("image:1")));
        assert!(restores(&revision, &image("image:1")));
        assert!(!restores(&revision, &image("image:2")));
        assert_eq!(revision.data.as_ref().unwrap().0["spec"]["template"]["$patch"], "replace");
    }

    #[test]
    fn the_encoding_of_a_template_does_not_matter_but_its_meaning_does() {
        let written = |template: Value| {
            let mut revision = ControllerRevision::clone(&revision("web-a", 1, &image("image:1")));
            revision.data = Some(RawExtension(json!({"spec": {"template": template}})));
            revision
        };
        // The encoding of Kubernetes.
        let other = json!({"$patch": "replace",
            "metadata": {"creationTimestamp": null, "labels": {"app": "test"}, "annotations": {}},
            "spec": {"containers": [{"name": "main", "image": "image:1", "resources": {}, "env": []}],
                     "securityContext": {}, "tolerations": null}});
        assert!(restores(&written(other), &image("image:1")));
        let mut volume = image("image:1");
        let spec = volume.spec.as_mut().unwrap();
        spec.volumes = Some(vec![serde_json::from_value(json!({"name": "v", "emptyDir": {}})).unwrap()]);
        let without = json!({"metadata": {"labels": {"app": "test"}},
            "spec": {"containers": [{"name": "main", "image": "image:1"}], "volumes": [{"name": "v"}]}});
        assert!(!restores(&written(without), &volume));
        assert!(!restores(&written(json!("no template")), &image("image:1")));
    }

    #[test]
    fn the_chosen_revision_is_the_newest_or_becomes_so() {
        let (one, two) = (image("image:1"), image("image:2"));
        let all = sorted(vec![revision("web-b", 2, &two), revision("web-a", 1, &one)]);
        assert_eq!(choose(&[], &one, None), Choice::Create(1));
        assert_eq!(choose(&all, &two, None), Choice::Newest(Arc::clone(&all[1])));
        assert_eq!(choose(&all, &one, None), Choice::Renumber(Arc::clone(&all[0]), 3));
        assert_eq!(choose(&all, &image("image:3"), None), Choice::Create(3));
        // The newest of equal ones is used.
        let all = sorted(vec![revision("web-c", 4, &one), revision("web-a", 1, &one)]);
        assert_eq!(choose(&all, &one, None), Choice::Newest(Arc::clone(&all[1])));
    }

    #[test]
    fn a_settled_choice_stays_while_it_exists() {
        let all = [revision("web-a", 1, &image("image:1"))];
        let encoded_otherwise = image("docker.io/library/image:1");
        assert_eq!(choose(&all, &encoded_otherwise, Some("web-a")), Choice::Newest(Arc::clone(&all[0])));
        assert_eq!(choose(&all, &encoded_otherwise, Some("web-gone")), Choice::Create(2));
        assert_eq!(choose(&all, &encoded_otherwise, None), Choice::Create(2));
    }

    #[test]
    fn revisions_are_sorted_by_number_then_age_then_name() {
        let one = image("image:1");
        let aged = |name: &str, number, second| {
            let mut revision = ControllerRevision::clone(&revision(name, number, &one));
            revision.metadata.creation_timestamp = time(second);
            Arc::new(revision)
        };
        let all = vec![aged("d", 2, 0), aged("c", 1, 9), aged("b", 1, 5), aged("a", 1, 9)];
        let names: Vec<_> = sorted(all).iter().map(|one| name(&one.metadata).to_owned()).collect();
        assert_eq!(names, ["b", "a", "c", "d"]);
    }

    #[test]
    fn the_oldest_revisions_beyond_the_limit_go_but_no_live_one() {
        let names = ["a", "b", "c", "d", "e"];
        let all: Vec<_> = names.iter().zip(1..).map(|(name, n)| revision(name, n, &image(name))).collect();
        let live = BTreeSet::from(["a", "e"]);
        let gone = |limit| -> Vec<String> {
            surplus(&all, &live, limit).iter().map(|one| name(&one.metadata).to_owned()).collect()
        };
        assert_eq!(gone(Some(1)), ["b", "c"]);
        assert_eq!(gone(Some(0)), ["b", "c", "d"]);
        assert!(gone(Some(3)).is_empty());
        assert!(gone(None).is_empty());
        assert!(gone(Some(-1)).is_empty());
    }

    #[test]
    fn names_of_revisions_fit_and_differ_with_the_count_of_collisions() {
        let long = replica_set(&"x".repeat(253), 1);
        let first = new_revision(&long, &image("image:1"), 1, 0, HASH);
        let second = new_revision(&long, &image("image:1"), 1, 1, HASH);
        assert!(name(&first.metadata).len() <= 253);
        assert_ne!(first.metadata.name, second.metadata.name);
        let labels = first.metadata.labels.as_ref().unwrap();
        assert!(name(&first.metadata).ends_with(&labels[HASH]));
        assert_eq!(labels["app"], "test");
    }
}
