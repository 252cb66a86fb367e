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
