//! A DaemonSet with the nodes and pods that concern it, as all decisions see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::placement::{Fit, Placement};
use super::template::{Current, target};
use crate::meta::{created, is_deleted, name};
use crate::pods::{Pod, is_available};
use crate::scaled::scaled;

pub(super) struct View<'a> {
    pub set: &'a DaemonSet,
    pub current: Current<'a>,
    pub now: Timestamp,
    /// Relation of each node to the DaemonSet, by the node's name.
    pub nodes: BTreeMap<&'a str, Fit>,
    /// Pods by the node that they are for, which may not exist: on each node first those that are bound, then by age.
    /// A node without pods has no entry.
    pub pods: BTreeMap<&'a str, Vec<&'a Arc<Pod>>>,
}

impl<'a> View<'a> {
    /// Returns the view from the pods that the DaemonSet controls. Pods that have ended and are being deleted no longer
    /// occupy their node, even if a finalizer keeps them.
    pub fn new(
        set: &'a DaemonSet,
        hash: &'a str,
        nodes: &'a [Arc<Node>],
        pods: &'a [Arc<Pod>],
        now: Timestamp,
    ) -> Self {
        let placement = Placement::new(set);
        let nodes = nodes.iter().map(|node| (name(&node.metadata), placement.fit(node))).collect();
        let mut by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| !pod.is_finished() || !is_deleted(&pod.metadata)) {
            if let Some(node) = target(pod) {
                by_node.entry(node).or_default().push(pod);
            }
        }
        for pods in by_node.values_mut() {
            pods.sort_by_key(|pod| (pod.node_name().is_empty(), created(&pod.metadata), name(&pod.metadata)));
        }
        Self { set, current: Current::new(set, hash), now, nodes, pods: by_node }
    }

    /// Returns the pods for a node, including terminating ones.
    pub fn pods_on(&self, node: &str) -> &[&'a Arc<Pod>] {
        self.pods.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the number of nodes on which a pod should run.
    pub fn desired(&self) -> usize {
        self.nodes.values().filter(|fit| fit.run).count()
    }

    pub fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready_seconds(), self.now)
    }

    pub fn min_ready_seconds(&self) -> i32 {
        self.set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    /// Returns `true` if pods are replaced when the template changes rather than when they are deleted.
    pub fn is_rolling(&self) -> bool {
        let strategy = self.set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
    }

    /// Returns `true` if an old and a new pod may be on one node at the same time.
    pub fn allows_surge(&self) -> bool {
        self.bound(1, |rolling| rolling.max_surge.as_ref()) > 0
    }

    /// Returns how many nodes may have two pods, and on how many the pod may be unavailable, during an update. If both
    /// were zero, an update could not proceed.
    pub fn bounds(&self) -> (usize, usize) {
        let desired = self.desired();
        let surge = self.bound(desired, |rolling| rolling.max_surge.as_ref());
        let unavailable = self.bound(desired, |rolling| rolling.max_unavailable.as_ref());
        if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
    }

    fn bound(&self, total: usize, field: fn(&RollingUpdateDaemonSet) -> Option<&IntOrString>) -> usize {
        let strategy = self.set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        let rolling =
            strategy.filter(|_| self.is_rolling()).and_then(|strategy| strategy.rolling_update.as_ref());
        let Some(value) = rolling.and_then(field) else { return 0 };
        let total = i32::try_from(total).unwrap_or(i32::MAX);
        usize::try_from(scaled(value, total, true)).unwrap_or(0)
    }
}
