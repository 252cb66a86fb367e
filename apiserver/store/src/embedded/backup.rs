//! Snapshots: the present state in one file, which has the layout of a checkpoint. One is taken by
//! reading the directory, whether or not a store has it open, and put back either into a directory
//! that nobody has open or, as changes, into a running store.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::index::Index;
use super::{broken, checkpoint, log, recovery};
use crate::disk::{Disk, LockError, RealDisk};
use crate::limits::{READ_TRIES, RESTORED_REVISION};
use crate::{Revision, StoreError};

/// How long to let a store that writes go on before its directory is read once more.
const READ_PAUSE: Duration = Duration::from_millis(100);

/// A snapshot that was read and found sound.
pub struct Snapshot {
    index: Index,
}

/// A snapshot that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Revision of the state in it.
    pub revision: Revision,
    /// Keys in it.
    pub keys: u64,
    /// Size of the file.
    pub bytes: u64,
}

/// What a restore did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Newest revision afterwards.
    pub revision: Revision,
    /// Keys that were set.
    pub set: u64,
    /// Keys that were removed.
    pub removed: u64,
}

impl Snapshot {
    /// Reads a file. `Broken` says where it is damaged.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        Self::inspect(path)?.map_err(|offset| {
            let what = if offset == 0 { "it is no snapshot, or damaged" } else { "it is damaged" };
            unreadable(path, format!("{what} at byte {offset}; take another one"), None)
        })
    }

    /// Reads a file and answers where it is damaged (an offset), if it is. An error is about a file
    /// that cannot be read at all.
    pub(super) fn inspect(path: &Path) -> Result<Result<Self, usize>, StoreError> {
        let bytes = std::fs::read(path)
            .map_err(|error| unreadable(path, "the file cannot be read".to_owned(), Some(error)))?;
        Ok(Self::from_bytes(bytes))
    }

    /// Reads the bytes of a file. An error is where they are damaged (an offset).
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, usize> {
        checkpoint::read(bytes).map(|index| Self { index })
    }

    /// Revision of the state in it.
    pub fn revision(&self) -> Revision {
        self.index.revision
    }

    /// Keys in it.
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

/// Writes the state of a directory to a file, every write in it that was acknowledged before the
/// call. The directory is only read, and may be open in a running store; what is in the snapshot is
/// durable there too. The file appears whole or not at all.
pub async fn snapshot_directory(directory: &Path, to: &Path) -> Result<Taken, StoreError> {
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
    Ok(Taken { revision: taken.revision, keys: taken.keys, bytes: taken.bytes })
}

fn parent_and_name(path: &Path) -> Result<(&Path, String), StoreError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| StoreError::Broken {
        attempted: format!("write the snapshot {}", path.display()),
        why: "it is no name of a file".to_owned(),
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

/// Reads a directory that a running store may change meanwhile. A file that went, or a group that
/// was half written, is another picture a moment later; damage stays.
pub(super) async fn read_beside(disk: &RealDisk) -> Result<recovery::Found, StoreError> {
    let mut tries = 1;
    loop {
        let own = disk.clone();
        let read = tokio::task::spawn_blocking(move || {
            let found = recovery::read(&own)?;
            // The last group may not be durable yet, and what is shown must be.
            if let Some(tail) = &found.tail {
                own.sync_file(&tail.name).map_err(|error| {
                    broken(&own.describe(), format!("cannot sync {}", tail.name), Some(error))
                })?;
            }
            Ok(found)
        });
        let result = read.await.map_err(|error| {
            broken(&disk.describe(), "the reading was cut short", Some(io::Error::other(error)))
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

/// Puts a snapshot into a directory that no store has open, in place of what is there. The revision
/// never goes back: afterwards it is above that of the snapshot and of what was there by one, or by
/// `bump` where that is given. All of the past is compacted, so watches from before begin anew.
/// Blocks.
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
        LockError::Io(cause) => broken(&place, "cannot make the lock file", Some(cause)),
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
    // From here on a start finds the snapshot; what it makes superfluous goes, oldest first.
    for old in names.iter().filter(|old| **old != name && is_data(old)) {
        disk.remove(old).map_err(cannot("cannot remove what was there"))?;
    }
    disk.sync_directory().map_err(cannot("cannot sync the directory"))?;
    Ok(Restored { revision: taken.revision, set: taken.keys, removed: 0 })
}

/// Checkpoints come before segments in a sorted list, so no segment goes that one still needs.
fn is_data(name: &str) -> bool {
    checkpoint::revision_of(name).is_some() || log::sequence_of(name).is_some()
}

/// The newest revision that a directory may have shown to anyone, also where it is damaged; `None`
/// where it holds nothing.
fn newest_revision(disk: &dyn Disk, names: &[String]) -> Option<Revision> {
    if !names.iter().any(|name| is_data(name)) {
        return None;
    }
    match recovery::read(disk) {
        Ok(found) => Some(found.index.revision),
        Err(_) => {
            let seen = super::verify::newest_revision_seen(disk, names);
            // Nobody knows how much went on behind what can be read.
            Some(seen.saturating_add(super::UNKNOWN_BUMP))
        }
    }
}
