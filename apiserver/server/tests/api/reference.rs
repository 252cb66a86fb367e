//! Tests of answers that were compared, request by request, with those of Kubernetes' own generic API server
//! of 1.36, where they differed.

use serde_json::{Value, json};

use crate::api::crds::{establish, widgets};
use crate::api::harness::{Api, Reply};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const IMMUTABLE: &str = "field is immutable";

fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"color": "red"}})
}

async fn with_widgets() -> Api {
    let api = Api::start().await;
    establish(&api, widgets()).await;
    api
}

/// A widget as it is, with one field of its metadata as given.
async fn with(api: &Api, name: &str, field: &str, value: Value) -> Value {
    let mut object = api.get(&format!("{WIDGETS}/{name}")).await.expect(200).body;
    object["metadata"][field] = value;
    object
}

fn causes(reply: &Reply) -> usize {
    reply.body["details"]["causes"].as_array().map_or(0, Vec::len)
}

#[tokio::test(start_paused = true)]
async fn custom_resources_are_changed_only_at_a_version() {
    let api = with_widgets().await;
    let path = format!("{WIDGETS}/a");
    // A missing object is not found, even if there are other errors.
    api.put(&path, widget("a")).await.expect(404);
    api.post(WIDGETS, widget("a")).await.expect(201);
    let wanted = "widgets.example.com \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be \
                  specified for an update";
    for version in [Value::Null, "".into(), "0".into()] {
        let object = with(&api, "a", "resourceVersion", version.clone()).await;
        let refused = api.put(&path, object.clone()).await.expect(422);
        assert_eq!((refused.message(), refused.body["details"]["kind"].as_str()), (wanted, Some("widgets")));
        let status = api.put(&format!("{path}/status"), object).await.expect(422);
        assert_eq!(status.message(), wanted);
        let patch = json!({"metadata": {"resourceVersion": version}});
        assert_eq!(api.patch("merge", &path, patch).await.expect(422).message(), wanted);
    }
    let removed = json!([{"op": "remove", "path": "/metadata/resourceVersion"}]);
    assert_eq!(api.patch("json", &path, removed).await.expect(422).message(), wanted);
    // The uid comes first.
    let mut object = with(&api, "a", "uid", "other".into()).await;
    object["metadata"]["resourceVersion"] = "0".into();
    let refused = api.put(&path, object).await.expect(409);
    assert!(
        refused.message().contains(
            "StorageError: invalid object, Code: 4, Key: /registry/example.com/widgets/default/a, \
             ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: other, "
        ),
        "{}",
        refused.text
    );
    for version in ["abc", "-1", "1.5"] {
        let refused =
            api.put(&path, with(&api, "a", "resourceVersion", version.into()).await).await.expect(500);
        assert_eq!(refused.message(), format!("strconv.ParseUint: parsing \"{version}\": invalid syntax"));
        assert_eq!(refused.body.get("reason"), None, "{}", refused.text);
    }
    let got = api.get(&format!("{path}?resourceVersion=x")).await.expect(500);
    assert_eq!(
        got.message(),
        "resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax"
    );
    // Kinds that do not ask for a version go on as they did.
    api.config_map("m", json!({})).await;
    let map = json!({"metadata": {"name": "m", "resourceVersion": "0"}, "data": {"a": "2"}});
    api.put(&format!("{MAPS}/m"), map).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn server_set_fields_are_treated_as_in_kubernetes() {
    let api = with_widgets().await;
    let path = format!("{WIDGETS}/a");
    api.post(WIDGETS, widget("a")).await.expect(201);
    api.config_map("m", json!({})).await;
    for (place, kind) in
        [(path.as_str(), "Widget.example.com \"a\""), (&format!("{MAPS}/m"), "ConfigMap \"m\"")]
    {
        for (field, value) in [("uid", "other"), ("deletionTimestamp", "2001-01-01T00:00:00Z")] {
            let refused = api.patch("merge", place, json!({"metadata": {field: value}})).await.expect(422);
            let wanted =
                format!("{kind} is invalid: metadata.{field}: Invalid value: \"{value}\": {IMMUTABLE}");
            assert_eq!(refused.message(), wanted);
            assert_eq!(causes(&refused), 2);
        }
        // A name's base is the client's own.
        let named = api.patch("merge", place, json!({"metadata": {"generateName": "x-"}})).await.expect(200);
        assert_eq!(named.body["metadata"]["generateName"], "x-");
        let unnamed =
            api.patch("merge", place, json!({"metadata": {"generateName": null}})).await.expect(200);
        assert_eq!(unnamed.body["metadata"].get("generateName"), None);
    }
    let object = with(&api, "a", "deletionTimestamp", "2001-01-01T00:00:00Z".into()).await;
    api.put(&path, object).await.expect(422);
    // A marked object keeps its mark in every update.
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    api.patch("merge", &path, held).await.expect(200);
    let marked = api.delete(&path, Value::Null).await.expect(200).body;
    let object = with(&api, "a", "deletionTimestamp", "2001-01-01T00:00:00Z".into()).await;
    let kept = api.put(&path, object).await.expect(200).body;
    assert_eq!(kept["metadata"]["deletionTimestamp"], marked["metadata"]["deletionTimestamp"]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_of_managers_takes_none_away() {
    let api = with_widgets().await;
    let path = format!("{WIDGETS}/a");
    let made = api.post(WIDGETS, widget("a")).await.expect(201).body;
    let before = &made["metadata"]["managedFields"];
    assert!(before.is_array());
    let empty = json!({"metadata": {"managedFields": []}});
    let kept = api.patch("merge", &path, empty).await.expect(200).body;
    assert_eq!(&kept["metadata"]["managedFields"], before);
    let kept = api.put(&path, with(&api, "a", "managedFields", json!([])).await).await.expect(200).body;
    assert_eq!(&kept["metadata"]["managedFields"], before);
    let reset = json!({"metadata": {"managedFields": [{}]}});
    let gone = api.patch("merge", &path, reset).await.expect(200).body;
    assert_eq!(gone["metadata"].get("managedFields"), None);
}

#[tokio::test(start_paused = true)]
async fn owners_that_are_named_twice_are_kept_once() {
    let api = with_widgets().await;
    let owner = json!({"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1"});
    let other = json!({"apiVersion": "v1", "kind": "B", "name": "b", "uid": "2"});
    let mut object = widget("a");
    object["metadata"]["ownerReferences"] = json!([owner, other, owner]);
    let made = api.post(WIDGETS, object).await.expect(201);
    assert_eq!(made.body["metadata"]["ownerReferences"], json!([owner, other]));
    let warning = made.headers["warning"].to_str().unwrap();
    assert!(warning.ends_with("duplicate UID(s) observed: 1\""), "{warning}");
    let twice = json!({"metadata": {"ownerReferences": [other, other]}});
    let changed = api.patch("merge", &format!("{WIDGETS}/a"), twice).await.expect(200);
    assert_eq!(changed.body["metadata"]["ownerReferences"], json!([other]));
    assert!(changed.headers["warning"].to_str().unwrap().ends_with("duplicate UID(s) observed: 2\""));
}

#[tokio::test(start_paused = true)]
async fn malformed_delete_options_delete_nothing() {
    let api = with_widgets().await;
    let path = format!("{WIDGETS}/a");
    api.post(WIDGETS, widget("a")).await.expect(201);
    let unreadable = |what: &str, field: &str, wanted: &str| {
        format!("json: cannot unmarshal {what} into Go struct field {field} of type {wanted}")
    };
    let table = [
        (
            json!({"gracePeriodSeconds": "x"}),
            unreadable("string", "DeleteOptions.gracePeriodSeconds", "int64"),
        ),
        (
            json!({"gracePeriodSeconds": 1.5}),
            unreadable("number 1.5", "DeleteOptions.gracePeriodSeconds", "int64"),
        ),
        (
            json!({"propagationPolicy": 1}),
            unreadable("number", "DeleteOptions.propagationPolicy", "v1.DeletionPropagation"),
        ),
        (
            json!({"preconditions": {"uid": 1}}),
            unreadable("number", "Preconditions.preconditions.uid", "types.UID"),
        ),
        (json!({"dryRun": "All"}), unreadable("string", "DeleteOptions.dryRun", "[]string")),
        (
            json!({"kind": "Foo", "apiVersion": "v1"}),
            "no kind \"Foo\" is registered for version \"v1\" in scheme \
             \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\""
                .to_owned(),
        ),
    ];
    for (options, message) in table {
        assert_eq!(api.delete(&path, options).await.expect(400).message(), message);
    }
    for body in ["[]", "\"x\"", "3"] {
        let json = [("content-type", "application/json")];
        let refused = api.call("DELETE", &path, &json, body).await.expect(400);
        assert!(
            refused.message().starts_with("couldn't get version/kind; json parse error: "),
            "{}",
            refused.text
        );
    }
    for (query, code) in [
        ("gracePeriodSeconds=", 400),
        ("gracePeriodSeconds=x", 400),
        ("propagationPolicy=", 422),
        ("dryRun=Foo", 422),
        ("dryRun=All&dryRun=Foo", 422),
    ] {
        api.delete(&format!("{path}?{query}"), Value::Null).await.expect(code);
    }
    api.call("DELETE", &path, &[("accept", "text/html")], "").await.expect(406);
    api.get(&path).await.expect(200);
    // With a body the query is ignored.
    let both = api.delete(&format!("{path}?dryRun=Foo"), json!({"dryRun": ["All"]})).await.expect(200);
    assert_eq!(both.body["status"], "Success");
    api.get(&path).await.expect(200);
    api.delete(&format!("{path}?dryRun=All"), json!({})).await.expect(200);
    api.get(&path).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn preconditions_of_deletions_are_refused_in_the_words_of_kubernetes() {
    let api = with_widgets().await;
    let made = api.post(WIDGETS, widget("a")).await.expect(201).body;
    let (uid, version) = (&made["metadata"]["uid"], &made["metadata"]["resourceVersion"]);
    let (uid, version) = (uid.as_str().unwrap(), version.as_str().unwrap());
    let path = format!("{WIDGETS}/a");
    let wrong = json!({"preconditions": {"uid": "x", "resourceVersion": "1"}});
    let refused = api.delete(&path, wrong.clone()).await.expect(409);
    assert_eq!(
        refused.message(),
        format!(
            "Operation cannot be fulfilled on Widget.example.com \"a\": the UID in the precondition (x) does not \
             match the UID in record ({uid}). The object might have been deleted and then recreated"
        )
    );
    let refused = api.delete(&path, json!({"preconditions": {"resourceVersion": "1"}})).await.expect(409);
    assert_eq!(
        refused.message(),
        format!(
            "Operation cannot be fulfilled on Widget.example.com \"a\": the ResourceVersion in the precondition \
             (1) does not match the ResourceVersion in record ({version}). The object might have been modified"
        )
    );
    // They hold for each of many.
    api.delete(WIDGETS, wrong).await.expect(409);
    api.get(&path).await.expect(200);
    api.delete(WIDGETS, json!({"preconditions": {"uid": uid}})).await.expect(200);
    api.get(&path).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_collection_goes_page_by_page_and_is_shown_as_asked() {
    let api = with_widgets().await;
    for name in ["a", "b", "c", "d"] {
        api.post(WIDGETS, widget(name)).await.expect(201);
    }
    let page = api.delete(&format!("{WIDGETS}?limit=1"), Value::Null).await.expect(200);
    assert_eq!(page.names(), ["a"]);
    assert_eq!(page.body["metadata"]["remainingItemCount"], 3);
    let token = page.body["metadata"]["continue"].as_str().unwrap();
    let next = api.delete(&format!("{WIDGETS}?limit=1&continue={token}"), Value::Null).await.expect(200);
    assert_eq!(next.names(), ["b"]);
    api.delete(&format!("{WIDGETS}?continue=x"), Value::Null).await.expect(400);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let dry = api.call("DELETE", &format!("{WIDGETS}?dryRun=All"), &table, "").await.expect(200);
    assert_eq!(
        (dry.body["kind"].as_str(), dry.body["rows"].as_array().map(Vec::len)),
        (Some("Table"), Some(2))
    );
    let metadata = [("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")];
    let gone = api.call("DELETE", WIDGETS, &metadata, "").await.expect(200);
    assert_eq!(
        (gone.body["kind"].as_str(), gone.names()),
        (Some("PartialObjectMetadataList"), vec!["c", "d"])
    );
    // An empty list of custom resources states that nothing follows.
    let left = api.get(WIDGETS).await.expect(200);
    assert_eq!((left.names().len(), &left.body["metadata"]["continue"]), (0, &json!("")));
    assert_eq!(api.get(MAPS).await.expect(200).body["metadata"].get("continue"), None);
}

#[tokio::test(start_paused = true)]
async fn scale_of_custom_resources_is_judged_by_their_schema() {
    let api = with_widgets().await;
    api.post(WIDGETS, widget("a")).await.expect(201);
    let path = format!("{WIDGETS}/a/scale");
    let scale = |replicas: Value| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": replicas}});
    let refused = api.put(&path, scale(json!(-1))).await.expect(422);
    assert_eq!(
        refused.message(),
        "Widget.example.com \"a\" is invalid: [spec.replicas: Invalid value: -1: spec.replicas in body should be \
         greater than or equal to 0, .spec.replicas: Invalid value: -1: should be a non-negative integer]"
    );
    let refused = api.patch("strategic-merge", &path, json!({})).await.expect(415);
    assert!(
        refused.message().ends_with(
            "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
        ),
        "{}",
        refused.text
    );
    assert_eq!(api.put(&path, scale(Value::Null)).await.expect(200).body["spec"], json!({}));
    assert_eq!(api.get(&format!("{WIDGETS}/a")).await.expect(200).body["spec"]["replicas"], 0);
}

#[tokio::test(start_paused = true)]
async fn numbers_are_judged_as_kubernetes_judges_them() {
    let api = Api::start().await;
    let mut definition = widgets();
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let fields = definition.pointer_mut(spec).unwrap();
    fields["ratio"] = json!({"type": "number", "multipleOf": 0.25});
    fields["date"] = json!({"type": "string", "format": "date-time"});
    establish(&api, definition).await;
    let table = [
        (
            json!({"replicas": 1.5}),
            "[spec.replicas: Invalid value: \"number\": spec.replicas in body must be of type integer: \"number\", \
             <nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.replicas, \
             .spec.replicas: Invalid value: 0: .spec.replicas accessor error: 1.5 is of the type float64, expected \
             int64]",
        ),
        (
            json!({"replicas": "x"}),
            "[spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\", \
             .spec.replicas: Invalid value: 0: .spec.replicas accessor error: x is of the type string, expected \
             int64]",
        ),
        (
            json!({"ratio": 1}),
            "spec.ratio: Invalid value: 0: factor MultipleOf declared for spec.ratio must be positive: 0",
        ),
        (
            json!({"date": "x"}),
            "spec.date: Invalid value: \"x\": spec.date in body must be of type date-time: \"x\"",
        ),
    ];
    for (fields, message) in table {
        let mut object = widget("a");
        object["spec"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let refused = api.post(WIDGETS, object).await.expect(422);
        let wanted = format!("Widget.example.com \"a\" is invalid: {message}");
        assert!(refused.message().starts_with(&wanted), "{}", refused.text);
    }
    let mut object = widget("a");
    object["spec"]["ratio"] = json!(0.5);
    api.post(WIDGETS, object).await.expect(201);
    let mut object = widget("b");
    object["spec"] = "s".into();
    let refused = api.post(WIDGETS, object).await.expect(422);
    assert!(
        refused.message().contains(
            ".spec.replicas: Invalid value: 0: .spec.replicas accessor error: s is of the type string, expected \
             map[string]interface{}"
        ),
        "{}",
        refused.text
    );
}

#[tokio::test(start_paused = true)]
async fn metadata_is_judged_before_and_with_the_rest() {
    let api = with_widgets().await;
    api.post(WIDGETS, widget("a")).await.expect(201);
    let path = format!("{WIDGETS}/a");
    let labels = json!({"metadata": {"labels": {"a b": "1"}}});
    let refused = api.patch("merge", &path, labels).await.expect(422);
    assert_eq!(causes(&refused), 2, "{}", refused.text);
    assert_eq!(refused.message().matches("metadata.labels").count(), 1, "{}", refused.text);
    let mut object = widget("b");
    object["metadata"]["labels"] = json!({"a": 1});
    assert_eq!(
        api.post(WIDGETS, object).await.expect(400).message(),
        "Widget in version \"v1\" cannot be handled as a Widget: json: cannot unmarshal number into Go struct \
         field ObjectMeta.labels of type string"
    );
    let mut object = widget("b");
    object["metadata"] = Value::Null;
    let refused = api.post(WIDGETS, object).await.expect(422);
    assert!(
        refused.message().contains("metadata.name: Required value: name or generateName is required"),
        "{}",
        refused.text
    );
    for path in [WIDGETS, MAPS] {
        let watch = api.get(&format!("{path}?watch=1&resourceVersion=x")).await.expect(500);
        assert!(watch.message().starts_with("resourceVersion: Invalid value: \"x\": "), "{}", watch.text);
    }
    let kinds = api.get("/apis/example.com/v1").await.expect(200);
    assert_eq!(
        kinds.body["resources"][0]["verbs"],
        json!(["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"])
    );
    // Deletion does not change a definition's generation.
    let dry = api.delete(&format!("{CRDS}/widgets.example.com?dryRun=All"), Value::Null).await.expect(200);
    assert_eq!((&dry.body["metadata"]["generation"], dry.code), (&json!(1), 200));
}

#[tokio::test(start_paused = true)]
async fn definitions_are_refused_in_the_words_of_kubernetes() {
    let api = with_widgets().await;
    let empty = api.post(CRDS, json!({})).await.expect(422);
    assert!(
        empty
            .message()
            .contains("[metadata.name: Required value: name or generateName is required, spec.group: "),
        "{}",
        empty.text
    );
    assert!(
        empty.message().contains("status.storedVersions: Invalid value: null: must have at least one"),
        "{}",
        empty.text
    );
    let mut hooked = widgets();
    hooked["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "", "namespace": "", "path": "x//y"}}}});
    let path = "spec.conversion.webhookClientConfig.service";
    let wanted = format!(
        "[{path}.name: Required value, {path}.namespace: Required value, {path}.path: Invalid value: \"x//y\": must \
         start with a '/', {path}.path: Invalid value: \"x//y\": segment[1] may not be empty]"
    );
    let refused = api.post(&format!("{CRDS}?dryRun=All"), hooked.clone()).await.expect(422);
    assert!(refused.message().ends_with(&wanted), "{}", refused.text);
    hooked["spec"]["conversion"]["webhook"]["clientConfig"] = json!({"url": "https://x/?q=1#f"});
    let refused = api.post(&format!("{CRDS}?dryRun=All"), hooked).await.expect(422);
    assert!(refused.message().contains("Invalid value: \"q=1\": query parameters"), "{}", refused.text);
    // Stored versions are not forgotten by leaving them out.
    let path = format!("{CRDS}/widgets.example.com");
    let mut stored = api.get(&path).await.expect(200).body;
    stored["status"]["storedVersions"] = json!([]);
    let kept = api.put(&format!("{path}/status"), stored).await.expect(200);
    assert_eq!(kept.body["status"]["storedVersions"], json!(["v1"]));
}
