//! Selects the ReplicaSet of the current template, and maintains revision numbers.

use std::sync::Arc;

use apiserver_meta::fnv::fnv1a_32;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::strategy;
use crate::hash;
use crate::meta::{Labels, annotation, controller_reference, name};

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
pub(super) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAX: &str = "deployment.kubernetes.io/max-replicas";
pub(super) const HASH_LABEL: &str = "pod-template-hash";

/// Annotations of a Deployment that are not copied to its ReplicaSets.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.deployment.rollback.to",
    REVISION,
    REVISION_HISTORY,
    DESIRED,
    MAX,
];
/// Maximum length of the list of former revision numbers on a ReplicaSet, in bytes.
const HISTORY_LENGTH: usize = 2000;

/// Returns the hash that names the ReplicaSet of a template. `collisions` distinguishes templates with equal
/// hashes.
pub(super) fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    // Kubernetes types always serialize to JSON, and their maps are ordered.
    let encoded = serde_json::to_vec(template).unwrap_or_default();
    let salt = collisions.map(i32::to_le_bytes).unwrap_or_default();
    let salt: &[u8] = if collisions.is_some() { &salt } else { &[] };
    hash::safe(fnv1a_32(encoded.iter().chain(salt).copied()))
}

/// Returns `true` if two templates are equal apart from the hash label.
pub(super) fn same_template(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    normalized(a) == normalized(b)
}

fn normalized(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    let metadata = template.metadata.get_or_insert_default();
    if let Some(labels) = metadata.labels.as_mut() {
        labels.remove(HASH_LABEL);
    }
    metadata.labels.take_if(|labels| labels.is_empty());
    metadata.annotations.take_if(|annotations| annotations.is_empty());
    metadata.creation_timestamp = None;
    template
}

/// Returns the ReplicaSet of the Deployment's current template: the oldest, if there are several. `sets` must
/// be sorted by age.
pub(super) fn find_new<'a>(
    deployment: &Deployment,
    sets: impl IntoIterator<Item = &'a Arc<ReplicaSet>>,
) -> Option<&'a Arc<ReplicaSet>> {
    let wanted = &deployment.spec.as_ref()?.template;
    sets.into_iter().find(|set| {
        let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
        template.is_some_and(|template| same_template(template, wanted))
    })
}

pub(super) fn revision(meta: &ObjectMeta) -> i64 {
    annotation(meta, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub(super) fn number(meta: &ObjectMeta, key: &str) -> Option<i32> {
    annotation(meta, key)?.parse().ok()
}

/// Returns a new ReplicaSet for the current template, without replicas yet.
pub(super) fn new_set(deployment: &Deployment) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = template_hash(&spec.template, collisions);
    let mut template = spec.template;
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector: LabelSelector = spec.selector;
    selector.match_labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash.clone());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", name(&deployment.metadata))),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![controller_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }
}

/// Copies the Deployment's annotations to the new ReplicaSet and, if its revision is lower, sets it to
/// `revision`. The former number is appended to its history, as after a rollback.
pub(super) fn annotate_new(deployment: &Deployment, set: &mut ReplicaSet, revision: i64, is_fresh: bool) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !NOT_COPIED.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let before = annotations.get(REVISION).cloned();
    let before_number: i64 = before.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0);
    if before_number < revision {
        annotations.insert(REVISION.to_owned(), revision.to_string());
        if let Some(before) = before.filter(|text| !text.is_empty() && !is_fresh) {
            remember(annotations, before);
        }
    }
    if is_fresh {
        annotate_size(deployment, set);
    }
}

fn remember(annotations: &mut Labels, revision: String) {
    let history = annotations.entry(REVISION_HISTORY.to_owned()).or_default();
    let mut numbers: Vec<&str> = history.split(',').filter(|number| !number.is_empty()).collect();
    numbers.push(&revision);
    let mut length: usize = numbers.iter().map(|number| number.len() + 1).sum();
    while length > HISTORY_LENGTH {
        length -= numbers.remove(0).len() + 1;
    }
    *history = numbers.join(",");
}

/// Records on a ReplicaSet for which size of the Deployment it was scaled. Proportional scaling uses it to
/// detect what has been done.
pub(super) fn annotate_size(deployment: &Deployment, set: &mut ReplicaSet) {
    let desired = strategy::replicas(deployment);
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED.to_owned(), desired.to_string());
    let most = desired.saturating_add(strategy::max_surge(deployment));
    annotations.insert(MAX.to_owned(), most.to_string());
}
