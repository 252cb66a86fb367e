//! Snapshots: the current state in one file with the layout of a checkpoint. One is taken by reading the
//! directory, whether or not a store has it open, and restored either into a directory that is not open or,
//! as ordinary changes, into a running store.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::index::Index;
use super::{broken, checkpoint, log, recovery};
use crate::disk::{Disk, LockError, RealDisk};
use crate::limits::{READ_TRIES, RESTORED_REVISION};
use crate::{Revision, StoreError};

/// Delay before the directory of a running store is read again.
const READ_PAUSE: Duration = Duration::from_millis(100);

/// A snapshot that was read and verified.
pub struct Snapshot {
    index: Index,
}

/// Facts about a snapshot that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Revision of the state.
    pub revision: Revision,
    /// Number of keys.
    pub keys: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Result of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Newest revision after the restore.
    pub revision: Revision,
    /// Number of keys that were set.
    pub set: u64,
    /// Number of keys that were removed.
    pub removed: u64,
}

impl Snapshot {
    /// Reads a file. `Broken` says where it is damaged.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        Self::inspect(path)?.map_err(|offset| {
            let what = if offset == 0 { "it is not a snapshot, or is damaged" } else { "it is damaged" };
            unreadable(path, format!("{what} at byte {offset}; take another one"), None)
        })
    }

    /// Reads a file; the inner error is the offset at which it is damaged. The outer error means that the
    /// file cannot be read at all.
    pub(super) fn inspect(path: &Path) -> Result<Result<Self, usize>, StoreError> {
        let bytes = std::fs::read(path)
            .map_err(|error| unreadable(path, "the file cannot be read".to_owned(), Some(error)))?;
        Ok(Self::from_bytes(bytes))
    }

    /// Reads the bytes of a file; the error is the offset at which they are damaged.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, usize> {
        checkpoint::read(bytes).map(|index| Self { index })
    }

    /// Returns the revision of the state.
    pub fn revision(&self) -> Revision {
        self.index.revision
    }

    /// Returns the number of keys.
    pub fn keys(&self) -> u64 {
        self.index.live
    }

    pub(super) fn into_index(self) -> Index {
        self.index
    }
}

fn unreadable(path: &Path, why: String, cause: Option<io::Error>) -> StoreError {
    StoreError::Broken { attempted: format!("read the snapshot {}", path.display()), why, cause }
}

/// Writes the state of a directory to a file, including every write that was acknowledged before the call.
/// The directory is only read, and may be open in a running store; what is in the snapshot is durable in the
/// directory, too. The file appears complete or not at all.
pub async fn snapshot_directory(directory: &Path, to: &Path) -> Result<SnapshotInfo, StoreError> {
    let disk = open_existing(directory)?;
    let found = read_beside(&disk).await?;
    let (parent, name) = parent_and_name(to)?;
    let cannot = |cause| StoreError::Broken {
        attempted: format!("write the snapshot {}", to.display()),
        why: "the file cannot be written".to_owned(),
        cause: Some(cause),
    };
    let target = RealDisk::existing(parent).map_err(cannot)?;
    let index = found.index;
    let write = move || checkpoint::write_state(&target, &name, index.revision, &mut index.at_present());
    let taken = tokio::task::spawn_blocking(write)
        .await
        .map_err(|error| cannot(io::Error::other(error)))?
        .map_err(cannot)?;
    Ok(SnapshotInfo { revision: taken.revision, keys: taken.keys, bytes: taken.bytes })
}

fn parent_and_name(path: &Path) -> Result<(&Path, String), StoreError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| StoreError::Broken {
        attempted: format!("write the snapshot {}", path.display()),
        why: "it is not a file name".to_owned(),
        cause: None,
    })?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok((parent.unwrap_or_else(|| Path::new(".")), name.to_owned()))
}

pub(super) fn open_existing(directory: &Path) -> Result<RealDisk, StoreError> {
    RealDisk::existing(directory).map_err(|error| {
        broken(&directory.display().to_string(), "the directory cannot be read", Some(error))
    })
}

/// Reads a directory that a running store may change at the same time. A missing file or a half-written group
/// disappears on a later try; damage stays.
pub(super) async fn read_beside(disk: &RealDisk) -> Result<recovery::Found, StoreError> {
    let mut tries = 1;
    loop {
        let own = disk.clone();
        let read = tokio::task::spawn_blocking(move || {
            let found = recovery::read(&own)?;
            // The last group may not be durable yet, but what is returned must be.
            if let Some(tail) = &found.tail {
                own.sync_file(&tail.name).map_err(|error| {
                    broken(&own.describe(), format!("cannot sync {}", tail.name), Some(error))
                })?;
            }
            Ok(found)
        });
        let result = read.await.map_err(|error| {
            broken(&disk.describe(), "reading was interrupted", Some(io::Error::other(error)))
        })?;
        match result {
            Err(_) if tries < READ_TRIES => {
                tries += 1;
                tokio::time::sleep(READ_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Restores a snapshot into a directory that no store has open, replacing its content. The revision never
/// goes back: afterwards it exceeds that of the snapshot and of the old content by one, or by `bump` if
/// given. The whole history is compacted, so existing watches must start over. Blocks.
pub fn restore_directory(
    disk: &Arc<dyn Disk>,
    snapshot: Snapshot,
    bump: Option<Revision>,
) -> Result<Restored, StoreError> {
    let place = disk.describe();
    let cannot = |what: &'static str| {
        let place = place.clone();
        move |cause: io::Error| broken(&place, what, Some(cause))
    };
    let _lock = disk.lock().map_err(|error| match error {
        LockError::InUse { .. } => broken(&place, error.to_string(), None),
        LockError::Io(cause) => broken(&place, "cannot create the lock file", Some(cause)),
    })?;
    recovery::make_format(disk.as_ref(), &place)?;
    let names = disk.list().map_err(cannot("cannot list the files"))?;
    let before = newest_revision(disk.as_ref(), &names);
    let mut index = snapshot.into_index();
    let newest = index.revision.max(before.unwrap_or(0));
    let bump = bump.unwrap_or(if before.is_some() { 1 } else { super::UNKNOWN_BUMP });
    index.revision = newest.saturating_add(bump.max(0));
    if index.revision > RESTORED_REVISION {
        let why = format!(
            "revision {newest} and {bump} more are above {RESTORED_REVISION}, the highest that a restore may lead to"
        );
        return Err(broken(&place, why, None));
    }
    let name = checkpoint::name(index.revision);
    let taken = checkpoint::write_state(disk.as_ref(), &name, index.revision, &mut index.at_present())
        .map_err(cannot("cannot write the state"))?;
    // From here on a start finds the snapshot; obsolete files are removed, oldest first.
    for old in names.iter().filter(|old| **old != name && is_data(old)) {
        disk.remove(old).map_err(cannot("cannot remove the old files"))?;
    }
    disk.sync_directory().map_err(cannot("cannot sync the directory"))?;
    Ok(Restored { revision: taken.revision, set: taken.keys, removed: 0 })
}

/// Checkpoints sort before segments, so no segment is removed that is still needed.
fn is_data(name: &str) -> bool {
    checkpoint::revision_of(name).is_some() || log::sequence_of(name).is_some()
}

/// Returns the newest revision that a directory may have shown to any client, even if it is damaged; `None`
/// if it is empty.
fn newest_revision(disk: &dyn Disk, names: &[String]) -> Option<Revision> {
    if !names.iter().any(|name| is_data(name)) {
        return None;
    }
    match recovery::read(disk) {
        Ok(found) => Some(found.index.revision),
        Err(_) => {
            let seen = super::verify::newest_revision_seen(disk, names);
            // It is unknown how many writes followed after what can be read.
            Some(seen.saturating_add(super::UNKNOWN_BUMP))
        }
    }
}
