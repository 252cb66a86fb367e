//! The two servers: one that the user names, and a `hawser apiserver` started beside it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tests_e2e::{Process, eventually};

use crate::compare::Answer;

/// Everybody's requests are sent as this user, since some objects record who wrote them.
const USER: [(&str, &str); 2] = [("impersonate-user", "against"), ("impersonate-group", "system:masters")];
/// Longer than any request takes; a server that hangs is given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A server and the credentials of an administrator.
#[derive(Clone)]
pub struct Server {
    client: Client,
    pub name: &'static str,
}

/// One request, whichever server it goes to.
#[derive(Clone, Debug)]
pub struct Sent<'a> {
    pub method: Method,
    pub path: &'a str,
    pub content_type: &'a str,
    pub body: String,
}

impl Server {
    /// Reads a kubeconfig; `url` takes the place of the server that it names.
    pub async fn connect(name: &'static str, kubeconfig: &Path, url: Option<&str>) -> Result<Self> {
        let unreadable = || format!("cannot use the kubeconfig {}", kubeconfig.display());
        let file = Kubeconfig::read_from(kubeconfig).with_context(unreadable)?;
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .with_context(unreadable)?;
        if let Some(url) = url {
            config.cluster_url = url.parse().with_context(|| format!("{url} is not a URL"))?;
        }
        config.read_timeout = Some(ANSWER_TIMEOUT);
        let client = Client::try_from(config).context("cannot make a client")?;
        Ok(Self { client, name })
    }

    /// Sends a request and reads its answer.
    pub async fn send(&self, sent: &Sent<'_>) -> Result<Answer> {
        let mut request =
            Request::builder().method(&sent.method).uri(sent.path).header("accept", "application/json");
        for (header, value) in USER {
            request = request.header(header, value);
        }
        if !sent.body.is_empty() {
            request = request.header("content-type", sent.content_type);
        }
        let attempted = || format!("{}: {} {}", self.name, sent.method, sent.path);
        let request = request.body(Body::from(sent.body.clone().into_bytes())).with_context(attempted)?;
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.client.send(request))
            .await
            .with_context(attempted)?
            .with_context(attempted)?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.with_context(attempted)?.to_bytes();
        let text = || Value::String(String::from_utf8_lossy(&body).into_owned());
        let warnings = head.headers.get_all("warning").iter();
        Ok(Answer {
            status: head.status.as_u16(),
            body: serde_json::from_slice(&body).unwrap_or_else(|_| text()),
            warnings: warnings.map(|value| warning(&String::from_utf8_lossy(value.as_bytes()))).collect(),
        })
    }

    /// Sends a request without a body that must succeed.
    pub async fn get(&self, path: &str) -> Result<Value> {
        let answer = self.call(Method::GET, path, String::new()).await?;
        if answer.status != 200 {
            bail!("{}: GET {path} was answered with {}: {}", self.name, answer.status, answer.body);
        }
        Ok(answer.body)
    }

    /// Sends JSON, whatever the answer.
    pub async fn call(&self, method: Method, path: &str, body: String) -> Result<Answer> {
        let content_type =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        self.send(&Sent { method, path, content_type, body }).await
    }
}

/// The text of `299 - "text"`.
fn warning(header: &str) -> String {
    let text = header.split_once('"').map_or(header, |(_, rest)| rest.strip_suffix('"').unwrap_or(rest));
    text.replace("\\\"", "\"").replace("\\\\", "\\")
}

/// A `hawser apiserver` on a free port of the loopback interface; ended, with its files, when dropped.
pub struct Hawser {
    process: Process,
    dir: tempfile::TempDir,
}

impl Hawser {
    /// Starts it with what the other server was started with, as far as that can be asked: the groups that are
    /// served and the addresses of Services.
    pub fn start(program: &Path, versions: &[String], service_ranges: Option<&str>) -> Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
        let log = dir.path().join("apiserver.log");
        let on = versions.iter().map(|version| format!("{version}=true")).collect::<Vec<_>>().join(",");
        let mut command = Command::new(program);
        command.args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1", "--data-dir"]);
        command.arg(dir.path().join("data")).arg(format!("--runtime-config={on}"));
        if let Some(ranges) = service_ranges {
            command.arg(format!("--service-cluster-ip-range={ranges}"));
        }
        let process = Process::start(&mut command, log.clone())?;
        eventually("hawser apiserver says that it serves", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            Ok(text.contains("serving https://").then_some(()))
        })
        .with_context(|| process.log_tail())?;
        Ok(Self { process, dir })
    }

    /// An administrator's.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("data/kubeconfig.yaml")
    }

    /// Ends it as a person would.
    pub fn stop(self) -> Result<()> {
        self.process.stop()
    }
}

#[cfg(test)]
mod tests {
    use super::warning;

    #[test]
    fn a_warning_is_read_from_its_header() {
        assert_eq!(warning(r#"299 - "unknown field \"spec.x\"""#), r#"unknown field "spec.x""#);
    }
}
