//! Expressions of ValidatingAdmissionPolicies, checked against what OpenAPI documents say about kinds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::Cluster;
use crate::testing::api::Beside;

/// A hash and a document; one that is not there never comes.
type Hashed = (u32, Option<Value>);

/// The OpenAPI documents of an API server, by name.
#[derive(Clone, Default)]
struct Documents {
    documents: Arc<Mutex<BTreeMap<String, Hashed>>>,
    /// The paths that were asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Documents {
    fn set(&self, name: &str, hash: u32, document: Option<Value>) {
        self.documents.lock().unwrap().insert(name.to_owned(), (hash, document));
    }

    fn serve(&self, cluster: &Cluster) {
        let this = self.clone();
        cluster.api.serve(move |asked| {
            let path = asked.strip_prefix("/openapi/v3")?;
            this.asked.lock().unwrap().push(asked.to_owned());
            let documents = this.documents.lock().unwrap();
            if path.is_empty() {
                let address = |name: &str, hash: u32| json!({"serverRelativeURL": format!("/openapi/v3/{name}?hash={hash}")});
                let paths: serde_json::Map<String, Value> =
                    documents.iter().map(|(name, (hash, _))| (name.clone(), address(name, *hash))).collect();
                return Some(Beside::Value(json!({"paths": paths})));
            }
            let (name, hash) = path.trim_start_matches('/').split_once("?hash=")?;
            let (now, document) = documents.get(name)?;
            assert_eq!(now.to_string(), hash, "an address of the past");
            Some(document.clone().map_or(Beside::Silence, Beside::Value))
        });
    }

    /// Returns what was asked for since the last call.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

/// A document with one kind, whose spec has these fields.
fn document(group: &str, version: &str, kind: &str, spec: Value) -> Option<Value> {
    let of = json!([{"group": group, "version": version, "kind": kind}]);
    let spec = json!({"type": "object", "properties": spec});
    Some(json!({"components": {"schemas": {
        "Kind": {"type": "object", "properties": {"spec": {"allOf": [{"$ref": "#/components/schemas/Spec"}]}},
            "x-kubernetes-group-version-kind": of},
        "Spec": spec}}}))
}

fn policy(name: &str, group: &str, resource: &str, expression: &str) -> Value {
    let rule =
        json!({"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": ["*"]});
    json!({"metadata": {"name": name}, "spec": {"matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": expression}]}})
}

fn status(cluster: &Cluster, name: &str) -> Value {
    let policies = cluster.api.all("validatingadmissionpolicies");
    policies.iter().find(|policy| policy["metadata"]["name"] == name).unwrap()["status"].clone()
}

async fn set_expression(cluster: &Cluster, name: &str, expression: &str) {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let patch = Patch::Merge(json!({"spec": {"validations": [{"expression": expression}]}}));
    policies.patch(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Returns the warnings of a status, which is that of the generation.
fn warnings(status: &Value, generation: i64) -> Vec<String> {
    assert_eq!(status["observedGeneration"], generation, "{status}");
    assert!(status["typeChecking"].is_object(), "{status}");
    let warnings = status["typeChecking"]["expressionWarnings"].as_array();
    warnings.into_iter().flatten().map(|warning| warning["warning"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn policy_is_checked_once_for_each_version_of_its_spec() {
    let (cluster, documents) = (Cluster::start().await, Documents::default());
    documents.set(
        "apis/apps/v1",
        1,
        document("apps", "v1", "Deployment", json!({"replicas": {"type": "integer"}})),
    );
    documents.serve(&cluster);
    let bad = policy("p", "apps", "deployments", "object.spec.replicas > '1'");
    cluster.create::<ValidatingAdmissionPolicy>("", bad).await;
    cluster.pass(1).await;
    let found = warnings(&status(&cluster, "p"), 1);
    assert_eq!(found.len(), 1);
    let expected = "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'";
    assert!(found[0].starts_with(expected), "{}", found[0]);
    set_expression(&cluster, "p", "object.spec.replicas > 1").await;
    cluster.pass(1).await;
    assert_eq!(warnings(&status(&cluster, "p"), 2), Vec::<String>::new(), "the warning is gone");
    let writes = cluster.api.history("validatingadmissionpolicies").len();
    documents.asked();
    cluster.pass(2000).await;
    assert_eq!(cluster.api.history("validatingadmissionpolicies").len(), writes);
    assert_eq!(documents.asked(), Vec::<String>::new(), "nothing is read when nothing changes");
    // A new policy of the same name starts again.
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    policies.delete("p", &DeleteParams::default()).await.unwrap();
    let again = policy("p", "apps", "deployments", "object.spec.more == 1");
    cluster.create::<ValidatingAdmissionPolicy>("", again).await;
    cluster.pass(1).await;
    assert!(warnings(&status(&cluster, "p"), 1)[0].contains("undefined field 'more'"));
    // Wildcards are not checked, and nothing is asked for.
    documents.asked();
    cluster.create::<ValidatingAdmissionPolicy>("", policy("all", "*", "deployments", "object.x == 1")).await;
    cluster.pass(1).await;
    assert_eq!(warnings(&status(&cluster, "all"), 1), Vec::<String>::new());
    assert_eq!(documents.asked(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn document_is_read_once_until_the_definition_changes() {
    let (cluster, documents) = (Cluster::start().await, Documents::default());
    let (name, text) = ("apis/example.com/v1", json!({"type": "string"}));
    documents.set(name, 1, document("example.com", "v1", "GameSet", json!({"size": {"type": "integer"}})));
    documents.serve(&cluster);
    for number in 0..10 {
        let policy = policy(&format!("p{number}"), "example.com", "gamesets", "object.spec.map == 'x'");
        cluster.create::<ValidatingAdmissionPolicy>("", policy).await;
        cluster.pass(1).await;
        assert!(warnings(&status(&cluster, &format!("p{number}")), 1)[0].contains("undefined field 'map'"));
    }
    let read = |of: &str| documents.asked().iter().filter(|asked| asked.contains(of)).count();
    assert_eq!(read("?hash=1"), 1);
    documents.set(name, 2, document("example.com", "v1", "GameSet", json!({"map": text})));
    set_expression(&cluster, "p3", "object.spec.map == 'y'").await;
    cluster.pass(1).await;
    assert_eq!(warnings(&status(&cluster, "p3"), 2), Vec::<String>::new());
    assert_eq!(read("?hash=2"), 1);
    // Documents that no policy asks for are forgotten.
    cluster.pass(200).await;
    set_expression(&cluster, "p4", "object.spec.map == 'y'").await;
    cluster.pass(1).await;
    assert_eq!(read("?hash=2"), 1);
    assert_eq!(warnings(&status(&cluster, "p5"), 1).len(), 1, "the others are as they were");
}

#[tokio::test(start_paused = true)]
async fn kind_whose_server_is_away_is_left_out() {
    let (cluster, documents) = (Cluster::start().await, Documents::default());
    documents.set("apis/apps/v1", 1, document("apps", "v1", "Deployment", json!({})));
    documents.set("apis/example.com/v1", 1, None);
    documents.serve(&cluster);
    let mut both = policy("both", "apps", "deployments", "object.spec.map == 'x'");
    let rule = json!({"apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["gamesets"], "operations": ["*"]});
    both["spec"]["matchConstraints"]["resourceRules"].as_array_mut().unwrap().push(rule);
    cluster.create::<ValidatingAdmissionPolicy>("", both).await;
    cluster.create::<ValidatingAdmissionPolicy>("", policy("none", "none.io", "nothings", "object.x")).await;
    cluster.pass(1).await;
    assert_eq!(status(&cluster, "both"), Value::Null, "it still waits");
    assert_eq!(warnings(&status(&cluster, "none"), 1), Vec::<String>::new());
    cluster.pass(40).await;
    let found = warnings(&status(&cluster, "both"), 1);
    assert!(found.len() == 1 && !found[0].contains("example.com"), "{found:?}");
    // Parameters of which nothing is known may be anything.
    let mut unknown = policy("params", "apps", "deployments", "params.any.thing == 1");
    unknown["spec"]["paramKind"] = json!({"apiVersion": "none.io/v1", "kind": "None"});
    cluster.create::<ValidatingAdmissionPolicy>("", unknown).await;
    cluster.pass(1).await;
    assert_eq!(warnings(&status(&cluster, "params"), 1), Vec::<String>::new());
}
