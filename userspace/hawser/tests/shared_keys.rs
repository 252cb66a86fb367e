//! Several API servers behind one etcd are one API: an identity at one of them is valid at the others, with
//! keys from files and with a copy of the first server's keys.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::etcd_server::EtcdServer;
use apiserver_auth::authentication::pki::{Pki, Subject, kubeconfig};
use apiserver_meta::ambient::Ambient;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

/// A process that is killed when dropped.
struct Process {
    child: Child,
    url: String,
    data: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(data: &Path, etcd: &EtcdServer, flags: &[String]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hawser"))
            .args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1"])
            .args(["--advertise-address", "127.0.0.1", "--store", "etcd", "--etcd-servers", &etcd.url()])
            .arg("--data-dir")
            .arg(data)
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.strip_prefix("serving ").and_then(|rest| rest.split(';').next());
        let url = url.expect("it says where it serves").to_owned();
        Self { child, url, data: data.to_owned() }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.data.join("kubeconfig.yaml")
    }

    /// Returns a client with a bearer token.
    async fn with_token(&self, token: &str, ca: &Path) -> Client {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority": ca}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        self.with(&config.to_string()).await
    }

    async fn with(&self, kubeconfig: &str) -> Client {
        let file = self.data.join("other.yaml");
        std::fs::write(&file, kubeconfig).unwrap();
        apiserver_client::connect(&file, "test").await.unwrap()
    }
}

async fn whoami(client: &Client) -> Result<String, kube::Error> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header("content-type", "application/json")
        .body(review.to_string().into_bytes())
        .unwrap();
    let answer: Value = client.request(request).await?;
    Ok(answer["status"]["userInfo"]["username"].as_str().unwrap().to_owned())
}

fn code<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> u16 {
    match result {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("expected a refusal: {other:?}"),
    }
}

/// Returns a token of the ServiceAccount `bot` in `default`.
async fn token(client: &Client) -> String {
    let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    let account = serde_json::from_value(json!({"metadata": {"name": "bot"}})).unwrap();
    // The other server may have created it.
    let _ = accounts.create(&PostParams::default(), &account).await;
    let request = TokenRequest { spec: Some(TokenRequestSpec::default()), ..TokenRequest::default() };
    let answer = accounts.create_token_request("bot", &PostParams::default(), &request).await.unwrap();
    answer.status.unwrap().token.unwrap()
}

/// Waits until the token is `bot`'s: servers see the writes of others a moment later.
async fn becomes_bot(client: &Client) {
    let began = Instant::now();
    loop {
        match whoami(client).await {
            Ok(user) => return assert_eq!(user, "system:serviceaccount:default:bot"),
            Err(error) if began.elapsed() > Duration::from_secs(10) => panic!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_with_the_same_files_accept_each_others_tokens_and_certificates() {
    let etcd = EtcdServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let shared = Pki::open(&dir.path().join("shared"), &Ambient::system()).unwrap();
    let pair = shared.issue(&Subject::apiserver("cluster.local", [])).unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let keys = [rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap()];
    let private = [file("sa1.key", &keys[0].serialize_pem()), file("sa2.key", &keys[1].serialize_pem())];
    let public = [file("sa1.pub", &keys[0].public_key_pem()), file("sa2.pub", &keys[1].public_key_pem())];
    let ca = dir.path().join("shared/ca.crt");
    let common = [
        format!("--client-ca-file={}", ca.display()),
        format!("--tls-cert-file={}", file("tls.crt", &pair.certificate)),
        format!("--tls-private-key-file={}", file("tls.key", &pair.key)),
        format!("--service-account-key-file={}", public[0]),
        format!("--service-account-key-file={}", public[1]),
        "--api-audiences=api,vault".to_owned(),
    ];
    // The issuer is being renamed: one server has the new name already.
    let (old, new) =
        ("--service-account-issuer=https://old.example", "--service-account-issuer=https://new.example");
    let start = |name: &str, signing: &str, issuers: [&str; 2]| {
        let mut flags = common.to_vec();
        flags.push(format!("--service-account-signing-key-file={signing}"));
        flags.extend(issuers.map(str::to_owned));
        Process::start(&dir.path().join(name), &etcd, &flags)
    };
    let (a, b) = (start("a", &private[0], [old, new]), start("b", &private[1], [new, old]));
    let admin = shared.issue(&Subject::admin()).unwrap();
    for (here, there) in [(&a, &b), (&b, &a)] {
        let client = here.with(&kubeconfig(&here.url, shared.ca_pem(), &admin.certificate, &admin.key)).await;
        assert_eq!(whoami(&client).await.unwrap(), "kubernetes-admin");
        becomes_bot(&there.with_token(&token(&client).await, &ca).await).await;
        // The administrator's kubeconfig of each server leads to that server.
        let own = apiserver_client::connect(&here.kubeconfig(), "test").await.unwrap();
        assert_eq!(whoami(&own).await.unwrap(), "kubernetes-admin");
        // The other server does not know this one's authority, and answers so.
        let text = std::fs::read_to_string(here.kubeconfig()).unwrap().replace(&here.url, &there.url);
        assert_eq!(code(whoami(&there.with(&text).await).await), 401);
        let page = http::Request::get("/openid/v1/jwks").body(Vec::new()).unwrap();
        let set: Value = client.request(page).await.unwrap();
        assert_eq!(set["keys"].as_array().unwrap().len(), 2, "{set}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_the_keys_makes_another_server_of_the_same_cluster() {
    let etcd = EtcdServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let a = Process::start(&dir.path().join("a"), &etcd, &[]);
    let (from, to) = (dir.path().join("a/pki"), dir.path().join("b/pki"));
    std::fs::create_dir_all(&to).unwrap();
    for name in ["ca.crt", "ca.key", "sa.key"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let b = Process::start(&dir.path().join("b"), &etcd, &[]);
    for (here, there) in [(&a, &b), (&b, &a)] {
        let text = std::fs::read_to_string(here.kubeconfig()).unwrap().replace(&here.url, &there.url);
        let client = there.with(&text).await;
        assert_eq!(whoami(&client).await.unwrap(), "kubernetes-admin");
        becomes_bot(&here.with_token(&token(&client).await, &from.join("ca.crt")).await).await;
    }
}

#[test]
fn files_that_are_no_use_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(&dir.path().join("pki"), &Ambient::system()).unwrap();
    let (one, two) = (pki.issue(&Subject::admin()).unwrap(), pki.issue(&Subject::admin()).unwrap());
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("one.crt"), one.certificate).unwrap();
    std::fs::write(path("two.key"), two.key).unwrap();
    std::fs::write(path("text"), "text").unwrap();
    let (missing, text, one, two) = (path("missing"), path("text"), path("one.crt"), path("two.key"));
    for (flags, why) in [
        (vec!["--client-ca-file", &missing], format!("cannot use {missing}: No such file")),
        (vec!["--client-ca-file", &text], format!("{text} does not hold certificates of authorities")),
        (
            vec!["--tls-cert-file", &text, "--tls-private-key-file", &two],
            format!("{text} does not hold a certificate"),
        ),
        (
            vec!["--tls-cert-file", &one, "--tls-private-key-file", &text],
            format!("{text} does not hold a private key"),
        ),
        (
            vec!["--tls-cert-file", &one, "--tls-private-key-file", &two],
            format!("the private key in {two} is not that of the certificate in {one}"),
        ),
        (vec!["--tls-cert-file", &one], "--tls-private-key-file".to_owned()),
        (vec!["--service-account-key-file", &text], format!("{text} does not hold an RSA or P-256 key")),
        (
            vec!["--service-account-signing-key-file", &one],
            format!("{one} does not hold an RSA or P-256 private key"),
        ),
        (
            vec!["--service-account-jwks-uri", "http://x"],
            "--service-account-jwks-uri http://x requires https scheme".to_owned(),
        ),
        (
            vec!["--service-account-issuer", "a:b"],
            "--service-account-issuer a:b contains a colon but is not a URL".to_owned(),
        ),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_hawser"))
            .args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1", "--data-dir"])
            .arg(dir.path().join("data"))
            .args(&flags)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(text.contains(&why), "{flags:?}: {text}");
    }
}
