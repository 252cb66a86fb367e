//! Facts about Nodes that several components need.

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};

/// Returns the condition of a type.
pub fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    of_status(node.status.as_ref()?, kind)
}

/// Returns `true` if the condition `Ready` is `True`.
pub fn is_ready(node: &Node) -> bool {
    node.status.as_ref().is_some_and(is_status_ready)
}

/// Returns `true` if the condition `Ready` of a status is `True`.
pub fn is_status_ready(status: &NodeStatus) -> bool {
    of_status(status, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Returns `true` if an administrator has declared the node to be shut down for good, by the taint
/// `node.kubernetes.io/out-of-service` (KEP-2268).
pub fn is_out_of_service(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == "node.kubernetes.io/out-of-service")
}

fn of_status<'a>(status: &'a NodeStatus, kind: &str) -> Option<&'a NodeCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(conditions: serde_json::Value) -> Node {
        serde_json::from_value(json!({"metadata": {}, "status": {"conditions": conditions}})).unwrap()
    }

    #[test]
    fn a_node_is_ready_if_its_condition_says_so() {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
        assert!(is_ready(&node(json!([condition("DiskPressure", "False"), condition("Ready", "True")]))));
        assert!(!is_ready(&node(json!([condition("DiskPressure", "True"), condition("Ready", "Unknown")]))));
        assert!(!is_ready(&node(json!([]))) && !is_ready(&Node::default()));
    }
}
