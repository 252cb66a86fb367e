//! A real etcd on free loopback ports, with its data in a directory of its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use apiserver_store::StoreError;
use apiserver_store::etcd::{Etcd, EtcdTls};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// An etcd server, which is stopped when dropped.
pub struct EtcdServer {
    process: Child,
    directory: tempfile::TempDir,
    ports: (u16, u16),
    /// TLS configuration for clients, if the server requires client certificates.
    tls: Option<EtcdTls>,
    /// Quota of the server's data in bytes; 0 for etcd's default.
    quota: u64,
}

impl EtcdServer {
    /// Starts a server and waits until it answers.
    pub async fn start() -> Self {
        Self::start_with(None, tempfile::tempdir().unwrap(), 0).await
    }

    /// Starts a server with a quota in bytes.
    pub async fn start_small(quota: u64) -> Self {
        Self::start_with(None, tempfile::tempdir().unwrap(), quota).await
    }

    /// Starts a server with TLS that requires client certificates.
    pub async fn start_with_tls() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tls = make_certificates(directory.path());
        Self::start_with(Some(tls), directory, 0).await
    }

    async fn start_with(tls: Option<EtcdTls>, directory: tempfile::TempDir, quota: u64) -> Self {
        let ports = free_ports();
        let process = spawn(directory.path(), ports, tls.is_some(), quota);
        let mut server = Self { process, directory, ports, tls, quota };
        server.wait_until_ready().await;
        server
    }

    pub fn url(&self) -> String {
        url(self.ports.0, self.tls.is_some())
    }

    pub async fn connect(&self) -> Result<Etcd, StoreError> {
        Etcd::connect(&[self.url()], self.tls.clone()).await
    }

    /// Returns the TLS configuration for clients, if the server requires it.
    pub fn tls(&self) -> Option<&EtcdTls> {
        self.tls.as_ref()
    }

    /// Kills the server and starts it again with the same ports and data.
    pub async fn restart(&mut self) {
        self.kill();
        self.start_again().await;
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts the server again after it was killed.
    pub async fn start_again(&mut self) {
        self.process = spawn(self.directory.path(), self.ports, self.tls.is_some(), self.quota);
        self.wait_until_ready().await;
    }

    /// Pauses the process: connections stay open, and nothing is answered.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(status.success(), "kill {signal}: {status}");
    }

    async fn wait_until_ready(&mut self) {
        for _ in 0..20 {
            if let Some(status) = self.process.try_wait().unwrap() {
                panic!("etcd ended with {status}");
            }
            if self.connect().await.is_ok() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        panic!("etcd does not answer at {}", self.url());
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An etcd cluster of three servers.
pub struct EtcdCluster {
    members: Vec<(Child, Vec<String>)>,
    urls: Vec<String>,
    _directory: tempfile::TempDir,
}

impl EtcdCluster {
    /// Starts the servers and waits until they answer.
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports: Vec<(u16, u16)> = (0..3).map(|_| free_ports()).collect();
        let peers: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(member, ports)| format!("m{member}={}", url(ports.1, false)))
            .collect();
        let mut cluster = Self { members: Vec::new(), urls: Vec::new(), _directory: directory };
        for (member, ports) in ports.iter().enumerate() {
            let (client, peer) = (url(ports.0, false), url(ports.1, false));
            let data = cluster._directory.path().join(format!("m{member}"));
            let arguments = [
                ("data-dir", data.to_str().unwrap()),
                ("name", &format!("m{member}")),
                ("listen-client-urls", &client),
                ("advertise-client-urls", &client),
                ("listen-peer-urls", &peer),
                ("initial-advertise-peer-urls", &peer),
                ("initial-cluster", &peers.join(",")),
            ];
            let arguments: Vec<String> =
                arguments.iter().map(|(flag, value)| format!("--{flag}={value}")).collect();
            cluster.members.push((start(Command::new("etcd").args(&arguments)), arguments));
            cluster.urls.push(client);
        }
        for _ in 0..60 {
            if let Ok(etcd) = Etcd::connect(&cluster.urls, None).await
                && apiserver_store::Store::revision(&etcd).await.is_ok()
            {
                return cluster;
            }
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        panic!("the three of etcd do not answer");
    }

    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Kills a server.
    pub fn kill(&mut self, member: usize) {
        let _ = self.members[member].0.kill();
        let _ = self.members[member].0.wait();
    }

    /// Starts a server again.
    pub fn start_again(&mut self, member: usize) {
        let arguments = self.members[member].1.clone();
        self.members[member].0 = start(Command::new("etcd").args(arguments));
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        (0..self.members.len()).for_each(|member| self.kill(member));
    }
}

fn url(port: u16, tls: bool) -> String {
    format!("{}://127.0.0.1:{port}", if tls { "https" } else { "http" })
}

fn spawn(directory: &Path, ports: (u16, u16), tls: bool, quota: u64) -> Child {
    let (client, peer) = (url(ports.0, tls), url(ports.1, false));
    let mut command = Command::new("etcd");
    command
        .arg("--data-dir")
        .arg(directory.join("data"))
        .args(["--name", "test", "--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("test={peer}")]);
    if quota > 0 {
        command.arg(format!("--quota-backend-bytes={quota}"));
    }
    if tls {
        command.arg("--client-cert-auth");
        for (flag, file) in [("cert", "server.pem"), ("key", "server.key"), ("trusted-ca", "ca.pem")] {
            command.arg(format!("--{flag}-file")).arg(directory.join(file));
        }
    }
    start(&mut command)
}

fn start(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("cannot start etcd; `cargo xtask setup` installs it")
}

/// Creates an authority, a server certificate and a client certificate; the server's files are written to
/// `directory`.
fn make_certificates(directory: &Path) -> EtcdTls {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "authority of a test");
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let issue = |usages: Vec<ExtendedKeyUsagePurpose>| {
        let mut params =
            CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.extended_key_usages = usages;
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    // etcd's own gateway is a client of its server and uses the server's certificate.
    let (certificate, key) =
        issue(vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]);
    for (name, text) in [("ca.pem", ca.pem()), ("server.pem", certificate), ("server.key", key)] {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let (certificate, key) = issue(vec![ExtendedKeyUsagePurpose::ClientAuth]);
    EtcdTls {
        ca: Some(ca.pem().into_bytes()),
        identity: Some((certificate.into_bytes(), key.into_bytes())),
        server_name: None,
    }
}

pub fn free_ports() -> (u16, u16) {
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (one, two) = (listen(), listen());
    (one.local_addr().unwrap().port(), two.local_addr().unwrap().port())
}
