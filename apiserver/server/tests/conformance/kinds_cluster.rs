//! Kinds of the cluster: quotas, limits, accounts, nodes, classes, networks.

use serde_json::{Value, json};

use crate::api::harness::{Api, Watching};
use crate::conformance::operations::{Kind, condition, operations};

#[tokio::test]
async fn resource_quotas() {
    let object = json!({"spec": {"hard": {"cpu": "500m", "memory": "500Mi"}}});
    let kind = Kind::new("", "v1", "resourcequotas", &object);
    operations(kind.with_status(json!({"hard": {"cpu": "500m", "memory": "500Mi"}}))).await;
}

#[tokio::test]
async fn resource_quotas_are_updated_and_their_status_is_apart() {
    let api = Api::start().await;
    let path = "/api/v1/namespaces/default/resourcequotas";
    let object = json!({"metadata": {"name": "q"}, "spec": {"hard": {"cpu": "1", "memory": "500Mi"}}});
    let mut made = api.post(path, object).await.expect(201).body;
    made["spec"]["hard"] = json!({"cpu": "2", "memory": "1Gi"});
    let updated = api.put(&format!("{path}/q"), made).await.expect(200).body;
    assert_eq!(updated["spec"]["hard"], json!({"cpu": "2", "memory": "1Gi"}));
    let status = json!({"status": {"hard": {"cpu": "3"}}, "spec": {"hard": {"cpu": "9"}}});
    let patched = api.patch("merge", &format!("{path}/q/status"), status).await.expect(200).body;
    assert_eq!(
        (&patched["status"]["hard"]["cpu"], &patched["spec"]["hard"]["cpu"]),
        (&json!("3"), &json!("2"))
    );
    api.delete(&format!("{path}/q"), Value::Null).await.expect(200);
    api.get(&format!("{path}/q")).await.expect(404);
}

#[tokio::test]
async fn limit_ranges() {
    let object = json!({"spec": {"limits": [{"type": "Container", "min": {"cpu": "50m"}, "max": {"cpu": "500m"},
        "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}}]}});
    operations(Kind::new("", "v1", "limitranges", &object)).await;
}

#[tokio::test]
async fn service_accounts() {
    let object = json!({"automountServiceAccountToken": false});
    operations(Kind::new("", "v1", "serviceaccounts", &object)).await;
}

#[tokio::test]
async fn service_accounts_are_updated() {
    let api = Api::start().await;
    let path = "/api/v1/namespaces/default/serviceaccounts";
    let mut made = api.post(path, json!({"metadata": {"name": "e2e"}})).await.expect(201).body;
    made["automountServiceAccountToken"] = true.into();
    assert_eq!(
        api.put(&format!("{path}/e2e"), made).await.expect(200).body["automountServiceAccountToken"],
        true
    );
}

#[tokio::test]
async fn reviews_of_access_agree_with_what_is_allowed() {
    let api = Api::start().await;
    api.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "e2e"}}))
        .await
        .expect(201);
    let user = "system:serviceaccount:default:e2e";
    let groups = ["system:authenticated", "system:serviceaccounts", "system:serviceaccounts:default"];
    let review = json!({"spec": {"user": user, "groups": groups,
        "resourceAttributes": {"verb": "list", "resource": "configmaps", "namespace": "default", "version": "v1"}}});
    let ask = async |path: &str, review: Value| {
        api.post(path, review).await.expect(201).body["status"]["allowed"].clone()
    };
    let everywhere = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let local = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
    let mut of_namespace = review.clone();
    of_namespace["metadata"]["namespace"] = "default".into();
    assert_eq!(ask(everywhere, review.clone()).await, false);
    assert_eq!(ask(local, of_namespace.clone()).await, false);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
    api.post(&format!("{rbac}/roles"), role).await.expect(201);
    let binding = json!({"metadata": {"name": "r"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "e2e", "namespace": "default"}]});
    api.post(&format!("{rbac}/rolebindings"), binding).await.expect(201);
    // The authorizer follows its caches.
    while ask(everywhere, review.clone()).await == false {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(local, of_namespace).await, true);
    let as_account = api.as_user(apiserver_meta::identity::Identity::authenticated(user, &groups));
    as_account.get("/api/v1/namespaces/default/configmaps").await.expect(200);
    as_account.get("/api/v1/namespaces/default/secrets").await.expect(403);
}

#[tokio::test]
async fn nodes() {
    let kind = Kind::new("", "v1", "nodes", &json!({"spec": {"podCIDR": "10.244.9.0/24"}})).of_cluster();
    operations(kind.with_status(json!({"phase": "Running"}))).await;
}

#[tokio::test]
async fn runtime_classes() {
    operations(Kind::new("node.k8s.io", "v1", "runtimeclasses", &json!({"handler": "runc"})).of_cluster())
        .await;
}

#[tokio::test]
async fn priority_classes() {
    let object = json!({"value": 2, "description": "from a test"});
    operations(Kind::new("scheduling.k8s.io", "v1", "priorityclasses", &object).of_cluster()).await;
}

#[tokio::test]
async fn endpoint_slices() {
    let object = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["1.2.3.4"], "conditions": {"ready": true}}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
    operations(Kind::new("discovery.k8s.io", "v1", "endpointslices", &object)).await;
}

#[tokio::test]
async fn endpoints() {
    let object = json!({"subsets": [{"addresses": [{"ip": "10.0.0.24"}], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}]});
    operations(Kind::new("", "v1", "endpoints", &object)).await;
}

#[tokio::test]
async fn ingresses() {
    let object = json!({"spec": {"defaultBackend": {"service": {"name": "b", "port": {"number": 80}}},
        "rules": [{"host": "example.com", "http": {"paths": [{"path": "/", "pathType": "Prefix",
            "backend": {"service": {"name": "b", "port": {"number": 80}}}}]}}]}});
    let kind = Kind::new("networking.k8s.io", "v1", "ingresses", &object);
    operations(kind.with_status(json!({"loadBalancer": {"ingress": [{"ip": "169.1.1.1"}]}}))).await;
}

#[tokio::test]
async fn ingress_classes() {
    let object = json!({"spec": {"controller": "example.com/controller"}});
    operations(Kind::new("networking.k8s.io", "v1", "ingressclasses", &object).of_cluster()).await;
}

#[tokio::test]
async fn service_cidrs() {
    let api = Api::start().await;
    let path = "/apis/networking.k8s.io/v1/servicecidrs";
    let selected = format!("{path}?labelSelector=special%3Dyes");
    let mut watch = api.watch(&format!("{selected}&watch=true")).await;
    let names = ["first", "second", "third"];
    for (name, cidr) in names.iter().zip(["10.1.1.0/24", "10.1.2.0/24", "10.1.3.0/24"]) {
        let object =
            json!({"metadata": {"name": name, "labels": {"special": "yes"}}, "spec": {"cidrs": [cidr]}});
        api.post(path, object).await.expect(201);
        // The server itself sets the condition that it allocates from them, and keeps those in use.
        let ready = seen(&mut watch, name, |event| event["object"]["status"]["conditions"][0].is_object());
        let ready = ready.await;
        assert_eq!(ready["object"]["status"]["conditions"][0]["type"], "Ready");
        assert_eq!(
            ready["object"]["metadata"]["finalizers"],
            json!(["networking.k8s.io/service-cidr-finalizer"])
        );
    }
    assert_eq!(api.get(&selected).await.expect(200).body["items"].as_array().unwrap().len(), 3);
    let one = format!("{path}/first");
    let patch = json!({"metadata": {"annotations": {"patched": "true"}}});
    let mut whole = api.patch("merge", &one, patch).await.expect(200).body;
    whole["metadata"]["annotations"]["updated"] = "true".into();
    api.put(&one, whole.clone()).await.expect(200);
    api.put(&one, whole).await.expect(409);
    let status = json!({"status": {"conditions": [condition("Ready"), {"type": "Mine", "status": "True", "reason": "E2E",
        "message": "set", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let patched = api.patch("merge", &format!("{one}/status"), status).await.expect(200).body;
    assert_eq!(patched["status"]["conditions"][1]["type"], "Mine");
    api.delete(&one, Value::Null).await.expect(200);
    seen(&mut watch, "first", |event| event["type"] == "DELETED").await;
    api.get(&one).await.expect(404);
    api.delete(&selected, Value::Null).await.expect(200);
    for name in &names[1..] {
        seen(&mut watch, name, |event| event["type"] == "DELETED").await;
    }
    assert_eq!(api.get(&selected).await.body["items"], json!([]));
}

/// The next event about an object that is as wanted.
async fn seen(watch: &mut Watching, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    loop {
        let event = watch.next().await.expect("the watch goes on");
        if event["object"]["metadata"]["name"] == name && wanted(&event) {
            return event;
        }
    }
}

#[tokio::test]
async fn ip_addresses() {
    let object = json!({"spec": {"parentRef": {"group": "", "resource": "services", "name": "e2e", "namespace": "default"}}});
    let kind = Kind::new("networking.k8s.io", "v1", "ipaddresses", &object).of_cluster();
    operations(kind.named(["192.0.2.1", "192.0.2.2", "192.0.2.3"])).await;
}
