//! Sandboxes: the namespaces and the network that the containers of a pod share.

use std::collections::BTreeMap;

/// Whose namespace is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMode {
    /// One for the pod.
    #[default]
    Pod,
    /// One for each container.
    Container,
    /// The node's.
    Node,
    /// That of another container, by id.
    Target(String),
}

/// Namespaces of a sandbox or a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Interfaces, addresses, ports.
    pub network: NamespaceMode,
    /// Process ids.
    pub pid: NamespaceMode,
    /// Shared memory and semaphores.
    pub ipc: NamespaceMode,
}

/// A profile of seccomp or AppArmor: what processes are allowed to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecurityProfile {
    /// The runtime's own profile.
    RuntimeDefault,
    /// Everything.
    Unconfined,
    /// One of the node's: for seccomp by absolute path, for AppArmor by its loaded name.
    Localhost(String),
}

/// A label of SELinux; empty parts are the runtime's choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelinuxLabel {
    pub user: String,
    pub role: String,
    pub kind: String,
    pub level: String,
}

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

/// A port of the node that leads into the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortMapping {
    pub protocol: Protocol,
    pub container_port: u16,
    pub host_port: u16,
    /// Empty: all addresses of the node.
    pub host_ip: String,
}

/// Content of `/etc/resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// `ndots:5`
    pub options: Vec<String>,
}

/// What a sandbox is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxConfig {
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Uid of the pod.
    pub uid: String,
    /// Grows with each sandbox of the pod.
    pub attempt: u32,
    /// Empty with the node's network.
    pub hostname: String,
    /// Where the logs of the containers go; exists already.
    pub log_directory: String,
    /// `None`: the runtime copies the node's.
    pub dns: Option<Dns>,
    pub port_mappings: Vec<PortMapping>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Path of the pod's cgroup below each hierarchy: `/kubepods/besteffort/pod…`.
    pub cgroup_parent: String,
    pub sysctls: BTreeMap<String, String>,
    pub namespaces: Namespaces,
    /// Must be set where any of the containers is privileged.
    pub privileged: bool,
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub supplemental_groups: Vec<i64>,
    /// Groups that the image gives to the user are left out.
    pub strict_groups: bool,
    pub seccomp: Option<SecurityProfile>,
    pub selinux: Option<SelinuxLabel>,
    /// Name of the runtime's handler; empty for its default.
    pub runtime_handler: String,
}

/// Whether a sandbox can hold containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SandboxState {
    Ready,
    #[default]
    NotReady,
}

/// A sandbox in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxSummary {
    pub id: String,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub attempt: u32,
    pub state: SandboxState,
    /// Nanoseconds since 1970.
    pub created_at: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// A sandbox in detail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxStatus {
    /// What the list says, too.
    pub summary: SandboxSummary,
    /// Addresses, the first family first; empty with the node's network and after the stop.
    pub ips: Vec<String>,
}
