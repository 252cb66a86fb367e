//! What the embedded store needs of a disk: one flat directory of files. The operations block;
//! the store runs them on a thread of its own, or, where the disk says that it never waits, in
//! the async runtime itself, which makes the simulation single-threaded and repeatable.

mod real;
mod sim;

use std::any::Any;
use std::io;
use std::time::Duration;

pub use real::RealDisk;
pub use sim::{Faults, SimDisk};

/// Keeps others out of the directory until it is dropped.
pub type DirectoryLock = Box<dyn Any + Send + Sync>;

/// Why the directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process, or another store of this process, has it open.
    #[error("in use by process {}", .holder.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string()))]
    InUse {
        /// Process id of the holder, where it could be read.
        holder: Option<u32>,
    },
    /// The lock file could not be made.
    #[error("cannot make the lock file")]
    Io(#[source] io::Error),
}

/// One directory.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file for reading and writing, making it if it is not there. A new file survives a
    /// crash only after `sync_directory`.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// The whole content of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// At most `length` bytes of a file from an offset on; fewer only where it ends.
    fn read_part(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Names of all files, sorted.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Replaces `to` by `from` in one step; survives a crash only after `sync_directory`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file; survives a crash only after `sync_directory`.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the content of a file durable that is there; another process may have written it.
    fn sync_file(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and removals durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// Claims the directory.
    fn lock(&self) -> Result<DirectoryLock, LockError>;

    /// True if calls may wait for hardware and therefore belong on a thread of their own.
    fn blocks(&self) -> bool;

    /// How long a sync is to take in virtual time; only asked where `blocks` is false.
    fn sync_time(&self) -> Duration {
        Duration::ZERO
    }

    /// What an operator calls this directory, for error messages.
    fn describe(&self) -> String;
}

/// One open file.
pub trait DiskFile: Send {
    /// Writes all bytes at an offset; durable only after `sync`.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes the content durable, and the size as far as it is needed to read the content.
    fn sync(&mut self) -> io::Result<()>;

    /// Reserves space up to this size, filled with zeros, so that later writes need none.
    fn allocate(&mut self, size: u64) -> io::Result<()>;

    /// Cuts the file off at this size.
    fn truncate(&mut self, size: u64) -> io::Result<()>;
}
