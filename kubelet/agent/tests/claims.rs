//! Volumes behind claims: a whole kubelet with the fake runtime, on paused time.

use std::time::Duration;

use crate::support::{
    condition,
    node::{Node, one},
};
use kubelet_agent::volumes::Content;
use serde_json::{Value, json};

const CLAIMS: &str = "api/v1/persistentvolumeclaims";
const VOLUMES: &str = "api/v1/persistentvolumes";

fn with_claim(read_only: bool) -> Value {
    let mut spec = one("web");
    spec["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c", "readOnly": read_only}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    spec
}

/// Creates a volume that is bound to the claim `c` of this namespace and uid.
fn volume(node: &Node, name: &str, namespace: &str, uid: &str) {
    let claim = json!({"namespace": namespace, "name": "c", "uid": uid});
    let spec = json!({"local": {"path": format!("/volumes/{name}")}, "claimRef": claim});
    node.api.create(VOLUMES, json!({"metadata": {"name": name}, "spec": spec}));
}

fn claim(node: &Node, phase: &str, volume: &str) {
    node.api.create(
        CLAIMS,
        json!({"metadata": {"name": "c", "namespace": "default", "uid": "u"}, "spec": {"volumeName": volume},
            "status": {"phase": phase}}),
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_once_its_claim_is_bound_and_keeps_its_volume() {
    let mut node = Node::new();
    claim(&node, "Pending", "");
    node.api.create_pod("p", with_claim(true));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_ne!(condition(&node.api.pod("p"), "Ready"), "True");
    let told = "PVC default/c has non-bound phase (\"Pending\") or empty pvc.Spec.VolumeName (\"\")";
    let events = node.api.event_messages();
    assert!(events.iter().any(|event| event.contains("FailedMount") && event.contains(told)), "{events:?}");
    volume(&node, "v", "default", "u");
    node.api.change(CLAIMS, "default", "c", |claim| {
        claim["spec"]["volumeName"] = json!("v");
        claim["status"]["phase"] = json!("Bound");
    });
    node.api.until_ready("p").await;
    let all = node.machine.volumes();
    let local = Content::Local { path: "/volumes/v".to_owned(), read_only: true };
    assert_eq!(all.values().next().unwrap()["data"], local);

    // The next kubelet takes the pod over, although its claim is being deleted.
    node.api.change(CLAIMS, "default", "c", |claim| {
        claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    node.stop().await;
    node.start();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(condition(&node.api.pod("p"), "Ready"), "True");
    let published = &node.api.get("api/v1/nodes", "", "n1").unwrap()["metadata"]["annotations"];
    assert_eq!(published["hawser.dev/local-path-directory"], "/volumes");
}

/// A tenant writes what it likes into its claim and the claim's status.
#[tokio::test(start_paused = true)]
async fn a_claim_that_says_to_be_bound_to_the_volume_of_another_gets_nothing() {
    for (namespace, uid) in [("bank", "u"), ("default", "another")] {
        let node = Node::new();
        volume(&node, "v", namespace, uid);
        claim(&node, "Bound", "v");
        node.api.create_pod("p", with_claim(false));
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_ne!(condition(&node.api.pod("p"), "Ready"), "True");
        let events = node.api.event_messages();
        assert!(events.iter().any(|event| event.contains("PV v is not bound to it")), "{events:?}");
        assert!(node.machine.volumes().values().all(|volumes| !volumes.contains_key("data")));
    }
}
