//! Changes of the own Node under a running kubelet, on paused time.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Api, node::Node};

const NODES: &str = "api/v1/nodes";

/// Waits until the Node has been registered anew.
async fn registered_again(api: &Api, uid: &Value) -> Value {
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if let Some(node) = api.get(NODES, "", "n1").filter(|node| node["metadata"]["uid"] != *uid) {
            return node;
        }
    }
    panic!("the node has not registered again");
}

#[tokio::test(start_paused = true)]
async fn node_deleted_under_its_kubelet_comes_back_cordoned_and_with_its_taints() {
    let node = Node::new();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let first = node.api.get(NODES, "", "n1").unwrap();
    assert_eq!(first["spec"], json!({}), "a new node is schedulable");
    let gpu = json!({"key": "example.com/gpu", "effect": "NoSchedule"});
    node.api.change(NODES, "", "n1", |node| {
        let cordoned = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
        node["spec"] = json!({"unschedulable": true, "taints": [gpu, cordoned], "podCIDR": "10.9.0.0/24"});
    });
    node.api.remove(NODES, "", "n1");
    let second = registered_again(&node.api, &first["metadata"]["uid"]).await;
    assert_eq!(second["spec"], json!({"unschedulable": true, "taints": [gpu]}));
    // What is undone on the new object stays undone on the next.
    node.api.change(NODES, "", "n1", |node| node["spec"] = json!({"unschedulable": false}));
    node.api.remove(NODES, "", "n1");
    assert_eq!(registered_again(&node.api, &second["metadata"]["uid"]).await["spec"], json!({}));
}
