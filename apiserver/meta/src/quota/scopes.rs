//! Scopes, which restrict a quota to some objects.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, PodAffinityTerm, ResourceQuotaSpec, ScopedResourceSelectorRequirement,
};

use super::usage::{Object, is_terminating};
use crate::resources::{Compute, QosClass, as_a_whole, qos_class};

/// A scope of a quota, with a condition on its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    scope: String,
    operator: String,
    values: BTreeSet<String>,
}

/// Returns the scopes of a quota.
pub fn selectors(spec: &ResourceQuotaSpec) -> Vec<Selector> {
    let plain = spec.scopes.iter().flatten().map(|scope| Selector {
        scope: scope.clone(),
        operator: "Exists".to_owned(),
        values: BTreeSet::new(),
    });
    let selector = spec.scope_selector.iter().flat_map(|selector| &selector.match_expressions).flatten();
    plain.chain(selector.map(Selector::of)).collect()
}

impl Selector {
    fn of(requirement: &ScopedResourceSelectorRequirement) -> Self {
        Self {
            scope: requirement.scope_name.clone(),
            operator: requirement.operator.clone(),
            values: requirement.values.iter().flatten().cloned().collect(),
        }
    }

    /// Returns `true` if an object is in the scope. Only pods and claims of volumes are in any.
    pub fn matches(&self, object: Object<'_>) -> bool {
        match object {
            Object::Pod(pod) => self.matches_pod(pod),
            Object::Claim(claim) => {
                self.scope == "VolumeAttributesClass" && self.matches_any(&attributes(claim))
            }
            Object::Service(_) | Object::Other => false,
        }
    }

    fn matches_pod(&self, pod: &Pod) -> bool {
        match self.scope.as_str() {
            "Terminating" => is_terminating(pod),
            "NotTerminating" => !is_terminating(pod),
            "BestEffort" => is_best_effort(pod),
            "NotBestEffort" => !is_best_effort(pod),
            "CrossNamespacePodAffinity" => names_namespaces(pod),
            "PriorityClass" => {
                let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
                self.matches_any(&class.filter(|class| !class.is_empty()).into_iter().collect())
            }
            _ => false,
        }
    }

    /// Applies the operator to the values that an object has for the scope.
    fn matches_any(&self, present: &BTreeSet<&str>) -> bool {
        let chosen = |value: &&str| self.values.contains(*value);
        match self.operator.as_str() {
            "Exists" => !present.is_empty(),
            "DoesNotExist" => present.is_empty(),
            "In" => present.iter().any(chosen),
            "NotIn" => present.is_empty() || present.iter().any(|value| !chosen(value)),
            _ => false,
        }
    }
}

fn is_best_effort(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let containers = all.map(|container| container.resources.as_ref().map(Compute::of).unwrap_or_default());
    qos_class(as_a_whole(spec).map(Compute::of), containers) == QosClass::BestEffort
}

/// Returns `true` if the pod is to be near or far from pods of other namespaces.
fn names_namespaces(pod: &Pod) -> bool {
    fn elsewhere(term: &PodAffinityTerm) -> bool {
        term.namespaces.as_ref().is_some_and(|list| !list.is_empty()) || term.namespace_selector.is_some()
    }
    let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else { return false };
    let (near, far) = (affinity.pod_affinity.as_ref(), affinity.pod_anti_affinity.as_ref());
    let required = near.iter().flat_map(|one| &one.required_during_scheduling_ignored_during_execution);
    let required = required
        .chain(far.iter().flat_map(|one| &one.required_during_scheduling_ignored_during_execution))
        .flatten();
    let preferred = near.iter().flat_map(|one| &one.preferred_during_scheduling_ignored_during_execution);
    let preferred = preferred
        .chain(far.iter().flat_map(|one| &one.preferred_during_scheduling_ignored_during_execution))
        .flatten();
    required.chain(preferred.map(|weighted| &weighted.pod_affinity_term)).any(elsewhere)
}

/// Returns the VolumeAttributesClasses that a claim has, wants, or is being given.
fn attributes(claim: &PersistentVolumeClaim) -> BTreeSet<&str> {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    let target = status
        .and_then(|status| status.modify_volume_status.as_ref())
        .and_then(|modify| modify.target_volume_attributes_class_name.as_deref());
    [wanted, current, target].into_iter().flatten().filter(|class| !class.is_empty()).collect()
}
