//! Everything that the README shows, on a real containerd with real kubectl and packets; then failures: kill
//! -9 under load, and `down`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests_e2e::lab::NODE_IP;
use tests_e2e::{Cluster, Counts, Lab, Load, Snapshot, echo, eventually, output, root};

const MANIFEST: &str = "tests/data/echo.yaml";

#[test]
#[ignore = "needs root, containerd and kubectl: cargo xtask test"]
fn a_single_node_runs_the_usual_workloads() -> Result<()> {
    let lab = Lab::new()?;
    let before = Snapshot::take(&lab)?;
    let mut cluster = Cluster::up(&lab)?;
    println!("{}", cluster.ready);

    apply_and_see(&cluster)?;
    services_answer(&cluster)?;
    crate::names::resolve(&cluster)?;
    traffic_spreads(&cluster)?;
    nothing_fails_while_replicas_and_images_change(&cluster)?;
    kill_minus_nine_is_not_noticed(&mut cluster)?;
    logs_and_exec(&cluster)?;
    proxies_lead_to_pods(&cluster)?;
    a_running_pod_changes(&cluster)?;
    crate::storage::claims_keep_files(&cluster)?;
    bad_input_changes_nothing(&cluster)?;
    delete_everything(&cluster)?;

    cluster.stop()?;
    cluster.down()?;
    let differences = Snapshot::take(&lab)?.differences(&before);
    ensure!(differences.is_empty(), "down left the machine different:\n{}", differences.join("\n"));
    Ok(())
}

/// Checks kubectl apply, rollout status and get, with the machine's kubectl and a newer one.
fn apply_and_see(cluster: &Cluster<'_>) -> Result<()> {
    let manifest = root().join(MANIFEST).display().to_string();
    cluster.kubectl_args(&["apply", "-f", &manifest])?;
    cluster.kubectl("rollout status deploy/echo -n echo --timeout=120s")?;
    let wide = cluster.kubectl("get nodes,pods,svc,endpointslices -A -o wide")?;
    for expected in
        ["node-1", "Ready", "echo-nodeport", "80:30080/TCP,80:30080/UDP", "Running", "containerd://"]
    {
        ensure!(wide.contains(expected), "kubectl get -o wide lacks {expected:?}:\n{wide}");
    }
    // A second apply changes nothing.
    let again = cluster.kubectl_args(&["apply", "-f", &manifest])?;
    ensure!(
        again.lines().all(|line| line.ends_with("unchanged")),
        "a second apply changed something:\n{again}"
    );
    newer_kubectl(cluster, &manifest)
}

fn newer_kubectl(cluster: &Cluster<'_>, manifest: &str) -> Result<()> {
    let program = std::env::var("HAWSER_KUBECTL").context("HAWSER_KUBECTL is not set: cargo xtask test")?;
    let run = |args: &[&str]| output(cluster.kubectl_command(&program).args(args));
    let again = run(&["apply", "-f", manifest])?;
    ensure!(
        again.lines().all(|line| line.ends_with("unchanged")),
        "apply by 1.36 changed something:\n{again}"
    );
    let explained = run(&["explain", "deployment.spec.strategy"])?;
    ensure!(explained.contains("rollingUpdate"), "kubectl explain: {explained}");
    let described = run(&["describe", "deploy/echo", "-n", "echo"])?;
    ensure!(
        described.contains("3 desired | 3 updated | 3 total | 3 available"),
        "kubectl describe: {described}"
    );
    Ok(())
}

fn cluster_ip(cluster: &Cluster<'_>) -> Result<String> {
    let service = cluster.get("service echo -n echo")?;
    Ok(service["spec"]["clusterIP"].as_str().context("the service has no clusterIP")?.to_owned())
}

fn pods(cluster: &Cluster<'_>) -> Result<Vec<Value>> {
    Ok(cluster.get("pods -n echo")?["items"].as_array().cloned().unwrap_or_default())
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Checks access from the host, from a pod, and through the node port from another host, by TCP and UDP.
fn services_answer(cluster: &Cluster<'_>) -> Result<()> {
    let (lab, ip) = (cluster.lab, cluster_ip(cluster)?);
    let names: Vec<String> = pods(cluster)?.iter().map(|pod| name_of(pod).to_owned()).collect();
    let is_pod = |answer: &str| names.iter().any(|name| answer.trim().starts_with(name.as_str()));
    let curl = ["-sS", "--max-time", "5"];
    // A rollout ends when the pods are ready; endpoints and tables follow.
    eventually("all pods to be backends", || all_answer(cluster, names.len()))?;

    let host = output(lab.on_node("curl").args(curl).arg(format!("http://{ip}/")))?;
    ensure!(is_pod(&host), "curl from the host answered {host:?}");
    let node_port = output(lab.on_client("curl").args(curl).arg(format!("http://{NODE_IP}:30080/")))?;
    ensure!(is_pod(&node_port), "curl through the node port answered {node_port:?}");
    let datagram = output(lab.on_node(echo()?).args(["udp", &format!("{ip}:80")]))?;
    ensure!(is_pod(&datagram), "UDP from the host answered {datagram:?}");
    let datagram = output(lab.on_client(echo()?).args(["udp", &format!("{NODE_IP}:30080")]))?;
    ensure!(is_pod(&datagram), "UDP through the node port answered {datagram:?}");

    let pod = names.first().context("there is no pod")?;
    for request in ["get", "udp"] {
        let target = format!("{ip}:80");
        let answer = cluster.kubectl_args(&["exec", "-n", "echo", pod, "--", "/echo", request, &target])?;
        ensure!(is_pod(&answer), "{request} from a pod answered {answer:?}");
    }
    let tables = output(lab.on_node(tests_e2e::hawser()?).args([
        "proxy",
        "services",
        "--bpf-root",
        &format!("/sys/fs/bpf/{}", lab.id),
    ]))?;
    ensure!(tables.contains(&ip) && tables.contains("echo/echo"), "hawser proxy services: {tables}");
    Ok(())
}

/// Returns `Some` if this many different pods answer to a series of requests.
fn all_answer(cluster: &Cluster<'_>, pods: usize) -> Result<Option<()>> {
    let target = format!("{}:80", cluster_ip(cluster)?);
    let mut answers = BTreeSet::new();
    for _ in 0..20 {
        answers.insert(output(cluster.lab.on_node(echo()?).args(["get", &target]))?);
    }
    Ok((answers.len() == pods).then_some(()))
}

/// Checks that each of the three pods gets its share: Pearson's chi-square with two degrees of freedom, at a
/// level that one run in a million exceeds by chance.
fn traffic_spreads(cluster: &Cluster<'_>) -> Result<()> {
    let target = format!("{}:80", cluster_ip(cluster)?);
    let mut answers: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..300 {
        let answer = output(cluster.lab.on_node(echo()?).args(["get", &target]))?;
        *answers.entry(answer.trim().to_owned()).or_default() += 1;
    }
    ensure!(answers.len() == 3, "300 requests reached {answers:?}");
    let chi_square: f64 = answers.values().map(|&n| (f64::from(n) - 100.0).powi(2) / 100.0).sum();
    println!("spread over three backends: {answers:?}, chi-square {chi_square:.2}");
    ensure!(chi_square < 27.6, "uneven: {answers:?}, chi-square {chi_square:.2}");
    Ok(())
}

/// Checks that errors are clear and nothing is stored.
fn bad_input_changes_nothing(cluster: &Cluster<'_>) -> Result<()> {
    let cases = [
        (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: bad, namespace: echo}\nspec: {replicas: 1}\n",
            "spec.selector",
        ),
        (
            "apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: echo}\nspec: {ports: [{port: 70000}]}\n",
            "spec.ports[0].port",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad, namespace: echo}\ndatum: {}\n",
            "unknown field",
        ),
        ("apiVersion: v1\nkind: Nonsense\nmetadata: {name: bad, namespace: echo}\n", "no matches for kind"),
    ];
    for (text, expected) in cases {
        let file = cluster.lab.dir().join("bad.yaml");
        std::fs::write(&file, text)?;
        let error = cluster.kubectl_args(&["apply", "-f", &file.display().to_string()]).err();
        let error = error.with_context(|| format!("accepted:\n{text}"))?.to_string();
        ensure!(error.contains(expected), "the error for\n{text}\nlacks {expected:?}: {error}");
    }
    for kind in ["deployment", "service", "configmap"] {
        let stored = cluster.kubectl(&format!("get {kind} -n echo --ignore-not-found bad"))?;
        ensure!(stored.trim().is_empty(), "a bad {kind} was stored");
    }
    Ok(())
}

/// Applies constant load during scale-up, scale-down and a rolling update.
fn nothing_fails_while_replicas_and_images_change(cluster: &Cluster<'_>) -> Result<()> {
    let target = format!("{}:80", cluster_ip(cluster)?);
    let load = Load::start(cluster.lab.on_node(echo()?).args(["load", &target]))?;
    cluster.kubectl("scale deploy/echo -n echo --replicas=10")?;
    cluster.kubectl("rollout status deploy/echo -n echo --timeout=120s")?;
    let ready = eventually("ten endpoints", || {
        let ready = ready_endpoints(cluster)?;
        Ok((ready == 10).then_some(ready))
    })?;
    cluster.kubectl("scale deploy/echo -n echo --replicas=4")?;
    cluster.kubectl("rollout status deploy/echo -n echo --timeout=120s")?;
    eventually("four pods", || Ok((pods(cluster)?.len() == 4).then_some(())))?;
    cluster.kubectl("set env deploy/echo -n echo ROUND=2")?;
    cluster.kubectl("rollout status deploy/echo -n echo --timeout=120s")?;
    let counts = load.finish()?;
    report("scale-up, scale-down, rolling update", &counts);
    ensure!(ready == 10 && counts.ok > 100, "the load did little: {counts:?}");
    ensure!(counts.failed == 0, "requests failed: {counts:?}");
    cluster.kubectl("rollout undo deploy/echo -n echo")?;
    cluster.kubectl("rollout status deploy/echo -n echo --timeout=120s")?;
    Ok(())
}

fn ready_endpoints(cluster: &Cluster<'_>) -> Result<usize> {
    let slices = cluster.get("endpointslices -n echo -l kubernetes.io/service-name=echo")?;
    let empty = Vec::new();
    Ok(slices["items"]
        .as_array()
        .unwrap_or(&empty)
        .iter()
        .flat_map(|slice| slice["endpoints"].as_array().unwrap_or(&empty))
        .filter(|endpoint| endpoint["conditions"]["ready"] == true)
        .count())
}

/// Kills the whole `hawser` process: no established connection drops, no new one fails, no container
/// restarts, and acknowledged writes are kept.
fn kill_minus_nine_is_not_noticed(cluster: &mut Cluster<'_>) -> Result<()> {
    let target = format!("{}:80", cluster_ip(cluster)?);
    eventually("the old pods to be gone", || Ok((pods(cluster)?.len() == 4).then_some(())))?;
    let before = containers(cluster)?;
    cluster.kubectl("create configmap acknowledged -n echo --from-literal=a=b")?;
    let load = Load::start(cluster.lab.on_node(echo()?).args(["load", &target]))?;
    let held = Load::start(cluster.lab.on_node(echo()?).args(["hold", &target]))?;
    let outside = Load::start(cluster.lab.on_client(echo()?).args(["hold", &format!("{NODE_IP}:30080")]))?;
    std::thread::sleep(std::time::Duration::from_millis(500));
    cluster.kill()?;
    std::thread::sleep(std::time::Duration::from_millis(1500));
    cluster.start()?;
    cluster.kubectl("scale deploy/echo -n echo --replicas=5")?;
    cluster.kubectl("rollout status deploy/echo -n echo --timeout=120s")?;
    for (what, load) in
        [("new connections", load), ("held on the host", held), ("held from outside", outside)]
    {
        let counts = load.finish()?;
        report(&format!("kill -9, {what}"), &counts);
        ensure!(counts.failed == 0 && counts.ok > 10, "kill -9, {what}: {counts:?}");
    }
    let stored = cluster.get("configmap acknowledged -n echo")?;
    ensure!(stored["data"]["a"] == "b", "an acknowledged write is lost");
    let after = containers(cluster)?;
    for (pod, id) in &before {
        ensure!(after.get(pod) == Some(id), "the container of {pod} was replaced: {before:?} {after:?}");
    }
    Ok(())
}

/// Returns container ids by pod.
fn containers(cluster: &Cluster<'_>) -> Result<BTreeMap<String, String>> {
    Ok(pods(cluster)?
        .iter()
        .map(|pod| {
            let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
            (name_of(pod).to_owned(), id.to_owned())
        })
        .collect())
}

fn report(what: &str, counts: &Counts) {
    println!(
        "{what}: {} requests over {} pods, {} failed {:?}",
        counts.ok,
        counts.answers.len(),
        counts.failed,
        counts.failures
    );
}

/// Reads a log of the machine through the API server, and no file beside the logs.
fn node_logs(cluster: &Cluster<'_>) -> Result<()> {
    const LOGS: &str = "/api/v1/nodes/node-1/proxy/logs";
    const TEXT: &str = "a line of a test";
    // Removed when it goes out of scope.
    let file = tempfile::Builder::new().prefix("hawser").suffix(".log").tempfile_in("/var/log")?;
    std::fs::write(file.path(), TEXT)?;
    let name = file.path().file_name().and_then(|name| name.to_str()).context("a name")?;
    let listed = cluster.kubectl(&format!("get --raw {LOGS}/"))?;
    ensure!(listed.contains("<pre>"), "the list of the node's logs: {listed}");
    ensure!(listed.contains(&format!("<a href=\"{name}\">")), "{name} is not listed in {listed}");
    let read = cluster.kubectl(&format!("get --raw {LOGS}/{name}"))?;
    ensure!(read.trim() == TEXT, "{name} is not what was written: {read}");
    let out = cluster.kubectl(&format!("get --raw {LOGS}/%2e%2e/%2e%2e/etc/passwd"));
    ensure!(out.is_err(), "a file beside the logs: {out:?}");
    Ok(())
}

fn logs_and_exec(cluster: &Cluster<'_>) -> Result<()> {
    let logs = cluster.kubectl("logs -n echo deploy/echo")?;
    ensure!(logs.contains("listens on port 8080"), "kubectl logs: {logs}");
    node_logs(cluster)?;
    let pods = pods(cluster)?;
    let pod = name_of(pods.first().context("there is no pod")?).to_owned();
    let env = cluster.kubectl(&format!("exec -n echo {pod} -- /echo env"))?;
    ensure!(
        env.contains("ECHO_SERVICE_HOST=") && env.contains("KUBERNETES_SERVICE_HOST="),
        "kubectl exec: {env}"
    );
    let error = cluster.kubectl(&format!("exec -n echo {pod} -- /echo exit 7")).err();
    let error = error.context("exit code 7 was taken for success")?.to_string();
    ensure!(error.contains("exit code 7"), "kubectl exec of a failing program: {error}");
    Ok(())
}

/// Checks `kubectl get --raw` of the proxies of a pod, of a Service, and of the node.
fn proxies_lead_to_pods(cluster: &Cluster<'_>) -> Result<()> {
    let pods = pods(cluster)?;
    let names: Vec<&str> = pods.iter().map(name_of).collect();
    let first = names.first().context("there is no pod")?;
    let raw = |path: &str| cluster.kubectl_args(&["get", "--raw", path]);
    for pod in [format!("{first}:8080"), format!("http:{first}:http"), (*first).to_owned()] {
        let answer = raw(&format!("/api/v1/namespaces/echo/pods/{pod}/proxy/"))?;
        ensure!(answer.trim().starts_with(first), "the proxy of pod {pod} answered {answer:?}");
    }
    for service in ["echo:http", "http:echo:80"] {
        let answer = raw(&format!("/api/v1/namespaces/echo/services/{service}/proxy/?from=kubectl"))?;
        ensure!(
            names.iter().any(|name| answer.trim().starts_with(name)),
            "the proxy of service {service} answered {answer:?}"
        );
    }
    let node = pods[0]["spec"]["nodeName"].as_str().context("the pod has no node")?;
    let list: Value = serde_json::from_str(&raw(&format!("/api/v1/nodes/{node}/proxy/pods"))?)?;
    let listed = list["items"].as_array().into_iter().flatten().any(|pod| name_of(pod) == *first);
    ensure!(listed, "the node does not know of {first}: {list:#}");
    let error = raw("/api/v1/namespaces/echo/services/echo:81/proxy/").err();
    let error = error.context("a port that does not exist was reached")?.to_string();
    ensure!(error.contains("no service port 81 found"), "the proxy of a missing port: {error}");
    Ok(())
}

/// A resize and an ephemeral container change the pod's generation and status, and restart nothing.
fn a_running_pod_changes(cluster: &Cluster<'_>) -> Result<()> {
    let program = std::env::var("HAWSER_KUBECTL").context("HAWSER_KUBECTL is not set: cargo xtask test")?;
    let name = name_of(pods(cluster)?.first().context("there is no pod")?).to_owned();
    let pod = || cluster.get(&format!("pod -n echo {name}"));
    let before = pod()?;
    let patch = |subresource: &str, patch: &Value| {
        let (subresource, patch) = (format!("--subresource={subresource}"), patch.to_string());
        let arguments = ["patch", "pod", "-n", "echo", &name, &subresource, "-p", &patch];
        output(cluster.kubectl_command(&program).args(arguments))
    };
    let up_to_date = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let resizing = |c: &Value| c["type"].as_str().is_some_and(|kind| kind.starts_with("PodResize"));
        pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
            && !conditions.iter().any(resizing)
    };
    let resources = json!({"requests": {"cpu": "20m", "memory": "16Mi"}, "limits": {"memory": "96Mi"}});
    patch("resize", &json!({"spec": {"containers": [{"name": "echo", "resources": resources}]}}))?;
    let resized = eventually("the pod is resized", || Ok(Some(pod()?).filter(up_to_date)))?;
    let (status, first) =
        (&resized["status"]["containerStatuses"][0], &before["status"]["containerStatuses"][0]);
    ensure!(status["resources"] == resources, "resources in the status: {status:#}");
    ensure!(status["allocatedResources"] == resources["requests"], "in the status: {status:#}");
    ensure!(status["containerID"] == first["containerID"], "the container was restarted: {status:#}");

    let debugger = json!({"name": "debugger", "image": "hawser.local/echo:1"});
    patch("ephemeralcontainers", &json!({"spec": {"ephemeralContainers": [debugger]}}))?;
    let running = |pod: &Value| {
        let status = &pod["status"]["ephemeralContainerStatuses"][0]["state"];
        up_to_date(pod) && (status["running"].is_object() || status["terminated"].is_object())
    };
    let debugged = eventually("the debugger has started", || Ok(Some(pod()?).filter(running)))?;
    let generation = |pod: &Value| pod["metadata"]["generation"].as_i64().unwrap_or_default();
    ensure!(
        generation(&debugged) == generation(&before) + 2,
        "the generation goes up by one with each change: {:#}",
        debugged["metadata"]
    );
    Ok(())
}

fn delete_everything(cluster: &Cluster<'_>) -> Result<()> {
    let ip = cluster_ip(cluster)?;
    cluster.kubectl("scale deploy/echo -n echo --replicas=0")?;
    eventually("no ready endpoint", || Ok((ready_endpoints(cluster)? == 0).then_some(())))?;
    // A Service without endpoints refuses connections immediately.
    eventually("the connection to be refused", || {
        let refused = output(cluster.lab.on_node(echo()?).args(["get", &format!("{ip}:80")])).err();
        Ok(refused.filter(|error| error.to_string().contains("refused")))
    })?;
    let manifest = root().join(MANIFEST).display().to_string();
    cluster.kubectl_args(&["delete", "-f", &manifest])?;
    let left = cluster.kubectl("get all -n echo")?;
    ensure!(left.trim().is_empty(), "delete left: {left}");
    let namespace = cluster.kubectl("get namespace echo --ignore-not-found")?;
    ensure!(namespace.trim().is_empty(), "the namespace is still there: {namespace}");
    Ok(())
}
