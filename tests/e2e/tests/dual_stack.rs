//! A cluster of two stacks: each node has an address of IPv4 and one of IPv6, in an order of its own, and is reached by
//! both, until it comes back with others.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::bed::{DUAL_STACK, HUB_IP, HUB_IPV6, Place, Stack};
use tests_e2e::nodes::Programs;
use tests_e2e::{Bed, Nodes, Process, Snapshot, echo, echo_image, eventually, hawser, output};

const NODE_PORT: u16 = 30080;
/// Port of a host outside of the cluster that answers the address of the caller.
const OUTSIDE: u16 = 9090;

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn nodes_of_two_addresses_are_reached_by_both_and_come_back_with_others() -> Result<()> {
    let bed = Bed::with(&[Place::Switch, Place::Router], Stack::Dual)?;
    let before = Snapshot::take(&bed.nodes[0])?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let (first, second) = (&bed.nodes[0], &bed.nodes[1]);
    let first = [first.ip(), first.ipv6()];
    // IPv6 is the primary family of this node.
    let second = [second.ipv6(), second.ip()];
    let ips = [(2, second.join(","))];
    let mut nodes = Nodes::start_joined_at(&bed, programs, &DUAL_STACK, &ips)?;
    if let Err(error) = day(&mut nodes, &first, &second) {
        println!("{}", nodes.logs());
        return Err(error);
    }
    nodes.down()?;
    let differences = Snapshot::take(&bed.nodes[0])?.differences(&before);
    ensure!(differences.is_empty(), "node-1 is different:\n{}", differences.join("\n"));
    Ok(())
}

fn day(nodes: &mut Nodes<'_>, first: &[String; 2], second: &[String; 2]) -> Result<()> {
    let objects = nodes.bed.dir().join("objects.json");
    fs::write(&objects, objects_of_the_test().to_string())?;
    nodes.kubectl(&["apply", "-f", &objects.display().to_string()])?;
    nodes.kubectl(&["wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s"])?;
    let mut outside = nodes.bed.on_hub(echo()?);
    outside.arg("serve").env("PORT", OUTSIDE.to_string());
    let _outside = Process::start(&mut outside, nodes.bed.dir().join("outside.log"))?;
    tells_addresses(nodes, first, second)?;
    for pod in ["far", "host"] {
        let environment = nodes.kubectl(&["exec", pod, "--", "/echo", "env"])?;
        let line = format!("HOST_IPS={}", second.join(","));
        ensure!(environment.lines().any(|one| one == line), "{pod}: no {line} in {environment}");
    }
    shows_certificates(nodes, first, second)?;
    reach(nodes, first, second)?;
    leave_by(nodes, "near", first)?;
    leave_by(nodes, "far", second)?;

    // Everything of the node dies, and it comes back with other addresses in the other order.
    nodes.kill(2, "join")?;
    let moved = nodes.bed.nodes[1].readdress(7)?;
    nodes.set_ips(2, &moved.join(","));
    let pods = pods(nodes)?;
    nodes.run(&nodes.bed.nodes[1])?;
    eventually("the Node to have its new addresses", || {
        Ok((addresses(nodes, "node-2")? == moved).then_some(()))
    })?;
    eventually("the node to be reached at its new addresses", || reach(nodes, first, &moved).map(Some))?;
    shows_certificates(nodes, first, &moved)?;
    tells_addresses(nodes, first, &moved)?;
    leave_by(nodes, "far", &moved)?;
    ensure!(self::pods(nodes)? == pods, "pods were replaced or restarted");
    Ok(())
}

/// A pod on each node, one on the network of the second, and a Service of both families in front of the second's.
fn objects_of_the_test() -> Value {
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let pod = |name: &str, node: &str, port: u16, host_network: bool| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1, "hostNetwork": host_network,
                "containers": [{
                    "name": "main", "image": "hawser.local/echo:1", "args": ["serve"],
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": port}, "periodSeconds": 1},
                    "env": [
                        {"name": "PORT", "value": port.to_string()},
                        {"name": "HOST_IPS", "valueFrom": field("status.hostIPs")},
                    ],
                }],
            },
        })
    };
    let port = |name: &str, protocol: &str| json!({"name": name, "port": 80, "targetPort": 8080, "nodePort": NODE_PORT, "protocol": protocol});
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "far", "namespace": "default"},
        "spec": {
            "type": "NodePort", "ipFamilyPolicy": "RequireDualStack", "selector": {"app": "far"},
            "ports": [port("tcp", "TCP"), port("udp", "UDP")],
        },
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [
        pod("near", "node-1", 8080, false), pod("far", "node-2", 8080, false), pod("host", "node-2", 8099, true), service,
    ]})
}

/// Returns the addresses of a Node, in its order.
fn addresses(nodes: &Nodes<'_>, node: &str) -> Result<Vec<String>> {
    let node = nodes.json(&["get", "node", node])?;
    let all = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
    let internal = all.iter().filter(|address| address["type"] == "InternalIP");
    Ok(internal.filter_map(|address| address["address"].as_str().map(str::to_owned)).collect())
}

/// The addresses in a list of a pod's status.
fn listed(pod: &Value, list: &str) -> Vec<String> {
    let entries = pod["status"][list].as_array().cloned().unwrap_or_default();
    entries.iter().filter_map(|entry| entry["ip"].as_str().map(str::to_owned)).collect()
}

/// The Nodes, and the pods on their network, tell both addresses in the order of `--node-ip`; so do the environments of
/// pods. Other pods have addresses of both families, that of the node's primary one first.
fn tells_addresses(nodes: &Nodes<'_>, first: &[String; 2], second: &[String; 2]) -> Result<()> {
    for (node, expected) in [("node-1", first), ("node-2", second)] {
        ensure!(addresses(nodes, node)? == expected, "{node}: {:?}", addresses(nodes, node)?);
    }
    eventually("the pods to tell their nodes' addresses", || {
        for (name, expected) in [("near", first), ("far", second), ("host", second)] {
            let pod = nodes.json(&["get", "pod", name])?;
            ensure!(listed(&pod, "hostIPs") == expected, "{name}: {:?}", listed(&pod, "hostIPs"));
            ensure!(pod["status"]["hostIP"] == expected[0].as_str());
            let ips = listed(&pod, "podIPs");
            ensure!(ips.len() == 2 && pod["status"]["podIP"] == ips[0].as_str(), "{name}: {ips:?}");
            let is_ipv6 = |ip: &str| ip.contains(':');
            ensure!(is_ipv6(&ips[0]) == is_ipv6(&expected[0]), "{name}: {ips:?}");
            ensure!(name != "host" || ips == expected, "{name}: {ips:?}");
        }
        Ok(Some(()))
    })
}

/// Every server of a node shows a certificate for both of its addresses: curl verifies it before it asks.
fn shows_certificates(nodes: &Nodes<'_>, first: &[String; 2], second: &[String; 2]) -> Result<()> {
    let authority = nodes.data_dir().join("pki/ca.crt").display().to_string();
    let api = first.iter().map(|ip| (at(ip, 6443), "200"));
    // The node server knows the API server alone.
    let kubelets = first.iter().chain(second).map(|ip| (at(ip, 10250), "401"));
    for (server, status) in api.chain(kubelets) {
        eventually(&format!("{server} to show its certificate"), || {
            let mut curl = nodes.bed.on_hub("curl");
            curl.args([
                "-sS",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "--cacert",
                &authority,
                "--noproxy",
                "*",
            ]);
            let shown = output(curl.arg(format!("https://{server}/healthz")))?;
            ensure!(shown == status, "{server}: {shown}");
            Ok(Some(()))
        })?;
    }
    Ok(())
}

/// A host outside reaches the pod of the second node through each address of both nodes, over TCP and UDP, and so does
/// a pod of the first node by the Service. The API server reaches both kubelets.
fn reach(nodes: &Nodes<'_>, first: &[String; 2], second: &[String; 2]) -> Result<()> {
    for (ip, request) in first.iter().chain(second).flat_map(|ip| [(ip, "get"), (ip, "udp")]) {
        let target = at(ip, NODE_PORT);
        let answer = output(nodes.bed.on_hub(echo()?).args([request, &target]))?;
        ensure!(answer.trim().starts_with("far"), "{request} {target}: {answer}");
    }
    let service = nodes.json(&["get", "service", "far"])?;
    let ips = service["spec"]["clusterIPs"].as_array().cloned().unwrap_or_default();
    let far = listed(&nodes.json(&["get", "pod", "far"])?, "podIPs");
    ensure!(ips.len() == 2 && far.len() == 2, "{ips:?} {far:?}");
    let services = ips.iter().filter_map(Value::as_str).map(|ip| at(ip, 80));
    for target in services.chain(far.iter().map(|ip| at(ip, 8080))) {
        let answer = nodes.kubectl(&["exec", "near", "--", "/echo", "get", &target])?;
        ensure!(answer.trim() == "far", "{target}: {answer}");
    }
    nodes.kubectl(&["exec", "far", "--", "/echo", "env"]).map(drop)
}

/// Packets of a pod that leave the cluster have the address of its node, of their family.
fn leave_by(nodes: &Nodes<'_>, pod: &str, addresses: &[String; 2]) -> Result<()> {
    for outside in [HUB_IP, HUB_IPV6] {
        let target = format!("{}/client", at(outside, OUTSIDE));
        let seen = nodes.kubectl(&["exec", pod, "--", "/echo", "get", &target])?;
        let source = seen.trim().rsplit_once(':').context("no port")?.0.trim_matches(['[', ']']).to_owned();
        ensure!(addresses.contains(&source), "{pod} to {outside} comes from {source}");
        ensure!(source.contains(':') == outside.contains(':'), "{pod} to {outside} comes from {source}");
    }
    Ok(())
}

/// The ids of the containers of all pods.
fn pods(nodes: &Nodes<'_>) -> Result<Vec<Value>> {
    let list = nodes.json(&["get", "pods"])?;
    let pods = list["items"].as_array().cloned().unwrap_or_default();
    Ok(pods.iter().map(|pod| pod["status"]["containerStatuses"][0]["containerID"].clone()).collect())
}

/// Returns an address with a port.
fn at(ip: &str, port: u16) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}
