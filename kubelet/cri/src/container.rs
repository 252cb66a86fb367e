//! Containers.

use std::collections::BTreeMap;

use crate::{Namespaces, SecurityProfile, SelinuxLabel};

/// Propagation of later mounts between the node and the container.
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
    /// True if submounts are read-only, too.
    pub recursive_read_only: bool,
    pub propagation: Propagation,
}

/// Limits and weights. Zero means not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU period in microseconds.
    pub cpu_period: i64,
    /// CPU time per period in microseconds; −1 means unlimited.
    pub cpu_quota: i64,
    /// CPU weight (shares); 1024 for one core.
    pub cpu_shares: i64,
    /// Memory limit in bytes.
    pub memory_limit: i64,
    /// `oom_score_adj`, from −1000 (never killed) to 1000 (killed first).
    pub oom_score_adj: i64,
}

/// Security context of a container's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityContext {
    /// Capabilities without the prefix `CAP_`, or `ALL`.
    pub add_capabilities: Vec<String>,
    /// Capabilities without the prefix `CAP_`, or `ALL`.
    pub drop_capabilities: Vec<String>,
    pub privileged: bool,
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub supplemental_groups: Vec<i64>,
    /// True if supplementary groups that the image defines are ignored.
    pub strict_groups: bool,
    pub read_only_root: bool,
    pub no_new_privileges: bool,
    pub masked_paths: Vec<String>,
    pub read_only_paths: Vec<String>,
    pub seccomp: Option<SecurityProfile>,
    /// AppArmor profile; `None` for the runtime's default.
    pub apparmor: Option<SecurityProfile>,
    pub selinux: Option<SelinuxLabel>,
    pub namespaces: Namespaces,
}

/// Configuration of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerConfig {
    pub name: String,
    /// Attempt number, incremented with each restart.
    pub attempt: u32,
    /// Reference or id of an image on the node.
    pub image: String,
    /// Entry point; replaces the image's unless empty.
    pub command: Vec<String>,
    /// Arguments; replace the image's command unless empty.
    pub args: Vec<String>,
    pub working_dir: String,
    /// Environment variables in order, with all references already expanded.
    pub environment: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Path of the log relative to the sandbox's log directory.
    pub log_path: String,
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
    pub resources: Resources,
    pub security: SecurityContext,
}

/// State of a container in its life cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    #[default]
    Unknown,
}

/// Entry of a container in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSummary {
    pub id: String,
    pub sandbox_id: String,
    pub name: String,
    pub attempt: u32,
    /// Image as requested.
    pub image: String,
    pub state: ContainerState,
    /// Time of creation in nanoseconds since 1970.
    pub created_at: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// Status of a container. Times are in nanoseconds since 1970; zero if not applicable yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStatus {
    pub id: String,
    /// Id of the sandbox. Set from the list by the caller, because the runtime's status does not contain it.
    pub sandbox_id: String,
    pub name: String,
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    /// Image as requested.
    pub image: String,
    /// Id or digest of the image.
    pub image_ref: String,
    /// Reason of the current state, such as `Completed`, `Error`, `OOMKilled` or `StartError`.
    pub reason: String,
    pub message: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Absolute path of the log file.
    pub log_path: String,
}

/// Exit code and output of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}
