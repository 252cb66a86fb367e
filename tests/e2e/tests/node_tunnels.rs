//! A node behind a firewall: no connection gets in, and all gets out. What goes through the API server to its kubelet
//! and its pods works by the node's own tunnel, and those of other nodes go the direct way.

mod webhook;

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::bed::{Node, Place};
use tests_e2e::nodes::Programs;
use tests_e2e::{Bed, Nodes, Process, echo, echo_image, eventually, hawser, output};

/// The node behind the firewall.
const FIREWALLED: usize = 2;

#[test]
#[ignore = "needs root, containerd, kubectl and nft: cargo xtask test"]
fn node_that_nobody_can_connect_to_is_reached_through_its_tunnel() -> Result<()> {
    let bed = Bed::new(&[Place::Switch, Place::Router])?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let mut nodes = Nodes::start_joined(&bed, programs, &[])?;
    if let Err(error) = behind_firewall(&mut nodes) {
        println!("{}", nodes.logs());
        return Err(error);
    }
    nodes.down()
}

fn behind_firewall(nodes: &mut Nodes<'_>) -> Result<()> {
    for node in &nodes.bed.nodes {
        let name = format!("on-{}", node.name());
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "nodeName": node.name(), "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "hawser.local/echo:1", "args": ["serve"]}],
            },
        });
        apply(nodes, &pod)?;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
        });
        apply(nodes, &service)?;
    }
    let bed = nodes.bed;
    let far = &bed.nodes[FIREWALLED - 1];
    on_the_host(nodes, far)?;
    webhook::start(nodes, far)?;
    nodes.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"])?;

    // Without a firewall the tunnel is open and not used.
    eventually("the node's tunnel", || Ok((metric(nodes, TUNNELS)? == 1.0).then_some(())))?;
    for node in &nodes.bed.nodes {
        works(nodes, node)?;
        proxies(nodes, node)?;
    }
    webhook::converts(nodes, "before")?;
    let direct = metric(nodes, DIRECT)?;
    // Those to the first node, which has no tunnel, and some to the other.
    ensure!(direct >= 4.0, "{direct} connections were direct");
    let direct = metric(nodes, DIRECT_TO_PODS)?;
    ensure!(direct >= 5.0, "{direct} connections to pods were direct");
    let tunneled = metric(nodes, TUNNELED)?;

    firewall(far)?;
    let address = format!("{}:10250", far.ip());
    let through = output(nodes.bed.nodes[0].on("timeout").arg("1").arg(echo()?).args(["get", &address]));
    ensure!(through.is_err(), "the firewall has a hole: {through:?}");
    works(nodes, far)?;
    let tunneled = metric(nodes, TUNNELED)? - tunneled;
    ensure!(tunneled >= 3.0, "{tunneled} connections went through the tunnel");
    let tunneled = metric(nodes, TUNNELED)?;
    let direct = metric(nodes, DIRECT)?;
    works(nodes, &nodes.bed.nodes[0])?;
    ensure!(metric(nodes, DIRECT)? >= direct + 3.0, "the other node is still dialled directly");
    ensure!(metric(nodes, TUNNELED)? == tunneled, "the other node has no tunnel");
    forward(nodes, far)?;
    pods_are_reached(nodes, far)?;

    // Either side dies and comes back.
    nodes.kill(FIREWALLED, "join")?;
    nodes.run(&bed.nodes[FIREWALLED - 1])?;
    eventually("logs after the node was killed", || Ok(works(nodes, far).ok()))?;
    nodes.kill(1, "up")?;
    nodes.run(&bed.nodes[0])?;
    eventually("logs after the API server was killed", || Ok(works(nodes, far).ok()))?;
    ensure!(metric(nodes, TUNNELED)? > 0.0, "there is a hole in the firewall");
    webhook::converts(nodes, "after-all")?;
    ensure!(metric(nodes, TUNNELED_TO_PODS)? > 0.0, "there is a hole in the firewall for pods");
    Ok(())
}

/// Checks that proxies and the webhook reach the pods of the node behind the firewall by its tunnel, those of other nodes
/// directly, and nothing else on the node.
fn pods_are_reached(nodes: &Nodes<'_>, far: &Node) -> Result<()> {
    let before = metric(nodes, TUNNELED_TO_PODS)?;
    proxies(nodes, far)?;
    // In the network of the host, the port that the pod declares is its own.
    let at = |port: &str| format!("/api/v1/namespaces/default/pods/on-the-host:{port}/proxy/");
    nodes.kubectl(&["get", "--raw", &at(HOST_PORT)])?;
    webhook::converts(nodes, "behind")?;
    let after = metric(nodes, TUNNELED_TO_PODS)?;
    ensure!(after - before >= 4.0, "{} connections to pods went through the tunnel", after - before);
    // The API server may be misled to any port of the node; the tunnel is not.
    let refused = nodes.kubectl(&["get", "--raw", &at("10250")]);
    let text = format!("{:#}", refused.err().context("a port of the node was reached as one of a pod")?);
    ensure!(text.contains("neither its kubelet nor a pod that runs on it is there"), "{text}");
    let direct = metric(nodes, DIRECT_TO_PODS)?;
    proxies(nodes, &nodes.bed.nodes[0])?;
    ensure!(
        metric(nodes, DIRECT_TO_PODS)? >= direct + 2.0,
        "the other node's pods are still dialled directly"
    );
    Ok(())
}

const TUNNELS: &str = "hawser_apiserver_node_tunnels";
const DIRECT: &str = r#"hawser_apiserver_kubelet_dials_total{outcome="success",way="direct"}"#;
const TUNNELED: &str = r#"hawser_apiserver_kubelet_dials_total{outcome="success",way="tunnel"}"#;

const DIRECT_TO_PODS: &str = r#"hawser_apiserver_pod_dials_total{outcome="success",way="direct"}"#;
const TUNNELED_TO_PODS: &str = r#"hawser_apiserver_pod_dials_total{outcome="success",way="tunnel"}"#;

/// The port of the pod in the network of the host.
const HOST_PORT: &str = "18081";

fn apply(nodes: &Nodes<'_>, object: &Value) -> Result<()> {
    let file = nodes.bed.dir().join("object.json");
    fs::write(&file, object.to_string())?;
    nodes.kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
}

/// Starts a pod in the network of a node.
fn on_the_host(nodes: &Nodes<'_>, node: &Node) -> Result<()> {
    let port: u16 = HOST_PORT.parse()?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "on-the-host"},
        "spec": {
            "nodeName": node.name(), "terminationGracePeriodSeconds": 0, "hostNetwork": true,
            "containers": [{
                "name": "main", "image": "hawser.local/echo:1", "args": ["serve"],
                "env": [{"name": "PORT", "value": HOST_PORT}], "ports": [{"containerPort": port}],
            }],
        },
    });
    apply(nodes, &pod)
}

/// Returns a figure of the API server.
fn metric(nodes: &Nodes<'_>, name: &str) -> Result<f64> {
    let page = nodes.kubectl(&["get", "--raw", "/metrics"])?;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.with_context(|| format!("no metric {name}"))?.parse().context("a metric is not a number")
}

/// Drops the beginning of every TCP connection from outside to a node and its pods, and what comes for these from other
/// nodes. The namespace takes the rules along.
fn firewall(node: &Node) -> Result<()> {
    for rule in [
        "add table inet firewall",
        "add chain inet firewall input { type filter hook input priority 0; policy accept; }",
        "add rule inet firewall input iifname uplink tcp flags & (syn | ack) == syn drop",
        "add rule inet firewall input iifname uplink udp dport 14789 drop",
        "add chain inet firewall forward { type filter hook forward priority 0; policy accept; }",
        "add rule inet firewall forward iifname uplink tcp flags & (syn | ack) == syn drop",
    ] {
        output(node.on("nft").arg(rule))?;
    }
    Ok(())
}

/// Checks logs, exec and the proxy of a node.
fn works(nodes: &Nodes<'_>, node: &Node) -> Result<()> {
    let pod = format!("on-{}", node.name());
    let logs = nodes.kubectl(&["logs", &pod])?;
    ensure!(!logs.is_empty(), "{pod} has no log");
    let answer = nodes.kubectl(&["exec", &pod, "--", "/echo", "get", "127.0.0.1:8080"])?;
    ensure!(answer.trim().starts_with(&pod), "{answer}");
    let metrics = format!("/api/v1/nodes/{}/proxy/metrics", node.name());
    let page = nodes.kubectl(&["get", "--raw", &metrics])?;
    ensure!(page.contains("# TYPE "), "{page}");
    Ok(())
}

/// Checks the proxies of the pod of a node and of its Service.
fn proxies(nodes: &Nodes<'_>, node: &Node) -> Result<()> {
    let name = format!("on-{}", node.name());
    for path in [format!("pods/{name}:8080"), format!("services/{name}:80")] {
        let path = format!("/api/v1/namespaces/default/{path}/proxy/");
        // Endpoints follow their pods.
        let answer = eventually("a proxy", || Ok(nodes.kubectl(&["get", "--raw", &path]).ok()))?;
        ensure!(answer.trim() == name, "{path}: {answer}");
    }
    Ok(())
}

/// Checks port-forward to the pod of a node.
fn forward(nodes: &Nodes<'_>, node: &Node) -> Result<()> {
    let (first, pod) = (&nodes.bed.nodes[0], format!("on-{}", node.name()));
    let mut command = first.on("kubectl");
    command.arg("--kubeconfig").arg(nodes.kubeconfig()).env("HOME", nodes.bed.dir());
    command.args(["port-forward", &format!("pod/{pod}"), "18080:8080"]);
    let forwarding = Process::start(&mut command, nodes.bed.dir().join("port-forward.log"))?;
    let answer =
        eventually("port-forward", || Ok(output(first.on(echo()?).args(["get", "127.0.0.1:18080"])).ok()));
    let answer = answer.with_context(|| forwarding.log_tail())?;
    ensure!(answer.trim().starts_with(&pod), "{answer}");
    forwarding.kill()
}
