//! Discovery, plain and aggregated.

use serde_json::Value;

use crate::api::harness::Api;
use crate::conformance::definitions::{establish, noxus};

const AGGREGATED: [&str; 2] = [
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
];

#[tokio::test]
async fn every_group_has_its_versions_and_resources() {
    let api = Api::start().await;
    let groups = api.get("/apis").await.expect(200).body;
    for group in groups["groups"].as_array().unwrap() {
        let name = group["name"].as_str().unwrap();
        let own = api.get(&format!("/apis/{name}")).await.expect(200).body;
        assert_eq!(own["preferredVersion"], group["preferredVersion"]);
        let versions = group["versions"].as_array().unwrap();
        assert!(versions.contains(&group["preferredVersion"]), "{group}");
        for version in versions {
            let version = version["groupVersion"].as_str().unwrap();
            let resources = api.get(&format!("/apis/{version}")).await.expect(200).body;
            assert_eq!(
                (&resources["kind"], resources["groupVersion"].as_str()),
                (&"APIResourceList".into(), Some(version))
            );
            assert!(!resources["resources"].as_array().unwrap().is_empty(), "{version}");
        }
    }
}

/// Returns `true` if `plural` of `group` and `version` is in a document.
fn has(document: &Value, group: &str, version: &str, plural: &str) -> bool {
    let groups = document["items"].as_array().unwrap();
    groups.iter().filter(|item| item["metadata"]["name"].as_str().unwrap_or_default() == group).any(|item| {
        item["versions"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|v| v["version"] == version)
            .any(|v| v["resources"].as_array().unwrap().iter().any(|r| r["resource"] == plural))
    })
}

#[tokio::test]
async fn aggregated_documents_have_every_kind() {
    let api = Api::start().await;
    for accept in AGGREGATED {
        let core = api.get_as("/api", accept).await.expect(200);
        assert_eq!(core.headers["content-type"].to_str().unwrap(), accept);
        assert!(has(&core.body, "", "v1", "pods") && has(&core.body, "", "v1", "services"), "{}", core.text);
        let others = api.get_as("/apis", accept).await.expect(200).body;
        let plain = api.get("/apis").await.expect(200).body;
        for group in plain["groups"].as_array().unwrap() {
            for version in group["versions"].as_array().unwrap() {
                let path = format!("/apis/{}", version["groupVersion"].as_str().unwrap());
                for resource in api.get(&path).await.expect(200).body["resources"].as_array().unwrap() {
                    let plural = resource["name"].as_str().unwrap();
                    if !plural.contains('/') {
                        let (name, version) =
                            (group["name"].as_str().unwrap(), version["version"].as_str().unwrap());
                        assert!(has(&others, name, version, plural), "{name}/{version} {plural}");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn aggregated_documents_have_custom_kinds() {
    let api = Api::start().await;
    establish(&api, noxus(&["v1"])).await;
    for accept in AGGREGATED {
        let document = api.get_as("/apis", accept).await.expect(200).body;
        assert!(has(&document, "mygroup.example.com", "v1", "noxus"), "{document}");
    }
}

#[tokio::test]
async fn definitions_of_custom_kinds_are_discovered() {
    let api = Api::start().await;
    let groups = api.get("/apis").await.expect(200).body;
    let found =
        groups["groups"].as_array().unwrap().iter().find(|g| g["name"] == "apiextensions.k8s.io").unwrap();
    assert_eq!(found["preferredVersion"]["version"], "v1");
    assert_eq!(api.get("/apis/apiextensions.k8s.io").await.expect(200).body["versions"][0]["version"], "v1");
    let resources = api.get("/apis/apiextensions.k8s.io/v1").await.expect(200).body;
    assert!(
        resources["resources"].as_array().unwrap().iter().any(|r| r["name"] == "customresourcedefinitions")
    );
}
