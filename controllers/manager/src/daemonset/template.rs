//! Pods of a DaemonSet: made from its template, pinned to a node, and recognized again.

use apiserver_client::Metadata;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{self, PodTemplateSpec};

use super::placement::tolerations;
use crate::meta::{annotation, label};
use crate::pods::{Pod, of_template, pin};

/// Annotation with the number of the template, which the API server maintains.
const GENERATION: &str = "deprecated.daemonset.template.generation";
/// Label of pods with the number of the template that they were made from.
const GENERATION_LABEL: &str = "pod-template-generation";
/// Label of a revision, and of the pods that were made from it.
pub(super) const HASH_LABEL: &str = "controller-revision-hash";

/// The current template of a DaemonSet, by which its pods are recognized.
#[derive(Clone, Copy)]
pub(super) struct Current<'a> {
    /// Hash of the current revision.
    pub hash: &'a str,
    /// Number of the template, as it is written in labels.
    generation: Option<&'a str>,
}

impl<'a> Current<'a> {
    pub fn new(set: &'a DaemonSet, hash: &'a str) -> Self {
        let generation = annotation(&set.metadata, GENERATION).filter(|text| text.parse::<i64>().is_ok());
        Self { hash, generation }
    }

    /// Returns `true` if the pod was made from the current template. Either mark is enough: a rollback gives an old
    /// template a new number.
    pub fn is_of(&self, pod: &Pod) -> bool {
        let label = label(&pod.metadata, GENERATION_LABEL);
        let numbered = self.generation.is_some_and(|number| label == Some(number));
        numbered || self.has_hash(pod)
    }

    pub fn has_hash(&self, pod: &Pod) -> bool {
        hash_of(&pod.metadata) == Some(self.hash)
    }
}

/// Returns the value of the label [`HASH_LABEL`].
pub(super) fn hash_of(meta: &impl Metadata) -> Option<&str> {
    label(meta, HASH_LABEL)
}

/// Returns a pod for the given node. The scheduler binds it; the server completes its name.
pub(super) fn new_pod(set: &DaemonSet, current: Current<'_>, node: &str) -> v1::Pod {
    let template: PodTemplateSpec = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let mut pod = of_template(set, template);
    let labels = pod.metadata.labels.get_or_insert_default();
    if let Some(number) = current.generation {
        labels.insert(GENERATION_LABEL.to_owned(), number.to_string());
    }
    labels.insert(HASH_LABEL.to_owned(), current.hash.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.tolerations = Some(tolerations(spec));
    // The node meets what was required of nodes.
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution = Some(pin(node));
    pod
}

/// Returns the node that the pod is bound or pinned to.
pub(super) fn target(pod: &Pod) -> Option<&str> {
    let bound = pod.node_name();
    if bound.is_empty() { pod.pinned_to() } else { Some(bound) }
}
