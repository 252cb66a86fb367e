//! Pods of a DaemonSet: made from its template, pinned to a node, and recognized again.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, PodTemplateSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::placement::tolerations;
use crate::meta::annotation;
use crate::pods::{node_name, of_template};

/// Annotation with the number of the template, which the API server maintains.
const GENERATION: &str = "deprecated.daemonset.template.generation";
/// Label of pods with the number of the template that they were made from.
const GENERATION_LABEL: &str = "pod-template-generation";
/// Label of a revision, and of the pods that were made from it.
pub(super) const HASH_LABEL: &str = "controller-revision-hash";
/// Field of a node that pins a pod to it.
const NAME_FIELD: &str = "metadata.name";

/// The current template of a DaemonSet, by which its pods are recognized.
#[derive(Clone, Copy)]
pub(super) struct Current<'a> {
    /// Hash of the current revision.
    pub hash: &'a str,
    generation: Option<i64>,
}

impl<'a> Current<'a> {
    pub fn new(set: &DaemonSet, hash: &'a str) -> Self {
        let generation = annotation(&set.metadata, GENERATION).and_then(|text| text.parse().ok());
        Self { hash, generation }
    }

    /// Returns `true` if the pod was made from the current template. Either mark is enough: a rollback gives an old
    /// template a new number.
    pub fn is_of(&self, pod: &Pod) -> bool {
        let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(GENERATION_LABEL));
        let numbered =
            self.generation.is_some_and(|number| label.is_some_and(|label| *label == number.to_string()));
        numbered || self.has_hash(pod)
    }

    pub fn has_hash(&self, pod: &Pod) -> bool {
        hash_of(&pod.metadata) == Some(self.hash)
    }
}

/// Returns the value of the label [`HASH_LABEL`].
pub(super) fn hash_of(meta: &ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get(HASH_LABEL).map(String::as_str)
}

/// Returns a pod for the given node. The scheduler binds it; the server completes its name.
pub(super) fn new_pod(set: &DaemonSet, current: Current<'_>, node: &str) -> Pod {
    let template: PodTemplateSpec = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let mut pod = of_template(set, template);
    let labels = pod.metadata.labels.get_or_insert_default();
    if let Some(number) = current.generation {
        labels.insert(GENERATION_LABEL.to_owned(), number.to_string());
    }
    labels.insert(HASH_LABEL.to_owned(), current.hash.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.tolerations = Some(tolerations(spec));
    pin(spec, node);
    pod
}

/// Replaces the required node affinity, which the node meets, with one that only this node meets.
fn pin(spec: &mut PodSpec, node: &str) {
    let requirement = NodeSelectorRequirement {
        key: NAME_FIELD.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), ..NodeSelectorTerm::default() };
    let affinity = spec.affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
}

/// Returns the node that the pod is bound or pinned to.
pub(super) fn target(pod: &Pod) -> Option<&str> {
    let bound = node_name(pod);
    if !bound.is_empty() {
        return Some(bound);
    }
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let mut fields = required.node_selector_terms.iter().flat_map(|term| term.match_fields.iter().flatten());
    let names = fields.find(|field| field.key == NAME_FIELD && field.operator == "In")?;
    match names.values.as_deref() {
        Some([name]) => Some(name),
        _ => None,
    }
}
