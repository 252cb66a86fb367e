//! A whole kubelet over a real containerd, in network and mount namespaces and below a cgroup of
//! its own. Whatever happens, everything is taken down at the end.

#![allow(clippy::unwrap_used, reason = "this is test code, outside of a function marked as a test")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests may print")]

mod support;
mod trust;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use apiserver_api::ambient::Ambient;
use base64::Engine;
use futures::{FutureExt, SinkExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use kubelet_agent::{
    ClusterDns, Config, LinuxMachine, Listeners,
    containerd::{Containerd, ContainerdConfig, tear_down},
    images::Importer,
};
use kubelet_cri::{ContainerState, CriRuntime, Runtime};
use kubelet_image::{ImageConfig, ImageFile, write_image_archive};
use nix::sched::{CloneFlags, unshare};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use support::{Api, condition};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::Instant,
};
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "hawser.local/shell:1";

/// Everything that the test makes on this machine.
struct Bench {
    directory: tempfile::TempDir,
    containerd: ContainerdConfig,
    cgroup_root: String,
    authority: Authority,
}

/// A certificate authority with one client.
struct Authority {
    pem: String,
    client_chain: String,
    client_key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = rcgen::Issuer::new(params, key);
        let client_key = rcgen::KeyPair::generate().unwrap();
        let mut client = rcgen::CertificateParams::new(vec!["client".to_owned()]).unwrap();
        client.distinguished_name.push(rcgen::DnType::CommonName, "kube-apiserver-kubelet-client");
        client.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let client_chain = client.signed_by(&client_key, &issuer).unwrap().pem();
        Self { pem, client_chain, client_key: client_key.serialize_pem() }
    }
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("hk").tempdir_in("/tmp").unwrap();
        let path = directory.path();
        let bin = path.join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(path.join("net.d")).unwrap();
        write_plugins(&bin, &path.join("net.d"));
        let containerd = ContainerdConfig {
            program: "/usr/bin/containerd".into(),
            root: path.join("root"),
            state: path.join("run"),
            cni_bin_dir: bin,
            cni_conf_dir: path.join("net.d"),
            sandbox_image: kubelet_image::PAUSE_REFERENCE.to_owned(),
            log_file: path.join("containerd.log"),
        };
        // The last part of a name that is unique on this machine.
        let unique = path.file_name().unwrap().to_string_lossy().into_owned();
        let cgroup_root = format!("/hawser-test-{unique}");
        Self { containerd, cgroup_root, authority: Authority::new(), directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a kubelet; its server's port is returned.
    async fn kubelet(&self, api: &Api, runtime: Arc<CriRuntime>) -> Kubelet {
        let mut config = Config::new("n1");
        config.node_ips = vec!["127.0.0.1".parse().unwrap()];
        config.cgroup_root = self.cgroup_root.clone();
        config.cluster_dns =
            ClusterDns { servers: vec!["10.96.0.10".into()], domain: "cluster.local".into() };
        config.client_ca = Some(self.authority.pem.clone());
        let machine = LinuxMachine::new(&self.path("kubelet"), &self.path("logs")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shutdown = CancellationToken::new();
        let listeners = Listeners { node: Some(listener), health: None };
        let run = kubelet_agent::run(
            config,
            api.client(),
            runtime,
            Arc::new(machine),
            Ambient::system(),
            listeners,
            shutdown.clone(),
        );
        Kubelet { task: tokio::spawn(async move { run.await.unwrap() }), shutdown, port }
    }

    async fn connect(&self, port: u16, with_certificate: bool) -> TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(trust::Anyone));
        let config = if with_certificate {
            let chain =
                rustls::pki_types::CertificateDer::pem_slice_iter(self.authority.client_chain.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(self.authority.client_key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain.map(Result::unwrap).collect(), key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        connector.connect("127.0.0.1".try_into().unwrap(), stream).await.unwrap()
    }

    async fn get(&self, port: u16, path: &str, with_certificate: bool) -> (u16, String) {
        let stream = self.connect(port, with_certificate).await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request =
            http::Request::get(path).header("host", "node").body(Empty::<bytes::Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// Status of the answer to a request for an upgrade.
    async fn upgrade(&self, port: u16, path: &str, protocol: &str) -> u16 {
        let stream = self.connect(port, true).await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        let version = if path.starts_with("/exec") { "v4.channel.k8s.io" } else { "portforward.k8s.io" };
        let request = http::Request::post(path)
            .header("host", "node")
            .header("connection", "Upgrade")
            .header("upgrade", protocol)
            .header("x-stream-protocol-version", version)
            .body(Empty::<bytes::Bytes>::new())
            .unwrap();
        sender.send_request(request).await.unwrap().status().as_u16()
    }

    /// Runs a command over WebSocket; its output by channel. An error is the refused status.
    async fn exec(
        &self,
        port: u16,
        path: &str,
        protocol: &str,
        input: Option<&str>,
    ) -> Result<[String; 4], u16> {
        let stream = self.connect(port, true).await;
        let mut request = format!("wss://node{path}").into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        let (mut socket, _) = match tokio_tungstenite::client_async(request, stream).await {
            Ok(connected) => connected,
            Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => return Err(answer.status().as_u16()),
            Err(error) => panic!("{error}"),
        };
        if let Some(input) = input {
            socket.send(Message::binary([b"\0", input.as_bytes()].concat())).await.unwrap();
            socket.send(Message::binary(vec![255, 0])).await.unwrap();
        }
        let mut channels = [const { String::new() }; 4];
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Binary(data) = message {
                channels[usize::from(data[0])].push_str(&String::from_utf8_lossy(&data[1..]));
            }
        }
        Ok(channels)
    }
}

struct Kubelet {
    task: JoinHandle<()>,
    shutdown: CancellationToken,
    port: u16,
}

impl Kubelet {
    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

/// A network without a wire: pods get an address that leads nowhere.
fn write_plugins(bin: &Path, conf: &Path) {
    let script = r#"#!/bin/sh
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"version":"4","address":"10.88.0.2/24","interface":0}]}'
[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}'
exit 0
"#;
    for name in ["loopback", "nowhere"] {
        fs::write(bin.join(name), script).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let list = json!({"cniVersion": "0.4.0", "name": "nowhere", "plugins": [{"type": "nowhere"}]});
    fs::write(conf.join("10-nowhere.conflist"), list.to_string()).unwrap();
}

/// An image with a shell and a few tools of this machine, and the libraries that they need.
fn write_shell_image(path: &Path) {
    let tools = ["sh", "cat", "sleep", "id", "ls"];
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for tool in tools {
        let program = format!("/usr/bin/{tool}");
        files.push((format!("bin/{tool}"), fs::read(&program).unwrap()));
        let output = Command::new("ldd").arg(&program).output().unwrap().stdout;
        for word in String::from_utf8_lossy(&output).split_whitespace().filter(|word| word.starts_with('/')) {
            files.push((word.trim_start_matches('/').to_owned(), fs::read(word).unwrap()));
        }
    }
    files.sort();
    files.dedup();
    let files: Vec<ImageFile<'_>> =
        files.iter().map(|(path, content)| ImageFile { path, mode: 0o755, content }).collect();
    let config = ImageConfig {
        entrypoint: vec!["/bin/sh".into(), "-c".into()],
        command: vec!["echo hello from the image; exec sleep 1000".into()],
        environment: vec!["PATH=/bin".into()],
        directories: vec![("tmp".into(), 0o1777)],
        ..ImageConfig::default()
    };
    write_image_archive(path, IMAGE, &files, &config).unwrap();
}

fn shell(script: &str) -> Value {
    json!({"name": "c", "image": IMAGE, "args": [script]})
}

/// A pod that uses most of what there is.
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

/// Paths below `directory` whose name contains `part`.
fn find(directory: &Path, part: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name().to_string_lossy().contains(part) {
                found.push(entry.path());
            }
            found.extend(find(&entry.path(), part));
        }
    }
    found
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn pods_on_a_real_containerd() {
    in_namespaces(async |bench: &Bench| story(bench).await);
}

#[test]
#[ignore = "needs root and containerd: cargo xtask test"]
fn many_pods_at_once_on_a_real_containerd() {
    in_namespaces(async |bench: &Bench| crowd(bench).await);
}

/// Runs a story in namespaces of its own, and takes everything down after it.
fn in_namespaces(story: impl AsyncFnOnce(&Bench)) {
    // Threads and processes that are started from here on inherit the namespaces.
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bench = Bench::new();
        let outcome = std::panic::AssertUnwindSafe(story(&bench)).catch_unwind().await;
        let down = tear_down(&bench.containerd, &bench.cgroup_root, true).await;
        if let Err(panic) = outcome {
            let log = fs::read_to_string(&bench.containerd.log_file).unwrap_or_default();
            log.lines().filter(|line| line.contains("level=error")).for_each(|line| eprintln!("{line}"));
            kubelet_agent::machine::linux::remove_directory(&bench.path("kubelet")).unwrap();
            std::panic::resume_unwind(panic);
        }
        down.unwrap();
        let name = bench.cgroup_root.trim_matches('/');
        assert_eq!(find(Path::new("/sys/fs/cgroup"), name), [] as [PathBuf; 0]);
        assert!(!bench.containerd.root.exists() && !bench.containerd.state.exists());
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(!mounts.contains(bench.directory.path().to_str().unwrap()), "{mounts}");
    });
}

/// A containerd with the images of the tests.
async fn start_containerd(bench: &Bench) -> Containerd {
    let containerd = Containerd::start(bench.containerd.clone()).await.unwrap();
    assert!(!containerd.adopted());
    let importer = Importer {
        ctr: "/usr/bin/ctr".into(),
        socket: bench.containerd.socket(),
        state: bench.containerd.root.join("imported"),
    };
    importer.import_pause(bench.directory.path()).await.unwrap();
    write_shell_image(&bench.path("shell.tar"));
    importer.import(&bench.path("shell.tar")).await.unwrap();
    containerd
}

/// All of them become ready, and all of them go without a trace.
async fn crowd(bench: &Bench) {
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

    // A new kubelet finds everything as it is.
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

    // A log is followed to the last word.
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

/// What the container sees.
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
    let (status, body) = bench.get(kubelet.port, "/healthz", false).await;
    assert_eq!((status, body.as_str()), (200, "ok"));
}

async fn running_container(runtime: &CriRuntime, name: &str) -> String {
    let containers = runtime.list_containers(None).await.unwrap();
    let mut running = containers.into_iter().filter(|c| c.name == name && c.state == ContainerState::Running);
    running.next().unwrap().id
}

/// Logs and exec through the node's server.
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

/// containerd is killed and comes back; the container has not noticed.
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
            if fs::read_to_string(bench.containerd.state.join("containerd.pid")).unwrap() != pid
                && runtime.version().await.is_ok()
            {
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
