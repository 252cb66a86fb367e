//! Tests of the tokens that a kubelet requests for its pods, and of the rights that it is told it has.

use apiserver_auth::authentication::tokens::BoundKind;
use apiserver_server::Server;
use serde_json::{Value, json};

use crate::api::harness::pod;
use crate::api::nodes::{CORE, Cluster, NODES, says};

#[tokio::test(start_paused = true)]
async fn a_node_gets_tokens_for_its_pods_and_the_audiences_that_they_name() {
    let cluster = Cluster::start().await;
    let (mine, theirs) = (cluster.bound_to("mine").await, cluster.bound_to("theirs").await);
    let asked = |bound: &Value, audiences: Value| json!({"boundObjectRef": bound, "audiences": audiences});
    cluster.token("mine", asked(&mine, json!(null))).await.expect(201);
    cluster.token("mine", asked(&mine, json!(["vault"]))).await.expect(201);
    says(
        &cluster.token("mine", asked(&mine, json!(["other"]))).await,
        "audience \"other\" not found in pod spec volume, system:node:n1 is not authorized to request tokens for \
         this audience",
    );
    let two = cluster.token("mine", asked(&mine, json!(["vault", "other"]))).await;
    says(&two, "node may only request 0 or 1 audiences");
    says(&cluster.token("mine", json!({})).await, "node requested token not bound to a pod");
    let mut anyone = mine.clone();
    anyone["uid"] = json!(null);
    let refused = cluster.token("mine", asked(&anyone, json!(null))).await;
    says(&refused, "node requested token with a pod binding without a uid");
    let node = json!({"apiVersion": "v1", "kind": "Node", "name": "n1"});
    says(&cluster.token("mine", asked(&node, json!(null))).await, "node requested token not bound to a pod");
    let refused = cluster.token("mine", asked(&theirs, json!(null))).await;
    says(&refused, "node requested token bound to a pod scheduled on a different node");
    for bound in [&mine, &theirs] {
        let refused = cluster.token("theirs", asked(bound, json!(null))).await;
        says(&refused, "no relationship found between node 'n1' and this object");
    }
    // A driver of one of the pod's volumes asks for an audience of its own.
    let driver =
        json!({"metadata": {"name": "d.example.com"}, "spec": {"tokenRequests": [{"audience": "other"}]}});
    cluster.admin.post("/apis/storage.k8s.io/v1/csidrivers", driver).await.expect(201);
    let mut object = pod("with-driver");
    object["spec"]["nodeName"] = "n1".into();
    object["spec"]["serviceAccountName"] = "mine".into();
    object["spec"]["volumes"] = json!([{"name": "v", "csi": {"driver": "d.example.com"}}]);
    cluster.admin.post(&format!("{CORE}/pods"), object).await.expect(201);
    let bound = cluster.bound_to("with-driver").await;
    cluster.token("mine", asked(&bound, json!(["other"]))).await.expect(201);
    cluster.token("mine", asked(&bound, json!(["vault"]))).await.expect(403);
}

#[tokio::test(start_paused = true)]
async fn an_administrator_can_give_a_node_an_audience() {
    let cluster = Cluster::start().await;
    let bound = cluster.bound_to("mine").await;
    let spec = json!({"boundObjectRef": bound, "audiences": ["registry"]});
    cluster.token("mine", spec.clone()).await.expect(403);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rule = json!({"verbs": ["request-serviceaccounts-token-audience"], "apiGroups": [""],
        "resources": ["registry"], "resourceNames": ["mine"]});
    let role = json!({"metadata": {"name": "audience"}, "rules": [rule]});
    cluster.admin.post(&format!("{rbac}/clusterroles"), role).await.expect(201);
    let binding = json!({"metadata": {"name": "audience"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "audience"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:node:n1"}]});
    cluster.admin.post(&format!("{rbac}/clusterrolebindings"), binding).await.expect(201);
    cluster.token("mine", spec).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn the_deletion_of_a_pod_is_known_to_those_who_check_its_tokens() {
    let cluster = Cluster::start().await;
    let server: &Server = &cluster.admin.server;
    let deleted =
        || server.access().bound_objects().lookup(BoundKind::Pod, "default", "mine").unwrap().deleted;
    assert_eq!(deleted(), None);
    let path = format!("{CORE}/pods/mine");
    let going = cluster.admin.delete(&path, json!({"gracePeriodSeconds": 40})).await.expect(200).body;
    let time: jiff::Timestamp = going["metadata"]["deletionTimestamp"].as_str().unwrap().parse().unwrap();
    server.objects().fresh().await.unwrap();
    assert_eq!(deleted(), Some(time.as_second()));
}

#[tokio::test(start_paused = true)]
async fn a_node_asks_for_certificates_of_its_pods_as_they_run() {
    let cluster = Cluster::start().await;
    let kubelet = &cluster.kubelet;
    let requests = "/apis/certificates.k8s.io/v1beta1/namespaces/default/podcertificaterequests";
    let uid = async |path: String| cluster.admin.get(&path).await.expect(200).body["metadata"]["uid"].clone();
    let node = uid(format!("{NODES}/n1")).await;
    for (name, why) in [("theirs", "is not running on node \"n1\""), ("mine", "")] {
        let spec = json!({"signerName": "example.com/x", "nodeName": "n1", "nodeUID": node,
            "podName": name, "podUID": uid(format!("{CORE}/pods/{name}")).await,
            "serviceAccountName": name, "serviceAccountUID": uid(format!("{CORE}/serviceaccounts/{name}")).await});
        let answer = kubelet.post(requests, json!({"metadata": {"name": name}, "spec": spec})).await;
        if why.is_empty() {
            // The proof of possession is for validation to ask for.
            assert_eq!(answer.code, 422, "{}", answer.text);
        } else {
            says(&answer, why);
        }
    }
    let elsewhere = json!({"signerName": "example.com/x", "nodeName": "n2"});
    let refused = kubelet.post(requests, json!({"metadata": {"name": "x"}, "spec": elsewhere})).await;
    says(&refused, "which is not the requesting node \"n1\"");
    kubelet.get(requests).await.expect(403);
    kubelet.get(&format!("{requests}?fieldSelector=spec.nodeName%3Dn1")).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn reviews_give_the_answers_of_the_node_authorizer() {
    let cluster = Cluster::start().await;
    let may = async |name: &str, selector: Value| {
        let verb = if name.is_empty() { "list" } else { "get" };
        let resource = if name.is_empty() { "pods" } else { "secrets" };
        let attributes = json!({"verb": verb, "resource": resource, "namespace": "default", "name": name,
            "fieldSelector": selector});
        let review = json!({"spec": {"resourceAttributes": attributes}});
        let own =
            cluster.kubelet.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review.clone());
        let own = own.await.expect(201).body;
        let mut review = review;
        review["spec"]["user"] = "system:node:n1".into();
        review["spec"]["groups"] = json!(["system:nodes"]);
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let other = cluster.admin.post(path, review).await.expect(201).body;
        assert_eq!(own["status"], other["status"]);
        own["status"].clone()
    };
    assert_eq!(may("mine", json!(null)).await["allowed"], true);
    let refused = may("theirs", json!(null)).await;
    assert_eq!(refused["allowed"], false);
    assert_eq!(refused["reason"], "no relationship found between node 'n1' and this object");
    for (selector, allowed) in [
        (json!({"rawSelector": "spec.nodeName=n1"}), true),
        (json!({"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}), true),
        (json!({"requirements": [{"key": "spec.nodeName", "operator": "NotIn", "values": ["n1"]}]}), false),
        (
            json!({"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1", "n2"]}]}),
            false,
        ),
        (json!({"rawSelector": "spec.nodeName=n2"}), false),
        (json!(null), false),
    ] {
        assert_eq!(may("", selector.clone()).await["allowed"], allowed, "{selector}");
    }
    let rules = json!({"spec": {"namespace": "default"}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let rules = cluster.kubelet.post(path, rules).await.expect(201).body;
    assert_eq!(rules["status"]["incomplete"], true);
}
