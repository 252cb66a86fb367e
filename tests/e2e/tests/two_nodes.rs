//! Several nodes: pods and Services across them, by routes and by VXLAN, while a node is cut off and heals.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests_e2e::bed::Place;
use tests_e2e::nodes::Programs;
use tests_e2e::{Bed, Load, Nodes, Snapshot, echo, echo_image, eventually, hawser, output, root};

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn pods_and_services_reach_across_nodes_by_routes_and_survive_a_partition() -> Result<()> {
    run(&[Place::Switch, Place::Switch], "via 192.0.2.")
}

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn pods_and_services_reach_across_nodes_by_vxlan_and_survive_a_partition() -> Result<()> {
    run(&[Place::Switch, Place::Router], "dev hawser-vxlan")
}

fn run(places: &[Place], way: &str) -> Result<()> {
    let bed = Bed::new(places)?;
    let before = bed.nodes.iter().map(|node| Snapshot::take(node)).collect::<Result<Vec<_>>>()?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let mut nodes = Nodes::start(&bed, programs, &[])?;
    if let Err(error) = day(&mut nodes, way) {
        println!("{}", nodes.logs());
        return Err(error);
    }
    nodes.down()?;
    for (node, before) in bed.nodes.iter().zip(&before) {
        let differences = Snapshot::take(node)?.differences(before);
        ensure!(differences.is_empty(), "{} is different:\n{}", node.name(), differences.join("\n"));
    }
    Ok(())
}

fn day(nodes: &mut Nodes<'_>, way: &str) -> Result<()> {
    let manifest = root().join("tests/data/echo.yaml").display().to_string();
    nodes.kubectl(&["apply", "-f", &manifest])?;
    nodes.kubectl(&["patch", "deploy/echo", "-n", "echo", "-p", SPREAD])?;
    nodes.kubectl(&["rollout", "status", "deploy/echo", "-n", "echo", "--timeout=120s"])?;
    for node in &nodes.bed.nodes {
        let routes = output(node.on("ip").args(["route", "show", "proto", "145"]))?;
        ensure!(routes.contains(way), "{} has other routes than {way:?}: {routes}", node.name());
    }
    let pods = steady_pods(nodes)?;
    reach(nodes, &pods)?;
    kill_and_restart(nodes)?;
    partition(nodes, &pods)?;
    nodes.kubectl(&["delete", "-f", &manifest])?;
    Ok(())
}

/// Four pods, two on each node.
const SPREAD: &str = r#"{"spec": {"replicas": 4, "template": {"spec": {"topologySpreadConstraints": [{
    "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "echo"}}, "matchLabelKeys": ["pod-template-hash"]}],
    "tolerations": [{"key": "node.kubernetes.io/unreachable", "operator": "Exists"},
                    {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]}}}}"#;

/// Names and addresses of the pods, by node.
type Pods = BTreeMap<String, Vec<(String, String)>>;

/// Waits until the pods of the last rollout are alone, and returns them.
fn steady_pods(nodes: &Nodes<'_>) -> Result<Pods> {
    eventually("two pods on each node", || {
        let list = nodes.json(&["get", "pods", "-n", "echo"])?;
        let mut pods = Pods::new();
        for pod in list["items"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            pods.entry(text(&pod["spec"]["nodeName"]))
                .or_default()
                .push((text(&pod["metadata"]["name"]), text(&pod["status"]["podIP"])));
        }
        let spread = pods.len() == 2 && pods.values().all(|pods| pods.len() == 2);
        Ok(spread.then_some(pods))
    })
}

/// Checks every way from every place: hosts, pods and an outsider; to pods, the Service, the node ports and
/// the other node.
fn reach(nodes: &Nodes<'_>, pods: &Pods) -> Result<()> {
    let service = nodes.json(&["get", "svc", "echo", "-n", "echo"])?;
    let service = service["spec"]["clusterIP"].as_str().context("the Service has no address")?;
    let all: Vec<_> = pods.values().flatten().collect();
    let exec = |pod: &str, args: &[&str]| {
        nodes.kubectl(&[&["exec", "-n", "echo", pod, "--", "/echo"], args].concat())
    };
    for node in &nodes.bed.nodes {
        let (pod, _) = &pods[&node.name()][0];
        for (name, ip) in &all {
            let target = format!("{ip}:8080");
            let answer = output(node.on(echo()?).args(["get", &target]))?;
            ensure!(answer.trim().starts_with(name.as_str()), "{} to {name}: {answer}", node.name());
            for request in ["get", "udp"] {
                let answer = exec(pod, &[request, &target])?;
                ensure!(answer.trim().starts_with(name.as_str()), "{pod} to {name}, {request}: {answer}");
            }
        }
        for other in &nodes.bed.nodes {
            // The node's agent answers pods elsewhere, if only to refuse them.
            let answer = exec(pod, &["get", &format!("{}:10256", other.ip())]);
            ensure!(answer.is_ok(), "{pod} to {}: {answer:?}", other.name());
        }
        for request in ["get", "udp"] {
            let (target, port) = (format!("{service}:80"), format!("{}:30080", node.ip()));
            everybody_answers(&all, &format!("{request} {target} on {}", node.name()), || {
                output(node.on(echo()?).args([request, &target]))
            })?;
            everybody_answers(&all, &format!("{request} {target} in {pod}"), || {
                exec(pod, &[request, &target])
            })?;
            everybody_answers(&all, &format!("{request} {port} from outside"), || {
                output(nodes.bed.on_hub(echo()?).args([request, &port]))
            })?;
        }
    }
    Ok(())
}

/// Asks until each of the pods has answered, and fails if one request fails.
fn everybody_answers(pods: &[&(String, String)], what: &str, ask: impl Fn() -> Result<String>) -> Result<()> {
    let mut missing: Vec<&str> = pods.iter().map(|(name, _)| name.as_str()).collect();
    for _ in 0..200 {
        let answer = ask().with_context(|| what.to_owned())?;
        missing.retain(|name| !answer.trim().starts_with(name));
        if missing.is_empty() {
            return Ok(());
        }
    }
    anyhow::bail!("{what}: no answer of {missing:?}")
}

/// Traffic from the first node to a pod of the second goes on while the second's components die.
fn kill_and_restart(nodes: &mut Nodes<'_>) -> Result<()> {
    let pods = steady_pods(nodes)?;
    let target = format!("{}:8080", pods["node-2"][0].1);
    let load = Load::start(nodes.bed.nodes[0].on(echo()?).args(["load", &target]))?;
    for component in ["kubelet", "proxy"] {
        nodes.kill(2, component)?;
        nodes.run(&nodes.bed.nodes[1])?;
    }
    nodes.kill(1, "up")?;
    nodes.run(&nodes.bed.nodes[0])?;
    let counts = load.finish()?;
    println!("components killed: {} requests, {} failed", counts.ok, counts.failed);
    ensure!(counts.failed == 0 && counts.ok > 10, "{counts:?}");
    Ok(())
}

/// The second node is cut off: its pods leave the Service, and the first node's go on. It heals: all is as
/// before, with the same pods and routes.
fn partition(nodes: &Nodes<'_>, pods: &Pods) -> Result<()> {
    let service = nodes.json(&["get", "svc", "echo", "-n", "echo"])?;
    let target = format!("{}:80", service["spec"]["clusterIP"].as_str().context("no address")?);
    let (first, second) = (&nodes.bed.nodes[0], &nodes.bed.nodes[1]);
    second.cut()?;
    let far = format!("{}:8080", pods["node-2"][0].1);
    ensure!(output(first.on(echo()?).args(["get", &far])).is_err(), "a pod behind the cut link answers");
    eventually("the node to be not ready", || Ok((!nodes.is_ready("node-2")?).then_some(())))?;
    let near: Vec<_> = pods["node-1"].iter().collect();
    eventually("the Service to leave out pods of the lost node", || {
        let answers = (0..20).map(|_| output(first.on(echo()?).args(["get", &target])));
        let answers = answers.collect::<Result<Vec<_>>>()?;
        let is_near = |answer: &String| near.iter().any(|(name, _)| answer.trim().starts_with(name.as_str()));
        Ok(answers.iter().all(is_near).then_some(()))
    })?;
    second.heal()?;
    healed("the node to be ready again", || Ok(nodes.is_ready("node-2")?.then_some(())))?;
    healed("all pods to answer again", || reach(nodes, pods).map(Some))?;
    ensure!(steady_pods(nodes)? == *pods, "the pods were replaced");
    Ok(())
}

/// Waits twice as long as usual: connections that the partition cut off end up to 25 s later, and only then
/// are opened again.
fn healed(what: &str, mut ask: impl FnMut() -> Result<Option<()>>) -> Result<()> {
    eventually(what, &mut ask).or_else(|_| eventually(what, &mut ask))
}
