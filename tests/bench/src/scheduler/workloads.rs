//! The workloads, with the numbers of Kubernetes' scheduler_perf.

use serde_json::Value;

use super::objects;

/// Pods of one template.
#[derive(Clone, Copy)]
pub struct Group {
    pub count: usize,
    /// Prefix of the names.
    pub prefix: &'static str,
    /// The namespace, or the prefix of their names if there are several.
    namespace: &'static str,
    namespaces: usize,
    template: fn() -> Value,
    claim: Option<Claim>,
}

/// Claims of which each pod of a group has one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    Volume,
    Device,
}

impl Group {
    fn new(prefix: &'static str, count: usize, template: fn() -> Value) -> Self {
        Self { count, prefix, namespace: "default", namespaces: 1, template, claim: None }
    }

    fn in_namespace(self, namespace: &'static str) -> Self {
        Self { namespace, ..self }
    }

    /// Distributes the pods over several namespaces.
    fn in_namespaces(self, namespace: &'static str, namespaces: usize) -> Self {
        Self { namespace, namespaces, ..self }
    }

    fn with(self, claim: Claim) -> Self {
        Self { claim: Some(claim), ..self }
    }

    /// Returns the group with another number of pods.
    pub fn of(self, count: usize) -> Self {
        Self { count, ..self }
    }

    /// Returns the group with other names.
    pub fn named(self, prefix: &'static str) -> Self {
        Self { prefix, ..self }
    }

    /// Returns the namespace of pod `i`.
    pub fn namespace(&self, i: usize) -> String {
        match self.namespaces {
            1 => self.namespace.to_owned(),
            count => format!("{}-{}", self.namespace, i % count),
        }
    }

    pub fn name(&self, i: usize) -> String {
        format!("{}-{i}", self.prefix)
    }

    /// Returns pod `i`.
    pub fn pod(&self, i: usize) -> Value {
        let mut pod = (self.template)();
        let name = self.name(i);
        match self.claim {
            Some(Claim::Volume) => objects::use_claim(&mut pod, &name),
            Some(Claim::Device) => objects::use_device(&mut pod, &name),
            None => {}
        }
        pod["metadata"]["name"] = name.into();
        pod["metadata"]["namespace"] = self.namespace(i).into();
        pod
    }

    /// Returns `true` if each pod has a claim of a device.
    pub fn uses_devices(&self) -> bool {
        self.claim == Some(Claim::Device)
    }

    /// Returns the pods with the paths to create them at.
    pub fn pods(&self) -> impl Iterator<Item = (String, Value)> {
        (0..self.count).map(|i| (format!("/api/v1/namespaces/{}/pods", self.namespace(i)), self.pod(i)))
    }

    /// Returns the namespaces that have to be made.
    fn own_namespaces(&self) -> impl Iterator<Item = String> {
        (0..self.namespaces).map(|i| self.namespace(i)).filter(|name| name != "default")
    }
}

/// Nodes and pods, and the pods whose scheduling is measured.
#[derive(Clone)]
pub struct Workload {
    pub name: &'static str,
    pub nodes: usize,
    node: fn(usize) -> Value,
    /// Pods that are placed before.
    pub init: Vec<Group>,
    /// Pods that no node has room for, which wait.
    pub parked: Option<Group>,
    pub measured: Group,
    /// Pods of which one comes now and then while the others are measured.
    pub churn: Option<Group>,
    /// Pods per second that the core should place; `None` if nothing was set.
    pub goal: Option<f64>,
    /// The pods that are measured have an owner and a Service.
    is_owned: bool,
}

impl Workload {
    fn new(name: &'static str, goal: f64, nodes: usize, node: fn(usize) -> Value, measured: Group) -> Self {
        let goal = Some(goal);
        Self {
            name,
            nodes,
            node,
            init: Vec::new(),
            parked: None,
            measured,
            churn: None,
            goal,
            is_owned: false,
        }
    }

    fn after(mut self, init: Group) -> Self {
        self.init.push(init);
        self
    }

    fn with_churn(self, template: fn() -> Value) -> Self {
        Self { churn: Some(Group::new("churn", usize::MAX, template)), ..self }
    }

    /// Returns the workload with another number of nodes, and as many pods in proportion.
    pub fn of_size(&self, nodes: usize) -> Self {
        let all = self.nodes;
        let scaled = |group: Group| group.of((group.count * nodes / all).max(1));
        Self {
            nodes,
            init: self.init.iter().copied().map(scaled).collect(),
            parked: self.parked.map(scaled),
            measured: scaled(self.measured),
            ..self.clone()
        }
    }

    pub fn nodes(&self) -> impl Iterator<Item = Value> {
        (0..self.nodes).map(|i| (self.node)(i))
    }

    /// Returns the name of a node.
    pub fn node_name(&self, i: usize) -> String {
        (self.node)(i)["metadata"]["name"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns what there is beside nodes and pods, with the paths to create it at.
    pub fn others(&self) -> Vec<(String, Value)> {
        let groups: Vec<&Group> = self.init.iter().chain(&self.parked).chain([&self.measured]).collect();
        let mut namespaces: Vec<String> = groups.iter().flat_map(|group| group.own_namespaces()).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        let mut all = vec![objects::account("default"), objects::priority_class()];
        all.extend(namespaces.iter().flat_map(|name| objects::namespace(name)));
        if self.is_owned {
            all.extend(objects::owners(&self.measured.namespace(0)));
        }
        let nodes = || (0..self.nodes).map(|i| self.node_name(i));
        let has = |claim| groups.iter().any(|group| group.claim == Some(claim));
        if has(Claim::Volume) {
            all.extend(nodes().map(|name| objects::csi_node(&name)));
        }
        if has(Claim::Device) {
            all.push(objects::device_class());
            all.extend(nodes().map(|name| objects::slice(&name)));
        }
        for group in groups {
            let names = (0..group.count).map(|i| (group.namespace(i), group.name(i)));
            match group.claim {
                Some(Claim::Volume) => {
                    all.extend(names.flat_map(|(space, name)| objects::volume(&space, &name)))
                }
                Some(Claim::Device) => {
                    all.extend(names.map(|(space, name)| objects::device_claim(&space, &name)))
                }
                None => {}
            }
        }
        all
    }
}

/// Returns all workloads in full size.
pub fn all() -> Vec<Workload> {
    let mut all = vec![basic(), owned()];
    all.extend(spreading());
    all.extend(affinities());
    all.push(node_affinity());
    all.push(mixed());
    all.extend(preemptions());
    all.extend([unschedulable(), volumes(), devices(), daemons()]);
    all
}

fn measured(count: usize, template: fn() -> Value) -> Group {
    Group::new("measured", count, template)
}

fn init(count: usize, template: fn() -> Value) -> Group {
    Group::new("init", count, template)
}

/// Returns the workload of pods that ask for nothing but room.
pub fn basic() -> Workload {
    let measured = measured(10_000, objects::plain);
    Workload::new("SchedulingBasic", 10_000.0, 5_000, objects::node, measured)
        .after(init(1_000, objects::plain))
}

fn owned() -> Workload {
    let measured = measured(10_000, objects::owned).in_namespace("service-ns");
    let workload = Workload::new("OwnedPods", 10_000.0, 5_000, objects::node_in_three_zones, measured);
    Workload { is_owned: true, ..workload.after(init(5_000, objects::plain)) }
}

fn spreading() -> [Workload; 2] {
    let of = |name, template: fn() -> Value| {
        let node = objects::node_in_three_zones;
        Workload::new(name, 5_000.0, 5_000, node, measured(5_000, template))
            .after(init(5_000, objects::plain))
    };
    [
        of("TopologySpreading", objects::spread_required),
        of("PreferredTopologySpreading", objects::spread_preferred),
    ]
}

fn affinities() -> [Workload; 6] {
    let of = |name, node: fn(usize) -> Value, template: fn() -> Value, before, count| {
        let measured = measured(count, template).in_namespace("sched-1");
        let workload = Workload::new(name, 5_000.0, 5_000, node, measured);
        workload.after(init(before, template).in_namespace("sched-0"))
    };
    let of_team = |name, nodes, template: fn() -> Value| {
        let measured = measured(2_000, template).in_namespace("measure-ns");
        let workload = Workload::new(name, 5_000.0, nodes, objects::node, measured);
        workload.after(init(4_000, template).in_namespaces("init-ns", 100))
    };
    [
        of("SchedulingPodAffinity", objects::node_in_zone, objects::affinity, 5_000, 5_000),
        of("SchedulingPodAntiAffinity", objects::node, objects::anti_affinity, 1_000, 2_000),
        of("SchedulingPreferredPodAffinity", objects::node, objects::preferred_affinity, 5_000, 5_000),
        of(
            "SchedulingPreferredPodAntiAffinity",
            objects::node,
            objects::preferred_anti_affinity,
            5_000,
            5_000,
        ),
        of_team("SchedulingRequiredPodAntiAffinityWithNSSelector", 6_000, objects::team_anti_affinity),
        of_team(
            "SchedulingPreferredAntiAffinityWithNSSelector",
            5_000,
            objects::team_preferred_anti_affinity,
        ),
    ]
}

fn node_affinity() -> Workload {
    let measured = measured(10_000, objects::node_affinity);
    Workload::new("SchedulingNodeAffinity", 10_000.0, 5_000, objects::node_in_zone, measured)
        .after(init(5_000, objects::node_affinity))
}

fn mixed() -> Workload {
    let init = |prefix, template| Group::new(prefix, 2_000, template).in_namespace("sched-0");
    Workload::new(
        "MixedSchedulingBasePod",
        5_000.0,
        5_000,
        objects::node_in_zone,
        measured(5_000, objects::plain),
    )
    .after(init("plain", objects::plain))
    .after(init("affinity", objects::affinity))
    .after(init("anti-affinity", objects::anti_affinity))
    .after(init("preferred-affinity", objects::preferred_affinity))
    .after(init("preferred-anti-affinity", objects::preferred_anti_affinity))
}

fn preemptions() -> [Workload; 2] {
    let fill = |nodes: usize| init(nodes * 4, objects::low_priority);
    let each = measured(1_000, objects::high_priority);
    [
        Workload::new("PreemptionBasic", 2_000.0, 1_000, objects::node, each).after(fill(1_000)),
        Workload::new("PreemptionAsync", 2_000.0, 5_000, objects::node, measured(5_000, objects::plain))
            .after(fill(5_000))
            .with_churn(objects::high_priority),
    ]
}

fn unschedulable() -> Workload {
    let workload =
        Workload::new("Unschedulable", 0.0, 5_000, objects::node, measured(10_000, objects::plain));
    let parked = Some(Group::new("parked", 10_000, objects::too_large).in_namespace("parked"));
    let workload = workload.after(init(100, objects::plain)).with_churn(objects::too_large);
    Workload { parked, goal: None, ..workload }
}

fn volumes() -> Workload {
    let measured = measured(5_000, objects::plain).with(Claim::Volume);
    Workload::new("SchedulingCSIPVs", 2_000.0, 5_000, objects::node, measured)
        .after(init(5_000, objects::plain).with(Claim::Volume))
}

/// The last pods take the last devices. Claims are not made from a template, which is the work of a controller.
fn devices() -> Workload {
    let measured = measured(2_500, objects::plain).with(Claim::Device);
    Workload::new("SchedulingWithResourceClaimTemplate", 1_000.0, 500, objects::node, measured)
        .after(init(2_500, objects::plain).with(Claim::Device))
}

fn daemons() -> Workload {
    let measured = measured(30_000, objects::daemon);
    Workload::new("SchedulingDaemonset", 10_000.0, 15_000, objects::node_or_pinned, measured)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use k8s_openapi::api::core::v1::{Node, Pod};

    use super::*;

    #[test]
    fn workloads_have_names_of_their_own_and_valid_objects() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|workload| workload.name).collect();
        assert_eq!(names.len(), all.len());
        for workload in all {
            let node: Node = serde_json::from_value((workload.node)(0)).unwrap();
            assert!(node.metadata.labels.unwrap().contains_key("kubernetes.io/hostname"));
            for group in workload.init.iter().chain(&workload.parked).chain([&workload.measured]) {
                let pod: Pod = serde_json::from_value(group.pod(7)).unwrap();
                assert_eq!(pod.metadata.name, Some(group.name(7)));
                assert_eq!(pod.metadata.namespace, Some(group.namespace(7)));
            }
        }
    }

    #[test]
    fn a_smaller_workload_has_pods_in_proportion() {
        let volumes = volumes().of_size(50);
        assert_eq!((volumes.nodes, volumes.init[0].count, volumes.measured.count), (50, 50, 50));
        let kinds = |wanted: &str| volumes.others().iter().filter(|(_, one)| one["kind"] == wanted).count();
        assert_eq!(["CSINode", "PersistentVolume", "PersistentVolumeClaim"].map(kinds), [50, 100, 100]);
        let (_, pod) = volumes.measured.pods().nth(3).unwrap();
        assert_eq!(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "measured-3");
    }

    #[test]
    fn pods_of_a_group_are_distributed_over_its_namespaces() {
        let group = init(4, objects::plain).in_namespaces("ns", 2);
        let paths: Vec<String> = group.pods().map(|(path, _)| path).collect();
        assert_eq!(paths[..2], ["/api/v1/namespaces/ns-0/pods", "/api/v1/namespaces/ns-1/pods"]);
        assert_eq!(group.own_namespaces().collect::<Vec<_>>(), ["ns-0", "ns-1"]);
    }
}
