use std::collections::BTreeSet;
use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::Value;

use super::*;
use crate::registry::{self, Verb};

fn unpack(bytes: &[u8]) -> Value {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Every target of a `$ref` below `value`.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(target)) = map.get("$ref") {
                found.insert(target.clone());
            }
            map.values().for_each(|v| references(v, found));
        }
        Value::Array(list) => list.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

#[test]
fn the_index_names_a_document_for_each_group_and_version_served() {
    let index = v3_index();
    let paths = index["paths"].as_object().unwrap();
    for resource in registry::builtin().iter() {
        let path = if resource.group.is_empty() {
            format!("api/{}", resource.version)
        } else {
            format!("apis/{}/{}", resource.group, resource.version)
        };
        let url = paths[&path]["serverRelativeURL"].as_str().unwrap();
        let hash = v3_hash(&resource.group, &resource.version).unwrap();
        assert_eq!(url, format!("/openapi/v3/{path}?hash={hash}"));
        assert!(v3_gz(&resource.group, &resource.version).is_some());
    }
    assert!(v3_gz("no.such.group", "v1").is_none());
    assert_eq!(v2_hash().len(), 32);
}

#[test]
fn v3_documents_are_closed_under_references_and_describe_every_operation() {
    for resource in registry::builtin().iter() {
        let document = unpack(v3_gz(&resource.group, &resource.version).unwrap());
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        for target in found {
            let name = target.strip_prefix("#/components/schemas/").unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
        let prefix = if resource.group.is_empty() { "/api/" } else { "/apis/" };
        let scope = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
        let path = format!("{prefix}{}/{scope}{}", resource.api_version(), resource.plural);
        let item = &document["paths"][&path];
        assert_eq!(resource.verbs.contains(&Verb::List), item.get("get").is_some(), "{path}");
        let gvk = serde_json::json!([
            {"group": resource.group, "version": resource.version, "kind": resource.kind}]);
        assert_eq!(schemas[&resource.schema]["x-kubernetes-group-version-kind"], gvk);
        if !resource.verbs.contains(&Verb::Patch) {
            continue;
        }
        let patch = &document["paths"][&format!("{path}/{{name}}")]["patch"];
        assert_eq!(patch["x-kubernetes-action"], "patch");
        assert_eq!(patch["x-kubernetes-group-version-kind"], gvk[0]);
        let parameters = patch["parameters"].as_array().unwrap();
        // kubectl looks for this one before it leaves validation to the server.
        assert!(parameters.iter().any(|p| p["name"] == "fieldValidation" && p["in"] == "query"), "{path}");
    }
}

#[test]
fn v3_keeps_descriptions_beside_references_and_carries_merge_semantics() {
    let document = unpack(v3_gz("apps", "v1").unwrap());
    let schemas = &document["components"]["schemas"];
    let selector = &schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["selector"];
    assert!(selector["description"].as_str().unwrap().starts_with("Label selector"));
    assert_eq!(
        selector["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"
    );
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-list-map-keys"], serde_json::json!(["name"]));
    let port = &schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"];
    assert_eq!(port["format"], "int-or-string");
    assert_eq!(port["oneOf"][0]["type"], "integer");
}

#[test]
fn v2_is_one_closed_document() {
    let document = unpack(v2_gz());
    assert_eq!(document["swagger"], "2.0");
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    for target in &found {
        let name = target.strip_prefix("#/definitions/").unwrap();
        assert!(document["definitions"].get(name).is_some(), "{name}");
    }
    assert!(found.len() > 300);
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    let parameters = patch["parameters"].as_array().unwrap();
    assert!(parameters.iter().any(|p| p["name"] == "fieldValidation" && p["type"] == "string"));
    assert!(parameters.iter().any(|p| p["in"] == "body" && p["schema"]["$ref"].is_string()));
    assert_eq!(patch["consumes"].as_array().unwrap().len(), 3);
    assert!(document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/log"]["get"].is_object());
}
