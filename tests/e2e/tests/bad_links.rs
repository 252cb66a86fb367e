//! Two nodes with a router and a bad link between them, which holds frames back and reorders them; and, once the link is
//! good again, a policy for a pod behind it that changes all the time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::bed::{Faults, Place};
use tests_e2e::nodes::Programs;
use tests_e2e::{Bed, Load, Nodes, echo, echo_image, eventually, hawser, output};

use crate::policies;

/// The port of every node that leads to the pod of the second node.
const NODE_PORT: u16 = 30_080;
/// Bytes that go there and back.
const BYTES: &str = "2000000";
/// Some 100 ms for a round trip.
const FAULTS: Faults =
    Faults { delay: Duration::from_millis(50), jitter: Duration::from_millis(10), reorder: 5, loss: 0 };

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn a_bad_link_and_then_a_restless_policy_break_no_flow() -> Result<()> {
    let bed = Bed::new(&[Place::Switch, Place::Router])?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let mut nodes = Nodes::start_joined(&bed, programs, &[])?;
    if let Err(error) = day(&nodes) {
        println!("{}", nodes.logs());
        return Err(error);
    }
    nodes.down()
}

fn day(nodes: &Nodes<'_>) -> Result<()> {
    let objects = nodes.bed.dir().join("objects.json");
    std::fs::write(&objects, objects_of_the_test().to_string())?;
    nodes.kubectl(&["apply", "-f", &objects.display().to_string()])?;
    nodes.kubectl(&["wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s"])?;
    let far = nodes.kubectl(&["get", "pod", "far", "-o", "jsonpath={.status.podIP}"])?;
    let near = nodes.kubectl(&["get", "pod", "near", "-o", "jsonpath={.status.podIP}"])?;
    eventually("the pods to reach each other", || Ok(exec(nodes, "near", &["get", "far:80"]).ok()))?;
    let (first, second) = (&nodes.bed.nodes[0], &nodes.bed.nodes[1]);
    // Connections that are there before, while and after the link is bad: from the node, and masqueraded.
    let held = [
        Load::start(first.on(echo()?).args(["hold", &format!("{far}:8080")]))?,
        Load::start(nodes.bed.on_hub(echo()?).args(["hold", &format!("{}:{NODE_PORT}", first.ip())]))?,
    ];
    let link = second.disturb(FAULTS, 1)?;
    flows(nodes, &near, &far)?;
    let passed = link.heal()?;
    println!("{passed:?}");
    ensure!(passed.frames > 4_000 && passed.reordered > 100 && passed.failed == 0, "{passed:?}");
    exec(nodes, "far", &["get", "near:80"])?;
    for load in held {
        let counts = load.finish()?;
        ensure!(counts.failed == 0 && counts.ok > 10, "{counts:?}");
    }
    policies::change_all_the_time(nodes)
}

/// A pod on each node, and a Service of each.
fn objects_of_the_test() -> Value {
    let pod = |name: &str, node: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "echo", "image": "hawser.local/echo:1",
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
                }],
            },
        })
    };
    let service = |name: &str| {
        let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": 80, "targetPort": 8080});
        let mut ports = [port("TCP"), port("UDP")];
        if name == "far" {
            ports[0]["nodePort"] = NODE_PORT.into();
        }
        let kind = if name == "far" { "NodePort" } else { "ClusterIP" };
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": kind, "selector": {"app": name}, "ports": ports},
        })
    };
    let items = [pod("near", "node-1"), pod("far", "node-2"), service("near"), service("far")];
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Runs the workload's program in a pod.
fn exec(nodes: &Nodes<'_>, pod: &str, args: &[&str]) -> Result<String> {
    nodes.kubectl(&[&["exec", pod, "--", "/echo"], args].concat())
}

/// Everything that users do between nodes; nothing may fail.
fn flows(nodes: &Nodes<'_>, near: &str, far: &str) -> Result<()> {
    // Both ways at once: by the Service's name, and by the pod's address.
    let ways = [("near", "far:80".to_owned()), ("far", format!("{near}:8080"))];
    let mirrors = ways.each_ref().map(|(pod, target)| {
        let mut mirror = nodes.kubectl_command();
        mirror.args(["exec", pod, "--", "/echo", "mirror", target, BYTES]);
        std::thread::spawn(move || output(&mut mirror))
    });
    for (mirror, way) in mirrors.into_iter().zip(&ways) {
        let said = mirror.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))?;
        ensure!(said.trim() == format!("{BYTES} bytes came back"), "{way:?}: {said}");
    }
    for (pod, target) in [("near", "far:80"), ("far", "near:80"), ("near", &format!("{far}:8080"))] {
        let answer = exec(nodes, pod, &["udp", target])?;
        ensure!(answer.ends_with(" ping\n"), "{pod} to {target} by UDP: {answer}");
    }
    let from_outside = format!("{}:{NODE_PORT}", nodes.bed.nodes[0].ip());
    for _ in 0..5 {
        let answer = output(nodes.bed.on_hub(echo()?).args(["get", &from_outside]))?;
        ensure!(answer == "far\n", "{from_outside}: {answer}");
    }
    // The DNS server of the other node.
    let server = dns_server(nodes)?;
    for protocol in ["+notcp", "+tcp"] {
        let mut dig = nodes.bed.nodes[1].on("dig");
        dig.args([&format!("@{server}"), "-p", "1053", protocol, "+tries=1", "+short"]);
        let found = output(dig.arg("far.default.svc.cluster.local"))?;
        let service = nodes.kubectl(&["get", "service", "far", "-o", "jsonpath={.spec.clusterIP}"])?;
        ensure!(found.trim() == service, "{server} answers {found}, and not {service}");
    }
    let log = nodes.kubectl(&["logs", "far"])?;
    ensure!(log.contains("far listens on port 8080"), "the log of the pod: {log}");
    ensure!(nodes.is_ready("node-2")?, "the node is not ready");
    Ok(())
}

/// Returns the address of the first node's DNS server.
fn dns_server(nodes: &Nodes<'_>) -> Result<String> {
    let slice = nodes.json(&["get", "endpointslice", "kube-dns-node-1", "-n", "kube-system"])?;
    let address = slice["endpoints"][0]["addresses"][0].as_str().context("the slice has no address")?;
    Ok(address.to_owned())
}
