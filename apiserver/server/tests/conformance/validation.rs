//! Field validation on the server.

use serde_json::{Value, json};

use crate::api::harness::{Api, Reply};
use crate::conformance::definitions::{establish, noxus};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const OBJECTS: &str = "/apis/mygroup.example.com/v1/namespaces/default/noxus";

async fn create(api: &Api, path: &str, text: &str) -> Reply {
    api.call(
        "POST",
        &format!("{path}?fieldValidation=Strict"),
        &[("content-type", "application/json")],
        text.to_owned(),
    )
    .await
}

async fn apply(api: &Api, path: &str, name: &str, text: &str) -> Reply {
    let path = format!("{path}/{name}?fieldValidation=Strict&fieldManager=e2e");
    api.call("PATCH", &path, &[("content-type", "application/apply-patch+yaml")], text.to_owned()).await
}

fn deployment(metadata: &str, spec: &str) -> String {
    format!(
        r#"{{"apiVersion":"apps/v1","kind":"Deployment","metadata":{{"name":"d"{metadata}}},"spec":{{{spec}"selector":{{"matchLabels":{{"app":"a"}}}},
        "template":{{"metadata":{{"labels":{{"app":"a"}}}},"spec":{{"containers":[{{"name":"c","image":"i"}}]}}}}}}}}"#
    )
}

#[tokio::test]
async fn typed_objects_with_unknown_or_repeated_fields_are_refused() {
    let api = Api::start().await;
    let wrong = deployment("", r#""unknownField":"x","replicas":1,"replicas":2,"#);
    let refused = create(&api, DEPLOYMENTS, &wrong).await.expect(400);
    for text in
        ["strict decoding error", "unknown field \"spec.unknownField\"", "duplicate field \"spec.replicas\""]
    {
        assert!(refused.message().contains(text), "{}", refused.message());
    }
}

#[tokio::test]
async fn unknown_metadata_of_typed_objects_is_refused() {
    let api = Api::start().await;
    let wrong = deployment(r#","unknownMeta":"x""#, "");
    let refused = create(&api, DEPLOYMENTS, &wrong).await.expect(400);
    assert!(refused.message().contains("unknown field \"metadata.unknownMeta\""), "{}", refused.message());
}

/// A definition whose objects are checked.
fn checked() -> Value {
    let mut definition = noxus(&["v1"]);
    definition["spec"]["versions"][0]["schema"] = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"cronSpec": {"type": "string", "pattern": "^(\\d+|\\*)(/\\d+)?(\\s+(\\d+|\\*)(/\\d+)?){4}$"},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["containerPort"],
                "items": {"type": "object", "required": ["containerPort"], "properties": {"containerPort": {"type": "integer"}, "name": {"type": "string"}}}},
            "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}}}});
    definition
}

fn object(name: &str, fields: &str) -> String {
    format!(
        r#"{{"apiVersion":"mygroup.example.com/v1","kind":"WishIHadChosenNoxu","metadata":{{"name":"{name}","finalizers":["example.com/f"]}},{fields}}}"#
    )
}

#[tokio::test]
async fn custom_objects_that_fit_their_schema_are_created_and_applied() {
    let api = Api::start().await;
    establish(&api, checked()).await;
    let fields = r#""spec":{"cronSpec":"* * * * */5","ports":[{"name":"x","containerPort":80}]}"#;
    create(&api, OBJECTS, &object("a", fields)).await.expect(201);
    apply(&api, OBJECTS, "b", &object("b", fields)).await.expect(201);
}

#[tokio::test]
async fn custom_objects_with_further_properties_are_refused() {
    let api = Api::start().await;
    establish(&api, checked()).await;
    let wrong = object(
        "a",
        r#""spec":{"unknown":"uk1","cronSpec":"* * * * */5","ports":[{"name":"x","containerPort":80,"unknownNested":"v"}]}"#,
    );
    let refused = create(&api, OBJECTS, &wrong).await.expect(400);
    assert!(refused.message().contains("unknown field \"spec.unknown\""), "{}", refused.message());
    // Kubernetes has no code for this of its own.
    let refused = apply(&api, OBJECTS, "a", &wrong).await.expect(500);
    assert!(
        refused.message().contains(".spec.unknown: field not declared in schema"),
        "{}",
        refused.message()
    );
}

#[tokio::test]
async fn without_a_schema_unknown_fields_are_kept() {
    let api = Api::start().await;
    establish(&api, noxus(&["v1"])).await;
    let fields = r#""spec":{"foo":"foo1","cronSpec":"* * * * */5"}"#;
    create(&api, OBJECTS, &object("a", fields)).await.expect(201);
    let applied = apply(&api, OBJECTS, "b", &object("b", fields)).await.expect(201);
    assert_eq!(applied.body["spec"]["foo"], "foo1");
}

#[tokio::test]
async fn repeated_fields_are_refused_where_unknown_ones_are_kept() {
    let api = Api::start().await;
    establish(&api, noxus(&["v1"])).await;
    let wrong = object("a", r#""spec":{"unknown":"uk1","unknown":"uk2","cronSpec":"* * * * */5"}"#);
    let refused = create(&api, OBJECTS, &wrong).await.expect(400);
    assert!(refused.message().contains("duplicate field \"spec.unknown\""), "{}", refused.message());
    let text = wrong.replace("{\"unknown\":\"uk1\",\"unknown\":\"uk2\",", "{\"foo\":1,\"foo\":2,");
    apply(&api, OBJECTS, "a", &text).await.expect(400);
}

#[tokio::test]
async fn unknown_metadata_of_custom_objects_and_what_they_embed_is_refused() {
    let api = Api::start().await;
    establish(&api, checked()).await;
    let root = r#"{"apiVersion":"mygroup.example.com/v1","kind":"WishIHadChosenNoxu","metadata":{"name":"a","unknownMeta":"x"},"spec":{}}"#;
    let refused = create(&api, OBJECTS, root).await.expect(400);
    assert!(refused.message().contains("unknown field \"metadata.unknownMeta\""), "{}", refused.message());
    let embedded = object(
        "b",
        r#""spec":{"template":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","unknownSubMeta":"y"}}}"#,
    );
    let refused = create(&api, OBJECTS, &embedded).await.expect(400);
    assert!(
        refused.message().contains("unknown field \"spec.template.metadata.unknownSubMeta\""),
        "{}",
        refused.message()
    );
}
