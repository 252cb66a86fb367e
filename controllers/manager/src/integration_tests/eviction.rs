//! Eviction of pods by taints, and the rate at which nodes that are not ready get theirs.

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use super::{Cluster, send_heartbeat};
use crate::testing::{ambient, time};

/// Creates a pod that has been on `n` since some time and tolerates the taint `x` for some seconds, 0 for always.
async fn bound_pod(cluster: &Cluster, name: &str, since: Option<Time>, seconds: Option<u64>) {
    let toleration = |seconds: u64| match seconds {
        0 => json!({"key": "x", "operator": "Exists"}),
        _ => json!({"key": "x", "operator": "Exists", "tolerationSeconds": seconds}),
    };
    let tolerations: Vec<Value> = seconds.map(toleration).into_iter().collect();
    let spec = json!({"nodeName": "n", "containers": [], "tolerations": tolerations});
    let bound = json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]);
    let pod = json!({"metadata": {"name": name}, "spec": spec, "status": {"conditions": bound}});
    cluster.create::<Pod>("ns", pod).await;
}

async fn taint(cluster: &Cluster, keys: &[&str]) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let taints: Vec<Value> = keys.iter().map(|key| json!({"key": key, "effect": "NoExecute"})).collect();
    let body = Patch::Merge(json!({"spec": {"taints": taints}}));
    nodes.patch("n", &PatchParams::default(), &body).await.unwrap();
    cluster.pass(1).await;
}

#[tokio::test(start_paused = true)]
async fn pods_leave_a_tainted_node_when_their_tolerations_end() {
    let clock = ambient();
    let cluster = Cluster::start().await;
    cluster.create::<Node>("", json!({"metadata": {"name": "n"}})).await;
    send_heartbeat(&cluster, "n", 0).await;
    for (name, seconds) in [("always", Some(0)), ("later", Some(30)), ("never", None)] {
        bound_pod(&cluster, name, time(0), seconds).await;
    }
    cluster.pass(1).await;
    assert_eq!(cluster.names("pods").len(), 3);
    taint(&cluster, &["x"]).await;
    assert_eq!(cluster.names("pods"), ["always", "later"]);
    let written = cluster.api.history("pods");
    let condition = written.iter().rev().find_map(|(_, pod)| pod["status"]["conditions"].as_array().cloned());
    let conditions = condition.unwrap();
    let condition = conditions.last().unwrap();
    assert_eq!((&condition["type"], &condition["status"]), (&json!("DisruptionTarget"), &json!("True")));
    assert_eq!(condition["reason"], "DeletionByTaintManager");
    assert_eq!(condition["message"], "Taint manager: deleting due to NoExecute taint");
    // The taint goes in time, and comes back.
    cluster.pass(20).await;
    taint(&cluster, &[]).await;
    let words = ["Marking for deletion Pod ns/never", "Cancelling deletion of Pod ns/later"];
    assert_eq!(cluster.messages("TaintManagerEviction"), words.map(str::to_owned).into());
    cluster.pass(5).await;
    taint(&cluster, &["x"]).await;
    cluster.pass(28).await;
    assert_eq!(cluster.names("pods"), ["always", "later"]);
    // One that is bound to the node now has its whole time.
    bound_pod(&cluster, "new", Some(Time(clock.now())), Some(30)).await;
    cluster.pass(2).await;
    assert_eq!(cluster.names("pods"), ["always", "new"]);
    taint(&cluster, &["x", "y"]).await;
    assert!(cluster.names("pods").is_empty(), "nobody tolerates the second taint");
}

/// Returns the nodes whose pods are evicted.
fn evicted(cluster: &Cluster) -> Vec<String> {
    let nodes = cluster.api.all("nodes");
    let is_evicted = |node: &&Value| {
        let taints = node["spec"]["taints"].as_array();
        taints.is_some_and(|taints| taints.iter().any(|taint| taint["effect"] == "NoExecute"))
    };
    let name = |node: &Value| node["metadata"]["name"].as_str().unwrap().to_owned();
    nodes.iter().filter(is_evicted).map(name).collect()
}

async fn report(cluster: &Cluster, node: &str, ready: &str) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let body = json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
    nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_zone_are_emptied_one_after_the_other_and_none_in_an_outage() {
    let cluster = Cluster::start().await;
    for (name, zone) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")] {
        let labels = json!({"topology.kubernetes.io/zone": zone});
        cluster.create::<Node>("", json!({"metadata": {"name": name, "labels": labels}})).await;
        report(&cluster, name, "True").await;
    }
    // Before the first was ready no pod would have been evicted, which counts like an outage.
    cluster.pass(11).await;
    for name in ["a1", "a2", "b1"] {
        report(&cluster, name, "False").await;
    }
    cluster.pass(1).await;
    let first = evicted(&cluster);
    assert_eq!(first.len(), 2, "one of each zone: {first:?}");
    assert!(first.contains(&"b1".to_owned()), "{first:?}");
    cluster.pass(8).await;
    assert_eq!(evicted(&cluster), first);
    cluster.pass(2).await;
    assert_eq!(evicted(&cluster), ["a1", "a2", "b1"]);
    // The last ready nodes fail: no pod of any node is evicted now.
    report(&cluster, "a3", "False").await;
    report(&cluster, "b2", "False").await;
    cluster.pass(1).await;
    assert!(evicted(&cluster).is_empty());
    cluster.pass(20).await;
    assert!(evicted(&cluster).is_empty());
    // One is ready again, and the others have to wait for their turn.
    report(&cluster, "b2", "True").await;
    cluster.pass(5).await;
    assert!(evicted(&cluster).is_empty());
    cluster.pass(6).await;
    let again = evicted(&cluster);
    assert_eq!(again.len(), 2, "one of each zone: {again:?}");
    assert!(again.contains(&"b1".to_owned()), "{again:?}");
}
