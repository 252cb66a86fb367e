//! A node behind a wall: no connection gets in, and all gets out. What goes through the API server to its kubelet works
//! by the node's own tunnel, and those of other nodes go the direct way.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests_e2e::bed::{Node, Place};
use tests_e2e::nodes::Programs;
use tests_e2e::{Bed, Nodes, Process, echo, echo_image, eventually, hawser, output};

/// The node behind the wall.
const WALLED: usize = 2;

#[test]
#[ignore = "needs root, containerd, kubectl and nft: cargo xtask test"]
fn node_that_nobody_can_connect_to_is_reached_through_its_tunnel() -> Result<()> {
    let bed = Bed::new(&[Place::Switch, Place::Router])?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let mut nodes = Nodes::start_joined(&bed, programs, &[])?;
    if let Err(error) = walled(&mut nodes) {
        println!("{}", nodes.logs());
        return Err(error);
    }
    nodes.down()
}

fn walled(nodes: &mut Nodes<'_>) -> Result<()> {
    for node in &nodes.bed.nodes {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("on-{}", node.name())},
            "spec": {
                "nodeName": node.name(), "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "hawser.local/echo:1", "args": ["serve"]}],
            },
        });
        let file = nodes.bed.dir().join("pod.json");
        fs::write(&file, pod.to_string())?;
        nodes.kubectl(&["apply", "-f", &file.display().to_string()])?;
    }
    nodes.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=120s"])?;

    // Without a wall the tunnel is open and not used.
    eventually("the node's tunnel", || Ok((metric(nodes, TUNNELS)? == 1.0).then_some(())))?;
    for node in &nodes.bed.nodes {
        works(nodes, node)?;
    }
    let direct = metric(nodes, DIRECT)?;
    // Those to the first node, which has no tunnel, and some to the other.
    ensure!(direct >= 4.0, "{direct} connections were direct");
    let tunneled = metric(nodes, TUNNELED)?;

    let far = &nodes.bed.nodes[WALLED - 1];
    wall(far)?;
    let address = format!("{}:10250", far.ip());
    let through = output(nodes.bed.nodes[0].on("timeout").arg("1").arg(echo()?).args(["get", &address]));
    ensure!(through.is_err(), "the wall has a hole: {through:?}");
    works(nodes, far)?;
    let tunneled = metric(nodes, TUNNELED)? - tunneled;
    ensure!(tunneled >= 3.0, "{tunneled} connections went through the tunnel");
    let tunneled = metric(nodes, TUNNELED)?;
    let direct = metric(nodes, DIRECT)?;
    works(nodes, &nodes.bed.nodes[0])?;
    ensure!(metric(nodes, DIRECT)? >= direct + 3.0, "the other node is still dialled directly");
    ensure!(metric(nodes, TUNNELED)? == tunneled, "the other node has no tunnel");
    forward(nodes, far)?;

    // Either side dies and comes back.
    nodes.kill(WALLED, "join")?;
    let bed = nodes.bed;
    nodes.run(&bed.nodes[WALLED - 1])?;
    eventually("logs after the node was killed", || Ok(works(nodes, far).ok()))?;
    nodes.kill(1, "up")?;
    nodes.run(&bed.nodes[0])?;
    eventually("logs after the API server was killed", || Ok(works(nodes, far).ok()))?;
    ensure!(metric(nodes, TUNNELED)? > 0.0, "there is a hole in the wall");
    Ok(())
}

const TUNNELS: &str = "hawser_apiserver_node_tunnels";
const DIRECT: &str = r#"hawser_apiserver_kubelet_dials_total{outcome="success",way="direct"}"#;
const TUNNELED: &str = r#"hawser_apiserver_kubelet_dials_total{outcome="success",way="tunnel"}"#;

/// Returns a figure of the API server.
fn metric(nodes: &Nodes<'_>, name: &str) -> Result<f64> {
    let page = nodes.kubectl(&["get", "--raw", "/metrics"])?;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.with_context(|| format!("no metric {name}"))?.parse().context("a metric is not a number")
}

/// Drops the beginning of every TCP connection from outside to a node. The namespace takes the rule along.
fn wall(node: &Node) -> Result<()> {
    for rule in [
        "add table inet wall",
        "add chain inet wall input { type filter hook input priority 0; policy accept; }",
        "add rule inet wall input iifname uplink tcp flags & (syn | ack) == syn drop",
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
