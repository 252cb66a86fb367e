//! A client on the network without credentials, with wrong ones, or with many slow connections.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::lab::NODE_IP;
use tests_e2e::{Cluster, Lab, eventually, output, root};

use crate::attack::attacker::{API, Attacker, Credentials, apply, attack, must_refuse, on_node, start};
use crate::attack::kubelet::memory;

/// More connections than the server allows.
const CONNECTIONS: usize = 10_500;
/// Number of connections that the server allows.
const MOST: usize = 10_000;

const MANIFEST: &str = r#"
apiVersion: v1
kind: ServiceAccount
metadata: {name: nobody, namespace: default}
"#;

struct Outside<'a> {
    cluster: &'a Cluster<'a>,
    stranger: Attacker<'a>,
    /// A ServiceAccount without a role.
    nobody: Attacker<'a>,
}

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn an_outsider_gets_no_access_and_blocks_no_one() -> Result<()> {
    let lab = Lab::new()?;
    let cluster = Cluster::up(&lab)?;
    apply(&cluster, "outsider.yaml", MANIFEST)?;
    let outside = Outside {
        cluster: &cluster,
        stranger: Attacker::outsider(&lab),
        nobody: Attacker::service_account(&cluster, "default", "nobody")?,
    };
    attack(
        &cluster,
        &outside,
        &[
            ("an outsider reads only health and version", &anonymous),
            ("forged credentials are refused", &forged),
            ("the kubelet admits only the API server", &kubelet),
            ("the API server's name for kubelets means nothing to the API", &kubelet_client),
            ("idle connections lock out no administrator", &idle_connections),
            ("unread answers cost no memory", &unread_answers),
        ],
    )
}

fn anonymous(outside: &Outside<'_>) -> Result<()> {
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        let answer = outside.stranger.get(path)?;
        ensure!(answer.status == 200, "GET {path} was answered with {}", answer.status);
    }
    for path in [
        "/",
        "/api",
        "/apis",
        "/api/v1",
        "/api/v1/namespaces",
        "/api/v1/secrets",
        "/api/v1/nodes/node-1/proxy/pods",
        "/apis/apps/v1/deployments?watch=1&timeoutSeconds=1",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/logs/",
        "/debug/pprof/",
        "/debug/flags/v",
    ] {
        must_refuse(path, &outside.stranger.get(path)?)?;
    }
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}});
    must_refuse("a create", &outside.stranger.create("/api/v1/namespaces/default/configmaps", &map)?)
}

fn forged(outside: &Outside<'_>) -> Result<()> {
    let path = "/api/v1/namespaces";
    let token = outside.nobody.token().unwrap_or_default().to_owned();
    let parts: Vec<&str> = token.split('.').collect();
    ensure!(parts.len() == 3, "the token has {} parts", parts.len());
    // {"alg":"none"}, and a missing, empty or foreign signature.
    for forged in [
        format!("eyJhbGciOiJub25lIn0.{}.", parts[1]),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{}.{}.{}", parts[0], parts[1], parts[2].chars().rev().collect::<String>()),
        format!("{}.eyJzdWIiOiJzeXN0ZW06YWRtaW4ifQ.{}", parts[0], parts[2]),
        "null".to_owned(),
    ] {
        let answer = outside.stranger.with(Credentials::Token(forged.clone())).get(path)?;
        ensure!(answer.status == 401, "the token {forged:?} was answered with {}", answer.status);
    }
    let dir = tempfile::tempdir()?;
    let (certificate, key) = (dir.path().join("client.crt"), dir.path().join("client.key"));
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -keyout \"$1\" \
                  -out \"$0\" -subj /O=system:masters/CN=kubernetes-admin 2>/dev/null";
    output(Command::new("sh").args(["-c", script]).arg(&certificate).arg(&key))?;
    let forged = outside.stranger.with(Credentials::Certificate { certificate, key });
    let answer = forged.get(path)?;
    ensure!(answer.status == 401, "a certificate of nobody's was answered with {}", answer.status);
    Ok(())
}

fn kubelet(outside: &Outside<'_>) -> Result<()> {
    let data = outside.cluster.lab.data_dir();
    let node = Attacker::node(outside.cluster, "node-1", NODE_IP)?;
    let pki = |name: &str| Credentials::Certificate {
        certificate: data.join(format!("pki/{name}.crt")),
        key: data.join(format!("pki/{name}.key")),
    };
    let callers =
        [outside.stranger.clone(), outside.nobody.clone(), node, outside.stranger.with(pki("apiserver"))];
    for path in [
        "/healthz",
        "/pods",
        "/metrics",
        "/configz",
        "/run/default/x/y",
        "/exec/default/x/y",
        "/logs/",
        "/spec/",
        "/debug/pprof/",
        "/checkpoint/default/x/y",
    ] {
        for caller in &callers {
            for method in ["GET", "POST"] {
                let answer = caller.request(method, &on_node(10250, path), &[], None)?;
                // Most do not get through the handshake.
                ensure!(answer.missing() || answer.refused(), "{path} was answered with {}", answer.status);
            }
        }
        // No second port without authentication, and none for health and profiles, not even on the node
        // itself.
        for port in [10255, 10248] {
            let outer = outside.stranger.get(&format!("http://{NODE_IP}:{port}{path}"))?;
            let inner = outside.stranger.inside().get(&format!("http://127.0.0.1:{port}{path}"))?;
            ensure!(outer.missing() && inner.missing(), "port {port} answers {path}");
        }
    }
    // The API server is admitted, and finds neither profiles nor checkpoints.
    let server = outside.stranger.with(pki("apiserver-kubelet-client"));
    for (method, path, status) in [
        ("GET", "/healthz", 200),
        ("GET", "/debug/pprof/", 404),
        ("GET", "/debug/pprof/heap", 404),
        ("POST", "/checkpoint/default/x/y", 404),
    ] {
        let answer = server.request(method, &on_node(10250, path), &[], None)?;
        ensure!(answer.status == status, "{method} {path} was answered with {}", answer.status);
    }
    Ok(())
}

fn kubelet_client(outside: &Outside<'_>) -> Result<()> {
    let data = outside.cluster.lab.data_dir();
    let caller = outside.stranger.with(Credentials::Certificate {
        certificate: data.join("pki/apiserver-kubelet-client.crt"),
        key: data.join("pki/apiserver-kubelet-client.key"),
    });
    for path in ["/api/v1/secrets", "/api/v1/namespaces", "/apis"] {
        let answer = caller.get(path)?;
        ensure!(
            answer.status == 401,
            "GET {path} was answered with {}: {}",
            answer.status,
            start(&answer.body)
        );
    }
    Ok(())
}

/// Opens as many silent connections from the other host as possible, and holds them.
fn idle_connections(outside: &Outside<'_>) -> Result<()> {
    let mut command = outside.cluster.lab.on_client("sh");
    command.args(["-c", "ulimit -n $(ulimit -Hn); exec python3 \"$@\"", "sh"]);
    command.arg(root().join("tests/e2e/tests/attack/idle.py")).args([NODE_IP, "6443"]);
    let mut holder = Holder(
        command
            .arg(CONNECTIONS.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start python3")?,
    );
    let mut printed = BufReader::new(holder.0.stdout.take().context("no output")?);
    let mut line = String::new();
    printed.read_line(&mut line).context("cannot read the number of open connections")?;
    let held: usize = line
        .trim()
        .strip_prefix("held ")
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("the holder does not say how many it holds: {line:?}"))?;
    println!("{held} idle connections");
    ensure!(held > MOST, "only {held} connections were made; see ulimit -Hn");
    // From the same address, and from the machine itself.
    let outcome = (|| {
        outside.cluster.kubectl("get nodes")?;
        let administrator = administrator(outside)?;
        let answer = administrator.get("/api/v1/nodes")?;
        ensure!(answer.status == 200, "the administrator was answered with {}", answer.status);
        Ok(())
    })();
    drop(holder);
    outcome
}

/// A process that is killed when dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns an attacker on the other host with the administrator's certificate.
fn administrator<'a>(outside: &Outside<'a>) -> Result<Attacker<'a>> {
    let pki = outside.cluster.lab.data_dir().join("pki");
    let credentials =
        Credentials::Certificate { certificate: pki.join("admin.crt"), key: pki.join("admin.key") };
    Ok(outside.stranger.with(credentials))
}

/// HTTP/2 streams with a window of one byte for large answers, none of which is read.
fn unread_answers(outside: &Outside<'_>) -> Result<()> {
    let lease = renewed(outside.cluster)?;
    let before = memory(outside.cluster)?;
    let token = format!("Authorization: Bearer {}", outside.nobody.token().unwrap_or_default());
    let mut running = Vec::new();
    for (path, accept) in [
        ("/openapi/v2", "application/json"),
        ("/openapi/v2", "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"),
        ("/openapi/v3/api/v1", "application/json"),
        ("/apis", "application/json"),
    ] {
        let mut h2load = outside.cluster.lab.on_client("h2load");
        h2load.args(["-n", "5000", "-c", "20", "-m", "250", "-w", "1", "-W", "16", "-T", "20", "-H", &token]);
        h2load.args(["-H", &format!("Accept: {accept}")]).arg(format!("{API}{path}"));
        h2load.stdout(Stdio::null()).stderr(Stdio::null());
        running.push(Holder(h2load.spawn().context("cannot start h2load")?));
    }
    // All connections are established.
    eventually("the readers to be connected", || {
        let open = connections(outside)?;
        Ok((open >= 60).then_some(()))
    })?;
    let (mut largest, mut looks, mut unready) = (0, 0, None);
    eventually("the node to renew its lease under the load", || {
        largest = largest.max(memory(outside.cluster)?);
        looks += 1;
        // A single refusal is one too many, so unlike everything else here this is not retried.
        unready = unready.take().or(outside.cluster.kubectl("get --raw /readyz").err());
        Ok((looks >= 20 && renewed(outside.cluster)? != lease).then_some(()))
    })?;
    drop(running);
    if let Some(error) = unready {
        return Err(error.context("the server was not ready under the load"));
    }
    let grown = largest.saturating_sub(before);
    ensure!(grown < 512 << 20, "20,000 streams that nobody reads cost {} MiB", grown >> 20);
    Ok(())
}

/// Returns the number of established connections to the API server, as seen by the other host.
fn connections(outside: &Outside<'_>) -> Result<usize> {
    let file = output(outside.cluster.lab.on_client("cat").arg("/proc/net/tcp"))?;
    // State 01 is ESTABLISHED; 192B is 6443.
    Ok(file.lines().filter(|line| line.contains(":192B 01")).count())
}

/// Returns when the node last renewed its lease.
fn renewed(cluster: &Cluster<'_>) -> Result<Value> {
    Ok(cluster.get("lease node-1 -n kube-node-lease")?["spec"]["renewTime"].clone())
}
