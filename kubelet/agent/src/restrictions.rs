//! The restrictions of scheduling that the own Node has, for the case that it is deleted while its kubelet runs.
//!
//! A kubelet of Kubernetes registers once. Ours registers again, by which a node gets another range of pods; an operator who
//! has cordoned the node must not find it schedulable for that.

use std::sync::Arc;

use apiserver_client::Cache;
use arc_swap::ArcSwap;
use k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};

/// Keys of the taints that controllers set by themselves, from conditions of the Node and from `spec.unschedulable`.
const DERIVED: [&str; 7] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/unschedulable",
];

/// The restrictions that the own Node had when it was last seen.
#[derive(Default)]
pub(crate) struct Restrictions(ArcSwap<NodeSpec>);

impl Restrictions {
    /// Returns the restrictions of the Node that a cache holds, which follow its changes.
    pub(crate) fn of(nodes: &Cache<Node>) -> Arc<Self> {
        let restrictions = Arc::new(Self::default());
        let seen = Arc::clone(&restrictions);
        // A Node that is deleted is seen a last time.
        nodes.on_change(move |change| seen.0.store(Arc::new(lasting(change.object()))));
        restrictions
    }

    /// Returns the spec that the Node is registered with.
    pub(crate) fn spec(&self) -> NodeSpec {
        NodeSpec::clone(&self.0.load())
    }
}

/// Returns the part of a Node's spec that a new object of the same node begins with.
fn lasting(node: &Node) -> NodeSpec {
    let Some(spec) = &node.spec else { return NodeSpec::default() };
    let given = |taint: &&Taint| !DERIVED.contains(&taint.key.as_str());
    let taints: Vec<Taint> = spec.taints.iter().flatten().filter(given).cloned().collect();
    NodeSpec {
        unschedulable: spec.unschedulable.filter(|unschedulable| *unschedulable),
        taints: (!taints.is_empty()).then_some(taints),
        ..NodeSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn new_object_of_a_node_keeps_its_cordon_and_the_taints_that_no_controller_sets() {
        let taint = |key: &str| json!({"key": key, "effect": "NoExecute"});
        let node = |spec| serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
        let mut taints: Vec<_> = DERIVED.iter().map(|key| taint(key)).collect();
        taints.push(taint("node.kubernetes.io/out-of-service"));
        taints.push(taint("example.com/gpu"));
        let spec = json!({
            "unschedulable": true, "taints": taints, "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"],
            "providerID": "x",
        });
        let kept = json!({
            "unschedulable": true, "taints": [taint("node.kubernetes.io/out-of-service"), taint("example.com/gpu")],
        });
        assert_eq!(serde_json::to_value(lasting(&node(spec))).unwrap(), kept);
        let plain = json!({"unschedulable": false, "taints": [taint(DERIVED[0])]});
        assert_eq!(lasting(&node(plain)), NodeSpec::default());
    }
}
