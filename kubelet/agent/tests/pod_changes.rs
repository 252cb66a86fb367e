//! Changes of running pods, by a whole kubelet over the fake runtime, on paused time.

#![allow(clippy::unwrap_used, reason = "this is test code, outside of a function marked as a test")]

mod support;

use std::time::Duration;

use serde_json::json;
use support::node::{Node, one};

/// The text of a file in a volume of the node's only pod.
fn file(node: &Node, volume: &str, path: &str) -> String {
    let volumes = node.machine.volumes();
    match &volumes.values().next().unwrap()[volume] {
        kubelet_agent::volumes::Content::Files { files, .. } => {
            String::from_utf8(files[path].content.clone()).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_of_the_downward_api_follow_labels_and_annotations() {
    let node = Node::new();
    let items = json!([
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "note", "fieldRef": {"fieldPath": "metadata.annotations['note']"}},
    ]);
    let mut spec = one("web");
    spec["volumes"] = json!([
        {"name": "plain", "downwardAPI": {"items": items}},
        {"name": "projected", "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
    ]);
    node.api.create_pod("p", spec);
    node.api.until_ready("p").await;
    for volume in ["plain", "projected"] {
        assert_eq!((file(&node, volume, "labels"), file(&node, volume, "note")), Default::default());
    }
    node.api.change("api/v1/pods", "default", "p", |pod| {
        pod["metadata"]["labels"] = json!({"a": "1", "b": "2"});
        pod["metadata"]["annotations"] = json!({"note": "new"});
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    for volume in ["plain", "projected"] {
        assert_eq!(file(&node, volume, "labels"), "a=\"1\"\nb=\"2\"");
        assert_eq!(file(&node, volume, "note"), "new");
    }
    node.api.change("api/v1/pods", "default", "p", |pod| pod["metadata"]["labels"] = json!({"b": "3"}));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(file(&node, "projected", "labels"), "b=\"3\"");
}

#[tokio::test(start_paused = true)]
async fn volumes_that_could_not_be_refreshed_are_tried_again() {
    let node = Node::new();
    let mut spec = one("web");
    let items = json!([{"path": "label", "fieldRef": {"fieldPath": "metadata.labels['a']"}}]);
    spec["volumes"] = json!([{"name": "v", "downwardAPI": {"items": items}}]);
    node.api.create_pod("p", spec);
    node.api.until_ready("p").await;
    node.machine.fail_volumes(1);
    node.api.change("api/v1/pods", "default", "p", |pod| pod["metadata"]["labels"] = json!({"a": "1"}));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(file(&node, "v", "label"), "", "the old content stays");
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(file(&node, "v", "label"), "1");
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_container_may_refer_to_objects_that_its_pod_did_not() {
    let node = Node::new();
    node.api.create_pod("p", one("web"));
    node.api.until_ready("p").await;
    node.api.create(
        "api/v1/configmaps",
        json!({"metadata": {"name": "c", "namespace": "default"}, "data": {"key": "value"}}),
    );
    node.api.change("api/v1/pods", "default", "p", |pod| {
        pod["spec"]["ephemeralContainers"] = json!([{"name": "d", "image": "web",
            "imagePullPolicy": "IfNotPresent", "envFrom": [{"configMapRef": {"name": "c"}}]}]);
    });
    let running = |pod: &serde_json::Value| {
        pod["status"]["ephemeralContainerStatuses"][0]["state"]["running"].is_object()
    };
    node.api.until("p", "debugged", running).await;
}
