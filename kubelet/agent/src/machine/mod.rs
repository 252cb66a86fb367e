//! The node that pods run on (files, mounts, cgroups, probe connections) behind one trait, so that a
//! simulated node needs none of them.

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use kubelet_cri::Resources;

use crate::volumes::Content;

pub(crate) mod beneath;
pub mod cgroup;
mod disk_usage;
pub mod fake;
mod host_path;
pub mod linux;
mod local;
mod logs;
mod mounts;
mod network;
mod sub_path;
mod volume;

pub(crate) use beneath::normal;
pub use fake::FakeMachine;
pub use linux::LinuxMachine;

/// An operation on the node failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempt} {path}")]
pub struct MachineError {
    /// Operation that was attempted, such as `mount a tmpfs on`.
    pub attempt: &'static str,
    /// Path that it was attempted on.
    pub path: String,
    /// Error of the operating system.
    #[source]
    pub source: io::Error,
}

impl MachineError {
    pub(crate) fn new(attempt: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self { attempt, path: path.display().to_string(), source: source.into() }
    }
}

/// Result of an operation on the node.
pub type Result<T> = std::result::Result<T, MachineError>;

/// Creates a directory by a path that no container can change.
fn make_dir(path: &Path, mode: u32) -> Result<()> {
    let error = |source| MachineError::new("create the directory", path, source);
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(error)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(error)
}

/// Properties of the node that stay the same while it is up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineInfo {
    /// Number of logical CPUs.
    pub cpus: u32,
    /// Size of the memory in bytes.
    pub memory: i64,
    /// Size of the swap space in bytes.
    pub swap: i64,
    /// Size of the file system under the root directory, in bytes.
    pub storage: i64,
    pub hostname: String,
    pub machine_id: String,
    pub boot_id: String,
    pub kernel: String,
    pub os_image: String,
    /// Addresses of the node: that of the default route's interface, or any that is not loopback.
    pub addresses: Vec<IpAddr>,
    /// Content of the node's `/etc/resolv.conf`.
    pub resolv_conf: String,
    /// Content of the node's `/etc/hosts`.
    pub hosts: String,
    /// True if the kernel enforces AppArmor profiles.
    pub apparmor: bool,
}

/// Resource usage of the node, which changes all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Bytes of memory that are available without swapping.
    pub memory_available: i64,
    /// Free bytes of the file system under the root directory.
    pub disk_available: i64,
    /// Size of that file system in bytes.
    pub disk_size: i64,
}

/// Resource usage of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time since the cgroup was created.
    pub cpu_nanoseconds: u64,
    /// Memory usage in bytes, including caches.
    pub memory: u64,
    /// Memory usage in bytes, excluding caches that can be reclaimed.
    pub working_set: u64,
}

/// Disk usage of a pod in bytes, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub volumes: BTreeMap<String, u64>,
    /// Usage of the logs of each container, over all of its attempts.
    pub logs: BTreeMap<String, u64>,
}

/// Identity of a pod on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodPlace {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Path of the pod's cgroup below each hierarchy.
    pub cgroup: String,
}

/// A part of a volume that a container mounts (`subPath`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubPath {
    /// Path of the volume on the node, as returned by [`Machine::set_up_volume`].
    pub volume: PathBuf,
    /// Path relative to the volume.
    pub path: String,
    /// Name of the container.
    pub container: String,
    /// Index of the mount in the list of its container.
    pub index: usize,
}

/// HTTP request of a probe or hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCheck {
    /// True for `https`. Certificates are not verified.
    pub https: bool,
    /// Host to connect to.
    pub host: String,
    pub port: u16,
    /// Path and query of the URL.
    pub path: String,
    /// Headers in order; `Host` replaces the default one.
    pub headers: Vec<(String, String)>,
}

/// Answer to an [`HttpCheck`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    /// Beginning of the body.
    pub body: String,
}

/// The node that pods run on.
#[async_trait]
pub trait Machine: Send + Sync + 'static {
    /// Returns the properties of the node that stay the same while it is up.
    fn info(&self) -> MachineInfo;

    /// Returns the current resource usage of the node.
    async fn pressure(&self) -> Result<Pressure>;

    /// Creates the cgroups that contain those of the pods.
    async fn set_up_root(&self, cgroup_root: &str) -> Result<()>;

    /// Creates the directories and the cgroup of a pod.
    async fn set_up_pod(&self, pod: &PodPlace, resources: &Resources) -> Result<()>;

    /// Writes the `/etc` files of the pod's containers, by name, and returns their directory. Containers may
    /// write to these files, up to a limit.
    async fn write_etc(&self, pod: &PodPlace, files: &BTreeMap<&'static str, String>) -> Result<PathBuf>;

    /// Creates or updates a volume and returns its path. Its files belong to `group`.
    async fn set_up_volume(
        &self,
        pod: &PodPlace,
        name: &str,
        content: &Content,
        group: Option<i64>,
    ) -> Result<PathBuf>;

    /// Returns the directory that contains those of volumes that stay when their pods are gone, if the node keeps any.
    fn local_volumes(&self) -> Option<PathBuf>;

    /// Removes the directory of such a volume with its contents; succeeds if there is none. Never removes the
    /// contents of a mount or what a symbolic link leads to.
    async fn remove_local_volume(&self, name: &str) -> Result<()>;

    /// Mounts a part of a volume in a place that containers cannot reach, and returns the path of the mount.
    /// The part is created if it is missing and must lie within the volume.
    async fn sub_path(&self, pod: &PodPlace, wanted: &SubPath) -> Result<PathBuf>;

    /// Unmounts the parts of volumes that earlier attempts of a container used.
    async fn forget_sub_paths(&self, pod: &PodPlace, container: &str) -> Result<()>;

    /// Creates the file for a container's termination message and returns its path.
    async fn termination_file(&self, pod: &PodPlace, container: &str, attempt: u32) -> Result<PathBuf>;

    /// Returns the termination message of a container.
    async fn termination_message(&self, pod: &PodPlace, container: &str, attempt: u32) -> String;

    /// Returns the log directory of a pod.
    fn log_directory(&self, pod: &PodPlace) -> PathBuf;

    /// Opens the log that a container currently writes.
    async fn open_log(&self, pod: &PodPlace, container: &str, attempt: u32) -> io::Result<fs::File>;

    /// Returns the end of a container's log, without timestamps.
    async fn log_tail(
        &self,
        pod: &PodPlace,
        container: &str,
        attempt: u32,
        lines: usize,
        bytes: usize,
    ) -> String;

    /// Removes the log and the termination message of one attempt of a container.
    async fn remove_attempt(&self, pod: &PodPlace, container: &str, attempt: u32);

    /// Rotates a log that has grown too large; returns whether the runtime must reopen it.
    async fn rotate_log(&self, pod: &PodPlace, container: &str, attempt: u32) -> bool;

    /// Trims the most recently rotated file to its end if it is larger than a log may be, or the log itself
    /// if its container has ended (`current`).
    async fn trim_log(&self, pod: &PodPlace, container: &str, attempt: u32, current: bool);

    /// Removes the volumes, the cgroup and all other files of a pod except its logs. Never removes the
    /// contents of a mount.
    async fn tear_down_pod(&self, pod: &PodPlace) -> Result<()>;

    /// Removes the logs of a pod.
    async fn remove_logs(&self, pod: &PodPlace);

    /// Returns the uids of the pods that have directories.
    async fn pods_on_disk(&self) -> Vec<String>;

    /// Returns the resource usage of a cgroup, if it exists.
    async fn usage(&self, cgroup: &str) -> Option<Usage>;

    /// Returns the disk usage of a pod's volumes and logs; zero for those that do not exist. A tree that
    /// cannot be measured counts as `u64::MAX`.
    async fn disk_usage(
        &self,
        pod: &PodPlace,
        volumes: &[String],
        containers: &[String],
    ) -> Result<DiskUsage>;

    /// Sends an HTTP request and waits for the answer, for at most `timeout`.
    async fn http(&self, check: &HttpCheck, timeout: Duration) -> std::result::Result<HttpAnswer, String>;

    /// Queries the health of a gRPC service (or of the whole server, if the name is empty) within at most
    /// `timeout`.
    async fn grpc(
        &self,
        host: &str,
        port: u16,
        service: &str,
        timeout: Duration,
    ) -> std::result::Result<(), String>;

    /// Opens a TCP connection within at most `timeout`.
    async fn tcp(&self, host: &str, port: u16, timeout: Duration) -> std::result::Result<(), String>;
}
