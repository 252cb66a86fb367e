//! `cargo xtask test --suite COMMAND`: runs a third-party test suite against an API server.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{build_ebpf, clients, setup, shell};

/// Timeout that exceeds any start, so that only a hanging server is given up.
const START: Duration = Duration::from_secs(60);

/// Runs a shell command with an API server on a free loopback port in a temporary directory, and removes
/// both. Fails if the command does.
pub fn run(command: &str) -> Result<()> {
    setup::run(setup::Purpose::Everything, false)?;
    build_ebpf::run()?;
    shell::run(shell::linting().args(["build", "--package", "userspace-hawser"]))?;
    let work = tempfile::tempdir().context("cannot make a temporary directory")?;
    let server = Server::start(work.path())?;
    let status = Command::new("sh")
        .args(["-c", command])
        .env("KUBECONFIG", &server.kubeconfig)
        // For suites that only read ~/.kube/config.
        .env("HOME", home(work.path(), &server.kubeconfig)?)
        .env(
            "CARGO_HOME",
            shell::cargo_bin().and_then(|bin| bin.parent().map(Path::to_path_buf)).unwrap_or_default(),
        )
        .env("RUSTUP_HOME", rustup_home())
        .env("PATH", path(work.path())?)
        .status()
        .with_context(|| format!("cannot start `{command}`"))?;
    drop(server);
    if !status.success() {
        bail!("`{command}` ended with {status}");
    }
    Ok(())
}

/// A server that is stopped when dropped.
struct Server {
    child: Child,
    kubeconfig: std::path::PathBuf,
}

impl Server {
    fn start(work: &Path) -> Result<Self> {
        let data = work.join("data");
        let log = work.join("apiserver.log");
        let file = fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let child = Command::new(shell::target_dir().join("debug/hawser"))
            .args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1", "--data-dir"])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("cannot share the log file")?)
            .stderr(file)
            .spawn()
            .context("cannot start `hawser apiserver`")?;
        let mut server = Self { child, kubeconfig: data.join("kubeconfig.yaml") };
        let start = Instant::now();
        loop {
            let text = fs::read_to_string(&log).unwrap_or_default();
            if text.contains("serving https://") {
                return Ok(server);
            }
            let ended = server.child.try_wait().context("cannot ask after `hawser apiserver`")?.is_some();
            if ended || start.elapsed() > START {
                bail!("`hawser apiserver` does not serve:\n{text}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn home(work: &Path, kubeconfig: &Path) -> Result<std::path::PathBuf> {
    let home = work.join("home");
    fs::create_dir_all(home.join(".kube"))
        .and_then(|()| fs::copy(kubeconfig, home.join(".kube/config")).map(|_| ()))
        .context("cannot make a home directory")?;
    Ok(home)
}

fn rustup_home() -> std::path::PathBuf {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".rustup"));
    std::env::var_os("RUSTUP_HOME").map(std::path::PathBuf::from).or_else(home).unwrap_or_default()
}

/// Returns a `PATH` with our kubectl and Python before the machine's.
fn path(work: &Path) -> Result<std::ffi::OsString> {
    let bin = work.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
    if let Some(kubectl) = clients::KUBECTL.path() {
        std::os::unix::fs::symlink(kubectl, bin.join("kubectl")).context("cannot link kubectl")?;
    }
    let python = clients::Client::Python.path().and_then(|python| python.parent().map(Path::to_path_buf));
    let before = std::env::var_os("PATH").unwrap_or_default();
    let all = [bin].into_iter().chain(python).chain(std::env::split_paths(&before));
    std::env::join_paths(all).context("a directory in PATH has a colon in its name")
}
