//! CustomResourceDefinitions and their objects.

use std::sync::Arc;
use std::time::Duration;

use apiserver_server::ServerConfig;
use serde_json::{Value, json};

use crate::api::harness::{Api, Reply};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

pub fn widgets() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["toys"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["color"], "properties": {
                        "replicas": {"type": "integer", "minimum": 0, "maximum": 10, "default": 1},
                        "color": {"type": "string", "enum": ["red", "green"]},
                        "size": {"type": "string", "maxLength": 5},
                        "parts": {"type": "array", "x-kubernetes-list-type": "map",
                            "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object",
                            "required": ["name"], "properties": {"name": {"type": "string"}, "count": {"type": "integer"}}}}}},
                    "status": {"type": "object", "properties": {
                        "replicas": {"type": "integer"}, "selector": {"type": "string"}, "phase": {"type": "string"}}}}}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
                "additionalPrinterColumns": [
                    {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
                    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1}],
                "selectableFields": [{"jsonPath": ".spec.color"}],
            }],
        },
    })
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

fn condition<'a>(definition: &'a Value, kind: &str) -> &'a Value {
    let none = &Value::Null;
    definition["status"]["conditions"]
        .as_array()
        .and_then(|c| c.iter().find(|c| c["type"] == kind))
        .unwrap_or(none)
}

/// Makes a definition, and waits until it is served.
pub async fn establish(api: &Api, definition: Value) {
    let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
    api.post(CRDS, definition).await.expect(201);
    wait_for(api, &name, "Established", "True").await;
}

/// Waits until a condition of a definition is as wanted.
async fn wait_for(api: &Api, name: &str, kind: &str, status: &str) -> Value {
    for _ in 0..200 {
        let reply = api.get(&format!("{CRDS}/{name}")).await.expect(200);
        if condition(&reply.body, kind)["status"] == status {
            return reply.body;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{name}: {kind} is not {status}");
}

async fn established(definition: Value) -> Api {
    let api = Api::start().await;
    establish(&api, definition).await;
    api
}

fn causes(reply: &Reply) -> Vec<String> {
    let causes = reply.body["details"]["causes"].as_array().unwrap();
    let text = |c: &Value| {
        format!(
            "{}: {} ({})",
            c["field"].as_str().unwrap(),
            c["message"].as_str().unwrap(),
            c["reason"].as_str().unwrap()
        )
    };
    causes.iter().map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn a_definition_is_completed_established_and_served() {
    let api = Api::start().await;
    api.get(WIDGETS).await.expect(404);
    let made = api.post(CRDS, widgets()).await.expect(201);
    assert_eq!(made.body["spec"]["names"]["listKind"], "WidgetList");
    assert_eq!(made.body["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(made.body["metadata"]["generation"], 1);
    let definition = wait_for(&api, "widgets.example.com", "Established", "True").await;
    assert_eq!(condition(&definition, "NamesAccepted")["reason"], "NoConflicts");
    assert_eq!(definition["status"]["acceptedNames"]["singular"], "widget");

    let created = api.post(WIDGETS, widget("a", json!({"color": "red"}))).await.expect(201);
    assert_eq!(created.body["spec"], json!({"color": "red", "replicas": 1}));
    assert_eq!(created.body["metadata"]["generation"], 1);
    assert_eq!(api.get(&format!("{WIDGETS}/a")).await.expect(200).body, created.body);
    let list = api.get(WIDGETS).await.expect(200);
    assert_eq!((list.body["kind"].as_str(), list.names()), (Some("WidgetList"), vec!["a"]));
    // The key and the encoding are those of Kubernetes.
    let kv = api.store.get("/registry/example.com/widgets/default/a").await.unwrap().kv.unwrap();
    let stored: Value = serde_json::from_slice(&kv.value).unwrap();
    assert_eq!(stored["spec"]["color"], "red");
    assert_eq!(stored["metadata"].get("resourceVersion"), None);
    api.delete(&format!("{WIDGETS}/a"), Value::Null).await.expect(200);
    api.get(&format!("{WIDGETS}/a")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn bad_definitions_and_bad_objects_are_refused_in_the_words_of_kubernetes() {
    let api = Api::start().await;
    let mut loose = widgets();
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({});
    let refused = api.post(CRDS, loose).await.expect(422);
    assert_eq!(
        refused.message(),
        "CustomResourceDefinition.apiextensions.k8s.io \"widgets.example.com\" is invalid: [spec.validation.openAPIV3Schema.properties[spec].type: \
         Required value: must not be empty for specified object fields, spec.selectableFields[0].jsonPath: Invalid value: \".spec.color\": is an invalid \
         path: does not refer to a valid field]"
    );
    api.post(CRDS, widgets()).await.expect(201);
    wait_for(&api, "widgets.example.com", "Established", "True").await;
    let table = [
        (
            json!({"color": "red", "replicas": "x"}),
            "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\" (FieldValueTypeInvalid)",
        ),
        (
            json!({"color": "red", "replicas": 11}),
            "spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to 10 (FieldValueInvalid)",
        ),
        (
            json!({"color": "blue"}),
            "spec.color: Unsupported value: \"blue\": supported values: \"red\", \"green\" (FieldValueNotSupported)",
        ),
        (json!({}), "spec.color: Required value (FieldValueRequired)"),
        (
            json!({"color": "red", "parts": [{"name": "x"}, {"name": "x"}]}),
            "spec.parts[1]: Duplicate value: {\"name\":\"x\"} (FieldValueDuplicate)",
        ),
    ];
    for (spec, wanted) in table {
        let reply = api.post(WIDGETS, widget("a", spec)).await.expect(422);
        assert_eq!(causes(&reply)[0], wanted);
    }
    let malformed = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a", "labels": 7}, "spec": {}});
    let reply = api.post(WIDGETS, malformed).await.expect(400);
    assert!(
        reply
            .message()
            .starts_with("Widget in version \"v1\" cannot be handled as a Widget: json: cannot unmarshal "),
        "{}",
        reply.text
    );
    api.get(&format!("{WIDGETS}?fieldSelector=spec.size%3Dx")).await.expect(400);
    assert!(api.get(WIDGETS).await.expect(200).names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_pruned_warned_of_or_refused() {
    let api = established(widgets()).await;
    let mut object = widget("a", json!({"color": "red", "weight": 3}));
    object["metadata"]["nonsense"] = 1.into();
    let warned = api.post(WIDGETS, object.clone()).await.expect(201);
    assert_eq!(warned.body["spec"].get("weight"), None);
    let warnings: Vec<&str> = warned.headers.get_all("warning").iter().map(|v| v.to_str().unwrap()).collect();
    assert_eq!(
        warnings,
        ["299 - \"unknown field \\\"metadata.nonsense\\\"\"", "299 - \"unknown field \\\"spec.weight\\\"\""]
    );
    object["metadata"]["name"] = "b".into();
    let strict = api.post(&format!("{WIDGETS}?fieldValidation=Strict"), object.clone()).await.expect(400);
    assert_eq!(
        strict.message(),
        "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \"metadata.nonsense\", unknown field \"spec.weight\""
    );
    let ignored = api.post(&format!("{WIDGETS}?fieldValidation=Ignore"), object).await.expect(201);
    assert!(ignored.headers.get("warning").is_none());
    let twice = r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"c"},"spec":{"color":"red","color":"green"}}"#;
    let json = [("content-type", "application/json")];
    let reply =
        api.call("POST", &format!("{WIDGETS}?fieldValidation=Strict"), &json, twice).await.expect(400);
    assert!(
        reply.message().ends_with("strict decoding error: duplicate field \"spec.color\""),
        "{}",
        reply.text
    );
}

#[tokio::test(start_paused = true)]
async fn objects_are_patched_updated_and_watched() {
    let api = established(widgets()).await;
    let made = api.post(WIDGETS, widget("a", json!({"color": "red"}))).await.expect(201);
    let mut watch = api
        .watch(&format!(
            "{WIDGETS}?watch=true&resourceVersion={}&fieldSelector=spec.color%3Dred",
            made.version()
        ))
        .await;
    let path = format!("{WIDGETS}/a");
    let patched = api.patch("merge", &path, json!({"spec": {"size": "l"}})).await.expect(200);
    assert_eq!(
        (&patched.body["spec"]["size"], &patched.body["metadata"]["generation"]),
        (&json!("l"), &json!(2))
    );
    assert_eq!(watch.brief().await, "MODIFIED a");
    let operations = json!([{"op": "replace", "path": "/spec/color", "value": "green"}]);
    api.patch("json", &path, operations).await.expect(200);
    assert_eq!(watch.brief().await, "DELETED a");
    assert_eq!(
        api.patch("strategic-merge", &path, json!({})).await.expect(415).reason(),
        "UnsupportedMediaType"
    );
    assert_eq!(
        causes(&api.patch("merge", &path, json!({"spec": {"replicas": -1}})).await.expect(422)),
        [
            "spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0 (FieldValueInvalid)",
            ".spec.replicas: Invalid value: -1: should be a non-negative integer (FieldValueInvalid)"
        ]
    );
    let unversioned = api.put(&path, widget("a", json!({"color": "red"}))).await.expect(422);
    assert_eq!(
        causes(&unversioned),
        ["metadata.resourceVersion: Invalid value: 0: must be specified for an update (FieldValueInvalid)"]
    );
    let mut whole = api.get(&path).await.expect(200).body;
    whole["spec"]["color"] = "red".into();
    api.put(&path, whole.clone()).await.expect(200);
    assert_eq!(watch.brief().await, "ADDED a");
    assert_eq!(api.put(&path, whole).await.expect(409).reason(), "Conflict");
    let green = api.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dgreen")).await.expect(200);
    assert!(green.names().is_empty());
    assert_eq!(
        api.get("/apis/example.com/v1/widgets?fieldSelector=spec.color!%3Dgreen").await.expect(200).names(),
        ["a"]
    );
    let gone = api.delete(WIDGETS, Value::Null).await.expect(200);
    assert_eq!(gone.names(), ["a"]);
    assert_eq!(watch.brief().await, "DELETED a");
}

#[tokio::test(start_paused = true)]
async fn status_and_scale_are_subresources() {
    let api = established(widgets()).await;
    let mut object = widget("a", json!({"color": "red", "replicas": 3}));
    object["status"] = json!({"phase": "Ready"});
    let made = api.post(WIDGETS, object.clone()).await.expect(201);
    assert_eq!(made.body.get("status"), None);
    let path = format!("{WIDGETS}/a");
    let mut update = made.body.clone();
    update["status"] = json!({"phase": "Ready", "replicas": 2, "selector": "app=a"});
    update["spec"]["color"] = "green".into();
    update["metadata"]["labels"] = json!({"x": "y"});
    let status = api.put(&format!("{path}/status"), update).await.expect(200);
    assert_eq!(
        (&status.body["spec"]["color"], &status.body["status"]["phase"]),
        (&json!("red"), &json!("Ready"))
    );
    assert_eq!(
        (&status.body["metadata"]["labels"], &status.body["metadata"]["generation"]),
        (&Value::Null, &json!(1))
    );
    let bad =
        api.patch("merge", &format!("{path}/status"), json!({"status": {"replicas": "x"}})).await.expect(422);
    assert_eq!(
        causes(&bad)[0],
        "status.replicas: Invalid value: \"string\": replicas in body must be of type integer: \"string\" (FieldValueTypeInvalid)"
    );
    let scale = api.get(&format!("{path}/scale")).await.expect(200);
    assert_eq!(
        (&scale.body["spec"], &scale.body["status"]),
        (&json!({"replicas": 3}), &json!({"replicas": 2, "selector": "app=a"}))
    );
    let scaled =
        api.patch("merge", &format!("{path}/scale"), json!({"spec": {"replicas": 7}})).await.expect(200);
    assert_eq!(scaled.body["spec"]["replicas"], 7);
    let whole = api.get(&path).await.expect(200);
    assert_eq!(
        (&whole.body["spec"]["replicas"], &whole.body["metadata"]["generation"]),
        (&json!(7), &json!(2))
    );
    api.patch("merge", &format!("{path}/scale"), json!({"spec": {"replicas": 11}})).await.expect(422);
    // A main update leaves the status alone.
    let main = api.patch("merge", &path, json!({"status": {"phase": "Other"}})).await.expect(200);
    assert_eq!(main.body["status"]["phase"], "Ready");
}

#[tokio::test(start_paused = true)]
async fn tables_have_the_columns_of_the_definition() {
    let api = established(widgets()).await;
    api.post(WIDGETS, widget("a", json!({"color": "red"}))).await.expect(201);
    let table = api.get_as(WIDGETS, "application/json;as=Table;v=v1;g=meta.k8s.io").await.expect(200).body;
    let columns: Vec<(&str, i64)> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["name"].as_str().unwrap(), c["priority"].as_i64().unwrap()))
        .collect();
    assert_eq!(columns, [("Name", 0), ("Color", 0), ("Replicas", 1)]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", "red", 1]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
}

#[tokio::test(start_paused = true)]
async fn discovery_and_openapi_name_custom_kinds() {
    let api = established(widgets()).await;
    let list = api.get("/apis/example.com/v1").await.expect(200).body;
    let names: Vec<&str> =
        list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["widgets", "widgets/scale", "widgets/status"]);
    assert_eq!(
        (&list["resources"][0]["shortNames"], &list["resources"][0]["categories"]),
        (&json!(["wd"]), &json!(["toys"]))
    );
    assert_eq!(api.get("/apis/example.com").await.expect(200).body["preferredVersion"]["version"], "v1");
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let groups = api.get_as("/apis", aggregated).await.expect(200);
    let group = groups.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|g| g["metadata"]["name"] == "example.com")
        .unwrap();
    assert_eq!(group["versions"][0]["resources"][0]["subresources"][0]["subresource"], "status");
    let index = api.get("/openapi/v3").await.expect(200).body;
    let url = index["paths"]["apis/example.com/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = api.get(&url).await.expect(200);
    assert!(document.headers["cache-control"].to_str().unwrap().contains("immutable"));
    let schema = &document.body["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(schema["properties"]["spec"]["properties"]["color"]["enum"], json!(["red", "green"]));
    assert!(
        document.body["components"]["schemas"]["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"].is_object()
    );
    assert!(document.body["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets"]["get"].is_object());
    let v2 = api.get_as("/openapi/v2", "application/json").await.expect(200);
    assert!(v2.body["definitions"]["com.example.v1.Widget"]["properties"]["spec"].is_object());
    assert!(v2.body["definitions"]["io.k8s.api.core.v1.Pod"].is_object());
    let tag = v2.headers["etag"].to_str().unwrap().to_owned();
    let accept = [("accept", "application/json"), ("if-none-match", tag.as_str())];
    assert_eq!(api.call("GET", "/openapi/v2", &accept, "").await.code, 304);
    // A change of the schema is a change of the documents.
    let pointer = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maxLength";
    let operations = json!([{"op": "replace", "path": pointer, "value": 6}]);
    api.patch("json", &format!("{CRDS}/widgets.example.com"), operations).await.expect(200);
    let next = api.get("/openapi/v3").await.expect(200).body;
    assert_ne!(next["paths"]["apis/example.com/v1"]["serverRelativeURL"], url.as_str());
    assert_eq!(api.call("GET", "/openapi/v2", &accept, "").await.code, 200);
}

#[tokio::test(start_paused = true)]
async fn a_tighter_schema_tolerates_what_was_there_and_defaults_come_from_storage() {
    let api = established(widgets()).await;
    api.post(WIDGETS, widget("a", json!({"color": "red", "size": "large"}))).await.expect(201);
    let path = format!("{WIDGETS}/a");
    let operations = json!([
        {"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maxLength", "value": 2},
        {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/age", "value": {"type": "integer", "default": 7}}]);
    api.patch("json", &format!("{CRDS}/widgets.example.com"), operations).await.expect(200);
    api.get("/apis/example.com/v1").await.expect(200);
    let read = api.get(&path).await.expect(200);
    assert_eq!(read.body["spec"]["age"], 7);
    assert_eq!(api.get(WIDGETS).await.expect(200).body["items"][0]["spec"]["age"], 7);
    let kept = api.patch("merge", &path, json!({"spec": {"color": "green"}})).await.expect(200);
    assert_eq!(kept.body["spec"]["size"], "large");
    let refused = api.patch("merge", &path, json!({"spec": {"size": "huge"}})).await.expect(422);
    assert_eq!(causes(&refused), ["spec.size: Too long: may not be more than 2 bytes (FieldValueTooLong)"]);
}

#[tokio::test(start_paused = true)]
async fn several_versions_are_one_object() {
    let mut definition = widgets();
    let mut old = definition["spec"]["versions"][0].clone();
    (old["name"], old["storage"], old["deprecated"]) = (json!("v1beta1"), json!(false), json!(true));
    old["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        .as_object_mut()
        .unwrap()
        .remove("size");
    definition["spec"]["versions"].as_array_mut().unwrap().push(old);
    let api = established(definition).await;
    api.post(WIDGETS, widget("a", json!({"color": "red", "size": "l"}))).await.expect(201);
    let beta = "/apis/example.com/v1beta1/namespaces/default/widgets";
    let read = api.get(&format!("{beta}/a")).await.expect(200);
    assert_eq!(
        (&read.body["apiVersion"], read.body["spec"].get("size")),
        (&json!("example.com/v1beta1"), None)
    );
    assert_eq!(
        read.headers["warning"],
        "299 - \"example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget\""
    );
    assert_eq!(api.get(beta).await.expect(200).body["items"][0]["apiVersion"], "example.com/v1beta1");
    api.patch("merge", &format!("{beta}/a"), json!({"spec": {"color": "green"}})).await.expect(200);
    let stored = api.get(&format!("{WIDGETS}/a")).await.expect(200);
    assert_eq!(
        (&stored.body["apiVersion"], &stored.body["spec"]["color"]),
        (&json!("example.com/v1"), &json!("green"))
    );
    let group = api.get("/apis/example.com").await.expect(200).body;
    let versions: Vec<&str> =
        group["versions"].as_array().unwrap().iter().map(|v| v["version"].as_str().unwrap()).collect();
    assert_eq!(versions, ["v1", "v1beta1"]);
}

#[tokio::test(start_paused = true)]
async fn names_are_granted_once_and_passed_on() {
    let api = established(widgets()).await;
    let mut rival = widgets();
    rival["metadata"]["name"] = "wodgets.example.com".into();
    rival["spec"]["names"] = json!({"plural": "wodgets", "kind": "Wodget", "shortNames": ["wd"]});
    api.post(CRDS, rival).await.expect(201);
    let refused = wait_for(&api, "wodgets.example.com", "NamesAccepted", "False").await;
    assert_eq!(condition(&refused, "NamesAccepted")["message"], "\"wd\" is already in use");
    assert_eq!(condition(&refused, "Established")["status"], "False");
    api.get("/apis/example.com/v1/namespaces/default/wodgets").await.expect(404);
    api.delete(&format!("{CRDS}/widgets.example.com"), Value::Null).await.expect(200);
    wait_for(&api, "wodgets.example.com", "Established", "True").await;
    api.get("/apis/example.com/v1/namespaces/default/wodgets").await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn a_definition_goes_after_its_objects() {
    let api = established(widgets()).await;
    let mut held = widget("held", json!({"color": "red"}));
    held["metadata"]["finalizers"] = json!(["example.com/mine"]);
    api.post(WIDGETS, held).await.expect(201);
    api.post(WIDGETS, widget("free", json!({"color": "red"}))).await.expect(201);
    let mut watch = api.watch(&format!("{WIDGETS}?watch=true&fieldSelector=metadata.name%3Dfree")).await;
    assert_eq!(watch.brief().await, "ADDED free");
    let name = format!("{CRDS}/widgets.example.com");
    let going = api.delete(&name, Value::Null).await.expect(200);
    assert_eq!(going.body["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    assert_eq!(condition(&going.body, "Terminating")["status"], "True");
    for _ in 0..100 {
        if api.get(WIDGETS).await.expect(200).names() == ["held"] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(api.get(WIDGETS).await.expect(200).names(), ["held"]);
    // Watchers receive the deletion of each object, and then there is nothing to watch.
    assert_eq!(watch.brief().await, "DELETED free");
    let refused = api.post(WIDGETS, widget("new", json!({"color": "red"}))).await.expect(403);
    assert!(refused.message().contains("create not allowed while custom resource definition is terminating"));
    // Nor by apply; an existing object can be applied to.
    let media = [("content-type", "application/apply-patch+yaml")];
    let apply = |name: &str| {
        let config = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}});
        let (api, path) = (&api, format!("{WIDGETS}/{name}?fieldManager=a"));
        async move { api.call("PATCH", &path, &media, config.to_string()).await }
    };
    apply("new").await.expect(403);
    apply("held").await.expect(200);
    api.patch("merge", &format!("{WIDGETS}/held"), json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);
    for _ in 0..200 {
        if api.get(&name).await.code == 404 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    api.get(&name).await.expect(404);
    assert!(watch.next().await.is_none());
    api.get(WIDGETS).await.expect(404);
    api.get("/apis/example.com").await.expect(404);
    assert!(api.store.get("/registry/example.com/widgets/default/held").await.unwrap().kv.is_none());
    // The name is free again.
    api.post(CRDS, widgets()).await.expect(201);
    wait_for(&api, "widgets.example.com", "Established", "True").await;
    assert!(api.get(WIDGETS).await.expect(200).names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn kinds_are_served_after_a_restart_and_by_another_server() {
    let one = established(widgets()).await;
    one.post(WIDGETS, widget("a", json!({"color": "red"}))).await.expect(201);
    let two = Api::over(ServerConfig::default(), Arc::clone(&one.store)).await;
    assert_eq!(two.get(WIDGETS).await.expect(200).names(), ["a"]);
    // Each server sees the writes of the other.
    let mut watch = two.watch(&format!("{WIDGETS}?watch=true")).await;
    assert_eq!(watch.brief().await, "ADDED a");
    one.post(WIDGETS, widget("b", json!({"color": "red"}))).await.expect(201);
    assert_eq!(watch.brief().await, "ADDED b");
    let mut gadgets = widgets();
    gadgets["metadata"]["name"] = "gadgets.example.com".into();
    gadgets["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget"});
    two.post(CRDS, gadgets).await.expect(201);
    wait_for(&one, "gadgets.example.com", "Established", "True").await;
    one.get("/apis/example.com/v1/namespaces/default/gadgets").await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn many_definitions_are_served_by_one_task() {
    let api = Api::start().await;
    for i in 0..200 {
        let mut definition = widgets();
        definition["metadata"]["name"] = format!("widgets.g{i}.example.com").into();
        definition["spec"]["group"] = format!("g{i}.example.com").into();
        api.post(CRDS, definition).await.expect(201);
    }
    wait_for(&api, "widgets.g199.example.com", "Established", "True").await;
    for i in 0..200 {
        wait_for(&api, &format!("widgets.g{i}.example.com"), "Established", "True").await;
    }
    api.get("/apis/g7.example.com/v1/namespaces/default/widgets").await.expect(200);
    let groups = api.get("/apis").await.expect(200).body["groups"].as_array().unwrap().len();
    assert!(groups > 200);
}

#[tokio::test(start_paused = true)]
async fn objects_are_applied_by_several_managers() {
    let api = established(widgets()).await;
    let path = format!("{WIDGETS}/a");
    let media = [("content-type", "application/apply-patch+yaml")];
    let apply = |manager: &str, config: Value| {
        let url = format!("{path}?fieldManager={manager}");
        let api = &api;
        async move { api.call("PATCH", &url, &media, config.to_string()).await }
    };
    let made = apply("one", widget("a", json!({"color": "red", "parts": [{"name": "x", "count": 1}]}))).await;
    assert_eq!(made.expect(201).body["spec"]["replicas"], 1);
    let more = apply("two", widget("a", json!({"parts": [{"name": "y", "count": 2}]}))).await.expect(200);
    assert_eq!(more.body["spec"]["parts"], json!([{"name": "x", "count": 1}, {"name": "y", "count": 2}]));
    let conflict = apply("two", widget("a", json!({"parts": [{"name": "x", "count": 5}]}))).await.expect(409);
    assert!(
        conflict.message().contains("conflict with \"one\": .spec.parts[name=\"x\"].count"),
        "{}",
        conflict.text
    );
    // A field that a manager no longer names is removed, if it has no other owner.
    let less = apply("one", widget("a", json!({"color": "red"}))).await.expect(200);
    assert_eq!(less.body["spec"]["parts"], json!([{"name": "y", "count": 2}]));
    let status = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "status": {"phase": "Ready"}});
    let url = format!("{path}/status?fieldManager=three");
    let applied = api.call("PATCH", &url, &media, status.to_string()).await.expect(200);
    assert_eq!(applied.body["status"]["phase"], "Ready");
    let entries = applied.body["metadata"]["managedFields"].as_array().unwrap();
    let mut managers: Vec<&str> = entries.iter().map(|entry| entry["manager"].as_str().unwrap()).collect();
    managers.sort_unstable();
    assert_eq!(managers, ["one", "three", "two"]);
}

#[tokio::test(start_paused = true)]
async fn rules_judge_definitions_and_objects() {
    let mut definition = widgets();
    let pointer = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    definition.pointer_mut(pointer).unwrap()["x-kubernetes-validations"] =
        json!([{"rule": "self.nothing > 1"}]);
    let api = Api::start().await;
    let refused = api.post(CRDS, definition.clone()).await.expect(422);
    assert!(refused.message().contains("undefined field 'nothing'"), "{}", refused.text);
    definition.pointer_mut(pointer).unwrap()["x-kubernetes-validations"] = json!([
        {"rule": "self.replicas <= 5 || self.color == 'green'", "message": "only green ones scale"},
        {"rule": "self.color == oldSelf.color", "messageExpression": "'color is ' + oldSelf.color", "reason": "FieldValueForbidden", "fieldPath": ".color"}]);
    api.post(CRDS, definition).await.expect(201);
    wait_for(&api, "widgets.example.com", "Established", "True").await;
    let refused = api.post(WIDGETS, widget("a", json!({"color": "red", "replicas": 6}))).await.expect(422);
    assert_eq!(causes(&refused), ["spec: Invalid value: only green ones scale (FieldValueInvalid)"]);
    let bad = api.post(WIDGETS, widget("a", json!({"color": "blue"}))).await.expect(422);
    assert!(
        causes(&bad)[1].starts_with("<nil>: Invalid value: null: some validation rules were not checked"),
        "{}",
        bad.text
    );
    api.post(WIDGETS, widget("a", json!({"color": "red", "replicas": 5}))).await.expect(201);
    let changed =
        api.patch("merge", &format!("{WIDGETS}/a"), json!({"spec": {"color": "green"}})).await.expect(422);
    assert_eq!(causes(&changed), ["spec.color: Forbidden: color is red (FieldValueForbidden)"]);
}

#[tokio::test(start_paused = true)]
async fn custom_objects_say_what_they_are() {
    let api = Api::start().await;
    establish(&api, widgets()).await;
    let mut object = widget("a", json!({"color": "red"}));
    object.as_object_mut().unwrap().remove("apiVersion");
    let refused = api.post(WIDGETS, object.clone()).await.expect(400);
    let why = "the API version in the data () does not match the expected API version (example.com/v1)";
    assert_eq!(refused.message(), why);
    object.as_object_mut().unwrap().remove("kind");
    let refused = api.post(WIDGETS, object).await.expect(400);
    let why = "the object provided is unrecognized (must be of type Widget): Object 'Kind' is missing in";
    assert!(refused.message().starts_with(why), "{}", refused.text);
}
