//! Tests of the rights of a kubelet's credentials: attacks with them, each by name.

use std::sync::Arc;

use apiserver_auth::authentication::pki::Pki;
use apiserver_auth::authentication::tokens::Issuer;
use apiserver_meta::ambient::Ambient;
use apiserver_meta::identity::Identity;
use apiserver_meta::pods::MIRROR;
use apiserver_server::ServerConfig;
use serde_json::{Value, json};

use crate::api::harness::{Api, Reply, every_api, pod};

pub const CORE: &str = "/api/v1/namespaces/default";
pub const NODES: &str = "/api/v1/nodes";

/// A server with nodes `n1` and `n2`, and the kubelet of the first. Pod `mine` is on the first and `theirs` on the
/// second; each refers to a Secret, a ConfigMap and a ServiceAccount of its own name.
pub struct Cluster {
    pub admin: Api,
    pub kubelet: Api,
    _pki: tempfile::TempDir,
}

fn kubelet_of(admin: &Api, node: &str) -> Api {
    admin.as_user(Identity::authenticated(&format!("system:node:{node}"), &["system:nodes"]))
}

impl Cluster {
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), &Ambient::system()).unwrap();
        let issuer = Issuer::open(&pki, "https://kubernetes.default.svc.cluster.local", &[]).unwrap();
        let config = ServerConfig { issuer: Some(Arc::new(issuer)), ..every_api() };
        let admin = Api::with(config).await;
        for node in ["n1", "n2"] {
            admin.post(NODES, json!({"metadata": {"name": node}})).await.expect(201);
        }
        for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
            admin.post(&format!("{CORE}/secrets"), json!({"metadata": {"name": name}})).await.expect(201);
            admin.post(&format!("{CORE}/configmaps"), json!({"metadata": {"name": name}})).await.expect(201);
            let account = json!({"metadata": {"name": name}});
            admin.post(&format!("{CORE}/serviceaccounts"), account).await.expect(201);
            let mut object = referring(name);
            object["spec"]["nodeName"] = node.into();
            admin.post(&format!("{CORE}/pods"), object).await.expect(201);
        }
        let kubelet = kubelet_of(&admin, "n1");
        Self { admin, kubelet, _pki: directory }
    }

    async fn node(&self, name: &str) -> Value {
        self.admin.get(&format!("{NODES}/{name}")).await.expect(200).body
    }

    async fn patch_own(&self, patch: Value) -> Reply {
        self.kubelet.patch("merge", &format!("{NODES}/n1"), patch).await
    }

    pub async fn token(&self, account: &str, spec: Value) -> Reply {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        self.kubelet.post(&format!("{CORE}/serviceaccounts/{account}/token"), request).await
    }

    /// Returns the reference of the pod that a token is bound to.
    pub async fn bound_to(&self, pod: &str) -> Value {
        let found = self.admin.get(&format!("{CORE}/pods/{pod}")).await.expect(200).body;
        json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": found["metadata"]["uid"]})
    }
}

/// A pod that refers to objects of its own name.
fn referring(name: &str) -> Value {
    let mut object = pod(name);
    object["spec"]["serviceAccountName"] = name.into();
    object["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": name}}]);
    let token = json!({"serviceAccountToken": {"path": "t", "audience": "vault"}});
    object["spec"]["volumes"] = json!([
        {"name": "s", "secret": {"secretName": name}},
        {"name": "t", "projected": {"sources": [token]}},
    ]);
    object
}

#[track_caller]
pub fn says(refused: &Reply, why: &str) {
    assert_eq!(refused.code, 403, "{}", refused.text);
    assert!(refused.message().contains(why), "{}", refused.text);
}

#[tokio::test(start_paused = true)]
async fn a_node_reads_only_what_its_pods_refer_to() {
    let cluster = Cluster::start().await;
    let kubelet = &cluster.kubelet;
    for kind in ["secrets", "configmaps", "serviceaccounts", "pods"] {
        kubelet.get(&format!("{CORE}/{kind}/mine")).await.expect(200);
        let refused = kubelet.get(&format!("{CORE}/{kind}/theirs")).await;
        says(&refused, "no relationship found between node 'n1' and this object");
    }
    for kind in ["secrets", "configmaps"] {
        let selected = |name: &str| format!("{CORE}/{kind}?fieldSelector=metadata.name%3D{name}");
        assert_eq!(kubelet.get(&selected("mine")).await.expect(200).names(), ["mine"]);
        let mut watch = kubelet.watch(&format!("{}&watch=1", selected("mine"))).await;
        assert_eq!(watch.brief().await, "ADDED mine");
        kubelet.get(&selected("theirs")).await.expect(403);
        kubelet.get(&format!("{CORE}/watch/{kind}/theirs?x=watch")).await.expect(403);
        for everything in [
            format!("{CORE}/{kind}"),
            format!("/api/v1/{kind}"),
            format!("/api/v1/{kind}?fieldSelector=metadata.name%3Dmine"),
            format!("/api/v1/{kind}?fieldSelector=metadata.name%3Dmine,metadata.namespace%3Ddefault"),
            format!("{CORE}/{kind}?fieldSelector=metadata.name!%3Dmine"),
            format!("/api/v1/watch/{kind}"),
            format!("{CORE}/{kind}?labelSelector=a"),
        ] {
            kubelet.get(&everything).await.expect(403);
        }
    }
    let mut reply = kubelet.get(&format!("{CORE}/secrets")).await;
    assert_eq!(reply.reason(), "Forbidden");
    assert_eq!(
        reply.body["message"].take(),
        "secrets is forbidden: User \"system:node:n1\" cannot list resource \"secrets\" in API group \"\" in the \
         namespace \"default\": No Object name found"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_lists_and_watches_the_pods_that_are_bound_to_it_and_no_others() {
    let cluster = Cluster::start().await;
    let kubelet = &cluster.kubelet;
    let selected = |selector: &str| format!("/api/v1/pods?fieldSelector={selector}");
    assert_eq!(kubelet.get(&selected("spec.nodeName%3Dn1")).await.expect(200).names(), ["mine"]);
    let mut watch = kubelet.watch(&format!("{}&watch=1", selected("spec.nodeName%3Dn1"))).await;
    assert_eq!(watch.brief().await, "ADDED mine");
    for selector in
        ["", "spec.nodeName%3Dn2", "spec.nodeName!%3Dn2", "spec.nodeName%3D", "metadata.name%3Dtheirs"]
    {
        kubelet.get(&selected(selector)).await.expect(403);
        kubelet.get(&format!("{}&watch=1", selected(selector))).await.expect(403);
    }
    // The first of several selectors is the one that counts, for both.
    kubelet.get(&selected("spec.nodeName%3Dn2&fieldSelector=spec.nodeName%3Dn1")).await.expect(403);
    let two = selected("spec.nodeName%3Dn1&fieldSelector=spec.nodeName%3Dn2");
    assert_eq!(kubelet.get(&two).await.expect(200).names(), ["mine"]);
    assert_eq!(
        kubelet.get(&format!("{NODES}?fieldSelector=metadata.name%3Dn1")).await.expect(200).names(),
        ["n1"]
    );
    says(&kubelet.get(NODES).await, "node 'n1' cannot read all nodes, only its own Node object");
    says(&kubelet.get(&format!("{NODES}/n2")).await, "cannot read 'n2', only its own Node object");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_hears_of_a_pod_may_read_at_once_what_the_pod_refers_to() {
    let cluster = Cluster::start().await;
    let (admin, kubelet) = (&cluster.admin, &cluster.kubelet);
    let mut watch = kubelet.watch("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&watch=1").await;
    assert_eq!(watch.brief().await, "ADDED mine");
    for turn in 0..20 {
        let name = format!("p{turn}");
        admin.post(&format!("{CORE}/secrets"), json!({"metadata": {"name": name}})).await.expect(201);
        let account = json!({"metadata": {"name": name}});
        admin.post(&format!("{CORE}/serviceaccounts"), account).await.expect(201);
        admin.post(&format!("{CORE}/pods"), referring(&name)).await.expect(201);
        let secret = format!("{CORE}/secrets/{name}");
        kubelet.get(&secret).await.expect(403);
        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}});
        admin.post(&format!("{CORE}/pods/{name}/binding"), binding).await.expect(201);
        assert_eq!(watch.brief().await, format!("ADDED {name}"));
        kubelet.get(&secret).await.expect(200);
        let bound = cluster.bound_to(&name).await;
        cluster.token(&name, json!({"boundObjectRef": bound})).await.expect(201);
    }
    let gone = json!({"gracePeriodSeconds": 0});
    kubelet.delete(&format!("{CORE}/pods/p0"), gone).await.expect(200);
    while watch.brief().await != "DELETED p0" {}
    kubelet.get(&format!("{CORE}/secrets/p0")).await.expect(403);
}

#[tokio::test(start_paused = true)]
async fn a_node_follows_claims_to_their_volumes_and_secrets() {
    let cluster = Cluster::start().await;
    let (admin, kubelet) = (&cluster.admin, &cluster.kubelet);
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": "vault"}})).await.expect(201);
    let resources = json!({"requests": {"storage": "1Gi"}});
    for name in ["mine", "theirs"] {
        admin.post("/api/v1/namespaces/vault/secrets", json!({"metadata": {"name": name}})).await.expect(201);
        let claim = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": "", "resources": resources, "volumeName": format!("pv-{name}")}});
        admin.post(&format!("{CORE}/persistentvolumeclaims"), claim).await.expect(201);
        let secret = json!({"name": name, "namespace": "vault"});
        let volume = json!({"metadata": {"name": format!("pv-{name}")}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d", "volumeHandle": name, "nodePublishSecretRef": secret},
            "claimRef": {"namespace": "default", "name": name}}});
        admin.post("/api/v1/persistentvolumes", volume).await.expect(201);
        let mut object = pod(&format!("uses-{name}"));
        object["spec"]["nodeName"] = (if name == "mine" { "n1" } else { "n2" }).into();
        object["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]);
        admin.post(&format!("{CORE}/pods"), object).await.expect(201);
    }
    for (name, code) in [("mine", 200), ("theirs", 403)] {
        kubelet.get(&format!("{CORE}/persistentvolumeclaims/{name}")).await.expect(code);
        kubelet.get(&format!("/api/v1/persistentvolumes/pv-{name}")).await.expect(code);
        kubelet.get(&format!("/api/v1/namespaces/vault/secrets/{name}")).await.expect(code);
        let status = format!("{CORE}/persistentvolumeclaims/{name}/status");
        let grown = json!({"status": {"capacity": {"storage": "1Gi"}}});
        kubelet.patch("merge", &status, grown).await.expect(code);
    }
    let status = format!("{CORE}/persistentvolumeclaims/mine/status");
    let relabelled = json!({"metadata": {"annotations": {"a": "b"}}});
    let refused = kubelet.patch("merge", &status, relabelled).await;
    says(
        &refused,
        "node \"n1\" is not allowed to update fields other than status.quantity and status.conditions",
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_sets_no_restricted_labels_of_its_node() {
    let cluster = Cluster::start().await;
    let restricted = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/tier": "secret"}}});
    let why = "is not allowed to modify labels: node-restriction.kubernetes.io/tier";
    says(&cluster.patch_own(restricted.clone()).await, why);
    let status = format!("{NODES}/n1/status");
    says(&cluster.kubelet.patch("merge", &status, restricted.clone()).await, why);
    says(&cluster.kubelet.patch("strategic-merge", &status, restricted.clone()).await, why);
    let mut whole = cluster.node("n1").await;
    whole["metadata"]["labels"]["node-restriction.kubernetes.io/tier"] = "secret".into();
    says(&cluster.kubelet.put(&format!("{NODES}/n1"), whole.clone()).await, why);
    says(&cluster.kubelet.put(&status, whole).await, why);
    let applied = json!({"apiVersion": "v1", "kind": "Node", "metadata": restricted["metadata"]});
    for path in [format!("{NODES}/n1"), status] {
        let headers = [("content-type", "application/apply-patch+yaml")];
        let path = format!("{path}?fieldManager=me&force=true");
        says(&cluster.kubelet.call("PATCH", &path, &headers, applied.to_string()).await, why);
    }
    let role = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
    cluster.patch_own(role).await.expect(403);
    let free = json!({"metadata": {"labels": {"app": "x", "kubernetes.io/hostname": "n1"}}});
    cluster.patch_own(free).await.expect(200);
    let new =
        json!({"metadata": {"name": "n3", "labels": {"node-restriction.kubernetes.io/tier": "secret"}}});
    let refused = kubelet_of(&cluster.admin, "n3").post(NODES, new).await;
    says(
        &refused,
        "node \"n3\" is not allowed to set the following labels: node-restriction.kubernetes.io/tier",
    );
    let labels = cluster.node("n1").await["metadata"]["labels"].clone();
    assert!(!labels.to_string().contains("restriction"), "{labels}");
}

#[tokio::test(start_paused = true)]
async fn a_node_changes_neither_its_taints_nor_its_owners() {
    let cluster = Cluster::start().await;
    let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    says(&cluster.patch_own(taint.clone()).await, "node \"n1\" is not allowed to modify taints");
    cluster.admin.patch("merge", &format!("{NODES}/n1"), taint).await.expect(200);
    let untainted = json!({"spec": {"taints": null}});
    says(&cluster.patch_own(untainted).await, "node \"n1\" is not allowed to modify taints");
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}]);
    let owned = json!({"metadata": {"ownerReferences": owner}});
    says(&cluster.patch_own(owned).await, "node \"n1\" is not allowed to modify ownerReferences");
    let new = json!({"metadata": {"name": "n3", "ownerReferences": owner}});
    let refused = kubelet_of(&cluster.admin, "n3").post(NODES, new).await;
    says(&refused, "node \"n3\" is not allowed to modify ownerReferences");
    cluster.patch_own(json!({"spec": {"unschedulable": true}})).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn a_node_writes_no_other_node_and_deletes_none() {
    let cluster = Cluster::start().await;
    let kubelet = &cluster.kubelet;
    let label = json!({"metadata": {"labels": {"app": "x"}}});
    let why = "node \"n1\" is not allowed to modify node \"n2\"";
    says(&kubelet.patch("merge", &format!("{NODES}/n2"), label.clone()).await, why);
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    says(&kubelet.patch("strategic-merge", &format!("{NODES}/n2/status"), ready).await, why);
    let refused = kubelet.post(NODES, json!({"metadata": {"name": "n4"}})).await;
    says(&refused, "node \"n1\" is not allowed to modify node \"n4\"");
    kubelet.post(NODES, json!({"metadata": {"generateName": "n1"}})).await.expect(403);
    kubelet.delete(&format!("{NODES}/n1"), json!(null)).await.expect(403);
    kubelet.delete(&format!("{NODES}/n2"), json!(null)).await.expect(403);
    let leases = |namespace: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
    kubelet.post(&leases("kube-node-lease"), lease("n1")).await.expect(201);
    let refused = kubelet.post(&leases("kube-node-lease"), lease("n2")).await;
    says(&refused, "can only access node lease with the same name as the requesting node");
    let refused = kubelet.put(&format!("{}/n2", leases("kube-node-lease")), lease("n2")).await;
    says(&refused, "can only access node lease with the same name as the requesting node");
    let refused = kubelet.post(&leases("kube-system"), lease("n1")).await;
    says(&refused, "can only access leases in the \"kube-node-lease\" system namespace");
    let csi = "/apis/storage.k8s.io/v1/csinodes";
    let refused = kubelet.post(csi, json!({"metadata": {"name": "n2"}, "spec": {"drivers": []}})).await;
    says(&refused, "can only access CSINode with the same name as the requesting node");
    kubelet.post(csi, json!({"metadata": {"name": "n1"}, "spec": {"drivers": []}})).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn a_node_changes_no_labels_of_pods_through_their_status() {
    let cluster = Cluster::start().await;
    let kubelet = &cluster.kubelet;
    let label = json!({"metadata": {"labels": {"app": "admin"}}});
    let why = "node \"n1\" cannot update labels through pod status";
    let status = format!("{CORE}/pods/mine/status");
    says(&kubelet.patch("merge", &status, label.clone()).await, why);
    says(&kubelet.patch("strategic-merge", &status, label.clone()).await, why);
    let mut whole = kubelet.get(&format!("{CORE}/pods/mine")).await.expect(200).body;
    whole["metadata"]["labels"] = json!({});
    says(&kubelet.put(&status, whole).await, why);
    let applied = json!({"apiVersion": "v1", "kind": "Pod", "metadata": label["metadata"]});
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{status}?fieldManager=me&force=true");
    says(&kubelet.call("PATCH", &path, &headers, applied.to_string()).await, why);
    let claims = json!({"status": {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "theirs"}]}});
    says(&kubelet.patch("merge", &status, claims).await, "node \"n1\" cannot update resource claim statues");
    kubelet.patch("merge", &status, json!({"status": {"phase": "Running"}})).await.expect(200);
    let failed = json!({"status": {"phase": "Failed"}});
    let refused = kubelet.patch("merge", &format!("{CORE}/pods/theirs/status"), failed).await;
    says(&refused, "node \"n1\" can only update pod status for pods with spec.nodeName set to itself");
    for subresource in ["", "/resize", "/ephemeralcontainers"] {
        kubelet.patch("merge", &format!("{CORE}/pods/mine{subresource}"), label.clone()).await.expect(403);
    }
}

/// A pod as the kubelet of `n1` shows one that it runs from a file.
fn mirror(name: &str, uid: &Value) -> Value {
    let mut object = pod(name);
    object["metadata"]["annotations"] = json!({MIRROR: "hash"});
    object["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true}]);
    object["spec"]["nodeName"] = "n1".into();
    object
}

#[tokio::test(start_paused = true)]
async fn a_node_makes_no_pod_that_refers_to_others_objects() {
    let cluster = Cluster::start().await;
    let kubelet = &cluster.kubelet;
    let uid = cluster.node("n1").await["metadata"]["uid"].clone();
    let mirror = |name: &str| mirror(name, &uid);
    let pods = format!("{CORE}/pods");
    let mut plain = mirror("plain");
    plain["metadata"]["annotations"] = json!(null);
    says(&kubelet.post(&pods, plain).await, "node \"n1\" can only create mirror pods");
    // The plugin ServiceAccount, which comes first, refuses some of them to all users.
    for (name, field, value, why) in [
        (
            "a",
            "volumes",
            json!([{"name": "v", "secret": {"secretName": "theirs"}}]),
            "a mirror pod may not reference secrets",
        ),
        ("b", "imagePullSecrets", json!([{"name": "theirs"}]), "a mirror pod may not reference secrets"),
        (
            "c",
            "volumes",
            json!([{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
            "a mirror pod may not use ServiceAccountToken volume projections",
        ),
        (
            "d",
            "volumes",
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]),
            "node \"n1\" can not create pods that reference persistentvolumeclaims",
        ),
        (
            "e",
            "volumes",
            json!([{"name": "v", "configMap": {"name": "theirs"}}]),
            "node \"n1\" can not create pods that reference configmaps",
        ),
        (
            "j",
            "resourceClaims",
            json!([{"name": "c", "resourceClaimName": "theirs"}]),
            "node \"n1\" can not create pods that reference resourceclaims",
        ),
    ] {
        let mut object = mirror(name);
        object["spec"][field] = value;
        says(&kubelet.post(&pods, object).await, why);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_makes_no_pod_that_gives_it_rights() {
    let cluster = Cluster::start().await;
    let kubelet = &cluster.kubelet;
    let uid = cluster.node("n1").await["metadata"]["uid"].clone();
    let mirror = |name: &str| mirror(name, &uid);
    let pods = format!("{CORE}/pods");
    let mut account = mirror("f");
    account["spec"]["serviceAccountName"] = "theirs".into();
    kubelet.post(&pods, account).await.expect(403);
    let mut elsewhere = mirror("g");
    elsewhere["spec"]["nodeName"] = "n2".into();
    says(&kubelet.post(&pods, elsewhere).await, "spec.nodeName set to itself");
    let mut orphan = mirror("h");
    orphan["metadata"]["ownerReferences"] = json!(null);
    says(&kubelet.post(&pods, orphan).await, "with an owner reference set to itself");
    let mut stale = mirror("i");
    stale["metadata"]["ownerReferences"][0]["uid"] = "other".into();
    says(&kubelet.post(&pods, stale).await, "node n1 UID mismatch: expected other got");
    kubelet.post(&pods, mirror("good")).await.expect(201);
    kubelet.get(&format!("{CORE}/serviceaccounts/theirs")).await.expect(403);
    // Even if others have allowed such a pod, it gives no rights.
    let mut planted = mirror("planted");
    planted["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "theirs"}}]);
    cluster.admin.post(&pods, planted).await.expect(201);
    kubelet.get(&format!("{pods}/planted")).await.expect(200);
    kubelet.get(&format!("{CORE}/configmaps/theirs")).await.expect(403);
    let binding = json!({"metadata": {"name": "x"}, "target": {"kind": "Node", "name": "n1"}});
    kubelet.post(&format!("{pods}/theirs/binding"), binding).await.expect(403);
}

#[tokio::test(start_paused = true)]
async fn a_node_deletes_and_evicts_its_own_pods_only() {
    let cluster = Cluster::start().await;
    let kubelet = &cluster.kubelet;
    let eviction =
        |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let evict = |pod: &'static str, named: &'static str| {
        kubelet.call(
            "POST",
            match pod {
                "mine" => "/api/v1/namespaces/default/pods/mine/eviction",
                _ => "/api/v1/namespaces/default/pods/theirs/eviction",
            },
            &[("content-type", "application/json")],
            eviction(named).to_string(),
        )
    };
    let why = "node n1 can only evict pods with spec.nodeName set to itself";
    says(&evict("theirs", "theirs").await, why);
    says(&evict("theirs", "").await, why);
    evict("mine", "mine").await.expect(201);
    let path = format!("{CORE}/pods/theirs");
    let refused = kubelet.delete(&path, json!({"gracePeriodSeconds": 0})).await;
    says(&refused, "node \"n1\" can only delete pods with spec.nodeName set to itself");
    let all = format!("{CORE}/pods?fieldSelector=spec.nodeName%3Dn1");
    kubelet.delete(&all, json!(null)).await.expect(403);
    let gone = json!({"gracePeriodSeconds": 0});
    kubelet.delete(&format!("{CORE}/pods/mine"), gone).await.expect(200);
    assert!(cluster.admin.get(&path).await.expect(200).body["metadata"].get("deletionTimestamp").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_node_reads_its_own_attachments_slices_and_claims_of_devices() {
    let cluster = Cluster::start().await;
    let (admin, kubelet) = (&cluster.admin, &cluster.kubelet);
    let attachments = "/apis/storage.k8s.io/v1/volumeattachments";
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        let attachment = json!({"metadata": {"name": name}, "spec": {"attacher": "d", "nodeName": node,
            "source": {"persistentVolumeName": "pv"}}});
        admin.post(attachments, attachment).await.expect(201);
        let request = json!([{"name": "r", "exactly": {"deviceClassName": "c"}}]);
        let claim = json!({"metadata": {"name": name}, "spec": {"devices": {"requests": request}}});
        admin.post(claims, claim).await.expect(201);
        let mut object = pod(&format!("with-{name}"));
        object["spec"]["nodeName"] = node.into();
        object["spec"]["resourceClaims"] = json!([{"name": "c", "resourceClaimName": name}]);
        object["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "c"}]});
        admin.post(&format!("{CORE}/pods"), object).await.expect(201);
        let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
        let slice = json!({"metadata": {"name": name}, "spec": {"driver": "d.example.com", "nodeName": node,
            "pool": pool, "devices": []}});
        let code = if name == "mine" { 201 } else { 403 };
        let answer = kubelet.post(slices, slice.clone()).await.expect(code);
        if code == 403 {
            let why = "can only create ResourceSlice with the same NodeName as the requesting node";
            says(&answer, why);
            admin.post(slices, slice).await.expect(201);
        }
    }
    for (name, code) in [("mine", 200), ("theirs", 403)] {
        for kind in [attachments, slices, claims] {
            kubelet.get(&format!("{kind}/{name}")).await.expect(code);
        }
    }
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    kubelet.patch("merge", &format!("{slices}/theirs"), label.clone()).await.expect(403);
    kubelet.patch("merge", &format!("{slices}/mine"), label).await.expect(200);
    kubelet.get(slices).await.expect(403);
    kubelet.delete(slices, json!(null)).await.expect(403);
    kubelet.delete(&format!("{slices}/theirs"), json!(null)).await.expect(403);
    let own = format!("{slices}?fieldSelector=spec.nodeName%3Dn1");
    assert_eq!(kubelet.get(&own).await.expect(200).names(), ["mine"]);
    kubelet.delete(&own, json!(null)).await.expect(200);
    assert_eq!(admin.get(slices).await.expect(200).names(), ["theirs"]);
}
