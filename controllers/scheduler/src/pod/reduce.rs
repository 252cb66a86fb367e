//! Takes from a pod what scheduling reads, so that pods of one template have equal specifications.

use std::collections::BTreeSet;

use apiserver_meta::quantity::Quantity;
use apiserver_meta::resources::{Amounts, RequestRules, pod_requests};

use super::{Container, NodeSelectorTerm, ObjectMeta, Resized, Resources, Scored, Volume, v1};
use crate::limits;
use crate::resources::{DEFAULT_MEMORY, DEFAULT_MILLI_CPU, MOST};

/// The field of a node by which pods of a DaemonSet are pinned to it.
const NAME_FIELD: &str = "metadata.name";
/// The action of a container's rule that a node has to support.
const RESTART_ALL: &str = "RestartAllContainers";

/// Returns metadata without what scheduling does not read.
pub(super) fn metadata(mut meta: ObjectMeta) -> ObjectMeta {
    // [`PodInfo`](super::PodInfo) has it in fewer bytes.
    meta.uid = None;
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
        host_users: spec.host_users.filter(|shared| !shared),
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

/// Removes inter-pod affinity and spreading from a specification with too much of it, and returns the reason.
pub(super) fn take_excess(spec: &mut v1::PodSpec) -> Option<Box<str>> {
    let affinity = spec.affinity.as_ref();
    let with = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let without = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let required = [
        with.and_then(|with| with.required_during_scheduling_ignored_during_execution.as_ref()),
        without.and_then(|without| without.required_during_scheduling_ignored_during_execution.as_ref()),
    ];
    let preferred = [
        with.and_then(|with| with.preferred_during_scheduling_ignored_during_execution.as_ref()),
        without.and_then(|without| without.preferred_during_scheduling_ignored_during_execution.as_ref()),
    ];
    let preferred = preferred.into_iter().flatten().flatten().map(|weighted| &weighted.pod_affinity_term);
    let all = required.into_iter().flatten().flatten().chain(preferred);
    let (terms, namespaces) = all.fold((0, 0), |(terms, namespaces), term| {
        (terms + 1, namespaces + term.namespaces.as_ref().map_or(0, Vec::len))
    });
    let terms = terms + spec.topology_spread_constraints.as_ref().map_or(0, Vec::len);
    if terms <= limits::POD_TERMS && namespaces <= limits::POD_NAMESPACES {
        return too_many_resources(spec);
    }
    if let Some(affinity) = &mut spec.affinity {
        (affinity.pod_affinity, affinity.pod_anti_affinity) = (None, None);
    }
    spec.topology_spread_constraints = None;
    let (most, names) = (limits::POD_TERMS, limits::POD_NAMESPACES);
    let text = format!(
        "the pod has {terms} terms of inter-pod affinity and constraints of topology spreading, which name {namespaces} \
         namespaces; this scheduler takes up to {most} terms and {names} namespaces"
    );
    Some(text.into())
}

/// Returns the reason if a pod requests too many resources.
fn too_many_resources(spec: &v1::PodSpec) -> Option<Box<str>> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let each = containers.filter_map(|container| container.resources.as_ref()?.requests.as_ref());
    let whole = spec.resources.as_ref().and_then(|whole| whole.requests.as_ref());
    let lists = each.chain(whole).chain(spec.overhead.as_ref());
    let names: BTreeSet<&String> = lists.flat_map(|list| list.keys()).collect();
    let (count, most) = (names.len(), limits::POD_RESOURCES);
    (count > most).then(|| {
        format!("the pod requests {count} kinds of resources; this scheduler takes up to {most}").into()
    })
}

fn container(container: Container) -> Container {
    let ports = container.ports.map(|mut ports| {
        ports.retain(|port| port.host_port.is_some_and(|port| port > 0));
        ports
    });
    let rules = container.restart_policy_rules.map(|mut rules| {
        rules.retain(|rule| rule.action == RESTART_ALL);
        rules.truncate(1);
        rules
    });
    Container {
        name: container.name,
        image: container.image,
        ports: ports.filter(|ports| !ports.is_empty()),
        resources: container.resources,
        restart_policy: container.restart_policy,
        restart_policy_rules: rules.filter(|rules| !rules.is_empty()),
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
            || volume.image.is_some()
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

/// Returns an image's name with the tag that is meant if none is given.
pub(super) fn with_tag(image: &str) -> String {
    // A colon before the last slash is one of a port.
    if image.rfind(':') > image.rfind('/') { image.to_owned() } else { format!("{image}:latest") }
}

/// Returns the requests of a pod that is being resized; `None` if they are those of its specification.
pub(super) fn resized(pod: &v1::Pod) -> Option<Resized> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    if !is_resized(spec, status) {
        return None;
    }
    let rules = RequestRules { resized_as_a_whole: true, ..RequestRules::default() };
    let amounts = rules.requests(spec, Some(status));
    let resized =
        Resized { scored: scored(spec, Some(status), &amounts), requests: Resources::collect(amounts) };
    let wanted = pod_requests(spec);
    let is_same =
        resized.scored == scored(spec, None, &wanted) && resized.requests == Resources::collect(wanted);
    (!is_same).then_some(resized)
}

/// Returns `true` if the node reports other requests than those of the specification.
fn is_resized(spec: &v1::PodSpec, status: &v1::PodStatus) -> bool {
    let all = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let wanted =
        |name: &str| all().find(|container| container.name == name)?.resources.as_ref()?.requests.as_ref();
    let mut statuses = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let differs = statuses.any(|container| {
        let Some(actual) = &container.resources else { return false };
        let wanted = wanted(&container.name).filter(|list| !list.is_empty());
        let is_wanted = |list: Option<&_>| list.is_none_or(|list| Some(list) == wanted);
        actual.requests.as_ref().filter(|list| !list.is_empty()) != wanted
            || !is_wanted(container.allocated_resources.as_ref().filter(|list| !list.is_empty()))
    });
    differs || (spec.resources.is_some() && status.resources.is_some())
}

/// Returns CPU and memory of a pod on a node as scores count them, with assumed requests for containers that have none.
/// `requests` are those without the assumed ones.
pub(super) fn scored(spec: &v1::PodSpec, status: Option<&v1::PodStatus>, requests: &Amounts<'_>) -> Scored {
    let whole = spec.resources.as_ref().and_then(|whole| whole.requests.as_ref());
    let is_whole = whole.into_iter().flatten().any(|(name, _)| apiserver_meta::resources::is_pod_level(name));
    let mut assumed = assumed_requests();
    // Requests of the pod as a whole are not topped up.
    assumed.retain(|name, _| !is_whole || !requests.contains_key(name));
    let rules = RequestRules { assumed, resized_as_a_whole: true, ..RequestRules::default() };
    let sum = rules.requests(spec, status);
    let get = |name: &str| sum.get(name).copied().unwrap_or(Quantity::from_value(0));
    Scored { cpu: get("cpu").milli().min(MOST), memory: get("memory").value().min(MOST) }
}

/// Returns the requests of a pod to be placed as the scores of NodeResourcesFit count them: with assumed ones for
/// containers that have none, and without those of the pod as a whole, which kube-scheduler does not read there.
pub(super) fn fit_scored(spec: &v1::PodSpec) -> Resources {
    let rules =
        RequestRules { assumed: assumed_requests(), containers_only: true, ..RequestRules::default() };
    Resources::collect(rules.requests(spec, None))
}

fn assumed_requests() -> Amounts<'static> {
    let cpu = Quantity::from_milli(DEFAULT_MILLI_CPU);
    Amounts::from([("cpu", cpu), ("memory", Quantity::from_value(DEFAULT_MEMORY))])
}
