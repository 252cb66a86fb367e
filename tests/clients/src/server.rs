//! An API server in a process of its own, on a free port of the loopback interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use tests_e2e::{Process, eventually, hawser};

/// A running `hawser apiserver`; ended, with everything it wrote, when dropped.
pub struct Api {
    controllers: Option<Process>,
    server: Process,
    dir: tempfile::TempDir,
}

impl Api {
    /// Starts one on an empty embedded store.
    pub fn start() -> Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
        let log = dir.path().join("apiserver.log");
        let mut command = Command::new(hawser()?);
        command
            .args(["apiserver", "--secure-port", "0", "--bind-address", "127.0.0.1", "--data-dir"])
            .arg(dir.path().join("data"));
        let server = Process::start(&mut command, log.clone())?;
        let this = Self { controllers: None, server, dir };
        eventually("the API server says that it serves", || {
            let text = fs::read_to_string(&log).context("cannot read its log")?;
            Ok(text.contains("serving https://").then_some(()))
        })
        .with_context(|| this.server.log_tail())?;
        Ok(this)
    }

    /// The same with `hawser controllers`: namespaces get their ServiceAccount, Deployments their
    /// ReplicaSets and pods (which nothing runs), garbage is collected.
    pub fn with_controllers() -> Result<Self> {
        let mut this = Self::start()?;
        let mut command = Command::new(hawser()?);
        command.args(["controllers", "--kubeconfig"]).arg(this.kubeconfig());
        command.arg("--root-ca-file").arg(this.dir.path().join("data/pki/ca.crt"));
        this.controllers = Some(Process::start(&mut command, this.dir.path().join("controllers.log"))?);
        Ok(this)
    }

    /// An administrator's.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("data/kubeconfig.yaml")
    }

    /// A directory for the client's files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// `https://127.0.0.1:PORT`.
    pub fn url(&self) -> Result<String> {
        let text = fs::read_to_string(self.kubeconfig()).context("cannot read the kubeconfig")?;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("server: "));
        Ok(line.context("the kubeconfig names no server")?.trim_matches('"').to_owned())
    }

    /// Ends it as a person would; it must end well, and must not have panicked.
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
