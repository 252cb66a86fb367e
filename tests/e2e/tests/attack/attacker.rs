//! An attacker: a place on the network, credentials, and requests that are sent unchanged.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tests_e2e::lab::NODE_IP;
use tests_e2e::{Cluster, Lab, hawser, output};

/// Address of the API server of the lab's node.
pub const API: &str = "https://192.0.2.1:6443";

/// Credentials that an attacker presents.
#[derive(Clone)]
pub enum Credentials {
    Nothing,
    Token(String),
    /// A client certificate, as PEM files.
    Certificate {
        certificate: PathBuf,
        key: PathBuf,
    },
}

/// Sends requests from the lab's node, or from the other host if `outside`.
#[derive(Clone)]
pub struct Attacker<'a> {
    lab: &'a Lab,
    outside: bool,
    credentials: Credentials,
}

/// An answer to a request.
#[derive(Debug)]
pub struct Answer {
    /// Status code; 0 if there was no answer.
    pub status: u16,
    /// Headers, with names in lower case.
    pub headers: String,
    pub body: String,
}

impl Answer {
    /// Returns whether the server refused. A connection that merely ends does not count: its task may have
    /// died.
    pub fn refused(&self) -> bool {
        self.status >= 400
    }

    /// Returns whether no answer came, as when nobody listens or the handshake fails.
    pub fn missing(&self) -> bool {
        self.status == 0
    }
}

impl<'a> Attacker<'a> {
    /// Returns an attacker on the other host without credentials.
    pub fn outsider(lab: &'a Lab) -> Self {
        Self { lab, outside: true, credentials: Credentials::Nothing }
    }

    /// Returns an attacker on the other host with the token of a ServiceAccount.
    pub fn service_account(cluster: &Cluster<'a>, namespace: &str, name: &str) -> Result<Self> {
        let token = cluster.kubectl(&format!("create token {name} -n {namespace}"))?;
        let credentials = Credentials::Token(token.trim().to_owned());
        Ok(Self { credentials, ..Self::outsider(cluster.lab) })
    }

    /// Returns an attacker on the other host with the credentials that `hawser credentials` issues for a
    /// node's kubelet.
    pub fn node(cluster: &Cluster<'a>, name: &str, address: &str) -> Result<Self> {
        let dir = issued(cluster, name, address)?;
        let kubeconfig = std::fs::read_to_string(dir.join("kubeconfig.yaml"))
            .context("cannot read the node's kubeconfig")?;
        let (certificate, key) = (dir.join("client.crt"), dir.join("client.key"));
        for (file, field) in [(&certificate, "client-certificate-data"), (&key, "client-key-data")] {
            decode(&kubeconfig, field, file)?;
        }
        let credentials = Credentials::Certificate { certificate, key };
        Ok(Self { credentials, ..Self::outsider(cluster.lab) })
    }

    /// Returns an attacker with the same credentials on the lab's node.
    pub fn inside(&self) -> Self {
        Self { outside: false, ..self.clone() }
    }

    /// Returns an attacker at the same place with other credentials.
    pub fn with(&self, credentials: Credentials) -> Self {
        Self { credentials, ..self.clone() }
    }

    /// Returns the bearer token, if that is the credential.
    pub fn token(&self) -> Option<&str> {
        match &self.credentials {
            Credentials::Token(token) => Some(token),
            _ => None,
        }
    }

    pub fn get(&self, path: &str) -> Result<Answer> {
        self.request("GET", path, &[], None)
    }

    pub fn create(&self, path: &str, object: &Value) -> Result<Answer> {
        self.request("POST", path, &["Content-Type: application/json"], Some(object))
    }

    pub fn update(&self, path: &str, object: &Value) -> Result<Answer> {
        self.request("PUT", path, &["Content-Type: application/json"], Some(object))
    }

    /// Sends a merge patch.
    pub fn patch(&self, path: &str, patch: &Value) -> Result<Answer> {
        self.request("PATCH", path, &["Content-Type: application/merge-patch+json"], Some(patch))
    }

    pub fn delete(&self, path: &str) -> Result<Answer> {
        self.request("DELETE", path, &[], None)
    }

    /// Sends a request to the API server, or to a URL elsewhere. The path is sent as it is.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: Option<&Value>,
    ) -> Result<Answer> {
        let dir = tempfile::tempdir().context("cannot make a directory for an answer")?;
        let (head, content) = (dir.path().join("head"), dir.path().join("body"));
        let mut curl = self.curl();
        curl.args(["-X", method, "--max-time", "30"]).arg("-D").arg(&head).arg("-o").arg(&content);
        for header in headers {
            curl.args(["-H", header]);
        }
        if let Some(body) = body {
            let file = dir.path().join("request");
            std::fs::write(&file, body.to_string()).context("cannot write a request's body")?;
            curl.arg("--data-binary").arg(format!("@{}", file.display()));
        }
        let url = if path.starts_with("http") { path.to_owned() } else { format!("{API}{path}") };
        let ended = curl.arg(url).output().context("cannot start curl")?;
        let text = |file: &Path| {
            std::fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
        };
        let status = String::from_utf8_lossy(&ended.stdout).trim().parse().unwrap_or(0);
        Ok(Answer { status, headers: text(&head).to_lowercase(), body: text(&content) })
    }

    /// Returns a curl command with the credentials, HTTP/1.1, and unmodified paths.
    pub fn curl(&self) -> Command {
        let mut curl = if self.outside { self.lab.on_client("curl") } else { self.lab.on_node("curl") };
        curl.args(["-sk", "--http1.1", "--path-as-is", "-w", "%{http_code}"]);
        match &self.credentials {
            Credentials::Nothing => {}
            Credentials::Token(token) => drop(curl.args(["-H", &format!("Authorization: Bearer {token}")])),
            Credentials::Certificate { certificate, key } => {
                curl.arg("--cert").arg(certificate).arg("--key").arg(key);
            }
        }
        curl
    }
}

/// Issues the credentials of a kubelet; returns their directory: `kubeconfig.yaml`, `serving.crt`, …
pub fn issued(cluster: &Cluster<'_>, name: &str, address: &str) -> Result<PathBuf> {
    let out = cluster.lab.dir().join("credentials").join(name);
    let mut command = cluster.lab.on_node(hawser()?);
    command.args(["credentials", "--component", "kubelet", "--server", API, "--node-name", name]);
    command.args(["--node-ip", address]).arg("--data-dir").arg(cluster.lab.data_dir());
    output(command.arg("--out").arg(&out))?;
    Ok(out)
}

/// Writes a base64 field of a kubeconfig to a file.
fn decode(kubeconfig: &str, field: &str, file: &Path) -> Result<()> {
    let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix(&format!("{field}:")));
    let encoded = line.with_context(|| format!("the kubeconfig has no {field}"))?.trim().trim_matches('"');
    let command = "printf %s \"$0\" | base64 -d > \"$1\"";
    output(Command::new("sh").args(["-c", command, encoded]).arg(file))?;
    Ok(())
}

/// An attack: what it must not achieve, and how it is carried out.
pub type Attack<'a, T> = (&'static str, &'a dyn Fn(&T) -> Result<()>);

/// Carries out all attacks, even if some fail, and fails if any succeeded or harmed the cluster.
pub fn attack<T>(cluster: &Cluster<'_>, field: &T, attacks: &[Attack<'_, T>]) -> Result<()> {
    let mut succeeded = Vec::new();
    for (name, attempt) in attacks {
        match attempt(field).and_then(|()| unharmed(cluster)) {
            Ok(()) => println!("held: {name}"),
            Err(error) => succeeded.push(format!("{name}: {error:#}")),
        }
    }
    if succeeded.is_empty() {
        return Ok(());
    }
    bail!("{} of {} attacks succeeded:\n{}", succeeded.len(), attacks.len(), succeeded.join("\n"))
}

/// Checks that the cluster still answers and that no thread of it has panicked.
fn unharmed(cluster: &Cluster<'_>) -> Result<()> {
    cluster.kubectl("get --raw /livez").context("the cluster is no longer alive")?;
    let log = std::fs::read(cluster.log_file()).context("cannot read the log")?;
    let log = String::from_utf8_lossy(&log);
    let panicked = log.lines().find(|line| line.contains("panicked at"));
    ensure!(panicked.is_none(), "the cluster panicked: {}", panicked.unwrap_or_default());
    Ok(())
}

/// Checks that the answer refuses permission: another error would hide missing authorization.
pub fn must_refuse(what: &str, answer: &Answer) -> Result<()> {
    must_fail(&[403], what, answer)
}

/// Checks that the answer is one of these refusals.
pub fn must_fail(statuses: &[u16], what: &str, answer: &Answer) -> Result<()> {
    let (status, body) = (answer.status, start(&answer.body));
    ensure!(statuses.contains(&status), "{what} was answered with {status}: {body}");
    Ok(())
}

/// Returns the first line or two of a text.
pub fn start(text: &str) -> String {
    text.chars().take(300).collect()
}

/// Encodes bytes as base64 on one line.
pub fn base64(bytes: &[u8]) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), bytes)?;
    tests_e2e::output(std::process::Command::new("base64").arg("-w0").arg(file.path()))
}

/// Applies a manifest as the administrator.
pub fn apply(cluster: &Cluster<'_>, name: &str, manifest: &str) -> Result<()> {
    let file = cluster.lab.dir().join(name);
    std::fs::write(&file, manifest).with_context(|| format!("cannot write {}", file.display()))?;
    cluster.kubectl_args(&["apply", "-f", &file.display().to_string()])?;
    Ok(())
}

/// Returns a URL with an address and port of the lab's node.
pub fn on_node(port: u16, path: &str) -> String {
    format!("https://{NODE_IP}:{port}{path}")
}
