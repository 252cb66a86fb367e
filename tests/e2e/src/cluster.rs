//! A cluster on the lab's node, run as a user would.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::lab::{Lab, NODE_IP};
use crate::{echo_image, hawser, output};

/// A `hawser up` process, which is killed and cleaned up when dropped.
pub struct Cluster<'a> {
    pub lab: &'a Lab,
    process: Option<Child>,
    /// The line that `up` printed: `ready in N ms`.
    pub ready: String,
    /// Additional flags of `up`.
    flags: &'static [&'static str],
}

impl<'a> Cluster<'a> {
    /// Starts `hawser up` and waits for its line.
    pub fn up(lab: &'a Lab) -> Result<Self> {
        Self::with(lab, &[])
    }

    /// Like [`Cluster::up`], with additional flags.
    pub fn with(lab: &'a Lab, flags: &'static [&'static str]) -> Result<Self> {
        let mut cluster = Self { lab, process: None, ready: String::new(), flags };
        cluster.start()?;
        Ok(cluster)
    }

    /// Starts it again after [`Cluster::kill`] or [`Cluster::stop`].
    pub fn start(&mut self) -> Result<()> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())
            .context("cannot open the log file")?;
        let mut child = self
            .lab
            .on_node(hawser()?)
            .args(["up", "--node-name", "node-1", "--node-ip", NODE_IP])
            .args(self.flags)
            .arg("--data-dir")
            .arg(self.lab.data_dir())
            .args(["--cgroup-root", &self.lab.cgroup_root()])
            .args(["--bpf-root", &format!("/sys/fs/bpf/{}", self.lab.id)])
            // The machine's disk may be nearly full, which is not what is tested.
            .args(["--eviction-hard", "memory.available<100Mi"])
            .arg("--import")
            .arg(echo_image()?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .context("cannot start hawser up")?;
        let stdout = child.stdout.take().context("standard output was not piped")?;
        self.process = Some(child);
        self.ready = self.first_line(stdout, "ready in")?;
        Ok(())
    }

    fn first_line(
        &self,
        stdout: impl std::io::Read + Send + 'static,
        wanted: &'static str,
    ) -> Result<String> {
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        loop {
            match lines.recv_timeout(Duration::from_secs(120)) {
                Ok(line) if line.contains(wanted) => return Ok(line),
                Ok(_) => {}
                Err(_) => bail!("hawser up printed no line with {wanted:?}; its log:\n{}", self.log_tail()),
            }
        }
    }

    pub fn log_file(&self) -> PathBuf {
        self.lab.dir().join("hawser.log")
    }

    /// Returns the end of the log, for the message of a failure.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Returns the process id of `hawser up`.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.process.as_ref().context("hawser up does not run")?.id())
    }

    /// Sends SIGKILL and does nothing else.
    pub fn kill(&mut self) -> Result<()> {
        let mut child = self.process.take().context("hawser up does not run")?;
        child.kill().context("cannot kill hawser up")?;
        child.wait().context("cannot wait for hawser up")?;
        Ok(())
    }

    /// Sends SIGTERM; the exit code must be 0.
    pub fn stop(&mut self) -> Result<()> {
        let mut child = self.process.take().context("hawser up does not run")?;
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context("cannot signal hawser up")?;
        let status = child.wait().context("cannot wait for hawser up")?;
        if !status.success() {
            bail!("hawser up ended with {status} after SIGTERM; its log:\n{}", self.log_tail());
        }
        Ok(())
    }

    /// Runs `hawser down`.
    pub fn down(&self) -> Result<String> {
        output(self.lab.on_node(hawser()?).arg("down").arg("--data-dir").arg(self.lab.data_dir()))
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.lab.data_dir().join("kubeconfig.yaml")
    }

    /// Returns a kubectl command on the node, with the administrator's kubeconfig.
    pub fn kubectl_command(&self, program: &str) -> Command {
        let mut command = self.lab.on_node(program);
        command.arg("--kubeconfig").arg(self.kubeconfig());
        // kubectl caches discovery in the home directory; each test has its own.
        command.env("HOME", self.lab.dir());
        command
    }

    /// Runs the machine's kubectl; words are split at spaces.
    pub fn kubectl(&self, line: &str) -> Result<String> {
        self.kubectl_args(&line.split_whitespace().collect::<Vec<_>>())
    }

    pub fn kubectl_args(&self, args: &[&str]) -> Result<String> {
        crate::kubectl(self.kubectl_command("kubectl").args(args))
    }

    /// Runs `kubectl get … -o json`.
    pub fn get(&self, line: &str) -> Result<Value> {
        let text = self.kubectl(&format!("get {line} -o json"))?;
        serde_json::from_str(&text).context("kubectl get -o json printed something else")
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the end of hawser's log:\n{}", self.log_tail());
        }
        if self.process.is_some() {
            let _ = self.kill();
        }
        // `down` must cope with whatever state the test left.
        if let Err(error) = self.down() {
            println!("hawser down: {error:#}");
        }
    }
}
