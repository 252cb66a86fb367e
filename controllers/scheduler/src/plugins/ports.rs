//! Host ports, which only one pod per node can use.

use crate::framework::{Filter, NodeFilter};
use crate::model::{NodeInfo, PodInfo};
use crate::snapshot::Snapshot;

/// `NodePorts`: excludes nodes where a host port of the pod is in use.
pub struct NodePorts;

impl Filter for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn prepare<'a>(&self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn NodeFilter + 'a>> {
        if pod.host_ports.is_empty() {
            return None;
        }
        Some(Box::new(move |node: &NodeInfo| {
            let taken = node.pods.values().flat_map(|other| &other.host_ports);
            let conflict =
                taken.into_iter().any(|port| pod.host_ports.iter().any(|mine| mine.conflicts(port)));
            if conflict {
                vec!["node(s) didn't have free ports for the requested pod ports".to_owned()]
            } else {
                Vec::new()
            }
        }))
    }
}
