//! Measures the disk usage of a directory tree. Containers may write into the tree at the same time, so no
//! link is followed, no mount is crossed, and a tree that is too deep or too wide to be measured counts as
//! larger than any limit.

use std::{ffi::OsStr, io, os::unix::ffi::OsStrExt};

use rustix::{
    fs::{AtFlags, FileType, statat},
    io::Errno,
};

use super::beneath::Dir;
use crate::limits::{WALK_DEPTH, WALK_ENTRIES};

/// A measurement in progress.
pub(super) struct Walk {
    /// Id of the mount that the tree is on.
    mount: u64,
    /// Directories from the root to the current one, each with its remaining entries.
    levels: Vec<(Dir, rustix::fs::Dir)>,
    /// Bytes counted so far.
    used: u64,
    /// Entries visited so far.
    seen: u64,
}

impl Walk {
    pub fn new(top: Dir) -> io::Result<Self> {
        let entries = rustix::fs::Dir::read_from(&top)?;
        Ok(Self { mount: top.mount_id()?, levels: vec![(top, entries)], used: 0, seen: 0 })
    }

    /// Visits up to `names` entries; returns the size of the tree in bytes once all have been visited.
    pub fn step(&mut self, names: usize) -> io::Result<Option<u64>> {
        for _ in 0..names {
            let Some((_, entries)) = self.levels.last_mut() else { return Ok(Some(self.used)) };
            match entries.next() {
                Some(Ok(entry)) => {
                    let name = entry.file_name().to_bytes();
                    if name != b"." && name != b".." {
                        self.add(OsStr::from_bytes(name))?;
                    }
                }
                // The directory has been removed in the meantime.
                None | Some(Err(Errno::NOENT)) => drop(self.levels.pop()),
                Some(Err(error)) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    fn add(&mut self, name: &OsStr) -> io::Result<()> {
        self.seen += 1;
        if self.seen > WALK_ENTRIES {
            self.give_up();
        }
        let Some((parent, _)) = self.levels.last() else { return Ok(()) };
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        let size = u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(512);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            // All hard links of a file are expected within this tree, so each accounts for its share.
            #[allow(clippy::useless_conversion, reason = "the type differs between architectures")]
            let links = u64::from(stat.st_nlink).max(1);
            self.used = self.used.saturating_add(size.div_ceil(links));
            return Ok(());
        }
        let dir = match parent.dir(name) {
            Ok(dir) if dir.mount_id()? == self.mount => dir,
            Ok(_) => return Ok(()),
            Err(error) if was_changed(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.used = self.used.saturating_add(size);
        if self.levels.len() >= WALK_DEPTH {
            self.give_up();
            return Ok(());
        }
        let entries = rustix::fs::Dir::read_from(&dir)?;
        self.levels.push((dir, entries));
        Ok(())
    }

    /// Stops measuring a tree that is too large.
    fn give_up(&mut self) {
        self.levels.clear();
        self.used = u64::MAX;
    }
}

/// Returns `true` if an error means that the entry was removed or replaced after it had been listed.
fn was_changed(error: &io::Error) -> bool {
    let errors = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP];
    errors.iter().any(|changed| error.raw_os_error() == Some(changed.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, symlink},
        path::Path,
    };

    use super::*;

    fn measure(path: &Path, step: usize) -> u64 {
        let mut walk = Walk::new(Dir::open_trusted(path).unwrap()).unwrap();
        loop {
            if let Some(used) = walk.step(step).unwrap() {
                return used;
            }
        }
    }

    fn on_disk(path: &Path) -> u64 {
        fs::metadata(path).unwrap().blocks() * 512
    }

    #[test]
    fn a_tree_is_measured_by_its_blocks_in_steps_of_any_size() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path();
        fs::create_dir_all(top.join("a/b")).unwrap();
        for (name, size) in [("x", 100_000), ("a/y", 5000), ("a/b/z", 1)] {
            fs::write(top.join(name), vec![1; size]).unwrap();
        }
        // A hole occupies no disk space.
        fs::File::create(top.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        let expected: u64 =
            ["x", "a", "a/y", "a/b", "a/b/z"].iter().map(|name| on_disk(&top.join(name))).sum();
        for step in [1, 3, 1000] {
            assert_eq!(measure(top, step), expected);
        }
    }

    #[test]
    fn links_are_not_followed_and_hard_links_count_once() {
        let (place, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = place.path();
        fs::write(host.path().join("large"), vec![1; 1 << 20]).unwrap();
        symlink(host.path(), top.join("directory")).unwrap();
        symlink(host.path().join("large"), top.join("file")).unwrap();
        let links = on_disk_of_links(top);
        assert_eq!(measure(top, 10), links);
        fs::write(top.join("x"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(top.join("x"), top.join("y")).unwrap();
        assert_eq!(measure(top, 10), links + on_disk(&top.join("x")));
    }

    fn on_disk_of_links(top: &Path) -> u64 {
        fs::read_dir(top).unwrap().map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum()
    }

    #[test]
    fn a_tree_that_is_too_deep_counts_as_larger_than_any_limit() {
        let place = tempfile::tempdir().unwrap();
        let dirs = |depth: usize| place.path().join(vec!["d"; depth].join("/"));
        fs::create_dir_all(dirs(WALK_DEPTH - 1)).unwrap();
        assert!(measure(place.path(), 7) < 1 << 30);
        fs::create_dir_all(dirs(WALK_DEPTH)).unwrap();
        assert_eq!(measure(place.path(), 7), u64::MAX);
    }
}
