//! The network namespaces of this machine, as far as they are visible.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::limits::NAMESPACES;
use crate::sys;

/// The directories with names of namespaces without a process.
const NAMED: [&str; 2] = ["/run/netns", "/var/run/netns"];

/// The network namespace that a thread came from.
pub struct Home(File);

impl Home {
    /// Returns the namespace of this thread.
    pub fn here() -> io::Result<Self> {
        File::open("/proc/thread-self/ns/net").map(Self)
    }

    /// Moves this thread into one namespace after the other, and finally back; passes each namespace's cookie
    /// to `visit`. The own one comes first, then those that have a name or a process of their own, then those
    /// of single threads. Ends early when `visit` returns `false`. Namespaces that cannot be entered are left
    /// out, and so are those of processes that this one cannot see.
    pub fn visit(&self, mut visit: impl FnMut(u64) -> bool) -> io::Result<()> {
        let mut seen = BTreeSet::from([identity(&self.0)?]);
        let mut go_on = visit(sys::netns_cookie()?);
        let mut away = false;
        for path in named().chain(processes()).chain(threads()) {
            if !go_on || seen.len() > NAMESPACES {
                break;
            }
            // Processes start and end at any time.
            let Ok(namespace) = File::open(path) else { continue };
            let is_new = identity(&namespace).is_ok_and(|identity| seen.insert(identity));
            if !is_new || enter(&namespace).is_err() {
                continue;
            }
            away = true;
            if let Ok(cookie) = sys::netns_cookie() {
                go_on = visit(cookie);
            }
        }
        // Without the privilege to leave, none is needed to return.
        if away { enter(&self.0) } else { Ok(()) }
    }
}

fn identity(namespace: &File) -> io::Result<(u64, u64)> {
    namespace.metadata().map(|data| (data.dev(), data.ino()))
}

fn enter(namespace: &File) -> io::Result<()> {
    // SAFETY: takes numbers only; the descriptor is open.
    let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn named() -> impl Iterator<Item = PathBuf> {
    NAMED.iter().flat_map(|directory| entries(Path::new(directory)))
}

fn is_number(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit))
}

fn processes() -> impl Iterator<Item = PathBuf> {
    entries(Path::new("/proc")).filter(|path| is_number(path)).map(|path| path.join("ns/net"))
}

fn threads() -> impl Iterator<Item = PathBuf> {
    let of = |process: PathBuf| entries(&process.join("task")).map(|path| path.join("ns/net"));
    entries(Path::new("/proc")).filter(|path| is_number(path)).flat_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_are_processes() {
        assert!(is_number(Path::new("/proc/1")) && !is_number(Path::new("/proc/self")));
    }

    #[test]
    fn the_own_namespace_comes_first_and_is_where_one_ends() {
        let here = sys::netns_cookie().unwrap();
        let mut visited = Vec::new();
        let home = Home::here().unwrap();
        home.visit(|cookie| {
            visited.push(cookie);
            false
        })
        .unwrap();
        assert_eq!(visited, [here]);
        assert_eq!(sys::netns_cookie().unwrap(), here);
    }
}
