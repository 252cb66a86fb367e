//! Containers that try to exceed what they were given, on a real containerd. Each test plays an attacker and
//! then inspects the node.

use std::{fs, path::Path, time::Duration};

use crate::bench::{Bench, Kubelet, in_namespaces, running_container, shell, start_containerd};
use crate::support::Api;
use base64::Engine;
use kubelet_agent::{containerd::Containerd, limits};
use kubelet_cri::Runtime;
use serde_json::{Value, json};

/// A node, and the objects that its pods refer to.
struct Node<'a> {
    bench: &'a Bench,
    containerd: Containerd,
    api: Api,
    kubelet: Kubelet,
}

impl<'a> Node<'a> {
    async fn new(bench: &'a Bench) -> Self {
        let containerd = start_containerd(bench).await;
        let api = Api::new();
        let named = |name: &str| json!({"name": name, "namespace": "default"});
        let word = base64::engine::general_purpose::STANDARD.encode("sesame");
        api.create("api/v1/configmaps", json!({"metadata": named("config"), "data": {"who": "you"}}));
        api.create("api/v1/secrets", json!({"metadata": named("secret"), "data": {"word": word}}));
        let kubelet = bench.kubelet(&api, containerd.runtime()).await;
        Self { bench, containerd, api, kubelet }
    }

    /// Runs a script in the one running container with this name; returns its output and errors.
    async fn run(&self, container: &str, script: &str) -> String {
        let runtime = self.containerd.runtime();
        let id = running_container(&runtime, container).await;
        let command = ["sh", "-c", script].map(str::to_owned);
        let output = runtime.exec_sync(&id, &command, Duration::from_secs(60)).await.unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned()
    }

    /// Deletes pods and waits until nothing is left of them.
    async fn end(self, pods: &[String]) {
        for pod in pods {
            self.api.delete_pod(pod, 1);
        }
        for pod in pods {
            self.api.until_gone(pod).await;
        }
        assert_eq!(fs::read_dir(self.bench.path("kubelet/pods")).unwrap().count(), 0);
        self.kubelet.stop().await;
    }
}

/// Returns the disk usage of the files below a directory in bytes, without other file systems.
fn bytes_on_disk(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(directory).unwrap().dev();
    let mut sum = 0;
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_file() {
            sum += meta.blocks() * 512;
        } else if meta.is_dir() && meta.dev() == device {
            sum += bytes_on_disk(&entry.path());
        }
    }
    sum
}

/// Returns the size of the removed files below a directory that this process, which runs the kubelet, keeps
/// open.
fn bytes_held(directory: &Path) -> u64 {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
    let removed = open.filter(|file| {
        let Ok(path) = fs::read_link(file) else { return false };
        path.starts_with(directory) && path.to_string_lossy().ends_with("(deleted)")
    });
    removed.filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum()
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn a_container_cannot_write_into_the_volumes_that_the_kubelet_writes() {
    in_namespaces(async |bench: &Bench| config_volumes(bench).await);
}

async fn config_volumes(bench: &Bench) {
    let node = Node::new(bench).await;
    let mut container = shell("exec sleep 1000");
    let volumes = ["config", "secret", "downward", "projected"];
    let mut mounts: Vec<Value> =
        volumes.iter().map(|name| json!({"name": name, "mountPath": format!("/{name}")})).collect();
    mounts.push(json!({"name": "config", "mountPath": "/part", "subPath": "who", "readOnly": false}));
    container["volumeMounts"] = json!(mounts);
    node.api.create_pod(
        "p",
        json!({"containers": [container], "volumes": [
            {"name": "config", "configMap": {"name": "config"}},
            {"name": "secret", "secret": {"secretName": "secret"}},
            {"name": "downward", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"name": "projected", "projected": {"sources": [{"configMap": {"name": "config"}}]}},
        ]}),
    );
    node.api.until_ready("p").await;
    for volume in volumes {
        let script = format!(
            "cd /{volume}; ls; (echo x > planted) && echo WROTE; ln -s / ..data_tmp && echo WROTE; \
             (echo x > ..data/planted) && echo WROTE; rm ..data && echo WROTE"
        );
        let said = node.run("c", &script).await;
        assert!(said.contains("Read-only file system") && !said.contains("WROTE"), "{volume}: {said}");
    }
    let said = node.run("c", "cat /part; (echo x > /part) && echo WROTE").await;
    assert!(said.starts_with("you") && !said.contains("WROTE"), "{said}");
    // The kubelet must still be able to write them.
    node.api.change("api/v1/configmaps", "default", "config", |object| object["data"]["who"] = json!("them"));
    let mut seen = String::new();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        seen = node.run("c", "cat /config/who /projected/who /part").await;
        if seen.starts_with("themthem") {
            break;
        }
    }
    assert_eq!(seen, "themthemyou", "a subPath stays as it was mounted");
    node.end(&["p".to_owned()]).await;
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn a_sub_path_that_is_swapped_for_a_link_never_shows_the_host() {
    in_namespaces(async |bench: &Bench| swapped_sub_path(bench).await);
}

/// Returns a pod of `victims` containers that each mount a part of its one volume, and of another container
/// that keeps swapping that part for links to `host`.
fn swapping_pod(host: &Path, victims: usize) -> Value {
    let prepare = format!(
        "cd /v; mkdir part; echo volume > part/who; ln -s {host} absolute; ln -s {up}{host} relative",
        host = host.display(),
        up = "../".repeat(20),
    );
    // renameat2(AT_FDCWD, PART, AT_FDCWD, LINK, RENAME_EXCHANGE) in a tight loop, an even number of times,
    // with pauses that leave CPU time to others.
    let call = if cfg!(target_arch = "x86_64") { 316 } else { 276 };
    let swap = format!(
        r#"cd /v; exec perl -e 'my ($part, @links) = ("part", "absolute", "relative");
        while (1) {{ for my $link (@links) {{ for (1 .. 2000) {{
            syscall({call}, -100, $part, -100, $link, 2) == 0 or die "cannot swap: $!";
        }} select(undef, undef, undef, 0.001); }} }}'"#
    );
    let whole = json!([{"name": "v", "mountPath": "/v"}]);
    let (mut prepare, mut swapper) = (shell(&prepare), shell(&swap));
    prepare["name"] = json!("prepare");
    prepare["volumeMounts"] = whole.clone();
    swapper["name"] = json!("swapper");
    swapper["restartPolicy"] = json!("Always");
    swapper["volumeMounts"] = whole;
    let victims: Vec<Value> = (0..victims)
        .map(|index| {
            let part = ["part", "part/who", "part/new/dir"][index % 3];
            let script = "cat /part/who /part > /dev/termination-log 2>/dev/null; echo x > /part/planted";
            let mut victim = shell(script);
            victim["name"] = json!(format!("v{index}"));
            victim["volumeMounts"] = json!([{"name": "v", "mountPath": "/part", "subPath": part}]);
            victim
        })
        .collect();
    json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "initContainers": [prepare, swapper],
        "containers": victims, "volumes": [{"name": "v", "emptyDir": {}}]})
}

async fn swapped_sub_path(bench: &Bench) {
    const VICTIMS: usize = 12;
    // Each round gives the attacker some chances to slip in between a check and its use.
    const LEAST_ROUNDS: usize = 4;
    const MOST_ROUNDS: usize = 30;
    let node = Node::new(bench).await;
    let host = bench.path("host");
    fs::create_dir_all(&host).unwrap();
    fs::write(host.join("who"), "host").unwrap();
    let (mut shown, mut refused, mut names) = (0, 0, Vec::new());
    // The outcome of the race is random: repeat until containers have seen both outcomes.
    while names.len() < LEAST_ROUNDS || shown == 0 || refused == 0 {
        assert!(names.len() < MOST_ROUNDS, "{shown} containers saw the volume, {refused} were refused");
        let name = format!("p{}", names.len());
        node.api.create_pod(&name, swapping_pod(&host, VICTIMS));
        let refusal = |status: &Value| status["state"]["waiting"]["reason"] == "CreateContainerConfigError";
        let over = |pod: &Value| {
            let statuses = pod["status"]["containerStatuses"].as_array();
            statuses.is_some_and(|statuses| {
                let over = |status: &Value| refusal(status) || !status["state"]["terminated"].is_null();
                statuses.len() == VICTIMS && statuses.iter().all(over)
            })
        };
        let pod = node.api.until(&name, "over", over).await;
        let swapper = &pod["status"]["initContainerStatuses"][1];
        assert!(!swapper["state"]["running"].is_null() && swapper["restartCount"] == 0, "{swapper:#}");
        for status in pod["status"]["containerStatuses"].as_array().unwrap() {
            let message = status["state"]["terminated"]["message"].as_str().unwrap_or_default();
            assert!(!message.contains("host"), "{status:#}");
            shown += usize::from(message.contains("volume"));
            refused += usize::from(refusal(status));
        }
        node.api.delete_pod(&name, 1);
        names.push(name);
    }
    println!("{shown} containers saw the volume, {refused} were refused");
    let left: Vec<_> = fs::read_dir(&host).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["who"]);
    assert_eq!(fs::read_to_string(host.join("who")).unwrap(), "host");
    node.end(&names).await;
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn a_container_cannot_fill_the_host_through_the_files_that_the_kubelet_gives_it() {
    in_namespaces(async |bench: &Bench| filled_files(bench).await);
}

async fn filled_files(bench: &Bench) {
    let node = Node::new(bench).await;
    // Lines of 1 KiB, 16 MiB in total.
    let fill = |path: &str| {
        format!(
            "l=xxxxxxxxxxxxxxxx; l=$l$l$l$l; l=$l$l$l$l; l=$l$l$l$l; i=0; \
             while [ $i -lt 16384 ] && echo $l; do i=$((i+1)); done >> {path}; [ $i -lt 16384 ] && echo FULL"
        )
    };
    let mut first = shell(&fill("/etc/hosts"));
    first["name"] = json!("first");
    let main = shell("exec sleep 1000");
    node.api.create_pod("p", json!({"initContainers": [first], "containers": [main]}));
    node.api.until_ready("p").await;
    let hosts = node.run("c", "cat /etc/hosts").await;
    assert!(hosts.ends_with("10.88.0.2\tp"), "the next container has a good file: {hosts}");
    assert_eq!(node.run("c", "cat /etc/hostname; id -u").await, "p\n0");
    let before = bytes_on_disk(bench.directory.path());
    for path in ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log"] {
        let said = node.run("c", &fill(path)).await;
        assert!(said.contains("FULL"), "{path}: {said}");
    }
    let grown = bytes_on_disk(bench.directory.path()).saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes");
    node.end(&["p".to_owned()]).await;
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn a_container_cannot_fill_the_host_through_its_log() {
    in_namespaces(async |bench: &Bench| filled_log(bench).await);
}

async fn filled_log(bench: &Bench) {
    // Lines of 1 KiB each: far more than a log may hold.
    const LINES: u64 = 300_000;
    let node = Node::new(bench).await;
    let script = format!(
        "l=xxxxxxxxxxxxxxxx; l=$l$l$l$l; l=$l$l$l$l; l=$l$l$l$l; i=0; \
         while [ $i -lt {LINES} ]; do echo $l; i=$((i+1)); done; while :; do echo last words; sleep 0.1; done"
    );
    node.api.create_pod("p", json!({"containers": [shell(&script)]}));
    node.api.until_ready("p").await;
    let logs = bench.path("logs");
    // The readers take no more than fits into the buffers of their connections.
    let follow = "/containerLogs/default/p/c?follow=true";
    let mut followers = Vec::new();
    for _ in 0..8 {
        followers.push(bench.open(node.kubelet.port, follow, true).await);
    }
    let tail = "/containerLogs/default/p/c?tailLines=1";
    let mut last = String::new();
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        last = bench.get(node.kubelet.port, tail, true).await.1;
        if last == "last words\n" {
            break;
        }
    }
    assert_eq!(last, "last words\n", "the log is still written and read");
    let bound = limits::LOG_FILES as u64 * limits::LOG_ROTATE_BYTES + 2 * limits::LOG_ROTATE_BYTES;
    let mut size = u64::MAX;
    for _ in 0..100 {
        size = bytes_on_disk(&logs) + bytes_held(&logs);
        if size <= bound {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(size <= bound, "{size} bytes of logs");
    assert!(followers.iter().all(|answer| answer.status() == 200));
    drop(followers);
    node.end(&["p".to_owned()]).await;
}
