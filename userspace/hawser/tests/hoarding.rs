//! A tenant that requests much and reads nothing: the memory of the process stays within bounds, and the
//! administrator is answered meanwhile.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use kube::Client;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const STREAMS: usize = 250;
/// The window of each stream in bytes: enough for a frame, so that this client's library does not end the
/// connection.
const WINDOW: u32 = 20_000;

/// A process that is killed when dropped.
struct Process {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_hawser"))
            .args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1"])
            .args(["--advertise-address", "127.0.0.1", "--data-dir"])
            .arg(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let port = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(';').next()).unwrap();
        Self { port: port.parse().unwrap(), child, dir }
    }

    async fn admin(&self) -> Client {
        apiserver_client::connect(&self.dir.path().join("kubeconfig.yaml"), "test").await.unwrap()
    }

    /// Returns a line of `/proc/PID/status`, in bytes.
    fn memory(&self, what: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(what)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    /// Opens a connection whose streams each have a small window.
    async fn connect(&self) -> SendRequest<Bytes> {
        let mut roots = RootCertStore::empty();
        let authority = std::fs::read(self.dir.path().join("pki/ca.crt")).unwrap();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&authority).map(Result::unwrap));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(WINDOW)
            .handshake::<_, Bytes>(stream)
            .await
            .unwrap();
        tokio::spawn(connection);
        sender.ready().await.unwrap()
    }
}

async fn call(client: &Client, path: &str, body: Value) -> Value {
    let request = Request::post(path).header("content-type", "application/json");
    client.request(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap()
}

/// Creates a namespace with a ServiceAccount that may read its own ConfigMaps, and these: some 12 MiB.
async fn tenant(admin: &Client) -> String {
    call(admin, "/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await;
    let account = json!({"metadata": {"name": "bob"}});
    call(admin, "/api/v1/namespaces/a/serviceaccounts", account).await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/a";
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]);
    call(admin, &format!("{roles}/roles"), json!({"metadata": {"name": "r"}, "rules": rules})).await;
    let binding = json!({
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "bob", "namespace": "a"}],
    });
    call(admin, &format!("{roles}/rolebindings"), binding).await;
    for index in 0..12 {
        let map = json!({"metadata": {"name": format!("m{index}")}, "data": {"a": "x".repeat(1_000_000)}});
        call(admin, "/api/v1/namespaces/a/configmaps", map).await;
    }
    let token = call(admin, "/api/v1/namespaces/a/serviceaccounts/bob/token", json!({"spec": {}})).await;
    token["status"]["token"].as_str().unwrap().to_owned()
}

/// Opens all streams of a connection without reading any; returns the status codes.
async fn hoard(process: &Process, path: &str, accept: &str, token: &str) -> (Vec<u16>, Vec<h2::RecvStream>) {
    let mut sender = process.connect().await;
    let mut answers = Vec::new();
    for _ in 0..STREAMS {
        let request = Request::get(format!("https://127.0.0.1{path}"))
            .header("accept", accept)
            .header("authorization", format!("Bearer {token}"))
            .body(())
            .unwrap();
        let Ok(ready) = sender.ready().await else { break };
        sender = ready;
        let Ok((answer, _)) = sender.send_request(request, true) else { break };
        answers.push(answer);
    }
    let (mut codes, mut bodies) = (Vec::new(), Vec::new());
    for answer in answers {
        // A client that is refused too often is cut off.
        let Ok(answer) = answer.await else { continue };
        codes.push(answer.status().as_u16());
        bodies.push(answer.into_body());
    }
    (codes, bodies)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_reads_nothing_takes_no_more_than_its_share_and_others_are_served() {
    let process = Process::start();
    let admin = process.admin().await;
    let token = tenant(&admin).await;
    let before = process.memory("VmRSS");
    let maps = "/api/v1/namespaces/a/configmaps";
    let json = "application/json";
    let attacks = [
        ("/openapi/v2", json),
        ("/openapi/v2", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"),
        (maps, json),
        (maps, "application/vnd.kubernetes.protobuf"),
        (maps, "application/json;as=Table;g=meta.k8s.io;v=v1"),
        (maps, "application/yaml"),
        ("/api/v1/namespaces/a/configmaps/m0", json),
        ("/api/v1/namespaces/a/configmaps?watch=1", json),
    ];
    let (mut held, mut refused) = (Vec::new(), 0);
    for (path, accept) in attacks {
        let (codes, bodies) = hoard(&process, path, accept, &token).await;
        refused += codes.iter().filter(|code| **code == 429).count();
        held.extend(bodies);
        let version = Request::get("/version").body(Vec::new()).unwrap();
        tokio::time::timeout(Duration::from_secs(60), admin.request_text(version)).await.unwrap().unwrap();
        let listed: Value = admin.request(Request::get(maps).body(Vec::new()).unwrap()).await.unwrap();
        assert_eq!(listed["items"].as_array().unwrap().len(), 12);
    }
    let peak = process.memory("VmHWM");
    // 64 MiB are charged; the allocator, and answers of twelve MiB in the making, take the rest.
    assert!(peak - before < 384 << 20, "{before} -> {peak}, {} streams", held.len());
    assert!(refused > 0);
}
