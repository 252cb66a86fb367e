//! kubectl 1.32 and 1.36 against `hawser apiserver`, over TLS with its kubeconfig.

mod apply;
mod create;
mod custom;
mod delete;
mod edit;
mod explain;
mod get;
mod look;
mod patch;
mod rollout;

use serde_json::{Value, json};
use tests_clients::Kubectl;

/// Creates the ServiceAccount that pods need and a controller would create.
fn account(kubectl: &Kubectl<'_>) {
    kubectl.says("create serviceaccount default", "serviceaccount/default created");
}

/// Returns a manifest of a ConfigMap.
fn config_map(name: &str, data: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"set": "maps"}},
        "data": data})
    .to_string()
}

/// Returns an object as kubectl prints it.
#[track_caller]
fn object(kubectl: &Kubectl<'_>, what: &str) -> Value {
    serde_json::from_str(&kubectl.run(&format!("get {what} -o json"))).unwrap()
}
