//! Server-side apply with real kubectl, over TLS on the loopback interface: the machine's, and the
//! one that `HAWSER_KUBECTL` names.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use apiserver_auth::authentication::pki::{Pki, Subject};
use apiserver_auth::authentication::tokens::Issuer;
use apiserver_kinds::builtin;
use apiserver_meta::ambient::Ambient;
use apiserver_server::{Server, ServerConfig, serve};
use apiserver_store::disk::SimDisk;
use apiserver_store::embedded::{Embedded, Options};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::harness::{deployment, every_api};

const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// kubectl with a kubeconfig and a home of its own.
pub struct Kubectl {
    pub program: String,
    pub home: PathBuf,
}

impl Kubectl {
    pub fn try_run(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.args(args).env("KUBECONFIG", self.home.join("kubeconfig.yaml")).env("HOME", &self.home);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr) + &text(&output.stdout))
        }
    }

    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        self.try_run(&line.split(' ').collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    #[track_caller]
    pub fn fails(&self, line: &str) -> String {
        self.try_run(&line.split(' ').collect::<Vec<_>>()).expect_err(line)
    }

    pub fn file(&self, name: &str, object: &Value) -> String {
        let path = self.home.join(name);
        std::fs::write(&path, object.to_string()).unwrap();
        path.display().to_string()
    }

    pub fn object(&self, what: &str) -> Value {
        serde_json::from_str(&self.run(&format!("get {what} -o json --show-managed-fields"))).unwrap()
    }
}

fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    entries.iter().map(|entry| format!("{} {}", text(entry, "manager"), text(entry, "operation"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs kubectl: cargo xtask test"]
async fn kubectl_applies_on_the_server_side() {
    let newer = std::env::var("HAWSER_KUBECTL").ok().filter(|program| !program.is_empty());
    for program in ["kubectl".to_owned()].into_iter().chain(newer) {
        let dir = tempfile::tempdir().unwrap();
        let (shutdown, serving) = run(dir.path()).await;
        let home = dir.path().to_path_buf();
        let work = move || {
            let kubectl = Kubectl { program, home };
            applies_and_conflicts(&kubectl);
            moves_from_client_side(&kubectl);
        };
        let done = tokio::task::spawn_blocking(work).await;
        shutdown.cancel();
        serving.await.unwrap();
        done.unwrap();
    }
}

pub async fn run(dir: &Path) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let ambient = Ambient::system();
    let pki = Pki::open(&dir.join("pki"), &ambient).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let store = Arc::new(Embedded::open(Arc::new(SimDisk::new(7)), Options::default()).await.unwrap());
    let issuer = Issuer::open(&pki, "https://kubernetes.default.svc.cluster.local", &[]).unwrap();
    let config = ServerConfig { issuer: Some(Arc::new(issuer)), ..every_api() };
    let server = Server::new(config, store, builtin::registry(), ambient).unwrap();
    let tls = pki.apiserver_tls(&Subject::apiserver("cluster.local", ["127.0.0.1".to_owned()])).unwrap();
    pki.write_kubeconfig(
        &dir.join("kubeconfig.yaml"),
        &format!("https://{address}"),
        "test",
        &Subject::admin(),
    )
    .unwrap();
    server.start();
    server.ready().await;
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, tls, server, shutdown.clone()));
    (shutdown, serving)
}

fn applies_and_conflicts(kubectl: &Kubectl) {
    let mut object = deployment("web");
    let web = kubectl.file("web.json", &object);
    let said = kubectl.run(&format!("apply --server-side --dry-run=server -f {web}"));
    assert_eq!(said.trim(), "deployment.apps/web serverside-applied (server dry run)");
    for _ in 0..2 {
        let said = kubectl.run(&format!("apply --server-side -f {web}"));
        assert_eq!(said.trim(), "deployment.apps/web serverside-applied");
    }
    let made = kubectl.object("deployment/web");
    assert_eq!(managers(&made), ["kubectl Apply"]);
    let hidden = kubectl.run("get deployment/web -o yaml");
    assert!(!hidden.contains("managedFields"), "{hidden}");
    let shown = kubectl.run("get deployment/web -o yaml --show-managed-fields");
    assert!(shown.contains("f:replicas: {}"), "{shown}");

    object["spec"]["replicas"] = 5.into();
    let more = kubectl.file("more.json", &object);
    let diff = kubectl.fails(&format!("diff --server-side -f {more}"));
    assert!(diff.contains("-  replicas: 2") && diff.contains("+  replicas: 5"), "{diff}");
    let refused = kubectl.fails(&format!("apply --server-side --field-manager=other -f {more}"));
    assert!(
        refused.contains("Apply failed with 1 conflict: conflict with \"kubectl\": .spec.replicas"),
        "{refused}"
    );
    assert!(refused.contains("--force-conflicts"), "{refused}");
    kubectl.run(&format!("apply --server-side --field-manager=other --force-conflicts -f {more}"));
    let forced = kubectl.object("deployment/web");
    assert_eq!((&forced["spec"]["replicas"], managers(&forced).len()), (&json!(5), 2));

    kubectl.run("scale deployment/web --replicas=7");
    let refused = kubectl.fails(&format!("apply --server-side --field-manager=other -f {more}"));
    assert!(refused.contains(" with subresource \"scale\" using apps/v1: .spec.replicas"), "{refused}");
    object["spec"].as_object_mut().unwrap().remove("replicas");
    let less = kubectl.file("less.json", &object);
    kubectl.run(&format!("apply --server-side --field-manager=other -f {less}"));
    assert_eq!(kubectl.object("deployment/web")["spec"]["replicas"], 7);
    kubectl.run("label deployment/web team=x");
    kubectl.run("annotate deployment/web note=y");
    kubectl.run("set image deployment/web c=other");
    let edited = managers(&kubectl.object("deployment/web"));
    assert!(
        edited.iter().any(|m| m == "kubectl-label Update")
            && edited.iter().any(|m| m == "kubectl-set Update"),
        "{edited:?}"
    );
}

fn moves_from_client_side(kubectl: &Kubectl) {
    let map = |data: Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "m", "namespace": "default"}, "data": data})
    };
    let first = kubectl.file("map.json", &map(json!({"a": "1", "b": "2"})));
    kubectl.run(&format!("apply -f {first}"));
    assert_eq!(managers(&kubectl.object("configmap/m")), ["kubectl-client-side-apply Update"]);
    let second = kubectl.file("map.json", &map(json!({"a": "9"})));
    kubectl.run(&format!("apply --server-side -f {second}"));
    let moved = kubectl.object("configmap/m");
    // kubectl itself edits the managed fields and keeps the annotation under a name of its own.
    let mut names = managers(&moved);
    names.sort();
    assert_eq!(names, ["kubectl Apply", "kubectl-last-applied Apply"]);
    assert_eq!(moved["data"], json!({"a": "9"}));
    let annotation = moved["metadata"]["annotations"][LAST].as_str().unwrap();
    assert!(annotation.contains("\"data\":{\"a\":\"9\"}"), "{annotation}");
    // And back: client-side apply uses the annotation, which was kept in step.
    let third = kubectl.file("map.json", &map(json!({"c": "3"})));
    kubectl.run(&format!("apply -f {third}"));
    assert_eq!(kubectl.object("configmap/m")["data"], json!({"c": "3"}));
}
