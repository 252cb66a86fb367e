//! A [`Disk`] in a directory of the operating system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation};

use super::{DirectoryLock, Disk, DiskFile, LockError};

/// Name of the file that is locked and contains the holder's process id.
const LOCK: &str = "LOCK";

/// A directory on a real file system.
#[derive(Clone, Debug)]
pub struct RealDisk {
    directory: PathBuf,
}

impl RealDisk {
    /// Uses a directory, creating it (accessible to the owner only) if it is missing.
    pub fn new(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Self { directory })
    }

    /// Uses an existing directory; does not create one.
    pub fn existing(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        if !fs::metadata(&directory)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { directory })
    }

    /// Returns the path of the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Disk for RealDisk {
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path(name))?;
        Ok(Box::new(RealFile { file }))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(name))
    }

    fn read_part(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.path(name))?;
        file.seek(io::SeekFrom::Start(offset))?;
        let mut bytes = Vec::with_capacity(length);
        file.take(length as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
                && name != LOCK
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    fn sync_file(&self, name: &str) -> io::Result<()> {
        File::open(self.path(name))?.sync_data()
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn lock(&self) -> Result<DirectoryLock, LockError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.path(LOCK))
            .map_err(LockError::Io)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // The process id is informational; the lock itself is what counts.
                let holder = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(LockError::InUse { holder });
            }
            Err(errno) => return Err(LockError::Io(errno.into())),
        }
        write_pid(&mut file).map_err(LockError::Io)?;
        Ok(Box::new(file))
    }

    fn blocks(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        self.directory.display().to_string()
    }
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

struct RealFile {
    file: File,
}

impl DiskFile for RealFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        // fdatasync flushes the size if it changed, but no timestamps.
        self.file.sync_data()
    }

    fn allocate(&mut self, size: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, size) {
            Ok(()) => Ok(()),
            // Some file systems cannot reserve space; a full disk then fails the write instead.
            Err(rustix::io::Errno::OPNOTSUPP) => self.file.set_len(size),
            Err(errno) => Err(errno.into()),
        }
    }

    fn truncate(&mut self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_names_the_holder_and_succeeds_after_release() {
        let directory = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(directory.path().join("data")).unwrap();
        let first = disk.lock().unwrap();
        let error = disk.lock().err().unwrap();
        assert!(matches!(error, LockError::InUse { holder: Some(pid) } if pid == std::process::id()));
        assert_eq!(error.to_string(), format!("in use by process {}", std::process::id()));
        drop(first);
        disk.lock().unwrap();
    }

    #[test]
    fn files_are_listed_read_renamed_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(directory.path()).unwrap();
        let _lock = disk.lock().unwrap();
        let mut file = disk.open("b").unwrap();
        file.allocate(16).unwrap();
        file.write_at(2, b"xy").unwrap();
        file.truncate(5).unwrap();
        file.sync().unwrap();
        disk.rename("b", "a").unwrap();
        disk.sync_directory().unwrap();
        assert_eq!(disk.list().unwrap(), ["a"]);
        assert_eq!(disk.read("a").unwrap(), b"\0\0xy\0");
        disk.remove("a").unwrap();
        assert!(disk.list().unwrap().is_empty());
    }
}
