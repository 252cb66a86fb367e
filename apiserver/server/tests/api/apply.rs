//! Tests of server-side apply over HTTP: creation, merging, removal and refusals.

use apiserver_meta::identity::Identity;
use serde_json::{Value, json};

use crate::api::harness::{Api, Reply, deployment, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const YAML: [(&str, &str); 1] = [("content-type", "application/apply-patch+yaml")];

impl Api {
    /// Applies a configuration; `path` has the parameters too.
    pub async fn apply(&self, path: &str, config: Value) -> Reply {
        self.call("PATCH", path, &YAML, config.to_string()).await
    }
}

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// The causes of a conflict: `MESSAGE FIELD`.
fn causes(reply: &Reply) -> Vec<String> {
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap().to_owned();
    let causes = reply.body["details"]["causes"].as_array().unwrap();
    assert!(causes.iter().all(|cause| cause["reason"] == "FieldManagerConflict"));
    causes.iter().map(|cause| format!("{} {}", text(cause, "message"), text(cause, "field"))).collect()
}

#[tokio::test(start_paused = true)]
async fn applying_makes_an_object_and_the_same_again_writes_nothing() {
    let api = Api::start().await;
    let path = format!("{MAPS}/m?fieldManager=a");
    let made = api.apply(&path, map("m", json!({"k": "1"}))).await.expect(201);
    assert_eq!(made.body["metadata"]["namespace"], "default");
    assert_eq!(made.body["metadata"]["uid"].as_str().unwrap().len(), 36);
    let entries = made.body["metadata"]["managedFields"].as_array().unwrap();
    let time = &made.body["metadata"]["creationTimestamp"];
    assert!(entries[0]["time"].as_str() >= time.as_str());
    assert_eq!(
        (entries.len(), &entries[0]["manager"], &entries[0]["operation"], &entries[0]["apiVersion"]),
        (1, &json!("a"), &json!("Apply"), &json!("v1"))
    );
    assert_eq!(entries[0]["fieldsV1"], json!({"f:data": {"f:k": {}}}));
    assert_eq!(entries[0]["fieldsType"], "FieldsV1");
    let again = api.apply(&path, map("m", json!({"k": "1"}))).await.expect(200);
    assert_eq!(again.body, made.body);
    let yaml =
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\n  labels: {team: x}\ndata:\n  k: \"2\"\n";
    let changed = api.call("PATCH", &path, &YAML, yaml).await.expect(200);
    assert_eq!(
        (&changed.body["data"]["k"], &changed.body["metadata"]["labels"]["team"]),
        (&json!("2"), &json!("x"))
    );
    assert_ne!(changed.version(), made.version());
    assert_eq!(api.get(&format!("{MAPS}/m")).await.expect(200).body, changed.body);
    let listed = api.get(MAPS).await.expect(200).body["items"][0]["metadata"]["managedFields"].clone();
    assert_eq!(listed, changed.body["metadata"]["managedFields"]);
}

#[tokio::test(start_paused = true)]
async fn field_left_out_of_the_next_apply_stays_if_others_own_it() {
    let api = Api::start().await;
    let path = |manager: &str| format!("{MAPS}/m?fieldManager={manager}");
    api.apply(&path("a"), map("m", json!({"x": "1", "y": "2", "z": "3"}))).await.expect(201);
    api.apply(&path("b"), map("m", json!({"y": "2", "w": "4"}))).await.expect(200);
    let left = api.apply(&path("a"), map("m", json!({"z": "3"}))).await.expect(200).body;
    assert_eq!(left["data"], json!({"y": "2", "z": "3", "w": "4"}));
    let left = api
        .apply(&path("b"), json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}))
        .await;
    assert_eq!(left.expect(200).body["data"], json!({"z": "3"}));
    let left = api
        .apply(&path("a"), json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}}))
        .await;
    assert_eq!(left.expect(200).body.get("data"), None);
    let got = api.get(&format!("{MAPS}/m")).await.expect(200).body;
    assert_eq!(got["metadata"].get("managedFields"), None);

    // Containers and their ports: keyed lists, the protocol by default TCP.
    let path = format!("{DEPLOYMENTS}/web?fieldManager=a");
    let with = |containers: Value| {
        let mut object = deployment("web");
        object["spec"]["template"]["spec"]["containers"] = containers;
        object
    };
    let ports = json!([{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}]);
    let two = with(json!([{"name": "c", "image": "i", "ports": ports}, {"name": "d", "image": "j"}]));
    api.apply(&path, two).await.expect(201);
    let one = with(json!([{"name": "c", "image": "i", "ports": [{"containerPort": 53, "protocol": "UDP"}]}]));
    let left = api.apply(&path, one).await.expect(200).body;
    let containers = left["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(
        (containers.len(), &containers[0]["ports"]),
        (1, &json!([{"containerPort": 53, "protocol": "UDP"}]))
    );
    assert_eq!(containers[0]["terminationMessagePolicy"], "File");
}

#[tokio::test(start_paused = true)]
async fn conflicts_are_told_and_can_be_forced() {
    let api = Api::start().await;
    let made = format!("{DEPLOYMENTS}?fieldManager=kubectl-client-side-apply");
    api.post(&made, deployment("web")).await.expect(201);
    let config = |replicas: u32| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"replicas": replicas}})
    };
    let path = format!("{DEPLOYMENTS}/web?fieldManager=scaler");
    let refused = api.apply(&path, config(5)).await.expect(409);
    assert_eq!(refused.reason(), "Conflict");
    assert_eq!(
        refused.message(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1: .spec.replicas"
    );
    assert_eq!(
        causes(&refused),
        ["conflict with \"kubectl-client-side-apply\" using apps/v1 .spec.replicas"]
    );
    // An equal value is shared.
    api.apply(&path, config(2)).await.expect(200);
    let refused = api.apply(&format!("{DEPLOYMENTS}/web?fieldManager=third"), config(7)).await.expect(409);
    assert_eq!(
        refused.message(),
        "Apply failed with 2 conflicts: conflicts with \"kubectl-client-side-apply\" using apps/v1:\n- .spec.replicas\n\
         conflicts with \"scaler\":\n- .spec.replicas"
    );
    let forced =
        api.apply(&format!("{DEPLOYMENTS}/web?fieldManager=third&force=true"), config(7)).await.expect(200);
    assert_eq!(forced.body["spec"]["replicas"], 7);
    assert_eq!(forced.body["metadata"]["generation"], 2);
    let managers: Vec<_> = forced.body["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["manager"].as_str().unwrap())
        .collect();
    assert_eq!(managers, ["third", "kubectl-client-side-apply"]);
    api.apply(&path, config(2)).await.expect(409);
    // Both are shared again once another manager changes the field by an update.
    api.patch("merge", &format!("{DEPLOYMENTS}/web?fieldManager=m"), json!({"spec": {"replicas": 3}}))
        .await
        .expect(200);
    assert_eq!(
        causes(&api.apply(&path, config(2)).await.expect(409)),
        ["conflict with \"m\" using apps/v1 .spec.replicas"]
    );
}

#[tokio::test(start_paused = true)]
async fn options_and_configurations_are_checked() {
    let api = Api::start().await;
    let good = map("m", json!({"k": "1"}));
    let base = format!("{MAPS}/m");
    let refused = api.apply(&base, good.clone()).await.expect(422);
    assert_eq!(
        refused.message(),
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    );
    let long = "x".repeat(129);
    assert!(
        api.apply(&format!("{base}?fieldManager={long}"), good.clone())
            .await
            .expect(422)
            .message()
            .contains("fieldManager: Too long: may not be more than 128 bytes")
    );
    let refused = api.apply(&format!("{base}?fieldManager=a%0Ab"), good.clone()).await.expect(422);
    assert!(refused.message().contains("invalid character U+000A (at position 1)"), "{}", refused.text);
    api.post(&format!("{MAPS}?fieldManager={long}"), good.clone()).await.expect(422);
    api.put(&format!("{base}?fieldManager={long}"), good.clone()).await.expect(422);
    let forced = api.patch("merge", &format!("{base}?force=true"), json!({})).await.expect(422);
    assert!(
        forced.message().contains("force: Forbidden: may not be specified for non-apply patch"),
        "{}",
        forced.text
    );
    let path = format!("{base}?fieldManager=a");
    let cbor = [("content-type", "application/apply-patch+cbor")];
    api.call("PATCH", &path, &cbor, "\u{0}").await.expect(415);
    let table: [(Value, u16, &str); 9] = [
        (json!([]), 400, "error decoding YAML"),
        (json!({}), 400, "invalid object type: /, Kind="),
        (json!({"apiVersion": "v1", "kind": "Pod"}), 400, "invalid object type: /v1, Kind=Pod"),
        (json!({"apiVersion": "v2", "kind": "ConfigMap"}), 400, "invalid object type: /v2, Kind=ConfigMap"),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "managedFields": []}}),
            400,
            "metadata.managedFields must be nil",
        ),
        (map("other", json!({})), 400, "does not match the name on the URL (m)"),
        (json!({"apiVersion": "v1", "kind": "ConfigMap"}), 400, "was undeterminable"),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "else"}}),
            400,
            "does not match the namespace",
        ),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}, "frob": 1}),
            500,
            "failed to create typed patch object (default/m; /v1, Kind=ConfigMap): .frob: field not declared in schema",
        ),
    ];
    for (config, code, message) in table {
        let reply = api.apply(&path, config).await.expect(code);
        assert!(reply.message().contains(message), "{}", reply.text);
    }
    api.call("PATCH", &path, &YAML, "a: [").await.expect(400);
    api.get(&base).await.expect(404);
    api.apply(&format!("{MAPS}?fieldManager=a"), good).await.expect(405);
}

#[tokio::test(start_paused = true)]
async fn keys_that_occur_twice_are_refused_or_warned_of() {
    let api = Api::start().await;
    let json = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"a":"1","a":"2"}}"#;
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n  a: \"1\"\n  a: \"2\"\n";
    let path = |validation: &str| format!("{MAPS}/m?fieldManager=a&fieldValidation={validation}");
    for body in [json, yaml] {
        let strict = api.call("PATCH", &path("Strict"), &YAML, body).await.expect(400);
        assert!(strict.message().starts_with("error strict decoding YAML: "), "{}", strict.text);
        let warned = api.call("PATCH", &path("Warn"), &YAML, body).await;
        assert_eq!(warned.body["data"]["a"], "2", "{}", warned.text);
        assert!(warned.headers.contains_key("warning"));
        let ignored = api.call("PATCH", &path("Ignore"), &YAML, body).await.expect(200);
        assert!(!ignored.headers.contains_key("warning"));
    }
}

#[tokio::test(start_paused = true)]
async fn versions_and_uids_are_conditions_and_dry_runs_store_nothing() {
    let api = Api::start().await;
    let path = format!("{MAPS}/m?fieldManager=a");
    let dry = api.apply(&format!("{path}&dryRun=All"), map("m", json!({"k": "1"}))).await.expect(201);
    assert_eq!(dry.body["metadata"]["managedFields"][0]["manager"], "a");
    api.get(&format!("{MAPS}/m")).await.expect(404);
    let mut config = map("m", json!({"k": "1"}));
    config["metadata"]["uid"] = "another".into();
    let refused = api.apply(&path, config.clone()).await.expect(409);
    assert!(
        refused.message().contains("uid mismatch: the provided object specified uid another"),
        "{}",
        refused.text
    );
    config["metadata"].as_object_mut().unwrap().remove("uid");
    let made = api.apply(&path, config.clone()).await.expect(201);
    config["metadata"]["uid"] = "another".into();
    let refused = api.apply(&path, config.clone()).await.expect(422);
    assert!(refused.message().ends_with("metadata.uid: Invalid value: \"another\": field is immutable"));
    config["metadata"]["uid"] = made.body["metadata"]["uid"].clone();
    config["data"]["k"] = "2".into();
    config["metadata"]["resourceVersion"] = "1".into();
    let refused = api.apply(&path, config.clone()).await.expect(409);
    assert!(refused.message().contains("the object has been modified"), "{}", refused.text);
    config["metadata"]["resourceVersion"] = made.version().into();
    let dry = api.apply(&format!("{path}&dryRun=All"), config.clone()).await.expect(200);
    assert_eq!(dry.body["data"]["k"], "2");
    assert_eq!(api.get(&format!("{MAPS}/m")).await.expect(200).body, made.body);
    api.apply(&path, config).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn subresources_have_owners_of_their_own() {
    let api = Api::start().await;
    api.apply(&format!("{DEPLOYMENTS}/web?fieldManager=a"), deployment("web")).await.expect(201);
    let typed = |body: Value| {
        let mut config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}});
        config["status"] = body["status"].clone();
        if !body["spec"].is_null() {
            config["spec"] = body["spec"].clone();
        }
        config
    };
    let status = format!("{DEPLOYMENTS}/web/status?fieldManager=s");
    let written = api
        .apply(&status, typed(json!({"status": {"replicas": 2}, "spec": {"replicas": 9}})))
        .await
        .expect(200)
        .body;
    assert_eq!((&written["status"]["replicas"], &written["spec"]["replicas"]), (&json!(2), &json!(2)));
    let entry = |object: &Value, manager: &str| {
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        entries.iter().find(|entry| entry["manager"] == manager).cloned()
    };
    let own = entry(&written, "s").unwrap();
    assert_eq!(
        (&own["subresource"], &own["fieldsV1"]),
        (&json!("status"), &json!({"f:status": {"f:replicas": {}}}))
    );
    // The status in a configuration of the object itself is ignored.
    let mut config = deployment("web");
    config["status"] = json!({"replicas": 7});
    let same = api.apply(&format!("{DEPLOYMENTS}/web?fieldManager=a"), config).await.expect(200).body;
    assert_eq!(same["status"]["replicas"], 2);
    assert_eq!(entry(&same, "a").unwrap()["fieldsV1"].get("f:status"), None);
    // An update of the status takes it from its owner.
    let mut next = same.clone();
    next["status"]["replicas"] = 3.into();
    let put = api.put(&format!("{DEPLOYMENTS}/web/status?fieldManager=c"), next).await.expect(200).body;
    assert_eq!(entry(&put, "s"), None);
    assert_eq!(entry(&put, "c").unwrap()["fieldsV1"], json!({"f:status": {"f:replicas": {}}}));
    let refused = api.apply(&status, typed(json!({"status": {"replicas": 4}}))).await.expect(409);
    assert_eq!(
        causes(&refused),
        ["conflict with \"c\" with subresource \"status\" using apps/v1 .status.replicas"]
    );
    api.apply(&format!("{DEPLOYMENTS}/none/status?fieldManager=s"), typed(json!({"status": {}})))
        .await
        .expect(404);
}

#[tokio::test(start_paused = true)]
async fn replicas_are_owned_through_scale() {
    let api = Api::start().await;
    api.apply(&format!("{DEPLOYMENTS}/web?fieldManager=a"), deployment("web")).await.expect(201);
    let scale = format!("{DEPLOYMENTS}/web/scale");
    let config = |replicas: u32| {
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"},
            "spec": {"replicas": replicas}})
    };
    let refused = api.apply(&format!("{scale}?fieldManager=hpa"), config(4)).await.expect(409);
    assert_eq!(causes(&refused), ["conflict with \"a\" .spec.replicas"]);
    let scaled = api.apply(&format!("{scale}?fieldManager=hpa&force=true"), config(4)).await.expect(200).body;
    assert_eq!((&scaled["spec"]["replicas"], scaled["metadata"].get("managedFields")), (&json!(4), None));
    let object = api.get(&format!("{DEPLOYMENTS}/web")).await.expect(200).body;
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let hpa = entries.iter().find(|entry| entry["manager"] == "hpa").unwrap();
    assert_eq!(
        (&hpa["subresource"], &hpa["operation"], &hpa["apiVersion"], &hpa["fieldsV1"]),
        (&json!("scale"), &json!("Apply"), &json!("apps/v1"), &json!({"f:spec": {"f:replicas": {}}}))
    );
    let a = entries.iter().find(|entry| entry["manager"] == "a").unwrap();
    assert_eq!(a["fieldsV1"]["f:spec"].get("f:replicas"), None);
    let refused =
        api.apply(&format!("{DEPLOYMENTS}/web?fieldManager=a"), deployment("web")).await.expect(409);
    assert_eq!(causes(&refused), ["conflict with \"hpa\" with subresource \"scale\" .spec.replicas"]);
    // Updates through scale take over as well.
    let mut next = api.get(&scale).await.expect(200).body;
    next["spec"]["replicas"] = 6.into();
    api.put(&format!("{scale}?fieldManager=kubectl"), next).await.expect(200);
    let refused =
        api.apply(&format!("{DEPLOYMENTS}/web?fieldManager=a"), deployment("web")).await.expect(409);
    assert_eq!(
        causes(&refused),
        ["conflict with \"kubectl\" with subresource \"scale\" using apps/v1 .spec.replicas"]
    );
    let mut without = deployment("web");
    without["spec"].as_object_mut().unwrap().remove("replicas");
    let kept = api.apply(&format!("{DEPLOYMENTS}/web?fieldManager=a"), without).await.expect(200).body;
    assert_eq!(kept["spec"]["replicas"], 6);
}

#[tokio::test(start_paused = true)]
async fn kubectl_moves_from_client_side_to_server_side() {
    let api = Api::start().await;
    let last = |replicas: u32| {
        let mut object = deployment("web");
        object["spec"]["replicas"] = replicas.into();
        format!("{object}\n")
    };
    const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let mut object = deployment("web");
    object["metadata"]["annotations"] = json!({LAST: last(2)});
    api.post(&format!("{DEPLOYMENTS}?fieldManager=kubectl-client-side-apply"), object).await.expect(201);
    let mut config = deployment("web");
    config["spec"]["replicas"] = 5.into();
    api.apply(&format!("{DEPLOYMENTS}/web?fieldManager=argo"), config.clone()).await.expect(409);
    let moved = api.apply(&format!("{DEPLOYMENTS}/web?fieldManager=kubectl"), config).await.expect(200).body;
    assert_eq!(moved["spec"]["replicas"], 5);
    let annotation = moved["metadata"]["annotations"][LAST].as_str().unwrap();
    let annotated: Value = serde_json::from_str(annotation).unwrap();
    assert_eq!(annotated["spec"]["replicas"], 5);
    assert!(annotation.ends_with("}\n"));
    let kinds: Vec<_> = moved["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            format!("{} {}", entry["manager"].as_str().unwrap(), entry["operation"].as_str().unwrap())
        })
        .collect();
    assert_eq!(kinds, ["kubectl Apply", "kubectl-client-side-apply Update"]);
}

#[tokio::test(start_paused = true)]
async fn apply_of_a_missing_object_needs_create() {
    let api = Api::start().await;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}]);
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    api.post(&format!("{roles}/roles"), json!({"metadata": {"name": "r"}, "rules": rules})).await.expect(201);
    let binding = json!({"metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}]});
    api.post(&format!("{roles}/rolebindings"), binding).await.expect(201);
    api.server.objects().fresh().await.unwrap();
    let eve = api.as_user(Identity::authenticated("eve", &[]));
    let path = format!("{MAPS}/m?fieldManager=a");
    let refused = eve.apply(&path, map("m", json!({"k": "1"}))).await.expect(403);
    assert!(refused.message().contains("cannot create resource \"configmaps\""), "{}", refused.text);
    api.apply(&path, map("m", json!({"k": "1"}))).await.expect(201);
    eve.apply(&path, map("m", json!({"k": "2"}))).await.expect(200);
}

/// The controller that aggregates ClusterRoles may give a role any rules, but makes none.
#[tokio::test(start_paused = true)]
async fn controller_manager_applies_the_rules_of_aggregated_roles_and_makes_no_roles() {
    const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let api = Api::start().await;
    let selectors = json!([{"matchLabels": {"none": "x"}}]);
    let role = json!({"metadata": {"name": "r"}, "aggregationRule": {"clusterRoleSelectors": selectors}});
    let made = api.post(ROLES, role).await.expect(201);
    api.server.objects().fresh().await.unwrap();
    let manager = api.as_user(Identity::authenticated("system:kube-controller-manager", &[]));
    let path = format!("{ROLES}/r?fieldManager=clusterrole-aggregation-controller&force=true");
    let config = |name: &str, rules: Value| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "uid": made.body["metadata"]["uid"]}, "rules": rules})
    };
    let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    for (rules, count) in [(all.clone(), 1), (all.clone(), 1), (json!([]), 0)] {
        manager.apply(&path, config("r", rules)).await.expect(200);
        let stored = api.get(&format!("{ROLES}/r")).await.expect(200).body;
        assert_eq!(stored["rules"].as_array().map_or(0, Vec::len), count, "{stored}");
        assert_eq!(stored["aggregationRule"], made.body["aggregationRule"]);
    }
    let other = path.replace("/r?", "/other?");
    let refused = manager.apply(&other, config("other", all)).await;
    assert!([403, 409].contains(&refused.code), "{}", refused.text);
    api.get(&format!("{ROLES}/other")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn appliers_at_one_time_all_count() {
    let api = Api::start().await;
    let writes = (0..4).map(|i| {
        let api = &api;
        async move {
            let path = format!("{MAPS}/m?fieldManager=m{i}");
            api.apply(&path, map("m", json!({format!("k{i}"): "v"}))).await.code
        }
    });
    let mut codes = futures::future::join_all(writes).await;
    codes.sort_unstable();
    assert_eq!(codes, [200, 200, 200, 201]);
    let object = api.get(&format!("{MAPS}/m")).await.expect(200).body;
    assert_eq!(object["data"].as_object().unwrap().len(), 4);
    assert_eq!(object["metadata"]["managedFields"].as_array().unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn services_keep_what_was_allocated() {
    let api = Api::start().await;
    let config = |ports: Value| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"selector": {"app": "a"}, "ports": ports}})
    };
    let path = format!("{SERVICES}/s?fieldManager=a");
    let made = api.apply(&path, config(json!([{"name": "x", "port": 80}]))).await.expect(201).body;
    let address = made["spec"]["clusterIP"].clone();
    assert!(address.is_string());
    let more = api
        .apply(&path, config(json!([{"name": "y", "port": 81}, {"name": "x", "port": 80}])))
        .await
        .expect(200)
        .body;
    assert_eq!(more["spec"]["clusterIP"], address);
    let names: Vec<_> = more["spec"]["ports"].as_array().unwrap().iter().map(|p| p["name"].clone()).collect();
    assert_eq!(names, ["y", "x"]);
    let twice =
        api.apply(&path, config(json!([{"port": 80}, {"port": 80, "protocol": "TCP"}]))).await.expect(500);
    assert!(
        twice.message().ends_with(".spec.ports: duplicate entries for key [port=80,protocol=\"TCP\"]"),
        "{}",
        twice.text
    );
}

#[tokio::test(start_paused = true)]
async fn ephemeral_containers_and_sizes_are_applied_through_their_subresources() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let mut small = pod("p");
    // A resize keeps the class of service, so the pod needs one that has amounts.
    small["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "500m"}});
    api.post(&format!("{pods}?fieldManager=maker"), small).await.expect(201);
    let config =
        |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    let debug =
        config(json!({"ephemeralContainers": [{"name": "debug", "image": "i"}], "nodeName": "elsewhere"}));
    let path = format!("{pods}/p/ephemeralcontainers?fieldManager=debugger");
    let made = api.apply(&path, debug).await.expect(200).body;
    assert_eq!(
        (&made["spec"]["ephemeralContainers"][0]["name"], made["spec"].get("nodeName")),
        (&json!("debug"), None)
    );
    let entries = made["metadata"]["managedFields"].as_array().unwrap();
    let own = entries.iter().find(|entry| entry["manager"] == "debugger").unwrap();
    assert_eq!((&own["operation"], &own["subresource"]), (&json!("Apply"), &json!("ephemeralcontainers")));
    assert!(own["fieldsV1"]["f:spec"]["f:ephemeralContainers"].is_object());
    let sized = config(json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}));
    let resize = format!("{pods}/p/resize?fieldManager=sizer&force=true");
    let sized = api.apply(&resize, sized).await.expect(200).body;
    assert_eq!(sized["spec"]["containers"][0]["resources"]["requests"]["cpu"], "1");
    api.apply(&format!("{pods}/none/resize?fieldManager=sizer"), config(json!({}))).await.expect(404);
}
