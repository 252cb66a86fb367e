//! Rights end where they are said to end.

use apiserver_meta::identity::Identity;
use serde_json::{Value, json};

use crate::api::harness::{Api, pod};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const UPGRADE: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "websocket")];

/// A user with these rules, in a namespace or, where that is empty, everywhere.
async fn user(api: &Api, name: &str, namespace: &str, rules: Value) -> Api {
    let metadata = json!({"name": name});
    let (place, kind) = match namespace {
        "" => (RBAC.to_owned(), "Cluster"),
        namespace => (format!("{RBAC}/namespaces/{namespace}"), ""),
    };
    let (roles, bindings) = match kind {
        "" => ("roles", "rolebindings"),
        _ => ("clusterroles", "clusterrolebindings"),
    };
    api.post(&format!("{place}/{roles}"), json!({"metadata": metadata, "rules": rules})).await.expect(201);
    let binding = json!({"metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": format!("{kind}Role"), "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]});
    api.post(&format!("{place}/{bindings}"), binding).await.expect(201);
    api.server.objects().fresh().await.unwrap();
    api.as_user(Identity::authenticated(name, &[]))
}

async fn namespaces(api: &Api) {
    for name in ["a", "b"] {
        api.post("/api/v1/namespaces", json!({"metadata": {"name": name}})).await.expect(201);
    }
}

#[tokio::test(start_paused = true)]
async fn rights_in_one_namespace_do_not_reach_another() {
    let api = Api::start().await;
    namespaces(&api).await;
    let before = api.get("/api/v1/namespaces/b").await.expect(200).body;
    let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let tenant = user(&api, "tenant", "a", everything).await;
    tenant.get("/api/v1/namespaces/a").await.expect(200);
    let patch = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    for place in ["a/namespaces/b", "a/namespaces/kube-system", "a/namespaces/a"] {
        for below in ["", "/status", "/finalize"] {
            let path = format!("/api/v1/namespaces/{place}{below}");
            tenant.get(&path).await.expect(404);
            tenant.patch("merge", &path, patch.clone()).await.expect(404);
            tenant.put(&path, before.clone()).await.expect(404);
            tenant.delete(&path, Value::Null).await.expect(404);
        }
        tenant.get(&format!("/api/v1/watch/namespaces/{place}")).await.expect(404);
    }
    for kind in ["namespaces", "nodes", "persistentvolumes"] {
        let path = format!("/api/v1/namespaces/a/{kind}");
        tenant.get(&path).await.expect(404);
        tenant.get(&format!("{path}?watch=1")).await.expect(404);
        tenant.post(&path, json!({"metadata": {"name": "c"}})).await.expect(404);
        tenant.delete(&path, Value::Null).await.expect(404);
    }
    tenant.get(&format!("{RBAC}/namespaces/a/clusterroles/cluster-admin")).await.expect(404);
    tenant.get("/api/v1/namespaces/b").await.expect(403);
    assert_eq!(api.get("/api/v1/namespaces/b").await.expect(200).body, before);
    api.get("/api/v1/namespaces/c").await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn get_alone_opens_no_stream_into_a_pod() {
    let api = Api::start().await;
    namespaces(&api).await;
    let streams = json!(["pods/exec", "pods/attach", "pods/portforward", "pods/log"]);
    let reads = json!([{"apiGroups": [""], "resources": streams, "verbs": ["get"]}]);
    let reader = user(&api, "reader", "a", reads).await;
    let both = json!([{"apiGroups": [""], "resources": streams, "verbs": ["get", "create"]}]);
    let operator = user(&api, "operator", "a", both).await;
    for subresource in ["exec", "attach", "portforward"] {
        let path = format!("/api/v1/namespaces/a/pods/p/{subresource}?command=sh&stdout=1");
        for headers in [&UPGRADE[..], &[]] {
            let refused = reader.call("GET", &path, headers, "").await.expect(403);
            let said = format!(
                "pods \"p\" is forbidden: User \"reader\" cannot create resource \"pods/{subresource}\" in API \
                 group \"\" in the namespace \"a\""
            );
            assert_eq!(refused.message(), said);
            operator.call("GET", &path, headers, "").await.expect(404);
        }
    }
    // The pod does not exist, which is only disclosed to clients that may know it.
    reader.get("/api/v1/namespaces/a/pods/p/log").await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn get_nodes_proxy_runs_no_command_on_a_node() {
    let api = Api::start().await;
    let rule = |verbs: Value| json!([{"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": verbs}]);
    let reader = user(&api, "reader", "", rule(json!(["get", "update", "patch", "delete"]))).await;
    let operator = user(&api, "operator", "", rule(json!(["get", "create"]))).await;
    let proxy = "/api/v1/nodes/n/proxy";
    for path in ["/exec/ns/p/c?command=id", "/run/ns/p/c", "/%65xec/ns/p/c", "//exec/ns/p/c", "/cri/exec/x"] {
        for method in ["GET", "PUT", "PATCH", "DELETE"] {
            let refused = reader.call(method, &format!("{proxy}{path}"), &[], "").await.expect(403);
            assert!(refused.message().contains("cannot create resource \"nodes/proxy\""), "{}", refused.text);
        }
    }
    reader.call("GET", &format!("{proxy}/whatever"), &UPGRADE, "").await.expect(403);
    reader.get(&format!("{proxy}/stats/summary")).await.expect(404);
    operator.call("GET", &format!("{proxy}/exec/ns/p/c"), &UPGRADE, "").await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_verb_is_carried_out_under_its_own_name_alone() {
    let api = Api::start().await;
    api.post("/api/v1/namespaces/default/pods", pod("p")).await.expect(201);
    api.post("/api/v1/nodes", json!({"metadata": {"name": "n"}})).await.expect(201);
    // Logs are read, and not created.
    api.call("POST", "/api/v1/namespaces/default/pods/p/log", &[], "").await.expect(405);
    // Older watch paths watch, and nothing else.
    api.post("/api/v1/watch/namespaces/default/configmaps", json!({"metadata": {"name": "c"}}))
        .await
        .expect(405);
    api.delete("/api/v1/watch/namespaces/default/pods", Value::Null).await.expect(405);
    api.get("/api/v1/watch/nodes/n/proxy/pods").await.expect(404);
    api.get("/api/v1/watch/namespaces/default/pods/p/log").await.expect(404);
    api.get("/api/v1/namespaces/default/pods/p/status/more").await.expect(404);
    api.call("TRACE", "/api/v1/nodes/n/proxy/pods", &[], "").await.expect(405);
    api.get("/api/v1/namespaces/default/pods/p").await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn bodies_that_name_another_namespace_are_refused() {
    let api = Api::start().await;
    namespaces(&api).await;
    let account = json!({"metadata": {"name": "default"}});
    for namespace in ["a", "b"] {
        api.post(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), account.clone())
            .await
            .expect(201);
        api.post(&format!("/api/v1/namespaces/{namespace}/pods"), pod("p")).await.expect(201);
    }
    let controller = json!({"metadata": {"name": "r"}, "spec": {"replicas": 0, "selector": {"x": "y"},
        "template": {"metadata": {"labels": {"x": "y"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    api.post("/api/v1/namespaces/a/replicationcontrollers", controller).await.expect(201);
    let elsewhere = |name: &str| json!({"name": name, "namespace": "b"});
    let target = json!({"kind": "Node", "name": "n"});
    let said = "the namespace of the provided object does not match the namespace sent on the request";
    for (path, body) in [
        ("bindings", json!({"metadata": elsewhere("p"), "target": target})),
        ("pods/p/binding", json!({"metadata": elsewhere("p"), "target": target})),
        ("pods/p/eviction", json!({"metadata": elsewhere("p")})),
        ("serviceaccounts/default/token", json!({"metadata": elsewhere("default"), "spec": {}})),
        ("configmaps", json!({"metadata": elsewhere("c")})),
    ] {
        let refused = api.post(&format!("/api/v1/namespaces/a/{path}"), body).await.expect(400);
        assert_eq!(refused.message(), said, "{path}");
    }
    let scale = json!({"metadata": elsewhere("r"), "spec": {"replicas": 1}});
    let path = "/api/v1/namespaces/a/replicationcontrollers/r/scale";
    assert_eq!(api.put(path, scale).await.expect(400).message(), said);
    for namespace in ["a", "b"] {
        let pod = api.get(&format!("/api/v1/namespaces/{namespace}/pods/p")).await.expect(200).body;
        assert_eq!(pod["spec"]["nodeName"], Value::Null);
    }
}
