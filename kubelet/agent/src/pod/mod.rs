//! Pure functions on pods: what a pod requires, what the runtime reports, and what follows from both.

pub mod address;
pub mod admit;
pub mod backoff;
pub mod env;
pub mod observed;
pub mod plan;
pub mod resize;
pub mod resolv;
pub mod resources;
pub mod security;
pub mod spec;
pub mod status;
pub mod storage;
pub mod sysctl;
#[cfg(test)]
pub(crate) mod testing;
pub mod unsupported;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec};
use sha2::{Digest, Sha256};

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Runs to completion before the next one starts.
    Init,
    /// An init container that keeps running beside the main containers.
    Sidecar,
    /// A main container of the pod.
    Main,
    /// Added for debugging; never restarted.
    Ephemeral,
}

/// Condition under which a container that ended is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// Returns the pod's policy; `Always` by default.
    pub fn of(pod: &Pod) -> Self {
        Self::parse(spec(pod).restart_policy.as_deref()).unwrap_or(Self::Always)
    }

    fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            Some("Always") => Some(Self::Always),
            Some("OnFailure") => Some(Self::OnFailure),
            Some("Never") => Some(Self::Never),
            _ => None,
        }
    }

    /// Returns `true` if a container with this policy that ended with `exit_code` is restarted.
    pub fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// Returns the pod's spec; an empty one if it is missing, which no API server allows.
pub fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

/// Returns the pod's uid, or an empty string.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Returns the pod's name, or an empty string.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Returns the pod's namespace, or an empty string.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// Returns `true` if the pod uses the host network.
pub fn host_network(pod: &Pod) -> bool {
    spec(pod).host_network.unwrap_or_default()
}

/// Returns the init containers in order, each with its role.
pub fn init_containers(pod: &Pod) -> impl DoubleEndedIterator<Item = (Role, &Container)> {
    spec(pod).init_containers.iter().flatten().map(|container| (init_role(container), container))
}

/// Returns the role of an init container.
pub fn init_role(container: &Container) -> Role {
    if container.restart_policy.as_deref() == Some("Always") { Role::Sidecar } else { Role::Init }
}

/// Returns the ephemeral containers.
pub fn ephemeral_containers(pod: &Pod) -> impl Iterator<Item = &EphemeralContainer> {
    spec(pod).ephemeral_containers.iter().flatten()
}

/// Returns all init and main containers, with their roles.
pub fn all_containers(pod: &Pod) -> impl Iterator<Item = (Role, &Container)> {
    init_containers(pod).chain(spec(pod).containers.iter().map(|container| (Role::Main, container)))
}

/// Returns an init or main container by name.
pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<(Role, &'a Container)> {
    all_containers(pod).find(|(_, container)| container.name == name)
}

/// Returns the restart policy of a container: its own if it has one, otherwise the policy that follows from
/// its role and pod.
pub fn restart_policy(pod: &Pod, role: Role, container: &Container) -> RestartPolicy {
    match role {
        Role::Sidecar => RestartPolicy::Always,
        Role::Ephemeral => RestartPolicy::Never,
        // An init container runs once; with Always it is retried until it succeeds.
        Role::Init => match RestartPolicy::parse(container.restart_policy.as_deref())
            .unwrap_or_else(|| RestartPolicy::of(pod))
        {
            RestartPolicy::Never => RestartPolicy::Never,
            RestartPolicy::Always | RestartPolicy::OnFailure => RestartPolicy::OnFailure,
        },
        Role::Main => RestartPolicy::parse(container.restart_policy.as_deref())
            .unwrap_or_else(|| RestartPolicy::of(pod)),
    }
}

/// Returns `true` if all main containers are started again whenever they end, so that the pod can be stopped for a while.
pub fn restarts_always(pod: &Pod) -> bool {
    let mut policies =
        spec(pod).containers.iter().map(|container| restart_policy(pod, Role::Main, container));
    policies.all(|policy| policy == RestartPolicy::Always)
}

/// Returns a hash of those fields of a container that cannot change without a restart, which is only the
/// image. All other mutable fields of a pod's spec leave the container running.
pub fn container_hash(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let digest = Sha256::digest(format!("{}\n{image}", container.name));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Converts an ephemeral container to an ordinary one.
pub fn ephemeral_as_container(ephemeral: &EphemeralContainer) -> Container {
    Container {
        name: ephemeral.name.clone(),
        image: ephemeral.image.clone(),
        image_pull_policy: ephemeral.image_pull_policy.clone(),
        command: ephemeral.command.clone(),
        args: ephemeral.args.clone(),
        env: ephemeral.env.clone(),
        env_from: ephemeral.env_from.clone(),
        security_context: ephemeral.security_context.clone(),
        stdin: ephemeral.stdin,
        stdin_once: ephemeral.stdin_once,
        termination_message_path: ephemeral.termination_message_path.clone(),
        termination_message_policy: ephemeral.termination_message_policy.clone(),
        tty: ephemeral.tty,
        volume_mounts: ephemeral.volume_mounts.clone(),
        working_dir: ephemeral.working_dir.clone(),
        ..Container::default()
    }
}
