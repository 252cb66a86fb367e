//! `NodeName`: a pod that names a node runs there.

use crate::cluster::{Cluster, Node};
use crate::framework::{Actions, Event, NodeFilter, Plugin, PreFilter, Refusal, Resource};
use crate::pod::PodInfo;

/// The plugin `NodeName`.
pub struct NodeName;

struct Named<'a>(&'a str);

impl NodeFilter for Named<'_> {
    fn passes(&self, node: &Node) -> bool {
        &*node.name == self.0
    }

    fn refusal(&self, _: &Node) -> Refusal {
        Refusal::unresolvable("node(s) didn't match the requested node name")
    }
}

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn pre_filter<'a>(&'a self, pod: &'a PodInfo, _: &'a Cluster) -> PreFilter<'a> {
        match &pod.node {
            Some(node) => PreFilter::Filter { only: None, filter: Box::new(Named(node)) },
            None => PreFilter::Skip,
        }
    }

    fn events(&self) -> Vec<Event> {
        vec![Event::new(Resource::Node, Actions::ADD)]
    }
}

/// Covers the 3 cases that Kubernetes tests of this plugin.
#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::framework::Hint;
    use crate::testing;

    #[test]
    fn pods_that_name_a_node_run_there_alone() {
        let refusal = |name: Value| {
            let cluster = testing::cluster(&[testing::node("foo", json!({}))], &[]);
            testing::refusal(NodeName, &testing::pod_of("p", json!({"nodeName": name})), &cluster, "foo")
        };
        assert_eq!((refusal(Value::Null), refusal(json!("foo"))), (None, None));
        let reason = Refusal::unresolvable("node(s) didn't match the requested node name");
        assert_eq!(refusal(json!("bar")), Some(reason.by("NodeName")));
    }

    #[test]
    fn any_node_that_comes_wakes_the_pod() {
        let (pod, node) = (testing::pod("p", json!({})), testing::node("foo", json!({})));
        assert_eq!(testing::node_hint(&NodeName, &pod, None, Some(&node)), Hint::Queue);
        assert_eq!(NodeName.events(), [Event::new(Resource::Node, Actions::ADD)]);
    }
}
