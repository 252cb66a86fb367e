//! A Service of type LoadBalancer on two nodes: a host on their link finds its address, also when the node that
//! announces it dies.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tests_e2e::bed::Place;
use tests_e2e::nodes::Programs;
use tests_e2e::{Bed, Load, Nodes, Snapshot, echo, echo_image, eventually, hawser, output, root};

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn an_address_is_reached_from_everywhere_and_taken_over_when_its_node_dies() -> Result<()> {
    let bed = Bed::new(&[Place::Switch, Place::Switch])?;
    let before = bed.nodes.iter().map(|node| Snapshot::take(node)).collect::<Result<Vec<_>>>()?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let mut nodes = Nodes::start(&bed, programs, &[])?;
    if let Err(error) = day(&mut nodes) {
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

fn day(nodes: &mut Nodes<'_>) -> Result<()> {
    let manifest = root().join("tests/data/echo.yaml").display().to_string();
    nodes.kubectl(&["apply", "-f", &manifest])?;
    nodes.kubectl(&["patch", "svc/echo", "-n", "echo", "-p", r#"{"spec": {"type": "LoadBalancer"}}"#])?;
    nodes.kubectl(&["rollout", "status", "deploy/echo", "-n", "echo", "--timeout=120s"])?;
    let address = eventually("the Service to have an address", || {
        let service = nodes.json(&["get", "svc", "echo", "-n", "echo"])?;
        Ok(service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().map(ToOwned::to_owned))
    })?;
    ensure!(address.starts_with("192.0.2.20"), "{address} is not in the ranges");
    reach(nodes, &address)?;
    take_over(nodes, &address)?;
    follow_endpoints(nodes, &address)?;
    nodes.kubectl(&["delete", "-f", &manifest])?;
    Ok(())
}

/// Checks that hosts on the link, nodes and pods reach the address.
fn reach(nodes: &Nodes<'_>, address: &str) -> Result<()> {
    let target = format!("{address}:80");
    eventually("a host on the link to reach the address", || {
        Ok(output(nodes.bed.on_hub(echo()?).args(["get", &target])).ok())
    })?;
    for node in &nodes.bed.nodes {
        output(node.on(echo()?).args(["get", &target])).with_context(|| format!("from {}", node.name()))?;
    }
    for pod in nodes.kubectl(&["get", "pods", "-n", "echo", "-o", "name"])?.lines() {
        nodes.kubectl(&["exec", "-n", "echo", pod, "--", "/echo", "get", &target])?;
    }
    Ok(())
}

/// Returns the number of the node that answers for the address.
fn announcer(nodes: &Nodes<'_>, address: &str) -> Result<Option<usize>> {
    let text = output(nodes.bed.on_hub("ip").args(["neigh", "show", address]))?;
    let mac = text.split("lladdr ").nth(1).and_then(|rest| rest.split(' ').next());
    let Some(mac) = mac else { return Ok(None) };
    for node in &nodes.bed.nodes {
        if output(node.on("ip").args(["link", "show", "uplink"]))?.contains(mac) {
            return Ok(Some(node.number));
        }
    }
    Ok(None)
}

/// The process that announces is killed. Requests go on, because the kernel of its node forwards them until another
/// node has taken over; so they do when it returns.
fn take_over(nodes: &mut Nodes<'_>, address: &str) -> Result<()> {
    let target = format!("{address}:80");
    let first = eventually("a node to announce", || announcer(nodes, address))?;
    let component = if first == 1 { "up" } else { "proxy" };
    let load = Load::start(nodes.bed.on_hub(echo()?).args(["load", &target]))?;
    nodes.kill(first, component)?;
    let died = Instant::now();
    eventually("another node to announce", || {
        Ok(announcer(nodes, address)?.filter(|number| *number != first))
    })?;
    println!("{address}: taken over {:?} after the process on node {first} was killed", died.elapsed());
    let counts = load.finish()?;
    println!("announcer killed: {} requests, {} failed", counts.ok, counts.failed);
    ensure!(counts.failed == 0 && counts.ok > 10, "{counts:?}");
    output(nodes.bed.on_hub("ip").args(["neigh", "flush", "all"]))?;
    output(nodes.bed.on_hub(echo()?).args(["get", &target])).context("asked anew")?;
    nodes.run(&nodes.bed.nodes[first - 1])?;
    eventually("the first node to announce again", || {
        Ok(announcer(nodes, address)?.filter(|number| *number == first))
    })?;
    Ok(())
}

/// With externalTrafficPolicy Local the node of the only pod announces, and clients are seen under their own address.
fn follow_endpoints(nodes: &Nodes<'_>, address: &str) -> Result<()> {
    nodes.kubectl(&["scale", "deploy/echo", "-n", "echo", "--replicas=1"])?;
    let local = r#"{"spec": {"externalTrafficPolicy": "Local"}}"#;
    nodes.kubectl(&["patch", "svc/echo", "-n", "echo", "-p", local])?;
    for wanted in [2, 1, 2] {
        let place = format!(r#"{{"spec": {{"template": {{"spec": {{"nodeName": "node-{wanted}"}}}}}}}}"#);
        nodes.kubectl(&["patch", "deploy/echo", "-n", "echo", "-p", &place])?;
        nodes.kubectl(&["rollout", "status", "deploy/echo", "-n", "echo", "--timeout=120s"])?;
        eventually("the node of the pod to announce", || {
            Ok(announcer(nodes, address)?.filter(|number| *number == wanted))
        })?;
        output(nodes.bed.on_hub(echo()?).args(["get", &format!("{address}:80")]))?;
    }
    Ok(())
}
