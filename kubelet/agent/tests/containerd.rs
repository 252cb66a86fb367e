//! A whole kubelet with a real containerd, in network and mount namespaces and below a cgroup of its own.
//! Everything is taken down at the end, also when a test fails.

use std::{fs, path::Path, process::Command, time::Duration};

use crate::bench::{Bench, Kubelet, find, in_namespaces, running_container, shell, start_containerd};
use crate::support::{Api, condition};
use base64::Engine;
use kubelet_agent::containerd::Containerd;
use kubelet_cri::{CriRuntime, Runtime};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Returns a pod that uses most of the supported features.
fn rich_pod() -> Value {
    let mut container = shell(
        "echo $GREETING $SECRET $NAME; echo again; trap 'echo bye; exit 0' TERM; echo up > /memory/ready; \
         while :; do sleep 0.1; done",
    );
    container["env"] = json!([
        {"name": "WHO", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "who"}}},
        {"name": "GREETING", "value": "hello-$(WHO)"},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "word"}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]);
    container["volumeMounts"] = json!([
        {"name": "config", "mountPath": "/config"}, {"name": "memory", "mountPath": "/memory"},
        {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true},
        {"name": "memory", "mountPath": "/sub", "subPath": "a/b"},
    ]);
    container["readinessProbe"] = json!({"exec": {"command": ["cat", "/memory/ready"]}, "periodSeconds": 1});
    container["resources"] = json!({"limits": {"memory": "64Mi", "cpu": "500m"}});
    container["securityContext"] =
        json!({"runAsUser": 1000, "runAsGroup": 2000, "allowPrivilegeEscalation": false});
    container["lifecycle"] =
        json!({"postStart": {"exec": {"command": ["sh", "-c", "echo > /memory/hooked"]}}});
    json!({
        "serviceAccountName": "default", "terminationGracePeriodSeconds": 5, "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": "config"}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "token", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}},
        ],
    })
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn pods_on_a_real_containerd() {
    in_namespaces(async |bench: &Bench| story(bench).await);
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn many_pods_at_once_on_a_real_containerd() {
    in_namespaces(async |bench: &Bench| many_pods(bench).await);
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn a_running_pod_is_resized_and_relabelled_on_a_real_containerd() {
    in_namespaces(async |bench: &Bench| changes(bench).await);
}

/// Changes the limits and the files of a container that keeps running.
async fn changes(bench: &Bench) {
    let containerd = start_containerd(bench).await;
    let (api, runtime) = (Api::new(), containerd.runtime());
    let kubelet = bench.kubelet(&api, containerd.runtime()).await;
    let resources = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}});
    let mut container = shell("trap 'exit 0' TERM; while :; do sleep 0.2; done");
    container["resources"] = resources("500m", "64Mi");
    container["volumeMounts"] = json!([{"name": "pod", "mountPath": "/pod"}]);
    let labels = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let volumes = json!([{"name": "pod", "downwardAPI": {"items": labels}}]);
    api.create_pod(
        "p",
        json!({"terminationGracePeriodSeconds": 2, "containers": [container], "volumes": volumes}),
    );
    let first = api.until_ready("p").await;
    let limits = |memory: i64, quota: i64| vec![(memory.to_string(), quota.to_string()); 2];
    assert_eq!(limits_below(bench), limits(64 << 20, 50_000));
    for (generation, cpu, memory, bytes, quota) in
        [(2, "1", "128Mi", 128 << 20, 100_000), (3, "300m", "48Mi", 48 << 20, 30_000)]
    {
        api.change("api/v1/pods", "default", "p", |pod| {
            pod["metadata"]["generation"] = json!(generation);
            pod["metadata"]["labels"] = json!({"generation": generation.to_string()});
            pod["spec"]["containers"][0]["resources"] = resources(cpu, memory);
        });
        let done = |pod: &Value| {
            pod["status"]["observedGeneration"] == generation
                && condition(pod, "PodResizePending").is_empty()
                && condition(pod, "PodResizeInProgress").is_empty()
        };
        let pod = api.until("p", "resized", done).await;
        let (status, before) =
            (&pod["status"]["containerStatuses"][0], &first["status"]["containerStatuses"][0]);
        assert_eq!(status["containerID"], before["containerID"]);
        assert_eq!(status["resources"], resources(cpu, memory));
        assert_eq!(limits_below(bench), limits(bytes, quota));
        let id = running_container(&runtime, "c").await;
        let command = ["cat", "/pod/labels"].map(str::to_owned);
        let wanted = format!("generation=\"{generation}\"");
        let mut seen = Vec::new();
        for _ in 0..40 {
            seen = runtime.exec_sync(&id, &command, Duration::from_secs(5)).await.unwrap().stdout;
            if seen == wanted.as_bytes() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(String::from_utf8_lossy(&seen), wanted);
    }
    api.delete_pod("p", 2);
    api.until_gone("p").await;
    kubelet.stop().await;
}

/// Returns the memory and CPU limits of the only pod and of its only container.
fn limits_below(bench: &Bench) -> Vec<(String, String)> {
    let below = |controller: &str, file: &str| -> Vec<String> {
        let root = Path::new("/sys/fs/cgroup").join(controller).join(bench.cgroup_root.trim_matches('/'));
        let pod = find(&root, "poduid-").remove(0);
        // The sandbox has no limits of its own.
        let all = std::iter::once(pod.clone()).chain(find(&pod, ""));
        let values = all.map(|path| fs::read_to_string(path.join(file)).unwrap().trim().to_owned());
        values.filter(|value| value != "-1" && value.len() < 16).collect()
    };
    let memory = below("memory", "memory.limit_in_bytes");
    memory.into_iter().zip(below("cpu", "cpu.cfs_quota_us")).collect()
}

/// Starts many pods until all are ready, and deletes them until no trace is left.
async fn many_pods(bench: &Bench) {
    const PODS: usize = 24;
    let containerd = start_containerd(bench).await;
    let api = Api::new();
    let kubelet = bench.kubelet(&api, containerd.runtime()).await;
    let name = |index: usize| format!("p{index}");
    let began = Instant::now();
    for index in 0..PODS {
        let script = "trap 'exit 0' TERM; while :; do sleep 0.2; done";
        api.create_pod(
            &name(index),
            json!({"terminationGracePeriodSeconds": 2, "containers": [shell(script)]}),
        );
    }
    for index in 0..PODS {
        api.until_ready(&name(index)).await;
    }
    println!("{PODS} pods ready after {:?}", began.elapsed());
    for index in 0..PODS {
        let pod = api.pod(&name(index));
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
        api.delete_pod(&name(index), 2);
    }
    for index in 0..PODS {
        api.until_gone(&name(index)).await;
    }
    println!("gone after {:?}", began.elapsed());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(containerd.runtime().list_pod_sandboxes(None).await.unwrap(), []);
    assert_eq!(fs::read_dir(bench.path("kubelet/pods")).unwrap().count(), 0);
    kubelet.stop().await;
}

async fn story(bench: &Bench) {
    let containerd = start_containerd(bench).await;
    let api = Api::new();
    api.create(
        "api/v1/configmaps",
        json!({"metadata": {"name": "config", "namespace": "default"}, "data": {"who": "you"}}),
    );
    let word = base64::engine::general_purpose::STANDARD.encode("sesame");
    api.create(
        "api/v1/secrets",
        json!({"metadata": {"name": "secret", "namespace": "default"}, "data": {"word": word}}),
    );
    let kubelet = bench.kubelet(&api, containerd.runtime()).await;
    let runtime = containerd.runtime();

    api.create_pod("rich", rich_pod());
    api.create_pod(
        "failing",
        json!({"restartPolicy": "Never", "containers":
        [shell("echo some words > /dev/termination-log; exit 7")]}),
    );
    let pod = api.until_ready("rich").await;
    assert_eq!(pod["status"]["podIP"], "10.88.0.2");
    let failed = api.until("failing", "failed", |pod| pod["status"]["phase"] == "Failed").await;
    let end = &failed["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!((&end["exitCode"], &end["message"]), (&json!(7), &json!("some words\n")));
    let node = api.get("api/v1/nodes", "", "n1").unwrap();
    assert_eq!(condition(&node, "Ready"), "True", "{node:#}");

    inside(bench, &kubelet, &api, &runtime).await;
    served(bench, &kubelet).await;

    // A new kubelet adopts everything as it is.
    kubelet.stop().await;
    let states = api.history("rich").len();
    let kubelet = bench.kubelet(&api, containerd.runtime()).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    for state in &api.history("rich")[states..] {
        assert_eq!(condition(state, "Ready"), "True", "{state:#}");
        assert_eq!(
            state["status"]["containerStatuses"][0]["containerID"],
            pod["status"]["containerStatuses"][0]["containerID"]
        );
    }

    survive_containerd(bench, &containerd, &pod).await;

    // A followed log is delivered to its end.
    let follow = bench.get(kubelet.port, "/containerLogs/default/rich/c?follow=true&tailLines=1", true);
    let delete = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        api.delete_pod("rich", 5);
        api.delete_pod("failing", 5);
        api.until_gone("rich").await;
    };
    let ((_, followed), ()) = tokio::join!(follow, delete);
    assert_eq!(followed, "again\nbye\n");
    api.until_gone("failing").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(runtime.list_pod_sandboxes(None).await.unwrap(), []);
    let cgroups = Path::new("/sys/fs/cgroup/memory").join(bench.cgroup_root.trim_matches('/'));
    assert_eq!(find(&cgroups, "pod"), find(&cgroups, "kubepods"), "no pod has left its cgroup");
    assert_eq!(fs::read_dir(bench.path("kubelet/pods")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(bench.path("logs")).unwrap().count(), 0);
    kubelet.stop().await;
}

/// Checks what the container sees.
async fn inside(bench: &Bench, kubelet: &Kubelet, api: &Api, runtime: &CriRuntime) {
    let id = running_container(runtime, "c").await;
    let run = async |script: &str| {
        let command = ["sh", "-c", script].map(str::to_owned);
        let output = runtime.exec_sync(&id, &command, Duration::from_secs(5)).await.unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned()
    };
    assert_eq!(run("id -u; id -g").await, "1000\n2000");
    assert_eq!(run("cat /config/who; ls /memory /sub").await, "you/memory:\na\nhooked\nready\n\n/sub:");
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert_eq!(run(&format!("cat {account}/token {account}/namespace")).await, "a-tokendefault");
    assert!(run("cat /etc/resolv.conf").await.contains("search default.svc.cluster.local svc.cluster.local"));
    assert!(run("cat /etc/hosts").await.ends_with("10.88.0.2\trich"));
    assert!(run("cat /proc/self/status").await.contains("NoNewPrivs:\t1"));
    let memory = run("cat /proc/self/cgroup").await;
    assert!(memory.contains(&format!("{}/kubepods/pod", bench.cgroup_root)), "{memory}");
    let cgroups = Path::new("/sys/fs/cgroup/memory").join(bench.cgroup_root.trim_matches('/'));
    let limits: Vec<String> = find(&cgroups, "poduid-")
        .iter()
        .map(|pod| fs::read_to_string(pod.join("memory.limit_in_bytes")).unwrap().trim().to_owned())
        .collect();
    assert!(limits.contains(&(64 << 20).to_string()), "{limits:?}");

    api.change("api/v1/configmaps", "default", "config", |object| object["data"]["who"] = json!("them"));
    let mut seen = String::new();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        seen = run("cat /config/who").await;
        if seen == "them" {
            break;
        }
    }
    assert_eq!(seen, "them", "a volume follows its object");
    assert_eq!(bench.get(kubelet.port, "/healthz", true).await, (200, "ok".to_owned()));
}

/// Checks logs and exec through the node's server.
async fn served(bench: &Bench, kubelet: &Kubelet) {
    let port = kubelet.port;
    let logs = "/containerLogs/default/rich/c";
    assert_eq!(bench.get(port, logs, false).await.0, 401);
    let (status, text) = bench.get(port, logs, true).await;
    assert_eq!((status, text.as_str()), (200, "hello-you sesame rich\nagain\n"));
    assert_eq!(bench.get(port, &format!("{logs}?tailLines=1"), true).await.1, "again\n");
    let timed = bench.get(port, &format!("{logs}?timestamps=true&limitBytes=24"), true).await.1;
    assert!(timed.starts_with("20") && timed.len() == 24, "{timed}");
    assert_eq!(bench.get(port, &format!("{logs}?previous=true"), true).await.0, 400);
    assert_eq!(bench.get(port, "/containerLogs/default/none/c", true).await.0, 404);
    assert!(bench.get(port, "/pods", true).await.1.contains("\"name\":\"rich\""));
    assert!(bench.get(port, "/metrics", true).await.1.contains("kubelet_running_pods 1"));
    let summary: Value = serde_json::from_str(&bench.get(port, "/stats/summary", true).await.1).unwrap();
    assert!(
        summary["pods"].as_array().unwrap().iter().any(|pod| pod["memory"]["usageBytes"].as_u64() > Some(0))
    );

    let exec = |script: &str, rest: &str| {
        let script = script.replace(' ', "%20").replace(';', "%3B").replace('>', "%3E").replace('&', "%26");
        format!("/exec/default/rich/c?command=sh&command=-c&command={script}&output=1&error=1{rest}")
    };
    for protocol in ["v4.channel.k8s.io", "v5.channel.k8s.io", "v5.channel.k8s.io, v4.channel.k8s.io"] {
        let channels =
            bench.exec(port, &exec("echo out; echo err >&2; exit 3", ""), protocol, None).await.unwrap();
        assert_eq!((channels[1].as_str(), channels[2].as_str()), ("out\n", "err\n"), "{protocol}");
        assert!(channels[3].contains("\"ExitCode\",\"message\":\"3\""), "{}", channels[3]);
    }
    assert_eq!(bench.upgrade(port, &exec("cat", "&input=1"), "SPDY/3.1").await, 101);
    assert_eq!(bench.upgrade(port, "/portForward/default/rich", "SPDY/3.1").await, 101);
    assert_eq!(bench.upgrade(port, "/exec/default/none/c?command=x", "SPDY/3.1").await, 404);

    let with_input = exec("read line; echo got $line", "&input=1");
    let refused = bench.exec(port, &with_input, "v5.channel.k8s.io", Some("x\n")).await;
    assert_eq!(refused.unwrap_err(), 403, "the client takes another protocol");
    let channels = bench.exec(port, &with_input, "v4.channel.k8s.io", Some("x\n")).await.unwrap();
    assert_eq!(channels[1], "got x\n");
}

/// Kills containerd, which is restarted while the container keeps running.
async fn survive_containerd(bench: &Bench, containerd: &Containerd, pod: &Value) {
    let shutdown = CancellationToken::new();
    let watched = containerd.supervise(shutdown.clone());
    let test = async {
        let pid = fs::read_to_string(bench.containerd.state.join("containerd.pid")).unwrap();
        assert!(Command::new("kill").args(["-9", pid.trim()]).status().unwrap().success());
        let runtime = containerd.runtime();
        let mut answered = false;
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            // The file is missing for a moment, between two processes.
            let now = fs::read_to_string(bench.containerd.state.join("containerd.pid"));
            if now.is_ok_and(|now| now != pid) && runtime.version().await.is_ok() {
                answered = true;
                break;
            }
        }
        assert!(answered, "containerd has not come back");
        let id = running_container(&runtime, "c").await;
        assert_eq!(pod["status"]["containerStatuses"][0]["containerID"], format!("containerd://{id}"));
        shutdown.cancel();
    };
    tokio::join!(watched, test);
}
