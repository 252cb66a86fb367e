//! Cgroups of pods, with version 1 hierarchies, the unified hierarchy, or both.

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Instant,
};

use kubelet_cri::Resources;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use super::{MachineError, Result, Usage};
use crate::limits::{CGROUP_END, CGROUP_PAUSE};

/// Mount point of the hierarchies.
const MOUNT: &str = "/sys/fs/cgroup";

/// The mounted hierarchies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchies {
    /// True if `/sys/fs/cgroup` is itself the unified hierarchy.
    unified_only: bool,
    roots: Vec<PathBuf>,
}

impl Hierarchies {
    /// Detects the mounted hierarchies.
    pub fn detect() -> Self {
        Self::at(Path::new(MOUNT))
    }

    fn at(mount: &Path) -> Self {
        if mount.join("cgroup.controllers").exists() {
            return Self { unified_only: true, roots: vec![mount.to_owned()] };
        }
        let entries = fs::read_dir(mount).into_iter().flatten().flatten();
        let mut roots: Vec<PathBuf> = entries
            // `cpu` may be a symbolic link to `cpu,cpuacct`.
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .filter(|path| path.join("cgroup.procs").exists())
            .collect();
        roots.sort();
        Self { unified_only: false, roots }
    }

    /// Creates a cgroup and sets its limits, skipping those that are zero. Limits that a version 1 controller
    /// does not support are ignored.
    pub fn create(&self, cgroup: &str, resources: &Resources) -> Result<()> {
        for root in &self.roots {
            let path = below(root, cgroup);
            if self.unified_only {
                delegate(root, cgroup)?;
                write_unified(&path, resources)?;
            } else if has_controller(root, "memory") {
                make(&path)?;
                write_positive(&path, "memory.limit_in_bytes", resources.memory_limit)?;
            } else if has_controller(root, "cpu") {
                make(&path)?;
                write_positive(&path, "cpu.shares", resources.cpu_shares)?;
                write_positive(&path, "cpu.cfs_period_us", resources.cpu_period)?;
                write_positive(&path, "cpu.cfs_quota_us", resources.cpu_quota)?;
            } else if root.join("cgroup.controllers").exists() {
                make(&path)?;
            }
        }
        Ok(())
    }

    /// Removes a cgroup and its descendants from all hierarchies. Fails if a cgroup still contains processes.
    pub fn remove(&self, cgroup: &str) -> Result<()> {
        let mut result = Ok(());
        for root in &self.roots {
            let path = below(root, cgroup);
            if path != *root {
                result = remove_tree(&path)
                    .map_err(|e| MachineError::new("remove the cgroup", &path, e))
                    .and(result);
            }
        }
        result
    }

    /// Like [`Hierarchies::remove`], but first kills remaining processes, such as those of a command in a
    /// container that shares the node's PID namespace. Blocks for up to [`CGROUP_END`].
    #[expect(clippy::disallowed_methods, reason = "on a thread for work that blocks, of a real machine")]
    pub fn kill_and_remove(&self, cgroup: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            let removed = self.remove(cgroup);
            if removed.is_ok() || began.elapsed() >= CGROUP_END {
                return removed;
            }
            self.kill(cgroup);
            std::thread::sleep(CGROUP_PAUSE);
        }
    }

    /// Kills the processes in a cgroup and its descendants.
    fn kill(&self, cgroup: &str) {
        let open = |id: i32| {
            let pid = Pid::from_raw(id).filter(|pid| !pid.is_init() && *pid != getpid())?;
            Some((id, pidfd_open(pid, PidfdFlags::empty()).ok()?))
        };
        let opened: Vec<(i32, OwnedFd)> = self.processes(cgroup).into_iter().filter_map(open).collect();
        // The id may have been reused by another process before it was opened.
        let still = self.processes(cgroup);
        for (_, process) in opened.iter().filter(|(id, _)| still.contains(id)) {
            // An error means that the process has ended in the meantime.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    /// Like [`Hierarchies::remove`], but leaves a cgroup that contains processes, since it is not used by
    /// pods alone.
    pub fn remove_unused(&self, cgroup: &str) -> Result<()> {
        let unused = |root: &&PathBuf| {
            let text = fs::read_to_string(below(root, cgroup).join("cgroup.procs"));
            text.is_ok_and(|processes| processes.trim().is_empty())
        };
        let roots = self.roots.iter().filter(unused).cloned().collect();
        Self { unified_only: self.unified_only, roots }.remove(cgroup)
    }

    /// Returns the resource usage of a cgroup; `None` if none of its files exists.
    pub fn usage(&self, cgroup: &str) -> Option<Usage> {
        let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let field = |path: PathBuf, name: &str| {
            let text = fs::read_to_string(path).ok()?;
            text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let (mut cpu, mut memory, mut inactive) = (None, None, None);
        for root in &self.roots {
            let path = below(root, cgroup);
            cpu = cpu
                .or_else(|| number(path.join("cpuacct.usage")))
                .or_else(|| field(path.join("cpu.stat"), "usage_usec ").map(|usage| usage * 1000));
            memory = memory
                .or_else(|| number(path.join("memory.usage_in_bytes")))
                .or_else(|| number(path.join("memory.current")));
            inactive = inactive
                .or_else(|| field(path.join("memory.stat"), "total_inactive_file "))
                .or_else(|| field(path.join("memory.stat"), "inactive_file "));
        }
        let memory = memory?;
        let working_set = memory.saturating_sub(inactive.unwrap_or_default());
        Some(Usage { cpu_nanoseconds: cpu.unwrap_or_default(), memory, working_set })
    }

    /// Returns the ids of the processes in a cgroup and its descendants.
    pub fn processes(&self, cgroup: &str) -> Vec<i32> {
        let mut found = Vec::new();
        for root in &self.roots {
            collect_processes(&below(root, cgroup), &mut found);
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn below(root: &Path, cgroup: &str) -> PathBuf {
    root.join(cgroup.trim_matches('/'))
}

fn has_controller(root: &Path, controller: &str) -> bool {
    root.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.split(',').any(|c| c == controller))
}

fn make(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|source| MachineError::new("create the cgroup", path, source))
}

/// Creates a cgroup and enables the controllers in all of its ancestors.
fn delegate(root: &Path, cgroup: &str) -> Result<()> {
    let mut path = root.to_owned();
    for part in cgroup.trim_matches('/').split('/') {
        for controller in ["+cpu", "+memory", "+pids", "+cpuset"] {
            // A controller that is missing cannot enforce limits, but pods can still run.
            let _ = fs::write(path.join("cgroup.subtree_control"), controller);
        }
        path.push(part);
        make(&path)?;
    }
    Ok(())
}

fn write_unified(path: &Path, resources: &Resources) -> Result<()> {
    if resources.cpu_shares > 0 {
        // The linear map from [2, 262144] to [1, 10000] that container runtimes use.
        let weight = 1 + (resources.cpu_shares.clamp(2, 262_144) - 2) * 9999 / 262_142;
        write(path, "cpu.weight", &weight.to_string())?;
    }
    if resources.cpu_quota > 0 {
        write(path, "cpu.max", &format!("{} {}", resources.cpu_quota, resources.cpu_period))?;
    }
    write_positive(path, "memory.max", resources.memory_limit)
}

fn write_positive(path: &Path, file: &str, value: i64) -> Result<()> {
    if value > 0 { write(path, file, &value.to_string()) } else { Ok(()) }
}

fn write(path: &Path, file: &str, value: &str) -> Result<()> {
    let file = path.join(file);
    match fs::write(&file, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|source| MachineError::new("write", &file, source)),
    }
}

fn children(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn remove_tree(path: &Path) -> io::Result<()> {
    let mut result = Ok(());
    for child in children(path) {
        result = remove_tree(&child).and(result);
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => result,
        removed => removed.and(result),
    }
}

fn collect_processes(path: &Path, found: &mut Vec<i32>) {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for child in children(path) {
        collect_processes(&child, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_hierarchies_get_their_own_limits() {
        let mount = tempfile::tempdir().unwrap();
        for controller in ["cpu,cpuacct", "memory", "pids", "unified"] {
            fs::create_dir(mount.path().join(controller)).unwrap();
            fs::write(mount.path().join(controller).join("cgroup.procs"), "").unwrap();
        }
        fs::write(mount.path().join("unified/cgroup.controllers"), "").unwrap();
        let hierarchies = Hierarchies::at(mount.path());
        let resources = Resources { cpu_shares: 512, memory_limit: 1 << 20, ..Resources::default() };
        hierarchies.create("/kubepods/podx", &resources).unwrap();
        let read = |path: &str| fs::read_to_string(mount.path().join(path)).unwrap();
        assert_eq!(read("memory/kubepods/podx/memory.limit_in_bytes"), (1 << 20).to_string());
        assert_eq!(read("cpu,cpuacct/kubepods/podx/cpu.shares"), "512");
        assert!(mount.path().join("unified/kubepods/podx").exists());
        assert!(!mount.path().join("pids/kubepods").exists(), "the runtime makes it where it needs it");
    }

    #[test]
    fn removal_includes_descendants_and_nothing_else() {
        let mount = tempfile::tempdir().unwrap();
        fs::create_dir_all(mount.path().join("memory/kubepods/podx/c")).unwrap();
        fs::create_dir_all(mount.path().join("memory/kubepods/pody")).unwrap();
        fs::write(mount.path().join("memory/cgroup.procs"), "").unwrap();
        let hierarchies = Hierarchies::at(mount.path());
        hierarchies.remove("/kubepods/podx").unwrap();
        hierarchies.remove("/kubepods/podx").unwrap();
        assert!(!mount.path().join("memory/kubepods/podx").exists());
        assert!(mount.path().join("memory/kubepods/pody").exists());
    }

    #[test]
    fn processes_that_are_left_in_a_cgroup_are_killed_before_it_is_removed() {
        let mount = tempfile::tempdir().unwrap();
        fs::write(mount.path().join("cgroup.controllers"), "").unwrap();
        let nested = mount.path().join("kubepods/podx/container");
        fs::create_dir_all(&nested).unwrap();
        let mut left = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let mut spared = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        fs::write(nested.join("cgroup.procs"), format!("{}\n", left.id())).unwrap();
        fs::create_dir_all(mount.path().join("kubepods/pody")).unwrap();
        fs::write(mount.path().join("kubepods/pody/cgroup.procs"), format!("{}\n", spared.id())).unwrap();
        let hierarchies = Hierarchies::at(mount.path());
        // The directory is not a real cgroup: the file stays, and so does the directory.
        hierarchies.kill_and_remove("/kubepods/podx").unwrap_err();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&left.wait().unwrap()), Some(9));
        assert!(spared.try_wait().unwrap().is_none(), "another pod's process lives");
        fs::remove_file(nested.join("cgroup.procs")).unwrap();
        hierarchies.kill_and_remove("/kubepods/podx").unwrap();
        assert!(!mount.path().join("kubepods/podx").exists());
        spared.kill().unwrap();
        spared.wait().unwrap();
    }
}
