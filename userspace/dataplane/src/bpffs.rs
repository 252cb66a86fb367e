//! The file system that keeps maps and links alive: found or mounted, and left as it was.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, mem};

/// `f_type` of the BPF file system.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// The directory that the kernel provides for it.
const USUAL: &str = "/sys/fs/bpf";
/// A directory below the root that marks the file system as mounted by us.
const MARKER: &str = "mounted";

/// Returns the `f_type` of the file system of a path.
pub fn file_system(path: &Path) -> io::Result<u64> {
    let name = string(path)?;
    // SAFETY: all fields are integers, for which zero is a value.
    let mut status: libc::statfs = unsafe { mem::zeroed() };
    // SAFETY: path and result outlive the call.
    if unsafe { libc::statfs(name.as_ptr(), &raw mut status) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status.f_type as u64)
}

/// Makes `root` a directory on a BPF file system. If there is none, one is mounted: at /sys/fs/bpf if `root`
/// is below it, else at `root` itself.
pub fn prepare(root: &Path) -> io::Result<()> {
    let existing = root.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if file_system(existing)? == BPF_FS_MAGIC {
        return fs::create_dir_all(root);
    }
    let place = if root.starts_with(USUAL) { Path::new(USUAL) } else { root };
    fs::create_dir_all(place)?;
    mount(place)?;
    fs::create_dir_all(root.join(MARKER))
}

/// Undoes [`prepare`]; pins in `root` must have been removed before. A file system that others have begun to
/// use stays mounted.
pub fn release(root: &Path) -> io::Result<()> {
    let marker = root.join(MARKER);
    let ours = marker.exists();
    if ours {
        fs::remove_dir(&marker)?;
    }
    let place = mount_point(root)?;
    if place != root {
        fs::remove_dir(root)?;
        // Parent directories go too, as far as they are empty.
        let above = root.ancestors().skip(1).take_while(|path| *path != place);
        above.map(fs::remove_dir).take_while(Result::is_ok).for_each(drop);
    }
    if ours && (place == root || is_unused(&place)?) {
        unmount(&place)?;
        if place == root {
            fs::remove_dir(root)?;
        }
    }
    Ok(())
}

/// Returns `true` if nobody else has pinned anything on the file system. The kernel's own files do not count.
fn is_unused(place: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(place)? {
        let name = entry?.file_name();
        if name != "maps.debug" && name != "progs.debug" {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the highest directory on the same file system as `path`.
fn mount_point(path: &Path) -> io::Result<PathBuf> {
    let device = fs::metadata(path)?.dev();
    let mut place = path;
    while let Some(parent) = place.parent() {
        if fs::metadata(parent)?.dev() != device {
            break;
        }
        place = parent;
    }
    Ok(place.to_path_buf())
}

fn mount(place: &Path) -> io::Result<()> {
    let place = string(place)?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: the strings outlive the call; the file system takes no data.
    let result =
        unsafe { libc::mount(c"bpf".as_ptr(), place.as_ptr(), c"bpf".as_ptr(), flags, std::ptr::null()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn unmount(place: &Path) -> io::Result<()> {
    let place = string(place)?;
    // SAFETY: the string outlives the call.
    let result = unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}
