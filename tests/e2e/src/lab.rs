//! A node and another host, each a network namespace, connected by a veth pair. Addresses are from the
//! documentation range (RFC 5737); no traffic leaves the two.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::output;

/// The node's address towards the other host.
pub const NODE_IP: &str = "192.0.2.1";
/// The other host's address.
pub const CLIENT_IP: &str = "192.0.2.2";

/// A node whose state can be recorded.
pub trait Machine {
    /// Returns the part of all names that are the node's.
    fn id(&self) -> &str;

    /// Returns the directory of all its files.
    fn dir(&self) -> &Path;

    /// Returns its cgroup in the file system.
    fn cgroup(&self) -> &Path;

    /// Returns a command for a program on it.
    fn run(&self, program: &str) -> Command;
}

/// Returns a name that no other lab or bed of this machine has, nor one that begins with it.
pub(crate) fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}{}x{:02}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A lab that is removed when dropped, also if the test fails.
pub struct Lab {
    /// Part of all names, so that several labs can share a machine.
    pub id: String,
    node: String,
    client: String,
    /// The node's cgroup in the unified hierarchy.
    cgroup: PathBuf,
    dir: tempfile::TempDir,
}

impl Lab {
    pub fn new() -> Result<Self> {
        let id = unique("hwe");
        let lab = Self {
            node: format!("{id}n"),
            client: format!("{id}c"),
            cgroup: unified()?.join(&id),
            dir: tempfile::Builder::new().prefix(&format!("{id}-")).tempdir()?,
            id,
        };
        lab.build()?;
        Ok(lab)
    }

    fn build(&self) -> Result<()> {
        fs::create_dir_all(&self.cgroup).with_context(|| format!("cannot make {}", self.cgroup.display()))?;
        let (node, client) = (&self.node, &self.client);
        for line in [
            format!("netns add {node}"),
            format!("netns add {client}"),
            format!("-n {node} link set lo up"),
            format!("-n {client} link set lo up"),
            format!("-n {node} link add uplink type veth peer name eth0 netns {client}"),
            // Link-local addresses would appear a moment later and show up as a difference.
            format!("-n {node} link set uplink addrgenmode none"),
            format!("-n {client} link set eth0 addrgenmode none"),
            format!("-n {node} addr add {NODE_IP}/24 dev uplink"),
            format!("-n {client} addr add {CLIENT_IP}/24 dev eth0"),
            format!("-n {node} link set uplink up"),
            format!("-n {client} link set eth0 up"),
        ] {
            output(Command::new("ip").args(line.split_whitespace()))?;
        }
        Ok(())
    }

    /// Returns the data directory of the cluster on the node.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Returns a directory for the test's own files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the node's cgroup in the form of `--cgroup-root`.
    pub fn cgroup_root(&self) -> String {
        format!("/{}", self.id)
    }

    /// Returns the node's cgroup in the file system.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Returns a command for a program on the node: in its network namespace and its cgroup.
    pub fn on_node(&self, program: impl AsRef<OsStr>) -> Command {
        enter(&self.cgroup, &self.node, program.as_ref())
    }

    /// Returns a command for a program on the other host.
    pub fn on_client(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.client)).arg("--").arg(program);
        command
    }
}

impl Machine for Lab {
    fn id(&self) -> &str {
        &self.id
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    fn run(&self, program: &str) -> Command {
        self.on_node(program)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for namespace in [&self.node, &self.client] {
            // Fails if it was never created.
            let _ = Command::new("ip").args(["netns", "del", namespace]).output();
        }
        remove_cgroup(&self.cgroup);
    }
}

/// Returns a command for a program in a cgroup and a network namespace.
pub(crate) fn enter(cgroup: &Path, namespace: &str, program: &OsStr) -> Command {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg("echo $$ > \"$0\"/cgroup.procs && net=$1 && shift && exec nsenter --net=\"$net\" -- \"$@\"")
        .arg(cgroup)
        .arg(format!("/run/netns/{namespace}"))
        .arg(program);
    command
}

/// Returns the mount point of the unified cgroup hierarchy.
pub fn unified() -> Result<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    text.lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))
        .map(|fields| PathBuf::from(fields[1]))
        .context("no cgroup2 file system is mounted")
}

/// Removes a cgroup with rmdir, children first.
pub(crate) fn remove_cgroup(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}
