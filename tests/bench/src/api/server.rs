//! The servers under load, each a process of its own with a data directory of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::client::{Call, Target};
use super::text;
use crate::cluster::memory;

/// Time that a server may take to answer, including reading all of its objects.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Clock ticks per second in the kernel's accounting of CPU time, `USER_HZ`.
const TICKS: f64 = 100.0;

/// The store behind the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Embedded,
    Etcd,
}

impl StoreKind {
    /// Returns the parameter in a case's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Etcd => "etcd",
        }
    }
}

/// A process that is stopped when dropped.
pub struct Running {
    child: Child,
    pub target: Target,
    /// Time from the start of the process to its first answer.
    pub ready: Duration,
}

impl Running {
    /// Starts `hawser apiserver` in a directory, with the embedded store or etcd.
    pub fn hawser(directory: &Path, etcd: Option<&str>) -> Result<Self> {
        let data = text(directory);
        let port = free_port()?.to_string();
        let mut command = Command::new(tests_e2e::hawser()?);
        command.args(["apiserver", "--data-dir", &data, "--log", "warn", "--secure-port", &port]);
        command.args(["--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"]);
        if let Some(url) = etcd {
            command.args(["--store", "etcd", "--etcd-servers", url]);
        }
        Self::start(command, &directory.join("kubeconfig.yaml"), "serving ")
    }

    /// Starts the bare server, which answers `bytes` bytes to everything.
    pub fn echo(directory: &Path, bytes: usize) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args(["--worker", "echo", &text(directory), &bytes.to_string()]);
        Self::start(command, &directory.join("kubeconfig.yaml"), "serving ")
    }

    fn start(mut command: Command, kubeconfig: &Path, line: &str) -> Result<Self> {
        let began = Instant::now();
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let output = child.stdout.take().context("there is no output")?;
        let mut lines = BufReader::new(output).lines();
        let said = lines.find_map(|text| text.ok().filter(|text| text.starts_with(line)));
        ensure!(said.is_some(), "{command:?} ended: {:?}", child.wait());
        let target = Target::from_kubeconfig(kubeconfig)?;
        let mut running = Self { child, target, ready: Duration::ZERO };
        super::runtime()?.block_on(running.answers())?;
        running.ready = began.elapsed();
        Ok(running)
    }

    async fn answers(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let asked = async { self.target.connect(1).await?[0].read(Call::get("/readyz")).await };
            match asked.await {
                Ok(_) => return Ok(()),
                Err(error) if began.elapsed() > TIMEOUT => return Err(error.context("no answer")),
                Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the resident bytes.
    pub fn resident(&self) -> Result<f64> {
        memory(self.pid(), "VmRSS:")
    }

    /// Resets the peak of resident memory.
    pub fn forget_peak(&self) -> Result<()> {
        forget_peak(self.pid())
    }

    /// Returns the peak of resident memory since the reset.
    pub fn peak(&self) -> Result<f64> {
        memory(self.pid(), "VmHWM:")
    }

    /// Returns the CPU time of all threads so far, in seconds, with a resolution of 10 ms.
    pub fn processor_time(&self) -> Result<f64> {
        processor_time(self.pid())
    }

    /// Terminates the process as a service manager does, and waits.
    pub fn stop(mut self) -> Result<()> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid()).context("no process id")?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).context("cannot signal a process")?;
        self.child.wait().context("cannot wait for a process")?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the CPU time of all threads of a process so far, in seconds, with a resolution of 10 ms.
pub fn processor_time(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    Ok((ticks(11) + ticks(12)) / TICKS)
}

/// Resets the peak of a process' resident memory (`man 5 proc`, clear_refs).
pub fn forget_peak(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    fs::write(&path, "5").with_context(|| format!("cannot write {path}"))
}

/// An etcd of one member, killed when dropped.
pub struct EtcdServer {
    child: Child,
    pub url: String,
}

impl EtcdServer {
    /// Starts etcd on free ports of the loopback interface.
    pub fn start(directory: &Path) -> Result<Self> {
        let address = || Ok::<_, anyhow::Error>(format!("http://127.0.0.1:{}", free_port()?));
        let (client, peer) = (address()?, address()?);
        let data: PathBuf = directory.join("etcd");
        let child = Command::new("etcd")
            .args(["--data-dir", &text(&data), "--name", "bench", "--quota-backend-bytes", "8589934592"])
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("bench={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start etcd; `cargo xtask setup` installs it")?;
        let server = Self { child, url: client };
        let began = Instant::now();
        while TcpStream::connect(server.url.trim_start_matches("http://")).is_err() {
            ensure!(began.elapsed() < TIMEOUT, "etcd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot bind a port")?;
    Ok(listener.local_addr().context("the listener has no address")?.port())
}
