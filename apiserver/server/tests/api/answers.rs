//! Tests of answers apart from their content: pages and statuses for paths that mean nothing, fields that are
//! always there, documents and options that are ignored.

use serde_json::{Value, json};

use crate::api::harness::{Api, deployment, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
const YAML: [(&str, &str); 1] = [("content-type", "application/yaml")];

#[tokio::test(start_paused = true)]
async fn paths_that_nobody_claims_are_a_page_and_kinds_that_are_none_a_status() {
    let api = Api::start().await;
    for path in [
        "/nothing",
        "/api2",
        "/apis/example.com",
        "/apis/example.com/v1",
        "/apis/example.com/v1/frobs",
        "/apis/example.com/v1/namespaces/default/frobs/a",
        "/livezz",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            let reply = api.call(method, path, &[], "").await.expect(404);
            assert_eq!(reply.text, "404 page not found\n", "{method} {path}");
            assert_eq!(reply.headers["content-type"], "text/plain; charset=utf-8");
            assert_eq!(reply.headers["x-content-type-options"], "nosniff");
        }
    }
    assert_eq!(api.get("/openapi/v3/apis/none/v1").await.expect(404).body, Value::Null);
    for path in [
        "/api/v2",
        "/api/v1/frobs",
        "/apis/apps/v9",
        "/apis/apps/v9/deployments",
        "/apis/apps/v1/frobs",
        "/apis/apps/v1/namespaces/default/frobs/a",
        "/version/x",
        // An empty part is the name of nothing.
        "/api/v1//namespaces",
        "/api//v1/namespaces",
        "/api/v1/namespaces/default//configmaps",
        "/api/v1/namespaces//configmaps",
        "/apis/apps//v1/deployments",
    ] {
        let reply = api.get(path).await.expect(404);
        let text = "the server could not find the requested resource";
        assert_eq!((reply.reason(), reply.message()), ("NotFound", text), "{path}");
        assert_eq!(reply.body["details"], json!({}));
    }
    api.get("/api/v1/namespaces/").await.expect(200);
    let reply = api.call("POST", "/version", &[], "").await.expect(405);
    assert_eq!(reply.message(), "the server does not allow this method on the requested resource");
}

#[tokio::test(start_paused = true)]
async fn methods_that_no_route_of_a_built_in_kind_has_are_405() {
    let api = Api::start().await;
    api.config_map("a", json!({})).await;
    let map = format!("{MAPS}/a");
    for path in [MAPS, &map, "/api/v1/pods", "/api/v1/namespaces/default/status"] {
        for method in ["HEAD", "OPTIONS", "TRACE"] {
            let reply = api.call(method, path, &[], "").await.expect(405);
            assert!(
                method == "HEAD" || reply.reason() == "MethodNotAllowed",
                "{method} {path}: {}",
                reply.text
            );
        }
    }
    for path in ["/livez", "/metrics", "/openapi/v2"] {
        assert_eq!(api.call("HEAD", path, &[], "").await.expect(200).text, "", "{path}");
    }
    let zip = [("accept-encoding", "gzip")];
    assert_eq!(api.call("GET", "/metrics", &zip, "").await.expect(200).headers["content-encoding"], "gzip");
}

#[tokio::test(start_paused = true)]
async fn whole_numbers_are_read_and_named_as_they_are_written() {
    let api = Api::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let with = |replicas: &str| {
        let mut object = deployment("a");
        object["spec"]["replicas"] = "@".into();
        object.to_string().replace("\"@\"", replicas)
    };
    let media = [("content-type", "application/json")];
    for number in ["1e2", "1.50", "100.0", "99999999999"] {
        let reply = api.call("POST", path, &media, with(number)).await.expect(400);
        let says = format!(
            "json: cannot unmarshal number {number} into Go struct field DeploymentSpec.spec.replicas of type int32"
        );
        assert!(reply.message().ends_with(&says), "{}", reply.text);
    }
    assert_eq!(api.call("POST", path, &media, with("-0")).await.expect(201).body["spec"]["replicas"], 0);
}

/// The value at a path, which must be there.
#[track_caller]
fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    object.pointer(path).unwrap_or_else(|| panic!("no {path} in {object}"))
}

type Fields = Vec<(&'static str, Option<Value>)>;

/// Collections, an object called `x` for each, and fields that it has: with this value, or with one that
/// is not null.
fn always() -> Vec<(&'static str, Value, Fields)> {
    let (plain, null, empty) = (json!({"metadata": {"name": "x"}}), || Some(Value::Null), || Some(json!({})));
    let with = |field: &str, value: Value| json!({"metadata": {"name": "x"}, field: value});
    let service = with("spec", json!({"ports": [{"port": 80}]}));
    let claim = with(
        "spec",
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}),
    );
    let event = json!({"metadata": {"name": "x", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default"}, "reason": "r", "type": "Normal"});
    vec![
        (ROLES, plain.clone(), vec![("/rules", null())]),
        (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
            with("rules", json!([])),
            vec![("/rules", null())],
        ),
        ("/api/v1/namespaces", plain.clone(), vec![("/spec/finalizers/0", None)]),
        (
            "/api/v1/nodes",
            plain.clone(),
            vec![("/status/daemonEndpoints/kubeletEndpoint/Port", None), ("/status/nodeInfo/bootID", None)],
        ),
        ("/api/v1/namespaces/default/services", service, vec![("/status/loadBalancer", empty())]),
        ("/api/v1/namespaces/default/persistentvolumeclaims", claim, vec![("/status/phase", None)]),
        (
            "/api/v1/namespaces/default/pods",
            pod("x"),
            vec![("/spec/containers/0/resources", empty()), ("/spec/securityContext", empty())],
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            deployment("x"),
            vec![("/spec/template/spec/containers/0/resources", empty()), ("/status", empty())],
        ),
        (
            "/api/v1/namespaces/default/events",
            event,
            vec![("/eventTime", null()), ("/firstTimestamp", null()), ("/source", empty())],
        ),
        (
            "/apis/storage.k8s.io/v1/csinodes",
            with("spec", json!({"drivers": []})),
            vec![("/spec/drivers", null())],
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn answers_have_the_fields_kubernetes_always_writes() {
    let api = Api::start().await;
    for (path, object, fields) in always() {
        let made = api.post(path, object).await.expect(201);
        let one = format!("{path}/x");
        let got = api.get(&one).await.expect(200);
        assert_eq!(got.body, made.body);
        let listed = api.get(&format!("{path}?fieldSelector=metadata.name%3Dx")).await.expect(200);
        for (field, value) in fields {
            let found = at(&got.body, field);
            let as_wanted = value.map_or(!found.is_null(), |value| *found == value);
            assert!(as_wanted, "{path} {field} {found}");
            assert!(listed.body["items"][0].pointer(field).is_some(), "{path} {field}");
        }
        assert_eq!(got.body["metadata"].get("deletionTimestamp"), None);
        // Writing back what was read changes nothing.
        let again = api.put(&one, got.body.clone()).await.expect(200);
        assert_eq!(again.body, got.body, "{path}");
    }
    let deployment = api.get("/apis/apps/v1/namespaces/default/deployments/x").await.body;
    assert_eq!(deployment["spec"]["template"]["metadata"].get("creationTimestamp"), None);
    let owned = "/metadata/managedFields/0/fieldsV1/f:spec/f:template/f:spec/f:containers/k:{\"name\":\"c\"}/f:resources";
    assert_eq!(at(&deployment, owned), &json!({}));
    let conditions = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let pod = api
        .patch("strategic-merge", "/api/v1/namespaces/default/pods/x/status", conditions)
        .await
        .expect(200);
    assert_eq!(at(&pod.body, "/status/conditions/0/lastProbeTime"), &Value::Null);
    assert_eq!(at(&pod.body, "/status/conditions/0/lastTransitionTime"), &Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_has_what_its_kind_always_has() {
    let api = Api::start().await;
    let path = "/api/v1/pods?watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                &resourceVersionMatch=NotOlderThan";
    let bookmark = api.watch(path).await.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    let object = &bookmark["object"];
    assert_eq!((at(object, "/spec"), at(object, "/status")), (&json!({"containers": null}), &json!({})));
    assert_eq!(object["metadata"].get("creationTimestamp"), None);
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let review = api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review).await.expect(201);
    // The author of a review owns its fields.
    let fields: Vec<&str> =
        at(&review.body, "/metadata").as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!((fields, at(&review.body, "/status/allowed")), (vec!["managedFields"], &json!(true)));
}

#[tokio::test(start_paused = true)]
async fn documents_after_the_first_are_ignored() {
    let api = Api::start().await;
    let two = "metadata: {name: a}\n---\nmetadata: {name: b}\n";
    api.call("POST", MAPS, &YAML, two).await.expect(201);
    let three = "# first\n---\nmetadata: {name: c}\n...\nnonsense: [\n";
    api.call("POST", MAPS, &YAML, three).await.expect(201);
    let apply = [("content-type", "application/apply-patch+yaml")];
    let config = "apiVersion: v1\nkind: ConfigMap\ndata: {x: \"1\"}\n---\ndata: {x: \"2\"}\n";
    let applied = api.call("PATCH", &format!("{MAPS}/a?fieldManager=f"), &apply, config).await.expect(200);
    assert_eq!(applied.body["data"], json!({"x": "1"}));
    let names = api.get(MAPS).await;
    assert_eq!(names.names().into_iter().filter(|name| name.len() == 1).collect::<Vec<_>>(), ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_not_limited_and_continues_nothing() {
    let api = Api::start().await;
    let from = api.config_map("a", json!({})).await;
    api.config_map("b", json!({})).await;
    let mut all =
        api.watch(&format!("{MAPS}?watch=1&limit=1&fieldSelector=metadata.name!%3Dkube-root-ca.crt")).await;
    assert_eq!((all.brief().await, all.brief().await), ("ADDED a".to_owned(), "ADDED b".to_owned()));
    let mut rest = api.watch(&format!("{MAPS}?watch=1&limit=1&continue=x&resourceVersion={from}")).await;
    assert_eq!(rest.brief().await, "ADDED b");
    let why = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: \
               resourceVersionMatch is forbidden when continue is provided";
    assert_eq!(api.get(&format!("{MAPS}?watch=1&continue=x")).await.expect(422).message(), why);
}

#[tokio::test(start_paused = true)]
async fn places_and_versions_that_do_not_matter_are_dropped() {
    let api = Api::start().await;
    let role = json!({"metadata": {"name": "r", "namespace": "somewhere", "resourceVersion": "none"}});
    let made = api.post(ROLES, role).await.expect(201);
    assert_eq!(made.body["metadata"].get("namespace"), None);
    let path = format!("{ROLES}/r");
    let mut object = made.body;
    object["metadata"]["namespace"] = "elsewhere".into();
    let put = api.put(&path, object).await.expect(200);
    assert_eq!(put.body["metadata"].get("namespace"), None);
    let patched = api.patch("merge", &path, json!({"metadata": {"namespace": "there"}})).await.expect(200);
    assert_eq!(patched.body["metadata"].get("namespace"), None);
    // No operations at all.
    assert_eq!(api.patch("json", &path, Value::Null).await.expect(200).version(), patched.version());
    let unnamed = api.patch("merge", &path, json!({"metadata": {"name": null}})).await.expect(400);
    assert_eq!(
        unnamed.message(),
        "the name of the object (r based on URL) was undeterminable: name must be provided"
    );
}

#[tokio::test(start_paused = true)]
async fn watchers_in_other_forms_share_what_is_sent() {
    let api = Api::start().await;
    let from = api.config_map("a", json!({})).await;
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let path = format!("{MAPS}?watch=1&resourceVersion={from}");
    let mut watches = Vec::new();
    for accept in [table, table, metadata, metadata] {
        watches.push(api.watch_as(&path, accept).await);
    }
    let whole = format!("{path}&includeObject=Object");
    let mut with_objects = api.watch_as(&whole, table).await;
    for (name, columns) in [("b", true), ("c", false)] {
        api.config_map(name, json!({})).await;
        let mut events = Vec::new();
        for watch in &mut watches {
            events.push(watch.next().await.unwrap());
        }
        assert_eq!((&events[0], &events[2]), (&events[1], &events[3]));
        assert_eq!(events[0]["object"]["rows"][0]["cells"][0], name);
        assert_eq!(events[0]["object"]["columnDefinitions"].is_array(), columns);
        assert_eq!(events[2]["object"]["metadata"]["name"], name);
        let object = with_objects.next().await.unwrap();
        assert_eq!(object["object"]["rows"][0]["object"]["data"], json!({"a": "1"}));
    }
}

#[tokio::test(start_paused = true)]
async fn owners_that_are_named_twice_are_dropped_with_a_warning() {
    let api = Api::start().await;
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid});
    let twice = json!({"metadata": {"name": "a", "ownerReferences": [owner("x"), owner("x"), owner("y")]}});
    let made = api.post(MAPS, twice.clone()).await.expect(201);
    assert_eq!(made.body["metadata"]["ownerReferences"], json!([owner("x"), owner("y")]));
    let begin = "299 - \".metadata.ownerReferences contains duplicate entries";
    let warned = |reply: &crate::api::harness::Reply| reply.headers["warning"].to_str().unwrap().to_owned();
    assert!(warned(&made).starts_with(&format!("{begin}; API server dedups")), "{}", warned(&made));
    assert!(warned(&made).ends_with("duplicate UID(s) observed: x\""));
    let put = api.put(&format!("{MAPS}/a"), twice.clone()).await.expect(200);
    assert_eq!((put.version(), warned(&put)), (made.version(), warned(&made)));
    let patched = api.patch("merge", &format!("{MAPS}/a"), twice).await.expect(200);
    assert!(warned(&patched).starts_with(&format!("{begin} after mutating admission happens;")));
    assert_eq!(patched.version(), made.version());
}

#[tokio::test(start_paused = true)]
async fn options_are_refused_in_kubernetes_words() {
    let api = Api::start().await;
    let from = api.config_map("a", json!({})).await;
    let one = format!("{MAPS}/a");
    let dry = "is invalid: dryRun: Unsupported value: [\"x\"]: supported values: \"All\"";
    let object = json!({"metadata": {"name": "a"}});
    let table = [
        (api.delete(&format!("{one}?dryRun=x"), Value::Null).await, "DeleteOptions"),
        (api.delete(&one, json!({"dryRun": ["x"]})).await, "DeleteOptions"),
        (api.post(&format!("{MAPS}?dryRun=x"), object.clone()).await, "CreateOptions"),
        (api.put(&format!("{one}?dryRun=x"), object.clone()).await, "UpdateOptions"),
        (api.patch("merge", &format!("{one}?dryRun=x"), json!({})).await, "PatchOptions"),
    ];
    for (reply, kind) in table {
        let reply = reply.expect(422);
        assert_eq!(reply.message(), format!("{kind}.meta.k8s.io \"\" {dry}"));
    }
    // The answer to a deletion has all fields of the kind, even if the object waits.
    let finalizers = json!({"metadata": {"finalizers": ["example.com/wait"]}});
    api.post(ROLES, json!({"metadata": {"name": "r"}})).await.expect(201);
    api.patch("merge", &format!("{ROLES}/r"), finalizers).await.expect(200);
    for _ in 0..2 {
        let waiting = api.delete(&format!("{ROLES}/r"), Value::Null).await.expect(200);
        assert_eq!(at(&waiting.body, "/rules"), &Value::Null);
    }
    let older = format!("{ROLES}/r?orphanDependents=false");
    api.delete(&older, Value::Null).await.expect(202);
    assert_eq!(api.get(&one).await.expect(200).version(), from);
}

#[tokio::test(start_paused = true)]
async fn proxies_are_told_by_discovery() {
    let api = Api::start().await;
    for plural in ["pods", "services"] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let path = format!("/api/v1/namespaces/default/{plural}/x/proxy/a");
            api.call(method, &path, &[], "").await.expect(404);
        }
    }
    let core = api.get("/api/v1").await.body;
    let of = |name: &str| {
        let resource = core["resources"].as_array().unwrap().iter().find(|r| r["name"] == name).unwrap();
        (resource["kind"].clone(), resource["verbs"].clone())
    };
    let verbs = json!(["create", "delete", "get", "patch", "update"]);
    for (name, kind) in [
        ("nodes/proxy", "NodeProxyOptions"),
        ("pods/proxy", "PodProxyOptions"),
        ("services/proxy", "ServiceProxyOptions"),
    ] {
        assert_eq!(of(name), (kind.into(), verbs.clone()));
    }
}

/// Regression, found by comparison with a kube-apiserver.
#[tokio::test(start_paused = true)]
async fn refusals_have_kubernetes_words_and_kinds() {
    let api = Api::start().await;
    let configs = "/api/v1/namespaces/default/configmaps";
    let odd = json!({"metadata": {"name": "a", "namespace": "default"}, "kind": "Event", "apiVersion": "events.k8s.io/v1"});
    let event = api.post("/apis/events.k8s.io/v1/namespaces/default/events", odd).await.expect(422);
    assert_eq!(event.body["details"].get("group"), None, "{}", event.text);
    let bound = json!({"target": {"kind": "Node", "name": "n"}});
    let binding = api.post("/api/v1/namespaces/default/bindings", bound).await.expect(400);
    assert_eq!(binding.message(), "Name parameter required.");
    let binding = api.post("/api/v1/namespaces/default/bindings", json!({})).await.expect(500);
    assert_eq!(binding.message(), "target.name: Required value");
    api.post(configs, json!({"metadata": {"name": "a", "generation": 5}})).await.expect(201);
    assert_eq!(api.get(&format!("{configs}/a")).await.body["metadata"]["generation"], 5);
    let twice = "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"data\":{\"x\":\"1\",\"x\":\"2\"}}";
    let apply = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{configs}/a?fieldManager=f&fieldValidation=Strict");
    let refused = api.call("PATCH", &path, &apply, twice).await.expect(400);
    assert!(refused.message().ends_with("yaml: unmarshal errors:\n  line 1: key \"x\" already set in map"));
}
