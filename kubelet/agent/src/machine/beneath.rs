//! Access to files below a directory that is held by its descriptor. Containers write into some of these
//! directories while the kubelet works on them, so nothing here resolves a path twice, follows a link out of
//! the directory, or opens anything but directories and regular files.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Component, Path, PathBuf},
    sync::LazyLock,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, StatxFlags, fchmod,
        fchown, fstat, mkdirat, openat, openat2, readlinkat, renameat_with, statx, symlinkat, unlinkat,
    },
    io::Errno,
};

use crate::limits::{REMOVAL_BATCH, REMOVAL_DEPTH, RESOLVE_RETRIES, SYMBOLIC_LINKS};

/// Treatment of symbolic links while a path is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// Links are errors.
    Refused,
    /// Links are followed while they stay below the directory. Absolute links never do.
    Inside,
}

/// Method of resolving paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolver {
    /// Uses `openat2(2)`.
    Kernel,
    /// Walks one component at a time, for old kernels and sandboxes that lack the call.
    Walk,
}

impl Resolver {
    fn detect() -> Self {
        static FOUND: LazyLock<Resolver> = LazyLock::new(|| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            match openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::BENEATH) {
                Ok(_) => Resolver::Kernel,
                Err(_) => Resolver::Walk,
            }
        });
        *FOUND
    }
}

/// A directory, held by its descriptor.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    resolver: Resolver,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    /// Opens a directory by a path that no container can change; links are followed.
    pub fn open_trusted(path: &Path) -> io::Result<Self> {
        let fd = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { fd, resolver: Resolver::detect() })
    }

    /// Opens a directory below this one. Refuses links.
    pub fn dir(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        Ok(self.wrap(self.resolve(path.as_ref(), flags, Links::Refused)?))
    }

    /// Opens a directory below this one, also through links that stay below it.
    pub fn dir_through_links(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Ok(self.wrap(self.resolve(path.as_ref(), flags, Links::Inside)?))
    }

    /// Opens a directory directly below this one, creating it if needed. A new directory has exactly this
    /// mode.
    pub fn make_dir(&self, name: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
        let name = component(name.as_ref())?;
        match self.create_dir(name, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.dir(name),
            made => made,
        }
    }

    /// Creates a directory directly below this one.
    pub fn create_dir(&self, name: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
        let name = component(name.as_ref())?;
        mkdirat(&self.fd, name, Mode::RWXU)?;
        let made = self.dir(name)?;
        made.set_mode(mode)?;
        Ok(made)
    }

    /// Opens a directory below this one, creating the missing components of its path. Refuses links.
    pub fn make_dirs(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
        let mut dir = self.try_clone()?;
        for part in normal(path.as_ref())? {
            dir = dir.make_dir(part, mode)?;
        }
        Ok(dir)
    }

    /// Finds an entry below this directory without opening it: the descriptor can only be used to inspect and
    /// to mount it.
    pub fn node(&self, path: impl AsRef<Path>, links: Links) -> io::Result<Node> {
        let flags = match links {
            Links::Refused => OFlags::PATH | OFlags::NOFOLLOW,
            Links::Inside => OFlags::PATH,
        };
        Node::new(self.resolve(path.as_ref(), flags, links)?)
    }

    /// Opens a regular file below this directory. Refuses links, devices, pipes and sockets without opening
    /// them.
    pub fn open_regular(&self, path: impl AsRef<Path>, flags: OFlags) -> io::Result<File> {
        self.node(path, Links::Refused)?.open_regular(flags)
    }

    /// Creates a file directly below this directory; fails if the name exists.
    pub fn create_file(&self, name: impl AsRef<Path>, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, component(name.as_ref())?, flags, Mode::RUSR | Mode::WUSR)?;
        fchmod(&fd, mode_of(mode))?;
        Ok(File::from(fd))
    }

    /// Creates a symbolic link directly below this directory.
    pub fn symlink(&self, target: impl AsRef<Path>, name: impl AsRef<Path>) -> io::Result<()> {
        Ok(symlinkat(target.as_ref(), &self.fd, component(name.as_ref())?)?)
    }

    /// Returns the target of a symbolic link directly below this directory.
    pub fn read_link(&self, name: impl AsRef<Path>) -> io::Result<PathBuf> {
        let target = readlinkat(&self.fd, component(name.as_ref())?, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    /// Renames an entry of this directory, replacing an entry with the new name.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (from, to) = (component(from.as_ref())?, component(to.as_ref())?);
        Ok(renameat_with(&self.fd, from, &self.fd, to, RenameFlags::empty())?)
    }

    /// Removes an entry that is not a directory; succeeds if there is none.
    pub fn remove_file(&self, name: impl AsRef<Path>) -> io::Result<()> {
        match unlinkat(&self.fd, component(name.as_ref())?, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Removes an entry and everything below it; succeeds if there is none. Follows no links and crosses no
    /// mounts, however deep or wide the tree is.
    pub fn remove_tree(&self, name: impl AsRef<Path>) -> io::Result<()> {
        let name = component(name.as_ref())?;
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let dir = self.dir(name)?;
        if dir.mount_id()? != self.mount_id()? {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "something is mounted there"));
        }
        let mut removal = Removal { mount: dir.mount_id()?, top: dir.try_clone()?, moved: 0 };
        removal.empty(&dir, 0)?;
        Ok(unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Returns up to `limit` names in this directory, in no particular order.
    pub fn names(&self, limit: usize) -> io::Result<Vec<OsString>> {
        let entries = rustix::fs::Dir::read_from(&self.fd)?;
        let names = entries.filter_map(|entry| match entry {
            Ok(entry) => {
                let name = entry.file_name().to_bytes();
                let listed = name != b"." && name != b"..";
                listed.then(|| Ok(OsStr::from_bytes(name).to_owned()))
            }
            Err(error) => Some(Err(error.into())),
        });
        names.take(limit).collect()
    }

    /// Sets the permission bits of this directory.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fchmod(&self.fd, mode_of(mode))?)
    }

    /// Returns the permission bits of this directory.
    pub fn mode(&self) -> io::Result<u32> {
        Ok(fstat(&self.fd)?.st_mode & 0o7777)
    }

    /// Changes the group of this directory and sets its set-group-ID bit, so that new entries inherit the
    /// group.
    pub fn give_to_group(&self, group: u32) -> io::Result<()> {
        set_group(&self.fd, group)?;
        self.set_mode(self.mode()? | 0o2070)
    }

    /// Returns the id of the mount that this directory is on.
    pub fn mount_id(&self) -> io::Result<u64> {
        mount_id(&self.fd)
    }

    /// Duplicates the descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.wrap(self.fd.try_clone()?))
    }

    fn wrap(&self, fd: OwnedFd) -> Self {
        Self { fd, resolver: self.resolver }
    }

    fn resolve(&self, path: &Path, flags: OFlags, links: Links) -> io::Result<OwnedFd> {
        // Refuse paths that leave the directory textually before accessing anything.
        let parts = normal(path)?;
        let path: PathBuf = if parts.is_empty() { PathBuf::from(".") } else { parts.iter().collect() };
        let flags = flags | OFlags::CLOEXEC;
        if self.resolver == Resolver::Kernel {
            let mut how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            if links == Links::Refused {
                how |= ResolveFlags::NO_SYMLINKS;
            }
            for _ in 0..RESOLVE_RETRIES {
                match openat2(&self.fd, &path, flags, Mode::empty(), how) {
                    // An entry was renamed during the lookup.
                    Err(Errno::AGAIN) => {}
                    result => return Ok(result?),
                }
            }
        }
        Ok(walk(&self.fd, &parts, flags, links)?)
    }
}

/// An entry below a directory that was found but not opened.
#[derive(Debug)]
pub(crate) struct Node {
    fd: OwnedFd,
    stat: Stat,
}

impl Node {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&fd)?;
        Ok(Self { fd, stat })
    }

    /// Returns the type of the entry.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Opens the entry if it is a regular file; devices, pipes and sockets are refused without opening them.
    pub fn open_regular(&self, flags: OFlags) -> io::Result<File> {
        if self.kind() != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(File::from(reopen(&self.fd, flags)?))
    }

    /// Opens the entry if it is a directory.
    pub fn open_dir(&self) -> io::Result<Dir> {
        let fd = reopen(&self.fd, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Dir { fd, resolver: Resolver::detect() })
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or_default()
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Changes the group of an open file or directory.
pub(crate) fn set_group(file: impl AsFd, group: u32) -> io::Result<()> {
    Ok(fchown(file, None, Some(Gid::from_raw(group)))?)
}

/// Returns a path to an open file that this process can use and that passes through no link.
pub(crate) fn proc_path(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

fn mode_of(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

fn reopen(fd: &OwnedFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(CWD, proc_path(fd), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

fn outside() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the path leaves its directory")
}

/// Splits a relative path into its components; fails if it contains `..`.
pub(crate) fn normal(path: &Path) -> io::Result<Vec<&OsStr>> {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts
        .map(|part| match part {
            Component::Normal(name) => Ok(name),
            _ => Err(outside()),
        })
        .collect()
}

/// Checks that a name is a single path component.
pub(crate) fn component(path: &Path) -> io::Result<&Path> {
    let whole = path.as_os_str().as_bytes();
    let one = !whole.is_empty() && !whole.contains(&b'/') && whole != b"." && whole != b"..";
    if one { Ok(path) } else { Err(outside()) }
}

/// Resolves a path as `openat2` does with `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS`. `..` in a link goes
/// back along the directories that were traversed, never to the current parent of a directory, which may have
/// been moved.
fn walk(root: &OwnedFd, parts: &[&OsStr], flags: OFlags, links: Links) -> rustix::io::Result<OwnedFd> {
    let mut left: Vec<OsString> = parts.iter().rev().map(|part| (*part).to_owned()).collect();
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut followed = 0;
    while let Some(part) = left.pop() {
        if part == ".." {
            above.pop().ok_or(Errno::XDEV)?;
            continue;
        }
        let here = above.last().unwrap_or(root);
        let node = openat(here, part, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let is_last = left.is_empty();
        match FileType::from_raw_mode(fstat(&node)?.st_mode) {
            FileType::Symlink if links == Links::Inside => {
                followed += 1;
                if followed > SYMBOLIC_LINKS {
                    return Err(Errno::LOOP);
                }
                let target = readlinkat(&node, "", Vec::new())?.into_bytes();
                if target.starts_with(b"/") {
                    return Err(Errno::XDEV);
                }
                let parts = target.split(|byte| *byte == b'/').rev();
                let parts = parts.filter(|part| !part.is_empty() && *part != b".");
                left.extend(parts.map(|part| OsStr::from_bytes(part).to_owned()));
            }
            _ if is_last && flags.contains(OFlags::PATH) => return Ok(node),
            FileType::Symlink => return Err(Errno::LOOP),
            FileType::Directory => above.push(node),
            _ if is_last && !flags.contains(OFlags::DIRECTORY) => return reopen(&node, flags),
            _ => return Err(Errno::NOTDIR),
        }
    }
    reopen(above.last().unwrap_or(root), flags - OFlags::NOFOLLOW)
}

fn mount_id(fd: &OwnedFd) -> io::Result<u64> {
    if let Ok(found) = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)
        && found.stx_mask & StatxFlags::MNT_ID.bits() != 0
    {
        return Ok(found.stx_mnt_id);
    }
    // Kernels before 5.8 do not report the mount id in `statx`.
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::Error::other("the kernel does not report the mount of a directory"))
}

/// Removal of one tree.
struct Removal {
    /// Id of the mount that the tree is on.
    mount: u64,
    /// Root of the tree.
    top: Dir,
    /// Number of directories that were too deep and were moved up.
    moved: u64,
}

impl Removal {
    /// Removes all entries of a directory. Containers decide how deep and wide these trees are, so neither
    /// the stack nor a list of names may grow with them.
    fn empty(&mut self, dir: &Dir, depth: usize) -> io::Result<()> {
        loop {
            let names = dir.names(REMOVAL_BATCH)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                match unlinkat(&dir.fd, &name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::ISDIR | Errno::PERM) => self.directory(dir, &name, depth)?,
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    fn directory(&mut self, parent: &Dir, name: &OsStr, depth: usize) -> io::Result<()> {
        let dir = parent.dir(name)?;
        if dir.mount_id()? != self.mount {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "something is mounted below it"));
        }
        if depth >= REMOVAL_DEPTH {
            return self.move_up(parent, name);
        }
        self.empty(&dir, depth + 1)?;
        Ok(unlinkat(&parent.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Moves a directory up to the root of the tree, where it is removed later.
    fn move_up(&mut self, parent: &Dir, name: &OsStr) -> io::Result<()> {
        loop {
            self.moved += 1;
            let new = format!("..removed-{}", self.moved);
            match renameat_with(&parent.fd, name, &self.top.fd, new, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                result => return Ok(result?),
            }
        }
    }
}

#[cfg(test)]
mod tests;
