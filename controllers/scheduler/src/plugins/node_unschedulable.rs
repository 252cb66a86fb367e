//! `NodeUnschedulable`: cordoned nodes get no pods but those that tolerate it.

use apiserver_meta::pods::tolerates;
use k8s_openapi::api::core::v1::Taint;

use crate::cluster::{Cluster, Node};
use crate::framework::{Actions, Change, Event, Hint, NodeFilter, Plugin, Refusal, Resource, Versions};
use crate::pod::{PodInfo, PodSpec};

/// The taint of a node whose `spec.unschedulable` is set.
const TAINT: &str = "node.kubernetes.io/unschedulable";

/// The plugin `NodeUnschedulable`.
pub struct NodeUnschedulable;

struct Schedulable;

impl NodeFilter for Schedulable {
    fn passes(&self, node: &Node) -> bool {
        !node.unschedulable
    }

    fn refusal(&self, _: &Node) -> Refusal {
        Refusal::unresolvable("node(s) were unschedulable")
    }
}

/// Returns `true` if a pod may run on cordoned nodes.
fn tolerates_cordon(spec: &PodSpec) -> bool {
    let taint = Taint { key: TAINT.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    spec.source.tolerations.iter().flatten().any(|toleration| tolerates(toleration, &taint))
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn node_filter<'a>(&'a self, spec: &'a PodSpec, _: &'a Cluster) -> Option<Box<dyn NodeFilter + 'a>> {
        if tolerates_cordon(spec) { None } else { Some(Box::new(Schedulable)) }
    }

    fn events(&self) -> Vec<Event> {
        vec![
            Event::new(Resource::Node, Actions::ADD | Actions::NODE_TAINT),
            Event::new(Resource::UnscheduledPod, Actions::POD_TOLERATION),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        match change {
            Change::Pod(Versions { new: Some(new), .. }) if new.uid == pod.uid => {
                if tolerates_cordon(&new.spec) { Hint::Queue } else { Hint::Skip }
            }
            Change::Pod(_) => Hint::Skip,
            Change::Node(Versions { old, new: Some(new) }) => {
                let was_open = old.is_some_and(|old| !old.unschedulable);
                if new.unschedulable || was_open { Hint::Skip } else { Hint::Queue }
            }
            _ => Hint::Queue,
        }
    }
}
