//! `pods/eviction` and the PodDisruptionBudgets that may refuse it.

use serde_json::{Value, json};

use crate::api::harness::{Api, Reply, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

/// A pod with the label `app=web` that its kubelet has started.
async fn running(api: &Api, name: &str) {
    let mut object = pod(name);
    object["metadata"]["labels"] = json!({"app": "web"});
    object["spec"]["nodeName"] = "n1".into();
    api.post(PODS, object).await.expect(201);
    ready(api, name, "True").await;
}

async fn ready(api: &Api, name: &str, status: &str) {
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]}});
    api.patch("strategic-merge", &format!("{PODS}/{name}/status"), status).await.expect(200);
}

/// Creates a budget for the label, whose controller allows this many disruptions.
async fn budget(api: &Api, name: &str, allowed: i64) {
    let object = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    api.post(BUDGETS, object).await.expect(201);
    if allowed >= 0 {
        let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": allowed,
            "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
        api.patch("merge", &format!("{BUDGETS}/{name}/status"), status).await.expect(200);
    }
}

async fn evict(api: &Api, name: &str, options: Value) -> Reply {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
        "deleteOptions": options});
    api.post(&format!("{PODS}/{name}/eviction"), eviction).await
}

async fn status(api: &Api) -> Value {
    api.get(&format!("{BUDGETS}/b")).await.expect(200).body["status"].take()
}

fn cause(refused: &Reply) -> &str {
    assert_eq!(refused.reason(), "TooManyRequests");
    assert_eq!(refused.message(), "Cannot evict pod as it would violate the pod's disruption budget.");
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "DisruptionBudget");
    refused.body["details"]["causes"][0]["message"].as_str().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_budget_allows_as_many_disruptions_as_its_controller_says() {
    let api = Api::start().await;
    running(&api, "p0").await;
    running(&api, "p1").await;
    budget(&api, "b", -1).await;
    let refused = evict(&api, "p0", Value::Null).await.expect(429);
    assert_eq!(cause(&refused), "The disruption budget b is still being processed by the server.");
    assert_eq!(refused.body["details"]["retryAfterSeconds"], 10);
    api.delete(&format!("{BUDGETS}/b"), Value::Null).await.expect(200);
    budget(&api, "b", 1).await;
    let before = status(&api).await;
    // A dry run, or an eviction of another pod, uses no disruption.
    evict(&api, "p0", json!({"dryRun": ["All"]})).await.expect(201);
    evict(&api, "p0", json!({"preconditions": {"uid": "another"}})).await.expect(409);
    evict(&api, "p0", json!({"preconditions": {"resourceVersion": "1"}})).await.expect(409);
    evict(&api, "p9", Value::Null).await.expect(404);
    let unnamed = json!({"apiVersion": "policy/v1", "kind": "Eviction"});
    let refused = api.post(&format!("{PODS}/p0/eviction"), unnamed).await.expect(400);
    assert_eq!(refused.message(), "name in URL does not match name in Eviction object");
    assert_eq!(status(&api).await, before);
    assert!(api.get(&format!("{PODS}/p0")).await.body["metadata"]["deletionTimestamp"].is_null());

    evict(&api, "p0", Value::Null).await.expect(201);
    let going = api.get(&format!("{PODS}/p0")).await.expect(200).body;
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    let target = &going["status"]["conditions"][1];
    assert_eq!(
        (&target["type"], &target["reason"]),
        (&json!("DisruptionTarget"), &json!("EvictionByEvictionAPI"))
    );
    let after = status(&api).await;
    assert_eq!(after["disruptionsAllowed"], 0);
    assert!(after["disruptedPods"]["p0"].is_string(), "{after}");
    assert_eq!(after["conditions"][0]["reason"], "InsufficientPods");

    let refused = evict(&api, "p1", Value::Null).await.expect(429);
    assert_eq!(cause(&refused), "The disruption budget b does not allow evicting pods currently");
    // A pod that is being deleted may be evicted again, and one that is not ready does not count as healthy.
    evict(&api, "p0", Value::Null).await.expect(201);
    ready(&api, "p1", "False").await;
    evict(&api, "p1", Value::Null).await.expect(201);
    assert_eq!(status(&api).await, after);
    // A pod that does not run yet is not guarded.
    let mut waiting = pod("p2");
    waiting["metadata"]["labels"] = json!({"app": "web"});
    api.post(PODS, waiting).await.expect(201);
    evict(&api, "p2", Value::Null).await.expect(201);
    api.get(&format!("{PODS}/p2")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_two_budgets_cannot_be_evicted() {
    let api = Api::start().await;
    running(&api, "p").await;
    budget(&api, "b", 1).await;
    budget(&api, "c", 1).await;
    let refused = evict(&api, "p", Value::Null).await.expect(500);
    assert_eq!(
        refused.message(),
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    );
    assert_eq!(status(&api).await["disruptionsAllowed"], 1);
}

#[tokio::test(start_paused = true)]
async fn evictions_at_once_do_not_take_more_than_there_is() {
    let api = Api::start().await;
    for i in 0..8 {
        running(&api, &format!("p{i}")).await;
    }
    budget(&api, "b", 3).await;
    let names: Vec<String> = (0..8).map(|i| format!("p{i}")).collect();
    let replies = futures::future::join_all(names.iter().map(|name| evict(&api, name, Value::Null))).await;
    let of = |code: u16| replies.iter().filter(|reply| reply.code == code).count();
    assert_eq!((of(201), of(429)), (3, 5));
    let status = status(&api).await;
    assert_eq!(status["disruptionsAllowed"], 0);
    assert_eq!(status["disruptedPods"].as_object().unwrap().len(), 3);
}
