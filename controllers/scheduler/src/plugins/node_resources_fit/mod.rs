//! `NodeResourcesFit`: a pod runs where its requests fit, and rather on nodes that a strategy prefers by what is used of
//! them.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::DeviceClass;

use self::room::{Room, Use};
use self::strategy::{Scorer, Strategy};
use super::allocation::{Counting, ResourceWeight, Shares, default_resources};
use crate::cluster::{CLASS_PREFIX, Cluster, DeviceClasses, Node, NodeFacts, NodeId};
use crate::framework::{
    Actions, Change, Event, Feasible, Hint, NodeFilter, NodeScore, Normalize, Plugin, Resource, Scores,
    Versions,
};
use crate::pod::{PodInfo, PodSpec};
use crate::resources::Resources;

mod room;
pub mod strategy;
#[cfg(test)]
mod tests;

/// Arguments of [`NodeResourcesFit`] (`NodeResourcesFitArgs`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitArgs {
    /// Extended resources that are not checked.
    pub ignored_resources: BTreeSet<String>,
    /// Prefixes of extended resources that are not checked.
    pub ignored_resource_groups: BTreeSet<String>,
    pub strategy: Strategy,
    /// Resources that the strategy looks at.
    pub resources: Vec<ResourceWeight>,
}

impl Default for FitArgs {
    fn default() -> Self {
        Self {
            ignored_resources: BTreeSet::new(),
            ignored_resource_groups: BTreeSet::new(),
            strategy: Strategy::LeastAllocated,
            resources: default_resources(),
        }
    }
}

/// The plugin `NodeResourcesFit`.
pub struct NodeResourcesFit {
    args: FitArgs,
    scorer: Scorer,
}

impl Default for NodeResourcesFit {
    fn default() -> Self {
        Self::new(FitArgs::default())
    }
}

impl NodeResourcesFit {
    pub fn new(args: FitArgs) -> Self {
        Self { scorer: Scorer::new(&args.strategy), args }
    }

    fn shares<'a>(&'a self, spec: &PodSpec, cluster: &'a Cluster) -> Shares<'a> {
        Shares::new(&self.args.resources, &spec.fit_scored, Counting::Assumed, &cluster.device_classes)
    }
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn node_filter<'a>(
        &'a self,
        spec: &'a PodSpec,
        cluster: &'a Cluster,
    ) -> Option<Box<dyn NodeFilter + 'a>> {
        Some(Box::new(Room::new(&spec.requests, Some(&self.args), &cluster.device_classes)))
    }

    fn node_score<'a>(&'a self, spec: &'a PodSpec, cluster: &'a Cluster) -> Option<NodeScore<'a>> {
        let shares = self.shares(spec, cluster);
        if shares.depend_on_devices() {
            return None;
        }
        let raw = move |node: &Node| self.scorer.score(shares.of(node, None));
        Some(NodeScore { raw: Box::new(raw), normalize: Normalize::Identity })
    }

    fn score(&self, pod: &PodInfo, cluster: &Cluster, feasible: &Feasible) -> Option<Scores> {
        let shares = self.shares(&pod.spec, cluster);
        let amounts = |id: &NodeId| shares.of(cluster.node(*id), Some(&cluster.devices));
        Some(Scores::Each(feasible.list().iter().map(|id| self.scorer.score(amounts(id))).collect()))
    }

    fn epoch(&self, cluster: &Cluster) -> u64 {
        cluster.device_classes.version()
    }

    fn events(&self) -> Vec<Event> {
        let of_pods = Actions::DELETE | Actions::POD_SCALE_DOWN;
        vec![
            Event::new(Resource::AssignedPod, of_pods),
            Event::new(Resource::UnscheduledPod, of_pods),
            Event::new(Resource::Node, Actions::ADD | Actions::NODE_ALLOCATABLE),
            Event::new(Resource::DeviceClass, Actions::ADD | Actions::UPDATE),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, cluster: &Cluster) -> Hint {
        let classes = &cluster.device_classes;
        let helps = match change {
            Change::Pod(Versions { old: Some(gone), new: None }) => {
                gone.node.is_some() || gone.nominated.is_some()
            }
            Change::Pod(Versions { old: Some(old), new: Some(new) }) => {
                new.uid == pod.uid || (new.node.is_some() && shrinks(pod, old.requests(), new.requests()))
            }
            Change::Node(Versions { old, new: Some(new) }) => {
                let fits = Room::new(&pod.spec.requests, None, classes).is_in(&Use::none(new));
                fits && old.is_none_or(|old| grows(&pod.spec.requests, old, new, classes))
            }
            Change::DeviceClass(Versions { old, new: Some(new) }) => {
                serves(&pod.spec.requests, old.map(AsRef::as_ref), new)
            }
            _ => true,
        };
        if helps { Hint::Queue } else { Hint::Skip }
    }
}

/// Returns the amounts of two lists by each resource that is requested.
fn compare<'a>(
    requests: &'a Resources,
    a: &'a Resources,
    b: &'a Resources,
) -> impl Iterator<Item = (i64, i64)> + 'a {
    let first = ["cpu", "memory", "ephemeral-storage"];
    let names = first.into_iter().chain(requests.scalar.keys().map(AsRef::as_ref));
    names.filter(|name| requests.get(name) != 0).map(|name| (a.get(name), b.get(name)))
}

/// Returns `true` if another pod requests less than before of what the pod requests.
fn shrinks(pod: &PodInfo, old: &Resources, new: &Resources) -> bool {
    compare(pod.requests(), old, new).any(|(old, new)| old > new)
}

/// Returns `true` if a node has room for more pods, or more than before of what is requested, or if devices are requested
/// that the node does not count itself.
fn grows(requests: &Resources, old: &NodeFacts, new: &NodeFacts, classes: &DeviceClasses) -> bool {
    let mut requested = requests.scalar.iter().filter(|(_, amount)| **amount != 0);
    new.max_pods > old.max_pods
        || compare(requests, &old.allocatable, &new.allocatable).any(|(old, new)| new > old)
        || requested.any(|(name, _)| new.allocatable.get(name) == 0 && classes.serving(name).is_some())
}

/// Returns `true` if a class of devices, which is new or has changed, serves a resource that is requested.
fn serves(requests: &Resources, old: Option<&DeviceClass>, new: &DeviceClass) -> bool {
    let name_of = |class: &DeviceClass| class.spec.extended_resource_name.clone().unwrap_or_default();
    match old {
        Some(old) if name_of(old) == name_of(new) => return false,
        Some(_) => {}
        None => {
            let implied = format!("{CLASS_PREFIX}{}", new.metadata.name.as_deref().unwrap_or_default());
            if requests.scalar.contains_key(implied.as_str()) {
                return true;
            }
        }
    }
    new.spec.extended_resource_name.as_deref().is_some_and(|name| requests.scalar.contains_key(name))
}
