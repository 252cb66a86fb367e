//! A DaemonSet with the nodes and pods that concern it, as all decisions see it.

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
    /// The nodes that exist and those that pods are for, by name.
    pub places: Vec<Place<'a>>,
    /// Number of nodes on which a pod should run.
    pub desired: usize,
}

/// A node with the pods that are for it.
pub(super) struct Place<'a> {
    pub node: &'a str,
    /// Relation to the DaemonSet; `None` if the node does not exist.
    pub fit: Option<Fit>,
    /// Those that are bound come first, then the older ones. Includes terminating ones.
    pub pods: Vec<&'a Arc<Pod>>,
}

impl Place<'_> {
    /// Returns `true` if a pod should run on the node.
    pub fn is_wanted(&self) -> bool {
        self.fit.is_some_and(|fit| fit.run)
    }
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
        let mut nodes: Vec<(&str, Fit)> =
            nodes.iter().map(|node| (name(&node.metadata), placement.fit(node))).collect();
        nodes.sort_unstable_by_key(|(node, _)| *node);
        let present = pods.iter().filter(|pod| !pod.is_finished() || !is_deleted(&pod.metadata));
        let mut targets: Vec<(&str, &Arc<Pod>)> =
            present.filter_map(|pod| Some((target(pod)?, pod))).collect();
        targets.sort_unstable_by_key(|(node, _)| *node);
        let places = places(nodes, &targets);
        let desired = places.iter().filter(|place| place.is_wanted()).count();
        Self { set, current: Current::new(set, hash), now, places, desired }
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
        let desired = self.desired;
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

/// Merges nodes and the pods for them, both ordered by the node's name.
fn places<'a>(nodes: Vec<(&'a str, Fit)>, targets: &[(&'a str, &'a Arc<Pod>)]) -> Vec<Place<'a>> {
    let mut places = Vec::with_capacity(nodes.len());
    let mut nodes = nodes.into_iter().peekable();
    let without_pods = |(node, fit)| Place { node, fit: Some(fit), pods: Vec::new() };
    for of_node in targets.chunk_by(|a, b| a.0 == b.0) {
        let target = of_node[0].0;
        while let Some(before) = nodes.next_if(|(node, _)| *node < target) {
            places.push(without_pods(before));
        }
        let fit = nodes.next_if(|(node, _)| *node == target).map(|(_, fit)| fit);
        let mut pods: Vec<_> = of_node.iter().map(|(_, pod)| *pod).collect();
        pods.sort_by_key(|pod| (pod.node_name().is_empty(), created(&pod.metadata), name(&pod.metadata)));
        places.push(Place { node: target, fit, pods });
    }
    places.extend(nodes.map(without_pods));
    places
}
