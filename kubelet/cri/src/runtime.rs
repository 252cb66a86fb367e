//! The [`Runtime`] trait and its errors.

use std::{collections::BTreeMap, fmt, time::Duration};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::{
    ContainerConfig, ContainerStatus, ContainerSummary, Credentials, ExecOutput, Image, Resources,
    SandboxConfig, SandboxStatus, SandboxSummary,
};

/// Result of a call to the runtime.
pub type Result<T> = std::result::Result<T, RuntimeError>;

/// A call that was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {message}")]
pub struct RuntimeError {
    /// Name of the call, such as `RunPodSandbox`.
    pub call: &'static str,
    /// Category of the error.
    pub kind: ErrorKind,
    /// Message of the runtime.
    pub message: String,
}

/// Categories of errors that callers distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The sandbox, container or image does not exist.
    NotFound,
    /// The runtime did not answer within the deadline, or a command exceeded its timeout.
    Timeout,
    /// The runtime is unavailable.
    Unavailable,
    /// The runtime does not implement the call.
    Unimplemented,
    /// Any other failure.
    Failed,
}

impl RuntimeError {
    /// Creates an error of a call.
    pub fn new(call: &'static str, kind: ErrorKind, message: impl fmt::Display) -> Self {
        Self { call, kind, message: message.to_string() }
    }

    /// Returns `true` if the sandbox, container or image does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }
}

/// Identification of a runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Name of the runtime, such as `containerd`.
    pub name: String,
    /// Version of the runtime, such as `1.6.20`.
    pub version: String,
    /// Version of the interface, such as `v1`.
    pub api: String,
}

/// A condition of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeCondition {
    /// Type: `RuntimeReady` or `NetworkReady`.
    pub kind: String,
    /// True if the condition holds.
    pub holds: bool,
    /// Reason for which it does not hold, in one word.
    pub reason: String,
    /// Message that explains why it does not hold.
    pub message: String,
}

/// A runtime handler and its features.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// Name, such as `runc`; empty for the default handler.
    pub name: String,
    pub recursive_read_only_mounts: bool,
}

/// Status of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    pub conditions: Vec<RuntimeCondition>,
    /// Handlers; empty if the runtime does not report them.
    pub handlers: Vec<RuntimeHandler>,
    /// True if supplementary groups of images can be ignored.
    pub supplemental_groups_policy: bool,
}

impl RuntimeStatus {
    /// Returns the features of a handler; none if the runtime does not report them.
    pub fn handler(&self, name: &str) -> RuntimeHandler {
        self.handlers.iter().find(|handler| handler.name == name).cloned().unwrap_or_default()
    }
}

/// Standard streams of a process that a client wants to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Allocate a terminal; standard error is merged into standard output.
    pub tty: bool,
    /// Send standard input.
    pub stdin: bool,
    /// Receive standard output.
    pub stdout: bool,
    /// Receive standard error.
    pub stderr: bool,
}

/// A container runtime. Each call has a deadline of its own and can be cancelled at any time. Calls that stop
/// or remove are idempotent and succeed if nothing is left to do.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Returns the identification of the runtime.
    async fn version(&self) -> Result<Version>;

    /// Returns conditions and features of the runtime and its network.
    async fn status(&self) -> Result<RuntimeStatus>;

    /// Creates and starts a sandbox with its network; returns its id.
    async fn run_pod_sandbox(&self, config: &SandboxConfig) -> Result<String>;

    /// Kills all processes of a sandbox and takes down its network.
    async fn stop_pod_sandbox(&self, id: &str) -> Result<()>;

    /// Removes a sandbox and its containers, killing those that are still running.
    async fn remove_pod_sandbox(&self, id: &str) -> Result<()>;

    /// Returns the status of a sandbox.
    async fn pod_sandbox_status(&self, id: &str) -> Result<SandboxStatus>;

    /// Returns all sandboxes, or those of one pod, in no particular order.
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

    /// Stops a container gracefully and kills it after `grace` (rounded up to whole seconds).
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<()>;

    /// Removes a container, killing it first if it is running.
    async fn remove_container(&self, id: &str) -> Result<()>;

    /// Returns the status of a container.
    async fn container_status(&self, id: &str) -> Result<ContainerStatus>;

    /// Returns all containers, or those of one pod, in no particular order.
    async fn list_containers(&self, pod_uid: Option<&str>) -> Result<Vec<ContainerSummary>>;

    /// Returns the sizes of the writable layers of the containers of all pods, or of one, in bytes by
    /// container id. Containers of unknown size are omitted.
    async fn writable_layers(&self, pod_uid: Option<&str>) -> Result<BTreeMap<String, u64>>;

    /// Changes the limits of a running container.
    async fn update_container_resources(&self, id: &str, resources: &Resources) -> Result<()>;

    /// Makes the runtime reopen the log file after it was rotated.
    async fn reopen_container_log(&self, id: &str) -> Result<()>;

    /// Runs a command until it ends. A command that exceeds `timeout` (zero for unlimited) is killed and
    /// results in [`ErrorKind::Timeout`].
    async fn exec_sync(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecOutput>;

    /// Prepares a streamed command; returns a URL that serves it once.
    async fn exec(&self, id: &str, command: &[String], options: StreamOptions) -> Result<String>;

    /// Prepares a stream to a container's main process; returns a URL that serves it once.
    async fn attach(&self, id: &str, options: StreamOptions) -> Result<String>;

    /// Prepares port forwarding into a sandbox; returns a URL that serves it once.
    async fn port_forward(&self, sandbox_id: &str, ports: &[i32]) -> Result<String>;

    /// Returns all images.
    async fn list_images(&self) -> Result<Vec<Image>>;

    /// Returns an image, or `None` if it does not exist.
    async fn image_status(&self, image: &str) -> Result<Option<Image>>;

    /// Pulls an image; returns its reference.
    async fn pull_image(&self, image: &str, credentials: Option<&Credentials>) -> Result<String>;

    /// Removes an image.
    async fn remove_image(&self, image: &str) -> Result<()>;

    /// Returns a counter that changes whenever a relist is worthwhile. It is only a hint: not all runtimes
    /// support it, and nothing may depend on it.
    fn hints(&self) -> watch::Receiver<u64>;
}
