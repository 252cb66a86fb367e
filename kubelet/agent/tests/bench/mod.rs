//! A containerd and kubelets above it, in network and mount namespaces and below a cgroup of their own.
//! Everything is taken down at the end, also when a test fails.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use crate::support::Api;
use apiserver_kinds::certificate::CertificateUser;
use apiserver_meta::ambient::Ambient;
use futures::{FutureExt, SinkExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kubelet_agent::{
    ClientAuthority, ClusterDns, Config, LinuxMachine, Listeners,
    containerd::{Containerd, ContainerdConfig, tear_down},
    images::Importer,
    machine::Machine,
};
use kubelet_cri::{ContainerState, CriRuntime, Runtime};
use kubelet_image::{ImageConfig, ImageFile, write_image_archive};
use nix::sched::{CloneFlags, unshare};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::{Message, client::IntoClientRequest};
use tokio_util::sync::CancellationToken;

pub const IMAGE: &str = "hawser.local/shell:1";

/// Everything that a test creates on this machine.
pub struct Bench {
    pub directory: tempfile::TempDir,
    pub containerd: ContainerdConfig,
    pub cgroup_root: String,
    authority: Authority,
}

/// A certificate authority with one client.
pub struct Authority {
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
    pub fn new() -> Self {
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
        // The last component is a name that is unique on this machine.
        let unique = path.file_name().unwrap().to_string_lossy().into_owned();
        let cgroup_root = format!("/hawser-test-{unique}");
        Self { containerd, cgroup_root, authority: Authority::new(), directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns settings of a kubelet that accepts the bench's client.
    pub fn config(&self) -> Config {
        let mut config = Config::new("n1");
        config.node_ips = vec!["127.0.0.1".parse().unwrap()];
        config.cgroup_root = self.cgroup_root.clone();
        config.cluster_dns =
            ClusterDns { servers: vec!["10.96.0.10".into()], domain: "cluster.local".into() };
        let identify = |der: &[u8]| CertificateUser::read(der).ok().map(Into::into);
        config.system_logs = self.path("var/log");
        config.client_authority = Some(ClientAuthority { pem: self.authority.pem.clone(), identify });
        config
    }

    /// Starts a kubelet.
    pub async fn kubelet(&self, api: &Api, runtime: Arc<CriRuntime>) -> Kubelet {
        let machine = LinuxMachine::new(&self.path("kubelet"), &self.path("logs")).unwrap();
        self.kubelet_over(api, runtime, Arc::new(machine)).await
    }

    /// Starts a kubelet with any runtime and machine.
    pub async fn kubelet_over(
        &self,
        api: &Api,
        runtime: Arc<dyn Runtime>,
        machine: Arc<dyn Machine>,
    ) -> Kubelet {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shutdown = CancellationToken::new();
        let listeners = Listeners { node: Some(listener), health: None };
        let run = kubelet_agent::run(
            self.config(),
            api.client(),
            runtime,
            machine,
            Ambient::system(),
            listeners,
            shutdown.clone(),
        );
        Kubelet { task: tokio::spawn(async move { run.await.unwrap() }), shutdown, port }
    }

    pub async fn connect(&self, port: u16, with_certificate: bool) -> TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(userspace_daemon::tls::TrustAnyone::new()));
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

    pub async fn get(&self, port: u16, path: &str, with_certificate: bool) -> (u16, String) {
        let response = self.open(port, path, with_certificate).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// Opens a stream and returns the header of the answer, before its body has arrived.
    pub async fn open(&self, port: u16, path: &str, with_certificate: bool) -> http::Response<Incoming> {
        self.send(port, http::Method::GET, path, with_certificate).await
    }

    /// Sends a request without a body and returns the header of the answer.
    pub async fn send(
        &self,
        port: u16,
        method: http::Method,
        path: &str,
        with_certificate: bool,
    ) -> http::Response<Incoming> {
        let stream = self.connect(port, with_certificate).await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::builder().method(method).uri(path).header("host", "node");
        sender.send_request(request.body(Empty::<bytes::Bytes>::new()).unwrap()).await.unwrap()
    }

    /// Returns the status of the answer to an upgrade request.
    pub async fn upgrade(&self, port: u16, path: &str, protocol: &str) -> u16 {
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

    /// Runs a command over WebSocket; returns its output by channel, or the status if it is refused.
    pub async fn exec(
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

pub struct Kubelet {
    task: JoinHandle<()>,
    shutdown: CancellationToken,
    pub port: u16,
}

impl Kubelet {
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

/// Writes CNI plugins that give pods an address without connecting them to anything.
pub fn write_plugins(bin: &Path, conf: &Path) {
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

/// Writes an image with a shell, a few tools of this machine, and the libraries that they need.
pub fn write_shell_image(path: &Path) {
    let tools = ["sh", "cat", "sleep", "id", "ls", "ln", "rm", "mkdir", "perl"];
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

pub fn shell(script: &str) -> Value {
    json!({"name": "c", "image": IMAGE, "args": [script]})
}

/// Returns the paths below `directory` whose name contains `part`.
pub fn find(directory: &Path, part: &str) -> Vec<PathBuf> {
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

/// Runs a test in namespaces of its own, and takes everything down afterwards.
pub fn in_namespaces(story: impl AsyncFnOnce(&Bench)) {
    // Threads and processes that are started after this inherit the namespaces.
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

/// Starts a containerd with the images of the tests.
pub async fn start_containerd(bench: &Bench) -> Containerd {
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

pub async fn running_container(runtime: &CriRuntime, name: &str) -> String {
    let containers = runtime.list_containers(None).await.unwrap();
    let mut running = containers.into_iter().filter(|c| c.name == name && c.state == ContainerState::Running);
    running.next().unwrap().id
}
