//! `kubectl get` in all its forms.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};
use tests_clients::{Api, Kubectl, each_kubectl, words};

use crate::kubectl::{account, config_map};

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn get_prints_in_every_form_and_selects() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        account(kubectl);
        for name in ["b", "a", "c"] {
            kubectl.run(&format!("run {name} --image=i --labels=app={name},all=yes"));
        }
        kubectl.feed("create -f -", &config_map("m", &json!({"k": "v"})));
        outputs(kubectl);
        selects(kubectl);
        several(kubectl);
        raw(kubectl);
    })
}

fn outputs(kubectl: &Kubectl<'_>) {
    let yaml =
        kubectl.shows("get configmap m -o yaml", &["apiVersion: v1", "data:\n  k: v", "kind: ConfigMap"]);
    assert!(!yaml.contains("managedFields"), "{yaml}");
    let list: Value = serde_json::from_str(&kubectl.run("get pods -o json")).unwrap();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("List"), 3));
    kubectl.says("get pods -o name", "pod/a\npod/b\npod/c");
    kubectl.says("get pods -o jsonpath='{.items[*].metadata.name}'", "a b c");
    kubectl.says(
        "get pods -o jsonpath='{range .items[*]}{.metadata.name}={.status.phase};{end}'",
        "a=Pending;b=Pending;c=Pending;",
    );
    kubectl.says("get pod a -o jsonpath-as-json='{.metadata.labels.app}'", "[\n    \"a\"\n]");
    kubectl.says("get pod a -o go-template='{{.metadata.name}} {{.spec.restartPolicy}}'", "a Always");
    kubectl.says(
        "get pods -o custom-columns=N:.metadata.name,L:.metadata.labels.app --no-headers",
        "a     a\nb     b\nc     c",
    );
    assert_eq!(
        kubectl.table("get pods -o wide")[0].join(" "),
        "NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES"
    );
    assert_eq!(kubectl.table("get pods --show-labels")[1][5], "all=yes,app=a");
    assert_eq!(kubectl.table("get pods -L app --show-kind")[1][0], "pod/a");
    assert_eq!(kubectl.table("get pods --sort-by='{.metadata.creationTimestamp}' --no-headers").len(), 3);
    kubectl.says("get pods --sort-by=.metadata.name -o name", "pod/a\npod/b\npod/c");
    let sorted = kubectl.table("get pods --sort-by=.metadata.name");
    assert_eq!((sorted[0][0].as_str(), sorted[3][0].as_str()), ("NAME", "c"));
    kubectl.shows("get pod a --show-managed-fields -o yaml", &["manager: kubectl-run", "f:containers"]);
    kubectl.says("get pods --output-watch-events=false --chunk-size=1 -o name", "pod/a\npod/b\npod/c");
    assert_eq!(kubectl.table("get pods --chunk-size=2").len(), 4);
}

fn selects(kubectl: &Kubectl<'_>) {
    for (line, expected) in [
        ("get pods -l app=a -o name", "pod/a"),
        ("get pods -l app!=a -o name", "pod/b\npod/c"),
        ("get pods -l 'app in (a,c)' -o name", "pod/a\npod/c"),
        ("get pods -l 'app notin (a),all' -o name", "pod/b\npod/c"),
        ("get pods -l '!app' -o name", ""),
        ("get pods --field-selector=metadata.name=b -o name", "pod/b"),
        ("get pods --field-selector=status.phase=Pending,metadata.name!=b -o name", "pod/a\npod/c"),
        ("get pods --field-selector=spec.nodeName= -l app=a -o name", "pod/a"),
    ] {
        kubectl.says(line, expected);
    }
    let refused = kubectl.fails("get pods --field-selector=spec.dns=x");
    assert!(refused.contains("field label not supported: spec.dns"), "{refused}");
    let refused = kubectl.fails("get pods -l 'a in b'");
    assert!(refused.contains("unable to parse requirement"), "{refused}");
}

fn several(kubectl: &Kubectl<'_>) {
    kubectl.says("get pod/a configmap/m -o name", "pod/a\nconfigmap/m");
    kubectl.says("get pods,configmaps -l all=yes -o name", "pod/a\npod/b\npod/c");
    let everywhere = kubectl.table("get services -A");
    assert_eq!(everywhere[0][..2], ["NAMESPACE", "NAME"]);
    assert!(everywhere.iter().any(|row| row[..2] == ["default", "kubernetes"]), "{everywhere:?}");
    kubectl.shows("get all", &["pod/a", "service/kubernetes"]);
    let missing = kubectl.fails("get pods nope");
    assert_eq!(missing.trim(), "Error from server (NotFound): pods \"nope\" not found");
    kubectl.says("get pods nope --ignore-not-found", "");
    let missing = kubectl.fails("get nope");
    assert_eq!(missing.trim(), "error: the server doesn't have a resource type \"nope\"");
    let outcome = kubectl.attempt("get pods -n empty", "");
    assert_eq!((outcome.success, outcome.stderr.trim()), (true, "No resources found in empty namespace."));
}

fn raw(kubectl: &Kubectl<'_>) {
    kubectl.says("get --raw /healthz", "ok");
    kubectl.shows("get --raw '/readyz?verbose'", &["[+]ping ok", "readyz check passed"]);
    let version: Value = serde_json::from_str(&kubectl.run("get --raw /version")).unwrap();
    assert_eq!((&version["major"], &version["minor"]), (&json!("1"), &json!("36")));
    let pods: Value = serde_json::from_str(&kubectl.run("get --raw '/api/v1/pods?limit=1'")).unwrap();
    assert_eq!(pods["metadata"]["remainingItemCount"], 2);
    kubectl.shows("get --raw /metrics", &["apiserver_request_total"]);
}

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn a_watch_prints_what_happens_as_it_happens() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        kubectl.feed("create -f -", &config_map("m", &json!({"k": "v"})));
        let mut child = kubectl
            .command(words("get configmaps -l set=maps --watch --output-watch-events"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = move || {
            let line: String = lines.next().unwrap().unwrap();
            line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(next(), "EVENT NAME");
        assert_eq!(next(), "ADDED m");
        kubectl.feed("create -f -", &config_map("n", &json!({"k": "v"})));
        assert_eq!(next(), "ADDED n");
        kubectl.run("annotate configmap n x=y");
        assert_eq!(next(), "MODIFIED n");
        // For a watch with a selector it is deleted.
        kubectl.run("label configmap n set=other --overwrite");
        assert_eq!(next(), "DELETED n");
        kubectl.run("delete configmap m");
        assert_eq!(next(), "DELETED m");
        child.kill().unwrap();
        child.wait().unwrap();
    })
}

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn wait_sees_conditions_fields_creation_and_deletion() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        account(kubectl);
        kubectl.run("run p --image=i");
        kubectl
            .says("wait --for=jsonpath='{.status.phase}'=Pending pod/p --timeout=20s", "pod/p condition met");
        let refused = kubectl.fails("wait --for=condition=Ready pod/p --timeout=300ms");
        assert!(refused.contains("timed out waiting for the condition on pods/p"), "{refused}");
        let ready = |kubectl: &Kubectl<'_>, mut command: std::process::Command, during: &str| {
            let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
            kubectl.run(during);
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{during}");
            String::from_utf8(output.stdout).unwrap()
        };
        let said = ready(
            kubectl,
            kubectl.command(words("wait --for=condition=Ready pod/p --timeout=60s")),
            "patch pod p --subresource=status --type=merge -p \
             '{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}'",
        );
        assert_eq!(said.trim(), "pod/p condition met");
        let said = ready(
            kubectl,
            kubectl.command(words("wait --for=delete pod/p --timeout=60s")),
            "delete pod p --now",
        );
        assert!(said.trim().is_empty() || said.trim() == "pod/p condition met", "{said}");
        kubectl.run("create configmap late");
        kubectl.says("wait --for=create configmap/late --timeout=20s", "configmap/late condition met");
    })
}
