//! Components of `hawser` that a benchmark starts.

use std::process::{Child, Stdio};

use anyhow::{Context, Result};
use tests_e2e::{Lab, eventually, lab};

use crate::place::Place;

/// A process that is killed when dropped.
pub struct Running(Child);

impl Running {
    /// Starts a component of `hawser` on the lab's node; it writes its log to `NAME.log`.
    pub fn start(lab: &Lab, name: &str, args: &[&str]) -> Result<Self> {
        let log =
            std::fs::File::create(lab.dir().join(format!("{name}.log"))).context("cannot make a log")?;
        let mut command = Place::node(lab).command(tests_e2e::hawser()?);
        command.arg(name).args(args).stdin(Stdio::null());
        command.stdout(log.try_clone().context("cannot share a log")?).stderr(log);
        command.spawn().map(Self).with_context(|| format!("cannot start hawser {name}"))
    }

    /// Returns the process identifier.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an API server on the lab's node; returns it with the path of its kubeconfig.
pub fn api_server(lab: &Lab) -> Result<(Running, String)> {
    let data = lab.data_dir().display().to_string();
    let args = ["--data-dir", &data, "--bind-address", "127.0.0.1", "--advertise-address", lab::NODE_IP];
    let running = Running::start(lab, "apiserver", &args)?;
    let kubeconfig = lab.data_dir().join("kubeconfig.yaml");
    eventually("the API server", || Ok(kubeconfig.exists().then_some(())))?;
    Ok((running, kubeconfig.display().to_string()))
}
