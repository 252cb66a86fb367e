//! The manifest of `deploy/`, applied with kubectl to an API server; its pods are run on two nodes by kubelets and
//! containerd with exactly the capabilities that it lists. The nodes share a machine, so the test creates the pod of
//! each node from the DaemonSet's template with paths of its own. There is no scheduler here, so the pods of the
//! DaemonSet controller stay pending.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::bed::{Node, Place};
use tests_e2e::image::hawser_image;
use tests_e2e::lab::Machine;
use tests_e2e::{Bed, Process, Snapshot, echo, eventually, hawser, output, root};

const CLUSTER_IP: &str = "10.96.0.50";
const NODE_PORT: u16 = 30080;

/// A Service whose endpoints are a process on each node.
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
  - addresses: [192.0.2.2]
    nodeName: node-2
    conditions: {ready: true}
ports: [{port: 8080, protocol: TCP}]
"#;

/// Numbers of the capabilities that the manifest lists, see capabilities(7).
const CAPABILITIES: [(&str, u32); 5] =
    [("BPF", 39), ("NET_ADMIN", 12), ("PERFMON", 38), ("SYS_ADMIN", 21), ("SYS_PTRACE", 19)];

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn the_daemonset_works_on_two_nodes_with_the_capabilities_of_its_manifest() -> Result<()> {
    let bed = Bed::new(&[Place::Switch, Place::Switch])?;
    let before = bed.nodes.iter().map(|node| Snapshot::take(node)).collect::<Result<Vec<_>>>()?;
    let mut cluster = Cluster { bed: &bed, running: BTreeMap::new(), keepers: Vec::new() };
    let outcome = cluster.day();
    if outcome.is_err() {
        cluster.print_state();
    }
    let cleaned = cluster.clean_up();
    outcome.and(cleaned)?;
    for (node, before) in bed.nodes.iter().zip(&before) {
        let differences = Snapshot::take(node)?.differences(before);
        ensure!(differences.is_empty(), "{} is different:\n{}", node.name(), differences.join("\n"));
    }
    Ok(())
}

struct Cluster<'a> {
    bed: &'a Bed,
    /// By node and component.
    running: BTreeMap<(usize, &'static str), Process>,
    /// Keep the mount namespaces of kubelets and containerd alive, one of each node: a volume with propagation needs
    /// shared mounts, which not every machine has.
    keepers: Vec<Process>,
}

impl Cluster<'_> {
    fn keep(&mut self, node: &Node) -> Result<()> {
        let mut keeper = Command::new("unshare");
        keeper.args(["--mount", "--propagation", "shared", "--", "sleep", "infinity"]);
        let keeper = Process::start(&mut keeper, node.dir().join("keeper.log"))?;
        let inside = fs::read_link("/proc/self/ns/mnt")?;
        eventually("a mount namespace", || {
            let namespace = fs::read_link(format!("/proc/{}/ns/mnt", keeper.pid()))?;
            let ready = fs::read_to_string(format!("/proc/{}/comm", keeper.pid()))? == "sleep\n";
            Ok((namespace != inside && ready).then_some(()))
        })?;
        self.keepers.push(keeper);
        Ok(())
    }

    /// Returns a command for a program on a node, in the namespace with shared mounts.
    fn inside(&self, node: &Node, program: PathBuf) -> Command {
        let mut command = node.on("nsenter");
        let keeper = self.keepers[node.number - 1].pid();
        command.arg(format!("--mount=/proc/{keeper}/ns/mnt")).arg("--").arg(program);
        command
    }

    fn run(&mut self, node: &Node, name: &'static str, mut command: Command) -> Result<()> {
        let process = Process::start(&mut command, node.dir().join(format!("{name}.log")))?;
        self.running.insert((node.number, name), process);
        Ok(())
    }

    fn day(&mut self) -> Result<()> {
        self.control_plane()?;
        let (bed, image) = (self.bed, hawser_image(self.bed.dir())?);
        for node in &bed.nodes {
            self.kubelet(node, &image)?;
            let mut server = node.on(echo()?);
            server.env("HOSTNAME", node.name());
            self.run(node, "echo", server)?;
        }
        for node in &bed.nodes {
            eventually("the node to be ready", || {
                let node = self.json(&["get", "node", &node.name()])?;
                let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
                Ok(conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True").then_some(()))
            })?;
        }
        self.apply("service.yaml", SERVICE)?;
        let manifest = self.manifest()?;
        self.apply("hawser-proxy.yaml", &manifest)?;
        for node in &bed.nodes {
            self.pod(node, 1)?;
        }
        for node in &bed.nodes {
            self.ready(node, 1)?;
        }
        self.serves().context("with the first pods")?;
        for node in &bed.nodes {
            self.has_only_what_it_lists(&pod_name(node, 1))?;
            let pod = pod_name(node, 1);
            let hawser = ["exec", "-n", "kube-system", &pod, "-c", "proxy", "--", "/hawser"];
            let said = self.kubectl(&[&hawser[..], &["proxy", "services"]].concat())?;
            ensure!(said.contains("default/web"), "hawser proxy services in {pod}: {said}");
        }
        self.replace(&bed.nodes[1])?;
        for (node, generation) in bed.nodes.iter().zip([1, 2]) {
            self.kubectl(&["delete", "pod", "-n", "kube-system", &pod_name(node, generation)])?;
        }
        self.serves().context("without any pod, by the tables that stay")
    }

    /// The next pod of a node exists before the first has ended, and waits, also where it declares no ports.
    fn replace(&self, node: &Node) -> Result<()> {
        self.pod(node, 2)?;
        eventually("the second pod to wait for the first", || {
            let log = self.kubectl(&["logs", "-n", "kube-system", &pod_name(node, 2), "-c", "prepare"])?;
            Ok(log.contains("waiting for its end").then_some(()))
        })?;
        self.serves().context("while two pods are there")?;
        self.kubectl(&["delete", "pod", "-n", "kube-system", &pod_name(node, 1)])?;
        self.serves().context("when the first pod has gone")?;
        self.ready(node, 2)?;
        self.serves().context("with the second pod")
    }

    /// Starts API server and controllers (for the pods' certificates) on the first node.
    fn control_plane(&mut self) -> Result<()> {
        let first = &self.bed.nodes[0];
        let mut api = first.on(hawser()?);
        api.args(["apiserver", "--secure-port", "6443", "--advertise-address", &first.ip()]);
        api.arg("--data-dir").arg(self.api_dir());
        self.run(first, "apiserver", api)?;
        eventually("the API server to be ready", || Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok()))?;
        let dir = self.credentials(first, "controllers", &[])?;
        let mut controllers = first.on(hawser()?);
        controllers.arg("controllers").arg("--kubeconfig").arg(dir.join("kubeconfig.yaml"));
        controllers.arg("--root-ca-file").arg(dir.join("ca.crt"));
        self.run(first, "controllers", controllers)
    }

    fn kubelet(&mut self, node: &Node, image: &PathBuf) -> Result<()> {
        self.keep(node)?;
        let (name, ip) = (node.name(), node.ip());
        let dir = self.credentials(node, "kubelet", &["--node-name", &name, "--node-ip", &ip])?;
        let mut kubelet = self.inside(node, hawser()?);
        kubelet.arg("kubelet").arg("--kubeconfig").arg(dir.join("kubeconfig.yaml"));
        kubelet.arg("--client-ca-file").arg(dir.join("ca.crt"));
        kubelet.arg("--tls-cert-file").arg(dir.join("serving.crt"));
        kubelet.arg("--tls-private-key-file").arg(dir.join("serving.key"));
        kubelet.arg("--root-dir").arg(node.dir().join("kubelet"));
        kubelet.args(["--hostname-override", &name, "--node-ip", &ip]);
        kubelet.args(["--cgroup-root", &node.cgroup_root()]).arg("--import").arg(image);
        // The machine's disk may be nearly full, which is not what is tested.
        kubelet.args(["--eviction-hard", "memory.available<100Mi"]);
        self.run(node, "kubelet", kubelet)
    }

    /// Returns the manifest with the edit that it asks for.
    fn manifest(&self) -> Result<String> {
        let text = fs::read_to_string(root().join("deploy/hawser-proxy.yaml"))?;
        let server = "https://control-plane.example:6443";
        ensure!(text.contains(server), "the manifest has no {server:?}");
        Ok(text.replace(server, &format!("https://{}:6443", self.bed.nodes[0].ip())))
    }

    /// Creates a pod from the DaemonSet's template, with edits that let several nodes share a machine.
    fn pod(&self, node: &Node, generation: u8) -> Result<()> {
        let set = self.json(&["get", "daemonset", "hawser-proxy", "-n", "kube-system"])?;
        let template = &set["spec"]["template"];
        let mut spec = template["spec"].to_string();
        for (from, to) in [
            ("/sys/fs/bpf/hawser", node.bpf_root()),
            ("/host/bpf/hawser", format!("/host/bpf/{}", node.id())),
            ("\"/sys/fs/cgroup\"", format!("\"{}\"", node.cgroup().display())),
        ] {
            ensure!(spec.contains(from), "the template has no {from:?}");
            spec = spec.replace(from, &to);
        }
        if generation > 1 {
            spec = spec.replace("\"port\":\"healthz\"", "\"port\":10256");
        }
        let (name, mut spec) = (pod_name(node, generation), serde_json::from_str::<Value>(&spec)?);
        if generation > 1 {
            // The kubelet would refuse a pod whose host ports another one has.
            spec["containers"][0].as_object_mut().context("no container")?.remove("ports");
        }
        spec["nodeName"] = node.name().into();
        // Without the labels of the template, or the DaemonSet would adopt the pod, and replace it.
        let metadata = json!({"name": name, "namespace": "kube-system"});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        self.apply(&format!("{name}.json"), &pod.to_string())
    }

    fn ready(&self, node: &Node, generation: u8) -> Result<()> {
        let pod = format!("pod/{}", pod_name(node, generation));
        let wait = ["wait", "-n", "kube-system", "--for=condition=Ready", "--timeout=120s", &pod];
        self.kubectl(&wait).map(drop)
    }

    /// The processes of both nodes answer at each node, and from outside at the port of each.
    fn serves(&self) -> Result<()> {
        for node in &self.bed.nodes {
            both_answer(&format!("the ClusterIP on {}", node.name()), || {
                let address = format!("{CLUSTER_IP}:80");
                output(node.on(echo()?).args(["get", &address]))
            })?;
            both_answer(&format!("the node port of {} from outside", node.name()), || {
                let address = format!("{}:{NODE_PORT}", node.ip());
                output(self.bed.on_hub(echo()?).args(["get", &address]))
            })?;
            output(node.on(echo()?).args(["get", &format!("127.0.0.1:{NODE_PORT}")]))
                .context("the node port on loopback")?;
        }
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
        let file = self.bed.dir().join(name);
        fs::write(&file, text)?;
        self.kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
    }

    fn credentials(&self, node: &Node, component: &str, more: &[&str]) -> Result<PathBuf> {
        let (first, out) = (&self.bed.nodes[0], node.dir().join("credentials").join(component));
        let mut command = first.on(hawser()?);
        command.args(["credentials", "--component", component, "--server"]);
        command.arg(format!("https://{}:6443", first.ip())).arg("--data-dir").arg(self.api_dir());
        output(command.args(more).arg("--out").arg(&out))?;
        Ok(out)
    }

    /// Prints the state of the nodes after a failure.
    fn print_state(&self) {
        for process in self.running.values() {
            println!("{}", process.log_tail());
        }
        let mut questions = vec!["get pods -A -o yaml".to_owned(), "get events -A".to_owned()];
        for (node, generation) in self.bed.nodes.iter().flat_map(|node| [(node, 1), (node, 2)]) {
            for container in ["prepare", "proxy"] {
                let pod = pod_name(node, generation);
                questions.push(format!("logs -n kube-system {pod} -c {container}"));
            }
        }
        for question in questions {
            let said = self.kubectl(&question.split(' ').collect::<Vec<_>>());
            println!("kubectl {question}:\n{}", said.unwrap_or_else(|error| format!("{error:#}")));
        }
    }

    fn clean_up(&mut self) -> Result<()> {
        let mut results = Vec::new();
        for name in ["kubelet", "echo", "controllers", "apiserver"] {
            let nodes = self.bed.nodes.iter();
            let processes: Vec<_> =
                nodes.filter_map(|node| self.running.remove(&(node.number, name))).collect();
            results.extend(processes.into_iter().map(Process::kill));
        }
        for (node, _) in self.bed.nodes.iter().zip(&self.keepers) {
            let mut down = self.inside(node, hawser()?);
            results
                .push(output(down.arg("down").arg("--data-dir").arg(node.dir().join("kubelet"))).map(drop));
            let mut cleanup = node.on(hawser()?);
            cleanup.args(["proxy", "--cleanup", "--bpf-root", &node.bpf_root()]);
            results.push(output(&mut cleanup).map(drop));
        }
        results.into_iter().collect()
    }

    fn api_dir(&self) -> PathBuf {
        self.bed.nodes[0].dir().join("api")
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = self.bed.nodes[0].on("kubectl");
        command.arg("--kubeconfig").arg(self.api_dir().join("kubeconfig.yaml")).env("HOME", self.bed.dir());
        output(command.args(args))
    }

    fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).context("kubectl -o json printed something else")
    }
}

/// Returns the name of the first or second pod of a node.
fn pod_name(node: &Node, generation: u8) -> String {
    format!("hawser-proxy-{}-{generation}", node.number)
}

/// Asks until both nodes have answered, and fails if one request fails.
fn both_answer(what: &str, ask: impl Fn() -> Result<String>) -> Result<()> {
    let mut answers = BTreeSet::new();
    for _ in 0..100 {
        answers.insert(ask().with_context(|| what.to_owned())?);
        if answers.len() == 2 {
            return Ok(());
        }
    }
    anyhow::bail!("{what}: only {answers:?} answered")
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
