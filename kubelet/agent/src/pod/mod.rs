//! What a pod wants, what its node shows, and what follows: pure functions on plain data.

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

/// The part that a container plays in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Runs to its end before the next one starts.
    Init,
    /// An init container that is kept running beside the pod's own.
    Sidecar,
    /// One of the pod's own containers.
    Main,
    /// Added for debugging; never restarted.
    Ephemeral,
}

/// When a container that ended is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// The pod's policy; `Always` where nothing is said.
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

    /// Whether a container with this policy that ended with `exit_code` is started again.
    pub fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

/// The pod's spec; an empty one where the object has none, which no apiserver lets pass.
pub fn spec(pod: &Pod) -> &PodSpec {
    static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
    pod.spec.as_ref().unwrap_or(&EMPTY)
}

/// The pod's uid, or nothing.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The pod's name, or nothing.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The pod's namespace, or nothing.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// Whether the pod uses the node's network.
pub fn host_network(pod: &Pod) -> bool {
    spec(pod).host_network.unwrap_or_default()
}

/// Init containers in their order, each with its role.
pub fn init_containers(pod: &Pod) -> impl DoubleEndedIterator<Item = (Role, &Container)> {
    spec(pod).init_containers.iter().flatten().map(|container| (init_role(container), container))
}

/// The role of an init container.
pub fn init_role(container: &Container) -> Role {
    if container.restart_policy.as_deref() == Some("Always") { Role::Sidecar } else { Role::Init }
}

/// The containers that a debugger added.
pub fn ephemeral_containers(pod: &Pod) -> impl Iterator<Item = &EphemeralContainer> {
    spec(pod).ephemeral_containers.iter().flatten()
}

/// All init and main containers.
pub fn all_containers(pod: &Pod) -> impl Iterator<Item = (Role, &Container)> {
    init_containers(pod).chain(spec(pod).containers.iter().map(|container| (Role::Main, container)))
}

/// An init or main container by its name.
pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<(Role, &'a Container)> {
    all_containers(pod).find(|(_, container)| container.name == name)
}

/// The container's own policy where it has one, else what its role and pod say.
pub fn restart_policy(pod: &Pod, role: Role, container: &Container) -> RestartPolicy {
    match role {
        Role::Sidecar => RestartPolicy::Always,
        Role::Ephemeral => RestartPolicy::Never,
        // An init container runs once; under Always it is tried until it succeeds.
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

/// What of a container must not change without a restart: its image. Everything else that may
/// change in a pod's spec leaves the container running.
pub fn container_hash(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let digest = Sha256::digest(format!("{}\n{image}", container.name));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// An ephemeral container in the shape of the others.
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
