//! ResourceClaims of pods, devices with taints, and pools of devices.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::api::resource::v1alpha3::ResourcePoolStatusRequest;
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::Cluster;
use crate::testing::time;

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
    allocate(&cluster, "c", &[("a", &a), ("gone", "uid-gone"), ("../secrets/s", "uid-hostile")]).await;
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

fn slice(taints: Value) -> Value {
    json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "c", "taints": taints}, {"name": "tolerant"}]}})
}

/// Creates a pod that uses a claim of its name with the device of that name.
async fn create_user(cluster: &Cluster, name: &str, tolerations: Value) {
    cluster.create::<ResourceClaim>("ns", json!({"metadata": {"name": name}, "spec": {}})).await;
    let entries = json!([{"name": "gpu", "resourceClaimName": name}]);
    let uid = create_pod(cluster, name, Some("n"), entries).await;
    allocate(cluster, name, &[(name, &uid)]).await;
    let result = json!({"request": "r", "driver": "d.example.com", "pool": "n", "device": name, "tolerations": tolerations});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
    let claims: Api<ResourceClaim> = Api::namespaced(cluster.client.clone(), "ns");
    claims.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// Returns status, reason and message of the condition of the rule.
fn progress(cluster: &Cluster) -> (String, String, String) {
    let rule = &cluster.api.all("devicetaintrules")[0];
    let condition = &rule["status"]["conditions"][0];
    assert_eq!(condition["type"], "EvictionInProgress", "{rule}");
    let text = |field: &str| condition[field].as_str().unwrap().to_owned();
    (text("status"), text("reason"), text("message"))
}

#[tokio::test(start_paused = true)]
async fn pods_leave_tainted_devices_when_their_tolerations_end() {
    let cluster = Cluster::start().await;
    cluster.create::<ResourceSlice>("", slice(json!([]))).await;
    let tolerant = json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10}]);
    create_user(&cluster, "c", tolerant.clone()).await;
    create_user(&cluster, "tolerant", tolerant).await;
    cluster.pass(5).await;
    assert_eq!(cluster.names("pods"), ["c", "tolerant"]);
    let slices: Api<ResourceSlice> = Api::all(cluster.client.clone());
    let set = async |taints: Value| {
        slices.patch("s", &PatchParams::default(), &Patch::Merge(slice(taints))).await.unwrap();
        cluster.pass(1).await;
    };
    // The taint goes in time, and comes back.
    let taint = |second: i64| json!([{"key": "x", "effect": "NoExecute", "timeAdded": time(second)}]);
    set(taint(5)).await;
    set(json!([])).await;
    assert_eq!(cluster.messages("DeviceTaintManagerEviction"), ["Cancelling deletion".to_owned()].into());
    set(taint(7)).await;
    cluster.pass(5).await;
    assert_eq!(cluster.names("pods"), ["c", "tolerant"]);
    cluster.pass(6).await;
    assert_eq!(cluster.names("pods"), ["tolerant"]);
    let source = ("DeviceTaintManagerEviction".to_owned(), "device-taint-eviction-controller".to_owned());
    assert!(cluster.event_sources().contains(&source));
    let words = ["Cancelling deletion", "Marking for deletion"].map(str::to_owned);
    assert_eq!(cluster.messages("DeviceTaintManagerEviction"), words.into());
    let last = cluster.api.history("pods").into_iter().rfind(|(change, _)| *change == "DELETED").unwrap().1;
    let condition = &last["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("DisruptionTarget"), &json!("True")));
    assert_eq!(condition["reason"], "DeletionByDeviceTaintManager");
    assert_eq!(condition["message"], "Device Taint manager: deleting due to NoExecute taint");
}

#[tokio::test(start_paused = true)]
async fn rule_tells_what_it_does_and_would_do() {
    let cluster = Cluster::start().await;
    cluster.create::<ResourceSlice>("", slice(json!([]))).await;
    create_user(&cluster, "c", json!([])).await;
    create_user(&cluster, "tolerant", json!([{"operator": "Exists", "effect": "NoExecute"}])).await;
    let rule = |effect: &str| {
        json!({"metadata": {"name": "r"}, "spec": {"deviceSelector": {"driver": "d.example.com"},
        "taint": {"key": "x", "effect": effect, "timeAdded": time(0)}}})
    };
    cluster.create::<DeviceTaintRule>("", rule("None")).await;
    cluster.pass(1).await;
    let (status, reason, message) = progress(&cluster);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "NoEffect"));
    let words = "2 published devices selected. 2 allocated devices selected. 1 pod would be evicted in 1 namespace if the \
                 effect was NoExecute.";
    assert!(message.starts_with(words), "{message}");
    assert_eq!(cluster.names("pods"), ["c", "tolerant"]);
    let rules: Api<DeviceTaintRule> = Api::all(cluster.client.clone());
    rules.patch("r", &PatchParams::default(), &Patch::Merge(rule("NoExecute"))).await.unwrap();
    cluster.pass(1).await;
    assert_eq!(cluster.names("pods"), ["tolerant"]);
    let (_, reason, message) = progress(&cluster);
    assert_eq!(
        (reason.as_str(), message.as_str()),
        ("PodsPendingEviction", "1 pod needs to be evicted in 1 namespace.")
    );
    cluster.pass(10).await;
    let (status, reason, message) = progress(&cluster);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Completed"));
    assert_eq!(message, "1 pod evicted since starting the controller.");
    let writes = cluster.api.history("devicetaintrules").len();
    cluster.pass(700).await;
    assert_eq!(cluster.api.history("devicetaintrules").len(), writes, "there is nothing to tell");
}

#[tokio::test(start_paused = true)]
async fn request_about_pools_is_answered_once_and_deleted() {
    let cluster = Cluster::start().await;
    cluster.create::<ResourceSlice>("", slice(json!([]))).await;
    cluster.create::<ResourceClaim>("ns", json!({"metadata": {"name": "c"}, "spec": {}})).await;
    allocate(&cluster, "c", &[]).await;
    let mut incomplete = slice(json!([]));
    incomplete["metadata"]["name"] = json!("t");
    incomplete["spec"]["pool"] = json!({"name": "m", "generation": 1, "resourceSliceCount": 2});
    cluster.create::<ResourceSlice>("", incomplete).await;
    let request = json!({"metadata": {"name": "r"}, "spec": {"driver": "d.example.com"}});
    cluster.create::<ResourcePoolStatusRequest>("", request).await;
    cluster.pass(1).await;
    assert_eq!(
        cluster.api.all("resourcepoolstatusrequests")[0]["status"],
        Value::Null,
        "the driver may be at it"
    );
    cluster.pass(2).await;
    let request = &cluster.api.all("resourcepoolstatusrequests")[0];
    let pools = &request["status"]["pools"];
    assert_eq!((&pools[0]["poolName"], &pools[1]["poolName"]), (&json!("m"), &json!("n")), "{request}");
    assert!(pools[0]["validationError"].is_string(), "{request}");
    assert_eq!(
        (&pools[1]["totalDevices"], &pools[1]["allocatedDevices"]),
        (&json!(2), &json!(1)),
        "{request}"
    );
    assert_eq!(request["status"]["conditions"][0]["message"], "Calculated status for 2 pools (1 incomplete)");
    cluster.pass(3590).await;
    assert_eq!(cluster.api.history("resourcepoolstatusrequests").len(), 2);
    cluster.pass(20).await;
    assert!(cluster.names("resourcepoolstatusrequests").is_empty());
}
