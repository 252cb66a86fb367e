//! `NodePorts`: a pod runs where its host ports are free.

use apiserver_meta::host_ports::HostPort;

use crate::cluster::{Cluster, Node};
use crate::framework::{Actions, Change, Event, Hint, NodeFilter, Plugin, Refusal, Resource, Versions};
use crate::pod::{PodInfo, PodSpec};

#[cfg(test)]
mod tests;

/// The plugin `NodePorts`.
pub struct NodePorts;

struct Free<'a>(&'a [HostPort]);

/// Returns `true` if no port of one list conflicts with one of the other.
fn are_free(wanted: &[HostPort], used: &[HostPort]) -> bool {
    used.is_empty() || !wanted.iter().any(|port| used.iter().any(|other| port.conflicts(other)))
}

impl NodeFilter for Free<'_> {
    fn passes(&self, node: &Node) -> bool {
        are_free(self.0, &node.ports)
    }

    fn refusal(&self, _: &Node) -> Refusal {
        Refusal::unschedulable("node(s) didn't have free ports for the requested pod ports")
    }
}

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn node_filter<'a>(&'a self, spec: &'a PodSpec, _: &'a Cluster) -> Option<Box<dyn NodeFilter + 'a>> {
        if spec.host_ports.is_empty() { None } else { Some(Box::new(Free(&spec.host_ports))) }
    }

    fn events(&self) -> Vec<Event> {
        vec![
            // The ports of a pod never change.
            Event::new(Resource::AssignedPod, Actions::DELETE),
            Event::new(Resource::UnscheduledPod, Actions::DELETE),
            Event::new(Resource::Node, Actions::ADD),
        ]
    }

    fn hint(&self, pod: &PodInfo, change: &Change<'_>, _: &Cluster) -> Hint {
        let Change::Pod(Versions { old: Some(gone), .. }) = change else { return Hint::Queue };
        let had_place = gone.node.is_some() || gone.nominated.is_some();
        if !had_place || are_free(&pod.spec.host_ports, &gone.spec.host_ports) {
            Hint::Skip
        } else {
            Hint::Queue
        }
    }
}
