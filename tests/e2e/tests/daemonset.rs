//! The manifest of `deploy/`, applied with kubectl to an API server; its pod is run by a kubelet and
//! containerd with exactly the capabilities that it lists. There is no DaemonSet controller here, so the test
//! creates the pod of this node from the DaemonSet's template.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::image::hawser_image;
use tests_e2e::lab::NODE_IP;
use tests_e2e::{Lab, Process, Snapshot, echo, eventually, hawser, output, root};

const CLUSTER_IP: &str = "10.96.0.50";
const NODE_PORT: u16 = 30080;

/// A Service whose only endpoint is a process on the node.
const SERVICE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.50
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: default
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
endpoints:
  - addresses: [192.0.2.1]
    nodeName: node-1
    conditions: {ready: true}
ports: [{port: 8080, protocol: TCP}]
"#;

/// Numbers of the capabilities that the manifest lists, see capabilities(7).
const CAPABILITIES: [(&str, u32); 5] =
    [("BPF", 39), ("NET_ADMIN", 12), ("PERFMON", 38), ("SYS_ADMIN", 21), ("SYS_PTRACE", 19)];

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn the_daemonset_works_with_the_capabilities_of_its_manifest() -> Result<()> {
    let lab = Lab::new()?;
    let before = Snapshot::take(&lab)?;
    let outcome = Node::start(&lab).and_then(|mut node| {
        let outcome = node.day();
        if outcome.is_err() {
            node.print_state();
        }
        let cleaned = node.clean_up();
        outcome.and(cleaned)
    });
    outcome?;
    let differences = Snapshot::take(&lab)?.differences(&before);
    ensure!(differences.is_empty(), "the machine is different:\n{}", differences.join("\n"));
    Ok(())
}

struct Node<'a> {
    lab: &'a Lab,
    running: BTreeMap<&'static str, Process>,
    /// Keeps the mount namespace of the kubelet and containerd alive: a volume with propagation needs shared
    /// mounts, which not every machine has.
    keeper: Process,
}

impl<'a> Node<'a> {
    fn start(lab: &'a Lab) -> Result<Self> {
        let mut keeper = Command::new("unshare");
        keeper.args(["--mount", "--propagation", "shared", "--", "sleep", "infinity"]);
        let keeper = Process::start(&mut keeper, lab.dir().join("keeper.log"))?;
        let inside = fs::read_link("/proc/self/ns/mnt")?;
        eventually("a mount namespace", || {
            let namespace = fs::read_link(format!("/proc/{}/ns/mnt", keeper.pid()))?;
            let ready = fs::read_to_string(format!("/proc/{}/comm", keeper.pid()))? == "sleep\n";
            Ok((namespace != inside && ready).then_some(()))
        })?;
        Ok(Self { lab, running: BTreeMap::new(), keeper })
    }

    /// Returns a command for a program on the node, in the namespace with shared mounts.
    fn inside(&self, program: PathBuf) -> Command {
        let mut command = self.lab.on_node("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.pid())).arg("--").arg(program);
        command
    }

    fn run(&mut self, name: &'static str, mut command: Command) -> Result<()> {
        let process = Process::start(&mut command, self.lab.dir().join(format!("{name}.log")))?;
        self.running.insert(name, process);
        Ok(())
    }

    fn day(&mut self) -> Result<()> {
        self.cluster()?;
        let server = self.lab.on_node(echo()?);
        self.run("echo", server)?;
        self.apply("service.yaml", SERVICE)?;
        let manifest = self.manifest()?;
        self.apply("hawser-proxy.yaml", &manifest)?;
        self.pod("hawser-proxy-1")?;
        self.ready("hawser-proxy-1")?;
        self.serves().context("with the first pod")?;
        self.has_only_what_it_lists("hawser-proxy-1")?;
        let said = self.kubectl(&[
            "exec",
            "-n",
            "kube-system",
            "hawser-proxy-1",
            "-c",
            "proxy",
            "--",
            "/hawser",
            "proxy",
            "services",
        ])?;
        ensure!(said.contains("default/web"), "hawser proxy services in the pod: {said}");
        // The next pod exists before this one has ended, and waits, as in a rolling update.
        self.pod("hawser-proxy-2")?;
        eventually("the second pod to wait for the first", || {
            let log = self.kubectl(&["logs", "-n", "kube-system", "hawser-proxy-2", "-c", "prepare"])?;
            Ok(log.contains("waiting for its end").then_some(()))
        })?;
        self.serves().context("while two pods are there")?;
        self.kubectl(&["delete", "pod", "-n", "kube-system", "hawser-proxy-1"])?;
        self.serves().context("when the first pod has gone")?;
        self.ready("hawser-proxy-2")?;
        self.serves().context("with the second pod")?;
        self.kubectl(&["delete", "pod", "-n", "kube-system", "hawser-proxy-2"])?;
        self.serves().context("without any pod, by the tables that stay").map(drop)
    }

    /// Starts API server, controllers (for the pods' certificates) and kubelet.
    fn cluster(&mut self) -> Result<()> {
        let mut api = self.lab.on_node(hawser()?);
        api.args(["apiserver", "--secure-port", "6443", "--advertise-address", NODE_IP]);
        api.arg("--data-dir").arg(self.api_dir());
        self.run("apiserver", api)?;
        eventually("the API server to be ready", || Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok()))?;
        let dir = self.credentials("controllers", &[])?;
        let mut controllers = self.lab.on_node(hawser()?);
        controllers.arg("controllers").arg("--kubeconfig").arg(dir.join("kubeconfig.yaml"));
        controllers.arg("--root-ca-file").arg(dir.join("ca.crt"));
        self.run("controllers", controllers)?;
        let dir = self.credentials("kubelet", &["--node-name", "node-1", "--node-ip", NODE_IP])?;
        let mut kubelet = self.inside(hawser()?);
        kubelet.arg("kubelet").arg("--kubeconfig").arg(dir.join("kubeconfig.yaml"));
        kubelet.arg("--client-ca-file").arg(dir.join("ca.crt"));
        kubelet.arg("--tls-cert-file").arg(dir.join("serving.crt"));
        kubelet.arg("--tls-private-key-file").arg(dir.join("serving.key"));
        kubelet.arg("--root-dir").arg(self.lab.dir().join("kubelet"));
        kubelet.args(["--hostname-override", "node-1", "--node-ip", NODE_IP]);
        kubelet.args(["--cgroup-root", &self.lab.cgroup_root()]);
        kubelet.arg("--import").arg(hawser_image(self.lab.dir())?);
        // The machine's disk may be nearly full, which is not what is tested.
        kubelet.args(["--eviction-hard", "memory.available<100Mi"]);
        self.run("kubelet", kubelet)?;
        eventually("the node to be ready", || {
            let node = self.json(&["get", "node", "node-1"])?;
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            Ok(conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True").then_some(()))
        })
    }

    /// Returns the manifest with the edits that it asks for, and with others that let several nodes share a
    /// machine.
    fn manifest(&self) -> Result<String> {
        let mut text = fs::read_to_string(root().join("deploy/hawser-proxy.yaml"))?;
        let changes = [
            ("https://control-plane.example:6443", format!("https://{NODE_IP}:6443")),
            ("/sys/fs/bpf/hawser", bpf_root(self.lab)),
            ("/host/bpf/hawser", format!("/host/bpf/{}", self.lab.id)),
            ("path: /sys/fs/cgroup\n", format!("path: {}\n", self.lab.cgroup().display())),
        ];
        for (from, to) in changes {
            ensure!(text.contains(from), "the manifest has no {from:?}");
            text = text.replace(from, &to);
        }
        Ok(text)
    }

    /// Creates a pod as the DaemonSet controller would.
    fn pod(&self, name: &str) -> Result<()> {
        let set = self.json(&["get", "daemonset", "hawser-proxy", "-n", "kube-system"])?;
        let template = &set["spec"]["template"];
        let mut spec = template["spec"].clone();
        spec["nodeName"] = "node-1".into();
        let metadata =
            json!({"name": name, "namespace": "kube-system", "labels": template["metadata"]["labels"]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        self.apply(&format!("{name}.json"), &pod.to_string())
    }

    fn ready(&self, pod: &str) -> Result<()> {
        self.kubectl(&[
            "wait",
            "-n",
            "kube-system",
            "--for=condition=Ready",
            "--timeout=120s",
            &format!("pod/{pod}"),
        ])
        .map(drop)
    }

    fn serves(&self) -> Result<()> {
        let get = |mut command: Command, to: String| {
            output(command.args(["-sSf", "--max-time", "3"]).arg(format!("http://{to}/")))
        };
        get(self.lab.on_node("curl"), CLUSTER_IP.to_owned()).context("the ClusterIP")?;
        get(self.lab.on_node("curl"), format!("127.0.0.1:{NODE_PORT}"))
            .context("the node port on loopback")?;
        get(self.lab.on_client("curl"), format!("{NODE_IP}:{NODE_PORT}")).context("the node port")?;
        Ok(())
    }

    fn has_only_what_it_lists(&self, pod: &str) -> Result<()> {
        let object = self.json(&["get", "pod", pod, "-n", "kube-system"])?;
        let listed = &object["spec"]["containers"][0]["securityContext"]["capabilities"]["add"];
        let names: Vec<_> = CAPABILITIES.iter().map(|(name, _)| *name).collect();
        ensure!(*listed == json!(names), "the manifest lists {listed}");
        let expected: u64 = CAPABILITIES.iter().map(|(_, number)| 1 << number).sum();
        let uid = object["metadata"]["uid"].as_str().context("a pod without UID")?;
        let status = process_of(uid)?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.trim().to_owned()
        };
        for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
            ensure!(field(set) == format!("{expected:016x}"), "{set} {} and not {expected:016x}", field(set));
        }
        ensure!(field("NoNewPrivs:") == "1", "NoNewPrivs: {}", field("NoNewPrivs:"));
        Ok(())
    }

    fn apply(&self, name: &str, text: &str) -> Result<()> {
        let file = self.lab.dir().join(name);
        fs::write(&file, text)?;
        self.kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
    }

    fn credentials(&self, component: &str, more: &[&str]) -> Result<PathBuf> {
        let out = self.lab.dir().join("credentials").join(component);
        let mut command = self.lab.on_node(hawser()?);
        command.args(["credentials", "--component", component, "--server"]);
        command.arg(format!("https://{NODE_IP}:6443")).arg("--data-dir").arg(self.api_dir());
        output(command.args(more).arg("--out").arg(&out))?;
        Ok(out)
    }

    /// Prints the state of the node after a failure.
    fn print_state(&self) {
        for process in self.running.values() {
            println!("{}", process.log_tail());
        }
        for arguments in [
            ["get", "pods", "-A", "-o", "yaml"].as_slice(),
            &["get", "events", "-A"],
            &["logs", "-n", "kube-system", "hawser-proxy-1", "-c", "prepare"],
            &["logs", "-n", "kube-system", "hawser-proxy-1", "-c", "proxy"],
            &["logs", "-n", "kube-system", "hawser-proxy-2", "-c", "prepare"],
            &["logs", "-n", "kube-system", "hawser-proxy-2", "-c", "proxy"],
        ] {
            let said = self.kubectl(arguments).unwrap_or_else(|error| format!("{error:#}"));
            println!("kubectl {}:\n{said}", arguments.join(" "));
        }
    }

    fn clean_up(&mut self) -> Result<()> {
        for name in ["kubelet", "controllers", "echo", "apiserver"] {
            self.running.remove(name).map_or(Ok(()), Process::kill)?;
        }
        let mut down = self.inside(hawser()?);
        let down = output(down.arg("down").arg("--data-dir").arg(self.lab.dir().join("kubelet")));
        let root = bpf_root(self.lab);
        let cleanup = output(self.lab.on_node(hawser()?).args(["proxy", "--cleanup", "--bpf-root", &root]));
        down.and(cleanup).map(drop)
    }

    fn api_dir(&self) -> PathBuf {
        self.lab.dir().join("api")
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
}

fn bpf_root(lab: &Lab) -> String {
    format!("/sys/fs/bpf/{}", lab.id)
}

/// Returns `/proc/PID/status` of the proxy in a pod, which is found by its cgroup.
fn process_of(uid: &str) -> Result<String> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        if read("cgroup").contains(uid) && read("comm") == "hawser\n" {
            return Ok(read("status"));
        }
    }
    anyhow::bail!("no process of the pod {uid} is there")
}
