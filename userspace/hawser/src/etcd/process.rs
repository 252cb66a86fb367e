//! The process of etcd: started in a session of its own, adopted by the next start, restarted when it ends, stopped on
//! request.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver_meta::ambient::Ambient;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{DIR, INITIAL, Initial, LocalEtcd};
use crate::data_dir::write_atomically;
use crate::limits;

fn config_file(dir: &Path) -> PathBuf {
    dir.join("config.json")
}

fn pid_file(dir: &Path) -> PathBuf {
    dir.join("pid")
}

pub(super) fn log_file(dir: &Path) -> PathBuf {
    dir.join("etcd.log")
}

impl LocalEtcd {
    /// Starts the process, or adopts the one that runs with the same settings.
    pub(super) async fn spawn(&self, initial: Option<&Initial>) -> Result<()> {
        for dir in [&self.dir, &self.data()] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
            made.and_then(|()| fs::set_permissions(dir, fs::Permissions::from_mode(0o700)))
                .with_context(|| format!("cannot make {}", dir.display()))?;
        }
        let config = self.config(initial);
        let file = config_file(&self.dir);
        if is_alive(&self.dir) {
            if fs::read(&file).is_ok_and(|old| is_same(&old, &config)) {
                info!("adopted the running etcd");
                return Ok(());
            }
            info!("restarting etcd with other settings");
            stop_in(&self.dir).await?;
        }
        write_atomically(&file, format!("{config:#}\n").as_bytes())?;
        self.exec()
    }

    /// Starts the process with the configuration file that is there.
    pub(super) fn exec(&self) -> Result<()> {
        let path = log_file(&self.dir);
        let long = fs::metadata(&path).is_ok_and(|log| log.len() > limits::ETCD_LOG);
        let opened = fs::OpenOptions::new().create(true).write(true).append(!long).truncate(long).open(&path);
        let log = opened.with_context(|| format!("cannot open {}", path.display()))?;
        let errors = log.try_clone().context("cannot share etcd's log")?;
        // `setsid` forks if it must, so the shell records the id of the final process. The process keeps the lock by
        // an open file until it ends: a second one does not start beside it, nor take its place in the record.
        let script =
            r#"exec 9> "$4" && flock --nonblock 9 && echo $$ > "$1" && exec "$2" --config-file "$3""#;
        let mut child = Command::new("setsid")
            .args(["sh", "-c", script, "sh"])
            .arg(pid_file(&self.dir))
            .arg(&self.program)
            .arg(config_file(&self.dir))
            .arg(self.dir.join("lock"))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        // Reap the child if it ends before we do.
        tokio::spawn(async move { child.wait().await });
        Ok(())
    }

    /// Returns an error if the process has ended.
    pub(super) fn check_alive(&self, since: Instant) -> Result<()> {
        // The shell records the id a moment after the start.
        if since.elapsed() < limits::ETCD_CHECK || is_alive(&self.dir) {
            return Ok(());
        }
        let path = log_file(&self.dir);
        let log = fs::read_to_string(&path).unwrap_or_default();
        bail!("etcd has ended: {}; its log is {}", log.lines().last().unwrap_or("no message"), path.display())
    }

    /// Restarts the process whenever it ends, and replaces its certificates before they end, until shutdown. The
    /// process goes on.
    pub async fn supervise(self, ambient: Ambient, stop: CancellationToken) {
        let (mut pause, mut started, mut certified) = (limits::ETCD_RESTART, Instant::now(), Instant::now());
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(limits::ETCD_CHECK) => {}
            }
            if certified.elapsed() > limits::ETCD_CERTIFICATES {
                certified = Instant::now();
                if let Err(error) = self.certify(&ambient) {
                    warn!(error = format!("{error:#}"), "cannot replace etcd's certificates");
                }
            }
            if is_alive(&self.dir) {
                continue;
            }
            pause = next_pause(pause, started.elapsed());
            warn!(log = %log_file(&self.dir).display(), ?pause, "etcd has ended, restarting it");
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
            }
            started = Instant::now();
            if let Err(error) = self.exec() {
                warn!(error = format!("{error:#}"), "cannot restart etcd");
            }
            sleep(limits::ETCD_CHECK).await;
        }
    }
}

/// Returns the pause before the next restart of a process that ran for a time.
fn next_pause(last: Duration, ran: Duration) -> Duration {
    if ran > limits::ETCD_STEADY { limits::ETCD_RESTART } else { (last * 2).min(limits::ETCD_RESTART_MAX) }
}

/// Returns whether the settings of a running member are the same, apart from those that count at its first start.
fn is_same(old: &[u8], new: &Value) -> bool {
    let lasting = |mut config: Value| {
        if let Some(fields) = config.as_object_mut() {
            fields.retain(|key, _| !INITIAL.contains(&key.as_str()));
        }
        config
    };
    serde_json::from_slice(old).is_ok_and(|old| lasting(old) == lasting(new.clone()))
}

/// Returns the recorded process if it exists and was started with our configuration.
fn pid(dir: &Path) -> Option<Pid> {
    let number: i32 = fs::read_to_string(pid_file(dir)).ok()?.trim().parse().ok()?;
    let command = fs::read(format!("/proc/{number}/cmdline")).ok()?;
    let file = config_file(dir);
    let ours = command.split(|byte| *byte == 0).any(|word| word == file.as_os_str().as_encoded_bytes());
    ours.then(|| Pid::from_raw(number)).flatten()
}

/// Returns whether the process of a directory runs.
pub(super) fn is_alive(dir: &Path) -> bool {
    pid(dir).is_some()
}

/// Stops the etcd of a data directory, if one runs; its data stays.
pub async fn stop(data_dir: &Path) -> Result<()> {
    let dir = data_dir.join(DIR);
    stop_in(&dir).await?;
    match fs::remove_file(pid_file(&dir)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", pid_file(&dir).display()))
        }
        _ => Ok(()),
    }
}

async fn stop_in(dir: &Path) -> Result<()> {
    let Some(pid) = pid(dir) else { return Ok(()) };
    // Stands for this process and no other, whoever gets its number later.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    for signal in [Signal::TERM, Signal::KILL] {
        // It may have ended by itself.
        let _ = pidfd_send_signal(&process, signal);
        let began = Instant::now();
        while began.elapsed() < limits::ETCD_END {
            if !is_alive(dir) {
                return Ok(());
            }
            sleep(limits::ETCD_END_PAUSE).await;
        }
    }
    bail!("process {} of etcd does not end", pid.as_raw_nonzero())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn restarts_back_off_until_a_process_has_worked() {
        let mut pauses = Vec::new();
        let mut pause = limits::ETCD_RESTART;
        for _ in 0..7 {
            pause = next_pause(pause, Duration::from_secs(2));
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(next_pause(pause, limits::ETCD_STEADY + limits::ETCD_RESTART), limits::ETCD_RESTART);
    }

    #[test]
    fn running_member_is_adopted_if_lasting_settings_are_the_same() {
        let old = json!({"name": "a", "initial-cluster": "a=x", "initial-cluster-state": "new"});
        let old = old.to_string();
        assert!(is_same(old.as_bytes(), &json!({"name": "a"})));
        assert!(!is_same(old.as_bytes(), &json!({"name": "b"})));
        assert!(!is_same(b"{", &json!({"name": "a"})));
    }

    #[tokio::test]
    async fn process_of_another_configuration_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(DIR)).unwrap();
        let mut other = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        fs::write(dir.path().join(DIR).join("pid"), other.id().to_string()).unwrap();
        assert!(!is_alive(&dir.path().join(DIR)));
        stop(dir.path()).await.unwrap();
        assert!(other.try_wait().unwrap().is_none(), "it was signalled");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
