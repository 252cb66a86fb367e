//! `hawser proxy` as a replacement of kube-proxy: with kube-proxy's own configuration file, beside the rules
//! that kube-proxy left, and with no more privileges than its manifest grants.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tests_e2e::lab::NODE_IP;
use tests_e2e::{Lab, Process, Snapshot, echo, eventually, hawser, output, root};

/// Capabilities that the DaemonSet's container must have. Each of its others enables one feature.
const CAPABILITIES: &str = "-all,+bpf,+net_admin,+perfmon";
const CLUSTER_IP: &str = "10.96.0.50";
const NODE_PORT: u16 = 30080;

/// A Node, and a Service whose only endpoint is on it.
const OBJECTS: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: node-1}
---
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

/// Rules for the Service as kube-proxy left them, from a time when its endpoint was another one, which no
/// longer answers.
const LEFT: &str = r#"*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.50/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m tcp -j DNAT --to-destination 192.0.2.66:8080
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
"#;

#[test]
#[ignore = "needs root, iptables, setpriv and kubectl: cargo xtask test"]
fn the_proxy_replaces_kube_proxy_with_few_privileges() -> Result<()> {
    let lab = Lab::new()?;
    let before = Snapshot::take(&lab)?;
    let node = Node { lab: &lab };
    let outcome = node.day();
    let cleaned = node.clean_up();
    outcome?;
    cleaned?;
    let differences = Snapshot::take(&lab)?.differences(&before);
    ensure!(differences.is_empty(), "the machine is different:\n{}", differences.join("\n"));
    let rules = output(lab.on_node("iptables-legacy-save").args(["-t", "nat"]))?;
    ensure!(!rules.contains("KUBE-"), "kube-proxy's rules are still there:\n{rules}");
    Ok(())
}

struct Node<'a> {
    lab: &'a Lab,
}

impl Node<'_> {
    fn day(&self) -> Result<()> {
        let api = self.api_server()?;
        self.leave_rules()?;
        let server = Process::start(&mut self.lab.on_node(echo()?), self.lab.dir().join("echo.log"))?;
        // Like the manifest's first container: with all privileges, for a moment.
        let mut prepare = self.lab.on_node(hawser()?);
        let said = prepare.args(self.arguments()?).arg("--init-only").output()?;
        let text = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "--init-only: {text}");
        // Reading the rules of the older tools takes CAP_NET_RAW, which the proxy does not need otherwise.
        ensure!(text.contains("kube-proxy left 5 chains and 3 rules"), "no word on the rules: {text}");
        ensure!(text.contains("proxy --cleanup"), "no word on what to do: {text}");
        let proxy = self.proxy()?;
        let outcome = self.works(&proxy);
        if outcome.is_err() {
            println!("{}\n{}", proxy.log_tail(), server.log_tail());
        }
        outcome?;
        self.is_traced()?;
        let next = self.nobody_works_beside_it(proxy)?;
        self.ends_when_its_configuration_changes(next)?;
        server.kill()?;
        api.stop()
    }

    fn works(&self, proxy: &Process) -> Result<()> {
        let curl =
            |command: &mut Command, url: &str| output(command.args(["-sS", "--max-time", "3"]).arg(url));
        eventually("the proxy to be healthy", || {
            let url = "http://127.0.0.1:10256/healthz";
            Ok(output(self.lab.on_node("curl").args(["-sf", url])).ok())
        })?;
        // kube-proxy's rules lead to an address that does not answer; ours take precedence.
        eventually("the ClusterIP to answer", || {
            Ok(curl(&mut self.lab.on_node("curl"), &format!("http://{CLUSTER_IP}/")).ok())
        })?;
        curl(&mut self.lab.on_node("curl"), &format!("http://127.0.0.1:{NODE_PORT}/"))
            .context("the node port on the node's loopback")?;
        curl(&mut self.lab.on_client("curl"), &format!("http://{NODE_IP}:{NODE_PORT}/"))
            .context("the node port from another host")?;
        let routes = output(self.lab.on_node("ip").args(["route", "show", "proto", "144"]))?;
        ensure!(routes.contains("unreachable 10.96.0.0/16"), "no route of last resort: {routes:?}");
        // Packets of a protocol that nothing translates do not leave the node.
        let lost = output(self.lab.on_node("ip").args(["route", "get", "10.96.0.99"]));
        ensure!(lost.is_err(), "there is a way to a Service's address: {lost:?}");
        let metrics = output(self.lab.on_node("curl").args(["-sf", "http://127.0.0.1:10249/metrics"]))?;
        let server = format!("method=\"GET\",host=\"{NODE_IP}:6443\"}}");
        for name in [
            format!("rest_client_requests_total{{code=\"200\",{server}"),
            "process_start_time_seconds ".to_owned(),
            "kubernetes_build_info{".to_owned(),
            "hawser_dataplane_xdp_mode{interface=\"uplink\",mode=\"off\"} 1".to_owned(),
        ] {
            ensure!(metrics.lines().any(|line| line.starts_with(&name)), "no {name} in\n{metrics}");
        }
        let log = proxy.log_tail();
        ensure!(!log.contains("settings without an effect"), "kubeadm's file is odd to us:\n{log}");
        Ok(())
    }

    /// Checks that `hawser proxy trace` prints what happens to a request, and ends by itself.
    fn is_traced(&self) -> Result<()> {
        let root = format!("/sys/fs/bpf/{}", self.lab.id);
        let mut command = self.lab.on_node(hawser()?);
        command.args(["proxy", "trace", "tcp", "*", &format!("{CLUSTER_IP}:80"), "--count", "1"]);
        command.args(["--json", "--bpf-root", &root]);
        let trace = Process::start(&mut command, self.lab.dir().join("trace.log"))?;
        eventually("the trace to begin", || Ok(trace.log_tail().contains("tracing for").then_some(())))?;
        self.serves().context("during a trace")?;
        eventually("a decision in the trace", || Ok(trace.log_tail().contains(" decision: ").then_some(())))
            .with_context(|| trace.log_tail())?;
        let said = trace.log_tail();
        ensure!(said.contains("default/web") && said.contains("192.0.2.1:8080"), "no backend: {said}");
        trace.stop()?;
        self.serves().context("after a trace")
    }

    /// Checks that a second proxy waits for the end of the first, and that `--cleanup` refuses. Returns the
    /// second one, which has taken over after the first was killed.
    fn nobody_works_beside_it(&self, proxy: Process) -> Result<Process> {
        let root = format!("/sys/fs/bpf/{}", self.lab.id);
        let said = self.lab.on_node(hawser()?).args(["proxy", "--cleanup", "--bpf-root", &root]).output()?;
        let text = String::from_utf8_lossy(&said.stderr);
        ensure!(!said.status.success(), "--cleanup beside a proxy that runs: {text}");
        ensure!(text.contains(&root) && text.contains("stop it first"), "no word on what to do: {text}");
        let elsewhere = format!("--cgroup-root={}", self.lab.dir().display());
        for (given, why) in
            [("--cgroup-root=/no/such", "there is no cgroup"), (&elsewhere, "not below the cgroup2 mount")]
        {
            let mut mistyped = self.lab.on_node(hawser()?);
            let mistyped = mistyped.args(self.arguments()?).arg(given).arg("--init-only").output()?;
            let text = String::from_utf8_lossy(&mistyped.stderr);
            ensure!(!mistyped.status.success() && text.contains(why), "{given}: {text}");
        }
        let next = self.proxy_called("next.log")?;
        eventually("the second proxy to wait", || {
            Ok(next.log_tail().contains("waiting for its end").then_some(()))
        })?;
        self.serves().context("while a second proxy waits")?;
        proxy.kill()?;
        eventually("the second proxy to take over", || {
            Ok(next.log_tail().contains("applied all services").then_some(()))
        })?;
        self.serves().context("when the second proxy has taken over")?;
        Ok(next)
    }

    fn serves(&self) -> Result<()> {
        let url = format!("http://{CLUSTER_IP}/");
        output(self.lab.on_node("curl").args(["-sS", "--max-time", "3"]).arg(url)).map(drop)
    }

    /// The process ends when its configuration changes, and its supervisor restarts it, as with kube-proxy.
    fn ends_when_its_configuration_changes(&self, proxy: Process) -> Result<()> {
        let file = self.configuration()?;
        let text = std::fs::read_to_string(&file)?.replace("oomScoreAdj: null", "oomScoreAdj: -1");
        std::fs::write(&file, text)?;
        eventually("the proxy to end", || Ok(proxy.log_tail().contains("has changed: ending").then_some(())))
    }

    fn api_server(&self) -> Result<Process> {
        let mut command = self.lab.on_node(hawser()?);
        command.args(["apiserver", "--secure-port", "6443", "--advertise-address", NODE_IP]);
        command.arg("--data-dir").arg(self.api_dir());
        let api = Process::start(&mut command, self.lab.dir().join("apiserver.log"))?;
        eventually("the API server to be ready", || Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok()))?;
        let objects = self.lab.dir().join("objects.yaml");
        std::fs::write(&objects, OBJECTS)?;
        self.kubectl(&["apply", "-f", &objects.display().to_string()])?;
        let status =
            format!(r#"{{"status":{{"addresses":[{{"type":"InternalIP","address":"{NODE_IP}"}}]}}}}"#);
        self.kubectl(&["patch", "node", "node-1", "--subresource=status", "--type=merge", "-p", &status])?;
        let mut credentials = self.lab.on_node(hawser()?);
        credentials.args(["credentials", "--component", "proxy", "--server"]);
        credentials.arg(format!("https://{NODE_IP}:6443")).arg("--data-dir").arg(self.api_dir());
        output(credentials.arg("--out").arg(self.lab.dir().join("credentials")))?;
        Ok(api)
    }

    fn leave_rules(&self) -> Result<()> {
        let mut restore = self.lab.on_node("iptables-legacy-restore").stdin(Stdio::piped()).spawn()?;
        restore.stdin.take().context("no standard input")?.write_all(LEFT.as_bytes())?;
        let status = restore.wait()?;
        if !status.success() {
            bail!("iptables-legacy-restore ended with {status}");
        }
        Ok(())
    }

    /// Writes kubeadm's configuration file, with another path of the kubeconfig.
    fn configuration(&self) -> Result<PathBuf> {
        let file = self.lab.dir().join("config.conf");
        if !file.exists() {
            let text = std::fs::read_to_string(root().join("userspace/proxy/tests/data/kubeadm.yaml"))?;
            let kubeconfig = self.lab.dir().join("credentials/kubeconfig.yaml");
            let text = text.replace("/var/lib/kube-proxy/kubeconfig.conf", &kubeconfig.display().to_string());
            std::fs::write(&file, text)?;
        }
        Ok(file)
    }

    fn arguments(&self) -> Result<Vec<String>> {
        Ok(vec![
            "proxy".to_owned(),
            format!("--config={}", self.configuration()?.display()),
            "--hostname-override=node-1".to_owned(),
            format!("--bpf-root=/sys/fs/bpf/{}", self.lab.id),
            format!("--cgroup-root={}", self.lab.cgroup_root()),
            "--service-cluster-ip-ranges=10.96.0.0/16".to_owned(),
        ])
    }

    fn proxy(&self) -> Result<Process> {
        self.proxy_called("proxy.log")
    }

    fn proxy_called(&self, log: &str) -> Result<Process> {
        let mut command = self.lab.on_node("setpriv");
        let bounds = format!("--bounding-set={CAPABILITIES}");
        command.args([&bounds, "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs", "--"]);
        command.arg(hawser()?).args(self.arguments()?);
        Process::start(&mut command, self.lab.dir().join(log))
    }

    fn clean_up(&self) -> Result<()> {
        let root = format!("--bpf-root=/sys/fs/bpf/{}", self.lab.id);
        for round in ["the first time", "again"] {
            let cleanup = output(self.lab.on_node(hawser()?).args(["proxy", "--cleanup", &root]));
            cleanup.with_context(|| format!("--cleanup {round}"))?;
        }
        Ok(())
    }

    fn api_dir(&self) -> PathBuf {
        self.lab.dir().join("api")
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        let mut command = self.lab.on_node("kubectl");
        command.arg("--kubeconfig").arg(self.api_dir().join("kubeconfig.yaml")).env("HOME", self.lab.dir());
        output(command.args(args))
    }
}
