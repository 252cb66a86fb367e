//! `kubectl delete`: cascades, waiting, selectors, and missing objects.

use serde_json::json;
use tests_clients::{Api, Kubectl, each_kubectl};
use tests_e2e::eventually;

use crate::kubectl::object;

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn cascades_delete_wait_for_or_leave_dependents() -> anyhow::Result<()> {
    each_kubectl(Api::with_controllers, |kubectl| {
        for (cascade, dependents) in [("background", 0), ("foreground", 0), ("orphan", 1)] {
            kubectl.run(&format!("create deployment {cascade} --image=i"));
            pods(kubectl, cascade, 1);
            let said =
                kubectl.run(&format!("delete deployment {cascade} --cascade={cascade} --wait --timeout=60s"));
            assert!(said.starts_with(&format!("deployment.apps \"{cascade}\" deleted")), "{said}");
            if cascade == "foreground" {
                // Foreground deletion means that they were deleted first.
                kubectl.says(&format!("get replicasets -l app={cascade} -o name"), "");
            }
            pods(kubectl, cascade, dependents);
        }
        let orphans = object(kubectl, "replicasets -l app=orphan");
        assert_eq!(orphans["items"][0]["metadata"]["ownerReferences"], json!(null));
        namespaces(kubectl);
    })
}

fn pods(kubectl: &Kubectl<'_>, app: &str, count: usize) {
    eventually("pods are as many as expected", || {
        let names = kubectl.run(&format!("get pods -l app={app} -o name"));
        Ok((names.lines().count() == count).then_some(()))
    })
    .unwrap();
}

fn namespaces(kubectl: &Kubectl<'_>) {
    kubectl.run("create namespace gone");
    kubectl.run("create configmap m -n gone");
    kubectl.run("create service clusterip s --tcp=80 -n gone");
    kubectl.run("delete namespace gone --timeout=60s");
    let refused = kubectl.fails("create configmap m -n gone");
    assert!(refused.contains("namespaces \"gone\" not found"), "{refused}");
    let refused = kubectl.fails("delete namespace default");
    assert!(refused.contains("(Forbidden)"), "{refused}");
}

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn deletions_by_name_selector_file_and_all() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        for name in ["a", "b", "c", "d"] {
            kubectl.run(&format!("create configmap {name}"));
        }
        kubectl.run("label configmap b c group=x");
        let said = kubectl.run("delete configmap -l group=x");
        assert_eq!(said.matches("deleted").count(), 2, "{said}");
        kubectl.says("get configmaps -o name", "configmap/a\nconfigmap/d");
        kubectl.says("delete configmap a -o name", "configmap/a");
        let missing = kubectl.fails("delete configmap a");
        assert_eq!(missing.trim(), "Error from server (NotFound): configmaps \"a\" not found");
        kubectl.says("delete configmap a --ignore-not-found", "");
        kubectl.shows("delete configmaps --all", &["\"d\" deleted"]);
        kubectl.run("create configmap raw");
        kubectl.run("delete --raw /api/v1/namespaces/default/configmaps/raw");
        kubectl.says("get configmaps -o name", "");
        finalizers(kubectl);
    })
}

fn finalizers(kubectl: &Kubectl<'_>) {
    kubectl.feed(
        "create -f -",
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "finalizers": ["example.com/x"]}}).to_string(),
    );
    let waited = kubectl.fails("delete configmap kept --timeout=500ms");
    assert!(waited.contains("timed out waiting for the condition"), "{waited}");
    assert!(object(kubectl, "configmap kept")["metadata"]["deletionTimestamp"].is_string());
    kubectl.run(r#"patch configmap kept --type=merge -p '{"metadata":{"finalizers":null}}'"#);
    kubectl.fails("get configmap kept");
}
