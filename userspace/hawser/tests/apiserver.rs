//! `hawser apiserver` as a process: its flags and its shutdown.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

/// A process that is killed when dropped.
struct Process {
    child: Child,
    kubeconfig: PathBuf,
    _dir: tempfile::TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts one on the loopback interface and waits until it serves.
    fn start(flags: &[&str]) -> Self {
        Self::start_at("127.0.0.1", flags)
    }

    /// Starts one that announces another address to the cluster.
    fn start_at(advertised: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_hawser"))
            .args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1"])
            .args(["--advertise-address", advertised, "--data-dir"])
            .arg(dir.path())
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let kubeconfig = line.trim().split("kubeconfig: ").nth(1).expect("it says where it serves");
        Self { kubeconfig: kubeconfig.into(), child, _dir: dir }
    }

    fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Waits up to ten seconds for the exit code.
    fn end(&mut self) -> Option<i32> {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(10) {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status.code().unwrap_or(-1));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

fn path(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap()
}

#[tokio::test]
async fn sigterm_shuts_down_cleanly() {
    let mut process = Process::start(&["--shutdown-delay-duration", "4s", "--event-ttl=30m"]);
    let client = apiserver_client::connect(&process.kubeconfig, "test").await.unwrap();
    assert_eq!(client.request_text(path("/readyz")).await.unwrap(), "ok");
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let began = Instant::now();
    loop {
        let leases: serde_json::Value = client.request(path(lease)).await.unwrap();
        if let Some(name) = leases["items"][0]["metadata"]["name"].as_str() {
            assert!(name.starts_with("apiserver-"));
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "there is no Lease");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    process.terminate();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    // It is not ready, and everything else works as before.
    let began = Instant::now();
    while client.request_text(path("/readyz")).await.is_ok() {
        assert!(began.elapsed() < Duration::from_secs(4), "it is still ready");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(client.request_text(path("/livez")).await.unwrap(), "ok");
    maps.create(&PostParams::default(), &map("late")).await.unwrap();
    assert_eq!(process.end(), Some(0));
}

/// Regression: `jwks_uri` was on 127.0.0.1, which is the pod itself for a client in a pod.
#[tokio::test]
async fn tokens_are_verified_by_what_discovery_tells_a_pod() {
    const ADVERTISED: &str = "192.0.2.7";
    let process = Process::start_at(ADVERTISED, &[]);
    let file = Kubeconfig::read_from(&process.kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    let port = config.cluster_url.port_u16().unwrap();
    let client = apiserver_client::connect(&process.kubeconfig, "test").await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let account = serde_json::from_value(json!({"metadata": {"name": "bot"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let wanted = serde_json::from_value(json!({"spec": {"audiences": ["a"]}})).unwrap();
    let made = accounts.create_token_request("bot", &PostParams::default(), &wanted).await.unwrap();
    let token = made.status.unwrap().token.unwrap();
    let part = |index: usize| -> Value {
        let bytes = URL_SAFE_NO_PAD.decode(token.split('.').nth(index).unwrap()).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    };
    let issuer = part(1)["iss"].as_str().unwrap().to_owned();
    assert_eq!(issuer, "https://kubernetes.default.svc.cluster.local");
    let about: Value = client.request(path("/.well-known/openid-configuration")).await.unwrap();
    assert_eq!(about["issuer"], issuer);
    assert_eq!(about["jwks_uri"], format!("https://{ADVERTISED}:{port}/openid/v1/jwks"));
    // A pod trusts the cluster's authority for the names in both URLs.
    for name in [ADVERTISED, "kubernetes.default.svc.cluster.local"] {
        let mut config = config.clone();
        config.tls_server_name = Some(name.to_owned());
        let pod = kube::Client::try_from(config).unwrap();
        let keys: Value = pod.request(path("/openid/v1/jwks")).await.unwrap();
        assert_eq!(keys["keys"][0]["kid"], part(0)["kid"]);
    }
}

#[tokio::test]
async fn an_issuer_that_is_no_https_url_has_no_discovery() {
    let process = Process::start(&["--service-account-issuer", "cluster"]);
    let client = apiserver_client::connect(&process.kubeconfig, "test").await.unwrap();
    for page in ["/.well-known/openid-configuration", "/openid/v1/jwks"] {
        let refused = client.request_text(path(page)).await;
        assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 404));
    }
}

#[test]
fn a_second_sigterm_ends_it_at_once() {
    let mut process = Process::start(&["--shutdown-delay-duration=1h"]);
    process.terminate();
    std::thread::sleep(Duration::from_millis(200));
    assert!(process.child.try_wait().unwrap().is_none(), "it waits");
    process.terminate();
    assert_eq!(process.end(), Some(143));
}

#[test]
fn flags_that_make_no_sense_are_refused_before_anything_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    for (flags, why) in [
        (&["--request-timeout", "soon"][..], "invalid duration \"soon\""),
        (&["--event-ttl", "1ms"], "--event-ttl must be 1s or more"),
        (&["--service-node-port-range", "9-1"], "invalid port range"),
        (&["--runtime-config", "app/v1=true"], "--runtime-config: unknown api groups app/v1"),
        (&["--runtime-config=apps/v1/pod"], "unknown resource pod of apps/v1"),
        // Flags are spelled as in kube-apiserver; a typing error is answered with the nearest flag, and a
        // negative number is not taken for a flag.
        (&["--runtime-confg", "api/all=true"], "'--runtime-config'"),
        (&["--etcd-server=http://127.0.0.1:1"], "'--etcd-servers'"),
        (&["--max-requests-inflight", "-1"], "invalid value '-1' for '--max-requests-inflight"),
        (&["--event-ttl", "-5s"], "-5s can not be negative value"),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hawser"))
            .args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1", "--data-dir"])
            .arg(dir.path())
            .args(flags)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(text.contains(why), "{flags:?}: {text}");
    }
}

#[test]
fn a_server_that_pods_cannot_reach_says_which_flag_helps() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut child = Command::new(env!("CARGO_BIN_EXE_hawser"))
        .args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1"])
        .args(["--advertise-address", "127.0.0.1", "--data-dir"])
        .arg(&data)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stderr.take().unwrap());
    let process = Process { child, kubeconfig: data.join("kubeconfig.yaml"), _dir: dir };
    let line = said
        .lines()
        .map(Result::unwrap)
        .find(|line| line.contains("the Service kubernetes gets no endpoints"));
    let line = line.expect("the server warns");
    assert!(line.contains("127.0.0.1") && line.contains("--advertise-address"), "{line}");
    drop(process);
}

#[test]
fn a_start_that_fails_leaves_nothing_and_says_why_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("a/data");
    let started = Command::new(env!("CARGO_BIN_EXE_hawser"))
        .args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1"])
        // Nothing listens on the port of the discard protocol.
        .args(["--store", "etcd", "--etcd-servers", "http://127.0.0.1:9", "--data-dir"])
        .arg(&data)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&started.stderr);
    assert_eq!(started.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot reach etcd at http://127.0.0.1:9"), "{text}");
    assert!(text.contains("Connection refused") && !text.contains("ConnectError("), "{text}");
    assert!(!dir.path().join("a").exists());
}

#[tokio::test]
async fn it_serves_what_it_is_told_and_says_what_it_is() {
    let mut process = Process::start(&["--runtime-config", "api/beta=true,batch/v1=false"]);
    let client = apiserver_client::connect(&process.kubeconfig, "test").await.unwrap();
    client.request_text(path("/apis/networking.k8s.io/v1beta1")).await.unwrap();
    for gone in ["/apis/batch/v1", "/apis/scheduling.k8s.io/v1alpha2"] {
        assert!(client.request_text(path(gone)).await.is_err(), "{gone}");
    }
    let version: serde_json::Value = client.request(path("/version")).await.unwrap();
    let text = |field: &str| version[field].as_str().unwrap().to_owned();
    assert!(text("goVersion").starts_with("rustc 1."), "{version}");
    assert!(["clean", "dirty", "archive"].contains(&text("gitTreeState").as_str()), "{version}");
    let commit = text("gitCommit");
    assert!(commit.is_empty() || commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{version}");
    let date: jiff::Timestamp = text("buildDate").parse().unwrap();
    assert!(date < jiff::Timestamp::now());
    process.terminate();
    assert_eq!(process.end(), Some(0));
}
