//! An API server in a process of its own, on a free port of the loopback interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tests_e2e::{Process, eventually, hawser};

/// A running `hawser apiserver`, which is stopped and removed with its data when dropped.
pub struct Api {
    controllers: Option<Process>,
    server: Process,
    dir: tempfile::TempDir,
}

impl Api {
    /// Starts a server on an empty embedded store.
    pub fn start() -> Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
        let server = serve(dir.path(), "0")?;
        Ok(Self { controllers: None, server, dir })
    }

    /// Stops the server gracefully and starts it again on the same port and data.
    pub fn restart(self) -> Result<Self> {
        let url = self.url()?;
        let port = url.rsplit(':').next().context("the server's address has no port")?;
        let Self { controllers, server, dir } = self;
        server.stop()?;
        let server = serve(dir.path(), port)?;
        Ok(Self { controllers, server, dir })
    }

    /// Starts a server with `hawser controllers`: namespaces get their ServiceAccount, Deployments their
    /// ReplicaSets and pods (which nothing runs), and garbage is collected.
    pub fn with_controllers() -> Result<Self> {
        let mut this = Self::start()?;
        let mut command = Command::new(hawser()?);
        // Tests run concurrently, so none can have the default probe port.
        command.args(["controllers", "--secure-port", "0", "--kubeconfig"]).arg(this.kubeconfig());
        command.arg("--root-ca-file").arg(this.dir.path().join("data/pki/ca.crt"));
        this.controllers = Some(Process::start(&mut command, this.dir.path().join("controllers.log"))?);
        Ok(this)
    }

    /// Returns the path of an administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("data/kubeconfig.yaml")
    }

    /// Returns a directory for the client's files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the URL, `https://127.0.0.1:PORT`.
    pub fn url(&self) -> Result<String> {
        let text = fs::read_to_string(self.kubeconfig()).context("cannot read the kubeconfig")?;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("server: "));
        Ok(line.context("the kubeconfig names no server")?.trim_matches('"').to_owned())
    }

    /// Stops the server gracefully; it must succeed and must not have panicked.
    pub fn stop(self) -> Result<()> {
        let Self { controllers, server, dir } = self;
        drop(controllers);
        let tail = server.log_tail();
        server.stop()?;
        let log = fs::read_to_string(dir.path().join("apiserver.log")).context("cannot read its log")?;
        if log.contains("panicked") {
            bail!("the API server panicked: {tail}");
        }
        Ok(())
    }
}

/// Starts a server with its files in a directory, and waits until it serves.
fn serve(dir: &Path, port: &str) -> Result<Process> {
    let log = dir.join("apiserver.log");
    let starts = || fs::read_to_string(&log).unwrap_or_default().matches("serving https://").count();
    let before = starts();
    let mut command = Command::new(hawser()?);
    command
        .args(["apiserver", "--secure-port", port, "--bind-address", "127.0.0.1", "--data-dir"])
        .arg(dir.join("data"));
    let server = Process::start(&mut command, log.clone())?;
    eventually("the API server says that it serves", || Ok((starts() > before).then_some(())))
        .with_context(|| server.log_tail())?;
    Ok(server)
}
