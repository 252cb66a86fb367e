//! The node under the pods: files, mounts, cgroups and the network of probes, behind one trait, so
//! that a simulated node needs none of them.

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

mod beneath;
pub mod cgroup;
mod disk_usage;
pub mod fake;
mod host_path;
pub mod linux;
mod logs;
mod mounts;
mod network;
mod sub_path;
mod volume;

pub(crate) use beneath::normal;
pub use fake::FakeMachine;
pub use linux::LinuxMachine;

/// Something on the node could not be done.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempt} {path}")]
pub struct MachineError {
    /// What was attempted: `mount a tmpfs on`.
    pub attempt: &'static str,
    /// On what.
    pub path: String,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl MachineError {
    pub(crate) fn new(attempt: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self { attempt, path: path.display().to_string(), source: source.into() }
    }
}

/// Result of something done on the node.
pub type Result<T> = std::result::Result<T, MachineError>;

/// Makes a directory by a path that no container can change.
fn make_dir(path: &Path, mode: u32) -> Result<()> {
    let error = |source| MachineError::new("make the directory", path, source);
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(error)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(error)
}

/// What does not change while the node is up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineInfo {
    /// Logical processors.
    pub cpus: u32,
    /// Bytes.
    pub memory: i64,
    /// Bytes of swap space.
    pub swap: i64,
    /// Bytes of the file system under the root directory.
    pub storage: i64,
    pub hostname: String,
    pub machine_id: String,
    pub boot_id: String,
    pub kernel: String,
    pub os_image: String,
    /// Address of the interface with the default route, or any that is not loopback.
    pub addresses: Vec<IpAddr>,
    /// The node's `resolv.conf`.
    pub resolv_conf: String,
    /// The node's `hosts`.
    pub hosts: String,
    /// Whether the kernel enforces AppArmor profiles.
    pub apparmor: bool,
}

/// What changes all the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Bytes of memory that could be used without swapping.
    pub memory_available: i64,
    /// Bytes left on the file system under the root directory.
    pub disk_available: i64,
    /// Bytes of that file system.
    pub disk_size: i64,
}

/// What a cgroup has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Since the cgroup was made.
    pub cpu_nanoseconds: u64,
    /// Bytes, caches included.
    pub memory: u64,
    /// Bytes without caches that could be given back.
    pub working_set: u64,
}

/// Bytes on the disk of the node, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub volumes: BTreeMap<String, u64>,
    /// Of the logs of each container, all its attempts together.
    pub logs: BTreeMap<String, u64>,
}

/// Names of a pod on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodPlace {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Path of the pod's cgroup below each hierarchy.
    pub cgroup: String,
}

/// A part of a volume that a container mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubPath {
    /// The volume on the node, as [`Machine::set_up_volume`] returned it.
    pub volume: PathBuf,
    /// Relative to the volume.
    pub path: String,
    /// Name of the container.
    pub container: String,
    /// Place of the mount among those of its container.
    pub index: usize,
}

/// An HTTP request of a probe or hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCheck {
    /// `http` or `https`; certificates are not verified.
    pub https: bool,
    /// Where to connect.
    pub host: String,
    pub port: u16,
    /// Path and query.
    pub path: String,
    /// In order; `Host` replaces the one that would be sent.
    pub headers: Vec<(String, String)>,
}

/// An answer to an [`HttpCheck`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    /// The beginning of it.
    pub body: String,
}

/// The node under the pods.
#[async_trait]
pub trait Machine: Send + Sync + 'static {
    /// What does not change while the node is up.
    fn info(&self) -> MachineInfo;

    /// What changes all the time.
    async fn pressure(&self) -> Result<Pressure>;

    /// Makes the cgroups that hold the pods' own.
    async fn set_up_root(&self, cgroup_root: &str) -> Result<()>;

    /// Makes the directories and the cgroup of a pod.
    async fn set_up_pod(&self, pod: &PodPlace, resources: &Resources) -> Result<()>;

    /// Writes the files that the pod's containers have in `/etc`, by name; returns their directory.
    /// Containers may write them, up to a bound.
    async fn write_etc(&self, pod: &PodPlace, files: &BTreeMap<&'static str, String>) -> Result<PathBuf>;

    /// Makes a volume, or brings it up to date; returns its path. Files belong to `group`.
    async fn set_up_volume(
        &self,
        pod: &PodPlace,
        name: &str,
        content: &Content,
        group: Option<i64>,
    ) -> Result<PathBuf>;

    /// Mounts a part of a volume, which is made if it is not there and must not leave the volume, where
    /// containers cannot reach it; returns the path of the mount.
    async fn sub_path(&self, pod: &PodPlace, wanted: &SubPath) -> Result<PathBuf>;

    /// Unmounts the parts of volumes that earlier attempts of a container used.
    async fn forget_sub_paths(&self, pod: &PodPlace, container: &str) -> Result<()>;

    /// Makes the file that a container may leave its last words in; returns its path.
    async fn termination_file(&self, pod: &PodPlace, container: &str, attempt: u32) -> Result<PathBuf>;

    /// The last words of a container.
    async fn termination_message(&self, pod: &PodPlace, container: &str, attempt: u32) -> String;

    /// Directory of the logs of a pod.
    fn log_directory(&self, pod: &PodPlace) -> PathBuf;

    /// Opens the log that a container writes now.
    async fn open_log(&self, pod: &PodPlace, container: &str, attempt: u32) -> io::Result<fs::File>;

    /// The end of a container's log, without times.
    async fn log_tail(
        &self,
        pod: &PodPlace,
        container: &str,
        attempt: u32,
        lines: usize,
        bytes: usize,
    ) -> String;

    /// Removes the log and the last words of one attempt of a container.
    async fn remove_attempt(&self, pod: &PodPlace, container: &str, attempt: u32);

    /// Moves a log away that has grown too large; returns whether the runtime must open it anew.
    async fn rotate_log(&self, pod: &PodPlace, container: &str, attempt: u32) -> bool;

    /// Cuts to its end what was moved away last, or the log itself where its container has ended
    /// (`current`), if it is larger than a log may be.
    async fn trim_log(&self, pod: &PodPlace, container: &str, attempt: u32, current: bool);

    /// Removes the volumes and the cgroup of a pod, and what it left, except for its logs. Never
    /// touches what is mounted.
    async fn tear_down_pod(&self, pod: &PodPlace) -> Result<()>;

    /// Removes the logs of a pod.
    async fn remove_logs(&self, pod: &PodPlace);

    /// Uids of the pods that have directories.
    async fn pods_on_disk(&self) -> Vec<String>;

    /// What a cgroup has used, if it is there.
    async fn usage(&self, cgroup: &str) -> Option<Usage>;

    /// What volumes of a pod and logs of its containers take of the disk; zero for what is not there.
    /// A tree that cannot be measured counts as `u64::MAX`.
    async fn disk_usage(
        &self,
        pod: &PodPlace,
        volumes: &[String],
        containers: &[String],
    ) -> Result<DiskUsage>;

    /// Asks by HTTP, for no longer than `timeout`.
    async fn http(&self, check: &HttpCheck, timeout: Duration) -> std::result::Result<HttpAnswer, String>;

    /// Asks by gRPC whether a service is healthy (the empty one: the whole server), for no longer than
    /// `timeout`.
    async fn grpc(
        &self,
        host: &str,
        port: u16,
        service: &str,
        timeout: Duration,
    ) -> std::result::Result<(), String>;

    /// Connects by TCP, for no longer than `timeout`.
    async fn tcp(&self, host: &str, port: u16, timeout: Duration) -> std::result::Result<(), String>;
}
