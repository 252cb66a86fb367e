//! Two Nodes that claim one range of pods: the first owner keeps it, events tell what to do, and a node that comes back
//! after its range was given to another gets a new one.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::bed::{HUB_IP, Place};
use tests_e2e::nodes::Programs;
use tests_e2e::{Bed, Load, Nodes, Process, echo, echo_image, eventually, hawser, output};

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn the_first_owner_of_a_range_keeps_it_until_it_is_given_away() -> Result<()> {
    let bed = Bed::new(&[Place::Switch, Place::Switch])?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let mut nodes = Nodes::start_joined(&bed, programs, &[])?;
    // The hub is where the pods of Nodes are that the test makes.
    let mut server = bed.on_hub(echo()?);
    let _server = Process::start(server.env("HOSTNAME", "heir"), bed.dir().join("heir.log"))?;
    if let Err(error) = day(&mut nodes) {
        println!("{}", nodes.logs());
        return Err(error);
    }
    nodes.down()
}

fn day(nodes: &mut Nodes<'_>) -> Result<()> {
    let range = claimed(nodes)?;
    given_away(nodes, &range)?;
    taken_over(nodes)
}

/// An operator makes Nodes with the ranges of those that are there. Returns the range of the second node.
fn claimed(nodes: &Nodes<'_>) -> Result<String> {
    let first = &nodes.bed.nodes[0];
    let far = pod(nodes, "far")?;
    let target = format!("{far}:8080");
    let before = routes(nodes)?;
    let loads = [
        Load::start(first.on(echo()?).args(["load", &target]))?,
        Load::start(first.on(echo()?).args(["hold", &target]))?,
    ];
    for owner in ["node-1", "node-2"] {
        let (range, thief) = (range_of(nodes, owner)?, format!("thief-of-{owner}"));
        make_node(nodes, &thief, &range)?;
        let wanted = format!("its podCIDR {range} is that of node {owner} already; delete this Node");
        eventually("an event that tells of the claim", || {
            Ok(told(nodes, &thief)?.iter().any(|text| text.contains(&wanted)).then_some(()))
        })?;
        nobody_is_told(nodes, &[owner])?;
    }
    ensure!(routes(nodes)? == before, "the routes were {before} and are {}", routes(nodes)?);
    for load in loads {
        let counts = load.finish()?;
        ensure!(counts.failed == 0 && counts.ok > 10, "{counts:?}");
    }
    nodes.kubectl(&["delete", "node", "thief-of-node-1", "thief-of-node-2"])?;
    range_of(nodes, "node-2")
}

/// The second node is lost, and its range given to an heir; then it comes back.
fn given_away(nodes: &mut Nodes<'_>, range: &str) -> Result<()> {
    let heir_pod = serve_at_hub(nodes, range)?;
    nodes.kill(2, "join")?;
    nodes.kubectl(&["delete", "pod", "far", "--force", "--grace-period=0"])?;
    nodes.kubectl(&["delete", "node", "node-2"])?;
    make_node(nodes, "heir", range)?;
    reach(nodes, 1, &heir_pod, "heir")?;
    let load = Load::start(nodes.bed.nodes[0].on(echo()?).args(["load", &format!("{heir_pod}:8080")]))?;
    let second = &nodes.bed.nodes[1];
    nodes.run(second)?;
    another_range(nodes, range)?;
    let back = pod(nodes, "back")?;
    reach(nodes, 1, &back, "back")?;
    // The node that had the range before takes the way to its new owner, and keeps nothing of it.
    goes_to_the_hub(nodes, range)?;
    reach(nodes, 2, &heir_pod, "heir")?;
    eventually("the node to leave its address of the range", || {
        let left = output(second.on("ip").args(["-o", "addr", "show", "dev", "lo", "to", range]))?;
        Ok(left.is_empty().then_some(()))
    })?;
    let counts = load.finish()?;
    ensure!(counts.failed == 0 && counts.ok > 10, "{counts:?}");
    nobody_is_told(nodes, &["heir", "node-1", "node-2"])
}

/// The second node's object is deleted while another claims its range, which has it from then on. The node gets a new one
/// without a restart, and stays cordoned; a pod that it runs gets an address of that.
fn taken_over(nodes: &Nodes<'_>) -> Result<()> {
    let range = range_of(nodes, "node-2")?;
    let back = nodes.kubectl(&["get", "pod", "back", "-o", "jsonpath={.status.podIP}"])?;
    let next_pod = serve_at_hub(nodes, &range)?;
    make_node(nodes, "next", &range)?;
    eventually("an event about the claim", || Ok(Some(told(nodes, "next")?).filter(|all| !all.is_empty())))?;
    nodes.kubectl(&["cordon", "node-2"])?;
    nodes.kubectl(&["delete", "node", "node-2"])?;
    reach(nodes, 1, &next_pod, "heir")?;
    another_range(nodes, &range)?;
    let cordoned = nodes.kubectl(&["get", "node", "node-2", "-o", "jsonpath={.spec.unschedulable}"])?;
    ensure!(cordoned == "true", "the node has come back schedulable");
    moves(nodes, "back", &back)?;
    let anew = pod(nodes, "anew")?;
    reach(nodes, 1, &anew, "anew")?;
    goes_to_the_hub(nodes, &range)?;
    reach(nodes, 2, &next_pod, "heir")?;
    nobody_is_told(nodes, &["node-1", "node-2"])?;
    nodes.kubectl(&["delete", "node", "heir", "next"]).map(drop)
}

/// Waits until a pod of the second node has left an address that is another node's, and both nodes reach it.
fn moves(nodes: &Nodes<'_>, name: &str, from: &str) -> Result<()> {
    let address = eventually("the pod to get another address", || {
        let address = nodes.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.podIP}"])?;
        Ok(Some(address).filter(|address| !address.is_empty() && address != from))
    })?;
    for node in [1, 2] {
        reach(nodes, node, &address, name)?;
    }
    let of = format!("reason=PodAddressLost,involvedObject.name={name}");
    let why =
        nodes.kubectl(&["get", "events", "--field-selector", &of, "-o", "jsonpath={.items[*].message}"])?;
    ensure!(why.contains(&format!("address {from} is in none")), "the event says {why:?}");
    Ok(())
}

/// Gives the hub an address of a range, at which its server answers; returns the address.
fn serve_at_hub(nodes: &Nodes<'_>, range: &str) -> Result<String> {
    let address = format!("{}.77", range.rsplit_once('.').context("no range of IPv4")?.0);
    output(nodes.bed.on_hub("ip").args(["addr", "add", &address, "dev", "lo"]))?;
    Ok(address)
}

/// Waits until a server of this name answers a node.
fn reach(nodes: &Nodes<'_>, node: usize, address: &str, name: &str) -> Result<()> {
    eventually(&format!("{name} to answer node {node}"), || {
        let node = &nodes.bed.nodes[node - 1];
        let answer = output(node.on(echo()?).args(["get", &format!("{address}:8080")]))?;
        ensure!(answer.trim() == name, "{answer}");
        Ok(Some(()))
    })
}

/// Waits until the second node has a range again, which must be another.
fn another_range(nodes: &Nodes<'_>, range: &str) -> Result<()> {
    let new = eventually("the node to get another range", || {
        Ok(Some(range_of(nodes, "node-2")?).filter(|new| !new.is_empty()))
    })?;
    ensure!(new != range, "the node has got {range} again, which is another's");
    Ok(())
}

/// Waits until the second node's packets for a range go to the hub.
fn goes_to_the_hub(nodes: &Nodes<'_>, range: &str) -> Result<()> {
    let second = &nodes.bed.nodes[1];
    eventually("a route to the new owner", || {
        let way = output(second.on("ip").args(["route", "show", "proto", "145", range]))?;
        Ok(way.contains(HUB_IP).then_some(()))
    })
}

fn nobody_is_told(nodes: &Nodes<'_>, names: &[&str]) -> Result<()> {
    for name in names {
        let messages = told(nodes, name)?;
        ensure!(messages.is_empty(), "events about {name}: {messages:?}");
    }
    Ok(())
}

/// Makes a pod on the second node; returns its address.
fn pod(nodes: &Nodes<'_>, name: &str) -> Result<String> {
    let container = json!({
        "name": "echo", "image": "hawser.local/echo:1",
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": "node-2", "terminationGracePeriodSeconds": 1, "containers": [container]},
    });
    apply(nodes, name, &pod)?;
    nodes.kubectl(&["wait", "pod", name, "--for=condition=Ready", "--timeout=120s"])?;
    nodes.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.podIP}"])
}

/// Makes a Node with a range of pods behind the hub.
fn make_node(nodes: &Nodes<'_>, name: &str, range: &str) -> Result<()> {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "spec": {"podCIDR": range, "podCIDRs": [range]},
    });
    apply(nodes, name, &node)?;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": HUB_IP}]}}).to_string();
    nodes.kubectl(&["patch", "node", name, "--subresource=status", "-p", &status]).map(drop)
}

fn apply(nodes: &Nodes<'_>, name: &str, object: &Value) -> Result<()> {
    let file = nodes.bed.dir().join(format!("{name}.json"));
    fs::write(&file, object.to_string())?;
    nodes.kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
}

fn range_of(nodes: &Nodes<'_>, node: &str) -> Result<String> {
    nodes.kubectl(&["get", "node", node, "-o", "jsonpath={.spec.podCIDR}"])
}

/// Returns the first node's routes to pods of others.
fn routes(nodes: &Nodes<'_>) -> Result<String> {
    output(nodes.bed.nodes[0].on("ip").args(["route", "show", "proto", "145"]))
}

/// Returns the messages of events about a Node's routes.
fn told(nodes: &Nodes<'_>, node: &str) -> Result<Vec<String>> {
    let of = format!("reason=PodNetworkRefused,involvedObject.name={node}");
    let events = nodes.json(&["get", "events", "-A", "--field-selector", &of])?;
    let items = events["items"].as_array().context("no list of events")?;
    Ok(items.iter().filter_map(|event| event["message"].as_str().map(str::to_owned)).collect())
}
