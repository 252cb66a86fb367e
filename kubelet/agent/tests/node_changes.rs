//! Changes of the own Node under a running kubelet, on paused time.

use std::{net::Ipv4Addr, time::Duration};

use kubelet_cri::fake::Behaviour;
use serde_json::{Value, json};

use crate::support::{
    Api,
    node::{Node, container, one},
};

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
    // A cordon that is lifted on the new object does not come back on the next.
    node.api.change(NODES, "", "n1", |node| node["spec"] = json!({"unschedulable": false}));
    node.api.remove(NODES, "", "n1");
    assert_eq!(registered_again(&node.api, &second["metadata"]["uid"]).await["spec"], json!({}));
}

/// Waits until the Node has this amount of GPUs allocatable, `null` for none.
async fn until_allocatable(node: &Node, amount: Value) {
    let mut last = Value::Null;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        last = node.api.get(NODES, "", "n1").unwrap()["status"]["allocatable"].clone();
        if last["example.com/gpu"] == amount {
            return;
        }
    }
    panic!("not {amount} in {last}");
}

#[tokio::test(start_paused = true)]
async fn extended_resources_that_others_add_to_the_capacity_are_allocatable_until_they_are_removed() {
    let mut node = Node::new();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let own = node.api.get(NODES, "", "n1").unwrap()["status"]["allocatable"].clone();
    let advertise = |node: &Node, amount: Value| {
        node.api.change(NODES, "", "n1", |node| {
            node["status"]["capacity"]["example.com/gpu"] = amount.clone();
        });
    };
    advertise(&node, json!("4"));
    until_allocatable(&node, json!("4")).await;
    advertise(&node, json!("2"));
    until_allocatable(&node, json!("2")).await;
    // An amount that others write beside the capacity does not last.
    let pointer = "/status/allocatable";
    node.api.change(NODES, "", "n1", |node| {
        node.pointer_mut(pointer).unwrap()["example.com/gpu"] = json!("3");
    });
    until_allocatable(&node, json!("2")).await;
    // The kubelet that comes back does not take the resource away, and finds that it was removed.
    node.stop().await;
    node.start();
    tokio::time::sleep(Duration::from_secs(20)).await;
    until_allocatable(&node, json!("2")).await;
    node.stop().await;
    node.api.change(NODES, "", "n1", |node| {
        node["status"]["capacity"].as_object_mut().unwrap().remove("example.com/gpu");
    });
    node.start();
    until_allocatable(&node, Value::Null).await;
    assert_eq!(node.api.get(NODES, "", "n1").unwrap()["status"]["allocatable"], own);
}

/// Gives the node another range, which its network has been set up with.
fn change_range(node: &Node) {
    node.runtime.set_pod_cidr((Ipv4Addr::new(10, 9, 1, 0), 24));
    node.pod_ranges.send_replace(vec!["10.9.1.0/24".parse().unwrap()]);
}

fn address_events(node: &Node) -> Vec<String> {
    node.api.event_messages().into_iter().filter(|text| text.starts_with("PodAddressLost")).collect()
}

#[tokio::test(start_paused = true)]
async fn pod_gets_a_new_sandbox_when_its_node_has_lost_the_range_of_its_address() {
    let node = Node::new();
    node.pod_ranges.send_replace(vec!["10.9.0.0/24".parse().unwrap()]);
    let slow = Behaviour { stop_takes: Duration::from_secs(3), ..Behaviour::default() };
    node.runtime.set_behaviour("web", slow);
    node.api.create_pod("p", one("web"));
    let mut host = one("web");
    host["hostNetwork"] = json!(true);
    node.api.create_pod("host", host);
    let before = node.api.until_ready("p").await;
    let host = node.api.until_ready("host").await;
    assert_eq!(before["status"]["podIP"], "10.9.0.2");
    change_range(&node);
    let moved = |pod: &Value| pod["status"]["podIP"].as_str().is_some_and(|ip| ip.starts_with("10.9.1."));
    node.api.until("p", "at an address of the new range", moved).await;
    let after = node.api.until_ready("p").await;
    assert_eq!(
        (&container(&after)["restartCount"], &after["status"]["phase"]),
        (&json!(1), &json!("Running"))
    );
    let ended = &container(&after)["lastState"]["terminated"];
    assert_eq!(ended["exitCode"], 0, "the container was not stopped gracefully: {ended}");
    assert_eq!(
        address_events(&node),
        [
            "PodAddressLost The pod's address 10.9.0.2 is in none of the node's podCIDRs any more, 10.9.1.0/24: the pod \
          gets a new sandbox"
        ]
    );
    // Neither a pod in the network of the host nor one that has moved is touched again.
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(node.api.pod("host")["status"]["containerStatuses"], host["status"]["containerStatuses"]);
    assert_eq!(container(&node.api.pod("p")), container(&after));
}

#[tokio::test(start_paused = true)]
async fn pod_that_does_not_restart_fails_when_its_node_has_lost_the_range_of_its_address() {
    let node = Node::new();
    node.pod_ranges.send_replace(vec!["10.9.0.0/24".parse().unwrap()]);
    for policy in ["Never", "OnFailure"] {
        let mut spec = one("web");
        spec["restartPolicy"] = json!(policy);
        node.api.create_pod(&policy.to_lowercase(), spec);
    }
    for name in ["never", "onfailure"] {
        node.api.until_ready(name).await;
    }
    change_range(&node);
    for name in ["never", "onfailure"] {
        // Its container ends with 0 on SIGTERM, which is no success of its work.
        let failed = node.api.until(name, "failed", |pod| pod["status"]["phase"] == "Failed").await;
        assert_eq!(failed["status"]["reason"], "PodAddressLost", "{failed:#}");
    }
    assert_eq!(address_events(&node).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn pod_that_has_failed_already_keeps_its_reason_when_its_address_is_lost() {
    let mut node = Node::new();
    node.pod_ranges.send_replace(vec!["10.9.0.0/24".parse().unwrap()]);
    let mut spec = one("web");
    spec["restartPolicy"] = json!("Never");
    spec["activeDeadlineSeconds"] = json!(60);
    node.api.create_pod("p", spec);
    node.api.until_ready("p").await;
    node.stop().await;
    // The kubelet that comes back finds both at once.
    tokio::time::sleep(Duration::from_secs(120)).await;
    change_range(&node);
    node.start();
    let failed = node.api.until("p", "failed", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(failed["status"]["reason"], "DeadlineExceeded", "{failed:#}");
    assert_eq!(address_events(&node), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn pods_stay_where_another_network_plugin_chooses_their_addresses() {
    let node = Node::new();
    node.api.create_pod("p", one("web"));
    let before = node.api.until_ready("p").await;
    node.api.change(NODES, "", "n1", |node| node["spec"]["podCIDR"] = json!("10.9.7.0/24"));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(container(&node.api.pod("p")), container(&before));
}
