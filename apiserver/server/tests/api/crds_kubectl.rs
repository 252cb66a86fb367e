//! Custom resources with real kubectl, as its users use it.

use serde_json::json;

use crate::api::crds::widgets;
use crate::api::kubectl::{Kubectl, run};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs kubectl: cargo xtask test"]
async fn kubectl_works_with_custom_resources() {
    let newer = std::env::var("HAWSER_KUBECTL").ok();
    for program in ["kubectl".to_owned()].into_iter().chain(newer) {
        let dir = tempfile::tempdir().unwrap();
        let (shutdown, serving) = run(dir.path()).await;
        let home = dir.path().to_path_buf();
        let done = tokio::task::spawn_blocking(move || {
            let kubectl = Kubectl { program, home };
            defines(&kubectl);
            uses(&kubectl);
            removes(&kubectl);
        })
        .await;
        shutdown.cancel();
        serving.await.unwrap();
        done.unwrap();
    }
}

fn defines(kubectl: &Kubectl) {
    let definition = kubectl.file("crd.json", &widgets());
    let said = kubectl.run(&format!("apply -f {definition}"));
    assert_eq!(said.trim(), "customresourcedefinition.apiextensions.k8s.io/widgets.example.com created");
    // kubectl fails while there are no conditions: they are `null` then, as in Kubernetes.
    let wait = ["wait", "--for=condition=Established", "--timeout=20s", "crd/widgets.example.com"];
    let mut answers = (0..600).map(|_| kubectl.try_run(&wait));
    let ends = |answer: &Result<String, String>| {
        answer.as_ref().map_or_else(|error| !error.contains("accessor error"), |_| true)
    };
    answers.find(ends).expect("conditions in time").unwrap();
    let said = kubectl.run(&format!("apply -f {definition}"));
    assert!(said.trim().ends_with("unchanged"), "{said}");
    let explained = kubectl.run("explain widgets.spec.color");
    assert!(
        explained.contains("GROUP:      example.com") && explained.contains("FIELD: color"),
        "{explained}"
    );
    let recursive = kubectl.run("explain widgets --recursive");
    assert!(recursive.contains("replicas") && recursive.contains("metadata"), "{recursive}");
    let resources = kubectl.run("api-resources --api-group=example.com");
    assert!(resources.contains("wd") && resources.contains("Widget"), "{resources}");
}

fn uses(kubectl: &Kubectl) {
    let mut object = json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"name": "a", "namespace": "default"}, "spec": {"color": "red"}});
    let file = kubectl.file("widget.json", &object);
    assert_eq!(kubectl.run(&format!("apply -f {file}")).trim(), "widget.example.com/a created");
    let table = kubectl.run("get wd -o wide");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [["NAME", "COLOR", "REPLICAS"], ["a", "red", "1"]]);
    object["spec"]["color"] = "green".into();
    let file = kubectl.file("widget.json", &object);
    assert_eq!(kubectl.run(&format!("apply -f {file}")).trim(), "widget.example.com/a configured");
    kubectl.run("scale --replicas=3 widgets/a");
    assert_eq!(kubectl.run("get widgets/a -o jsonpath={.spec.replicas}"), "3");
    kubectl.run("label widgets/a x=y");
    assert_eq!(kubectl.run("get widgets -l x=y -o name").trim(), "widget.example.com/a");
    assert_eq!(kubectl.run("get widgets --field-selector spec.color=red -o name").trim(), "");
    object["spec"]["size"] = "l".into();
    let file = kubectl.file("widget.json", &object);
    let said = kubectl.run(&format!("apply --server-side --force-conflicts -f {file}"));
    assert_eq!(said.trim(), "widget.example.com/a serverside-applied");
    object["spec"]["color"] = "blue".into();
    let file = kubectl.file("bad.json", &object);
    let error = kubectl.fails(&format!("apply -f {file}"));
    assert!(error.contains("Unsupported value: \"blue\": supported values: \"red\", \"green\""), "{error}");
    object["spec"]["weight"] = 3.into();
    let file = kubectl.file("bad.json", &object);
    let error = kubectl.fails(&format!("apply -f {file}"));
    assert!(error.contains("unknown field \"spec.weight\""), "{error}");
}

fn removes(kubectl: &Kubectl) {
    kubectl.run("delete crd widgets.example.com --timeout=20s");
    // kubectl remembers the served kinds, and gets an error.
    let error = kubectl.fails("get widgets");
    assert!(error.contains("the server could not find the requested resource"), "{error}");
}
