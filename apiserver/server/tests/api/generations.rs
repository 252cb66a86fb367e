//! Tests of `metadata.generation` of Pods: changes of the desired state, and others.

use serde_json::{Value, json};

use crate::api::harness::{Api, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test(start_paused = true)]
async fn a_pod_counts_changes_of_its_spec_and_its_deletion_but_not_its_binding() {
    let api = Api::start().await;
    let path = format!("{PODS}/p");
    let mut object = pod("p");
    object["metadata"]["generation"] = 7.into();
    object["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m"}});
    let made = api.post(PODS, object).await.expect(201).body;
    assert_eq!(made["metadata"]["generation"], 1);
    let generation = async || api.get(&path).await.expect(200).body["metadata"]["generation"].clone();

    let nominated = json!({"status": {"nominatedNodeName": "n1"}});
    api.patch("merge", &format!("{path}/status"), nominated).await.expect(200);
    assert_eq!(generation().await, 1, "a status");
    let binding = json!({"metadata": {"name": "p", "annotations": {"a": "b"}}, "target": {"name": "n1"}});
    api.post(&format!("{path}/binding"), binding).await.expect(201);
    let bound = api.get(&path).await.expect(200).body;
    assert_eq!((&bound["metadata"]["generation"], &bound["spec"]["nodeName"]), (&json!(1), &json!("n1")));
    assert_eq!(bound["status"].get("nominatedNodeName"), None, "the nomination is over");

    let label = json!({"metadata": {"labels": {"x": "y"}, "annotations": {"x": "y"}}});
    api.patch("merge", &path, label).await.expect(200);
    assert_eq!(generation().await, 1, "metadata");
    api.patch("merge", &path, json!({"spec": {"activeDeadlineSeconds": 500}})).await.expect(200);
    assert_eq!(generation().await, 2, "the spec");

    let resize = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "200m"}}}]}});
    for _ in 0..2 {
        api.patch("strategic-merge", &format!("{path}/resize"), resize.clone()).await.expect(200);
        assert_eq!(generation().await, 3, "a resize, once");
    }
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "d"}]}});
    for _ in 0..2 {
        api.patch("strategic-merge", &format!("{path}/ephemeralcontainers"), debug.clone()).await.expect(200);
        assert_eq!(generation().await, 4, "an ephemeral container, once");
    }
    for _ in 0..2 {
        let going = api.delete(&path, Value::Null).await.expect(200).body;
        assert_eq!(going["metadata"]["generation"], 5, "the first deletion");
    }
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_that_stays_counts_its_deletion_alone() {
    let api = Api::start().await;
    let mut object = pod("p");
    object["metadata"]["finalizers"] = json!(["example.com/f"]);
    object["spec"]["nodeName"] = "n1".into();
    api.post(PODS, object).await.expect(201);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    api.post(&format!("{PODS}/p/eviction"), eviction).await.expect(201);
    let going = api.get(&format!("{PODS}/p")).await.expect(200).body;
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(going["metadata"]["generation"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_leaves_its_generation_out_keeps_it() {
    let api = Api::start().await;
    api.post(PODS, pod("p")).await.expect(201);
    let status = format!("{PODS}/p/status");
    let ready = json!({"type": "Ready", "status": "True", "observedGeneration": 1});
    let told = json!({"status": {"observedGeneration": 1, "conditions": [ready]}});
    let mut told = api.patch("merge", &status, told).await.expect(200).body;
    assert_eq!(told["status"]["observedGeneration"], 1);
    told["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]});
    let kept = api.put(&status, told).await.expect(200).body["status"].clone();
    assert_eq!((&kept["observedGeneration"], &kept["phase"]), (&json!(1), &json!("Running")));
    assert_eq!(kept["conditions"][0]["observedGeneration"], 1);
    assert_eq!(kept["conditions"][0]["status"], "False");
}
