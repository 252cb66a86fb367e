//! Tests of every selectable field of every served kind, and of the errors for others.

use apiserver_kinds::builtin;
use serde_json::{Value, json};

use crate::api::harness::{Api, deployment, pod};

const NS: &str = "/api/v1/namespaces/default";

/// Names selected by a field selector.
async fn chosen(api: &Api, path: &str, selector: &str) -> Vec<String> {
    let selector = selector.replace('=', "%3D").replace(',', "%2C");
    let reply = api.get(&format!("{path}?fieldSelector={selector}")).await.expect(200);
    reply.names().into_iter().map(str::to_owned).collect()
}

async fn check(api: &Api, path: &str, table: &[(&str, &[&str])]) {
    for (selector, names) in table {
        assert_eq!(chosen(api, path, selector).await, *names, "{path} {selector}");
        // The remaining objects do not match.
        if let Some((field, value)) = selector.split_once('=').filter(|_| !selector.contains(['!', ','])) {
            let all = chosen(api, path, "").await;
            let rest: Vec<String> = all.into_iter().filter(|name| !names.contains(&name.as_str())).collect();
            assert_eq!(chosen(api, path, &format!("{field}!={value}")).await, rest, "{path} not {selector}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pods() {
    let api = Api::start().await;
    let path = format!("{NS}/pods");
    api.post(&format!("{NS}/serviceaccounts"), json!({"metadata": {"name": "robot"}})).await.expect(201);
    let mut b = pod("b");
    b["spec"]["restartPolicy"] = "Never".into();
    b["spec"]["schedulerName"] = "mine".into();
    b["spec"]["serviceAccountName"] = "robot".into();
    b["spec"]["hostNetwork"] = true.into();
    api.post(&path, pod("a")).await.expect(201);
    api.post(&path, b).await.expect(201);
    api.post(&format!("{path}/b/binding"), json!({"target": {"name": "n1"}})).await.expect(201);
    let status = json!({"status": {"phase": "Running", "podIP": "10.0.0.1", "nominatedNodeName": "n2",
        "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
    api.patch("merge", &format!("{path}/b/status"), status).await.expect(200);
    let table: [(&str, &[&str]); 17] = [
        ("metadata.name=a", &["a"]),
        ("metadata.namespace=default", &["a", "b"]),
        ("spec.nodeName=n1", &["b"]),
        ("spec.nodeName=", &["a"]),
        ("spec.host=n1", &["b"]),
        ("spec.restartPolicy=Never", &["b"]),
        ("spec.schedulerName=default-scheduler", &["a"]),
        ("spec.serviceAccountName=robot", &["b"]),
        ("spec.hostNetwork=true", &["b"]),
        ("spec.hostNetwork=false", &["a"]),
        ("status.phase=Running", &["b"]),
        ("status.podIP=10.0.0.1", &["b"]),
        ("status.podIPs=10.0.0.1\\,fd00::1", &["b"]),
        ("status.nominatedNodeName=n2", &["b"]),
        ("status.phase=Running,spec.nodeName=n2", &[]),
        ("status.phase!=Running,metadata.name==a", &["a"]),
        ("spec.nodeName=n1,metadata.namespace!=kube-system", &["b"]),
    ];
    check(&api, &path, &table).await;
    check(&api, "/api/v1/pods", &table).await;
    // A node's pods, page by page and at a state of the past.
    for i in 0..5 {
        api.post(&path, pod(&format!("n{i}"))).await.expect(201);
        let binding = json!({"target": {"name": "n1"}});
        api.post(&format!("{path}/n{i}/binding"), binding).await.expect(201);
    }
    let before = api.store.revision().await.unwrap();
    api.delete(&format!("{path}/n0"), json!({"gracePeriodSeconds": 0})).await.expect(200);
    let first = api.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&limit=2").await.expect(200);
    assert_eq!(first.names(), ["b", "n1"]);
    assert_eq!(first.body["metadata"].get("remainingItemCount"), None);
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let rest = format!("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&continue={token}");
    assert_eq!(api.get(&rest).await.expect(200).names(), ["n2", "n3", "n4"]);
    let exact = format!(
        "{path}?fieldSelector=spec.nodeName%3Dn1&resourceVersionMatch=Exact&resourceVersion={before}"
    );
    assert_eq!(api.get(&exact).await.expect(200).names(), ["b", "n0", "n1", "n2", "n3", "n4"]);
}

#[tokio::test(start_paused = true)]
async fn other_core_kinds() {
    let api = Api::start().await;
    api.post("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.expect(201);
    let off = json!({"metadata": {"name": "n2"}, "spec": {"unschedulable": true}});
    api.post("/api/v1/nodes", off).await.expect(201);
    check(
        &api,
        "/api/v1/nodes",
        &[
            ("spec.unschedulable=true", &["n2"]),
            ("spec.unschedulable=false", &["n1"]),
            ("metadata.name=n1", &["n1"]),
        ],
    )
    .await;
    let secrets = format!("{NS}/secrets");
    api.post(&secrets, json!({"metadata": {"name": "a"}})).await.expect(201);
    api.post(&secrets, json!({"metadata": {"name": "b"}, "type": "example.com/x"})).await.expect(201);
    check(&api, &secrets, &[("type=Opaque", &["a"]), ("type=example.com/x", &["b"])]).await;
    let services = format!("{NS}/services");
    let port = json!([{"port": 80}]);
    let headless = json!({"metadata": {"name": "a"}, "spec": {"clusterIP": "None", "ports": port}});
    api.post(&services, headless).await.expect(201);
    let outside = json!({"metadata": {"name": "b"}, "spec": {"type": "NodePort", "ports": port}});
    let address = api.post(&services, outside).await.expect(201).body["spec"]["clusterIP"].clone();
    let address = format!("spec.clusterIP={}", address.as_str().unwrap());
    let table: [(&str, &[&str]); 3] =
        [("spec.clusterIP=None", &["a"]), (&address, &["b"]), ("spec.type=NodePort", &["b"])];
    check(&api, &services, &table).await;
    api.post(
        "/api/v1/namespaces",
        json!({"metadata": {"name": "going"}, "spec": {"finalizers": ["kubernetes"]}}),
    )
    .await
    .expect(201);
    api.delete("/api/v1/namespaces/going", Value::Null).await;
    assert_eq!(chosen(&api, "/api/v1/namespaces", "status.phase=Terminating").await, ["going"]);
    assert_eq!(chosen(&api, "/api/v1/namespaces", "status.phase=Active").await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn workloads_and_requests() {
    let api = Api::start().await;
    let template = json!({"metadata": {"labels": {"app": "a"}},
        "spec": {"restartPolicy": "Always", "containers": [{"name": "c", "image": "i"}]}});
    let selector = json!({"app": "a"});
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let set = json!({"metadata": {"name": "a"},
        "spec": {"replicas": 2, "selector": {"matchLabels": selector}, "template": template}});
    api.post(sets, set).await.expect(201);
    api.patch("merge", &format!("{sets}/a/status"), json!({"status": {"replicas": 2}})).await.expect(200);
    check(&api, sets, &[("status.replicas=2", &["a"]), ("status.replicas=0", &[])]).await;
    let controllers = format!("{NS}/replicationcontrollers");
    let controller = json!({"metadata": {"name": "a"}, "spec": {"replicas": 2, "selector": selector, "template": template}});
    api.post(&controllers, controller).await.expect(201);
    check(&api, &controllers, &[("status.replicas=0", &["a"])]).await;
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let mut job = json!({"metadata": {"name": "a"}, "spec": {"template": template}});
    job["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
    api.post(jobs, job).await.expect(201);
    check(&api, jobs, &[("status.successful=0", &["a"]), ("status.successful=1", &[])]).await;
}

#[tokio::test(start_paused = true)]
async fn events_by_what_they_are_about() {
    let api = Api::start().await;
    let path = format!("{NS}/events");
    let event = json!({"metadata": {"name": "a"}, "reason": "Started", "type": "Normal",
        "source": {"component": "kubelet"}, "message": "m",
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p", "uid": "u", "apiVersion": "v1",
            "resourceVersion": "7", "fieldPath": "spec.containers{c}"}});
    api.post(&path, event).await.expect(201);
    let other = json!({"metadata": {"name": "b"}, "reason": "Killed", "type": "Warning", "message": "m",
        "involvedObject": {"kind": "Node", "namespace": "default", "name": "n"}});
    api.post(&path, other).await.expect(201);
    for field in [
        "involvedObject.kind=Pod",
        "involvedObject.name=p",
        "involvedObject.uid=u",
        "involvedObject.apiVersion=v1",
        "involvedObject.resourceVersion=7",
        "involvedObject.fieldPath=spec.containers{c}",
        "involvedObject.namespace=default,involvedObject.kind=Pod",
        "reason=Started",
        "source=kubelet",
        "reportingComponent=kubelet",
        "type=Normal",
    ] {
        check(&api, &path, &[(field, &["a"])]).await;
    }
}

/// Unknown field selectors are refused in words that clients of other servers match on.
#[tokio::test(start_paused = true)]
async fn fields_that_no_kind_has_are_refused_in_the_words_of_the_kind() {
    let api = Api::start().await;
    for resource in builtin::registry().iter().filter(|resource| resource.stored) {
        let group =
            if resource.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", resource.group) };
        let path = format!("{group}/{}/{}", resource.version, resource.plural);
        let expected = match resource.kind.as_str() {
            kind @ ("Job" | "ReplicaSet") => format!("field label \"spec.color\" not supported for {kind}"),
            _ if resource.selectable.is_empty() => {
                "\"spec.color\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    .into()
            }
            _ => "field label not supported: spec.color".to_owned(),
        };
        for query in ["", "&watch=1"] {
            let reply = api.get(&format!("{path}?fieldSelector=spec.color%3Dred{query}")).await.expect(400);
            assert_eq!((reply.message(), reply.reason()), (expected.as_str(), "BadRequest"), "{path}");
        }
        api.get(&format!("{path}?fieldSelector=metadata.name%3Dx")).await.expect(200);
    }
    let bad = api.get(&format!("{NS}/pods?fieldSelector=spec.nodeName")).await.expect(400);
    assert_eq!(bad.message(), "invalid selector: 'spec.nodeName'; can't understand 'spec.nodeName'");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_can_be_none_selects_nothing() {
    let api = Api::start().await;
    api.post("/apis/apps/v1/namespaces/default/deployments", deployment("a")).await.expect(201);
    for name in ["..", "a%2Fb", "%25"] {
        let path = format!("/apis/apps/v1/deployments?fieldSelector=metadata.name%3D{name}");
        assert!(api.get(&path).await.expect(200).names().is_empty(), "{name}");
    }
}
