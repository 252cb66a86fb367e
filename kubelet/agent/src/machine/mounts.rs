//! Mounts: in-memory file systems, bind mounts of open files, and a list of the mounts below a directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::{
    fs::FileType,
    io::Errno,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

use super::{
    MachineError, Result,
    beneath::{Dir, Links, Node, proc_path},
};

/// An in-memory file system (tmpfs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// Size in bytes; half of the machine's memory if not set.
    pub size: Option<u64>,
    /// Maximum number of files and directories; unlimited if not set.
    pub inodes: Option<u64>,
    /// Permission bits of the root directory.
    pub mode: u32,
    /// Group of the root directory.
    pub group: Option<u32>,
}

impl Memory {
    fn options(&self) -> String {
        let mut options = format!("mode=0{:o}", self.mode);
        for (name, number) in
            [("size", self.size), ("nr_inodes", self.inodes), ("gid", self.group.map(u64::from))]
        {
            options.extend(number.map(|number| format!(",{name}={number}")));
        }
        options
    }
}

/// Opens the in-memory file system that is mounted on a directory directly below `parent`, mounting it first
/// if needed.
pub(super) fn memory(parent: &Dir, name: &str, memory: &Memory) -> io::Result<Dir> {
    let dir = parent.make_dir(name, 0o755)?;
    if dir.mount_id()? != parent.mount_id()? {
        return Ok(dir);
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let options = memory.options();
    mount(Some("tmpfs"), proc_path(&dir).as_str(), Some("tmpfs"), flags, Some(options.as_str()))?;
    parent.dir(name)
}

/// Bind-mounts `node` on an entry directly below `parent`. Later changes to its path do not affect the mount.
pub(super) fn bind(node: &Node, parent: &Dir, name: &str) -> io::Result<()> {
    if node.kind() == FileType::Directory {
        parent.create_dir(name, 0o750)?;
    } else {
        parent.create_file(name, 0o640)?;
    }
    let target = parent.node(name, Links::Refused)?;
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let flags_to = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    let moved = open_tree(node, "", flags).and_then(|tree| move_mount(&tree, "", &target, "", flags_to));
    match moved {
        // An old kernel, or a sandbox that does not support the calls.
        Err(Errno::NOSYS | Errno::PERM) => {
            let (from, to) = (proc_path(node), proc_path(&target));
            Ok(mount(Some(from.as_str()), to.as_str(), None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
        }
        result => Ok(result?),
    }
}

/// Unmounts everything at and below a path, the last mount first.
pub(super) fn unmount_below(path: &Path) -> Result<()> {
    let mut mounted = mounts_below(path)?;
    mounted.reverse();
    for point in &mounted {
        umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|errno| MachineError::new("unmount", point, errno))?;
    }
    match mounts_below(path)?.first() {
        Some(left) => Err(MachineError::new("remove what holds", left, io::Error::other("still mounted"))),
        None => Ok(()),
    }
}

/// Removes a path after unmounting everything at and below it. Fails if a mount remains: nothing behind a
/// mount is ever removed.
pub(super) fn remove_with_mounts(path: &Path) -> Result<()> {
    let error = |source| MachineError::new("remove", path, source);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(error(io::Error::from(io::ErrorKind::InvalidInput)));
    };
    unmount_below(path)?;
    match Dir::open_trusted(parent) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        parent => parent.and_then(|parent| parent.remove_tree(name)).map_err(error),
    }
}

/// Returns the mount points at or below a path, in mount order.
fn mounts_below(path: &Path) -> Result<Vec<PathBuf>> {
    // The table of this thread, since threads of a process may be in different mount namespaces.
    let table = Path::new("/proc/thread-self/mountinfo");
    let text = fs::read_to_string(table).map_err(|source| MachineError::new("read", table, source))?;
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Ok(mount_points(&text).filter(|point| point.starts_with(&path)).collect())
}

fn mount_points(mountinfo: &str) -> impl Iterator<Item = PathBuf> {
    mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(|field| PathBuf::from(unescape(field)))
}

/// Decodes a field of the mount table, in which blanks are octal escapes.
fn unescape(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                text.push(char::from(byte));
                text.push_str(&part[3..]);
            }
            None => {
                text.push('\\');
                text.push_str(part);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_in_mount_points_are_decoded() {
        let text = "36 35 98:0 / /mnt/a\\040b rw - ext3 /dev/root rw\n37 35 0:1 / /x rw - tmpfs t rw\n";
        let points: Vec<PathBuf> = mount_points(text).collect();
        assert_eq!(points, [Path::new("/mnt/a b"), Path::new("/x")]);
    }

    #[test]
    fn options_of_an_in_memory_file_system_are_rendered() {
        let memory = Memory { size: Some(65_536), inodes: Some(16), mode: 0o2777, group: Some(7) };
        assert_eq!(memory.options(), "mode=02777,size=65536,nr_inodes=16,gid=7");
        assert_eq!(Memory { size: None, inodes: None, mode: 0o755, group: None }.options(), "mode=0755");
    }
}
