//! `spec.unschedulable` (cordon) and `spec.nodeName`.

use k8s_openapi::api::core::v1::Taint;

use crate::framework::{Filter, NodeFilter};
use crate::model::{NodeInfo, PodInfo};
use crate::snapshot::Snapshot;

/// `NodeUnschedulable`: excludes cordoned nodes, unless the pod tolerates the corresponding taint.
pub struct NodeUnschedulable;

impl Filter for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn prepare<'a>(&self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn NodeFilter + 'a>> {
        let taint = Taint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let tolerated = pod.tolerates(&taint);
        Some(Box::new(move |node: &NodeInfo| {
            if node.unschedulable && !tolerated {
                vec!["node(s) were unschedulable".to_owned()]
            } else {
                Vec::new()
            }
        }))
    }
}

/// `NodeName`: excludes all nodes but the one that the pod names.
pub struct NodeName;

impl Filter for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn prepare<'a>(&self, pod: &'a PodInfo, _: &'a Snapshot) -> Option<Box<dyn NodeFilter + 'a>> {
        if pod.node.is_empty() {
            return None;
        }
        Some(Box::new(move |node: &NodeInfo| {
            if node.name == pod.node {
                Vec::new()
            } else {
                vec!["node(s) didn't match the requested node name".to_owned()]
            }
        }))
    }
}
