//! Directories, mounts and the writer that replaces all files of a volume at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink},
    path::{Component, Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use sha2::{Digest, Sha256};

use super::{MachineError, Result};
use crate::volumes::File;

/// The link that is switched when files change.
const DATA: &str = "..data";

pub(super) fn make_dir(path: &Path, mode: u32) -> Result<()> {
    let error = |source| MachineError::new("make the directory", path, source);
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(error)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(error)
}

/// Writes a file by way of a temporary one, unless it is the same already.
pub(super) fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let error = |source| MachineError::new("write", path, source);
    fs::write(path, content).map_err(error)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(error)
}

/// Gives a directory to a group, so that what is made in it belongs to the group, too.
pub(super) fn give_to_group(path: &Path, group: i64) -> Result<()> {
    let error = |source| MachineError::new("give to its group", path, source);
    let group = u32::try_from(group).map_err(|e| error(io::Error::other(e)))?;
    chown(path, None, Some(group)).map_err(error)?;
    let mode = fs::metadata(path).map_err(error)?.mode();
    fs::set_permissions(path, fs::Permissions::from_mode((mode | 0o2070) & 0o7777)).map_err(error)
}

/// Makes the files of a volume what they shall be. Readers see all old or all new files.
pub(super) fn write_files(
    directory: &Path,
    files: &BTreeMap<String, File>,
    group: Option<i64>,
) -> Result<()> {
    let generation = format!("..{}", fingerprint(files, group));
    let link = directory.join(DATA);
    let before = fs::read_link(&link).ok();
    if before.as_deref() != Some(Path::new(&generation)) {
        let target = directory.join(&generation);
        write_generation(&target, files, group)?;
        let new_link = directory.join("..data_tmp");
        let error = |source| MachineError::new("switch the files of", directory, source);
        remove_if_there(&new_link).map_err(error)?;
        symlink(&generation, &new_link).map_err(error)?;
        fs::rename(&new_link, &link).map_err(error)?;
    }
    let error = |source| MachineError::new("link the files of", directory, source);
    let wanted: BTreeSet<&str> = files.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &wanted {
        let (visible, target) = (directory.join(name), Path::new(DATA).join(name));
        if fs::read_link(&visible).ok().as_deref() != Some(target.as_path()) {
            remove_if_there(&visible).map_err(error)?;
            symlink(target, &visible).map_err(error)?;
        }
    }
    for entry in fs::read_dir(directory).map_err(error)? {
        let entry = entry.map_err(error)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let kind = entry.file_type().map_err(error)?;
        if kind.is_symlink() && !name.starts_with("..") && !wanted.contains(name.as_ref()) {
            fs::remove_file(entry.path()).map_err(error)?;
        } else if kind.is_dir() && name.starts_with("..") && *name != *generation {
            fs::remove_dir_all(entry.path()).map_err(error)?;
        }
    }
    Ok(())
}

fn write_generation(target: &Path, files: &BTreeMap<String, File>, group: Option<i64>) -> Result<()> {
    // One that a dead kubelet left half-written.
    if target.exists() {
        fs::remove_dir_all(target).map_err(|source| MachineError::new("remove", target, source))?;
    }
    make_dir(target, 0o755)?;
    for (path, file) in files {
        let path = target.join(path);
        if let Some(parent) = path.parent() {
            make_dir(parent, 0o755)?;
        }
        let mode = if group.is_some() { file.mode | 0o440 } else { file.mode };
        write_file(&path, &file.content, mode)?;
        if let Some(group) = group.and_then(|group| u32::try_from(group).ok()) {
            chown(&path, None, Some(group))
                .map_err(|source| MachineError::new("give to its group", &path, source))?;
        }
    }
    Ok(())
}

fn fingerprint(files: &BTreeMap<String, File>, group: Option<i64>) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{group:?}"));
    for (path, file) in files {
        hash.update(format!("{path}\0{:o}\0{}\0", file.mode, file.content.len()));
        hash.update(&file.content);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Mounts a file system in memory, unless one is there. `size` is in bytes.
pub(super) fn mount_memory(path: &Path, size: Option<i64>) -> Result<()> {
    if mounts_below(path)?.iter().any(|mounted| mounted == path) {
        return Ok(());
    }
    let options = size.map_or_else(String::new, |size| format!("size={size},")) + "mode=0777";
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.as_str()))
        .map_err(|errno| MachineError::new("mount a tmpfs on", path, errno))
}

/// Removes a directory with all in it, after everything below it was unmounted. Refuses where
/// something stays mounted: nothing behind a mount is ever removed.
pub(super) fn remove_with_mounts(path: &Path) -> Result<()> {
    let mut mounted = mounts_below(path)?;
    mounted.reverse();
    for point in &mounted {
        umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|errno| MachineError::new("unmount", point, errno))?;
    }
    if let Some(left) = mounts_below(path)?.first() {
        return Err(MachineError::new("remove what holds", left, io::Error::other("still mounted")));
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(MachineError::new("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// Mount points at or below a path, in the order in which they were mounted.
pub(crate) fn mounts_below(path: &Path) -> Result<Vec<PathBuf>> {
    // Of this thread: a process may have threads in several namespaces.
    let table = Path::new("/proc/thread-self/mountinfo");
    let text = fs::read_to_string(table).map_err(|source| MachineError::new("read", table, source))?;
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Ok(mount_points(&text).filter(|point| point.starts_with(&path)).collect())
}

fn mount_points(mountinfo: &str) -> impl Iterator<Item = PathBuf> {
    mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(|field| PathBuf::from(unescape(field)))
}

/// The table writes blanks as octal numbers.
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

/// Resolves a path inside a volume and makes sure that it stays there, links included.
pub(super) fn sub_path(volume: &Path, sub_path: &str) -> Result<PathBuf> {
    let outside = || {
        MachineError::new(
            "use outside of its volume",
            Path::new(sub_path),
            io::Error::from(io::ErrorKind::InvalidInput),
        )
    };
    let relative = Path::new(sub_path);
    if relative.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(outside());
    }
    let error = |source| MachineError::new("resolve", &volume.join(sub_path), source);
    let root = fs::canonicalize(volume).map_err(error)?;
    let mut path = root.clone();
    for part in relative.components() {
        path.push(part);
        if fs::symlink_metadata(&path).is_err() {
            make_dir(&path, 0o755)?;
        }
        path = fs::canonicalize(&path).map_err(error)?;
        if !path.starts_with(&root) {
            return Err(outside());
        }
    }
    Ok(path)
}

/// Checks a path of the node against `hostPath.type`, and makes what may be made.
pub(super) fn check_host_path(path: &Path, kind: &str) -> Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let unexpected = |what: &'static str| {
        MachineError::new(
            "use as a hostPath",
            path,
            io::Error::other(format!("hostPath type check failed: {what}")),
        )
    };
    let meta = fs::metadata(path).ok();
    let is =
        |check: &dyn Fn(&fs::FileType) -> bool| meta.as_ref().is_some_and(|meta| check(&meta.file_type()));
    match kind {
        "DirectoryOrCreate" if meta.is_none() => make_dir(path, 0o755),
        "FileOrCreate" if meta.is_none() => write_file(path, b"", 0o644),
        "" if meta.is_none() => make_dir(path, 0o755),
        "" => Ok(()),
        "Directory" | "DirectoryOrCreate" if is(&fs::FileType::is_dir) => Ok(()),
        "File" | "FileOrCreate" if is(&fs::FileType::is_file) => Ok(()),
        "Socket" if is(&|t| t.is_socket()) => Ok(()),
        "CharDevice" if is(&|t| t.is_char_device()) => Ok(()),
        "BlockDevice" if is(&|t| t.is_block_device()) => Ok(()),
        "Directory" | "DirectoryOrCreate" => Err(unexpected("not a directory")),
        "File" | "FileOrCreate" => Err(unexpected("not a file")),
        "Socket" => Err(unexpected("not a socket")),
        "CharDevice" => Err(unexpected("not a character device")),
        "BlockDevice" => Err(unexpected("not a block device")),
        _ => Err(unexpected("unknown type")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str, u32)]) -> BTreeMap<String, File> {
        list.iter()
            .map(|(path, text, mode)| {
                ((*path).to_owned(), File { content: text.as_bytes().to_vec(), mode: *mode })
            })
            .collect()
    }

    fn visible(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with(".."))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_replaced_all_at_once() {
        let volume = tempfile::tempdir().unwrap();
        let volume = volume.path();
        write_files(volume, &files(&[("a", "1", 0o644), ("d/b", "2", 0o400)]), None).unwrap();
        assert_eq!(fs::read_to_string(volume.join("d/b")).unwrap(), "2");
        assert_eq!(fs::metadata(volume.join("d/b")).unwrap().mode() & 0o777, 0o400);
        assert_eq!(fs::read_link(volume.join("a")).unwrap(), Path::new("..data/a"));
        let first = fs::read_link(volume.join(DATA)).unwrap();

        write_files(volume, &files(&[("a", "1", 0o644), ("d/b", "2", 0o400)]), None).unwrap();
        assert_eq!(fs::read_link(volume.join(DATA)).unwrap(), first, "nothing changed");

        write_files(volume, &files(&[("a", "3", 0o644), ("c", "4", 0o644)]), None).unwrap();
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "3");
        assert_eq!(visible(volume), ["a", "c"]);
        assert!(!volume.join(first).exists());
    }

    #[test]
    fn sub_paths_stay_inside_even_through_links() {
        let volume = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(volume.path()).unwrap();
        assert_eq!(sub_path(&root, "a/b").unwrap(), root.join("a/b"));
        assert!(root.join("a/b").is_dir());
        symlink("/etc", root.join("out")).unwrap();
        symlink("a/b", root.join("in")).unwrap();
        assert_eq!(sub_path(&root, "in").unwrap(), root.join("a/b"));
        assert!(sub_path(&root, "out").is_err());
        assert!(sub_path(&root, "out/passwd").is_err());
        assert!(sub_path(&root, "../x").is_err() && sub_path(&root, "/etc").is_err());
    }

    #[test]
    fn host_paths_are_checked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        assert!(check_host_path(&path, "Directory").is_err() && !path.exists());
        check_host_path(&path, "DirectoryOrCreate").unwrap();
        check_host_path(&path, "Directory").unwrap();
        let error = check_host_path(&path, "File").unwrap_err();
        assert!(error.source.to_string().contains("not a file"));
        check_host_path(&directory.path().join("f"), "FileOrCreate").unwrap();
        assert!(check_host_path(&path, "Nonsense").is_err());
    }

    #[test]
    fn mount_points_with_blanks() {
        let text = "36 35 98:0 / /mnt/a\\040b rw - ext3 /dev/root rw\n37 35 0:1 / /x rw - tmpfs t rw\n";
        let points: Vec<PathBuf> = mount_points(text).collect();
        assert_eq!(points, [Path::new("/mnt/a b"), Path::new("/x")]);
    }
}
