//! CustomResourceDefinitions: their life, defaults, selectable fields, published schemas.

use serde_json::{Value, json};

use crate::api::harness::Api;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const OBJECTS: &str = "/apis/mygroup.example.com/v1/namespaces/default/noxus";

/// A definition of `noxus` in these versions, the first of which is stored.
pub fn noxus(versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .enumerate()
        .map(|(number, name)| {
            json!({"name": name, "served": true, "storage": number == 0, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
        })
        .collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "noxus.mygroup.example.com"},
        "spec": {"group": "mygroup.example.com", "scope": "Namespaced", "versions": versions,
            "names": {"plural": "noxus", "singular": "nonxu", "kind": "WishIHadChosenNoxu", "listKind": "NoxuItemList"}}})
}

/// Creates a definition and waits until it is established and served.
pub async fn establish(api: &Api, definition: Value) -> Value {
    let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
    let group = definition["spec"]["group"].as_str().unwrap().to_owned();
    let version = definition["spec"]["versions"][0]["name"].as_str().unwrap().to_owned();
    let plural = definition["spec"]["names"]["plural"].as_str().unwrap().to_owned();
    api.post(DEFINITIONS, definition).await.expect(201);
    loop {
        let read = api.get(&format!("{DEFINITIONS}/{name}")).await.expect(200).body;
        let conditions = read["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let established = conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True");
        if established && api.get(&format!("/apis/{group}/{version}/{plural}")).await.code == 200 {
            return read;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_definition_is_created_watched_and_deleted() {
    let api = Api::start().await;
    let mut watch = api.watch(&format!("{DEFINITIONS}?watch=true")).await;
    establish(&api, noxus(&["v1"])).await;
    assert_eq!(watch.brief().await, "ADDED noxus.mygroup.example.com");
    api.delete(&format!("{DEFINITIONS}/noxus.mygroup.example.com"), Value::Null).await.expect(200);
    loop {
        match watch.brief().await.as_str() {
            "MODIFIED noxus.mygroup.example.com" => {}
            "DELETED noxus.mygroup.example.com" => break,
            other => panic!("{other}"),
        }
    }
    api.get(&format!("{DEFINITIONS}/noxus.mygroup.example.com")).await.expect(404);
}

#[tokio::test]
async fn a_watch_of_custom_objects_sees_each_change() {
    let api = Api::start().await;
    establish(&api, noxus(&["v1"])).await;
    let mut all = api.watch(&format!("{OBJECTS}?watch=true")).await;
    let mut one = api.watch(&format!("{OBJECTS}?watch=true&fieldSelector=metadata.name%3Da")).await;
    for name in ["a", "b"] {
        api.post(
            OBJECTS,
            json!({"apiVersion": "mygroup.example.com/v1", "kind": "WishIHadChosenNoxu",
            "metadata": {"name": name}, "content": {"key": "value"}}),
        )
        .await
        .expect(201);
        api.patch("merge", &format!("{OBJECTS}/{name}"), json!({"content": {"key": "other"}}))
            .await
            .expect(200);
        api.delete(&format!("{OBJECTS}/{name}"), Value::Null).await.expect(200);
        for change in ["ADDED", "MODIFIED", "DELETED"] {
            assert_eq!(all.brief().await, format!("{change} {name}"));
        }
    }
    for change in ["ADDED", "MODIFIED", "DELETED"] {
        assert_eq!(one.brief().await, format!("{change} a"));
    }
    assert!(one.is_quiet().await);
}

#[tokio::test]
async fn the_status_of_a_definition_changes_apart() {
    let api = Api::start().await;
    establish(&api, noxus(&["v1"])).await;
    let path = format!("{DEFINITIONS}/noxus.mygroup.example.com/status");
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "reason": "E2E", "message": "Set from e2e test"});
    let update = async |kind: &str| {
        let mut read = api.get(&path).await.expect(200).body;
        read["status"]["conditions"].as_array_mut().unwrap().push(condition(kind));
        api.put(&path, read).await
    };
    // The server's own changes may come between.
    let updated = loop {
        let reply = update("StatusUpdate").await;
        if reply.code != 409 {
            break reply.expect(200).body;
        }
    };
    assert!(updated["status"]["conditions"].as_array().unwrap().iter().any(|c| c["type"] == "StatusUpdate"));
    let mut conditions = updated["status"]["conditions"].clone();
    conditions.as_array_mut().unwrap().push(condition("StatusPatched"));
    api.patch("merge", &path, json!({"status": {"conditions": conditions}})).await.expect(200);
    let read = api.get(&path).await.expect(200).body;
    assert!(read["status"]["conditions"].as_array().unwrap().iter().any(|c| c["type"] == "StatusPatched"));
}

#[tokio::test]
async fn definitions_are_listed_and_deleted_by_label() {
    let api = Api::start().await;
    for number in 0..10 {
        let mut definition = noxus(&["v1"]);
        let group = format!("group-{number}.example.com");
        definition["metadata"] =
            json!({"name": format!("noxus.{group}"), "labels": {"e2e-list-test-uuid": "one"}});
        definition["spec"]["group"] = group.into();
        api.post(DEFINITIONS, definition).await.expect(201);
    }
    api.post(DEFINITIONS, noxus(&["v1"])).await.expect(201);
    let selected = format!("{DEFINITIONS}?labelSelector=e2e-list-test-uuid%3Done");
    assert_eq!(api.get(&selected).await.names().len(), 10);
    api.delete(&selected, Value::Null).await.expect(200);
    while !api.get(&selected).await.names().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(api.get(DEFINITIONS).await.names(), ["noxus.mygroup.example.com"]);
}

#[tokio::test]
async fn defaults_come_with_requests_and_from_storage() {
    let api = Api::start().await;
    let mut definition = noxus(&["v1"]);
    definition["spec"]["versions"][0]["schema"] = json!({"openAPIV3Schema": {"type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}});
    establish(&api, definition).await;
    let object = |name: &str| json!({"apiVersion": "mygroup.example.com/v1", "kind": "WishIHadChosenNoxu", "metadata": {"name": name}});
    api.post(OBJECTS, object("old")).await.expect(201);
    let defaulted = async |field: &str, patch: Value| {
        let path = format!("{DEFINITIONS}/noxus.mygroup.example.com");
        api.patch("json", &path, patch).await.expect(200);
        loop {
            let read = api.get(&format!("{OBJECTS}/old")).await;
            if read.code == 200 && read.body[field].is_string() {
                return read.body;
            }
            tokio::task::yield_now().await;
        }
    };
    let at = |field: &str| format!("/spec/versions/0/schema/openAPIV3Schema/properties/{field}/default");
    let from_storage = defaulted("a", json!([{"op": "add", "path": at("a"), "value": "A"}])).await;
    assert_eq!((&from_storage["a"], from_storage.get("b")), (&json!("A"), None));
    let made = api.post(OBJECTS, object("new")).await.expect(201).body;
    assert_eq!(made["a"], "A");
    defaulted("b", json!([{"op": "remove", "path": at("a")}, {"op": "add", "path": at("b"), "value": "B"}]))
        .await;
    // An object stored with a default keeps it.
    let kept = api.get(&format!("{OBJECTS}/new")).await.expect(200).body;
    assert_eq!((&kept["a"], &kept["b"]), (&json!("A"), &json!("B")));
    let old = api.get(&format!("{OBJECTS}/old")).await.expect(200).body;
    assert_eq!((old.get("a"), &old["b"]), (None, &json!("B")));
}

#[tokio::test]
async fn selectable_fields_select_in_lists_and_watches() {
    let api = Api::start().await;
    let mut definition = noxus(&["v1", "v2"]);
    for version in definition["spec"]["versions"].as_array_mut().unwrap() {
        version["selectableFields"] = json!([{"jsonPath": ".hostPort"}]);
        version["schema"] =
            json!({"openAPIV3Schema": {"type": "object", "properties": {"hostPort": {"type": "string"}}}});
    }
    establish(&api, definition).await;
    let selector = "fieldSelector=hostPort%3Dhost:8080";
    let mut watches = Vec::new();
    for version in ["v1", "v2"] {
        let path = OBJECTS.replace("/v1/", &format!("/{version}/"));
        watches.push(api.watch(&format!("{path}?watch=true&{selector}")).await);
    }
    for (name, port) in [("a", "host:80"), ("b", "host:8080"), ("c", "host:8080")] {
        api.post(
            OBJECTS,
            json!({"apiVersion": "mygroup.example.com/v1", "kind": "WishIHadChosenNoxu",
            "metadata": {"name": name}, "hostPort": port}),
        )
        .await
        .expect(201);
    }
    for version in ["v1", "v2"] {
        let path = OBJECTS.replace("/v1/", &format!("/{version}/"));
        assert_eq!(api.get(&format!("{path}?{selector}")).await.expect(200).names(), ["b", "c"]);
    }
    api.delete(&format!("{OBJECTS}/b"), Value::Null).await.expect(200);
    api.patch("merge", &format!("{OBJECTS}/c"), json!({"hostPort": "host:80"})).await.expect(200);
    for watch in &mut watches {
        for expected in ["ADDED b", "ADDED c", "DELETED b", "DELETED c"] {
            assert_eq!(watch.brief().await, expected);
        }
    }
    assert_eq!(api.get(&format!("{OBJECTS}?{selector}")).await.names().len(), 0);
}

/// Names of the schemas of version 2 that belong to a group of a test.
async fn published(api: &Api) -> Vec<String> {
    let document = api.get("/openapi/v2").await.expect(200).body;
    let names = document["definitions"].as_object().unwrap().keys();
    names.filter(|name| name.starts_with("com.example.")).cloned().collect()
}

/// Waits until the schemas of these names are published and equal the expected ones, except for the fields
/// that every object has and the two extensions that the server adds: as strict as the original.
async fn until_published(api: &Api, expected: &[(&str, &Value)]) {
    let document = loop {
        let document = api.get("/openapi/v2").await.expect(200).body;
        if expected.iter().all(|(name, _)| document["definitions"][name].is_object()) {
            break document;
        }
        tokio::task::yield_now().await;
    };
    for (name, schema) in expected {
        let mut found = document["definitions"][name].clone();
        if let Some(properties) = found.get_mut("properties").and_then(Value::as_object_mut) {
            properties.retain(|field, _| !["apiVersion", "kind", "metadata"].contains(&field.as_str()));
        }
        let own = ["x-kubernetes-group-version-kind", "x-kubernetes-selectable-fields"];
        found.as_object_mut().unwrap().retain(|key, _| !own.contains(&key.as_str()));
        assert_eq!(found, **schema, "{name}");
    }
}

/// A schema with what most have: lists of objects, required fields, values to choose from.
fn pond() -> Value {
    let duck = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string", "description": "Name of the duck."},
        "mood": {"type": "string", "description": "How it feels.", "enum": ["Fine", "Wet"]},
        "eggs": {"type": "array", "description": "Its eggs.", "items": {"type": "string"}}}});
    let seen = json!({"type": "object", "properties": {
        "swims": {"type": "boolean", "description": "Whether it swims."},
        "call": {"type": "string", "pattern": "quack|honk"}}});
    json!({"type": "object", "description": "A pond", "properties": {
        "spec": {"type": "object", "description": "What is wanted", "properties": {
            "ducks": {"type": "array", "description": "Its ducks.", "items": duck}}},
        "status": {"type": "object", "properties": {"ducks": {"type": "array", "items": seen}}}}})
}

/// A definition of `noxus` with a schema.
fn with_schema(versions: &[&str], schema: &Value) -> Value {
    let mut definition = noxus(versions);
    for version in definition["spec"]["versions"].as_array_mut().unwrap() {
        version["schema"] = json!({"openAPIV3Schema": schema});
    }
    definition
}

#[tokio::test]
async fn schemas_are_published_as_they_were_written() {
    let api = Api::start().await;
    let plain = json!({"type": "object"});
    let preserve = "x-kubernetes-preserve-unknown-fields";
    let mut open = pond();
    open[preserve] = true.into();
    let mut within = pond();
    within["properties"]["spec"][preserve] = true.into();
    let mut within_published = within.clone();
    let spec = within_published["properties"]["spec"].as_object_mut().unwrap();
    spec.retain(|key, _| !["type", "properties"].contains(&key.as_str()));
    for (group, schema, expected) in [
        ("a", json!({"type": "object", preserve: true}), &plain),
        ("b", open, &plain),
        ("c", within, &within_published),
        ("d", pond(), &pond()),
    ] {
        let mut definition = with_schema(&["v1"], &schema);
        definition["metadata"]["name"] = format!("noxus.{group}.example.com").into();
        definition["spec"]["group"] = format!("{group}.example.com").into();
        establish(&api, definition).await;
        let name = format!("com.example.{group}.v1.WishIHadChosenNoxu");
        until_published(&api, &[(&name, expected)]).await;
    }
}

#[tokio::test]
async fn schemas_of_several_groups_kinds_and_versions_are_published() {
    let api = Api::start().await;
    let (pond, plain) = (&pond(), &json!({"type": "object"}));
    establish(&api, with_schema(&["v1", "v2"], pond)).await;
    let mut other = noxus(&["v1"]);
    other["metadata"]["name"] = "others.mygroup.example.com".into();
    other["spec"]["names"] = json!({"plural": "others", "kind": "Other"});
    establish(&api, other).await;
    let mut apart = with_schema(&["v5"], pond);
    apart["metadata"]["name"] = "noxus.apart.example.com".into();
    apart["spec"]["group"] = "apart.example.com".into();
    establish(&api, apart).await;
    until_published(
        &api,
        &[
            ("com.example.mygroup.v1.WishIHadChosenNoxu", pond),
            ("com.example.mygroup.v2.WishIHadChosenNoxu", pond),
            ("com.example.mygroup.v1.Other", plain),
            ("com.example.apart.v5.WishIHadChosenNoxu", pond),
        ],
    )
    .await;
    let three = api.get("/openapi/v3/apis/mygroup.example.com/v2").await.expect(200).body;
    assert!(
        three["components"]["schemas"]["com.example.mygroup.v2.WishIHadChosenNoxu"].is_object(),
        "{three}"
    );
}

#[tokio::test]
async fn versions_that_are_renamed_or_no_longer_served_are_published_no_more() {
    let api = Api::start().await;
    let pond = &pond();
    establish(&api, with_schema(&["v1", "v2"], pond)).await;
    until_published(
        &api,
        &[
            ("com.example.mygroup.v1.WishIHadChosenNoxu", pond),
            ("com.example.mygroup.v2.WishIHadChosenNoxu", pond),
        ],
    )
    .await;
    let path = format!("{DEFINITIONS}/noxus.mygroup.example.com");
    let rename = json!([{"op": "replace", "path": "/spec/versions/1/name", "value": "v3"}]);
    api.patch("json", &path, rename).await.expect(200);
    until_published(&api, &[("com.example.mygroup.v3.WishIHadChosenNoxu", pond)]).await;
    assert!(!published(&api).await.contains(&"com.example.mygroup.v2.WishIHadChosenNoxu".to_owned()));
    let hide = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    api.patch("json", &path, hide).await.expect(200);
    while published(&api).await.contains(&"com.example.mygroup.v3.WishIHadChosenNoxu".to_owned()) {
        tokio::task::yield_now().await;
    }
    until_published(&api, &[("com.example.mygroup.v1.WishIHadChosenNoxu", pond)]).await;
    api.get("/openapi/v3/apis/mygroup.example.com/v3").await.expect(404);
}
