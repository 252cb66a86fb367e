//! Patches whose result cannot be read: the words are those that kube-apiserver 1.36.2 answers with.

use serde_json::{Value, json};

use crate::api::harness::{Api, deployment};

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/default/deployments/d";

async fn world() -> Api {
    let api = Api::start().await;
    api.post("/apis/apps/v1/namespaces/default/deployments", deployment("d")).await.expect(201);
    api
}

#[tokio::test]
async fn strategic_patches_that_cannot_be_restored_say_so_of_the_patch() {
    let api = world().await;
    for (patch, shown, why) in [
        (json!({"spec": {"replicas": "a"}}), "map[spec:map[replicas:a]]", "unrecognized type: int32"),
        (
            json!({"spec": {"template": {"spec": {"containers": {}}}}}),
            "map[spec:map[template:map[spec:map[containers:map[]]]]]",
            "cannot restore slice from map",
        ),
        (json!({"spec": []}), "map[spec:[]]", "cannot restore struct from: slice"),
        (
            json!({"metadata": {"labels": {"a": 1}}}),
            "map[metadata:map[labels:map[a:1]]]",
            "cannot convert int64 to string",
        ),
        (json!({"kind": 5}), "map[kind:5]", "cannot convert int64 to string"),
        (
            json!({"spec": {"replicas": [1, 2.5, 1e21, 0.00001, null, true]}}),
            "map[spec:map[replicas:[1 2.5 1e+21 1e-05 <nil> true]]]",
            "unrecognized type: int32",
        ),
    ] {
        let path = format!("{DEPLOYMENT}?fieldValidation=Ignore");
        let refused = api.patch("strategic-merge", &path, patch.clone()).await.expect(422);
        let told = format!("Invalid value: \"{shown}\": {why}");
        assert_eq!(refused.message(), format!(" \"\" is invalid: patch: {told}"));
        let causes = json!([{"reason": "FieldValueInvalid", "message": told, "field": "patch"}]);
        assert_eq!(refused.body["details"], json!({"causes": causes}), "{patch}");
    }
    let scale = json!({"spec": {"replicas": "a"}});
    let refused = api.patch("strategic-merge", &format!("{DEPLOYMENT}/scale"), scale).await.expect(422);
    assert!(refused.message().ends_with(": unrecognized type: int32"), "{}", refused.text);
}

#[tokio::test]
async fn strategic_patches_are_restored_as_go_converts_them() {
    let api = world().await;
    let replicas = |text: &'static str| format!("{{\"spec\":{{\"replicas\":{text}}}}}");
    for (sent, held) in [("2.0", 2), ("1e2", 100), ("4294967298", 2)] {
        let media = [("content-type", "application/strategic-merge-patch+json")];
        let reply = api.call("PATCH", DEPLOYMENT, &media, replicas(sent)).await.expect(200);
        assert_eq!(reply.body["spec"]["replicas"], held, "{sent}");
    }
    // The kind in the patch does not count.
    let kind = json!({"kind": "Foo", "apiVersion": "v7", "spec": {"replicas": 4}});
    let reply = api.patch("strategic-merge", DEPLOYMENT, kind).await.expect(200);
    assert_eq!((&reply.body["kind"], &reply.body["spec"]["replicas"]), (&json!("Deployment"), &json!(4)));
    // Other patches make a text, which is decoded.
    let refused = api.patch("merge", DEPLOYMENT, json!({"kind": "Foo"})).await.expect(422);
    assert!(refused.message().contains("no kind \"Foo\" is registered for version \"apps/v1\""));
}

#[tokio::test]
async fn lists_of_several_types_are_not_merged() {
    let api = world().await;
    let patch = json!({"spec": {"template": {"spec": {"containers": ["x"]}}}});
    let refused = api.patch("strategic-merge", DEPLOYMENT, patch).await.expect(500);
    assert!(
        refused.message().starts_with("list element types are not identical: [[map["),
        "{}",
        refused.text
    );
    assert!(refused.message().ends_with("]] [x]]"), "{}", refused.text);
}

#[tokio::test]
async fn strictness_names_what_a_patch_misplaces() {
    let api = world().await;
    let strict = format!("{DEPLOYMENT}?fieldValidation=Strict");
    let media = |kind: &str| format!("application/{kind}-patch+json");
    for (kind, patch, shown, why) in [
        (
            "strategic-merge",
            r#"{"spec":{"foo":1,"bar":{},"template":{"spec":{"a":1}}}}"#,
            "map[spec:map[bar:map[] foo:1 template:map[spec:map[a:1]]]]",
            "unknown field \"spec.bar\", unknown field \"spec.foo\", unknown field \"spec.template.spec.a\"",
        ),
        (
            "strategic-merge",
            r#"{"spec":{"replicas":3,"replicas":4,"zzz":1}}"#,
            "map[spec:map[replicas:4 zzz:1]]",
            "duplicate field \"spec.replicas\", unknown field \"spec.zzz\"",
        ),
        (
            "json",
            r#"[{"op":"replace","path":"/spec/replicas","value":5,"foo":6}]"#,
            "{",
            "json patch unknown field \"[0].foo\"",
        ),
        ("json", r#"[{"op":"copy","from":"/nope","path":"/spec/x"}]"#, "{", "unknown field \"spec.x\""),
    ] {
        let media = media(kind);
        let refused =
            api.call("PATCH", &strict, &[("content-type", media.as_str())], patch).await.expect(422);
        let begin = format!(" \"\" is invalid: patch: Invalid value: \"{shown}");
        assert!(refused.message().starts_with(&begin), "{patch}: {}", refused.text);
        assert!(refused.message().ends_with(&format!("strict decoding error: {why}")), "{}", refused.text);
    }
}

#[tokio::test]
async fn patches_that_are_not_read_strictly_are_refused_in_other_words() {
    let api = world().await;
    let path = format!("{DEPLOYMENT}?fieldValidation=Ignore");
    for (kind, patch, code, why) in [
        ("json", "{}", 400, "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
        ("json", "[3]", 400, "json: cannot unmarshal number into Go value of type jsonpatch.Operation"),
        ("json", r#"[{"op":5}]"#, 422, "the server rejected our request due to an error in our request"),
        ("merge", "3", 400, "Invalid JSON Patch"),
        ("merge", "\"a\"", 400, "Invalid JSON Patch"),
    ] {
        let media = format!("application/{kind}-patch+json");
        let refused = api.call("PATCH", &path, &[("content-type", media.as_str())], patch).await.expect(code);
        assert_eq!(refused.message(), why, "{kind} {patch}");
    }
    // A list instead of the object.
    let refused = api.patch("merge", &path, json!([])).await.expect(422);
    let told = refused.message();
    assert!(
        told.contains("patch: Invalid value: \"[]\": couldn't get version/kind; json parse error"),
        "{told}"
    );
}

#[tokio::test]
async fn a_copy_of_what_is_not_there_is_null_and_a_replacement_adds_it() {
    let api = Api::start().await;
    api.config_map("m", json!({})).await;
    let patch = json!([{"op": "copy", "from": "/none", "path": "/data/b"}]);
    let path = "/api/v1/namespaces/default/configmaps/m";
    let reply = api.patch("json", path, patch).await.expect(200);
    assert_eq!(reply.body["data"], json!({"a": "1", "b": ""}));
    let patch = json!([{"op": "replace", "path": "/data/c", "value": "3"}]);
    let reply = api.patch("json", path, patch).await.expect(200);
    assert_eq!(reply.body["data"], json!({"a": "1", "b": "", "c": "3"}));
    let patch = json!([{"op": "replace", "path": "/none/c", "value": "3"}]);
    assert_eq!(api.patch("json", path, patch).await.expect(422).body["details"], json!({}));
    let patch = json!([{"op": "copy", "from": "/none/x", "path": "/data/b"}]);
    assert_eq!(api.patch("json", path, patch).await.expect(422).body["details"], json!({}));
    assert_eq!(api.get(path).await.body["kind"], Value::from("ConfigMap"));
}
