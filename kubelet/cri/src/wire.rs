//! Conversions between the plain types and the generated ones.

use crate::{
    ContainerConfig, ContainerState, ContainerStatus, ContainerSummary, Credentials, Dns, Image, Mount,
    NamespaceMode, Namespaces, PortMapping, Propagation, Protocol, Resources, RuntimeCondition,
    RuntimeHandler, RuntimeStatus, SandboxConfig, SandboxState, SandboxStatus, SandboxSummary,
    SecurityContext, SecurityProfile, SelinuxLabel, generated::runtime as wire,
};

fn number(value: Option<i64>) -> Option<wire::Int64Value> {
    value.map(|value| wire::Int64Value { value })
}

impl From<&Namespaces> for wire::NamespaceOption {
    fn from(from: &Namespaces) -> Self {
        let mode = |mode: &NamespaceMode| match mode {
            NamespaceMode::Pod => wire::NamespaceMode::Pod as i32,
            NamespaceMode::Container => wire::NamespaceMode::Container as i32,
            NamespaceMode::Node => wire::NamespaceMode::Node as i32,
            NamespaceMode::Target(_) => wire::NamespaceMode::Target as i32,
        };
        let target_id = match &from.pid {
            NamespaceMode::Target(id) => id.clone(),
            _ => String::new(),
        };
        Self { network: mode(&from.network), pid: mode(&from.pid), ipc: mode(&from.ipc), target_id }
    }
}

impl From<&SelinuxLabel> for wire::SeLinuxOption {
    fn from(from: &SelinuxLabel) -> Self {
        let SelinuxLabel { user, role, kind, level } = from.clone();
        Self { user, role, r#type: kind, level }
    }
}

fn groups_policy(strict: bool) -> i32 {
    let policy =
        if strict { wire::SupplementalGroupsPolicy::Strict } else { wire::SupplementalGroupsPolicy::Merge };
    policy as i32
}

/// Returns the name of a profile for the older field, which runtimes read that do not support the newer one.
fn apparmor_name(profile: Option<&SecurityProfile>) -> String {
    match profile {
        None => String::new(),
        Some(SecurityProfile::RuntimeDefault) => "runtime/default".to_owned(),
        Some(SecurityProfile::Unconfined) => "unconfined".to_owned(),
        Some(SecurityProfile::Localhost(name)) => format!("localhost/{name}"),
    }
}

impl From<&SecurityProfile> for wire::SecurityProfile {
    fn from(from: &SecurityProfile) -> Self {
        use wire::security_profile::ProfileType;
        let (kind, localhost_ref) = match from {
            SecurityProfile::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
            SecurityProfile::Unconfined => (ProfileType::Unconfined, String::new()),
            SecurityProfile::Localhost(path) => (ProfileType::Localhost, path.clone()),
        };
        Self { profile_type: kind as i32, localhost_ref }
    }
}

impl From<&PortMapping> for wire::PortMapping {
    fn from(from: &PortMapping) -> Self {
        let protocol = match from.protocol {
            Protocol::Tcp => wire::Protocol::Tcp,
            Protocol::Udp => wire::Protocol::Udp,
            Protocol::Sctp => wire::Protocol::Sctp,
        };
        Self {
            protocol: protocol as i32,
            container_port: from.container_port.into(),
            host_port: from.host_port.into(),
            host_ip: from.host_ip.clone(),
        }
    }
}

impl From<&Dns> for wire::DnsConfig {
    fn from(from: &Dns) -> Self {
        Self { servers: from.servers.clone(), searches: from.searches.clone(), options: from.options.clone() }
    }
}

impl From<&SandboxConfig> for wire::PodSandboxConfig {
    fn from(from: &SandboxConfig) -> Self {
        let security = wire::LinuxSandboxSecurityContext {
            namespace_options: Some((&from.namespaces).into()),
            run_as_user: number(from.run_as_user),
            run_as_group: number(from.run_as_group),
            readonly_rootfs: false,
            supplemental_groups: from.supplemental_groups.clone(),
            privileged: from.privileged,
            seccomp: from.seccomp.as_ref().map(Into::into),
            selinux_options: from.selinux.as_ref().map(Into::into),
            supplemental_groups_policy: groups_policy(from.strict_groups),
        };
        Self {
            metadata: Some(wire::PodSandboxMetadata {
                name: from.name.clone(),
                uid: from.uid.clone(),
                namespace: from.namespace.clone(),
                attempt: from.attempt,
            }),
            hostname: from.hostname.clone(),
            log_directory: from.log_directory.clone(),
            dns_config: from.dns.as_ref().map(Into::into),
            port_mappings: from.port_mappings.iter().map(Into::into).collect(),
            labels: from.labels.clone(),
            annotations: from.annotations.clone(),
            linux: Some(wire::LinuxPodSandboxConfig {
                cgroup_parent: from.cgroup_parent.clone(),
                security_context: Some(security),
                sysctls: from.sysctls.clone(),
            }),
        }
    }
}

impl From<&Mount> for wire::Mount {
    fn from(from: &Mount) -> Self {
        let propagation = match from.propagation {
            Propagation::Private => wire::MountPropagation::PropagationPrivate,
            Propagation::HostToContainer => wire::MountPropagation::PropagationHostToContainer,
            Propagation::Bidirectional => wire::MountPropagation::PropagationBidirectional,
        };
        Self {
            container_path: from.container_path.clone(),
            host_path: from.host_path.clone(),
            readonly: from.read_only,
            selinux_relabel: false,
            propagation: propagation as i32,
            recursive_read_only: from.recursive_read_only,
        }
    }
}

impl From<&Resources> for wire::LinuxContainerResources {
    fn from(from: &Resources) -> Self {
        Self {
            cpu_period: from.cpu_period,
            cpu_quota: from.cpu_quota,
            cpu_shares: from.cpu_shares,
            memory_limit_in_bytes: from.memory_limit,
            oom_score_adj: from.oom_score_adj,
        }
    }
}

impl From<&SecurityContext> for wire::LinuxContainerSecurityContext {
    fn from(from: &SecurityContext) -> Self {
        Self {
            capabilities: Some(wire::Capability {
                add_capabilities: from.add_capabilities.clone(),
                drop_capabilities: from.drop_capabilities.clone(),
            }),
            privileged: from.privileged,
            namespace_options: Some((&from.namespaces).into()),
            run_as_user: number(from.run_as_user),
            run_as_group: number(from.run_as_group),
            readonly_rootfs: from.read_only_root,
            supplemental_groups: from.supplemental_groups.clone(),
            no_new_privs: from.no_new_privileges,
            masked_paths: from.masked_paths.clone(),
            readonly_paths: from.read_only_paths.clone(),
            seccomp: from.seccomp.as_ref().map(Into::into),
            apparmor: from.apparmor.as_ref().map(Into::into),
            apparmor_profile: apparmor_name(from.apparmor.as_ref()),
            selinux_options: from.selinux.as_ref().map(Into::into),
            supplemental_groups_policy: groups_policy(from.strict_groups),
        }
    }
}

impl From<&ContainerConfig> for wire::ContainerConfig {
    fn from(from: &ContainerConfig) -> Self {
        let variable = |(key, value): &(String, String)| wire::KeyValue {
            key: key.clone(),
            value: value.clone().into_bytes(),
        };
        Self {
            metadata: Some(wire::ContainerMetadata { name: from.name.clone(), attempt: from.attempt }),
            image: Some(wire::ImageSpec { image: from.image.clone() }),
            command: from.command.clone(),
            args: from.args.clone(),
            working_dir: from.working_dir.clone(),
            envs: from.environment.iter().map(variable).collect(),
            mounts: from.mounts.iter().map(Into::into).collect(),
            labels: from.labels.clone(),
            annotations: from.annotations.clone(),
            log_path: from.log_path.clone(),
            stdin: from.stdin,
            stdin_once: from.stdin_once,
            tty: from.tty,
            linux: Some(wire::LinuxContainerConfig {
                resources: Some((&from.resources).into()),
                security_context: Some((&from.security).into()),
            }),
        }
    }
}

impl From<&Credentials> for wire::AuthConfig {
    fn from(from: &Credentials) -> Self {
        Self { username: from.username.clone(), password: from.password.clone(), auth: from.auth.clone() }
    }
}

fn sandbox_state(state: wire::PodSandboxState) -> SandboxState {
    match state {
        wire::PodSandboxState::SandboxReady => SandboxState::Ready,
        wire::PodSandboxState::SandboxNotready => SandboxState::NotReady,
    }
}

fn container_state(state: wire::ContainerState) -> ContainerState {
    match state {
        wire::ContainerState::ContainerCreated => ContainerState::Created,
        wire::ContainerState::ContainerRunning => ContainerState::Running,
        wire::ContainerState::ContainerExited => ContainerState::Exited,
        wire::ContainerState::ContainerUnknown => ContainerState::Unknown,
    }
}

impl From<wire::PodSandbox> for SandboxSummary {
    fn from(from: wire::PodSandbox) -> Self {
        let state = sandbox_state(from.state());
        let metadata = from.metadata.unwrap_or_default();
        Self {
            id: from.id,
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            attempt: metadata.attempt,
            state,
            created_at: from.created_at,
            labels: from.labels,
            annotations: from.annotations,
        }
    }
}

impl From<wire::PodSandboxStatus> for SandboxStatus {
    fn from(from: wire::PodSandboxStatus) -> Self {
        let network = from.network.clone().unwrap_or_default();
        let others = network.additional_ips.into_iter().map(|address| address.ip);
        let ips = std::iter::once(network.ip).chain(others).filter(|ip| !ip.is_empty()).collect();
        let list_entry = wire::PodSandbox {
            id: from.id,
            metadata: from.metadata,
            state: from.state,
            created_at: from.created_at,
            labels: from.labels,
            annotations: from.annotations,
        };
        Self { summary: list_entry.into(), ips }
    }
}

impl From<wire::Container> for ContainerSummary {
    fn from(from: wire::Container) -> Self {
        let state = container_state(from.state());
        let metadata = from.metadata.unwrap_or_default();
        Self {
            id: from.id,
            sandbox_id: from.pod_sandbox_id,
            name: metadata.name,
            attempt: metadata.attempt,
            image: from.image.unwrap_or_default().image,
            state,
            created_at: from.created_at,
            labels: from.labels,
            annotations: from.annotations,
        }
    }
}

impl From<wire::ContainerStatus> for ContainerStatus {
    fn from(from: wire::ContainerStatus) -> Self {
        let state = container_state(from.state());
        let metadata = from.metadata.unwrap_or_default();
        Self {
            id: from.id,
            sandbox_id: String::new(),
            name: metadata.name,
            attempt: metadata.attempt,
            state,
            created_at: from.created_at,
            started_at: from.started_at,
            finished_at: from.finished_at,
            exit_code: from.exit_code,
            image: from.image.unwrap_or_default().image,
            image_ref: from.image_ref,
            reason: from.reason,
            message: from.message,
            labels: from.labels,
            annotations: from.annotations,
            log_path: from.log_path,
        }
    }
}

impl From<wire::Image> for Image {
    fn from(from: wire::Image) -> Self {
        Self {
            id: from.id,
            tags: from.repo_tags,
            digests: from.repo_digests,
            size: from.size,
            uid: from.uid.map(|uid| uid.value),
            username: from.username,
        }
    }
}

impl From<wire::RuntimeCondition> for RuntimeCondition {
    fn from(from: wire::RuntimeCondition) -> Self {
        Self { kind: from.r#type, holds: from.status, reason: from.reason, message: from.message }
    }
}

impl From<wire::RuntimeHandler> for RuntimeHandler {
    fn from(from: wire::RuntimeHandler) -> Self {
        let features = from.features.unwrap_or_default();
        Self { name: from.name, recursive_read_only_mounts: features.recursive_read_only_mounts }
    }
}

impl From<wire::StatusResponse> for RuntimeStatus {
    fn from(from: wire::StatusResponse) -> Self {
        let conditions = from.status.unwrap_or_default().conditions;
        Self {
            conditions: conditions.into_iter().map(Into::into).collect(),
            handlers: from.runtime_handlers.into_iter().map(Into::into).collect(),
            supplemental_groups_policy: from.features.unwrap_or_default().supplemental_groups_policy,
        }
    }
}
