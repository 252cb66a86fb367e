//! Takes from a pod what scheduling reads, so that pods of one template have equal specifications.

use super::{
    Container, NodeSelectorTerm, ObjectMeta, Resized, Resources, Scored, Volume, effective_requests,
    pod_requests, v1,
};
use crate::resources::{DEFAULT_MEMORY, DEFAULT_MILLI_CPU};
use apiserver_meta::quantity::Quantity;
use apiserver_meta::resources::{Amounts, as_a_whole, most_at_one_time};

/// The field of a node by which pods of a DaemonSet are pinned to it.
const NAME_FIELD: &str = "metadata.name";

/// Returns metadata without what scheduling does not read.
pub(super) fn metadata(mut meta: ObjectMeta) -> ObjectMeta {
    meta.annotations = None;
    meta.finalizers = None;
    if let Some(owners) = &mut meta.owner_references {
        owners.retain(|owner| owner.controller == Some(true));
    }
    meta
}

/// Returns the fields of a specification that scheduling reads, but for those that [`PodInfo`](super::PodInfo) has.
pub(super) fn spec(spec: v1::PodSpec) -> v1::PodSpec {
    v1::PodSpec {
        affinity: spec.affinity,
        containers: spec.containers.into_iter().map(container).collect(),
        host_network: spec.host_network,
        init_containers: spec
            .init_containers
            .map(|containers| containers.into_iter().map(container).collect()),
        node_selector: spec.node_selector,
        overhead: spec.overhead,
        preemption_policy: spec.preemption_policy,
        priority: spec.priority,
        resource_claims: spec.resource_claims,
        resources: spec.resources,
        scheduler_name: spec.scheduler_name,
        scheduling_gates: spec.scheduling_gates.filter(|gates| !gates.is_empty()),
        tolerations: spec.tolerations,
        topology_spread_constraints: spec.topology_spread_constraints,
        ..v1::PodSpec::default()
    }
}

fn container(container: Container) -> Container {
    let ports = container.ports.map(|mut ports| {
        ports.retain(|port| port.host_port.is_some_and(|port| port > 0));
        ports
    });
    Container {
        name: container.name,
        image: container.image,
        ports: ports.filter(|ports| !ports.is_empty()),
        resources: container.resources,
        restart_policy: container.restart_policy,
        ..Container::default()
    }
}

/// Takes the requirement for one node's name out of the node affinity, if the affinity has one term and this is its only
/// requirement for fields.
pub(super) fn take_pin(spec: &mut v1::PodSpec) -> Option<String> {
    let affinity = spec.affinity.as_mut()?;
    let nodes = affinity.node_affinity.as_mut()?;
    let required = nodes.required_during_scheduling_ignored_during_execution.as_mut()?;
    let [term] = required.node_selector_terms.as_mut_slice() else { return None };
    let [field] = term.match_fields.as_deref()? else { return None };
    if field.key != NAME_FIELD || field.operator != "In" {
        return None;
    }
    let [name] = field.values.as_deref()? else { return None };
    let name = name.clone();
    term.match_fields = None;
    if term.match_expressions.as_ref().is_none_or(Vec::is_empty) {
        *term = NodeSelectorTerm::default();
        nodes.required_during_scheduling_ignored_during_execution = None;
    }
    if *nodes == v1::NodeAffinity::default() {
        affinity.node_affinity = None;
    }
    if *affinity == v1::Affinity::default() {
        spec.affinity = None;
    }
    Some(name)
}

/// Returns the volumes that scheduling depends on.
pub(super) fn volumes(all: Vec<Volume>) -> Vec<Volume> {
    let depends = |volume: &Volume| {
        volume.persistent_volume_claim.is_some()
            || volume.ephemeral.is_some()
            || volume.csi.is_some()
            || volume.gce_persistent_disk.is_some()
            || volume.aws_elastic_block_store.is_some()
            || volume.azure_disk.is_some()
            || volume.azure_file.is_some()
            || volume.cinder.is_some()
            || volume.portworx_volume.is_some()
            || volume.vsphere_volume.is_some()
            || volume.iscsi.is_some()
            || volume.rbd.is_some()
    };
    all.into_iter().filter(depends).collect()
}

/// Returns the requests of a pod that is being resized; `None` if they are those of its specification.
pub(super) fn resized(pod: &v1::Pod) -> Option<Resized> {
    let status = pod.status.as_ref()?;
    let mut containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    containers.find(|container| container.resources.is_some())?;
    let spec = pod.spec.as_ref()?;
    let requests = Resources::collect(effective_requests(pod));
    if requests == Resources::collect(pod_requests(spec)) {
        return None;
    }
    let mut scored = scored(spec);
    // Containers without a request have the same default whatever is resized.
    let wanted = Resources::collect(pod_requests(spec));
    scored.cpu += requests.cpu - wanted.cpu;
    scored.memory += requests.memory - wanted.memory;
    Some(Resized { requests, scored })
}

/// Returns CPU and memory of a pod as the scores count them.
pub(super) fn scored(spec: &v1::PodSpec) -> Scored {
    let of = |container: &Container| -> Amounts<'static> {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let read = |name: &str| requests?.get(name).and_then(apiserver_meta::quantity::read);
        let cpu = read("cpu").map_or(DEFAULT_MILLI_CPU, Quantity::milli);
        let memory = read("memory").map_or(DEFAULT_MEMORY, Quantity::value);
        Amounts::from([("cpu", Quantity::from_value(cpu)), ("memory", Quantity::from_value(memory))])
    };
    let containers = spec.containers.iter().map(of);
    let init = spec.init_containers.iter().flatten();
    let init = init.map(|container| (container.restart_policy.as_deref() == Some("Always"), of(container)));
    let sum = most_at_one_time(containers, init);
    let get = |name: &str| sum.get(name).map_or(0, |amount| amount.value());
    let mut scored = Scored { cpu: get("cpu"), memory: get("memory") };
    if let Some(requests) = as_a_whole(spec).and_then(|whole| whole.requests.as_ref()) {
        let read = |name: &str| requests.get(name).and_then(apiserver_meta::quantity::read);
        scored.cpu = read("cpu").map_or(scored.cpu, Quantity::milli);
        scored.memory = read("memory").map_or(scored.memory, Quantity::value);
    }
    if let Some(overhead) = &spec.overhead {
        let overhead = Resources::parse(overhead);
        scored.cpu += overhead.cpu;
        scored.memory += overhead.memory;
    }
    scored
}
