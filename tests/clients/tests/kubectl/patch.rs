//! `kubectl patch` of every type and subresource, and scale, label, annotate, taint and set.

use serde_json::{Value, json};
use tests_clients::{Api, Kubectl, each_kubectl};

use crate::kubectl::{account, object};

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn patches_of_every_type_and_subresource() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        account(kubectl);
        kubectl.run("create deployment web --image=nginx");
        types(kubectl);
        subresources(kubectl);
        scales(kubectl);
    })
}

fn types(kubectl: &Kubectl<'_>) {
    let strategic = r#"{"spec":{"template":{"spec":{"containers":[{"name":"nginx","env":[{"name":"A","value":"1"}]}]}}}}"#;
    kubectl.says(&format!("patch deployment web -p '{strategic}'"), "deployment.apps/web patched");
    kubectl
        .says(&format!("patch deployment web -p '{strategic}'"), "deployment.apps/web patched (no change)");
    let merged = object(kubectl, "deployment web");
    let container = &merged["spec"]["template"]["spec"]["containers"][0];
    assert_eq!((&container["image"], &container["env"][0]["value"]), (&json!("nginx"), &json!("1")));
    let gone = r#"{"spec":{"template":{"spec":{"containers":[{"name":"nginx","env":[{"name":"A","$patch":"delete"}]}]}}}}"#;
    kubectl.run(&format!("patch deployment web --type=strategic -p '{gone}'"));
    kubectl.says("get deployment web -o jsonpath='{.spec.template.spec.containers[0].env[*].name}'", "");
    kubectl.says(
        r#"patch deployment web --type=merge -p '{"spec":{"minReadySeconds":3},"metadata":{"labels":{"app":null}}}'"#,
        "deployment.apps/web patched",
    );
    let merged = object(kubectl, "deployment web");
    assert_eq!(
        (&merged["spec"]["minReadySeconds"], &merged["metadata"]["labels"]),
        (&json!(3), &Value::Null)
    );
    kubectl.run(r#"patch deployment web --type=json -p '[{"op":"test","path":"/spec/replicas","value":1},{"op":"replace","path":"/spec/replicas","value":3}]'"#);
    kubectl.says("get deployment web -o jsonpath='{.spec.replicas}'", "3");
    let refused = kubectl
        .fails(r#"patch deployment web --type=json -p '[{"op":"test","path":"/spec/replicas","value":9}]'"#);
    assert!(refused.contains("the server rejected our request due to an error in our request"), "{refused}");
    let refused = kubectl.fails(r#"patch deployment web --type=merge -p '{"spec":{"replicas":"x"}}'"#);
    assert!(refused.contains("cannot unmarshal string into Go struct field"), "{refused}");
    let refused = kubectl
        .fails(r#"patch deployment web --type=merge -p '{"spec":{"selector":{"matchLabels":{"a":"b"}}}}'"#);
    assert!(
        refused.contains("is invalid")
            && refused.contains("spec.selector")
            && refused.contains("field is immutable"),
        "{refused}"
    );
    let refused = kubectl.fails("patch deployment web -p '{'");
    assert!(refused.contains("(BadRequest)") || refused.contains("unable to parse"), "{refused}");
}

fn subresources(kubectl: &Kubectl<'_>) {
    kubectl.says(
        r#"patch deployment web --subresource=status --type=merge -p '{"status":{"replicas":7},"spec":{"replicas":9}}'"#,
        "deployment.apps/web patched",
    );
    kubectl.says(
        "get deployment web --subresource=status -o jsonpath='{.spec.replicas} {.status.replicas}'",
        "3 7",
    );
    kubectl.says(
        r#"patch deployment web --subresource=scale --type=merge -p '{"spec":{"replicas":2}}'"#,
        "scale.autoscaling/web patched",
    );
    let table = kubectl.table("get deployment web --subresource=scale");
    assert_eq!(table[0], ["NAME", "DESIRED", "AVAILABLE", "AGE"]);
    assert_eq!(table[1][..3], ["web", "2", "7"]);
    kubectl.says(
        "get deployment web --subresource=scale -o jsonpath='{.kind} {.status.selector}'",
        "Scale app=web",
    );
    let mut whole = object(kubectl, "deployment web");
    whole["status"]["replicas"] = 5.into();
    let file = kubectl.file("status.json", &whole.to_string());
    kubectl.says(&format!("replace --subresource=status -f {file}"), "deployment.apps/web replaced");
    kubectl.says("get deployment web -o jsonpath='{.status.replicas}'", "5");
}

fn scales(kubectl: &Kubectl<'_>) {
    kubectl.says("scale deployment web --replicas=4 --current-replicas=2", "deployment.apps/web scaled");
    let refused = kubectl.fails("scale deployment web --replicas=5 --current-replicas=9");
    assert!(refused.contains("Expected replicas to be 9, was 4"), "{refused}");
    let refused = kubectl.fails("scale deployment web --replicas=5 --resource-version=1");
    assert!(refused.contains("Expected resource version to be 1"), "{refused}");
    kubectl.says(
        "scale deployment web --replicas=0 --dry-run=server",
        "deployment.apps/web scaled (server dry run)",
    );
    kubectl.says("get deployment web -o jsonpath='{.spec.replicas}'", "4");
    let refused = kubectl.fails("scale deployment web --replicas=-1");
    assert!(refused.contains("The --replicas=COUNT flag is required"), "{refused}");
    let refused = kubectl.fails("scale serviceaccount default --replicas=1");
    assert!(refused.contains("the server could not find the requested resource"), "{refused}");
}

#[test]
#[ignore = "needs kubectl and the binary: cargo xtask test"]
fn labels_annotations_taints_and_settings() -> anyhow::Result<()> {
    each_kubectl(Api::start, |kubectl| {
        account(kubectl);
        kubectl.run("run p --image=i");
        labels(kubectl);
        nodes(kubectl);
        settings(kubectl);
    })
}

fn labels(kubectl: &Kubectl<'_>) {
    kubectl.says("label pod p x=y", "pod/p labeled");
    let refused = kubectl.fails("label pod p x=z");
    assert!(refused.contains("'x' already has a value (y), and --overwrite is false"), "{refused}");
    kubectl.says("label pod p x=z --overwrite", "pod/p labeled");
    kubectl.says("get pods -l x=z -o name", "pod/p");
    kubectl.says("label pod p x-", "pod/p unlabeled");
    kubectl.says("get pods -l x -o name", "");
    kubectl.says("label pods --all all=yes", "pod/p labeled");
    let refused = kubectl.fails("label pod p x=z --resource-version=1");
    assert!(refused.contains("the object has been modified"), "{refused}");
    kubectl.says("annotate pod p note='two words' --overwrite", "pod/p annotated");
    kubectl.says("get pod p -o jsonpath='{.metadata.annotations.note}'", "two words");
    kubectl.says("annotate pod p note-", "pod/p annotated");
    let refused = kubectl.fails(r#"patch pod p -p '{"metadata":{"labels":{"-bad-":"x"}}}'"#);
    assert!(refused.contains("metadata.labels: Invalid value: \"-bad-\""), "{refused}");
}

fn nodes(kubectl: &Kubectl<'_>) {
    kubectl.feed("create -f -", r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#);
    kubectl.says("taint node n k=v:NoSchedule", "node/n tainted");
    // A node is not ready until its kubelet reports so.
    kubectl.says("get node n -o jsonpath='{.spec.taints[*].key}'", "k node.kubernetes.io/not-ready");
    kubectl.says("taint node n k-", "node/n untainted");
    kubectl.says("cordon n", "node/n cordoned");
    assert_eq!(kubectl.table("get node n")[1][1], "Unknown,SchedulingDisabled");
    kubectl.says("uncordon n", "node/n uncordoned");
    let refused = kubectl.fails("taint node nope k=v:NoSchedule");
    assert!(refused.contains("nodes \"nope\" not found"), "{refused}");
    kubectl.shows("drain n --force --ignore-daemonsets", &["node/n drained"]);
    kubectl.shows("describe node n", &["Unschedulable:      true"]);
}

fn settings(kubectl: &Kubectl<'_>) {
    kubectl.run("create deployment web --image=nginx");
    for (line, said) in [
        ("set image deployment web nginx=nginx:2", "deployment.apps/web image updated"),
        ("set env deployment web B=2", "deployment.apps/web env updated"),
        (
            "set resources deployment web --limits=cpu=200m,memory=512Mi --requests=cpu=100m",
            "deployment.apps/web resource requirements updated",
        ),
        ("set serviceaccount deployment web other", "deployment.apps/web serviceaccount updated"),
    ] {
        kubectl.says(line, said);
    }
    kubectl.shows("set env deployment web --list", &["B=2"]);
    let spec = object(kubectl, "deployment web")["spec"]["template"]["spec"].clone();
    assert_eq!(spec["containers"][0]["image"], "nginx:2");
    assert_eq!(spec["containers"][0]["resources"]["limits"], json!({"cpu": "200m", "memory": "512Mi"}));
    assert_eq!((&spec["serviceAccountName"], &spec["serviceAccount"]), (&json!("other"), &json!("other")));
    kubectl.run("expose deployment web --port=80");
    kubectl.says("set selector service web app=z", "service/web selector updated");
}
