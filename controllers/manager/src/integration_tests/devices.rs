//! ResourceClaims of pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::Cluster;

const PROTECTION: &str = "resource.kubernetes.io/delete-protection";

fn template(name: &str) -> Value {
    let request = json!({"name": "r", "exactly": {"deviceClassName": "class"}});
    json!({"metadata": {"name": name}, "spec": {"metadata": {"labels": {"from": name}},
        "spec": {"devices": {"requests": [request]}}}})
}

async fn create_pod(cluster: &Cluster, name: &str, node: Option<&str>, claims: Value) -> String {
    let spec = json!({"nodeName": node, "containers": [], "resourceClaims": claims});
    let pod: Pod = cluster.create("ns", json!({"metadata": {"name": name}, "spec": spec})).await;
    pod.metadata.uid.unwrap()
}

/// Does what a scheduler does: allocates devices and reserves them for pods.
async fn allocate(cluster: &Cluster, claim: &str, users: &[(&str, &str)]) {
    let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), "ns");
    let finalizers = Patch::Merge(json!({"metadata": {"finalizers": [PROTECTION]}}));
    claims.patch(claim, &PatchParams::default(), &finalizers).await.unwrap();
    let users: Vec<Value> =
        users.iter().map(|(name, uid)| json!({"resource": "pods", "name": name, "uid": uid})).collect();
    let result = json!({"request": "r", "driver": "d.example.com", "pool": "n", "device": claim});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": users}});
    claims.patch_status(claim, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

async fn set_phase(cluster: &Cluster, pod: &str, phase: &str) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    let status = Patch::Merge(json!({"status": {"phase": phase}}));
    pods.patch_status(pod, &PatchParams::default(), &status).await.unwrap();
    cluster.pass(1).await;
}

/// Returns the claims by name.
fn claims(cluster: &Cluster) -> BTreeMap<String, Value> {
    let name = |claim: &Value| claim["metadata"]["name"].as_str().unwrap().to_owned();
    cluster.api.all("resourceclaims").into_iter().map(|claim| (name(&claim), claim)).collect()
}

/// Returns the names of the pods that a claim is reserved for.
fn users(claim: &Value) -> Vec<&str> {
    let users = claim["status"]["reservedFor"].as_array();
    users.into_iter().flatten().map(|user| user["name"].as_str().unwrap()).collect()
}

fn statuses(cluster: &Cluster, pod: &str) -> BTreeMap<String, String> {
    let pods = cluster.api.all("pods");
    let pod = pods.iter().find(|one| one["metadata"]["name"] == pod).unwrap();
    let statuses = pod["status"]["resourceClaimStatuses"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    statuses.iter().map(|one| (text(&one["name"]), text(&one["resourceClaimName"]))).collect()
}

#[tokio::test(start_paused = true)]
async fn pod_gets_claims_from_templates_which_go_when_it_has_ended() {
    let cluster = Cluster::start().await;
    cluster.create::<ResourceClaimTemplate>("ns", template("gpus")).await;
    let entries = json!([{"name": "gpu", "resourceClaimTemplateName": "gpus"},
        {"name": "nic", "resourceClaimTemplateName": "nics"}]);
    let uid = create_pod(&cluster, "p", None, entries).await;
    cluster.pass(1).await;
    let words = "PodResourceClaim nic: resource claim template \"nics\": resourceclaimtemplate.resource.k8s.io \"nics\" \
                 not found";
    assert_eq!(cluster.messages("FailedResourceClaimCreation"), [words.to_owned()].into());
    let source = ("FailedResourceClaimCreation".to_owned(), "resource_claim".to_owned());
    assert!(cluster.event_sources().contains(&source));
    assert_eq!((claims(&cluster).len(), statuses(&cluster, "p").len()), (1, 0));
    cluster.create::<ResourceClaimTemplate>("ns", template("nics")).await;
    cluster.pass(1).await;
    let made = claims(&cluster);
    let named = statuses(&cluster, "p");
    assert_eq!(named.values().cloned().collect::<Vec<_>>(), made.keys().cloned().collect::<Vec<_>>());
    let gpu = &made[&named["gpu"]];
    assert!(named["gpu"].starts_with("p-gpu-"), "{gpu}");
    assert_eq!(gpu["metadata"]["annotations"], json!({"resource.kubernetes.io/pod-claim-name": "gpu"}));
    assert_eq!(
        (&gpu["metadata"]["labels"], &gpu["metadata"]["ownerReferences"][0]["uid"]),
        (&json!({"from": "gpus"}), &json!(uid))
    );
    // One that is lost is made anew, and the other stays.
    let api: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), "ns");
    api.delete(&named["nic"], &DeleteParams::default()).await.unwrap();
    cluster.pass(1).await;
    let again = statuses(&cluster, "p");
    assert_eq!((again.len(), &again["gpu"]), (2, &named["gpu"]));
    assert!(claims(&cluster).contains_key(&again["nic"]) && again["nic"] != named["nic"]);
    // The pod runs with them, and ends.
    for claim in again.values() {
        allocate(&cluster, claim, &[("p", &uid)]).await;
    }
    set_phase(&cluster, "p", "Running").await;
    assert_eq!(claims(&cluster).values().map(users).collect::<Vec<_>>(), [["p"], ["p"]]);
    set_phase(&cluster, "p", "Succeeded").await;
    assert_eq!(claims(&cluster), BTreeMap::new());
    cluster.pass(700).await;
    assert_eq!(claims(&cluster), BTreeMap::new(), "a pod that has ended gets no claims");
    assert_eq!(cluster.names("pods"), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn shared_claim_gives_its_devices_back_with_its_last_pod() {
    let cluster = Cluster::start().await;
    cluster.create::<ResourceClaim>("ns", json!({"metadata": {"name": "c"}, "spec": {}})).await;
    let entries = json!([{"name": "gpu", "resourceClaimName": "c"}]);
    let a = create_pod(&cluster, "a", Some("n"), entries.clone()).await;
    allocate(&cluster, "c", &[("a", &a), ("gone", "uid-gone")]).await;
    cluster.pass(1).await;
    assert_eq!(users(&claims(&cluster)["c"]), ["a"], "a pod that does not exist uses nothing");
    // A pod that was bound without the scheduler's plugin.
    create_pod(&cluster, "b", Some("n"), entries).await;
    cluster.pass(1).await;
    assert_eq!(users(&claims(&cluster)["c"]), ["a", "b"]);
    set_phase(&cluster, "a", "Failed").await;
    let claim = &claims(&cluster)["c"];
    assert_eq!(users(claim), ["b"]);
    assert!(claim["status"]["allocation"].is_object(), "{claim}");
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    pods.delete("b", &DeleteParams::default()).await.unwrap();
    cluster.pass(1).await;
    let claim = &claims(&cluster)["c"];
    assert_eq!((users(claim).len(), &claim["status"]["allocation"]), (0, &Value::Null));
    assert_eq!(claim["metadata"]["finalizers"], json!([]));
    let writes = cluster.api.history("resourceclaims").len();
    cluster.pass(700).await;
    assert_eq!(cluster.api.history("resourceclaims").len(), writes, "everything is done");
}

#[tokio::test(start_paused = true)]
async fn claim_for_extended_resources_goes_with_the_end_of_its_pod() {
    let cluster = Cluster::start().await;
    let uid = create_pod(&cluster, "p", Some("n"), json!(null)).await;
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true});
    let metadata = json!({"name": "p-extended-resources-x", "ownerReferences": [owner],
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}});
    cluster.create::<ResourceClaim>("ns", json!({"metadata": metadata, "spec": {}})).await;
    allocate(&cluster, "p-extended-resources-x", &[("p", &uid)]).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "ns");
    let status = json!({"status": {"extendedResourceClaimStatus": {"requestMappings": [],
        "resourceClaimName": "p-extended-resources-x"}}});
    pods.patch_status("p", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    set_phase(&cluster, "p", "Running").await;
    assert_eq!(claims(&cluster).len(), 1);
    set_phase(&cluster, "p", "Failed").await;
    assert_eq!(claims(&cluster), BTreeMap::new());
}
