//! PodDisruptionBudgets, and the condition of pods that are about to be deleted.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use super::Cluster;
use crate::testing::time;

async fn budget(cluster: &Cluster, name: &str, app: &str, amount: Value) {
    let mut spec = amount;
    spec["selector"] = json!({"matchLabels": {"app": app}});
    cluster.create::<PodDisruptionBudget>("ns", json!({"metadata": {"name": name}, "spec": spec})).await;
}

/// Creates a pod with this label that a GameSet of this name and uid controls; without a controller if it is empty.
async fn pod_of(cluster: &Cluster, name: &str, app: &str, (owner, uid): (&str, &str)) {
    let mut pod = json!({"metadata": {"name": name, "labels": {"app": app}}, "spec": {"containers": []}});
    if !owner.is_empty() {
        pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "example.com/v1", "kind": "GameSet",
            "name": owner, "uid": uid, "controller": true}]);
    }
    cluster.create::<Pod>("ns", pod).await;
}

/// Makes all pods ready. They are on no node, since one that sends no heartbeats would not keep them so.
async fn start_pods(cluster: &Cluster) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    for name in cluster.names("pods") {
        let body = json!({"status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time(0)}]}});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    }
}

impl Cluster {
    fn status(&self, budget: &str) -> Value {
        let all = self.api.all("poddisruptionbudgets");
        all.iter().find(|one| one["metadata"]["name"] == budget).unwrap()["status"].clone()
    }

    /// Returns what a budget allows, counts as healthy, wants healthy and expects, and the reason of its condition.
    fn judged(&self, budget: &str) -> (i64, i64, i64, i64, String) {
        let status = self.status(budget);
        let number = |field: &str| status[field].as_i64().unwrap();
        let reason = status["conditions"][0]["reason"].as_str().unwrap().to_owned();
        (
            number("disruptionsAllowed"),
            number("currentHealthy"),
            number("desiredHealthy"),
            number("expectedPods"),
            reason,
        )
    }

    fn reported(&self, reason: &str) -> bool {
        self.event_sources().contains(&(reason.to_owned(), "controllermanager".to_owned()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_follows_the_pods_and_the_scale_of_its_deployment() {
    let cluster = Cluster::start().await;
    budget(&cluster, "b", "web", json!({"minAvailable": "50%"})).await;
    cluster.pass(2).await;
    assert_eq!(cluster.judged("b"), (0, 0, 0, 0, "InsufficientPods".to_owned()));
    assert!(cluster.reported("NoPods"));
    cluster.deploy(3).await;
    cluster.pass(2).await;
    assert_eq!(cluster.judged("b"), (0, 0, 2, 3, "InsufficientPods".to_owned()));
    start_pods(&cluster).await;
    cluster.pass(2).await;
    assert_eq!(cluster.judged("b"), (1, 3, 2, 3, "SufficientPods".to_owned()));
    assert_eq!(cluster.status("b")["observedGeneration"], 1);

    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
        Api::namespaced(cluster.client.clone(), "ns");
    let five = Patch::Merge(json!({"spec": {"replicas": 5}}));
    deployments.patch("web", &PatchParams::default(), &five).await.unwrap();
    cluster.pass(2).await;
    assert_eq!(cluster.judged("b"), (0, 3, 3, 5, "InsufficientPods".to_owned()));
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), "ns");
    let other = Patch::Merge(json!({"spec": {"minAvailable": null, "maxUnavailable": 4}}));
    budgets.patch("b", &PatchParams::default(), &other).await.unwrap();
    cluster.pass(2).await;
    assert_eq!(cluster.judged("b"), (2, 3, 1, 5, "SufficientPods".to_owned()));
    assert_eq!(cluster.status("b")["observedGeneration"], 2);
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_that_nobody_deletes_counts_again_after_two_minutes() {
    let cluster = Cluster::start().await;
    cluster.deploy(3).await;
    budget(&cluster, "b", "web", json!({"minAvailable": 1})).await;
    cluster.pass(2).await;
    start_pods(&cluster).await;
    cluster.pass(2).await;
    assert_eq!(cluster.judged("b"), (2, 3, 1, 3, "SufficientPods".to_owned()));
    // An API server allows two evictions, and carries out one of them.
    let names = cluster.names("pods");
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client.clone(), "ns");
    let taken = json!({"status": {"disruptionsAllowed": 0,
        "disruptedPods": {&names[0]: time(4), &names[1]: time(4)}}});
    budgets.patch_status("b", &PatchParams::default(), &Patch::Merge(taken)).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    pods.delete(&names[1], &kube::api::DeleteParams::default()).await.unwrap();
    cluster.pass(100).await;
    // Its successor is not ready.
    assert_eq!(cluster.judged("b"), (0, 1, 1, 3, "InsufficientPods".to_owned()));
    assert_eq!(cluster.status("b")["disruptedPods"], json!({&names[0]: time(4)}));
    assert!(!cluster.reported("NotDeleted"));
    cluster.pass(30).await;
    assert_eq!(cluster.judged("b"), (1, 2, 1, 3, "SufficientPods".to_owned()));
    assert_eq!(cluster.status("b")["disruptedPods"], Value::Null);
    assert!(cluster.reported("NotDeleted"));
}

#[tokio::test(start_paused = true)]
async fn custom_controllers_count_by_their_scale_and_others_allow_nothing() {
    let cluster = Cluster::start().await;
    let request = http::Request::post("/apis/example.com/v1/namespaces/ns/gamesets")
        .body(json!({"metadata": {"name": "g"}, "spec": {"replicas": 2}}).to_string().into_bytes());
    let set: Value = cluster.client.request(request.unwrap()).await.unwrap();
    let uid = set["metadata"]["uid"].as_str().unwrap();
    for (name, app, owner) in [
        ("g-0", "game", ("g", uid)),
        ("g-1", "game", ("g", uid)),
        ("h-0", "naked", ("", "")),
        ("i-0", "hostile", ("../../../../v1/namespaces/ns/pods/g-0", uid)),
    ] {
        pod_of(&cluster, name, app, owner).await;
    }
    for app in ["game", "naked", "hostile"] {
        budget(&cluster, app, app, json!({"maxUnavailable": 1})).await;
    }
    start_pods(&cluster).await;
    cluster.pass(2).await;
    assert_eq!(cluster.judged("game"), (1, 2, 1, 2, "SufficientPods".to_owned()));
    assert_eq!(cluster.judged("naked"), (0, 1, 0, 0, "InsufficientPods".to_owned()));
    assert!(cluster.reported("UnmanagedPods"));
    let hostile = cluster.status("hostile");
    let condition = &hostile["conditions"][0];
    assert_eq!((&condition["reason"], &condition["status"]), (&json!("SyncFailed"), &json!("False")));
    assert_eq!(condition["message"], "found no controllers for pod \"i-0\"");
    assert_eq!(hostile["disruptionsAllowed"], 0);
    assert!(cluster.reported("CalculateExpectedPodCountFailed"));

    // The second budget of a pod is reported.
    budget(&cluster, "second", "game", json!({"minAvailable": 1})).await;
    cluster.pass(2).await;
    assert!(cluster.reported("MultiplePodDisruptionBudgets"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_nobody_deletes_is_no_target_of_a_disruption_any_more() {
    let cluster = Cluster::start().await;
    pod_of(&cluster, "p", "web", ("", "")).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    let target = json!({"status": {"phase": "Running", "conditions": [{"type": "DisruptionTarget",
        "status": "True", "reason": "EvictionByEvictionAPI", "message": "m", "lastTransitionTime": time(0)}]}});
    pods.patch_status("p", &PatchParams::default(), &Patch::Merge(target)).await.unwrap();
    cluster.pass(100).await;
    let condition = || cluster.api.all("pods")[0]["status"]["conditions"][0].clone();
    assert_eq!(condition()["status"], "True");
    cluster.pass(30).await;
    let found = condition();
    assert_eq!((&found["status"], &found["reason"]), (&json!("False"), &Value::Null));
    assert_eq!(found["lastTransitionTime"], json!(time(120)));
}
