//! A real etcd on free loopback ports, with its data in a directory of its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use apiserver_store::etcd::Etcd;

/// Stopped when dropped.
pub struct EtcdServer {
    process: Child,
    directory: tempfile::TempDir,
    ports: (u16, u16),
}

impl EtcdServer {
    /// Starts it and waits until it answers.
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = free_ports();
        let process = spawn(directory.path(), ports);
        let mut server = Self { process, directory, ports };
        server.wait_until_ready().await;
        server
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.0)
    }

    /// Kills the server and starts it again on the same ports and data.
    pub async fn restart(&mut self) {
        self.stop();
        self.process = spawn(self.directory.path(), self.ports);
        self.wait_until_ready().await;
    }

    async fn wait_until_ready(&mut self) {
        for _ in 0..20 {
            if let Some(status) = self.process.try_wait().unwrap() {
                panic!("etcd ended with {status}");
            }
            if Etcd::connect(&[self.url()], None).await.is_ok() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        panic!("etcd does not answer at {}", self.url());
    }

    fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(directory: &Path, ports: (u16, u16)) -> Child {
    let client = format!("http://127.0.0.1:{}", ports.0);
    let peer = format!("http://127.0.0.1:{}", ports.1);
    Command::new("etcd")
        .arg("--data-dir")
        .arg(directory.join("data"))
        .args(["--name", "test", "--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("test={peer}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("cannot start etcd; `cargo xtask setup` installs it")
}

pub fn free_ports() -> (u16, u16) {
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let (one, two) = (listen(), listen());
    (one.local_addr().unwrap().port(), two.local_addr().unwrap().port())
}
