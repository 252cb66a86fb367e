//! The disk operations that the embedded store needs: one flat directory of files. The operations block. The
//! store runs them on a thread of its own or, if the disk reports that it never waits, in the async runtime
//! itself, which makes the simulation single-threaded and repeatable.

mod real;
mod sim;

use std::any::Any;
use std::io;
use std::time::Duration;

pub use real::RealDisk;
pub use sim::{Faults, SimDisk};

/// Excludes others from the directory until it is dropped.
pub type DirectoryLock = Box<dyn Any + Send + Sync>;

/// Reason for which the directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The directory is open in another process or in another store of this process.
    #[error("in use by process {}", .holder.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string()))]
    InUse {
        /// Process id of the holder, if it could be read.
        holder: Option<u32>,
    },
    /// The lock file could not be created.
    #[error("cannot create the lock file")]
    Io(#[source] io::Error),
}

/// A directory of files.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file for reading and writing, creating it if needed. A new file survives a crash only after
    /// `sync_directory`.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;

    /// Returns the whole content of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Returns up to `length` bytes of a file starting at an offset; fewer only at its end.
    fn read_part(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Returns the names of all files, sorted.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Atomically replaces `to` by `from`; survives a crash only after `sync_directory`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file; survives a crash only after `sync_directory`.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the content of an existing file durable, which another process may have written.
    fn sync_file(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and removals durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// Locks the directory.
    fn lock(&self) -> Result<DirectoryLock, LockError>;

    /// Returns `true` if calls may wait for hardware and therefore need a thread of their own.
    fn blocks(&self) -> bool;

    /// Returns the virtual duration of a sync; used only if `blocks` is false.
    fn sync_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns a description of this directory for error messages.
    fn describe(&self) -> String;
}

/// An open file.
pub trait DiskFile: Send {
    /// Writes all bytes at an offset; durable only after `sync`.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes the content durable, and the size as far as needed to read the content.
    fn sync(&mut self) -> io::Result<()>;

    /// Reserves space up to this size, filled with zeros, so that later writes need none.
    fn allocate(&mut self, size: u64) -> io::Result<()>;

    /// Truncates the file to this size.
    fn truncate(&mut self, size: u64) -> io::Result<()>;
}
