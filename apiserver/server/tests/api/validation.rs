//! Tests of refusals and warnings as clients see them; the tables of rules are unit tests.

use serde_json::{Value, json};

use crate::api::harness::{Api, Reply, deployment, pod};

const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn warnings(reply: &Reply) -> Vec<String> {
    reply.headers.get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect()
}

/// Fields and reasons of a refusal.
fn causes(reply: &Reply) -> Vec<(&str, &str)> {
    let causes = reply.body["details"]["causes"].as_array().unwrap();
    causes.iter().map(|c| (c["field"].as_str().unwrap(), c["reason"].as_str().unwrap())).collect()
}

#[tokio::test(start_paused = true)]
async fn warnings_come_with_creation_and_with_changes_of_a_template() {
    let api = Api::start().await;
    let mut one = pod("p");
    one["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]);
    let made = api.post(PODS, one).await.expect(201);
    assert_eq!(
        warnings(&made),
        [
            "299 - \"spec.containers[0].env[1]: hides previous definition of \\\"A\\\", which may be dropped when using apply\""
        ]
    );
    let patched = api.patch("merge", &format!("{PODS}/p"), json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert!(warnings(&patched.expect(200)).is_empty(), "pods change often");
    let mut set = deployment("d");
    set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(-1);
    assert_eq!(warnings(&api.post(DEPLOYMENTS, set).await.expect(201)).len(), 1);
    let path = format!("{DEPLOYMENTS}/d");
    let scaled = api.patch("merge", &path, json!({"spec": {"replicas": 3}})).await.expect(200);
    assert!(warnings(&scaled).is_empty(), "the template is the same");
    let status = api.patch("merge", &format!("{path}/status"), json!({"status": {"replicas": 1}})).await;
    assert!(warnings(&status.expect(200)).is_empty());
}

#[tokio::test(start_paused = true)]
async fn jobs_with_generated_names_label_their_pods() {
    let api = Api::start().await;
    let job = json!({"metadata": {"generateName": "j-"}, "spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i"}]}}}});
    let made = api.post("/apis/batch/v1/namespaces/default/jobs", job).await.expect(201).body;
    let labels = &made["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["batch.kubernetes.io/job-name"], made["metadata"]["name"]);
    assert_eq!(labels["controller-uid"], made["metadata"]["uid"]);
    assert_eq!(made["metadata"]["labels"], *labels);
}

#[tokio::test(start_paused = true)]
async fn claims_have_admin_access_to_devices_only_in_namespaces_that_allow_it() {
    const NAMESPACE: &str = "/api/v1/namespaces/default";
    const DEVICES: &str = "/apis/resource.k8s.io/v1/namespaces/default";
    let api = Api::start().await;
    let claim = |name: &str, admin: bool| {
        json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [
            {"name": "r", "exactly": {"deviceClassName": "c", "adminAccess": admin}}]}}})
    };
    let claims = format!("{DEVICES}/resourceclaims");
    let refused = api.post(&claims, claim("a", true)).await.expect(422);
    assert_eq!(causes(&refused), [("spec.devices.requests[0].adminAccess", "FieldValueForbidden")]);
    let template = json!({"metadata": {"name": "t"}, "spec": {"spec": claim("t", true)["spec"]}});
    let refused = api.post(&format!("{DEVICES}/resourceclaimtemplates"), template).await.expect(422);
    assert_eq!(causes(&refused), [("spec.devices.requests[0].adminAccess", "FieldValueForbidden")]);
    let plain = format!("{claims}/plain");
    api.post(&claims, claim("plain", false)).await.expect(201);
    let result =
        json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "x", "adminAccess": true});
    let given = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
    let refused = api.patch("merge", &format!("{plain}/status"), given.clone()).await.expect(422);
    let path = "status.allocation.devices.results[0].adminAccess";
    assert_eq!(causes(&refused), [(path, "FieldValueForbidden")]);
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    api.patch("merge", NAMESPACE, label).await.expect(200);
    api.post(&claims, claim("a", true)).await.expect(201);
    api.patch("merge", &format!("{plain}/status"), given).await.expect(200);
    // A grant stays when the label is removed.
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": null}}});
    api.patch("merge", NAMESPACE, label).await.expect(200);
    let reserved = json!({"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}});
    api.patch("merge", &format!("{plain}/status"), reserved).await.expect(200);
}

/// The writes of the ResourceClaim controller.
#[tokio::test(start_paused = true)]
async fn claims_are_named_by_their_pods_and_give_devices_back_with_what_drivers_reported() {
    const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    const PROTECTION: &str = "resource.kubernetes.io/delete-protection";
    let api = Api::start().await;
    let mut user = pod("p");
    user["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]);
    let user = api.post(PODS, user).await.expect(201).body;
    let named = |entry: &str| json!({"status": {"resourceClaimStatuses": [{"name": entry, "resourceClaimName": "c"}]}});
    let path = format!("{PODS}/p/status");
    let refused = api.patch("merge", &path, named("nic")).await.expect(422);
    assert_eq!(causes(&refused), [("status.resourceClaimStatuses[0].name", "FieldValueInvalid")]);
    let written = api.patch("merge", &path, named("gpu")).await.expect(200).body;
    assert_eq!(written["status"]["resourceClaimStatuses"][0]["resourceClaimName"], "c");

    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": user["metadata"]["uid"], "controller": true});
    let claim = json!({"metadata": {"generateName": "p-gpu-", "ownerReferences": [owner], "finalizers": [PROTECTION]},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}});
    let claim = api.post(CLAIMS, claim).await.expect(201).body;
    let path = format!("{CLAIMS}/{}", claim["metadata"]["name"].as_str().unwrap());
    let device = |name: &str| json!({"driver": "d.example.com", "pool": "p", "device": name});
    let mut result = device("x");
    result["request"] = json!("r");
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}, "devices": [device("x")],
        "reservedFor": [{"resource": "pods", "name": "p", "uid": user["metadata"]["uid"]}]}});
    let allocated = api.patch("merge", &format!("{path}/status"), status).await.expect(200).body;
    assert_eq!(allocated["status"]["devices"][0]["device"], "x");
    let strange =
        json!({"status": {"allocation": null, "reservedFor": null, "devices": [device("x"), device("y")]}});
    let refused = api.patch("merge", &format!("{path}/status"), strange).await.expect(422);
    assert_eq!(causes(&refused), [("status.devices[0]", "FieldValueInvalid")], "y was never allocated");
    let freed = json!({"metadata": {"resourceVersion": allocated["metadata"]["resourceVersion"]},
        "status": {"allocation": null, "reservedFor": null}});
    let freed = api.patch("merge", &format!("{path}/status"), freed).await.expect(200).body;
    assert!(freed["status"].as_object().is_none_or(serde_json::Map::is_empty), "{freed}");
    let unprotected =
        json!({"metadata": {"resourceVersion": freed["metadata"]["resourceVersion"], "finalizers": []}});
    api.patch("merge", &path, unprotected).await.expect(200);
    api.delete(&path, json!({})).await.expect(200);
    api.get(&path).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn statuses_are_judged_by_themselves() {
    let api = Api::start().await;
    api.post(DEPLOYMENTS, deployment("d")).await.expect(201);
    let path = format!("{DEPLOYMENTS}/d/status");
    let wrong = json!({"status": {"replicas": 1, "readyReplicas": 2}});
    let refused = api.patch("merge", &path, wrong).await.expect(422);
    assert_eq!(causes(&refused), [("status.readyReplicas", "FieldValueInvalid")]);
    api.post(PODS, pod("p")).await.expect(201);
    let path = format!("{PODS}/p/status");
    let end = json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}]}});
    api.patch("strategic-merge", &path, end).await.expect(200);
    let class = api.patch("merge", &path, json!({"status": {"qosClass": "Guaranteed"}})).await.expect(422);
    assert_eq!(causes(&class), [("status.qosClass", "FieldValueInvalid")]);
    api.patch("merge", "/api/v1/namespaces/default/status", json!({"status": {"phase": "Terminating"}}))
        .await
        .expect(422);
}

#[tokio::test(start_paused = true)]
async fn new_finalizers_on_a_deleted_object_are_refused() {
    let api = Api::start().await;
    let held = json!({"metadata": {"name": "m", "finalizers": ["example.com/a"]}});
    api.post(MAPS, held).await.expect(201);
    let path = format!("{MAPS}/m");
    api.delete(&path, Value::Null).await.expect(200);
    let more = json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}});
    let refused = api.patch("merge", &path, more).await.expect(422);
    // The causes have it twice, for metadata is judged with and without the kind's rules.
    assert_eq!(causes(&refused), [("metadata.finalizers", "FieldValueForbidden"); 2]);
    assert!(
        refused.message().contains("found new finalizers []string{\"example.com/b\"}"),
        "{}",
        refused.text
    );
    api.patch("merge", &path, json!({"metadata": {"finalizers": null}})).await.expect(200);
    api.get(&path).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn pods_and_services_keep_what_they_must() {
    let api = Api::start().await;
    let mut gated = pod("g");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/hold"}]);
    api.post(PODS, gated).await.expect(201);
    let path = format!("{PODS}/g");
    let narrowed = json!({"spec": {"nodeSelector": {"zone": "a"}}});
    assert_eq!(api.patch("merge", &path, narrowed).await.expect(200).body["metadata"]["generation"], 2);
    let moved = api.patch("merge", &path, json!({"spec": {"nodeSelector": {"zone": "b"}}})).await.expect(422);
    assert_eq!(causes(&moved), [("spec.nodeSelector", "FieldValueInvalid")]);
    api.patch("merge", &path, json!({"spec": {"schedulingGates": null}})).await.expect(200);
    let late = api.patch("merge", &path, json!({"spec": {"nodeSelector": {"zone": "a", "x": "y"}}})).await;
    assert_eq!(causes(&late.expect(422)), [("spec", "FieldValueForbidden")]);
    let resize = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
    let resized = api.patch("strategic-merge", &format!("{path}/resize"), resize).await.expect(422);
    assert!(resized.message().contains("Pod QOS Class may not change"), "{}", resized.text);

    let service = json!({"metadata": {"name": "1-web"}, "spec": {"ports": [{"port": 80}]}});
    api.post(SERVICES, service).await.expect(201);
    let path = format!("{SERVICES}/1-web");
    let named = json!({"spec": {"type": "ExternalName", "externalName": "a.b"}});
    let named = api.patch("merge", &path, named).await.expect(200).body;
    assert_eq!((named["spec"].get("clusterIP"), &named["spec"]["externalName"]), (None, &json!("a.b")));
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}});
    let refused = api.patch("merge", &format!("{path}/status"), status).await.expect(422);
    assert_eq!(causes(&refused), [("status.loadBalancer.ingress", "FieldValueForbidden")]);
}
