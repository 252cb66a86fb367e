//! The cluster's names, from pods and from the node, through the address of the DNS Service.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::lab::NODE_IP;
use tests_e2e::{Cluster, eventually, output};

/// The port of the node that leads to the pod.
const HOST_PORT: u16 = 18_080;

/// The address of the DNS Service.
const SERVER: &str = "10.96.0.10";

/// Checks names of Services, of a headless Service's pod, SRV records and the DNS Service itself. Leaves
/// nothing behind.
pub fn resolve(cluster: &Cluster<'_>) -> Result<()> {
    let file = cluster.lab.dir().join("names.json");
    std::fs::write(&file, objects().to_string()).context("cannot write the manifest")?;
    let file = file.display().to_string();
    cluster.kubectl_args(&["apply", "-f", &file])?;
    cluster.kubectl("wait pod/named -n echo --for=condition=Ready --timeout=60s")?;
    from_a_pod(cluster)?;
    from_the_node(cluster)?;
    by_the_host_port(cluster)?;
    the_server_is_a_service(cluster)?;
    cluster.kubectl_args(&["delete", "-f", &file])?;
    eventually("the name of the deleted Service to go", || {
        let left = dig(cluster, &["+short", "members.echo.svc.cluster.local", "A"])?;
        Ok(left.is_empty().then_some(()))
    })
}

/// A pod with a host name behind a headless Service, and an alias.
fn objects() -> Value {
    let metadata = |name: &str| json!({"namespace": "echo", "name": name, "labels": {"app": name}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata("named"),
        "spec": {
            "hostname": "first", "subdomain": "members", "setHostnameAsFQDN": true,
            "terminationGracePeriodSeconds": 1,
            "dnsConfig": {"options": [{"name": "timeout", "value": "2"}], "searches": ["svc.example"]},
            "containers": [{
                "name": "echo", "image": "hawser.local/echo:1",
                "ports": [{"containerPort": 8080, "hostPort": HOST_PORT}],
            }],
        },
    });
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080}]);
    let members = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata("members"),
        "spec": {"clusterIP": "None", "selector": {"app": "named"}, "ports": ports},
    });
    let alias = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata("alias"),
        "spec": {"type": "ExternalName", "externalName": "echo.echo.svc.cluster.local"},
    });
    json!({"apiVersion": "v1", "kind": "List", "items": [pod, members, alias]})
}

/// The pod answers at its host port, to the node and to another host.
fn by_the_host_port(cluster: &Cluster<'_>) -> Result<()> {
    let curl = ["-sS", "--fail", "--max-time", "10"];
    for address in ["127.0.0.1", NODE_IP] {
        let url = format!("http://{address}:{HOST_PORT}/");
        let answer = output(cluster.lab.on_node("curl").args(curl).arg(url))?;
        ensure!(answer.starts_with("first"), "the host port at {address} answered {answer:?}");
    }
    let url = format!("http://{NODE_IP}:{HOST_PORT}/");
    let answer = output(cluster.lab.on_client("curl").args(curl).arg(url))?;
    ensure!(answer.starts_with("first"), "the host port answered another host with {answer:?}");
    Ok(())
}

fn in_pod(cluster: &Cluster<'_>, arguments: &[&str]) -> Result<String> {
    let exec = ["exec", "-n", "echo", "named", "--", "/echo"];
    Ok(cluster.kubectl_args(&[&exec, arguments].concat())?.trim().to_owned())
}

fn from_a_pod(cluster: &Cluster<'_>) -> Result<()> {
    let ip = |name: &str| -> Result<String> {
        let service = cluster.get(&format!("service {name}"))?;
        Ok(service["spec"]["clusterIP"].as_str().context("the Service has no address")?.to_owned())
    };
    let (kubernetes, echo) = (ip("kubernetes -n default")?, ip("echo -n echo")?);
    let pod = cluster.get("pod named -n echo")?;
    let pod = pod["status"]["podIP"].as_str().context("the pod has no address")?;
    for (name, expected) in [
        ("kubernetes.default:443", format!("{kubernetes}:443")),
        ("kubernetes.default.svc.cluster.local:443", format!("{kubernetes}:443")),
        // A Service of the own namespace, by its name alone.
        ("echo:80", format!("{echo}:80")),
        ("alias:80", format!("{echo}:80")),
        ("members:80", format!("{pod}:80")),
        ("first.members:80", format!("{pod}:80")),
    ] {
        let found = eventually(name, || in_pod(cluster, &["resolve", name]).map(Some))?;
        ensure!(found == expected, "{name} is {found} in a pod, not {expected}");
    }
    let answer = in_pod(cluster, &["get", "echo:80"])?;
    ensure!(answer.starts_with("echo-"), "a request by name answered {answer:?}");
    Ok(())
}

/// Asks through the Service's address, from the node.
fn dig(cluster: &Cluster<'_>, arguments: &[&str]) -> Result<String> {
    let server = format!("@{SERVER}");
    let text = output(cluster.lab.on_node("dig").arg(server).args(["+tries=2", "+time=5"]).args(arguments))?;
    Ok(text.trim().to_owned())
}

fn from_the_node(cluster: &Cluster<'_>) -> Result<()> {
    let pod = cluster.get("pod named -n echo")?;
    let pod = pod["status"]["podIP"].as_str().context("the pod has no address")?.to_owned();
    let reversed: Vec<&str> = pod.rsplit('.').collect();
    let member = "first.members.echo.svc.cluster.local";
    for (arguments, expected) in [
        (vec![member, "A"], pod.clone()),
        (vec!["+tcp", member, "A"], pod.clone()),
        (vec!["_http._tcp.members.echo.svc.cluster.local", "SRV"], format!("0 100 8080 {member}.")),
        (vec![&format!("{}.in-addr.arpa", reversed.join(".")), "PTR"], format!("{member}.")),
        (vec!["alias.echo.svc.cluster.local", "CNAME"], "echo.echo.svc.cluster.local.".to_owned()),
        (vec!["dns-version.cluster.local", "TXT"], "\"1.1.0\"".to_owned()),
        (vec!["ns.dns.cluster.local", "A"], SERVER.to_owned()),
    ] {
        let found = dig(cluster, &[&["+short"], &*arguments].concat())?;
        ensure!(found == expected, "{arguments:?} is {found:?}, not {expected:?}");
    }
    let missing = dig(cluster, &["none.echo.svc.cluster.local", "A"])?;
    ensure!(missing.contains("status: NXDOMAIN"), "a name that does not exist: {missing}");
    Ok(())
}

fn the_server_is_a_service(cluster: &Cluster<'_>) -> Result<()> {
    let slice = cluster.get("endpointslice kube-dns-node-1 -n kube-system")?;
    let endpoint = &slice["endpoints"][0];
    ensure!(
        endpoint["conditions"]["ready"] == true && endpoint["nodeName"] == "node-1",
        "the server's EndpointSlice: {slice:#}"
    );
    let address = endpoint["addresses"][0].as_str().context("the slice has no address")?;
    let metrics = format!("http://{address}:9153/metrics");
    let page = output(cluster.lab.on_node("curl").args(["-sS", "--max-time", "5", &metrics]))?;
    for family in ["coredns_dns_requests_total{", "coredns_dns_responses_total{", "coredns_cache_entries{"] {
        ensure!(page.contains(family), "the page of metrics lacks {family}:\n{page}");
    }
    // Another host is no client of the cluster's.
    let question =
        ["+tries=1", "+time=1", &format!("@{}", tests_e2e::lab::NODE_IP), "-p", "1053", "cluster.local"];
    let refused = output(cluster.lab.on_client("dig").args(question)).is_err();
    ensure!(refused, "another host was answered");
    Ok(())
}
