//! Probes of the scheduler and the controllers as separate processes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use apiserver_auth::authentication::pki::{Pki, Subject, kubeconfig};
use apiserver_meta::ambient::Ambient;

/// A process that is killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hawser() -> Command {
    Command::new(env!("CARGO_BIN_EXE_hawser"))
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_are_answered_over_tls_and_a_port_that_is_taken_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = hawser();
    command.args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1", "--data-dir"]);
    let mut api = Process(command.arg(dir.path()).stdout(Stdio::piped()).spawn().unwrap());
    BufReader::new(api.0.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    let pki = Pki::open(&dir.path().join("pki"), &Ambient::system()).unwrap();
    let pair = pki.issue(&Subject::apiserver("cluster.local", [])).unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("tls.crt"), &pair.certificate).unwrap();
    std::fs::write(path("tls.key"), &pair.key).unwrap();
    for component in ["scheduler", "controllers"] {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let start = || {
            let mut command = hawser();
            command.args([component, "--bind-address", "127.0.0.1", "--secure-port", &port.to_string()]);
            command.arg("--kubeconfig").arg(path("kubeconfig.yaml"));
            command.arg("--tls-cert-file").arg(path("tls.crt"));
            command.arg("--tls-private-key-file").arg(path("tls.key"));
            command
        };
        let output = start().output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("cannot answer probes on 127.0.0.1"), "{text}");
        drop(taken);
        let _running = Process(start().spawn().unwrap());
        let url = format!("https://127.0.0.1:{port}");
        std::fs::write(path("probe.yaml"), kubeconfig(&url, pki.ca_pem(), &pair.certificate, &pair.key))
            .unwrap();
        let client = apiserver_client::connect(&path("probe.yaml"), "test").await.unwrap();
        let get = |path: &str| http::Request::get(path).body(Vec::new()).unwrap();
        let began = Instant::now();
        loop {
            match client.request_text(get("/healthz")).await {
                Ok(text) => break assert_eq!(text, "ok"),
                Err(error) if began.elapsed() > Duration::from_secs(20) => panic!("{component}: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        for path in ["/livez", "/readyz"] {
            assert_eq!(client.request_text(get(path)).await.unwrap(), "ok");
        }
        assert!(client.request_text(get("/secrets")).await.is_err());
    }
}
