//! A web shop of a dozen services on three nodes, of which one is behind a router. Each request from outside
//! goes through many of them: by names, under network policies, and out of the cluster. Components of all
//! nodes are restarted one after the other, and no request may fail.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::bed::{HUB_IP, Place};
use tests_e2e::nodes::Programs;
use tests_e2e::{Bed, Load, Nodes, Process, Snapshot, echo, echo_image, eventually, hawser, output};

/// The services, and those that each asks for every request. `bank` is outside of the cluster.
const SERVICES: [(&str, &[&str]); 12] = [
    ("front", &["catalog", "cart", "account"]),
    ("catalog", &["search", "prices", "images"]),
    ("cart", &["prices", "stock"]),
    ("account", &["users", "orders"]),
    ("search", &[]),
    ("prices", &[]),
    ("images", &[]),
    ("stock", &[]),
    ("users", &[]),
    ("orders", &["payment", "mail"]),
    ("payment", &["bank"]),
    ("mail", &[]),
];

const NODE_PORT: u16 = 30_088;
const BANK_PORT: u16 = 8443;

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn a_shop_on_three_nodes_fails_no_request_while_every_component_restarts() -> Result<()> {
    let bed = Bed::new(&[Place::Switch, Place::Switch, Place::Router])?;
    let before = bed.nodes.iter().map(|node| Snapshot::take(node)).collect::<Result<Vec<_>>>()?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let mut bank = bed.on_hub(echo()?);
    let bank = Process::start(bank.env("PORT", BANK_PORT.to_string()), bed.dir().join("bank.log"))?;
    let mut nodes = Nodes::start_joined(&bed, programs, &[])?;
    if let Err(error) = day(&mut nodes) {
        println!("{}", nodes.logs());
        return Err(error);
    }
    nodes.down()?;
    bank.kill()?;
    for (node, before) in bed.nodes.iter().zip(&before) {
        let differences = Snapshot::take(node)?.differences(before);
        ensure!(differences.is_empty(), "{} is different:\n{}", node.name(), differences.join("\n"));
    }
    Ok(())
}

fn day(nodes: &mut Nodes<'_>) -> Result<()> {
    let file = nodes.bed.dir().join("shop.json");
    std::fs::write(&file, manifest().to_string()).context("cannot write the manifest")?;
    nodes.kubectl(&["apply", "-f", &file.display().to_string()])?;
    nodes.kubectl(&[
        "wait",
        "deploy",
        "--all",
        "-n",
        "shop",
        "--for=condition=Available",
        "--timeout=180s",
    ])?;
    spread(nodes)?;
    eventually("the shop to serve a request", || Ok(ask(nodes, 1).ok()))?;
    policies_hold(nodes)?;
    let loads: Vec<Load> = nodes
        .bed
        .nodes
        .iter()
        .map(|node| {
            Load::start(nodes.bed.on_hub(echo()?).args(["load", &format!("{}:{NODE_PORT}/calls", node.ip())]))
        })
        .collect::<Result<_>>()?;
    for (node, component) in nodes.components() {
        nodes.restart(node, component)?;
        let name = format!("node-{node}");
        let heard = heartbeat(nodes, &name).unwrap_or_default();
        eventually(&format!("{component} of {name} to serve again"), || {
            let renewed = heartbeat(nodes, &name).is_ok_and(|now| now != heard);
            Ok((renewed && nodes.is_ready(&name)?).then_some(()))
        })?;
    }
    for (load, node) in loads.into_iter().zip(&nodes.bed.nodes) {
        let counts = load.finish()?;
        println!("through {}: {} requests, {} failed", node.name(), counts.ok, counts.failed);
        ensure!(counts.failed == 0 && counts.ok > 10, "through {}: {counts:?}", node.name());
    }
    let restarts = nodes.kubectl(&[
        "get",
        "pods",
        "-n",
        "shop",
        "-o",
        "jsonpath={.items[*].status.containerStatuses[*].restartCount}",
    ])?;
    ensure!(restarts.split_whitespace().all(|count| count == "0"), "containers were restarted: {restarts}");
    nodes.kubectl(&["delete", "namespace", "shop"])?;
    Ok(())
}

/// Sends one request from outside through a node's port.
fn ask(nodes: &Nodes<'_>, node: usize) -> Result<String> {
    let target = format!("{}:{NODE_PORT}/calls", nodes.bed.nodes[node - 1].ip());
    let answer = output(nodes.bed.on_hub(echo()?).args(["get", &target]))?;
    ensure!(answer.starts_with("front-") && !answer.contains(':'), "{answer}");
    Ok(answer)
}

/// Pods run on every node, so that requests cross all links.
fn spread(nodes: &Nodes<'_>) -> Result<()> {
    let pods = nodes.json(&["get", "pods", "-n", "shop"])?;
    let items = pods["items"].as_array().context("no list of pods")?;
    let places: BTreeSet<&str> = items.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
    ensure!(places.len() == nodes.bed.nodes.len(), "pods run on {places:?} only");
    Ok(())
}

/// Requests that no policy allows fail, and the bank sees the address of a node.
fn policies_hold(nodes: &Nodes<'_>) -> Result<()> {
    let from = |service: &str, target: &str| {
        let pod = nodes.kubectl(&[
            "get",
            "pod",
            "-n",
            "shop",
            "-l",
            &format!("app={service}"),
            "-o",
            "jsonpath={.items[0].metadata.name}",
        ])?;
        nodes.kubectl(&["exec", "-n", "shop", &pod, "--", "/echo", "get", target])
    };
    let seen = from("payment", &format!("{HUB_IP}:{BANK_PORT}/client"))?;
    let address = seen.trim().rsplit_once(':').map(|(address, _)| address).unwrap_or_default();
    let known = nodes.bed.nodes.iter().any(|node| node.ip() == address);
    ensure!(known, "the bank sees {seen}, which is no node");
    ensure!(from("front", "cart:80/").is_ok(), "front cannot reach cart");
    for (service, target) in [
        ("search", "payment:80/".to_owned()),
        ("mail", format!("{HUB_IP}:{BANK_PORT}/client")),
        ("front", "orders:80/".to_owned()),
    ] {
        let answer = from(service, &target);
        ensure!(answer.is_err(), "{service} reaches {target}: {answer:?}");
    }
    Ok(())
}

/// Returns the time of the last renewal of a node's Lease.
fn heartbeat(nodes: &Nodes<'_>, name: &str) -> Result<String> {
    nodes.kubectl(&["get", "lease", name, "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"])
}

/// The shop: of each service a Deployment of two pods, a Service and a policy that admits those who ask it.
fn manifest() -> Value {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    let mut items = vec![namespace, nothing_is_allowed()];
    for (name, asks) in SERVICES {
        items.extend([deployment(name, asks), service(name), policy(name, asks)]);
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

fn deployment(name: &str, asks: &[&str]) -> Value {
    let calls: Vec<String> = asks
        .iter()
        .map(|&callee| match callee {
            "bank" => format!("{HUB_IP}:{BANK_PORT}/"),
            // By the search list, with the port of the Service.
            name => format!("{name}:80/calls"),
        })
        .collect();
    let probe = json!({"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": name},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "echo", "image": "hawser.local/echo:1", "readinessProbe": probe,
                        "env": [{"name": "CALLS", "value": calls.join(",")}],
                    }],
                },
            },
        },
    })
}

fn service(name: &str) -> Value {
    let mut spec = json!({"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]});
    if name == "front" {
        spec["type"] = "NodePort".into();
        spec["ports"][0]["nodePort"] = NODE_PORT.into();
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec})
}

/// Without a further policy, a pod of the shop reaches the DNS server alone, and nobody reaches it.
fn nothing_is_allowed() -> Value {
    let dns = json!([{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "nothing-but-names"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": [{"ports": dns}]},
    })
}

fn policy(name: &str, asks: &[&str]) -> Value {
    let pods = |app: &str| json!({"podSelector": {"matchLabels": {"app": app}}});
    let port = json!([{"port": 8080}]);
    let askers: Vec<Value> =
        SERVICES.iter().filter(|(_, asks)| asks.contains(&name)).map(|(asker, _)| pods(asker)).collect();
    // The front is for everybody.
    let ingress =
        if askers.is_empty() { json!([{"ports": port}]) } else { json!([{"from": askers, "ports": port}]) };
    let egress: Vec<Value> = asks
        .iter()
        .map(|&callee| match callee {
            "bank" => json!({
                "to": [{"ipBlock": {"cidr": format!("{HUB_IP}/32")}}], "ports": [{"port": BANK_PORT}],
            }),
            name => json!({"to": [pods(name)], "ports": port}),
        })
        .collect();
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {
            "podSelector": {"matchLabels": {"app": name}}, "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress, "egress": egress,
        },
    })
}
