//! A compromised kubelet: `node-2` is a server of the attacker's, with the node's own certificate.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests_e2e::lab::{CLIENT_IP, NODE_IP};
use tests_e2e::{Cluster, Lab, Process, eventually, root};

use crate::attack::attacker::{Answer, Attacker, apply, attack, issued, must_fail, start};

const PORT: u16 = 10250;

const MANIFEST: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: guest, namespace: default}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: hawser.local/echo:1, imagePullPolicy: Never}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: administrator, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: administrator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: administrator, namespace: default}]
"#;

/// The victim: an administrator who accesses a pod of the hostile node.
struct Trap<'a> {
    cluster: &'a Cluster<'a>,
    administrator: Attacker<'a>,
    node: Attacker<'a>,
}

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn a_hostile_kubelet_gains_nothing_from_its_callers() -> Result<()> {
    let lab = Lab::new()?;
    let cluster = Cluster::with(&lab, &["--log", "trace"])?;
    let node = Attacker::node(&cluster, "node-2", CLIENT_IP)?;
    let made = node.create("/api/v1/nodes", &json!({"kind": "Node", "metadata": {"name": "node-2"}}))?;
    ensure!(made.status == 201, "node-2 cannot register: {}", start(&made.body));
    apply(&cluster, "kubelet.yaml", MANIFEST)?;
    let administrator = Attacker::service_account(&cluster, "default", "administrator")?;
    let trap = Trap { cluster: &cluster, administrator, node };
    trap.claims(CLIENT_IP, PORT)?;
    attack(
        &cluster,
        &trap,
        &[
            ("a redirect is not passed on", &redirects),
            ("headers that take credentials are not passed on", &cookies),
            ("an unrequested upgrade is not passed on", &switches),
            ("a client is not told to believe a body without end", &endless),
            ("the caller's credentials never reach a kubelet", &credentials),
            ("a node is not called by another node's name", &another_address),
            ("no token and no key is in the log, however much is logged", &nothing_secret_is_logged),
        ],
    )
}

impl Trap<'_> {
    /// Sets the address of node-2, with the node's own credentials.
    fn claims(&self, address: &str, port: u16) -> Result<()> {
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        let answer = self.node.patch("/api/v1/nodes/node-2/status", &status)?;
        ensure!(answer.status == 200, "node-2 cannot say where it is: {}", start(&answer.body));
        Ok(())
    }

    /// Starts the hostile server on the other host.
    fn hostile(&self, behaviour: &str) -> Result<Hostile> {
        let dir = issued(self.cluster, "node-2", CLIENT_IP)?;
        hostile(self.cluster, behaviour, PORT, &dir.join("serving.crt"), &dir.join("serving.key"))
    }

    /// Makes every kind of request with which the administrator reaches a kubelet.
    fn calls(&self) -> Result<Vec<(String, Answer)>> {
        let pod = "/api/v1/namespaces/default/pods/guest";
        let upgrade = ["Connection: Upgrade", "Upgrade: SPDY/3.1"];
        let websocket = [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: eA==",
        ];
        let mut answers = Vec::new();
        for (method, path, headers) in [
            ("GET", format!("{pod}/log"), &[][..]),
            ("POST", format!("{pod}/exec?command=x&stdout=1"), &upgrade),
            ("GET", format!("{pod}/exec?command=x&stdout=1"), &websocket),
            ("POST", format!("{pod}/attach?stdout=1"), &upgrade),
            ("POST", format!("{pod}/portforward?ports=1"), &upgrade),
            ("GET", "/api/v1/nodes/node-2/proxy/pods".to_owned(), &[]),
            ("GET", "/api/v1/nodes/node-2/proxy/pods".to_owned(), &upgrade),
        ] {
            answers.push((
                format!("{method} {path}"),
                self.administrator.request(method, &path, headers, None)?,
            ));
        }
        Ok(answers)
    }
}

/// The server of `hostile.py`, and the requests that it received.
pub struct Hostile {
    _process: Process,
    log: std::path::PathBuf,
}

impl Hostile {
    /// Returns the request lines that it received.
    pub fn requests_received(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// Starts `hostile.py` on the other host.
pub fn hostile(
    cluster: &Cluster<'_>,
    behaviour: &str,
    port: u16,
    certificate: &std::path::Path,
    key: &std::path::Path,
) -> Result<Hostile> {
    let log = cluster.lab.dir().join(format!("hostile-{behaviour}.log"));
    let _ = std::fs::remove_file(&log);
    let mut command = cluster.lab.on_client("python3");
    command.arg(root().join("tests/e2e/tests/attack/hostile.py")).args([CLIENT_IP, &port.to_string()]);
    command.arg(certificate).arg(key).arg(behaviour);
    let process = Process::start(&mut command, log.clone())?;
    let hostile = Hostile { _process: process, log };
    eventually("the hostile server to listen", || {
        Ok(hostile.requests_received().contains("listening").then_some(()))
    })
    .with_context(|| hostile.requests_received())?;
    Ok(hostile)
}

fn redirects(trap: &Trap<'_>) -> Result<()> {
    let hostile = trap.hostile("redirect")?;
    for (call, answer) in trap.calls()? {
        must_fail(&[502], &call, &answer)?;
        ensure!(!answer.headers.contains("location:"), "{call} passed the redirect on: {}", answer.headers);
    }
    ensure!(
        hostile.requests_received().contains("/containerLogs/"),
        "nobody called: {}",
        hostile.requests_received()
    );
    ensure!(
        !hostile.requests_received().contains("/stolen"),
        "the redirect was followed: {}",
        hostile.requests_received()
    );
    Ok(())
}

fn cookies(trap: &Trap<'_>) -> Result<()> {
    let _hostile = trap.hostile("cookie")?;
    for (call, answer) in trap.calls()? {
        for header in ["set-cookie:", "www-authenticate:"] {
            ensure!(!answer.headers.contains(header), "{call} passed on {header} {}", answer.headers);
        }
    }
    Ok(())
}

fn switches(trap: &Trap<'_>) -> Result<()> {
    let _hostile = trap.hostile("switch")?;
    for path in ["/api/v1/namespaces/default/pods/guest/log", "/api/v1/nodes/node-2/proxy/pods"] {
        let answer = trap.administrator.get(path)?;
        ensure!(answer.status != 101, "GET {path} switched protocols unasked");
        must_fail(&[502], path, &answer)?;
        ensure!(!answer.body.contains("smuggled"), "GET {path} brought a second answer");
    }
    Ok(())
}

/// A client that stops reading suffices to end an endless answer; the server buffers nothing of it.
fn endless(trap: &Trap<'_>) -> Result<()> {
    let _hostile = trap.hostile("endless")?;
    let before = memory(trap.cluster)?;
    let mut callers = Vec::new();
    for _ in 0..8 {
        let mut curl = trap.administrator.curl();
        // Reads a few KiB per second of an answer that comes as fast as it can.
        curl.args(["--limit-rate", "4k", "--max-time", "4", "-o", "/dev/null"]);
        curl.arg(format!("{}/api/v1/namespaces/default/pods/guest/log", crate::attack::attacker::API));
        callers.push(curl.stdout(std::process::Stdio::null()).spawn().context("cannot start curl")?);
    }
    for mut caller in callers {
        caller.wait().context("cannot wait for curl")?;
    }
    let grown = memory(trap.cluster)?.saturating_sub(before);
    ensure!(grown < 64 << 20, "eight slow readers cost {} MiB", grown >> 20);
    Ok(())
}

/// Returns the resident memory of the cluster's process in bytes.
pub fn memory(cluster: &Cluster<'_>) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", cluster.pid()?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("VmRSS is no number")?;
    Ok(kib * 1024)
}

fn credentials(trap: &Trap<'_>) -> Result<()> {
    let hostile = trap.hostile("cookie")?;
    trap.calls()?;
    let requests_received = hostile.requests_received();
    ensure!(requests_received.contains("/containerLogs/"), "nobody called: {requests_received}");
    let token = trap.administrator.token().unwrap_or_default();
    ensure!(
        !requests_received.contains(token) && !requests_received.contains("Bearer"),
        "the token was passed on: {requests_received}"
    );
    Ok(())
}

/// node-2 claims the address of node-1: requests for one must not reach the other.
fn another_address(trap: &Trap<'_>) -> Result<()> {
    trap.claims(NODE_IP, PORT)?;
    let mut outcome = Ok(());
    for (call, answer) in trap.calls()? {
        if !answer.refused() {
            outcome = Err(anyhow::anyhow!("{call} was answered by node-1: {}", start(&answer.body)));
        }
    }
    trap.claims(CLIENT_IP, PORT)?;
    outcome?;
    let node = trap.cluster.get("node node-2")?;
    ensure!(node["status"]["addresses"][0]["address"] == CLIENT_IP, "the address is not back: {node}");
    Ok(())
}

fn nothing_secret_is_logged(trap: &Trap<'_>) -> Result<()> {
    let log = std::fs::read_to_string(trap.cluster.log_file()).context("cannot read the log")?;
    ensure!(log.contains("TRACE") || log.contains("trace"), "the log is not that of the level trace");
    let token = trap.administrator.token().context("the administrator shows no token")?;
    let signature = token.rsplit('.').next().unwrap_or_default();
    for (what, secret) in [("a token", token), ("a token's signature", signature), ("a key", "PRIVATE KEY")] {
        ensure!(!log.contains(secret), "the log has {what}");
    }
    Ok(())
}
