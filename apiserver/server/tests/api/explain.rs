//! Real kubectl reads the schemas: every kind of discovery is explained, and objects are validated.

use serde_json::json;

use crate::api::harness::deployment;
use crate::api::kubectl::{Kubectl, run};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs kubectl: cargo xtask test"]
async fn kubectl_explains_every_kind_and_validates() {
    let newer = std::env::var("HAWSER_KUBECTL").ok().filter(|program| !program.is_empty());
    for program in ["kubectl".to_owned()].into_iter().chain(newer) {
        let dir = tempfile::tempdir().unwrap();
        let (shutdown, serving) = run(dir.path()).await;
        let kubectl = Kubectl { program, home: dir.path().to_path_buf() };
        let work = move || {
            explains(&kubectl);
            validates(&kubectl);
        };
        tokio::task::spawn_blocking(work).await.unwrap();
        shutdown.cancel();
        serving.await.unwrap();
    }
}

/// Every kind of every version, in both of kubectl's forms.
fn explains(kubectl: &Kubectl) {
    let list = kubectl.run("api-resources --no-headers --cached=false");
    let mut kinds = 0;
    for line in list.lines() {
        // NAME SHORTNAMES? APIVERSION NAMESPACED KIND
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [name, .., version, _, kind] = columns.as_slice() else { panic!("{line}") };
        let said = kubectl.run(&format!("explain {name} --api-version={version} --recursive"));
        assert!(said.contains(&format!("KIND:       {kind}\n")), "{said}");
        assert!(said.contains("FIELDS:\n"), "{name} {version}: {said}");
        kinds += 1;
        // The same by its group, which kubectl 1.27 and later take. Of `events.events.k8s.io` they make
        // the core Event and its field `events`, whatever the server is: the shorter name matches.
        if let Some((group, _)) = version.split_once('/')
            && name != &"events"
        {
            let said = kubectl.run(&format!("explain {name}.{group} --recursive"));
            assert!(said.contains(&format!("GROUP:      {group}\nKIND:       {kind}\n")), "{said}");
        }
    }
    assert!(kinds > 50, "{list}");
    let said = kubectl.run("explain pods.spec.containers.livenessProbe.httpGet");
    assert!(said.contains("FIELD: httpGet") && said.contains("port\t<IntOrString> -required-"), "{said}");
    let said = kubectl.run("explain deployments.spec.strategy --output=plaintext-openapiv2");
    assert!(said.contains("rollingUpdate"), "{said}");
    let raw = kubectl.run("get --raw /openapi/v3/apis/apps/v1?hash=outdated");
    assert!(raw.contains("io.k8s.api.apps.v1.Deployment"), "the redirect was not followed");
}

/// `--validate=strict`: kubectl finds in the schemas that the server judges, and leaves it to it.
fn validates(kubectl: &Kubectl) {
    let mut wrong = deployment("wrong");
    wrong["spec"]["replicaz"] = json!(1);
    let file = kubectl.file("wrong.json", &wrong);
    let said = kubectl.fails(&format!("create --validate=strict -f {file}"));
    assert!(said.contains("unknown field \"spec.replicaz\""), "{said}");
    let said = kubectl.run(&format!("create --validate=warn --dry-run=server -f {file}"));
    assert!(said.contains("created (server dry run)"), "{said}");
    let file = kubectl.file("right.json", &deployment("right"));
    kubectl.run(&format!("create --validate=strict -f {file}"));
    kubectl.run(&format!("create --dry-run=client --validate=strict -f {file}"));
}
