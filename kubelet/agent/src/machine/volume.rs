//! Volumes on the node: empty directories, and sets of files that are updated atomically.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    path::Path,
};

use rustix::fs::FileType;
use sha2::{Digest, Sha256};

use super::{
    beneath::{Dir, Links, set_group},
    mounts::{self, Memory},
};
use crate::volumes::File;

/// Name of the symbolic link that is switched when files change.
const DATA: &str = "..data";
/// Temporary name of the new link before the switch.
const NEW_DATA: &str = "..data_tmp";
/// Permission bits of the directories of a volume of files.
const DIRECTORY: u32 = 0o755;

/// Creates an empty directory below `volumes` unless it exists. Its permission bits are set only once,
/// because the pod may change them later.
pub(super) fn empty(
    volumes: &Dir,
    name: &str,
    memory: bool,
    size: Option<i64>,
    group: Option<u32>,
) -> io::Result<()> {
    if memory {
        let mode = if group.is_some() { 0o2777 } else { 0o777 };
        let size = size.and_then(|size| u64::try_from(size).ok());
        return mounts::memory(volumes, name, &Memory { size, inodes: None, mode, group }).map(drop);
    }
    if volumes.dir(name).is_ok() {
        return Ok(());
    }
    // No volume can have this name. The directory gets its final name once it is complete.
    let unfinished = format!(".{name}");
    volumes.remove_tree(&unfinished)?;
    let dir = volumes.create_dir(&unfinished, 0o777)?;
    if let Some(group) = group {
        dir.give_to_group(group)?;
    }
    volumes.rename(unfinished, name)
}

/// Creates or updates a volume of files below `volumes`.
pub(super) fn files(
    volumes: &Dir,
    name: &str,
    files: &BTreeMap<String, File>,
    in_memory: bool,
    group: Option<u32>,
) -> io::Result<()> {
    let directory = if in_memory {
        mounts::memory(volumes, name, &Memory { size: None, inodes: None, mode: DIRECTORY, group: None })?
    } else {
        volumes.make_dir(name, DIRECTORY)?
    };
    write_files(&directory, files, group)
}

/// Updates the files of a volume. Readers see either all old or all new files.
fn write_files(directory: &Dir, files: &BTreeMap<String, File>, group: Option<u32>) -> io::Result<()> {
    let generation = format!("..{}", fingerprint(files, group));
    if directory.read_link(DATA).ok().as_deref() != Some(Path::new(&generation)) {
        // May have been left half-written by a kubelet that died.
        directory.remove_tree(&generation)?;
        write_generation(&directory.create_dir(&generation, DIRECTORY)?, files, group)?;
        directory.remove_tree(NEW_DATA)?;
        directory.symlink(&generation, NEW_DATA)?;
        directory.rename(NEW_DATA, DATA)?;
    }
    let wanted: BTreeSet<&str> = files.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &wanted {
        let target = Path::new(DATA).join(name);
        if directory.read_link(name).ok().as_deref() != Some(target.as_path()) {
            directory.remove_tree(name)?;
            directory.symlink(target, name)?;
        }
    }
    for name in directory.names(usize::MAX)? {
        let shown = name.to_string_lossy();
        let kind = directory.node(&name, Links::Refused)?.kind();
        let old_link = kind == FileType::Symlink && !shown.starts_with("..") && !wanted.contains(&*shown);
        let old_generation = kind == FileType::Directory && shown.starts_with("..") && *shown != *generation;
        if old_link || old_generation {
            directory.remove_tree(&name)?;
        }
    }
    Ok(())
}

fn write_generation(directory: &Dir, files: &BTreeMap<String, File>, group: Option<u32>) -> io::Result<()> {
    for (path, file) in files {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = directory.make_dirs(parent, DIRECTORY)?;
        let mode = if group.is_some() { file.mode | 0o440 } else { file.mode };
        let mut written = parent.create_file(name, mode)?;
        written.write_all(&file.content)?;
        if let Some(group) = group {
            set_group(&written, group)?;
        }
    }
    Ok(())
}

fn fingerprint(files: &BTreeMap<String, File>, group: Option<u32>) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{group:?}"));
    for (path, file) in files {
        hash.update(format!("{path}\0{:o}\0{}\0", file.mode, file.content.len()));
        hash.update(&file.content);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, symlink},
        sync::atomic::{AtomicBool, Ordering},
    };

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    use super::*;

    fn payload(list: &[(&str, &str, u32)]) -> BTreeMap<String, File> {
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

    fn update(volume: &Path, list: &[(&str, &str, u32)]) -> io::Result<()> {
        write_files(&Dir::open_trusted(volume).unwrap(), &payload(list), None)
    }

    #[test]
    fn files_are_replaced_all_at_once() {
        let volume = tempfile::tempdir().unwrap();
        let volume = volume.path();
        update(volume, &[("a", "1", 0o644), ("d/b", "2", 0o400)]).unwrap();
        assert_eq!(fs::read_to_string(volume.join("d/b")).unwrap(), "2");
        assert_eq!(fs::metadata(volume.join("d/b")).unwrap().mode() & 0o777, 0o400);
        assert_eq!(fs::read_link(volume.join("a")).unwrap(), Path::new("..data/a"));
        let first = fs::read_link(volume.join(DATA)).unwrap();

        update(volume, &[("a", "1", 0o644), ("d/b", "2", 0o400)]).unwrap();
        assert_eq!(fs::read_link(volume.join(DATA)).unwrap(), first, "nothing changed");

        update(volume, &[("a", "3", 0o644), ("c", "4", 0o644)]).unwrap();
        assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "3");
        assert_eq!(visible(volume), ["a", "c"]);
        assert!(!volume.join(first).exists());
    }

    #[test]
    fn names_that_leave_the_volume_are_refused() {
        let volume = tempfile::tempdir().unwrap();
        for path in ["../x", "/x", "a/../../x"] {
            assert!(update(volume.path(), &[(path, "x", 0o644)]).is_err(), "{path}");
        }
        assert!(!volume.path().parent().unwrap().join("x").exists());
    }

    /// A container with write access to the volume replaces the directory that the kubelet writes into with a
    /// link to one of the node's.
    #[test]
    fn an_update_writes_nothing_through_links_that_a_container_planted() {
        const UPDATES: usize = 400;
        let (volume, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(host.path().join("kept"), "host").unwrap();
        let link = volume.path().join("planted");
        let lists: Vec<_> =
            ["1", "2"].iter().map(|text| vec![("d/a", *text, 0o600), ("d/b", *text, 0o600)]).collect();
        let victims: Vec<_> = lists
            .iter()
            .map(|list| volume.path().join(format!("..{}", fingerprint(&payload(list), None))).join("d"))
            .collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = symlink(host.path(), &link);
                    for victim in &victims {
                        let _ = renameat_with(CWD, &link, CWD, victim, RenameFlags::EXCHANGE);
                    }
                    let _ = fs::remove_dir_all(&link);
                }
            });
            for index in 0..UPDATES {
                // An update that was disturbed fails and is retried later.
                let _ = update(volume.path(), &lists[index % 2]);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(visible(host.path()), ["kept"]);
        assert_eq!(fs::read_to_string(host.path().join("kept")).unwrap(), "host");
    }

    #[test]
    fn an_empty_directory_appears_complete_and_its_mode_is_left_to_the_pod() {
        let place = tempfile::tempdir().unwrap();
        let volumes = Dir::open_trusted(place.path()).unwrap();
        fs::create_dir(place.path().join(".v")).unwrap();
        empty(&volumes, "v", false, None, None).unwrap();
        assert_eq!(visible(place.path()), ["v"]);
        assert_eq!(volumes.dir("v").unwrap().mode().unwrap(), 0o777);
        volumes.dir("v").unwrap().set_mode(0o700).unwrap();
        empty(&volumes, "v", false, None, None).unwrap();
        assert_eq!(volumes.dir("v").unwrap().mode().unwrap(), 0o700);
    }
}
