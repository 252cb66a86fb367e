//! Create, update, patch, delete.

use std::time::Duration;

use apiserver_kinds::builtin;
use apiserver_registry::{Registry, Resource};
use apiserver_server::ServerConfig;
use serde_json::{Value, json};

use crate::api::crds::{establish, widgets};
use crate::api::harness::{Api, deployment, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test(start_paused = true)]
async fn create_fills_in_and_refuses_a_second_object_of_the_name() {
    let api = Api::start().await;
    let made = api.post(DEPLOYMENTS, deployment("web")).await.expect(201);
    assert_eq!(made.body["metadata"]["generation"], 1);
    assert_eq!(made.body["metadata"]["namespace"], "default");
    assert_eq!(made.body["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert!(made.body["metadata"]["creationTimestamp"].is_string());
    assert_eq!(made.body["spec"]["strategy"]["type"], "RollingUpdate");
    let got = api.get(&format!("{DEPLOYMENTS}/web")).await.expect(200);
    assert_eq!(got.body, made.body);
    let again = api.post(DEPLOYMENTS, deployment("web")).await.expect(409);
    assert_eq!(again.reason(), "AlreadyExists");
    assert_eq!(again.message(), "deployments.apps \"web\" already exists");
    assert_eq!(again.body["details"]["kind"], "deployments");
}

#[tokio::test(start_paused = true)]
async fn names_are_generated() {
    let api = Api::start().await;
    let map = json!({"metadata": {"generateName": "m-"}});
    let one = api.post(MAPS, map.clone()).await.expect(201);
    let two = api.post(MAPS, map).await.expect(201);
    let name = |r: &crate::api::harness::Reply| r.body["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name(&one).starts_with("m-") && name(&one).len() == 7);
    assert_ne!(name(&one), name(&two));
    // One that has both may have been made of the base, so that another try makes another one.
    let both = json!({"metadata": {"name": name(&one), "generateName": "m-"}});
    for query in ["", "?dryRun=All"] {
        let taken = api.post(&format!("{MAPS}{query}"), both.clone()).await.expect(409);
        assert_eq!(taken.reason(), "AlreadyExists");
        let message = format!(
            "configmaps \"{}\" already exists, the server was not able to generate a unique name for the object",
            name(&one)
        );
        assert_eq!(taken.message(), message);
        assert_eq!(taken.body["details"]["retryAfterSeconds"], 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_dependents_of_a_job_stay_unless_somebody_says_otherwise() {
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    let api = Api::start().await;
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    for name in ["a", "b", "c"] {
        let job = json!({"metadata": {"name": name}, "spec": {"template": template}});
        api.post(JOBS, job).await.expect(201);
    }
    let kept = api.delete(&format!("{JOBS}/a"), Value::Null).await.expect(200);
    assert_eq!(kept.body["metadata"]["finalizers"], json!(["orphan"]), "{}", kept.text);
    let warning = kept.headers["warning"].to_str().unwrap();
    assert!(warning.contains("child pods are preserved by default when jobs are deleted"), "{warning}");
    let gone = api.delete(&format!("{JOBS}/b"), json!({"propagationPolicy": "Background"})).await.expect(200);
    assert!(!gone.headers.contains_key("warning"));
    api.get(&format!("{JOBS}/b")).await.expect(404);
    let rest = api.delete(JOBS, Value::Null).await.expect(200);
    assert!(rest.headers.contains_key("warning"));
    let c = api.get(&format!("{JOBS}/c")).await.expect(200).body;
    assert_eq!(c["metadata"]["finalizers"], json!(["orphan"]));
}

#[tokio::test(start_paused = true)]
async fn the_grace_of_a_deletion_is_not_the_clients_to_change() {
    let api = Api::start().await;
    let mut map = api.post(MAPS, json!({"metadata": {"name": "m", "finalizers": ["example.com/x"]}})).await;
    map.body["metadata"]["deletionGracePeriodSeconds"] = 5.into();
    let path = format!("{MAPS}/m");
    let refused = api.put(&path, map.body.clone()).await.expect(422);
    assert!(
        refused
            .message()
            .contains("metadata.deletionGracePeriodSeconds: Invalid value: 5: field is immutable"),
        "{}",
        refused.text
    );
    let going = api.delete(&path, Value::Null).await.expect(200).body;
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 0);
    // An update that sends back the fields as read, or leaves them out, does not change them.
    api.put(&path, going.clone()).await.expect(200);
    let mut without = going;
    without["metadata"].as_object_mut().unwrap().remove("deletionGracePeriodSeconds");
    let kept = api.put(&path, without).await.expect(200).body;
    assert_eq!(kept["metadata"]["deletionGracePeriodSeconds"], 0);
}

#[tokio::test(start_paused = true)]
async fn bad_requests_have_the_status_of_kubernetes_and_store_nothing() {
    let api = Api::start().await;
    let mut wrong_type = deployment("a");
    wrong_type["spec"]["replicas"] = "two".into();
    let mut unnamed = deployment("a");
    unnamed["metadata"] = json!({});
    let mut no_selector = deployment("a");
    no_selector["spec"]["selector"] = json!({"matchLabels": {"app": "other"}});
    let mut elsewhere = deployment("a");
    elsewhere["metadata"]["namespace"] = "kube-system".into();
    let mut other_kind = deployment("a");
    other_kind["kind"] = "Pod".into();
    let mut versioned = deployment("a");
    versioned["metadata"]["resourceVersion"] = "5".into();
    let table: [(&str, Value, u16, &str); 8] = [
        (DEPLOYMENTS, wrong_type, 400, "cannot be handled as a Deployment: json: cannot unmarshal string"),
        (DEPLOYMENTS, unnamed, 422, "name or generateName is required"),
        (DEPLOYMENTS, no_selector, 422, "`selector` does not match template `labels`"),
        (DEPLOYMENTS, elsewhere, 400, "does not match the namespace sent on the request"),
        (DEPLOYMENTS, other_kind, 400, "no kind \"Pod\" is registered for version \"apps/v1\""),
        (DEPLOYMENTS, versioned, 500, "resourceVersion should not be set"),
        ("/apis/apps/v1/namespaces/default/frobs", json!({}), 404, "could not find the requested resource"),
        (
            "/api/v1/namespaces/missing/configmaps",
            json!({"metadata": {"name": "a"}}),
            404,
            "namespaces \"missing\" not found",
        ),
    ];
    for (path, body, code, message) in table {
        let reply = api.post(path, body).await.expect(code);
        assert_eq!(reply.body["kind"], "Status");
        assert_eq!(reply.body["status"], "Failure");
        assert!(reply.message().contains(message), "{}", reply.text);
    }
    let causes = api.post(DEPLOYMENTS, json!({"metadata": {"name": "A_B"}})).await.expect(422);
    assert!(!causes.body["details"]["causes"].as_array().unwrap().is_empty());
    assert_eq!(api.get(DEPLOYMENTS).await.expect(200).names(), Vec::<&str>::new());
}

#[tokio::test(start_paused = true)]
async fn bodies_are_limited_and_typed() {
    let api = Api::start().await;
    let json = [("content-type", "application/json")];
    api.call("POST", MAPS, &json, "{").await.expect(400);
    api.call("POST", MAPS, &json, "[]").await.expect(400);
    api.call("POST", MAPS, &json, "").await.expect(400);
    let huge = format!(r#"{{"metadata":{{"name":"a"}},"data":{{"x":"{}"}}}}"#, "x".repeat(3 << 20));
    let reply = api.call("POST", MAPS, &json, huge).await.expect(413);
    assert_eq!(reply.reason(), "RequestEntityTooLarge");
    let protobuf = [("content-type", "application/vnd.kubernetes.protobuf")];
    api.call("POST", MAPS, &protobuf, "k8s\0").await.expect(400);
    // A ConfigMap called "pb" with the data {"a": "1"}.
    let map = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x0e\x0a\x04\x0a\x02pb\x12\x06\x0a\x01a\x12\x011";
    let made = api.call("POST", MAPS, &protobuf, &map[..]).await.expect(201);
    assert_eq!((&made.body["metadata"]["name"], &made.body["data"]["a"]), (&json!("pb"), &json!("1")));
    api.call("POST", MAPS, &[("content-type", "application/cbor")], "").await.expect(415);
    let yaml = "metadata:\n  name: from-yaml\ndata:\n  a: \"1\"\n";
    let made = api.call("POST", MAPS, &[("content-type", "application/yaml")], yaml).await.expect(201);
    assert_eq!(made.body["data"]["a"], "1");
    api.get_as(MAPS, "application/cbor").await.expect(406);
    api.get_as(MAPS, "application/vnd.kubernetes.protobuf,application/json").await.expect(200);
    let text = api.get_as(&format!("{MAPS}/from-yaml"), "application/yaml").await.expect(200).text;
    assert!(text.contains("name: from-yaml"), "{text}");
    api.call("POST", &format!("{MAPS}/x"), &json, "{}").await.expect(405);
    api.call("PATCH", MAPS, &json, "{}").await.expect(405);
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_refused_warned_of_or_ignored() {
    let api = Api::start().await;
    let mut body = deployment("a");
    body["spec"]["foo"] = 1.into();
    let strict = api.post(&format!("{DEPLOYMENTS}?fieldValidation=Strict"), body.clone()).await.expect(400);
    assert!(
        strict.message().contains("strict decoding error: unknown field \"spec.foo\""),
        "{}",
        strict.text
    );
    let warned = api.post(DEPLOYMENTS, body.clone()).await.expect(201);
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"spec.foo\\\"\"");
    assert_eq!(warned.body["spec"].get("foo"), None);
    body["metadata"]["name"] = "b".into();
    let ignored = api.post(&format!("{DEPLOYMENTS}?fieldValidation=Ignore"), body).await.expect(201);
    assert_eq!(ignored.headers.get("warning"), None);
    let twice = r#"{"metadata":{"name":"c"},"data":{"a":"1","a":"2"}}"#;
    let reply = api
        .call(
            "POST",
            &format!("{MAPS}?fieldValidation=Strict"),
            &[("content-type", "application/json")],
            twice,
        )
        .await
        .expect(400);
    assert!(reply.message().contains("duplicate field \"data.a\""), "{}", reply.text);
}

#[tokio::test(start_paused = true)]
async fn misplaced_fields_are_named_in_the_order_of_the_document() {
    let api = Api::start().await;
    let body = r#"{"metadata":{"name":"a","name":"b","zone":1},"spec":{"zoned":1,"zoned":2,"paused":true,"paused":false,
        "selector":{"matchLabels":{"app":"a"}},"template":{"metadata":{"labels":{"app":"a"}},"spec":{"containers":
        [{"name":"c","image":"i","nested":1,"imagePullPolicy":"Always","imagePullPolicy":"Never"}]}},"area":1}}"#;
    let json = [("content-type", "application/json")];
    let named = "duplicate field \"metadata.name\", unknown field \"metadata.zone\", \
        unknown field \"spec.zoned\", duplicate field \"spec.paused\", \
        unknown field \"spec.template.spec.containers[0].nested\", \
        duplicate field \"spec.template.spec.containers[0].imagePullPolicy\", unknown field \"spec.area\"";
    let refused = api.call("POST", &format!("{DEPLOYMENTS}?fieldValidation=Strict"), &json, body).await;
    let message = refused.expect(400).message().to_owned();
    assert!(message.ends_with(&format!("strict decoding error: {named}")), "{message}");
    let warned = api.call("POST", DEPLOYMENTS, &json, body).await.expect(201);
    let warnings: Vec<String> =
        warned.headers.get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect();
    let wanted: Vec<String> = named.split(", ").map(|text| format!("299 - {text:?}")).collect();
    assert_eq!(warnings, wanted);
}

#[tokio::test(start_paused = true)]
async fn dry_runs_store_nothing() {
    let api = Api::start().await;
    let before = api.store.revision().await.unwrap();
    let map = json!({"metadata": {"name": "a"}});
    api.post(&format!("{MAPS}?dryRun=All"), map.clone()).await.expect(201);
    api.post(&format!("{MAPS}?dryRun=Some"), map).await.expect(422);
    api.get(&format!("{MAPS}/a")).await.expect(404);
    assert_eq!(api.store.revision().await.unwrap(), before);
    api.config_map("b", json!({})).await;
    api.put(&format!("{MAPS}/b?dryRun=All"), json!({"metadata": {"name": "b"}, "data": {"x": "y"}}))
        .await
        .expect(200);
    api.delete(&format!("{MAPS}/b"), json!({"dryRun": ["All"]})).await.expect(200);
    assert_eq!(api.get(&format!("{MAPS}/b")).await.expect(200).body["data"], json!({"a": "1"}));
}

#[tokio::test(start_paused = true)]
async fn updates_are_optimistic_and_count_generations() {
    let api = Api::start().await;
    let path = format!("{DEPLOYMENTS}/web");
    let mut object = api.post(DEPLOYMENTS, deployment("web")).await.expect(201).body;
    let stale = object.clone();
    object["spec"]["replicas"] = 5.into();
    object["status"] = json!({"replicas": 99});
    object["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
    let updated = api.put(&path, object).await.expect(200).body;
    assert_eq!(updated["metadata"]["generation"], 2);
    assert_ne!(updated["status"]["replicas"], 99);
    assert_eq!(updated["metadata"]["creationTimestamp"], stale["metadata"]["creationTimestamp"]);
    let conflict = api.put(&path, stale.clone()).await.expect(409);
    assert_eq!(conflict.reason(), "Conflict");
    assert!(conflict.message().contains("the object has been modified; please apply your changes"));
    // Labels do not change the generation; an equal object is not written at all.
    let mut labelled = updated.clone();
    labelled["metadata"]["labels"] = json!({"x": "y"});
    let labelled = api.put(&path, labelled).await.expect(200).body;
    assert_eq!(labelled["metadata"]["generation"], 2);
    let same = api.put(&path, labelled.clone()).await.expect(200).body;
    assert_eq!(same["metadata"]["resourceVersion"], labelled["metadata"]["resourceVersion"]);
    // Without a resource version the last write wins.
    let mut unconditional = stale;
    unconditional["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(api.put(&path, unconditional.clone()).await.expect(200).body["metadata"]["generation"], 3);
    unconditional["metadata"]["uid"] = "another".into();
    assert!(
        api.put(&path, unconditional.clone()).await.expect(409).message().contains("UID in precondition")
    );
    unconditional["metadata"]["name"] = "other".into();
    assert!(
        api.put(&path, unconditional)
            .await
            .expect(400)
            .message()
            .contains("does not match the name on the URL")
    );
    api.put(&format!("{DEPLOYMENTS}/none"), deployment("none")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn the_three_patches() {
    let api = Api::start().await;
    let path = format!("{DEPLOYMENTS}/web");
    api.post(DEPLOYMENTS, deployment("web")).await.expect(201);
    let merged = api.patch("merge", &path, json!({"spec": {"replicas": 3}})).await.expect(200).body;
    assert_eq!((&merged["spec"]["replicas"], &merged["metadata"]["generation"]), (&json!(3), &json!(2)));
    let container = json!({"spec": {"template": {"spec": {"containers": [{"name": "d", "image": "j"}]}}}});
    let strategic = api.patch("strategic-merge", &path, container).await.expect(200).body;
    let names = |o: &Value| {
        let list = o["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        list.iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&strategic), ["d", "c"]);
    let operations = json!([{"op": "test", "path": "/spec/replicas", "value": 3},
        {"op": "remove", "path": "/spec/template/spec/containers/1"}]);
    assert_eq!(names(&api.patch("json", &path, operations).await.expect(200).body), ["d"]);
    let failing = json!([{"op": "test", "path": "/spec/replicas", "value": 1}]);
    assert_eq!(api.patch("json", &path, failing).await.expect(422).reason(), "Invalid");
    api.patch("json", &path, json!({"op": "x"})).await.expect(400);
    api.patch("merge", &path, json!([1])).await.expect(400);
    api.patch("merge", &path, json!({"metadata": {"resourceVersion": "1"}})).await.expect(409);
    api.patch("merge", &path, json!({"metadata": {"name": "x"}})).await.expect(400);
    api.patch("merge", &path, json!({"spec": {"replicas": -1}})).await.expect(422);
    api.patch("merge", &path, json!({"spec": {"replicas": "x"}})).await.expect(422);
    let unknown = [("content-type", "application/frob-patch+json")];
    let reply = api.call("PATCH", &path, &unknown, "{}").await.expect(415);
    assert!(reply.message().contains("application/apply-patch+yaml"), "{}", reply.text);
    let mut bomb =
        vec![json!({"op": "add", "path": "/metadata/annotations", "value": {"a": "x".repeat(100_000)}})];
    let copy = |i| json!({"op": "copy", "from": "/metadata/annotations/a", "path": format!("/metadata/annotations/b{i}")});
    bomb.extend((0..60).map(copy));
    api.patch("json", &path, json!(bomb)).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn patches_by_many_all_count() {
    let api = Api::start().await;
    api.config_map("m", json!({})).await;
    let path = format!("{MAPS}/m");
    let patches = (0..4).map(|i| {
        let (api, path) = (&api, &path);
        async move { api.patch("merge", path, json!({"data": {format!("k{i}"): "v"}})).await.code }
    });
    assert_eq!(futures::future::join_all(patches).await, [200; 4]);
    let data = api.get(&path).await.expect(200).body["data"].clone();
    assert_eq!(data.as_object().unwrap().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn deletion_honours_grace_finalizers_and_preconditions() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    api.post(pods, pod("p")).await.expect(201);
    let binding = json!({"target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{pods}/p/binding"), binding.clone()).await.expect(201);
    assert!(
        api.post(&format!("{pods}/p/binding"), binding)
            .await
            .expect(409)
            .message()
            .contains("already assigned")
    );
    let going = api.delete(&format!("{pods}/p"), Value::Null).await.expect(200);
    assert_eq!(going.body["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(api.get(&format!("{pods}/p")).await.expect(200).body["spec"]["nodeName"], "n1");
    api.delete(&format!("{pods}/p"), json!({"gracePeriodSeconds": 0})).await.expect(200);
    api.get(&format!("{pods}/p")).await.expect(404);
    api.post(pods, pod("q")).await.expect(201);
    api.delete(&format!("{pods}/q"), Value::Null).await.expect(200);
    api.get(&format!("{pods}/q")).await.expect(404);

    let map = json!({"metadata": {"name": "m", "finalizers": ["example.com/f"]}});
    let uid = api.post(MAPS, map).await.expect(201).body["metadata"]["uid"].clone();
    let path = format!("{MAPS}/m");
    api.delete(&path, json!({"preconditions": {"uid": "other"}})).await.expect(409);
    let marked = api.delete(&path, json!({"preconditions": {"uid": uid}})).await.expect(200);
    assert!(marked.body["metadata"]["deletionTimestamp"].is_string());
    api.patch("merge", &path, json!({"metadata": {"finalizers": []}})).await.expect(200);
    api.get(&path).await.expect(404);
    let gone = api.delete(&path, Value::Null).await.expect(404);
    assert_eq!(gone.message(), "configmaps \"m\" not found");

    api.post(DEPLOYMENTS, deployment("d")).await.expect(201);
    let status = api.delete(&format!("{DEPLOYMENTS}/d"), Value::Null).await.expect(200);
    assert_eq!((&status.body["kind"], &status.body["status"]), (&json!("Status"), &json!("Success")));
    api.post(DEPLOYMENTS, deployment("e")).await.expect(201);
    let held =
        api.delete(&format!("{DEPLOYMENTS}/e?propagationPolicy=Foreground"), Value::Null).await.expect(200);
    assert_eq!(held.body["metadata"]["finalizers"], json!(["foregroundDeletion"]));
}

#[tokio::test(start_paused = true)]
async fn collections_are_deleted_by_selector() {
    let api = Api::start().await;
    for (name, team) in [("a", "x"), ("b", "y"), ("c", "x")] {
        api.config_map(name, json!({"team": team})).await;
    }
    let deleted = api.delete(&format!("{MAPS}?labelSelector=team%3Dx"), Value::Null).await.expect(200);
    assert_eq!(deleted.names(), ["a", "c"]);
    assert_eq!(api.get(MAPS).await.expect(200).names(), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn events_are_one_store_under_two_versions() {
    let mut kinds: Vec<Resource> = builtin::registry().iter().map(|r| Resource::clone(r)).collect();
    if !kinds.iter().any(|r| r.group == "events.k8s.io") {
        let core = kinds.iter().find(|r| r.group.is_empty() && r.kind == "Event").unwrap().clone();
        let schema = "io.k8s.api.events.v1.Event".to_owned();
        kinds.push(Resource { group: "events.k8s.io".to_owned(), schema, ..core });
    }
    let api = Api::of_kinds(Registry::new(kinds)).await;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Started", "message": "hello", "type": "Normal", "source": {"component": "kubelet"}});
    api.post("/api/v1/namespaces/default/events", event).await.expect(201);
    let new = api.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.expect(200).body;
    assert_eq!((&new["note"], &new["regarding"]["name"]), (&json!("hello"), &json!("p")));
    assert_eq!(new["apiVersion"], "events.k8s.io/v1");
    let list = api.get("/apis/events.k8s.io/v1/events").await.expect(200);
    assert_eq!(list.names(), ["e"]);
    let core =
        api.get("/api/v1/events?fieldSelector=involvedObject.name%3Dp,source%3Dkubelet").await.expect(200);
    assert_eq!(core.names(), ["e"]);
}

/// Only Kubernetes' Events expire.
#[tokio::test(start_paused = true)]
async fn a_custom_kind_may_be_called_event_and_its_objects_stay() {
    let config = ServerConfig { event_ttl: Duration::from_secs(60), ..ServerConfig::default() };
    let api = Api::with(config).await;
    let mut definition = widgets();
    definition["metadata"]["name"] = "events.example.com".into();
    definition["spec"]["names"] = json!({"plural": "events", "kind": "Event"});
    establish(&api, definition).await;
    let path = "/apis/example.com/v1/namespaces/default/events";
    let event = json!({"apiVersion": "example.com/v1", "kind": "Event", "metadata": {"name": "e"},
        "spec": {"color": "red"}});
    api.post(path, event).await.expect(201);
    tokio::time::sleep(Duration::from_secs(180)).await;
    assert_eq!(api.get(path).await.expect(200).names(), ["e"]);
}
