//! The schedulers, each a process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::api::text;
use crate::cluster::memory;

/// Environment variable with the path of a kube-scheduler to compare with.
const KUBE_SCHEDULER: &str = "KUBE_SCHEDULER";
/// Requests a second that kube-scheduler may send: more than it ever does.
const REQUESTS: u32 = 5_000;

/// A program that schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// `hawser scheduler`.
    Hawser,
    /// The kube-scheduler at this path.
    Kubernetes(PathBuf),
}

impl Program {
    /// Returns the kube-scheduler that the environment names, if it names one.
    pub fn kube_scheduler() -> Option<Self> {
        std::env::var_os(KUBE_SCHEDULER).map(|path| Self::Kubernetes(path.into()))
    }

    /// Returns the name of the subject.
    pub fn subject(&self) -> &'static str {
        match self {
            Self::Hawser => "hawser",
            Self::Kubernetes(_) => "kube-scheduler",
        }
    }

    fn command(&self, directory: &Path) -> Result<Command> {
        let kubeconfig = text(&directory.join("kubeconfig.yaml"));
        match self {
            Self::Hawser => {
                let mut command = Command::new(tests_e2e::hawser()?);
                command.args(["scheduler", "--log", "error", "--secure-port", "0", "--kubeconfig"]);
                command.arg(kubeconfig);
                Ok(command)
            }
            Self::Kubernetes(path) => {
                let config = json!({
                    "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {"kubeconfig": kubeconfig, "qps": REQUESTS, "burst": REQUESTS},
                    "leaderElection": {"leaderElect": false},
                });
                let file = directory.join("kube-scheduler.yaml");
                std::fs::write(&file, config.to_string())
                    .with_context(|| format!("cannot write {}", file.display()))?;
                let mut command = Command::new(path);
                command.args(["--secure-port", "0", "--config", &text(&file)]).stderr(Stdio::null());
                Ok(command)
            }
        }
    }
}

/// A scheduler, which is killed when dropped.
pub struct Scheduler(Child);

impl Scheduler {
    /// Starts a program for the API server whose data are in `directory`.
    pub fn start(program: &Program, directory: &Path) -> Result<Self> {
        let mut command = program.command(directory)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Self(child.with_context(|| format!("cannot start {command:?}"))?))
    }

    /// Fails if the process has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.0.try_wait().context("cannot look after the scheduler")? {
            Some(status) => bail!("the scheduler ended with {status}"),
            None => Ok(()),
        }
    }

    /// Returns the peak of resident memory since the start.
    pub fn peak(&self) -> Result<f64> {
        memory(self.0.id(), "VmHWM:")
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
