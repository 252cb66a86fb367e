//! The requirements on the machine, checked before anything is changed. Each answer is one line.

use std::fs;
use std::path::{Path, PathBuf};

use crate::kernel::{Config, object};
use crate::{bpffs, kernel};

/// `f_type` of the unified control group hierarchy.
const CGROUP2_MAGIC: u64 = 0x6367_7270;
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
        "{path} is not in a cgroup2 hierarchy; mount one with `mount -t cgroup2 none /sys/fs/cgroup/unified` and give a directory in it"
    )]
    Cgroup { path: PathBuf },
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
    if bpffs::file_system(existing).ok() != Some(CGROUP2_MAGIC) {
        return Err(Missing::Cgroup { path: config.cgroup.clone() });
    }
    kernel::probe().map_err(|error| Missing::Bpf { reason: error.to_string() })?;
    let Some(feature) = kernel::lacks() else {
        return Ok(());
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Err(Missing::Kernel { found: release.trim().to_owned(), feature })
}

/// Returns the mount point of the unified control group hierarchy.
pub fn find_cgroup2() -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    table.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        if back.split(' ').next()? != "cgroup2" {
            return None;
        }
        // The kernel writes a space in a path as \040.
        front.split(' ').nth(4).map(|place| PathBuf::from(place.replace("\\040", " ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_to_do() {
        let line = Missing::Kernel { found: "5.10.0".into(), feature: "tcx" }.to_string();
        assert_eq!(line, "kernel 5.10.0 lacks tcx; boot Linux 6.1 or later");
    }
}
