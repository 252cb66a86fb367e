//! Tests of namespaces. The deletion of their contents is tested with the controllers.

use serde_json::json;

use crate::api::harness::Api;

async fn made(api: &Api, name: &str) -> (String, serde_json::Value) {
    let body = api.post("/api/v1/namespaces", json!({"metadata": {"name": name}})).await.expect(201).body;
    (format!("/api/v1/namespaces/{name}"), body)
}

#[tokio::test]
async fn a_namespace_is_patched_and_updated() {
    let api = Api::start().await;
    let (path, _) = made(&api, "patched").await;
    let label = json!({"metadata": {"labels": {"testLabel": "testValue"}}});
    let mut patched = api.patch("strategic-merge", &path, label).await.expect(200).body;
    assert_eq!(patched["metadata"]["labels"]["testLabel"], "testValue");
    assert_eq!(patched["metadata"]["labels"]["kubernetes.io/metadata.name"], "patched");
    patched["metadata"]["labels"]["updated"] = "yes".into();
    assert_eq!(api.put(&path, patched).await.expect(200).body["metadata"]["labels"]["updated"], "yes");
}

#[tokio::test]
async fn the_status_of_a_namespace_changes_apart() {
    let api = Api::start().await;
    let (path, body) = made(&api, "status").await;
    assert_eq!(body["status"]["phase"], "Active");
    let status = format!("{path}/status");
    assert_eq!(api.get(&status).await.expect(200).body["status"]["phase"], "Active");
    let condition = json!({"type": "StatusPatch", "status": "True", "reason": "E2E", "message": "Patched by an e2e test",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patch =
        json!({"metadata": {"annotations": {"e2e": "patched"}}, "status": {"conditions": [condition]}});
    let mut patched = api.patch("merge", &status, patch).await.expect(200).body;
    assert_eq!(
        (&patched["metadata"]["annotations"]["e2e"], &patched["status"]["conditions"][0]["type"]),
        (&json!("patched"), &json!("StatusPatch"))
    );
    patched["status"]["conditions"][0]["type"] = "StatusUpdate".into();
    let updated = api.put(&status, patched).await.expect(200).body;
    assert_eq!(updated["status"]["conditions"][0]["type"], "StatusUpdate");
}

#[tokio::test]
async fn a_finalizer_of_a_namespace_comes_and_goes() {
    let api = Api::start().await;
    let (path, mut body) = made(&api, "finalized").await;
    assert_eq!(body["spec"]["finalizers"], json!(["kubernetes"]));
    body["spec"]["finalizers"] = json!(["kubernetes", "e2e.example.com/fakeFinalizer"]);
    let mut with = api.put(&format!("{path}/finalize"), body).await.expect(200).body;
    assert_eq!(with["spec"]["finalizers"].as_array().unwrap().len(), 2);
    with["spec"]["finalizers"] = json!(["kubernetes"]);
    let without = api.put(&format!("{path}/finalize"), with).await.expect(200).body;
    assert_eq!(without["spec"]["finalizers"], json!(["kubernetes"]));
}
