//! The requirements on the machine, checked before anything is changed. Each answer is one line.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::kernel::{Config, object};
use crate::{bpffs, kernel};

/// `f_type` of the unified control group hierarchy.
const CGROUP2_MAGIC: u64 = 0x6367_7270;
/// Its name among file systems.
const CGROUP2: &str = "cgroup2";
/// The oldest kernel on which the tests run. An older one with all required features is not refused.
const KERNEL: &str = "6.1";

/// A missing requirement, with advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error("this build has no eBPF programs in it; run `cargo xtask build-ebpf` and build again")]
    Object,
    #[error("loading eBPF programs takes root; run as root")]
    Root,
    #[error("kernel {found} lacks {feature}; boot Linux {KERNEL} or later")]
    Kernel { found: String, feature: &'static str },
    #[error(
        "no cgroup2 file system is mounted: mount one with `mount -t cgroup2 none /sys/fs/cgroup/unified`, or use \
         `nsenter --net=...` in place of `ip netns exec`, which hides the mounts below /sys"
    )]
    NoCgroup2,
    #[error(
        "the cgroup mount {path} is on {file_system}, not on cgroup2: give --cgroup-mount the directory where cgroup2 is mounted"
    )]
    CgroupMount { path: PathBuf, file_system: String },
    #[error(
        "the cgroup {path} is on {file_system}, not below the cgroup2 mount {mount}: sockets in it cannot be translated; \
         give --cgroup-root a directory below {mount}, or a cgroup's name there"
    )]
    Cgroup { path: PathBuf, file_system: String, mount: PathBuf },
    #[error("the cgroup {name} leads out of its hierarchy: give --cgroup-root a name without `..`")]
    CgroupName { name: String },
    #[error("bpf(2) is refused here ({reason}); allow CAP_BPF and CAP_NET_ADMIN, or leave the container")]
    Bpf { reason: String },
}

/// Checks that [`kernel::Kernel::open`] can work with this configuration.
///
/// # Errors
/// Returns the first requirement that is missing.
pub fn preflight(config: &Config) -> Result<(), Missing> {
    if object::bytes().is_empty() {
        return Err(Missing::Object);
    }
    // SAFETY: takes nothing, returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Missing::Root);
    }
    // If the directory does not exist yet, its parent decides.
    let existing = config.cgroup.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let file_system = file_system(existing).unwrap_or_default();
    if file_system != CGROUP2 {
        let mount = find_cgroup2().ok_or(Missing::NoCgroup2)?;
        return Err(Missing::Cgroup { path: config.cgroup.clone(), file_system, mount });
    }
    kernel::probe().map_err(|error| Missing::Bpf { reason: error.to_string() })?;
    let Some(feature) = kernel::lacks() else {
        return Ok(());
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Err(Missing::Kernel { found: release.trim().to_owned(), feature })
}

/// A cgroup of the unified hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Its name, the same in all hierarchies: `/`, or `/some/group`.
    pub name: String,
    /// Its directory, which may not exist yet.
    pub directory: PathBuf,
}

impl Cgroup {
    /// Returns the cgroup that `root` names, by its name or by its directory, in the hierarchy that is mounted at `mount`,
    /// which is detected unless given. Refuses a directory of another file system: its path would be taken for a name, and
    /// the sockets of the node would not be below it.
    ///
    /// # Errors
    /// Returns why this is no cgroup whose sockets can be translated.
    pub fn find(mount: Option<&Path>, root: &str) -> Result<Self, Missing> {
        let mount = match mount {
            Some(mount) => mount.to_path_buf(),
            None => find_cgroup2().ok_or(Missing::NoCgroup2)?,
        };
        let name = cgroup_name(&mount, root, &|path| path.is_dir().then(|| file_system(path)).flatten())?;
        let directory = mount.join(name.trim_start_matches('/'));
        Ok(Self { name, directory })
    }
}

/// Returns the name of a cgroup. `directories` returns the file system of a path, if it is a directory.
fn cgroup_name(
    mount: &Path,
    root: &str,
    directories: &dyn Fn(&Path) -> Option<String>,
) -> Result<String, Missing> {
    let path = Path::new(root);
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(Missing::CgroupName { name: root.to_owned() });
    }
    if let Some(file_system) = directories(mount).filter(|file_system| file_system != CGROUP2) {
        return Err(Missing::CgroupMount { path: mount.to_path_buf(), file_system });
    }
    let below = path.strip_prefix(mount).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
    let name = format!("/{}", below.display());
    if path.is_relative() || path.starts_with(mount) || directories(&mount.join(below)).is_some() {
        return Ok(name);
    }
    // A path whose beginning is a directory of the machine is not meant as the name of a cgroup that is to be made.
    let beginnings = path.ancestors().filter(|beginning| *beginning != Path::new("/"));
    match beginnings.map(directories).find_map(|found| found) {
        Some(file_system) => {
            Err(Missing::Cgroup { path: path.to_path_buf(), file_system, mount: mount.to_path_buf() })
        }
        None => Ok(name),
    }
}

/// Returns the name of the file system that a path is on.
fn file_system(path: &Path) -> Option<String> {
    let magic = bpffs::file_system(path).ok()?;
    if magic == CGROUP2_MAGIC {
        return Some(CGROUP2.to_owned());
    }
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = mounted_at(&table, &path).filter(|name| *name != CGROUP2);
    Some(name.map_or_else(|| format!("a file system of the type {magic:#x}"), str::to_owned))
}

/// Returns the mounts of `/proc/self/mountinfo`: each with its mount point and the name of its file system.
fn mounts(table: &str) -> impl DoubleEndedIterator<Item = (PathBuf, &str)> {
    table.lines().filter_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        // The kernel writes a space in a path as \040.
        let place = front.split(' ').nth(4).map(|place| PathBuf::from(place.replace("\\040", " ")))?;
        Some((place, back.split(' ').next()?))
    })
}

/// Returns the file system of the innermost mount that a path is in, the last one of those at the same place.
fn mounted_at<'a>(table: &'a str, path: &Path) -> Option<&'a str> {
    let around = mounts(table).filter(|(place, _)| path.starts_with(place));
    around.max_by_key(|(place, _)| place.components().count()).map(|(_, name)| name)
}

/// Returns the mount point of the unified control group hierarchy.
pub fn find_cgroup2() -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts(&table).find(|(_, name)| *name == CGROUP2).map(|(place, _)| place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_to_do() {
        let line = Missing::Kernel { found: "5.10.0".into(), feature: "tcx" }.to_string();
        assert_eq!(line, "kernel 5.10.0 lacks tcx; boot Linux 6.1 or later");
    }

    /// A machine with both hierarchies.
    fn both(path: &Path) -> Option<String> {
        let known = [
            ("/", "ext4"),
            ("/home", "ext4"),
            ("/sys/fs/cgroup", "tmpfs"),
            ("/sys/fs/cgroup/memory", "cgroup"),
            ("/sys/fs/cgroup/unified", "cgroup2"),
            ("/sys/fs/cgroup/unified/home", "cgroup2"),
            ("/mnt/cgroup", "cgroup2"),
        ];
        known.iter().find(|(place, _)| Path::new(place) == path).map(|(_, name)| (*name).to_owned())
    }

    #[test]
    fn cgroup_is_given_by_its_name_or_its_directory() {
        let mount = Path::new("/sys/fs/cgroup/unified");
        for (given, name) in [
            ("/", "/"),
            ("pods", "/pods"),
            ("/pods/a", "/pods/a"),
            ("/sys/fs/cgroup/unified", "/"),
            ("/sys/fs/cgroup/unified/pods/", "/pods"),
            // A cgroup that exists goes before a directory of its name.
            ("/home", "/home"),
        ] {
            assert_eq!(cgroup_name(mount, given, &both), Ok(name.to_owned()), "{given}");
        }
    }

    #[test]
    fn directory_that_is_not_on_cgroup2_is_refused_with_its_file_system_and_advice() {
        let mount = Path::new("/sys/fs/cgroup/unified");
        for (given, file_system) in [
            ("/sys/fs/cgroup", "tmpfs"),
            ("/sys/fs/cgroup/pods", "tmpfs"),
            ("/sys/fs/cgroup/memory/pods", "cgroup"),
            ("/home/pods", "ext4"),
            ("/mnt/cgroup/pods", "cgroup2"),
        ] {
            let said = cgroup_name(mount, given, &both).unwrap_err().to_string();
            let wanted = format!("the cgroup {given} is on {file_system}, not below the cgroup2 mount");
            assert!(said.starts_with(&wanted), "{said}");
            assert!(said.contains("a directory below /sys/fs/cgroup/unified"), "{said}");
        }
        let said = cgroup_name(mount, "/pods/../../memory", &both).unwrap_err().to_string();
        assert!(said.contains("without `..`"), "{said}");
        let said = cgroup_name(Path::new("/sys/fs/cgroup"), "/", &both).unwrap_err().to_string();
        assert!(said.contains("/sys/fs/cgroup is on tmpfs") && said.contains("--cgroup-mount"), "{said}");
    }

    #[test]
    fn file_system_of_a_directory_is_that_of_the_innermost_mount() {
        let table = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                     25 20 0:20 / /sys/fs/cgroup rw - tmpfs none rw\n\
                     26 25 0:21 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 none rw\n\
                     30 20 0:30 / /mnt/a\\040b rw - xfs /dev/sdb rw\n";
        for (path, name) in [
            ("/home", "ext4"),
            ("/sys/fs/cgroup/memory", "tmpfs"),
            ("/sys/fs/cgroup/unified/a", "cgroup2"),
            ("/mnt/a b/c", "xfs"),
        ] {
            assert_eq!(mounted_at(table, Path::new(path)), Some(name), "{path}");
        }
    }

    #[test]
    fn directory_of_the_machine_is_not_taken_for_a_cgroup() {
        let directory = tempfile::tempdir().unwrap();
        let given = directory.path().display().to_string();
        let refused = Cgroup::find(None, &given).unwrap_err();
        let Some(mount) = find_cgroup2() else { return assert_eq!(refused, Missing::NoCgroup2) };
        assert!(
            matches!(&refused, Missing::Cgroup { path, mount: named, .. } if path == directory.path() && *named == mount),
            "{refused}"
        );
    }
}
