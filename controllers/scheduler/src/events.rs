//! Events that a change of a pod or of a node amounts to, as Kubernetes tells them apart, and their names in metrics.

use crate::cluster::NodeFacts;
use crate::framework::{Actions, Event, Resource};
use crate::pod::PodInfo;

/// Returns the events that the update of a pod is (`PodSchedulingPropertiesChange`): at least one,
/// [`Actions::OTHER_UPDATE`] if nothing has changed that a plugin can name.
pub fn pod_changes(old: &PodInfo, new: &PodInfo) -> Vec<Event> {
    let resource = if new.node.is_some() { Resource::AssignedPod } else { Resource::UnscheduledPod };
    let has_gates = |pod: &PodInfo| pod.spec.source.scheduling_gates.is_some();
    let tolerations = |pod: &PodInfo| pod.spec.source.tolerations.as_ref().map_or(0, Vec::len);
    let changes = [
        (Actions::POD_LABEL, old.labels() != new.labels()),
        (Actions::POD_SCALE_DOWN, is_scaled_down(old, new)),
        (Actions::POD_GATES_ELIMINATED, has_gates(old) && !has_gates(new)),
        // Validation allows tolerations to be added, not to be changed.
        (Actions::POD_TOLERATION, tolerations(old) != tolerations(new)),
        (Actions::POD_GENERATED_CLAIM, old.claims != new.claims),
    ];
    let mut events = events(resource, &changes);
    if events.is_empty() {
        events.push(Event::new(resource, Actions::OTHER_UPDATE));
    }
    events
}

/// Returns `true` if a pod requests less of a resource than before.
fn is_scaled_down(old: &PodInfo, new: &PodInfo) -> bool {
    let (had, has) = (old.requests(), new.requests());
    has.cpu < had.cpu
        || has.memory < had.memory
        || has.ephemeral_storage < had.ephemeral_storage
        || had.scalar.iter().any(|(name, amount)| has.scalar.get(name).is_none_or(|left| left < amount))
}

/// Returns the events that the update of a node is (`NodeSchedulingPropertiesChange`); none if nothing has changed that
/// scheduling depends on.
pub fn node_changes(old: &NodeFacts, new: &NodeFacts) -> Vec<Event> {
    let is_opened = old.unschedulable && !new.unschedulable;
    let has_capacity_changed = old.allocatable != new.allocatable || old.max_pods != new.max_pods;
    let changes = [
        (Actions::NODE_ALLOCATABLE, has_capacity_changed),
        (Actions::NODE_LABEL, old.labels != new.labels),
        (Actions::NODE_TAINT, is_opened || old.taints != new.taints),
        (Actions::NODE_CONDITION, old.conditions != new.conditions),
        (Actions::NODE_ANNOTATION, old.annotations != new.annotations),
        (Actions::NODE_DECLARED_FEATURE, old.features != new.features),
    ];
    events(Resource::Node, &changes)
}

fn events(resource: Resource, changes: &[(Actions, bool)]) -> Vec<Event> {
    let happened = changes.iter().filter(|(_, has_happened)| *has_happened);
    happened.map(|(actions, _)| Event::new(resource, *actions)).collect()
}

/// Returns the name of an event in metrics, such as `AssignedPodDelete`.
pub fn label(event: Event) -> String {
    format!("{}{}", resource_label(event.resource), actions_label(event.actions))
}

fn resource_label(resource: Resource) -> &'static str {
    match resource {
        Resource::AssignedPod => "AssignedPod",
        Resource::UnscheduledPod => "UnschedulablePod",
        Resource::Node => "Node",
        Resource::Namespace => "Namespace",
        Resource::PersistentVolume => "PersistentVolume",
        Resource::PersistentVolumeClaim => "PersistentVolumeClaim",
        Resource::StorageClass => "storage.k8s.io/StorageClass",
        Resource::CsiNode => "storage.k8s.io/CSINode",
        Resource::CsiDriver => "storage.k8s.io/CSIDriver",
        Resource::CsiStorageCapacity => "storage.k8s.io/CSIStorageCapacity",
        Resource::VolumeAttachment => "storage.k8s.io/VolumeAttachment",
        Resource::ResourceClaim => "resource.k8s.io/ResourceClaim",
        Resource::ResourceSlice => "resource.k8s.io/ResourceSlice",
        Resource::DeviceClass => "resource.k8s.io/DeviceClass",
        Resource::PodGroup => "scheduling.k8s.io/PodGroup",
        Resource::Any => "*",
    }
}

fn actions_label(actions: Actions) -> &'static str {
    match actions {
        Actions::ADD => "Add",
        Actions::DELETE => "Delete",
        Actions::NODE_ALLOCATABLE => "UpdateNodeAllocatable",
        Actions::NODE_LABEL => "UpdateNodeLabel",
        Actions::NODE_TAINT => "UpdateNodeTaint",
        Actions::NODE_CONDITION => "UpdateNodeCondition",
        Actions::NODE_ANNOTATION => "UpdateNodeAnnotation",
        Actions::NODE_DECLARED_FEATURE => "UpdateNodeDeclaredFeature",
        Actions::POD_LABEL => "UpdatePodLabel",
        Actions::POD_SCALE_DOWN => "UpdatePodScaleDown",
        Actions::POD_TOLERATION => "UpdatePodToleration",
        Actions::POD_GATES_ELIMINATED => "UpdatePodSchedulingGatesEliminated",
        Actions::POD_GENERATED_CLAIM => "UpdatePodGeneratedResourceClaim",
        Actions::UPDATE | Actions::OTHER_UPDATE => "Update",
        Actions::ALL => "All",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
