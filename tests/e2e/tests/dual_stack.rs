//! A cluster of two stacks: each node has an address of IPv4 and one of IPv6, in an order of its own, and is reached by
//! both, until it comes back with others.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::bed::{DUAL_STACK, HUB_IP, HUB_IPV6, Place, Stack};
use tests_e2e::nodes::Programs;
use tests_e2e::{Bed, Nodes, Process, Snapshot, echo, echo_image, eventually, hawser, output};

/// The pods that node ports lead to: one on the link of the first node, and one behind the router.
const SERVED: [(&str, u16); 2] = [("side", 30081), ("far", 30080)];
/// The node behind the router, which comes back with other addresses.
const LAST: usize = 3;
/// Port of a host outside of the cluster that answers the address of the caller.
const OUTSIDE: u16 = 9090;

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn nodes_of_two_addresses_are_reached_by_both_and_come_back_with_others() -> Result<()> {
    let bed = Bed::with(&[Place::Switch, Place::Switch, Place::Router], Stack::Dual)?;
    let before = bed.nodes[..2].iter().map(|node| Snapshot::take(node)).collect::<Result<Vec<_>>>()?;
    let programs = Programs { hawser: hawser()?, echo_image: echo_image()? };
    let (first, last) = (&bed.nodes[0], &bed.nodes[LAST - 1]);
    let first = [first.ip(), first.ipv6()];
    // IPv6 is the primary family of this node.
    let last = [last.ipv6(), last.ip()];
    let ips = [(LAST, last.join(","))];
    let mut nodes = Nodes::start_joined_at(&bed, programs, &DUAL_STACK, &ips)?;
    if let Err(error) = day(&mut nodes, &first, &last) {
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

fn day(nodes: &mut Nodes<'_>, first: &[String; 2], last: &[String; 2]) -> Result<()> {
    let objects = nodes.bed.dir().join("objects.json");
    fs::write(&objects, objects_of_the_test().to_string())?;
    nodes.kubectl(&["apply", "-f", &objects.display().to_string()])?;
    nodes.kubectl(&["wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s"])?;
    let mut outside = nodes.bed.on_hub(echo()?);
    outside.arg("serve").env("PORT", OUTSIDE.to_string());
    let _outside = Process::start(&mut outside, nodes.bed.dir().join("outside.log"))?;
    tells_addresses(nodes, first, last)?;
    for pod in ["far", "host"] {
        let environment = nodes.kubectl(&["exec", pod, "--", "/echo", "env"])?;
        let line = format!("HOST_IPS={}", last.join(","));
        ensure!(environment.lines().any(|one| one == line), "{pod}: no {line} in {environment}");
    }
    shows_certificates(nodes, first, last)?;
    eventually("the pods to be reached", || reach(nodes, first, last).map(Some))?;
    leave_by(nodes, "near", first)?;
    leave_by(nodes, "far", last)?;

    // Everything of Hawser's on the node dies, and comes back with other addresses in the other order.
    nodes.kill(LAST, "join")?;
    let moved = nodes.bed.nodes[LAST - 1].readdress(7)?;
    nodes.set_ips(LAST, &moved.join(","));
    let pods = containers(nodes)?;
    nodes.run(&nodes.bed.nodes[LAST - 1])?;
    eventually("the Node to have its new addresses", || {
        Ok((addresses(nodes, "node-3")? == moved).then_some(()))
    })?;
    eventually("the node to be reached at its new addresses", || reach(nodes, first, &moved).map(Some))?;
    shows_certificates(nodes, first, &moved)?;
    tells_addresses(nodes, first, &moved)?;
    leave_by(nodes, "far", &moved)?;
    ensure!(containers(nodes)? == pods, "pods were replaced or restarted");
    Ok(())
}

/// A pod on each node, one on the network of the last, and Services of both families.
fn objects_of_the_test() -> Value {
    let pod = |name: &str, node: &str, port: u16, host_network: bool| {
        let host_ips = json!({"fieldRef": {"fieldPath": "status.hostIPs"}});
        let container = json!({
            "name": "main", "image": "hawser.local/echo:1", "args": ["serve"],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": port}, "periodSeconds": 1},
            "env": [
                {"name": "PORT", "value": port.to_string()}, {"name": "HOSTNAME", "value": name},
                {"name": "HOST_IPS", "valueFrom": host_ips},
            ],
        });
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
            "spec": {
                "nodeName": node, "hostNetwork": host_network, "terminationGracePeriodSeconds": 1,
                "containers": [container],
            },
        })
    };
    let service = |(name, node_port): (&str, u16)| {
        let ports = ["TCP", "UDP"].map(|protocol| {
            let name = protocol.to_lowercase();
            json!({"name": name, "protocol": protocol, "port": 80, "targetPort": 8080, "nodePort": node_port})
        });
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "type": "NodePort", "ipFamilyPolicy": "RequireDualStack", "selector": {"app": name},
                "ports": ports,
            },
        })
    };
    let pods = [
        pod("near", "node-1", 8080, false),
        pod("side", "node-2", 8080, false),
        pod("far", "node-3", 8080, false),
        pod("host", "node-3", 8099, true),
    ];
    let items: Vec<_> = pods.into_iter().chain(SERVED.map(service)).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// Returns the addresses of a Node, in its order.
fn addresses(nodes: &Nodes<'_>, node: &str) -> Result<Vec<String>> {
    let node = nodes.json(&["get", "node", node])?;
    let all = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
    let internal = all.iter().filter(|address| address["type"] == "InternalIP");
    Ok(internal.filter_map(|address| address["address"].as_str().map(str::to_owned)).collect())
}

/// Returns the addresses in a list of a pod's status.
fn listed(pod: &Value, list: &str) -> Vec<String> {
    let entries = pod["status"][list].as_array().cloned().unwrap_or_default();
    entries.iter().filter_map(|entry| entry["ip"].as_str().map(str::to_owned)).collect()
}

/// The Nodes, and the pods on their network, tell both addresses in the order of `--node-ip`. Other pods have addresses
/// of both families, that of the node's primary one first.
fn tells_addresses(nodes: &Nodes<'_>, first: &[String; 2], last: &[String; 2]) -> Result<()> {
    for (node, expected) in [("node-1", first), ("node-3", last)] {
        ensure!(addresses(nodes, node)? == expected, "{node}: {:?}", addresses(nodes, node)?);
    }
    let is_ipv6 = |ip: &str| ip.contains(':');
    eventually("the pods to tell their nodes' addresses", || {
        for (name, expected) in [("near", first), ("far", last), ("host", last)] {
            let pod = nodes.json(&["get", "pod", name])?;
            ensure!(listed(&pod, "hostIPs") == expected, "{name}: {:?}", listed(&pod, "hostIPs"));
            ensure!(pod["status"]["hostIP"] == expected[0].as_str());
            let ips = listed(&pod, "podIPs");
            ensure!(ips.len() == 2 && pod["status"]["podIP"] == ips[0].as_str(), "{name}: {ips:?}");
            ensure!(is_ipv6(&ips[0]) != is_ipv6(&ips[1]), "{name}: {ips:?}");
            ensure!(is_ipv6(&ips[0]) == is_ipv6(&expected[0]), "{name}: {ips:?}");
            ensure!(name != "host" || ips == expected, "{name}: {ips:?}");
        }
        Ok(Some(()))
    })
}

/// Every server of a node shows a certificate for both of its addresses: curl verifies it before it asks.
fn shows_certificates(nodes: &Nodes<'_>, first: &[String; 2], last: &[String; 2]) -> Result<()> {
    let authority = nodes.data_dir().join("pki/ca.crt").display().to_string();
    let api = first.iter().map(|ip| (at(ip, 6443), "200"));
    // The node server knows the API server alone.
    let kubelets = first.iter().chain(last).map(|ip| (at(ip, 10250), "401"));
    for (server, status) in api.chain(kubelets) {
        eventually(&format!("{server} to show its certificate"), || {
            let mut curl = nodes.bed.on_hub("curl");
            curl.args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", &authority]);
            let shown = output(curl.args(["--noproxy", "*", &format!("https://{server}/healthz")]))?;
            ensure!(shown == status, "{server}: {shown}");
            Ok(Some(()))
        })?;
    }
    Ok(())
}

/// A host outside reaches each pod through each address of the first and the last node, over TCP and UDP, and so does a
/// pod of the first node directly and by the Service. The API server reaches the last node's kubelet.
fn reach(nodes: &Nodes<'_>, first: &[String; 2], last: &[String; 2]) -> Result<()> {
    for (name, port) in SERVED {
        for (ip, request) in first.iter().chain(last).flat_map(|ip| [(ip, "get"), (ip, "udp")]) {
            let target = at(ip, port);
            let answer = output(nodes.bed.on_hub(echo()?).args([request, &target]));
            let answer = answer.with_context(|| format!("{request} {target}"))?;
            ensure!(answer.trim().starts_with(name), "{request} {target}: {answer}");
        }
        let service = nodes.json(&["get", "service", name])?;
        let ips = service["spec"]["clusterIPs"].as_array().cloned().unwrap_or_default();
        let pod = listed(&nodes.json(&["get", "pod", name])?, "podIPs");
        ensure!(ips.len() == 2 && pod.len() == 2, "{ips:?} {pod:?}");
        let services = ips.iter().filter_map(Value::as_str).map(|ip| at(ip, 80));
        for target in services.chain(pod.iter().map(|ip| at(ip, 8080))) {
            let answer = nodes.kubectl(&["exec", "near", "--", "/echo", "get", &target])?;
            ensure!(answer.trim() == name, "{target}: {answer}");
        }
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

/// Returns the ids of the containers of all pods.
fn containers(nodes: &Nodes<'_>) -> Result<Vec<Value>> {
    let list = nodes.json(&["get", "pods"])?;
    let pods = list["items"].as_array().cloned().unwrap_or_default();
    Ok(pods.iter().map(|pod| pod["status"]["containerStatuses"][0]["containerID"].clone()).collect())
}

/// Returns an address with a port.
fn at(ip: &str, port: u16) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}
