//! The trait, and its errors.

use std::{collections::BTreeMap, fmt, time::Duration};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::{
    ContainerConfig, ContainerStatus, ContainerSummary, Credentials, ExecOutput, Image, Resources,
    SandboxConfig, SandboxStatus, SandboxSummary,
};

/// Result of a call to the runtime.
pub type Result<T> = std::result::Result<T, RuntimeError>;

/// A refused or failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message}")]
pub struct RuntimeError {
    /// The call: `RunPodSandbox`.
    pub call: &'static str,
    /// What callers branch on.
    pub kind: ErrorKind,
    /// What the runtime said.
    pub message: String,
}

/// What callers of the runtime branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no such sandbox, container or image.
    NotFound,
    /// No answer within the deadline, or a command did not end within its own.
    Timeout,
    /// The runtime cannot be reached.
    Unavailable,
    /// The runtime does not know the call.
    Unimplemented,
    /// Everything else.
    Failed,
}

impl RuntimeError {
    /// A failed call.
    pub fn new(call: &'static str, kind: ErrorKind, message: impl fmt::Display) -> Self {
        Self { call, kind, message: message.to_string() }
    }

    /// Whether there is no such sandbox, container or image.
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }
}

/// Who answers on the socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// `containerd`
    pub name: String,
    /// `1.6.20`
    pub version: String,
    /// Version of the interface: `v1`.
    pub api: String,
}

/// One of the runtime's conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeCondition {
    /// `RuntimeReady` or `NetworkReady`.
    pub kind: String,
    /// Whether it holds.
    pub holds: bool,
    /// One word why not.
    pub reason: String,
    /// A sentence why not.
    pub message: String,
}

/// One way in which the runtime runs pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// `runc`; empty for the default.
    pub name: String,
    pub recursive_read_only_mounts: bool,
}

/// What the runtime says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    pub conditions: Vec<RuntimeCondition>,
    /// Empty where the runtime does not tell.
    pub handlers: Vec<RuntimeHandler>,
    /// Whether groups of images can be left out.
    pub supplemental_groups_policy: bool,
}

impl RuntimeStatus {
    /// What a handler can do; nothing where the runtime does not tell.
    pub fn handler(&self, name: &str) -> RuntimeHandler {
        self.handlers.iter().find(|handler| handler.name == name).cloned().unwrap_or_default()
    }
}

/// Which ends of a streamed process are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// A terminal: standard error is merged into standard output.
    pub tty: bool,
    /// Standard input is sent.
    pub stdin: bool,
    /// Standard output is wanted.
    pub stdout: bool,
    /// Standard error is wanted.
    pub stderr: bool,
}

/// A container runtime. Each call has a deadline of its own and may be dropped at any time; stop
/// and remove are idempotent and succeed where there is nothing left.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Who answers.
    async fn version(&self) -> Result<Version>;

    /// Conditions of the runtime and its network, and what it can do.
    async fn status(&self) -> Result<RuntimeStatus>;

    /// Creates and starts a sandbox with its network; returns its id.
    async fn run_pod_sandbox(&self, config: &SandboxConfig) -> Result<String>;

    /// Kills what runs in a sandbox and takes its network down.
    async fn stop_pod_sandbox(&self, id: &str) -> Result<()>;

    /// Removes a sandbox and its containers, killing what still runs.
    async fn remove_pod_sandbox(&self, id: &str) -> Result<()>;

    /// A sandbox in detail.
    async fn pod_sandbox_status(&self, id: &str) -> Result<SandboxStatus>;

    /// All sandboxes, or those of one pod, in no particular order.
    async fn list_pod_sandboxes(&self, pod_uid: Option<&str>) -> Result<Vec<SandboxSummary>>;

    /// Creates a container in a sandbox; returns its id.
    async fn create_container(
        &self,
        sandbox_id: &str,
        config: &ContainerConfig,
        sandbox: &SandboxConfig,
    ) -> Result<String>;

    /// Starts a created container.
    async fn start_container(&self, id: &str) -> Result<()>;

    /// Signals a container to stop and kills it after `grace` (whole seconds, rounded up).
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()>;

    /// Removes a container, killing it first where it runs.
    async fn remove_container(&self, id: &str) -> Result<()>;

    /// A container in detail.
    async fn container_status(&self, id: &str) -> Result<ContainerStatus>;

    /// All containers, or those of one pod, in no particular order.
    async fn list_containers(&self, pod_uid: Option<&str>) -> Result<Vec<ContainerSummary>>;

    /// Bytes that containers have written into their own file systems, by id, of all pods or of one.
    /// Containers of which the runtime does not know it are left out.
    async fn writable_layers(&self, pod_uid: Option<&str>) -> Result<BTreeMap<String, u64>>;

    /// Changes the limits of a running container.
    async fn update_container_resources(&self, id: &str, resources: &Resources) -> Result<()>;

    /// Makes the runtime open the log file anew, after it was moved away.
    async fn reopen_container_log(&self, id: &str) -> Result<()>;

    /// Runs a command to its end. A command that outlives `timeout` (zero: no limit) is killed
    /// and gives [`ErrorKind::Timeout`].
    async fn exec_sync(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecOutput>;

    /// Prepares a streamed command; returns the URL that serves it once.
    async fn exec(&self, id: &str, command: &[String], options: StreamOptions) -> Result<String>;

    /// Prepares a stream to a container's first process; returns the URL that serves it once.
    async fn attach(&self, id: &str, options: StreamOptions) -> Result<String>;

    /// Prepares forwarding into a sandbox; returns the URL that serves it once.
    async fn port_forward(&self, sandbox_id: &str, ports: &[i32]) -> Result<String>;

    /// All images.
    async fn list_images(&self) -> Result<Vec<Image>>;

    /// An image, or `None` where there is no such one.
    async fn image_status(&self, image: &str) -> Result<Option<Image>>;

    /// Fetches an image; returns its reference.
    async fn pull_image(&self, image: &str, credentials: Option<&Credentials>) -> Result<String>;

    /// Removes an image.
    async fn remove_image(&self, image: &str) -> Result<()>;

    /// A counter that grows whenever something may have changed: a hint to list again, sent by
    /// runtimes that can. Nothing may rely on it.
    fn hints(&self) -> watch::Receiver<u64>;
}
