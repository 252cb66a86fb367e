//! A component that runs as a process.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// A process that is killed when dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a process with its output in a file.
    pub fn start(command: &mut Command, log: PathBuf) -> Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        let child = command
            // A terminal's interrupt is for the parent.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("cannot share the log file")?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, log })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("cannot kill a process")?;
        self.child.wait().context("cannot wait for a process")?;
        Ok(())
    }

    /// Sends SIGTERM; the exit code must be 0.
    pub fn stop(mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context("cannot signal a process")?;
        let status = self.child.wait().context("cannot wait for a process")?;
        anyhow::ensure!(status.success(), "ended with {status} after SIGTERM; see {}", self.log.display());
        Ok(())
    }

    /// Returns the end of its output.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("{}:\n{}", self.log.display(), lines[lines.len().saturating_sub(30)..].join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
