//! Each component as a process of its own, over TLS, with its own user, on a real etcd; any of them can be
//! killed at any time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests_e2e::lab::NODE_IP;
use tests_e2e::{Lab, Load, Process, Snapshot, echo, echo_image, eventually, hawser, output, root};

const ETCD: &str = "http://127.0.0.1:2379";
const NAMES: [&str; 6] = ["apiserver", "controllers", "scheduler", "kubelet", "proxy", "dns"];
/// The address of the cluster's DNS Service.
const DNS: &str = "10.96.0.10";

#[test]
#[ignore = "needs root, containerd, etcd and kubectl: cargo xtask test"]
fn components_run_as_processes_and_survive_each_others_death() -> Result<()> {
    let lab = Lab::new()?;
    let before = Snapshot::take(&lab)?;
    let outcome = day(&lab);
    // Everything is removed, whatever the outcome.
    let cleaned = clean_up(&lab);
    outcome?;
    cleaned?;
    let differences = Snapshot::take(&lab)?.differences(&before);
    ensure!(differences.is_empty(), "the machine is different:\n{}", differences.join("\n"));
    Ok(())
}

fn clean_up(lab: &Lab) -> Result<()> {
    // Its containerd and pods have outlived the kubelet.
    let said = output(lab.on_node(hawser()?).arg("leave").arg("--data-dir").arg(lab.dir().join("kubelet")))?;
    ensure!(said.contains("kubectl delete node node-1"), "hawser leave: {said}");
    output(lab.on_node(hawser()?).args(["proxy", "--cleanup", "--bpf-root", &bpf_root(lab)]))?;
    Ok(())
}

fn day(lab: &Lab) -> Result<()> {
    let mut cluster = Apart::start(lab)?;
    let outcome = work(&mut cluster);
    if outcome.is_err() {
        for process in cluster.running.values() {
            println!("{}", process.log_tail());
        }
    }
    outcome
}

fn work(cluster: &mut Apart<'_>) -> Result<()> {
    let lab = cluster.lab;
    let manifest = root().join("tests/data/echo.yaml").display().to_string();
    cluster.kubectl(&["apply", "-f", &manifest])?;
    cluster.kubectl(&["rollout", "status", "deploy/echo", "-n", "echo", "--timeout=120s"])?;
    let ip = cluster.kubectl(&["get", "svc", "echo", "-n", "echo", "-o", "jsonpath={.spec.clusterIP}"])?;
    let target = format!("{ip}:80");
    // A rollout ends when the pods are ready; endpoints and tables follow.
    let answer = eventually("the ClusterIP to answer", || {
        output(lab.on_node(echo()?).args(["get", &target])).map(Some)
    })?;
    ensure!(answer.starts_with("echo-"), "the ClusterIP answered {answer:?}");
    let answer = eventually("the node port to answer", || {
        output(lab.on_client(echo()?).args(["get", &format!("{NODE_IP}:30080")])).map(Some)
    })?;
    ensure!(answer.starts_with("echo-"), "the node port answered {answer:?}");
    let logs = cluster.kubectl(&["logs", "-n", "echo", "deploy/echo"])?;
    ensure!(logs.contains("listens on port 8080"), "kubectl logs: {logs}");

    let service = root().join("deploy/dns-service.yaml").display().to_string();
    cluster.kubectl(&["apply", "-f", &service])?;
    cluster.names_resolve(&ip)?;

    let restarts = cluster.restarts()?;
    let load = Load::start(lab.on_node(echo()?).args(["load", &target]))?;
    let held = Load::start(lab.on_node(echo()?).args(["hold", &target]))?;
    for (round, name) in NAMES.into_iter().enumerate() {
        cluster.kill(name)?;
        cluster.run(name)?;
        let replicas = 4 + round;
        cluster.eventually_scaled(replicas).with_context(|| format!("after {name} was killed"))?;
    }
    for (what, load) in [("new connections", load), ("one connection", held)] {
        let counts = load.finish()?;
        println!("every component killed once, {what}: {} requests, {} failed", counts.ok, counts.failed);
        ensure!(counts.failed == 0 && counts.ok > 10, "{what}: {counts:?}");
    }
    for (pod, count) in &restarts {
        let now = cluster.restarts()?;
        ensure!(now.get(pod) == Some(count), "the containers of {pod} were restarted: {restarts:?} {now:?}");
    }
    cluster.names_resolve(&ip)?;
    cluster.refuses_strangers()?;
    cluster.kubectl(&["delete", "-f", &manifest])?;
    cluster.stop()
}

fn bpf_root(lab: &Lab) -> String {
    format!("/sys/fs/bpf/{}", lab.id)
}

/// The processes, by name of the component.
struct Apart<'a> {
    lab: &'a Lab,
    running: BTreeMap<&'static str, Process>,
    /// Dropped last, since everything else needs it.
    _etcd: Process,
}

impl<'a> Apart<'a> {
    fn start(lab: &'a Lab) -> Result<Self> {
        let data = lab.dir().join("etcd");
        let mut etcd = lab.on_node("etcd");
        etcd.arg("--data-dir").arg(data).args([
            "--listen-client-urls",
            ETCD,
            "--advertise-client-urls",
            ETCD,
        ]);
        etcd.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "warn"]);
        let etcd = Process::start(&mut etcd, lab.dir().join("etcd.log"))?;
        let mut cluster = Self { lab, running: BTreeMap::new(), _etcd: etcd };
        eventually("etcd to answer", || {
            Ok(output(lab.on_node("curl").args(["-sf", &format!("{ETCD}/health")])).ok())
        })?;
        for name in NAMES {
            cluster.run(name)?;
        }
        eventually("the node to be ready", || {
            let node = cluster.json(&["get", "node", "node-1"])?;
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            Ok(conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True").then_some(()))
        })?;
        Ok(cluster)
    }

    /// Starts a component; waits if it is the API server.
    fn run(&mut self, name: &'static str) -> Result<()> {
        let mut command = self.command(name)?;
        let process = Process::start(&mut command, self.lab.dir().join(format!("{name}.log")))?;
        self.running.insert(name, process);
        if name == "apiserver" {
            eventually("the API server to be ready", || Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok()))?;
        }
        Ok(())
    }

    fn command(&self, name: &str) -> Result<Command> {
        let lab = self.lab;
        let mut command = lab.on_node(hawser()?);
        command.arg(name);
        match name {
            "apiserver" => {
                command.arg("--data-dir").arg(self.api_dir()).args(["--advertise-address", NODE_IP]);
                command.args(["--store", "etcd", "--etcd-servers", ETCD]);
            }
            "controllers" => {
                let dir = self.credentials(name, &[])?;
                command.arg("--kubeconfig").arg(dir.join("kubeconfig.yaml"));
            }
            "scheduler" => {
                command.arg("--kubeconfig").arg(self.credentials(name, &[])?.join("kubeconfig.yaml"));
            }
            "kubelet" => {
                let dir = self.credentials(name, &["--node-name", "node-1", "--node-ip", NODE_IP])?;
                command.arg("--kubeconfig").arg(dir.join("kubeconfig.yaml"));
                command.arg("--client-ca-file").arg(dir.join("ca.crt"));
                command.arg("--tls-cert-file").arg(dir.join("serving.crt"));
                command.arg("--tls-private-key-file").arg(dir.join("serving.key"));
                command.arg("--root-dir").arg(lab.dir().join("kubelet"));
                command.args(["--hostname-override", "node-1", "--node-ip", NODE_IP]);
                command.args(["--cgroup-root", &lab.cgroup_root()]).arg("--import").arg(echo_image()?);
                // The machine's disk may be nearly full, which is not what is tested.
                command.args(["--eviction-hard", "memory.available<100Mi", "--cluster-dns", DNS]);
            }
            "dns" => {
                command.arg("--kubeconfig").arg(self.credentials(name, &[])?.join("kubeconfig.yaml"));
                command.args(["--node-name", "node-1"]);
            }
            _ => {
                command.arg("--kubeconfig").arg(self.credentials(name, &[])?.join("kubeconfig.yaml"));
                command.args(["--hostname-override", "node-1", "--node-ip", NODE_IP]);
                command.args(["--cgroup-root", &lab.cgroup_root(), "--bpf-root", &bpf_root(lab)]);
            }
        }
        Ok(command)
    }

    fn api_dir(&self) -> PathBuf {
        self.lab.dir().join("api")
    }

    /// Issues the credentials of a component, as an operator would.
    fn credentials(&self, component: &str, more: &[&str]) -> Result<PathBuf> {
        let out = self.lab.dir().join("credentials").join(component);
        output(
            self.lab
                .on_node(hawser()?)
                .args([
                    "credentials",
                    "--component",
                    component,
                    "--server",
                    &format!("https://{NODE_IP}:6443"),
                ])
                .arg("--data-dir")
                .arg(self.api_dir())
                .args(more)
                .arg("--out")
                .arg(&out),
        )?;
        Ok(out)
    }

    fn kill(&mut self, name: &str) -> Result<()> {
        self.running.remove(name).with_context(|| format!("{name} does not run"))?.kill()
    }

    /// Sends SIGTERM to all processes, to the API server last.
    fn stop(&mut self) -> Result<()> {
        for name in NAMES.into_iter().rev() {
            let process = self.running.remove(name).with_context(|| format!("{name} does not run"))?;
            process.stop().with_context(|| format!("{name} did not stop"))?;
        }
        Ok(())
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = self.lab.on_node("kubectl");
        command.arg("--kubeconfig").arg(self.api_dir().join("kubeconfig.yaml")).env("HOME", self.lab.dir());
        output(command.args(args))
    }

    fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).context("kubectl -o json printed something else")
    }

    fn eventually_scaled(&self, replicas: usize) -> Result<()> {
        self.kubectl(&["scale", "deploy/echo", "-n", "echo", &format!("--replicas={replicas}")])?;
        self.kubectl(&["rollout", "status", "deploy/echo", "-n", "echo", "--timeout=120s"])?;
        Ok(())
    }

    /// Checks the name of Service echo, on the node and in a pod.
    fn names_resolve(&self, ip: &str) -> Result<()> {
        let server = format!("@{DNS}");
        let asked = [&server, "+short", "+tries=1", "+time=2", "echo.echo.svc.cluster.local", "A"];
        let found =
            eventually("the name of the Service", || output(self.lab.on_node("dig").args(asked)).map(Some))?;
        ensure!(found.trim() == ip, "echo.echo.svc.cluster.local is {found:?}, not {ip}");
        let in_pod = ["exec", "-n", "echo", "deploy/echo", "--", "/echo", "resolve", "echo:80"];
        let found = eventually("the name in a pod", || self.kubectl(&in_pod).map(Some))?;
        ensure!(found.trim() == format!("{ip}:80"), "echo is {found:?} in a pod, not {ip}");
        Ok(())
    }

    /// Returns the container restarts by pod.
    fn restarts(&self) -> Result<BTreeMap<String, u64>> {
        let pods = self.json(&["get", "pods", "-n", "echo"])?;
        let items = pods["items"].as_array().cloned().unwrap_or_default();
        Ok(items
            .iter()
            .map(|pod| {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                (name, pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default())
            })
            .collect())
    }

    /// Requests without credentials are refused, and a component's user may only do its own work.
    fn refuses_strangers(&self) -> Result<()> {
        let api = format!("https://{NODE_IP}:6443");
        let status = |args: &[&str], url: &str| {
            let mut command = self.lab.on_node("curl");
            command.args(["-sk", "-o", "/dev/null", "-w", "%{http_code}"]).args(args).arg(url);
            output(&mut command)
        };
        let pods = format!("{api}/api/v1/namespaces/echo/pods");
        ensure!(status(&[], &pods)? == "403", "an anonymous list of pods was not forbidden");
        let bad = ["-H", "Authorization: Bearer nonsense"];
        ensure!(status(&bad, &pods)? == "401", "a bad token was not refused");
        let kubeconfig = self.lab.dir().join("credentials/proxy/kubeconfig.yaml");
        let mut command = self.lab.on_node("kubectl");
        command.arg("--kubeconfig").arg(kubeconfig).env("HOME", self.lab.dir());
        let error = output(command.args(["get", "secrets", "-A"])).err();
        let error = error.context("the proxy's user may read secrets")?.to_string();
        ensure!(error.contains("Forbidden"), "the proxy's user reading secrets: {error}");
        let node = format!("https://{NODE_IP}:10250/pods");
        ensure!(status(&[], &node)? == "401", "the node server let a stranger in");
        Ok(())
    }
}
