//! The normal form of objects: the same steps with the embedded store, which keeps JSON, and with the
//! same store as etcd has it, in Kubernetes' protobuf. Clients cannot tell which one it is.

use std::sync::Arc;

use apiserver_schema::protobuf;
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use apiserver_store::{Got, Page, Range, Revision, Store, StoreError, Watch, Write, Written};
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::api::crds::{establish, widgets};
use crate::api::harness::{Api, Reply, every_api};
use crate::api::resources::every_object;

/// The embedded store, in which others read and write too.
struct Shared(Embedded);

#[async_trait]
impl Store for Shared {
    async fn get(&self, key: &str) -> Result<Got, StoreError> {
        self.0.get(key).await
    }

    async fn list(&self, range: Range) -> Result<Page, StoreError> {
        self.0.list(range).await
    }

    async fn write(&self, write: Write) -> Result<Written, StoreError> {
        self.0.write(write).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, StoreError> {
        self.0.watch(prefix, from).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.0.revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.0.compact(revision).await
    }

    async fn request_progress(&self) -> Result<(), StoreError> {
        self.0.request_progress().await
    }

    fn shared(&self) -> bool {
        true
    }
}

/// A server on either store.
pub async fn both() -> [Api; 2] {
    let store = Embedded::open(Arc::new(SimDisk::new(1)), Options::default()).await.unwrap();
    [Api::start().await, Api::over(every_api(), Arc::new(Shared(store))).await]
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const STATEFUL_SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// The object without what no two servers have in common.
fn plain(mut object: Value) -> Value {
    if let Value::Object(metadata) = &mut object["metadata"] {
        metadata.retain(|field, _| {
            !matches!(field.as_str(), "uid" | "resourceVersion" | "creationTimestamp" | "managedFields")
        });
    }
    object
}

fn version(reply: &Reply) -> &str {
    reply.body["metadata"]["resourceVersion"].as_str().unwrap()
}

#[tokio::test]
async fn stateful_sets_with_claims_can_be_changed() {
    for api in both().await {
        let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
        let labels = json!({"a": "b"});
        let set = json!({"metadata": {"name": "s"}, "spec": {"serviceName": "s", "replicas": 1,
            "selector": {"matchLabels": labels}, "volumeClaimTemplates": [claim],
            "template": {"metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        let made = api.post(STATEFUL_SETS, set.clone()).await.expect(201);
        let path = format!("{STATEFUL_SETS}/s");
        let templates = |object: &Value| object["spec"]["volumeClaimTemplates"].clone();
        let read = api.get(&path).await.expect(200).body;
        assert_eq!(templates(&made.body), templates(&read));
        assert_eq!(templates(&read)[0]["apiVersion"], "v1");
        assert_eq!(templates(&read)[0]["kind"], "PersistentVolumeClaim");
        assert_eq!(templates(&read)[0]["status"], json!({"phase": "Pending"}));
        let same = api.put(&path, set.clone()).await.expect(200);
        assert_eq!(same.version(), made.version());
        let mut more = set.clone();
        more["spec"]["replicas"] = 2.into();
        assert_eq!(api.put(&path, more).await.expect(200).body["metadata"]["generation"], 2);
        let patch = json!({"metadata": {"labels": {"x": "y"}}});
        for kind in ["merge", "strategic-merge"] {
            api.patch(kind, &path, patch.clone()).await.expect(200);
        }
        let mut other = set;
        other["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] = "other".into();
        api.put(&path, other).await.expect(422);
    }
}

#[tokio::test]
async fn csi_nodes_without_topology_can_be_changed() {
    for api in both().await {
        let nodes = "/apis/storage.k8s.io/v1/csinodes";
        let node = json!({"metadata": {"name": "n"},
            "spec": {"drivers": [{"name": "d.example.com", "nodeID": "n"}]}});
        api.post(nodes, node).await.expect(201);
        let path = format!("{nodes}/n");
        let patch = json!({"metadata": {"labels": {"x": "y"}}});
        api.patch("merge", &path, patch).await.expect(200);
        let drivers = |keys: Value| {
            let driver = json!({"name": "d.example.com", "nodeID": "n", "topologyKeys": keys});
            json!({"spec": {"drivers": [driver]}})
        };
        for keys in [json!([]), Value::Null] {
            let same = api.patch("merge", &path, drivers(keys)).await.expect(200);
            assert_eq!(same.body["spec"]["drivers"][0]["topologyKeys"], Value::Null);
        }
        api.patch("merge", &path, drivers(json!(["a"]))).await.expect(422);
    }
}

/// Returns the spec of a pod with zero values in it, and the same without.
fn specs() -> (Value, Value) {
    let container = json!({"name": "c", "image": "i", "stdin": false, "tty": false, "workingDir": "",
        "env": [{"name": "A", "value": ""}], "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": false}]});
    let spec = json!({"hostNetwork": false, "hostPID": false, "nodeName": "", "automountServiceAccountToken": false, "containers": [container],
        "volumes": [{"name": "v", "emptyDir": {"medium": ""}}]});
    let mut bare = spec.clone();
    for field in ["hostNetwork", "hostPID", "nodeName"] {
        bare.as_object_mut().unwrap().remove(field);
    }
    bare["containers"] = json!([{"name": "c", "image": "i", "env": [{"name": "A"}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    bare["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    (spec, bare)
}

#[tokio::test]
async fn zeros_that_are_written_are_none_to_others() {
    let (spec, bare) = specs();
    let template = |spec: &Value| json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
    let deployment = |spec: &Value, paused: Value| {
        json!({"metadata": {"name": "d"}, "spec": {"paused": paused, "minReadySeconds": 0,
            "selector": {"matchLabels": {"a": "b"}}, "template": template(spec)}})
    };
    let job = |spec: &Value| {
        let mut template = template(spec);
        template["spec"]["restartPolicy"] = "Never".into();
        json!({"metadata": {"name": "j"}, "spec": {"template": template}})
    };
    let pod = |spec: &Value| json!({"metadata": {"name": "p"}, "spec": spec});
    let node = |spec: Value| json!({"metadata": {"name": "n"}, "spec": spec});
    // A new node is given it anyway.
    let not_ready = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let service = |more: &[(&str, Value)]| {
        let mut spec = json!({"clusterIP": "None", "ports": [{"port": 80}]});
        more.iter().for_each(|(field, value)| spec[field] = value.clone());
        json!({"metadata": {"name": "s"}, "spec": spec})
    };
    let zeros = [
        ("loadBalancerIP", json!("")),
        ("publishNotReadyAddresses", json!(false)),
        ("ports", json!([{"name": "", "port": 80, "nodePort": 0}])),
    ];
    for api in both().await {
        for (collection, name, with, without) in [
            (PODS, "p", pod(&spec), pod(&bare)),
            (DEPLOYMENTS, "d", deployment(&spec, false.into()), deployment(&bare, Value::Null)),
            ("/apis/batch/v1/namespaces/default/jobs", "j", job(&spec), job(&bare)),
            (
                "/api/v1/nodes",
                "n",
                node(json!({"unschedulable": false, "podCIDR": "", "taints": [not_ready]})),
                node(json!({"taints": [not_ready]})),
            ),
            ("/api/v1/namespaces/default/services", "s", service(&zeros), service(&[])),
        ] {
            let path = format!("{collection}/{name}");
            let made = api.post(collection, with.clone()).await.expect(201);
            for zero in
                ["hostNetwork", "workingDir", "readOnly", "loadBalancerIP", "nodePort", "unschedulable"]
            {
                // In the managed fields they are `f:…`.
                assert!(!made.text.contains(&format!("\"{zero}\"")), "{zero}: {}", made.text);
                assert!(!made.text.contains(&format!("\"f:{zero}\"")), "{zero}: {}", made.text);
            }
            let (mut full, mut zeroed) = (made.body.clone(), made.body.clone());
            // Pods and jobs have few fields that can be left out again: the service account, the selector.
            let inner = if name == "j" { "/spec/template/spec" } else { "/spec" };
            if let ("p" | "j", Some(spec)) = (name, zeroed.pointer_mut(inner)) {
                spec["hostNetwork"] = false.into();
                spec["nodeName"] = "".into();
                spec["containers"][0]["workingDir"] = "".into();
                spec["containers"][0]["env"][0]["value"] = "".into();
                spec["containers"][0]["volumeMounts"][0]["readOnly"] = false.into();
            } else {
                (full, zeroed) = (without, with.clone());
            }
            for object in [&full, &zeroed] {
                let put = api.put(&path, object.clone()).await.expect(200);
                assert_eq!(version(&put), version(&made), "{object} {}", put.text);
            }
            let patched = api.patch("merge", &path, json!({"spec": zeroed["spec"]})).await.expect(200);
            assert_eq!(version(&patched), version(&made), "{}", patched.text);
        }
    }
}

#[tokio::test]
async fn zeros_of_a_configuration_are_owned_and_not_there() {
    for api in both().await {
        let path = format!("{PODS}/p?fieldManager=m");
        let config = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"hostNetwork": false, "containers": [{"name": "c", "image": "i", "stdin": false}]}});
        let made = api.apply(&path, config.clone()).await.expect(201);
        let spec = &made.body["spec"];
        assert_eq!((spec.get("hostNetwork"), spec["containers"][0].get("stdin")), (None, None));
        let owned = &made.body["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
        assert_eq!(owned["f:hostNetwork"], json!({}), "{owned}");
        let again = api.apply(&path, config).await.expect(200);
        assert_eq!(version(&again), version(&made));
    }
}

#[tokio::test]
async fn every_kind_is_the_same_in_both_stores() {
    let [ours, theirs] = both().await;
    let mut compared = 0;
    for (collection, object) in every_object() {
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = format!("{collection}/{name}");
        let mut read = Vec::new();
        for api in [&ours, &theirs] {
            let made = api.post(&collection, object.clone()).await.expect(201).body;
            let there = api.get(&path).await.expect(200).body;
            assert_eq!(comparable(plain(made)), comparable(plain(there.clone())), "{path}");
            if let Ok(bytes) = protobuf::to_envelope(&there) {
                let mut again = protobuf::from_envelope(&bytes).unwrap();
                // Fields that Kubernetes' conversion restores.
                if again["kind"] == "StatefulSet" {
                    again["spec"] = there["spec"].clone();
                }
                assert_eq!(again, there, "{path}");
            }
            read.push(comparable(plain(there)));
        }
        assert_eq!(read[0], read[1], "{path}");
        compared += 1;
    }
    assert!(compared > 70, "{compared}");
}

/// Returns the object without addresses, ports and names that are given out at random, and without states that
/// servers reach at their own pace.
fn comparable(mut object: Value) -> Value {
    if let Value::Object(map) = &mut object
        && matches!(map["kind"].as_str(), Some("CustomResourceDefinition" | "Namespace" | "ServiceCIDR"))
    {
        map.remove("status");
        if let Some(Value::Object(metadata)) = map.get_mut("metadata") {
            metadata.remove("finalizers");
        }
    }
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        spec.retain(|field, _| !matches!(field.as_str(), "clusterIP" | "clusterIPs"));
    }
    blank_random(&mut object);
    object
}

fn blank_random(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (field, value) in map {
                let random = field.starts_with("kube-api-access")
                    || matches!(
                        field.as_str(),
                        "controller-uid"
                            | "batch.kubernetes.io/controller-uid"
                            | "lastTransitionTime"
                            | "nodePort"
                    );
                if random { *value = "given".into() } else { blank_random(value) }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blank_random),
        Value::String(text) if text.starts_with("kube-api-access-") => *text = "kube-api-access".to_owned(),
        _ => {}
    }
}

#[tokio::test]
async fn missing_fields_have_their_defaults() {
    for api in both().await {
        let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
        for (name, body) in [
            ("a", json!({"metadata": {"name": "a"}})),
            ("b", json!({"metadata": {"name": "b"}, "spec": null})),
            ("c", json!({"metadata": {"name": "c"}, "spec": {"podSelector": null, "egress": []}})),
        ] {
            api.post(policies, body).await.expect(201);
            let read = api.get(&format!("{policies}/{name}")).await.expect(200).body;
            assert_eq!(read["spec"], json!({"podSelector": {}, "policyTypes": ["Ingress"]}), "{name}");
        }
        let services = "/api/v1/namespaces/default/services";
        let jobs = "/apis/batch/v1/namespaces/default/jobs";
        let selector = json!({"matchLabels": {"a": "b"}});
        let template = json!({"metadata": {"labels": {"a": "b"}}});
        for (collection, body, fields) in [
            (PODS, json!({}), &["spec.containers"][..]),
            (PODS, json!({"spec": null}), &["spec.containers"]),
            (services, json!({}), &["spec.ports"]),
            (jobs, json!({}), &["spec.template.spec.containers", "spec.template.spec.restartPolicy"]),
            (
                DEPLOYMENTS,
                json!({"spec": {"selector": selector, "template": template}}),
                &["spec.template.spec.containers"],
            ),
        ] {
            let mut body = body;
            body["metadata"] = json!({"name": "x"});
            let reply = api.post(collection, body).await.expect(422);
            let causes = reply.body["details"]["causes"].as_array().unwrap();
            let mut found: Vec<&str> = causes.iter().map(|cause| cause["field"].as_str().unwrap()).collect();
            found.sort_unstable();
            assert_eq!(found, fields, "{collection}: {}", reply.text);
        }
    }
}

#[tokio::test]
async fn numbers_of_custom_resources_are_those_of_go() {
    for api in both().await {
        let mut definition = widgets();
        let spec =
            definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties");
        spec.unwrap()["weight"] = json!({"type": "number",
            "x-kubernetes-validations": [{"rule": "self / 2.0 > 0.25"}]});
        establish(&api, definition).await;
        let head = r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"color":"red","#;
        let json = [("content-type", "application/json")];
        let body = format!("{head}\"replicas\":5.0,\"weight\":1e3}}}}");
        let made = api.call("POST", WIDGETS, &json, body).await.expect(201);
        assert!(
            made.text.contains("\"replicas\":5,") && made.text.contains("\"weight\":1000}"),
            "{}",
            made.text
        );
        let path = format!("{WIDGETS}/w");
        assert_eq!(api.get(&path).await.expect(200).body["spec"], made.body["spec"]);
        for patch in [r#"{"spec":{"replicas":5}}"#, r#"{"spec":{"replicas":5.0,"weight":1000.0}}"#] {
            let merge = [("content-type", "application/merge-patch+json")];
            let same = api.call("PATCH", &path, &merge, patch.to_owned()).await.expect(200);
            assert_eq!(version(&same), version(&made), "{}", same.text);
        }
        for (sent, kept) in [("9223372036854775809", "9223372036854776000"), ("2.5", "2.5"), ("7.0", "7")] {
            let patch = format!("{{\"spec\":{{\"weight\":{sent}}}}}");
            let merge = [("content-type", "application/merge-patch+json")];
            let patched = api.call("PATCH", &path, &merge, patch).await.expect(200);
            assert!(patched.text.contains(&format!("\"weight\":{kept}}}")), "{sent}: {}", patched.text);
        }
    }
}

#[tokio::test]
async fn invalid_unicode_is_replaced() {
    for api in both().await {
        let maps = "/api/v1/namespaces/default/configmaps";
        let json = [("content-type", "application/json")];
        let bytes: &[u8] = b"{\"metadata\":{\"name\":\"a\"},\"data\":{\"k\":\"\xff\xfe\",\"l\":\"\\ud800\"}}";
        let made = api.call("POST", maps, &json, bytes).await.expect(201);
        assert_eq!(made.body["data"], json!({"k": "\u{fffd}\u{fffd}", "l": "\u{fffd}"}));
        let merge = [("content-type", "application/merge-patch+json")];
        let patch: &[u8] = b"{\"data\":{\"k\":\"\xff\"}}";
        let patched = api.call("PATCH", &format!("{maps}/a"), &merge, patch).await.expect(200);
        assert_eq!(patched.body["data"]["k"], "\u{fffd}");
        let broken: &[u8] = b"{\"metadata\":{\"name\":\"\xff\"";
        api.call("POST", maps, &json, broken).await.expect(400);
    }
}

#[tokio::test]
async fn base64_may_have_line_breaks() {
    for api in both().await {
        let secrets = "/api/v1/namespaces/default/secrets";
        let yaml = [("content-type", "application/yaml")];
        let body = "metadata:\n  name: s\ndata:\n  k: |\n    YWJj\n    ZGVm\n  l: YR==\n";
        let made = api.call("POST", secrets, &yaml, body).await.expect(201);
        assert_eq!(made.body["data"], json!({"k": "YWJjZGVm", "l": "YQ=="}));
        let patch = json!({"data": {"k": "YWJj\r\nZGVm"}});
        let same = api.patch("merge", &format!("{secrets}/s"), patch).await.expect(200);
        assert_eq!(version(&same), version(&made));
        let wrong = json!({"metadata": {"name": "t"}, "data": {"k": "Y Q="}});
        api.post(secrets, wrong).await.expect(400);
    }
}

#[tokio::test]
async fn a_whole_number_of_yaml_is_an_integer() {
    let api = Api::start().await;
    let yaml = [("content-type", "application/yaml")];
    let body = "metadata: {name: d}\nspec:\n  replicas: 3.0\n  selector: {matchLabels: {a: b}}\n  template:\n    \
                metadata: {labels: {a: b}}\n    spec: {containers: [{name: c, image: i}]}\n";
    let made = api.call("POST", DEPLOYMENTS, &yaml, body).await.expect(201);
    assert!(made.text.contains("\"replicas\":3,"), "{}", made.text);
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = r#"{"spec":{"replicas":3.0}}"#;
    let refused = api.call("PATCH", &format!("{DEPLOYMENTS}/d"), &merge, patch).await;
    assert_ne!(refused.code, 200, "{}", refused.text);
}

/// Objects and cells of a custom kind have their numbers as Go prints them.
#[tokio::test(start_paused = true)]
async fn numbers_of_custom_resources_are_written_as_go_writes_them() {
    for api in both().await {
        let mut definition = widgets();
        let version = &mut definition["spec"]["versions"][0];
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["weight"] =
            json!({"type": "number"});
        version["additionalPrinterColumns"] =
            json!([{"name": "Weight", "type": "number", "jsonPath": ".spec.weight"}]);
        establish(&api, definition).await;
        let media = [("content-type", "application/json")];
        for (index, (sent, kept)) in [
            ("1e20", "100000000000000000000"),
            ("9223372036854775808", "9223372036854776000"),
            ("9223372036854775807", "9223372036854775807"),
            ("0.000001", "0.000001"),
            ("1e-7", "1e-7"),
            ("1e21", "1e+21"),
            ("5.0", "5"),
            // Quick readers take the double next to it.
            ("4.444444444444445e109", "4.444444444444445e+109"),
            ("-0", "0"),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("n{index}");
            let body = format!(
                r#"{{"apiVersion":"example.com/v1","kind":"Widget","metadata":{{"name":"{name}"}},"spec":{{"color":"red","weight":{sent}}}}}"#
            );
            let wanted = format!("\"weight\":{kept}}}");
            let made = api.call("POST", WIDGETS, &media, body.clone()).await.expect(201);
            assert!(made.text.contains(&wanted), "{}", made.text);
            let path = format!("{WIDGETS}/{name}");
            let read = api.get(&path).await.expect(200);
            assert!(read.text.contains(&wanted), "{}", read.text);
            let patch = json!({"metadata": {"labels": {"a": "b"}}});
            let patched = api.patch("merge", &path, patch).await.expect(200);
            assert_eq!(patched.body["metadata"]["generation"], 1, "{sent}");
            if sent.len() < 19 {
                let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
                let row = api.get_as(&path, table).await.expect(200).text;
                let cells = format!("\"cells\":[\"{name}\",{kept}]");
                assert!(row.contains(&cells), "{row}");
                let list = api.get_as(WIDGETS, table).await.expect(200).text;
                assert!(list.contains(&cells), "{list}");
            }
        }
    }
}
