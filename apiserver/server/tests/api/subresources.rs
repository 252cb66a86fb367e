//! Status, scale, eviction, finalize, reviews.

use apiserver_meta::identity::Identity;
use serde_json::{Value, json};

use crate::api::harness::{Api, deployment, pod};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test(start_paused = true)]
async fn status_writes_touch_the_status_alone() {
    let api = Api::start().await;
    let mut object = api.post(DEPLOYMENTS, deployment("web")).await.expect(201).body;
    object["spec"]["replicas"] = 9.into();
    object["status"] = json!({"replicas": 2, "observedGeneration": 1});
    let updated = api.put(&format!("{DEPLOYMENTS}/web/status"), object).await.expect(200).body;
    assert_eq!(updated["spec"]["replicas"], 2);
    assert_eq!(updated["status"]["replicas"], 2);
    assert_eq!(updated["metadata"]["generation"], 1);
    let patch = json!({"status": {"replicas": 1}, "spec": {"replicas": 7}});
    let patched = api.patch("merge", &format!("{DEPLOYMENTS}/web/status"), patch).await.expect(200).body;
    assert_eq!((&patched["status"]["replicas"], &patched["spec"]["replicas"]), (&json!(1), &json!(2)));
    api.get(&format!("{DEPLOYMENTS}/web/status")).await.expect(200);
    api.get(&format!("{DEPLOYMENTS}/web/frob")).await.expect(404);
    api.delete(&format!("{DEPLOYMENTS}/web/status"), Value::Null).await.expect(405);
}

/// Old clients know the single address alone, and leave the list as it was.
#[tokio::test(start_paused = true)]
async fn a_single_address_that_changes_replaces_the_list() {
    let api = Api::start().await;
    let nodes = "/api/v1/nodes";
    let pods = "/api/v1/namespaces/default/pods";
    api.post(pods, pod("ip")).await.expect(201);
    let status = format!("{pods}/ip/status");
    let both = json!({"status": {"podIPs": [{"ip": "1.1.1.1"}, {"ip": "fd00::1"}]}});
    let patched = api.patch("merge", &status, both).await.expect(200).body;
    assert_eq!(patched["status"]["podIP"], "1.1.1.1");
    let single = json!({"status": {"podIP": "2.2.2.2"}});
    for kind in ["merge", "strategic-merge"] {
        let patched = api.patch(kind, &status, single.clone()).await.expect(200).body;
        assert_eq!(patched["status"]["podIP"], "2.2.2.2");
        assert_eq!(patched["status"]["podIPs"], json!([{"ip": "2.2.2.2"}]));
    }
    // One that leaves the first address alone leaves the list.
    let phase = json!({"status": {"podIP": "2.2.2.2", "podIPs": [{"ip": "2.2.2.2"}, {"ip": "fd00::2"}]}});
    let patched = api.patch("merge", &status, phase).await.expect(200).body;
    assert_eq!(patched["status"]["podIPs"].as_array().unwrap().len(), 2);

    let ranges = json!(["10.1.0.0/24", "fd00:1::/64"]);
    let node = json!({"metadata": {"name": "n9"}, "spec": {"podCIDRs": ranges}});
    let made = api.post(nodes, node).await.expect(201).body;
    assert_eq!(made["spec"]["podCIDR"], "10.1.0.0/24");
    let other = json!({"spec": {"podCIDR": "10.2.0.0/24"}});
    let refused = api.patch("merge", &format!("{nodes}/n9"), other).await.expect(422);
    assert!(refused.message().contains("node updates may not change podCIDR"), "{}", refused.text);
    let same = json!({"spec": {"podCIDR": "10.1.0.0/24", "unschedulable": true}});
    let kept = api.patch("merge", &format!("{nodes}/n9"), same).await.expect(200).body;
    assert_eq!(kept["spec"]["podCIDRs"], ranges);
}

/// A body written to a subresource must name the same object as the path, as one written to the object itself
/// must.
#[tokio::test(start_paused = true)]
async fn an_object_of_another_name_or_uid_is_not_meant() {
    const PODS: &str = "/api/v1/namespaces/default/pods";
    let api = Api::start().await;
    let own = api.post(PODS, pod("p")).await.expect(201).body;
    let namespaces = "/api/v1/namespaces";
    let namespace = api.post(namespaces, json!({"metadata": {"name": "n"}})).await.expect(201).body;
    let with = |object: &Value, field: &str, value: &str| {
        let mut object = object.clone();
        object["metadata"][field] = value.into();
        object
    };
    for (path, object) in [
        (format!("{PODS}/p/ephemeralcontainers"), &own),
        (format!("{PODS}/p/resize"), &own),
        (format!("{namespaces}/n/finalize"), &namespace),
    ] {
        let other = api.put(&path, with(object, "name", "q")).await.expect(400);
        assert!(other.message().contains("does not match the name on the URL"), "{}", other.text);
        let former = api.put(&path, with(object, "uid", "u")).await.expect(409);
        assert!(former.message().contains("UID in precondition: u"), "{}", former.text);
        api.put(&path, object.clone()).await.expect(200);
    }
    let patch = json!({"metadata": {"name": "q"}});
    api.patch("merge", &format!("{PODS}/p/resize"), patch).await.expect(400);
    let binding =
        json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "q"}, "target": {"name": "n"}});
    let bound = api.post(&format!("{PODS}/p/binding"), binding).await.expect(400);
    assert_eq!(bound.message(), "name in URL does not match name in Binding object");
}

#[tokio::test(start_paused = true)]
async fn scale_reads_and_writes_replicas() {
    let api = Api::start().await;
    api.post(DEPLOYMENTS, deployment("web")).await.expect(201);
    let path = format!("{DEPLOYMENTS}/web/scale");
    let mut scale = api.get(&path).await.expect(200).body;
    assert_eq!((&scale["kind"], &scale["apiVersion"]), (&json!("Scale"), &json!("autoscaling/v1")));
    assert_eq!(scale["status"]["selector"], "app=web");
    scale["spec"]["replicas"] = 4.into();
    assert_eq!(api.put(&path, scale.clone()).await.expect(200).body["spec"]["replicas"], 4);
    api.put(&path, scale).await.expect(409);
    let patched = api.patch("merge", &path, json!({"spec": {"replicas": 6}})).await.expect(200);
    assert_eq!(patched.body["spec"]["replicas"], 6);
    api.patch("merge", &path, json!({"spec": {"replicas": -1}})).await.expect(422);
    let object = api.get(&format!("{DEPLOYMENTS}/web")).await.expect(200).body;
    assert_eq!((&object["spec"]["replicas"], &object["metadata"]["generation"]), (&json!(6), &json!(3)));
}

#[tokio::test(start_paused = true)]
async fn eviction_deletes_and_ephemeral_containers_only_grow() {
    let api = Api::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    api.post(pods, pod("p")).await.expect(201);
    let path = format!("{pods}/p/ephemeralcontainers");
    let patch = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "d"}]}});
    let grown = api.patch("strategic-merge", &path, patch).await.expect(200).body;
    assert_eq!(grown["spec"]["ephemeralContainers"][0]["name"], "debug");
    api.patch("merge", &path, json!({"spec": {"ephemeralContainers": []}})).await.expect(422);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    api.post(&format!("{pods}/p/eviction"), eviction.clone()).await.expect(201);
    api.get(&format!("{pods}/p")).await.expect(404);
    // Drainers of before 1.22 send the older version.
    api.post(pods, pod("p")).await.expect(201);
    let mut older = eviction;
    older["apiVersion"] = "policy/v1beta2".into();
    api.post(&format!("{pods}/p/eviction"), older.clone()).await.expect(400);
    older["apiVersion"] = "policy/v1beta1".into();
    api.post(&format!("{pods}/p/eviction"), older).await.expect(201);
    api.get(&format!("{pods}/p")).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_terminates_and_is_finalized() {
    let api = Api::start().await;
    let made = api.post("/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await.expect(201).body;
    assert_eq!(made["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(made["status"]["phase"], "Active");
    assert_eq!(made["metadata"]["labels"]["kubernetes.io/metadata.name"], "team");
    let mut going = api.delete("/api/v1/namespaces/team", Value::Null).await.expect(200).body;
    assert_eq!(going["status"]["phase"], "Terminating");
    let map = json!({"metadata": {"name": "m"}});
    let refused = api.post("/api/v1/namespaces/team/configmaps", map).await.expect(403);
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "NamespaceTerminating");
    going["spec"]["finalizers"] = json!([]);
    api.put("/api/v1/namespaces/team/finalize", going).await.expect(200);
    api.get("/api/v1/namespaces/team").await.expect(404);
    api.delete("/api/v1/namespaces/kube-system", Value::Null).await.expect(403);
}

#[tokio::test(start_paused = true)]
async fn reviews_answer_and_roles_count_at_once() {
    let api = Api::start().await;
    let bob = api.as_user(Identity::authenticated("bob", &[]));
    let refused = bob.get("/api/v1/namespaces/default/pods").await.expect(403);
    assert!(refused.message().contains("User \"bob\" cannot list resource \"pods\""), "{}", refused.text);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "create"]}]});
    api.post(&format!("{rbac}/roles"), role.clone()).await.expect(201);
    let binding = json!({"metadata": {"name": "bob"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"}]});
    api.post(&format!("{rbac}/rolebindings"), binding).await.expect(201);
    api.get(&format!("{rbac}/rolebindings")).await.expect(200);
    bob.get("/api/v1/namespaces/default/pods").await.expect(200);
    bob.get("/api/v1/namespaces/kube-system/pods").await.expect(403);
    bob.post(&format!("{rbac}/roles"), role).await.expect(403);
    let review =
        json!({"spec": {"resourceAttributes": {"namespace": "default", "verb": "list", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = bob.post(path, review).await.expect(201).body;
    assert_eq!(answer["status"]["allowed"], true);
    let me = bob.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", json!({})).await.expect(201).body;
    assert_eq!(me["status"]["userInfo"]["username"], "bob");
    let as_bob = api.call("GET", "/api/v1/secrets", &[("impersonate-user", "bob")], "").await;
    as_bob.expect(403);
}

#[tokio::test(start_paused = true)]
async fn services_get_addresses_and_give_them_back() {
    let api = Api::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, ip: &str| {
        let mut spec = json!({"type": "NodePort", "selector": {"app": "a"}, "ports": [{"port": 80}]});
        if !ip.is_empty() {
            spec["clusterIP"] = ip.into();
        }
        json!({"metadata": {"name": name}, "spec": spec})
    };
    let made = api.post(services, service("a", "")).await.expect(201).body;
    let ip = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert!(ip.starts_with("10.96."), "{ip}");
    assert_eq!(made["spec"]["clusterIPs"], json!([ip]));
    let port = made["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30000..=32767).contains(&port));
    let taken = api.post(services, service("b", &ip)).await.expect(422);
    assert!(taken.message().contains("provided IP is already allocated"), "{}", taken.text);
    api.delete(&format!("{services}/a"), Value::Null).await.expect(200);
    assert_eq!(api.post(services, service("b", &ip)).await.expect(201).body["spec"]["clusterIP"], ip);
    let updated = api
        .patch("merge", &format!("{services}/b"), json!({"spec": {"type": "ClusterIP"}}))
        .await
        .expect(200);
    assert_eq!(updated.body["spec"]["clusterIP"], ip);
    assert_eq!(updated.body["spec"]["ports"][0].get("nodePort"), None);
}
