//! Tests of the answers to deletions: the object where Kubernetes returns it, else a `Status`; and OpenAPI
//! describes them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::api::harness::Api;

/// The kinds whose deletion is answered with the object, according to Kubernetes' OpenAPI. Namespaces are
/// answered so too, but OpenAPI does not declare it.
pub const ANSWERED_WITH_OBJECT: [&str; 19] = [
    "csidrivers",
    "csinodes",
    "deviceclasses",
    "devicetaintrules",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "podtemplates",
    "resourceclaims",
    "resourceclaimtemplates",
    "resourcepoolstatusrequests",
    "resourcequotas",
    "resourceslices",
    "serviceaccounts",
    "services",
    "storageclasses",
    "volumeattachments",
    "volumeattributesclasses",
    "namespaces",
];

/// Plurals and definitions of the deletions of a document that answer with something else than a `Status`.
fn described(paths: &Value, reference: &dyn Fn(&Value, &str) -> String, found: &mut BTreeSet<String>) {
    for (path, item) in paths.as_object().unwrap() {
        let operation = &item["delete"];
        match operation["x-kubernetes-action"].as_str() {
            Some("delete") => {}
            Some("deletecollection") => {
                assert!(reference(operation, "200").ends_with(".Status"), "{path}");
                continue;
            }
            _ => continue,
        }
        let answer = reference(operation, "200");
        assert_eq!(reference(operation, "202"), answer, "{path}");
        if !answer.ends_with(".Status") {
            let kind = operation["x-kubernetes-group-version-kind"]["kind"].as_str().unwrap();
            assert!(answer.ends_with(&format!(".{kind}")), "{path}: {answer}");
            found.insert(path.trim_end_matches("/{name}").rsplit('/').next().unwrap().to_owned());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn openapi_says_which_deletions_answer_with_the_object() {
    let api = Api::start().await;
    let wanted: BTreeSet<String> = ANSWERED_WITH_OBJECT
        .into_iter()
        .filter(|plural| *plural != "namespaces")
        .map(str::to_owned)
        .collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = BTreeSet::new();
    let document = api.get("/openapi/v2").await.expect(200).body;
    let of_v2 = |operation: &Value, code: &str| text(&operation["responses"][code]["schema"]["$ref"]);
    described(&document["paths"], &of_v2, &mut found);
    assert_eq!(found, wanted);
    let mut found = BTreeSet::new();
    let of_v3 = |operation: &Value, code: &str| {
        text(&operation["responses"][code]["content"]["application/json"]["schema"]["$ref"])
    };
    let index = api.get("/openapi/v3").await.expect(200).body;
    for entry in index["paths"].as_object().unwrap().values() {
        let document = api.get(entry["serverRelativeURL"].as_str().unwrap()).await.expect(200).body;
        if document["paths"].is_object() {
            described(&document["paths"], &of_v3, &mut found);
        }
    }
    assert_eq!(found, wanted);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_deleted_is_answered_with_its_last_state() {
    let api = Api::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let made = api.post(services, service).await.expect(201).body;
    let gone = api.delete(&format!("{services}/s"), Value::Null).await.expect(200).body;
    assert_eq!((&gone["kind"], &gone["apiVersion"]), (&json!("Service"), &json!("v1")));
    assert_eq!((&gone["metadata"]["uid"], &gone["spec"]), (&made["metadata"]["uid"], &made["spec"]));
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    api.post(services, json!({"metadata": {"name": "t"}, "spec": {"ports": [{"port": 80}]}}))
        .await
        .expect(201);
    let rows = api.call("DELETE", &format!("{services}/t"), &[("accept", table)], "").await.expect(200).body;
    assert_eq!(rows["kind"], "Table");
}

/// Both are deleted in a way of their own, without a grace period.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_terminates_has_no_grace_period() {
    let api = Api::start().await;
    api.post("/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await.expect(201);
    for _ in 0..2 {
        let going = api.delete("/api/v1/namespaces/n", Value::Null).await.expect(200).body;
        assert!(going["metadata"]["deletionTimestamp"].is_string());
        assert_eq!(going["metadata"].get("deletionGracePeriodSeconds"), None);
        assert_eq!(going["status"]["phase"], "Terminating");
    }
}
