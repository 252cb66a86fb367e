//! Nodes, and what runs on them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use apiserver_client::slim::shared_text;
use apiserver_client::{Labels, Projection};
use apiserver_meta::host_ports::HostPort;
use apiserver_meta::{node_selector, quantity};
use k8s_openapi::api::core::v1::{self, Taint};

use super::NodeId;
use crate::pod::{PodInfo, PodSpec};
use crate::resources::{Resources, Scored};

/// A node with what scheduling reads of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    pub name: Arc<str>,
    pub labels: Labels,
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
    /// Number of pods that the node can run.
    pub max_pods: i64,
    /// Size of each image in bytes, by each of its names.
    pub images: BTreeMap<Arc<str>, i64>,
    /// `status.declaredFeatures`.
    pub features: Vec<String>,
    /// Status of each condition by its type.
    pub conditions: BTreeMap<Arc<str>, Arc<str>>,
    /// Hash of the annotations: no plugin reads them, but their change is an event.
    pub annotations: u64,
}

impl NodeFacts {
    pub fn parse(node: v1::Node) -> Self {
        let (spec, status) = (node.spec.unwrap_or_default(), node.status.unwrap_or_default());
        let allocatable = status.allocatable.unwrap_or_default();
        let mut annotations = DefaultHasher::new();
        node.metadata.annotations.filter(|all| !all.is_empty()).hash(&mut annotations);
        let conditions = status.conditions.unwrap_or_default().into_iter();
        let mut images = BTreeMap::new();
        for image in status.images.unwrap_or_default() {
            for name in image.names.unwrap_or_default() {
                images.entry(shared_text(&name)).or_insert(image.size_bytes.unwrap_or_default());
            }
        }
        Self {
            name: node.metadata.name.unwrap_or_default().into(),
            labels: node.metadata.labels.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            max_pods: allocatable.get("pods").and_then(quantity::read).map_or(0, quantity::Quantity::value),
            allocatable: Resources::parse(&allocatable),
            images,
            features: status.declared_features.unwrap_or_default(),
            conditions: conditions.map(|one| (shared_text(&one.type_), shared_text(&one.status))).collect(),
            annotations: annotations.finish(),
        }
    }
}

impl NodeFacts {
    /// Returns `true` if the node meets `nodeSelector` and the required node affinity of a pod.
    pub fn is_selected_by(&self, pod: &PodInfo) -> bool {
        pod.pinned_to.as_ref().is_none_or(|name| *name == self.name)
            && self.is_selected_by_template(&pod.spec)
    }

    /// Returns `true` if the node meets `nodeSelector` and the required node affinity of a template's pods, but for the node
    /// that a pod of a DaemonSet is pinned to.
    pub fn is_selected_by_template(&self, spec: &PodSpec) -> bool {
        let has = |(key, value): (&String, &String)| self.labels.get(key) == Some(value);
        let matches = |affinity| node_selector::matches(affinity, &self.name, &self.labels);
        spec.source.node_selector.iter().flatten().all(has) && spec.node_affinity.as_ref().is_none_or(matches)
    }
}

impl Projection for NodeFacts {
    type Object = v1::Node;

    fn project(node: v1::Node) -> Self {
        Self::parse(node)
    }

    fn names(&self) -> (&str, &str) {
        ("", &self.name)
    }

    fn is_version_of(&self, other: &Self) -> bool {
        self == other
    }
}

/// A node of the [`Cluster`](super::Cluster) with the pods that run or will run on it.
#[derive(Clone, Debug)]
pub struct Node {
    pub id: NodeId,
    pub facts: Arc<NodeFacts>,
    /// The Node object exists; pods may be known earlier.
    pub is_known: bool,
    pub pods: Vec<Arc<PodInfo>>,
    /// Number of pods that count here and are not in `pods`; see [`Self::outline`].
    unlisted: usize,
    /// Sum of the requests of the pods.
    pub requested: Resources,
    pub scored: Scored,
    /// Host ports of the pods.
    pub ports: Vec<HostPort>,
}

impl Deref for Node {
    type Target = NodeFacts;

    fn deref(&self) -> &NodeFacts {
        &self.facts
    }
}

impl Node {
    pub fn new(id: NodeId, name: &Arc<str>) -> Self {
        Self {
            id,
            facts: Arc::new(NodeFacts { name: Arc::clone(name), ..NodeFacts::default() }),
            is_known: false,
            pods: Vec::new(),
            unlisted: 0,
            requested: Resources::default(),
            scored: Scored::default(),
            ports: Vec::new(),
        }
    }

    /// Returns a copy to try out pods on: it counts the pods that are here, and has no list of them.
    #[must_use]
    pub fn outline(&self) -> Self {
        Self {
            id: self.id,
            facts: Arc::clone(&self.facts),
            is_known: self.is_known,
            pods: Vec::new(),
            unlisted: self.pod_count(),
            requested: self.requested.clone(),
            scored: self.scored,
            ports: self.ports.clone(),
        }
    }

    /// Returns the number of pods that count here.
    pub fn pod_count(&self) -> usize {
        self.pods.len() + self.unlisted
    }

    pub fn add_pod(&mut self, pod: &Arc<PodInfo>) {
        self.add(pod);
        self.pods.push(Arc::clone(pod));
    }

    /// Removes a pod, and returns it if it was here.
    pub fn remove_pod(&mut self, pod: &PodInfo) -> Option<Arc<PodInfo>> {
        // Most often the last pod is removed: one whose binding is confirmed is removed and counted anew.
        let place = self.pods.iter().rposition(|other| other.uid == pod.uid)?;
        let pod = self.pods.swap_remove(place);
        self.subtract(&pod);
        Some(pod)
    }

    /// Counts a pod that is not listed.
    pub fn count_pod(&mut self, pod: &PodInfo) {
        self.add(pod);
        self.unlisted += 1;
    }

    /// Counts a pod no longer that was not listed.
    pub fn discount_pod(&mut self, pod: &PodInfo) {
        self.subtract(pod);
        self.unlisted -= 1;
    }

    fn add(&mut self, pod: &PodInfo) {
        self.requested.add(pod.requests());
        self.scored.add(pod.scored());
        self.ports.extend(pod.spec.host_ports.iter().cloned());
    }

    fn subtract(&mut self, pod: &PodInfo) {
        self.requested.subtract(pod.requests());
        self.scored.subtract(pod.scored());
        for port in &pod.spec.host_ports {
            if let Some(place) = self.ports.iter().position(|other| other == port) {
                self.ports.swap_remove(place);
            }
        }
    }

    /// Frees the host ports of a pod that was removed on trial, also those that other pods have too: for kube-scheduler a
    /// port of a node is in use or not, however many pods have it. [`Self::recount_ports`] undoes that.
    pub fn free_ports(&mut self, pod: &PodInfo) {
        if !pod.spec.host_ports.is_empty() {
            self.ports.retain(|port| !pod.spec.host_ports.contains(port));
        }
    }

    /// Sets the host ports to those of the pods.
    pub fn recount_ports(&mut self) {
        self.ports = self.pods.iter().flat_map(|pod| &pod.spec.host_ports).cloned().collect();
    }
}
