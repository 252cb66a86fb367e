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

/// Covers the 15 cases that Kubernetes tests of this plugin, but for 4 of objects of another type.
#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::NodeFacts;
    use crate::testing;

    fn node(unschedulable: bool) -> Arc<NodeFacts> {
        testing::node("a", json!({"spec": {"unschedulable": unschedulable}}))
    }

    fn tolerating(key: &str) -> Arc<PodInfo> {
        testing::pod_of(
            "p",
            json!({"tolerations": [{"key": key, "effect": "NoSchedule", "operator": "Exists"}]}),
        )
    }

    #[test]
    fn cordoned_nodes_take_only_pods_that_tolerate_it() {
        let refusal = |pod: &PodInfo, unschedulable| {
            testing::refusal(NodeUnschedulable, pod, &testing::cluster(&[node(unschedulable)], &[]), "a")
        };
        let pod = testing::pod("p", json!({}));
        let reason = Refusal::unresolvable("node(s) were unschedulable").by("NodeUnschedulable");
        assert_eq!((refusal(&pod, true), refusal(&pod, false)), (Some(reason), None));
        assert_eq!(refusal(&tolerating(TAINT), true), None);
    }

    #[test]
    fn nodes_that_come_or_are_opened_wake_the_pod() {
        let pod = testing::pod("p", json!({}));
        let hint = |old: Option<bool>, new| {
            let old = old.map(node);
            testing::node_hint(&NodeUnschedulable, &pod, old.as_ref(), Some(&node(new)))
        };
        assert_eq!((hint(None, true), hint(None, false)), (Hint::Skip, Hint::Queue));
        assert_eq!((hint(Some(true), true), hint(Some(false), false)), (Hint::Skip, Hint::Skip));
        assert_eq!((hint(Some(true), false), hint(Some(false), true)), (Hint::Queue, Hint::Skip));
    }

    #[test]
    fn only_the_right_toleration_of_the_pod_itself_wakes_it() {
        let pod = testing::pod_of("p", json!({"tolerations": Value::Null}));
        let hint = |new: &Arc<PodInfo>| testing::pod_hint(&NodeUnschedulable, &pod, Some(&pod), Some(new));
        assert_eq!((hint(&tolerating(TAINT)), hint(&tolerating("other"))), (Hint::Queue, Hint::Skip));
        let tolerations = json!([{"operator": "Exists"}]);
        assert_eq!(hint(&testing::pod_of("q", json!({"tolerations": tolerations}))), Hint::Skip);
    }
}
