//! Containers.

use std::collections::BTreeMap;

use crate::{Namespaces, SecurityProfile, SelinuxLabel};

/// Whether mounts made later are seen on the other side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

/// A file or directory of the node inside a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    pub container_path: String,
    pub host_path: String,
    pub read_only: bool,
    /// Mounts below it are read-only, too.
    pub recursive_read_only: bool,
    pub propagation: Propagation,
}

/// Limits and weights. Zero means that nothing is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Microseconds.
    pub cpu_period: i64,
    /// Microseconds of running a period; −1 is no limit.
    pub cpu_quota: i64,
    /// Weight, 1024 for one core.
    pub cpu_shares: i64,
    /// Bytes.
    pub memory_limit: i64,
    /// −1000 (never killed) to 1000 (killed first).
    pub oom_score_adj: i64,
}

/// What a container's processes may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityContext {
    /// Without `CAP_`; `ALL` is understood.
    pub add_capabilities: Vec<String>,
    /// Without `CAP_`; `ALL` is understood.
    pub drop_capabilities: Vec<String>,
    pub privileged: bool,
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub supplemental_groups: Vec<i64>,
    /// Groups that the image gives to the user are left out.
    pub strict_groups: bool,
    pub read_only_root: bool,
    pub no_new_privileges: bool,
    pub masked_paths: Vec<String>,
    pub read_only_paths: Vec<String>,
    pub seccomp: Option<SecurityProfile>,
    /// `None`: the runtime's own choice.
    pub apparmor: Option<SecurityProfile>,
    pub selinux: Option<SelinuxLabel>,
    pub namespaces: Namespaces,
}

/// What a container is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerConfig {
    pub name: String,
    /// Grows with each restart.
    pub attempt: u32,
    /// Reference or id of an image that is present.
    pub image: String,
    /// Replaces the image's entry point unless empty.
    pub command: Vec<String>,
    /// Replaces the image's command unless empty.
    pub args: Vec<String>,
    pub working_dir: String,
    /// In order; a later one may refer to an earlier one, but nothing is expanded here.
    pub environment: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Relative to the sandbox's log directory.
    pub log_path: String,
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
    pub resources: Resources,
    pub security: SecurityContext,
}

/// Where in its life a container is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    #[default]
    Unknown,
}

/// A container in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSummary {
    pub id: String,
    pub sandbox_id: String,
    pub name: String,
    pub attempt: u32,
    /// As it was asked for.
    pub image: String,
    pub state: ContainerState,
    /// Nanoseconds since 1970.
    pub created_at: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// A container in detail. Times are nanoseconds since 1970, zero where there is none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStatus {
    pub id: String,
    /// Filled in by who knows the list: the answer about one container does not tell.
    pub sandbox_id: String,
    pub name: String,
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    /// As it was asked for.
    pub image: String,
    /// Id or digest of the image.
    pub image_ref: String,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`.
    pub reason: String,
    pub message: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Absolute path of the log file.
    pub log_path: String,
}

/// How a command ended and what it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}
