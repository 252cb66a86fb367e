//! The exclusive right to a directory of pins: one process at a time loads, writes or removes what is below
//! it. It is a lock of the directory itself, since a BPF file system has no plain files. The kernel releases
//! it when the process ends for whatever reason.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::bpffs;
use crate::limits::LOCK_ATTEMPTS;

/// The lock, held as long as this value lives.
#[derive(Debug)]
pub struct RootLock {
    _directory: File,
}

/// The directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "{holder} works on {}: stop it first, or name another directory with --bpf-root",
        root.display()
    )]
    Held { root: PathBuf, holder: Holder },
    #[error("cannot lock {}", root.display())]
    Io {
        root: PathBuf,
        #[source]
        cause: io::Error,
    },
}

/// The holder of a lock, as far as visible from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Process id and name; `None` if the process is in a namespace that is not visible.
    pub process: Option<(u32, String)>,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.process {
            Some((pid, name)) => write!(f, "another proxy ({name}, process {pid})"),
            None => f.write_str("another proxy"),
        }
    }
}

impl RootLock {
    /// Takes the lock of `root`, which is created, on a BPF file system, if necessary.
    ///
    /// # Errors
    /// Fails if another process has it, or if the directory cannot be created or opened.
    pub fn take(root: &Path) -> Result<Self, LockError> {
        for _ in 0..LOCK_ATTEMPTS {
            bpffs::prepare(root).map_err(|cause| failed(root, cause))?;
            if let Some(lock) = Self::try_existing(root)? {
                return Ok(lock);
            }
        }
        Err(failed(root, io::Error::other("it is removed again and again")))
    }

    /// Takes the lock as [`RootLock::take`] does; `None` if there is no such directory, and so nothing to
    /// protect.
    ///
    /// # Errors
    /// Those of [`RootLock::take`].
    pub fn take_existing(root: &Path) -> Result<Option<Self>, LockError> {
        for _ in 0..LOCK_ATTEMPTS {
            if !root.exists() {
                return Ok(None);
            }
            if let Some(lock) = Self::try_existing(root)? {
                return Ok(Some(lock));
            }
        }
        Err(failed(root, io::Error::other("it is removed again and again")))
    }

    /// Tries once; `None` if the directory was removed or replaced before it was locked.
    fn try_existing(root: &Path) -> Result<Option<Self>, LockError> {
        let directory = match File::open(root) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(root, error)),
        };
        let ours = identity(&directory.metadata().map_err(|cause| failed(root, cause))?);
        match directory.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::Held { root: root.to_owned(), holder: holder(ours) });
            }
            Err(TryLockError::Error(cause)) => return Err(failed(root, cause)),
        }
        let now = fs::metadata(root).ok().map(|now| identity(&now));
        Ok((now == Some(ours)).then_some(Self { _directory: directory }))
    }
}

fn failed(root: &Path, cause: io::Error) -> LockError {
    LockError::Io { root: root.to_owned(), cause }
}

/// Device and inode.
fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn holder(directory: (u64, u64)) -> Holder {
    let pid = fs::read_to_string("/proc/locks").ok().and_then(|table| locker(&table, directory));
    let named = |pid: u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some((pid, name.trim().to_owned()))
    };
    Holder { process: pid.and_then(named) }
}

/// Returns the process that holds a lock, from the kernel's table of locks.
fn locker(table: &str, (device, inode): (u64, u64)) -> Option<u32> {
    let place = format!("{:02x}:{:02x}:{inode}", libc::major(device), libc::minor(device));
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        // A waiter is listed below, with an arrow in front.
        (words.next()? == "FLOCK").then_some(())?;
        let pid = words.nth(2)?;
        (words.next()? == place).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_and_the_next_when_it_lets_go() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        assert!(RootLock::take_existing(&root).unwrap().is_none());
        fs::create_dir(&root).unwrap();
        let first = RootLock::take_existing(&root).unwrap().unwrap();
        let said = RootLock::take_existing(&root).unwrap_err().to_string();
        let us = format!("process {}", std::process::id());
        assert!(said.contains(&root.display().to_string()) && said.contains(&us), "{said}");
        assert!(said.contains("stop it first"), "{said}");
        drop(first);
        let second = once_free(&root);
        // Removing the directory frees the name at once: a new one is another directory.
        fs::remove_dir(&root).unwrap();
        fs::create_dir(&root).unwrap();
        let third = RootLock::take_existing(&root).unwrap().unwrap();
        drop((second, third));
    }

    /// Takes the lock once it is free: a child that another test starts has our descriptors until it executes
    /// another program.
    fn once_free(root: &Path) -> RootLock {
        for _ in 0..500 {
            if let Ok(lock) = RootLock::take_existing(root) {
                return lock.unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("nobody holds {} and nobody can have it", root.display());
    }

    #[test]
    fn the_kernels_table_names_the_holder() {
        let table = "1: POSIX  ADVISORY  WRITE 77 08:01:12 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 4711 00:1d:912 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 5 00:1d:912 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 8 103:02:12 0 EOF\n";
        assert_eq!(locker(table, (libc::makedev(0, 0x1d), 912)), Some(4711));
        assert_eq!(locker(table, (libc::makedev(0x103, 2), 12)), Some(8));
        assert_eq!(locker(table, (libc::makedev(8, 1), 12)), None);
    }

    /// Pins need such a file system.
    #[test]
    #[ignore = "needs root and eBPF: cargo xtask test"]
    fn a_directory_of_a_bpf_file_system_can_be_locked_and_a_killed_holder_leaves_no_lock() {
        let root = PathBuf::from(format!("/sys/fs/bpf/hawser-lock-{}", std::process::id()));
        let lock = RootLock::take(&root).unwrap();
        assert!(matches!(RootLock::take(&root), Err(LockError::Held { .. })));
        drop(lock);
        let mut other = std::process::Command::new("flock")
            .args(["--exclusive", "--no-fork"])
            .arg(&root)
            .args(["sleep", "60"])
            .spawn()
            .unwrap();
        let until = |held: bool| {
            for _ in 0..500 {
                if matches!(RootLock::take(&root), Err(LockError::Held { .. })) == held {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            panic!("held is not {held}");
        };
        until(true);
        other.kill().unwrap();
        other.wait().unwrap();
        until(false);
        crate::remove(&root).unwrap();
    }
}
