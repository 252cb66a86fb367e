//! Pods and nodes as the plugins see them: only the relevant fields, parsed once.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_client::ObjectKey;
use apiserver_meta::host_ports::{HostPort, host_ports};
use apiserver_meta::resources::pod_requests;
use apiserver_meta::{pods, quantity, volumes};
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeSelector, Pod, PreferredSchedulingTerm, Taint, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// CPU and memory that the scores assume for a pod without requests, so that such pods spread too (the values
/// of Kubernetes: 100 milli-CPU, 200 MiB).
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 << 20;

/// Amounts of resources: CPU in thousandths of a core, everything else in its base unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU in thousandths of a core.
    pub cpu: i64,
    /// Memory in bytes.
    pub memory: i64,
    /// Ephemeral storage in bytes.
    pub ephemeral_storage: i64,
    /// Extended resources and huge pages, by name.
    pub other: BTreeMap<String, i64>,
}

impl Resources {
    /// Parses a `ResourceList`.
    pub fn parse(list: &BTreeMap<String, Quantity>) -> Self {
        Self::of(list.iter().filter_map(|(name, text)| Some((name.as_str(), quantity::read(text)?))))
    }

    /// Collects amounts by resource.
    pub fn of<'a>(amounts: impl IntoIterator<Item = (&'a str, quantity::Quantity)>) -> Self {
        let mut resources = Self::default();
        for (name, quantity) in amounts {
            match name {
                "cpu" => resources.cpu = quantity.milli(),
                "memory" => resources.memory = quantity.value(),
                "ephemeral-storage" => resources.ephemeral_storage = quantity.value(),
                "pods" => {}
                _ => {
                    resources.other.insert(name.to_owned(), quantity.value());
                }
            }
        }
        resources
    }

    pub fn add(&mut self, more: &Self) {
        self.cpu += more.cpu;
        self.memory += more.memory;
        self.ephemeral_storage += more.ephemeral_storage;
        for (name, amount) in &more.other {
            *self.other.entry(name.clone()).or_default() += amount;
        }
    }

    pub fn subtract(&mut self, less: &Self) {
        self.cpu -= less.cpu;
        self.memory -= less.memory;
        self.ephemeral_storage -= less.ephemeral_storage;
        for (name, amount) in &less.other {
            *self.other.entry(name.clone()).or_default() -= amount;
        }
    }
}

/// The relevant fields of a pod.
#[derive(Clone, Debug)]
pub struct PodInfo {
    pub key: ObjectKey,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    pub priority: i32,
    /// Requests that must fit: the greater of the init containers' peak and the sum of the containers, plus
    /// overhead (KEP-753 for sidecars).
    pub requests: Resources,
    /// CPU and memory for the scores, with defaults if the pod requests nothing.
    pub scored: (i64, i64),
    pub host_ports: Vec<HostPort>,
    pub node_selector: BTreeMap<String, String>,
    pub required_affinity: Option<NodeSelector>,
    pub preferred_affinity: Vec<PreferredSchedulingTerm>,
    pub tolerations: Vec<Toleration>,
    pub spread: Vec<TopologySpreadConstraint>,
    pub images: Vec<String>,
    /// Names of the claims behind its volumes.
    pub claims: Vec<String>,
    /// `spec.nodeName`; empty if not bound yet.
    pub node: String,
    /// Uid of the controller that owns the pod; empty if none.
    pub controller: String,
    pub gated: bool,
    pub terminating: bool,
}

impl PodInfo {
    pub fn parse(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let (required_affinity, preferred_affinity) = node_affinity(spec.affinity.as_ref());
        let requests = Resources::of(pod_requests(&spec));
        let scored = (
            if requests.cpu == 0 { DEFAULT_MILLI_CPU } else { requests.cpu },
            if requests.memory == 0 { DEFAULT_MEMORY } else { requests.memory },
        );
        Self {
            key: ObjectKey::of(pod),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            priority: spec.priority.unwrap_or_default(),
            requests,
            scored,
            host_ports: host_ports(&spec).collect(),
            node_selector: spec.node_selector.unwrap_or_default(),
            required_affinity,
            preferred_affinity,
            tolerations: spec.tolerations.unwrap_or_default(),
            spread: spec.topology_spread_constraints.unwrap_or_default(),
            claims: volumes::claims_of(pod).map(|(_, claim)| claim).collect(),
            images: spec.containers.iter().filter_map(|c| c.image.clone()).collect(),
            node: spec.node_name.unwrap_or_default(),
            controller: controller(pod),
            gated: spec.scheduling_gates.is_some_and(|gates| !gates.is_empty()),
            terminating: pod.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Returns `true` if a toleration of the pod matches the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| pods::tolerates(toleration, taint))
    }
}

fn node_affinity(affinity: Option<&Affinity>) -> (Option<NodeSelector>, Vec<PreferredSchedulingTerm>) {
    let Some(node) = affinity.and_then(|affinity| affinity.node_affinity.clone()) else {
        return (None, Vec::new());
    };
    (
        node.required_during_scheduling_ignored_during_execution,
        node.preferred_during_scheduling_ignored_during_execution.unwrap_or_default(),
    )
}

fn controller(pod: &Pod) -> String {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners
        .filter(|owner| owner.controller == Some(true))
        .map(|owner| owner.uid.clone())
        .next()
        .unwrap_or_default()
}

/// A node with the pods that run or will run on it.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
    pub max_pods: usize,
    /// Size of each image in bytes, by name.
    pub images: BTreeMap<String, i64>,
    /// Sum of the requests of `pods`.
    pub requested: Resources,
    /// Sum of CPU and memory as counted by the scores.
    pub scored: (i64, i64),
    /// Pods by uid.
    pub pods: BTreeMap<String, Arc<PodInfo>>,
    /// True if the Node object exists; its pods may be known earlier.
    pub known: bool,
}

impl NodeInfo {
    /// Updates the node's own fields and keeps the pods.
    pub fn update(&mut self, node: &Node) {
        let spec = node.spec.clone().unwrap_or_default();
        let status = node.status.clone().unwrap_or_default();
        let allocatable = status.allocatable.unwrap_or_default();
        self.name = node.metadata.name.clone().unwrap_or_default();
        self.labels = node.metadata.labels.clone().unwrap_or_default();
        self.unschedulable = spec.unschedulable.unwrap_or_default();
        self.taints = spec.taints.unwrap_or_default();
        self.max_pods = allocatable
            .get("pods")
            .and_then(|text| quantity::parse(&text.0).ok())
            .map_or(0, |pods| usize::try_from(pods.value()).unwrap_or_default());
        self.allocatable = Resources::parse(&allocatable);
        self.images = status
            .images
            .unwrap_or_default()
            .into_iter()
            .flat_map(|image| {
                let size = image.size_bytes.unwrap_or_default();
                image.names.unwrap_or_default().into_iter().map(move |name| (name, size))
            })
            .collect();
        self.known = true;
    }

    pub fn add_pod(&mut self, pod: &Arc<PodInfo>) {
        self.remove_pod(&pod.uid);
        self.requested.add(&pod.requests);
        self.scored.0 += pod.scored.0;
        self.scored.1 += pod.scored.1;
        self.pods.insert(pod.uid.clone(), Arc::clone(pod));
    }

    pub fn remove_pod(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            self.requested.subtract(&pod.requests);
            self.scored.0 -= pod.scored.0;
            self.scored.1 -= pod.scored.1;
        }
    }
}
