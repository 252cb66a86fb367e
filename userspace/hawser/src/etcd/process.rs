//! The process of etcd: started in a session of its own, adopted by the next start, restarted when it ends, stopped on
//! request.
//!
//! One process works on a directory: it has a lock on a file there from before its start to its end, as its standard input,
//! whatever becomes of the program that started it. The file with its number only says where to send signals, and counts
//! for a process that has the lock.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
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

fn lock_file(dir: &Path) -> PathBuf {
    dir.join("lock")
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
        loop {
            if let Some(lock) = take_lock(&self.dir)? {
                write_atomically(&file, format!("{config:#}\n").as_bytes())?;
                return self.exec_with(lock);
            }
            if recorded(&self.dir).await?.is_none() {
                // It has ended meanwhile.
                continue;
            }
            if fs::read(&file).is_ok_and(|old| is_same(&old, &config)) {
                info!("adopted the running etcd");
                return Ok(());
            }
            info!("restarting etcd with other settings");
            stop_in(&self.dir).await?;
        }
    }

    /// Starts the process with the configuration file that is there, unless one runs.
    pub(super) fn exec(&self) -> Result<()> {
        take_lock(&self.dir)?.map_or(Ok(()), |lock| self.exec_with(lock))
    }

    /// Starts the process and gives it the lock.
    fn exec_with(&self, lock: File) -> Result<()> {
        // The number of an earlier process says nothing of this one.
        remove_pid(&self.dir)?;
        let path = log_file(&self.dir);
        let long = fs::metadata(&path).is_ok_and(|log| log.len() > limits::ETCD_LOG);
        let opened = fs::OpenOptions::new().create(true).write(true).append(!long).truncate(long).open(&path);
        let log = opened.with_context(|| format!("cannot open {}", path.display()))?;
        let errors = log.try_clone().context("cannot share etcd's log")?;
        // `setsid` forks if it must, so the shell records the number of the final process.
        let script = r#"echo $$ > "$1" && exec "$2" --config-file "$3""#;
        let mut child = Command::new("setsid")
            .args(["sh", "-c", script, "sh"])
            .arg(pid_file(&self.dir))
            .arg(&self.program)
            .arg(config_file(&self.dir))
            .stdin(lock)
            .stdout(log)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        // Reap the child if it ends before we do.
        tokio::spawn(async move { child.wait().await });
        Ok(())
    }

    /// Returns an error if the process has ended.
    pub(super) fn check_alive(&self) -> Result<()> {
        if is_alive(&self.dir) {
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

/// Takes the lock of a directory for a process that is to be started; `None` if one has it.
fn take_lock(dir: &Path) -> Result<Option<File>> {
    let path = lock_file(dir);
    let opened = fs::OpenOptions::new().create(true).truncate(false).write(true).read(true).open(&path);
    let file = opened.with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Returns whether a process of a directory runs, or is about to.
pub(super) fn is_alive(dir: &Path) -> bool {
    let Ok(file) = File::open(lock_file(dir)) else { return false };
    // Shared, so that two who ask at the same time do not find each other.
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Returns the recorded process if it has the lock.
fn pid(dir: &Path) -> Option<Pid> {
    let number: i32 = fs::read_to_string(pid_file(dir)).ok()?.trim().parse().ok()?;
    let identity = |file: fs::Metadata| (file.dev(), file.ino());
    let input = fs::metadata(format!("/proc/{number}/fd/0")).map(identity).ok()?;
    let lock = fs::metadata(lock_file(dir)).map(identity).ok()?;
    (input == lock).then(|| Pid::from_raw(number)).flatten()
}

/// Waits until the process that has the lock has recorded its number; `None` if it has ended.
async fn recorded(dir: &Path) -> Result<Option<Pid>> {
    let began = Instant::now();
    while is_alive(dir) {
        if let Some(pid) = pid(dir) {
            return Ok(Some(pid));
        }
        if began.elapsed() > limits::ETCD_END {
            let lock = lock_file(dir);
            bail!(
                "a process has locked {0} and is not known: find it with `fuser {0}`, and end it",
                lock.display()
            );
        }
        sleep(limits::ETCD_END_PAUSE).await;
    }
    Ok(None)
}

fn remove_pid(dir: &Path) -> Result<()> {
    match fs::remove_file(pid_file(dir)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", pid_file(dir).display()))
        }
        _ => Ok(()),
    }
}

/// Stops the etcd of a data directory, if one runs; its data stays.
pub async fn stop(data_dir: &Path) -> Result<()> {
    let dir = data_dir.join(DIR);
    stop_in(&dir).await?;
    remove_pid(&dir)
}

async fn stop_in(dir: &Path) -> Result<()> {
    let Some(pid) = recorded(dir).await? else { return Ok(()) };
    // Stands for this process and no other, whoever gets its number later.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    // Its number may have become another's before.
    if self::pid(dir) != Some(pid) {
        return Ok(());
    }
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
    use std::process::Stdio;

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

    /// A process that ends with the test.
    struct Ends(std::process::Child);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Returns a member whose program writes a line and goes on until it is told to end, and whose directory is below
    /// `data`.
    fn member(data: &Path) -> LocalEtcd {
        let (program, dir) = (data.join("program"), data.join(DIR));
        if !program.exists() {
            fs::create_dir_all(&dir).unwrap();
            fs::write(&program, "#!/bin/sh\necho start >> \"$0.starts\"\nexec sleep 600\n").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        LocalEtcd {
            program,
            dir,
            pki: data.join("pki"),
            name: "a".to_owned(),
            ip: std::net::Ipv4Addr::LOCALHOST.into(),
            client_port: 2379,
            peer_port: 2380,
        }
    }

    /// Ends the process of a data directory when dropped, also if the test fails.
    struct Stops<'a>(&'a Path);

    impl Drop for Stops<'_> {
        fn drop(&mut self) {
            if let Some(pid) = pid(&self.0.join(DIR)) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }

    #[tokio::test]
    async fn process_without_the_lock_is_not_signalled() {
        let dir = tempfile::tempdir().unwrap();
        let etcd = member(dir.path());
        // It has the number and the command line of one that ended.
        let mut other = std::process::Command::new("sh");
        other.args(["-c", "read line", "--config-file"]).arg(config_file(&etcd.dir)).stdin(Stdio::piped());
        let mut other = Ends(other.spawn().unwrap());
        fs::write(pid_file(&etcd.dir), other.0.id().to_string()).unwrap();
        drop(take_lock(&etcd.dir).unwrap());
        assert!(!is_alive(&etcd.dir));
        stop(dir.path()).await.unwrap();
        assert!(other.0.try_wait().unwrap().is_none(), "it was signalled");
    }

    /// The program of [`process_outlives_its_starter_that_is_killed_and_is_found_by_the_next`]: starts a member and waits.
    #[test]
    #[ignore = "is run by another test"]
    fn starter() {
        let Some(data) = std::env::var_os("ETCD_STARTER") else { return };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            member(Path::new(&data)).spawn(None).await.unwrap();
            sleep(Duration::from_secs(600)).await;
        });
    }

    #[tokio::test]
    async fn process_outlives_its_starter_that_is_killed_and_is_found_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (etcd, _stops) = (member(dir.path()), Stops(dir.path()));
        let starter = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "etcd::process::tests::starter", "--ignored"])
            .env("ETCD_STARTER", dir.path())
            .stdout(Stdio::null())
            .spawn();
        let starter = Ends(starter.unwrap());
        let starts = || {
            let lines = fs::read_to_string(dir.path().join("program.starts")).unwrap_or_default();
            lines.lines().count()
        };
        let begun = async {
            while starts() == 0 {
                sleep(limits::ETCD_END_PAUSE).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), begun).await.unwrap();
        // SIGKILL, and nobody knows the number yet.
        drop(starter);
        let number = fs::read_to_string(pid_file(&etcd.dir)).unwrap();
        remove_pid(&etcd.dir).unwrap();
        assert!(is_alive(&etcd.dir) && take_lock(&etcd.dir).unwrap().is_none());
        etcd.exec().unwrap();
        let late = async {
            sleep(limits::ETCD_END_PAUSE * 3).await;
            fs::write(pid_file(&etcd.dir), &number).unwrap();
        };
        let (adopted, ()) = tokio::join!(etcd.spawn(None), late);
        adopted.unwrap();
        assert_eq!((starts(), fs::read_to_string(pid_file(&etcd.dir)).unwrap()), (1, number));
        // Other settings are another process, and the first one has ended by then.
        let first = pid(&etcd.dir).unwrap();
        LocalEtcd { client_port: 2389, ..etcd.clone() }.spawn(None).await.unwrap();
        let second = recorded(&etcd.dir).await.unwrap().unwrap();
        assert_ne!(first, second);
        stop(dir.path()).await.unwrap();
        assert!(!is_alive(&etcd.dir) && !pid_file(&etcd.dir).exists());
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_process_with_the_lock_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let etcd = member(dir.path());
        let _lock = take_lock(&etcd.dir).unwrap().unwrap();
        let said = etcd.spawn(None).await.unwrap_err().to_string();
        assert!(
            said.contains("fuser") && said.contains(&lock_file(&etcd.dir).display().to_string()),
            "{said}"
        );
        assert!(stop(dir.path()).await.is_err());
    }
}
