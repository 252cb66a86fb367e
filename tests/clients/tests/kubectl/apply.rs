//! `kubectl apply` on both sides, `diff`, kustomizations, validation, dry runs.

use serde_json::{Value, json};
use tests_clients::{Api, Kubectl, each_kubectl};

use crate::kubectl::{account, config_map, object};

const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn apply_creates_changes_prunes_and_diffs() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        account(kubectl);
        client_side(kubectl);
        server_side(kubectl);
        prunes(kubectl);
        kustomizes(kubectl);
    })
}

fn client_side(kubectl: &Kubectl<'_>) {
    let first = config_map("m", &json!({"a": "1", "b": "2"}));
    let file = kubectl.file("m.json", &first);
    let diff = kubectl.fails(&format!("diff -f {file}"));
    assert!(diff.contains("+  a: \"1\""), "{diff}");
    kubectl.says(&format!("apply -f {file}"), "configmap/m created");
    kubectl.says(&format!("apply -f {file}"), "configmap/m unchanged");
    kubectl.says(&format!("diff -f {file}"), "");
    kubectl.feed("apply -f -", &config_map("m", &json!({"a": "9"})));
    let changed = object(kubectl, "configmap m");
    assert_eq!(changed["data"], json!({"a": "9"}));
    kubectl.shows("apply view-last-applied configmap m", &["a: \"9\""]);
    kubectl.says(&format!("apply set-last-applied -f {file}"), "configmap/m configured");
    assert!(
        object(kubectl, "configmap m")["metadata"]["annotations"][LAST]
            .as_str()
            .unwrap()
            .contains("\"b\":\"2\"")
    );
    // Several documents and kinds from one stream of YAML.
    let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: yaml}\n---\napiVersion: v1\nkind: Secret\n\
                metadata: {name: s, namespace: yaml}\nstringData: {k: v}\n";
    assert_eq!(kubectl.feed("apply -f -", text), "namespace/yaml created\nsecret/s created\n");
    // stringData is write-only, so kubectl sends it every time.
    assert_eq!(kubectl.feed("apply -f -", text), "namespace/yaml unchanged\nsecret/s configured\n");
    kubectl.says("get secret s -n yaml -o jsonpath='{.data.k} {.stringData}'", "dg==");
    // One field in a keyed list changes; what others added there stays.
    kubectl.feed("apply -f -", &deployment("1"));
    kubectl.run("set env deployment web ADDED=yes");
    assert_eq!(kubectl.feed("apply -f -", &deployment("2")), "deployment.apps/web configured\n");
    let container = object(kubectl, "deployment web")["spec"]["template"]["spec"]["containers"][0].clone();
    assert_eq!((&container["image"], &container["env"][0]["name"]), (&json!("i:2"), &json!("ADDED")));
}

fn deployment(image: &str) -> String {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": format!("i:{image}")}]}}}})
    .to_string()
}

fn server_side(kubectl: &Kubectl<'_>) {
    let map = |data: Value| config_map("s", &data);
    assert_eq!(
        kubectl.feed("apply --server-side -f -", &map(json!({"a": "1"}))),
        "configmap/s serverside-applied\n"
    );
    let refused =
        kubectl.fails_with("apply --server-side --field-manager=other -f -", &map(json!({"a": "2"})));
    assert!(refused.contains("conflict with \"kubectl\": .data.a"), "{refused}");
    let file = kubectl.file("s.json", &map(json!({"a": "2"})));
    let diff = kubectl.fails(&format!("diff --server-side --force-conflicts -f {file}"));
    assert!(diff.contains("-  a: \"1\"") && diff.contains("+  a: \"2\""), "{diff}");
    kubectl.run(&format!("apply --server-side --field-manager=other --force-conflicts -f {file}"));
    let shown: Value =
        serde_json::from_str(&kubectl.run("get configmap s -o json --show-managed-fields")).unwrap();
    let owners: Vec<&str> = shown["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["manager"].as_str().unwrap())
        .collect();
    assert_eq!(owners, ["kubectl", "other"]);
    kubectl.run(&format!("apply --server-side --dry-run=server --field-manager=other -f {file}"));
    kubectl.says("get configmap s -o jsonpath='{.data.a}'", "2");
    // Migrates a pod from client-side to server-side apply, with defaults in between.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]}});
    let file = kubectl.file("p.json", &pod.to_string());
    kubectl.says(&format!("apply -f {file}"), "pod/p created");
    kubectl.says(&format!("apply --server-side -f {file}"), "pod/p serverside-applied");
    kubectl.says(&format!("apply --server-side -f {file}"), "pod/p serverside-applied");
}

fn prunes(kubectl: &Kubectl<'_>) {
    let of = |names: &[&str]| {
        let items: Vec<Value> = names
            .iter()
            .map(|name| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"pruned": "yes"}}}))
            .collect();
        json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
    };
    kubectl.feed("apply -f -", &of(&["one", "two"]));
    let said =
        kubectl.feed("apply -f - --prune -l pruned=yes --prune-allowlist=core/v1/ConfigMap", &of(&["one"]));
    assert_eq!(said, "configmap/one unchanged\nconfigmap/two pruned\n");
}

fn kustomizes(kubectl: &Kubectl<'_>) {
    let dir = kubectl.api.dir().join(format!("kustomization-{}", kubectl.version));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("d.json"), deployment("1")).unwrap();
    std::fs::write(
        dir.join("kustomization.yaml"),
        "namePrefix: k-\nconfigMapGenerator: [{name: m, literals: [a=b]}]\nresources: [d.json]\n",
    )
    .unwrap();
    let dir = dir.display();
    kubectl.shows(&format!("apply -k {dir}"), &["configmap/k-m-", "deployment.apps/k-web created"]);
    kubectl.says(&format!("diff -k {dir}"), "");
    kubectl.shows(&format!("delete -k {dir}"), &["deployment.apps \"k-web\" deleted"]);
}

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn unknown_fields_are_refused_told_of_or_dropped() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        let wrong = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"w"},"dataa":{"a":"b"}}"#;
        let refused = kubectl.fails_with("create -f -", wrong);
        assert!(refused.contains("strict decoding error: unknown field \"dataa\""), "{refused}");
        let outcome = kubectl.attempt("create --validate=warn -f -", wrong);
        assert!(
            outcome.success && outcome.stderr.contains("Warning: unknown field \"dataa\""),
            "{outcome:?}"
        );
        let ignored = wrong.replace("\"w\"", "\"i\"");
        let outcome = kubectl.attempt("create --validate=ignore -f -", &ignored);
        assert_eq!((outcome.success, outcome.stderr.as_str()), (true, ""));
        kubectl.says("get configmap i -o jsonpath='{.dataa}'", "");
        let invalid = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"w"},"spec":{"ports":[{"port":99999}]}}"#;
        let refused = kubectl.fails_with("create -f -", invalid);
        assert!(
            refused.contains(
                "* spec.ports[0].port: Invalid value: 99999: must be between 1 and 65535, inclusive"
            ),
            "{refused}"
        );
        dry_runs(kubectl);
    })
}

fn dry_runs(kubectl: &Kubectl<'_>) {
    kubectl.says("create configmap dry --dry-run=server", "configmap/dry created (server dry run)");
    let shown = kubectl.run("create configmap dry --dry-run=server -o json");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["metadata"]["uid"].is_string(), "{shown}");
    kubectl.fails("get configmap dry");
    kubectl.shows("delete configmap i --dry-run=server", &["configmap \"i\" deleted", "(server dry run)"]);
    kubectl.says("get configmap i -o name", "configmap/i");
    kubectl.says("label configmap i x=y --dry-run=server", "configmap/i labeled (server dry run)");
    kubectl.says("get configmap i -o jsonpath='{.metadata.labels}'", "");
}
