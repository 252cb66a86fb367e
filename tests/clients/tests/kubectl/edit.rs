//! `kubectl edit` with an editor that is a program, and `replace`.

use tests_clients::{Api, Kubectl, each_kubectl};

use crate::kubectl::{account, object};

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn edits_and_replacements() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        account(kubectl);
        // The editor of these tests replaces `before` by `after`.
        kubectl.run("create configmap m --from-literal=k=before");
        kubectl.says("edit configmap m", "configmap/m edited");
        kubectl.says("get configmap m -o jsonpath='{.data.k}'", "after");
        let outcome = kubectl.attempt("edit configmap m", "");
        assert!(
            outcome.success && (outcome.stdout + &outcome.stderr).contains("Edit cancelled, no changes made")
        );
        kubectl.run("create deployment web --image=before");
        kubectl.shows(
            "edit deployment web --output-patch",
            &["Patch: {\"spec\":{\"template\"", "deployment.apps/web edited"],
        );
        replacements(kubectl);
    })
}

fn replacements(kubectl: &Kubectl<'_>) {
    let mut map = object(kubectl, "configmap m");
    map["data"]["k"] = "replaced".into();
    let file = kubectl.file("m.json", &map.to_string());
    kubectl.says(&format!("replace -f {file}"), "configmap/m replaced");
    // The same manifest has an outdated resource version by now.
    map["data"]["k"] = "again".into();
    let file = kubectl.file("m.json", &map.to_string());
    let refused = kubectl.fails(&format!("replace -f {file}"));
    assert!(
        refused.contains("(Conflict)")
            && refused.contains("the object has been modified; please apply your changes"),
        "{refused}"
    );
    kubectl.run("run p --image=one");
    let mut pod = object(kubectl, "pod p");
    let uid = pod["metadata"]["uid"].clone();
    pod["spec"]["containers"][0]["image"] = "two".into();
    let file = kubectl.file("p.json", &pod.to_string());
    kubectl.says(&format!("replace -f {file}"), "pod/p replaced");
    kubectl.says("get pod p -o jsonpath='{.spec.containers[0].image}'", "two");
    let mut pod = object(kubectl, "pod p");
    pod["spec"]["hostNetwork"] = true.into();
    let file = kubectl.file("p.json", &pod.to_string());
    let refused = kubectl.fails(&format!("replace -f {file}"));
    assert!(
        refused.contains("is invalid: spec: Forbidden: pod updates may not change fields other than"),
        "{refused}"
    );
    kubectl.shows(&format!("replace --force --grace-period=0 -f {file}"), &["pod/p replaced"]);
    assert_ne!(object(kubectl, "pod p")["metadata"]["uid"], uid);
}
