//! The data directory: one process at a time, one format, and a record of what `down` has to remove.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::limits;

/// The version of the format, raised when an older program cannot read a newer one, or the other way round.
const VERSION: &str = "1";
/// The files of the directory itself, in the order in which they are removed after all others: until the last one is
/// gone, the directory is known as one of ours.
const OWN_FILES: [&str; 4] = ["version.next", "version", "lock", LEAVING];
/// The record of a `leave` that has begun.
const LEAVING: &str = "leaving.json";

/// A data directory, locked for this process until dropped.
pub struct DataDir {
    path: PathBuf,
    /// The directory was created by this process, or was empty when it was opened.
    fresh: bool,
    /// The parent directories that this process created for it, the innermost first.
    made: Vec<PathBuf>,
    /// Holds the lock.
    _lock: File,
}

/// The things outside of the directory that `up` made, for `down` to remove.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Made {
    pub node_name: String,
    /// The directory of the data plane's pins, if this process had one.
    pub bpf_root: Option<PathBuf>,
    /// The path below the cgroup file systems: `/` or `/some/group`.
    pub cgroup_root: String,
    /// The endpoint of a runtime that is not ours, if one was given.
    pub runtime_endpoint: Option<String>,
}

/// The facts that `leave` needs to finish what an earlier one began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// The Node to delete.
    pub node_name: Option<String>,
    /// The directory is that of a node that joined, and goes as a whole.
    pub joined: bool,
}

impl DataDir {
    /// Creates the directory if it is missing, locks it, and checks its version. Refuses one that `leave` has begun
    /// to remove.
    pub fn open(path: &Path) -> Result<Self> {
        let data = Self::open_any(path)?;
        if data.join(LEAVING).exists() {
            bail!("`hawser leave` has not finished with {}: run it again", data.path.display());
        }
        Ok(data)
    }

    /// Opens the directory for `leave`, which may have begun to remove it.
    pub fn open_to_leave(path: &Path) -> Result<Self> {
        if !path.join(LEAVING).exists() {
            return Self::open_existing(path);
        }
        Self::open_any(path)
    }

    fn open_any(path: &Path) -> Result<Self> {
        let missing = |directory: &&Path| !directory.as_os_str().is_empty() && !directory.exists();
        let made: Vec<PathBuf> = path.ancestors().take_while(missing).map(Path::to_owned).collect();
        fs::create_dir_all(path)
            .with_context(|| format!("cannot make the data directory {}", path.display()))?;
        let path = path
            .canonicalize()
            .with_context(|| format!("cannot resolve the data directory {}", path.display()))?;
        // A directory of others is refused before anything is written there.
        is_fresh(&path)?;
        let lock = lock(&path)?;
        // Another process may have used it, or given it up, until the lock was free.
        let fresh = is_fresh(&path)?;
        check_version(&path)?;
        Ok(Self { path, fresh, made, _lock: lock })
    }

    /// Opens the directory as [`DataDir::open`] does, but fails unless `up` has created it.
    pub fn open_existing(path: &Path) -> Result<Self> {
        if !path.join("version").exists() {
            bail!("{} is not a data directory of hawser: there is no file `version` in it", path.display());
        }
        Self::open(path)
    }

    /// Returns `true` if the directory was empty before this process; a start that fails then leaves nothing
    /// behind.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Empties a directory that this process created or found empty, and removes those parts of its path that
    /// this process created. Call it once nothing writes there any more.
    pub fn discard(&self) -> Result<()> {
        let entries = fs::read_dir(&self.path)
            .with_context(|| format!("cannot read the data directory {}", self.path.display()))?;
        let read = entries.collect::<std::io::Result<Vec<_>>>();
        let mut entries = read.with_context(|| format!("cannot read {}", self.path.display()))?;
        // Keys first: a directory of keys alone would be taken for that of a whole cluster.
        let keys = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("pki");
        entries.sort_by_key(|entry| {
            let name = entry.file_name();
            (!keys(&name), OWN_FILES.iter().position(|own| name == *own))
        });
        for entry in entries {
            let path = entry.path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            gone(removed).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        for directory in &self.made {
            match fs::remove_dir(directory) {
                Ok(()) => {}
                // Another process has begun to use the parent directory.
                Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => break,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot remove {}", directory.display()));
                }
            }
        }
        Ok(())
    }

    /// Empties the directory, whoever has created it, and removes it if that is possible. For state that means
    /// nothing any more.
    pub fn discard_all(mut self) -> Result<()> {
        self.made.insert(0, self.path.clone());
        self.discard()
    }

    /// Cleans up after work that failed: discards a fresh directory and leaves any other. The caller reports
    /// the failure itself, so errors of the removal are only logged.
    pub fn discard_if_fresh(self) {
        if self.fresh
            && let Err(error) = self.discard()
        {
            tracing::warn!(error = format!("{error:#}"), "cannot remove everything after the failure");
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.join("kubeconfig.yaml")
    }

    /// Records what is about to be made, before it is made.
    pub fn remember(&self, made: &Made) -> Result<()> {
        let text = serde_json::to_vec_pretty(made).context("cannot encode what up makes")?;
        write_atomically(&self.join("made.json"), &text)
    }

    /// Returns what an earlier `up` made; `None` if there is nothing to remove.
    pub fn made(&self) -> Result<Option<Made>> {
        let file = self.join("made.json");
        match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("cannot read {}", file.display()))
                .map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }

    /// Deletes the record, once everything that was made has been removed.
    pub fn forget(&self) -> Result<()> {
        let file = self.join("made.json");
        gone(fs::remove_file(&file)).with_context(|| format!("cannot remove {}", file.display()))
    }

    /// Records that `leave` has begun, before anything is removed.
    pub fn begin_to_leave(&self, leaving: &Leaving) -> Result<()> {
        let text = serde_json::to_vec_pretty(leaving).context("cannot encode what leave does")?;
        write_atomically(&self.join(LEAVING), &text)
    }

    /// Deletes that record, once nothing else is left to do.
    pub fn end_of_leave(&self) -> Result<()> {
        let file = self.join(LEAVING);
        gone(fs::remove_file(&file)).with_context(|| format!("cannot remove {}", file.display()))
    }
}

/// Returns the record of a `leave` that has begun, also without the lock.
pub fn leaving(path: &Path) -> Result<Option<Leaving>> {
    let file = path.join(LEAVING);
    let cannot = || format!("cannot read {}", file.display());
    match fs::read(&file) {
        Ok(text) => serde_json::from_slice(&text).with_context(cannot).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(cannot),
    }
}

/// Takes a file that is not there for one that was removed.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Returns `true` if the directory is empty. One with foreign files is refused: `down` removes by name, and
/// must not remove what belongs to others. One with nothing but the shared keys of another API server counts
/// as empty, but must not be discarded.
fn is_fresh(path: &Path) -> Result<bool> {
    if path.join("version").exists() || path.join(LEAVING).exists() {
        return Ok(false);
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut shared = false;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", path.display()))?;
        match entry.file_name().to_str() {
            // Left behind by a crash during the very first start, or during the removal of the directory.
            Some("lock" | "version.next") => {}
            Some("pki") => shared = true,
            _ => {
                bail!("{} is not empty and not a data directory of hawser: give an empty one", path.display())
            }
        }
    }
    Ok(!shared)
}

#[expect(clippy::disallowed_methods, reason = "before there is anything else to do")]
fn lock(path: &Path) -> Result<File> {
    let file = path.join("lock");
    let open = || {
        let opened = OpenOptions::new().create(true).read(true).write(true).truncate(false).open(&file);
        opened.with_context(|| format!("cannot open {}", file.display()))
    };
    let mut lock = open()?;
    let until = Instant::now() + limits::DATA_DIR_WAIT;
    let moment = Instant::now() + limits::FORK_WAIT;
    loop {
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Its last holder may have removed the file, and the lock of that one is nobody's.
            if is_same(&lock, &file) {
                break;
            }
            lock = open()?;
            continue;
        }
        let mut pid = String::new();
        // The message is true without the process id, too.
        let _ = lock.rewind().and_then(|()| lock.read_to_string(&mut pid));
        let pid = pid.trim();
        // A child that this process has just forked holds its locks until it runs its program.
        let may_end = is_dying(pid) || is_self(pid) && Instant::now() < moment;
        if !may_end || Instant::now() > until {
            bail!("the data directory {} is in use by process {pid}: stop that first", path.display());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut write = || -> std::io::Result<()> {
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())
    };
    write().with_context(|| format!("cannot write {}", file.display()))?;
    Ok(lock)
}

/// Returns whether a path leads to an open file.
pub fn is_same(open: &File, path: &Path) -> bool {
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    let open = open.metadata().map(id);
    open.is_ok_and(|open| fs::metadata(path).map(id).is_ok_and(|found| found == open))
}

/// Returns `true` if a process that was killed has not yet released its resources, which takes a second for
/// some gigabytes: it has no memory any more by then, and therefore no command line.
fn is_dying(pid: &str) -> bool {
    pid.parse::<u32>()
        .is_ok_and(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty()))
}

fn is_self(pid: &str) -> bool {
    pid.parse() == Ok(std::process::id())
}

fn check_version(path: &Path) -> Result<()> {
    let file = path.join("version");
    match fs::read_to_string(&file) {
        Ok(text) if text.trim() == VERSION => Ok(()),
        Ok(text) => bail!(
            "the data directory {} has format {}, this hawser reads format {VERSION}: use the hawser that made it, \
             or another directory",
            path.display(),
            text.trim()
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            write_atomically(&file, format!("{VERSION}\n").as_bytes())
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", file.display())),
    }
}

/// Writes a file so that it has either its old or its new content, whenever the machine stops.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    let next = path.with_extension("next");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&next)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&next, path)?;
        // The rename itself is durable once the directory is.
        path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a process that has ended and that nobody has waited for.
    fn zombie() -> std::process::Child {
        let dead = std::process::Command::new("true").spawn().unwrap();
        let stat = format!("/proc/{}/stat", dead.id());
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::sleep(Duration::from_millis(5));
        }
        dead
    }

    #[test]
    fn a_directory_in_use_names_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let _held = DataDir::open(dir.path()).unwrap();
        let error = DataDir::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
    }

    /// Regression: a server that held gigabytes still had its lock a second after `kill -9`, and its
    /// successor gave up.
    #[test]
    fn the_lock_of_a_process_that_is_dying_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let held = DataDir::open(dir.path()).unwrap();
        // Nobody has waited for the process, so it is a zombie without memory of its own.
        let mut dead = zombie();
        fs::write(dir.path().join("lock"), dead.id().to_string()).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| DataDir::open(dir.path()).map(drop));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!next.is_finished());
            drop(held);
            next.join().unwrap().unwrap();
        });
        dead.wait().unwrap();
    }

    #[test]
    fn another_format_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("version"), "99\n").unwrap();
        let error = DataDir::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("has format 99"), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join("version")).unwrap(), "99\n");
    }

    #[test]
    fn a_directory_with_files_of_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine.txt"), "").unwrap();
        let error = DataDir::open(dir.path()).err().unwrap().to_string();
        assert!(error.contains("not a data directory of hawser"), "{error}");
        assert!(!dir.path().join("version").exists());
    }

    #[test]
    fn keys_of_another_server_may_be_there_first_and_are_not_discarded() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("pki")).unwrap();
        fs::write(dir.path().join("pki/ca.key"), "secret").unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        assert!(!data.is_fresh());
        assert!(dir.path().join("version").exists());
    }

    /// A machine that was switched off during the first start could not start again.
    #[test]
    fn a_first_start_that_was_killed_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["lock", "version.next"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        let data = DataDir::open(dir.path()).unwrap();
        assert!(data.is_fresh() && dir.path().join("version").exists());
    }

    #[test]
    fn a_directory_that_another_process_has_used_meanwhile_is_not_fresh() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();
        // Wait for the lock as if its holder were dying.
        let mut dead = zombie();
        fs::write(dir.path().join("lock"), dead.id().to_string()).unwrap();
        // The directory looks fresh to those who look now.
        fs::remove_file(dir.path().join("version")).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| DataDir::open(dir.path()).map(|data| data.is_fresh()));
            std::thread::sleep(Duration::from_millis(200));
            fs::write(dir.path().join("version"), "1\n").unwrap();
            drop(first);
            assert!(!next.join().unwrap().unwrap());
        });
        dead.wait().unwrap();
    }

    #[test]
    fn the_lock_of_a_file_that_was_removed_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let held = DataDir::open(dir.path()).unwrap();
        let mut dead = zombie();
        fs::write(dir.path().join("lock"), dead.id().to_string()).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| DataDir::open(dir.path()));
            std::thread::sleep(Duration::from_millis(200));
            fs::remove_file(dir.path().join("lock")).unwrap();
            drop(held);
            let next = next.join().unwrap().unwrap();
            assert!(DataDir::open(dir.path()).is_err(), "it holds the lock of the new file");
            drop(next);
        });
        dead.wait().unwrap();
    }

    #[test]
    fn a_leave_that_was_killed_is_finished_by_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node");
        let record = Leaving { node_name: Some("b".to_owned()), joined: true };
        DataDir::open(&path).unwrap().begin_to_leave(&record).unwrap();
        // Whatever a killed one has removed, nothing but another leave uses the directory.
        for removed in ["", "version", "lock"] {
            gone(fs::remove_file(path.join(removed))).unwrap_or_default();
            let error = DataDir::open(&path).err().unwrap().to_string();
            assert!(error.contains("`hawser leave` has not finished"), "{removed}: {error}");
            let data = DataDir::open_to_leave(&path).unwrap();
            assert!(!data.is_fresh());
            assert_eq!(leaving(&path).unwrap(), Some(record.clone()));
        }
        DataDir::open_to_leave(&path).unwrap().discard_all().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn discard_keeps_files_that_existed_before() {
        let dir = tempfile::tempdir().unwrap();
        let work = |path: &Path| {
            let data = DataDir::open(path).unwrap();
            fs::create_dir(data.join("pki")).unwrap();
            fs::write(data.join("pki/ca.key"), "secret").unwrap();
            data.discard_if_fresh();
        };
        work(&dir.path().join("a/b/c"));
        assert!(!dir.path().join("a").exists());
        fs::create_dir(dir.path().join("empty")).unwrap();
        work(&dir.path().join("empty"));
        assert_eq!(fs::read_dir(dir.path().join("empty")).unwrap().count(), 0);
        let used = dir.path().join("used");
        drop(DataDir::open(&used).unwrap());
        DataDir::open(&used).unwrap().discard_if_fresh();
        assert!(used.join("version").exists());
    }

    #[test]
    fn record_of_the_node_is_kept_until_removal() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let made = Made {
            node_name: "n".to_owned(),
            bpf_root: Some("/sys/fs/bpf/x".into()),
            cgroup_root: "/".to_owned(),
            runtime_endpoint: None,
        };
        data.remember(&made).unwrap();
        assert_eq!(data.made().unwrap().unwrap().node_name, "n");
        data.forget().unwrap();
        assert!(data.made().unwrap().is_none());
    }
}
