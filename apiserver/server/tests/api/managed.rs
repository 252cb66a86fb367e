//! Managed fields of writes that do not apply.

use apiserver_kinds::builtin;
use apiserver_registry::{Registry, Resource};
use serde_json::{Value, json};

use crate::api::harness::{Api, deployment, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// The entries as `MANAGER OPERATION SUBRESOURCE`, sorted.
fn brief(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let one = |entry: &Value| {
        format!("{} {} {}", text(entry, "manager"), text(entry, "operation"), text(entry, "subresource"))
            .trim_end()
            .to_owned()
    };
    let mut brief: Vec<String> = entries.iter().map(one).collect();
    brief.sort();
    brief
}

fn fields(object: &Value, manager: &str) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    entries.iter().find(|entry| entry["manager"] == manager).unwrap()["fieldsV1"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_new_object_belongs_to_its_maker_defaults_and_all() {
    let api = Api::start().await;
    let agent = [("content-type", "application/json"), ("user-agent", "kubectl/v1.36.0 (linux/amd64)")];
    let made = api.call("POST", DEPLOYMENTS, &agent, deployment("web").to_string()).await.expect(201).body;
    assert_eq!(brief(&made), ["kubectl Update"]);
    // The managed fields of a Deployment that `kubectl create` has made on Kubernetes.
    assert_eq!(
        fields(&made, "kubectl"),
        json!({"f:spec": {
            "f:progressDeadlineSeconds": {}, "f:replicas": {}, "f:revisionHistoryLimit": {}, "f:selector": {},
            "f:strategy": {"f:rollingUpdate": {".": {}, "f:maxSurge": {}, "f:maxUnavailable": {}}, "f:type": {}},
            "f:template": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {
                    "f:containers": {"k:{\"name\":\"c\"}": {
                        ".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {}, "f:resources": {},
                        "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {},
                    }},
                    "f:dnsPolicy": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
                    "f:terminationGracePeriodSeconds": {},
                },
            },
        }})
    );
}

#[tokio::test(start_paused = true)]
async fn changes_move_fields_and_nothing_new_is_no_change() {
    let api = Api::start().await;
    let path = format!("{MAPS}/m");
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}});
    let made = api.post(&format!("{MAPS}?fieldManager=maker"), map).await.expect(201).body;
    assert_eq!(fields(&made, "maker"), json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}));
    let patched = api
        .patch("merge", &format!("{path}?fieldManager=p"), json!({"data": {"a": "9"}}))
        .await
        .expect(200)
        .body;
    assert_eq!(brief(&patched), ["maker Update", "p Update"]);
    assert_eq!(fields(&patched, "maker"), json!({"f:data": {".": {}, "f:b": {}}}));
    assert_eq!(fields(&patched, "p"), json!({"f:data": {"f:a": {}}}));
    let mut next = patched.clone();
    next["data"] = json!({"a": "9"});
    let put = api.put(&format!("{path}?fieldManager=q"), next.clone()).await.expect(200).body;
    assert_eq!(brief(&put), ["maker Update", "p Update"]);
    assert_eq!(fields(&put, "maker"), json!({"f:data": {}}));
    // An equal object is not written, whoever sends it and however often.
    next["metadata"] = put["metadata"].clone();
    let same = api.put(&format!("{path}?fieldManager=r"), next).await.expect(200).body;
    assert_eq!(same, put);
    let same = api
        .patch("merge", &format!("{path}?fieldManager=r"), json!({"data": {"a": "9"}}))
        .await
        .expect(200)
        .body;
    assert_eq!(same, put);
    // A client that knows nothing of managed fields does not lose them.
    let bare = json!({"metadata": {"name": "m"}, "data": {"a": "9", "c": "3"}});
    let put = api.put(&format!("{path}?fieldManager=q"), bare).await.expect(200).body;
    assert_eq!(brief(&put), ["maker Update", "p Update", "q Update"]);
}

#[tokio::test(start_paused = true)]
async fn clients_may_reset_managed_fields_and_rubbish_is_ignored() {
    let api = Api::start().await;
    let path = format!("{MAPS}/m");
    api.post(&format!("{MAPS}?fieldManager=maker"), json!({"metadata": {"name": "m"}, "data": {"a": "1"}}))
        .await
        .expect(201);
    let rubbish =
        json!([{"manager": "x", "operation": "Frob", "apiVersion": "v1", "fieldsType": "FieldsV1"}]);
    let kept =
        api.patch("merge", &path, json!({"metadata": {"managedFields": rubbish}})).await.expect(200).body;
    assert_eq!(brief(&kept), ["maker Update"]);
    // An empty list is no request, so that a client that does not know of managers removes none.
    let empty = json!({"metadata": {"managedFields": []}});
    assert_eq!(brief(&api.patch("merge", &path, empty).await.expect(200).body), ["maker Update"]);
    for data in ["1", "2"] {
        let reset = json!([{}]);
        let patch = json!({"metadata": {"managedFields": reset}, "data": {"a": data}});
        let gone = api.patch("merge", &path, patch).await.expect(200).body;
        assert_eq!(gone["metadata"].get("managedFields"), None);
        // Untracked until a client applies, which finds an owner of the existing fields.
        let untracked = api.patch("merge", &path, json!({"data": {"b": "2"}})).await.expect(200).body;
        assert_eq!(untracked["metadata"].get("managedFields"), None);
        let config =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"c": "3"}});
        let applied = api.apply(&format!("{path}?fieldManager=a"), config).await.expect(200).body;
        assert_eq!(brief(&applied), ["a Apply", "before-first-apply Update"]);
    }
    let entry = json!({"manager": "x".repeat(129), "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}}}});
    let refused =
        api.patch("merge", &path, json!({"metadata": {"managedFields": [entry]}})).await.expect(422);
    assert!(
        refused
            .message()
            .contains("metadata.managedFields[0].manager: Too long: may not be more than 128 bytes"),
        "{}",
        refused.text
    );
    let typed = json!({"metadata": {"managedFields": "x"}});
    api.patch("merge", &path, typed).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn bindings_and_deletions_are_nobodys_and_ephemeral_containers_are_somebodys() {
    let api = Api::start().await;
    let made = api.post(&format!("{PODS}?fieldManager=maker"), pod("p")).await.expect(201).body;
    let binding = json!({"target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/p/binding?fieldManager=scheduler"), binding).await.expect(201);
    let bound = api.get(&format!("{PODS}/p")).await.expect(200).body;
    assert_eq!(bound["metadata"]["managedFields"], made["metadata"]["managedFields"]);
    let mut debugged = bound.clone();
    debugged["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "i"}]);
    let path = format!("{PODS}/p/ephemeralcontainers?fieldManager=debugger");
    let debugged = api.put(&path, debugged).await.expect(200).body;
    assert_eq!(brief(&debugged), ["debugger Update ephemeralcontainers", "maker Update"]);
    let status = json!({"status": {"phase": "Running"}});
    let running =
        api.patch("merge", &format!("{PODS}/p/status?fieldManager=kubelet"), status).await.expect(200).body;
    assert_eq!(fields(&running, "kubelet"), json!({"f:status": {"f:phase": {}}}));
    let going = api.delete(&format!("{PODS}/p"), Value::Null).await.expect(200).body;
    assert_eq!(going["metadata"]["managedFields"], running["metadata"]["managedFields"]);
}

#[tokio::test(start_paused = true)]
async fn old_managers_become_one() {
    let api = Api::start().await;
    let path = format!("{MAPS}/m");
    api.post(&format!("{MAPS}?fieldManager=m00"), json!({"metadata": {"name": "m"}, "data": {"k00": "v"}}))
        .await
        .expect(201);
    let mut last = Value::Null;
    for i in 1..14 {
        let patch = json!({"data": {format!("k{i:02}"): "v"}});
        last = api.patch("merge", &format!("{path}?fieldManager=m{i:02}"), patch).await.expect(200).body;
    }
    let managers = brief(&last);
    assert_eq!(managers.len(), 10, "{managers:?}");
    assert!(managers.contains(&"ancient-changes Update".to_owned()), "{managers:?}");
    let ancient = fields(&last, "ancient-changes")["f:data"].as_object().unwrap().len();
    // Four managers and the map itself.
    assert_eq!(ancient, 5 + 1);
}

#[tokio::test(start_paused = true)]
async fn managers_speak_the_version_that_they_write_in() {
    let mut kinds: Vec<Resource> = builtin::registry().iter().map(|r| Resource::clone(r)).collect();
    let served = |r: &Resource, version: &str| r.group == "autoscaling" && r.version == version;
    if !kinds.iter().any(|r| served(r, "v1")) {
        let v2 = kinds.iter().find(|r| served(r, "v2")).unwrap().clone();
        let schema = "io.k8s.api.autoscaling.v1.HorizontalPodAutoscaler".to_owned();
        kinds.push(Resource { version: "v1".to_owned(), schema, ..v2 });
    }
    let api = Api::of_kinds(Registry::new(kinds)).await;
    let scalers = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let object = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "minReplicas": 1,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
        "metrics": [{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 50}}}]}});
    api.post(&format!("{scalers}?fieldManager=maker"), object).await.expect(201);
    let old = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers/h";
    let config = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"}, "spec": {"maxReplicas": 5}});
    let refused = api.apply(&format!("{old}?fieldManager=a"), config.clone()).await.expect(409);
    assert!(
        refused.message().ends_with("conflict with \"maker\" using autoscaling/v2: .spec.maxReplicas"),
        "{}",
        refused.text
    );
    let forced = api.apply(&format!("{old}?fieldManager=a&force=true"), config).await.expect(200).body;
    assert_eq!(forced["spec"]["targetCPUUtilizationPercentage"], 50);
    let now = api.get(&format!("{scalers}/h")).await.expect(200).body;
    assert!(fields(&now, "a")["f:spec"].get("f:maxReplicas").is_some());
    assert_eq!(fields(&now, "maker")["f:spec"].get("f:maxReplicas"), None);
    assert!(fields(&now, "maker")["f:spec"].get("f:metrics").is_some());
}

#[tokio::test(start_paused = true)]
async fn nobody_owns_what_a_new_object_cannot_say() {
    let api = Api::start().await;
    let map = json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 5, "selfLink": "/x"}, "data": {"a": "1"}});
    let made = api.post(MAPS, map).await.expect(201).body;
    assert!(made["metadata"].get("deletionTimestamp").is_none());
    assert_eq!(made["metadata"]["managedFields"][0]["fieldsV1"], json!({"f:data": {".": {}, "f:a": {}}}));
}
