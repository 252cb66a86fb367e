//! Sandboxes: the namespaces and the network that the containers of a pod share.

use std::collections::BTreeMap;

/// Owner of a namespace that a container uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMode {
    /// A namespace of the pod.
    #[default]
    Pod,
    /// A namespace of each container.
    Container,
    /// The namespace of the node.
    Node,
    /// The namespace of another container, by id.
    Target(String),
}

/// Namespaces of a sandbox or a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Network namespace.
    pub network: NamespaceMode,
    /// PID namespace.
    pub pid: NamespaceMode,
    /// IPC namespace.
    pub ipc: NamespaceMode,
}

/// A seccomp or AppArmor profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecurityProfile {
    /// The runtime's default profile.
    RuntimeDefault,
    /// No restrictions.
    Unconfined,
    /// A profile of the node: an absolute path for seccomp, the name of a loaded profile for AppArmor.
    Localhost(String),
}

/// An SELinux label; empty parts are chosen by the runtime.
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

/// A port of the node that is forwarded to the sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortMapping {
    pub protocol: Protocol,
    pub container_port: u16,
    pub host_port: u16,
    /// Address of the node; empty for all addresses.
    pub host_ip: String,
}

/// Content of `/etc/resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    /// Addresses of name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options, such as `ndots:5`.
    pub options: Vec<String>,
}

/// Configuration of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxConfig {
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Uid of the pod.
    pub uid: String,
    /// Attempt number, incremented with each sandbox of the pod.
    pub attempt: u32,
    /// Host name; empty in the host network.
    pub hostname: String,
    /// Directory of the logs of the containers; must exist.
    pub log_directory: String,
    /// DNS configuration; with `None` the runtime copies the node's.
    pub dns: Option<Dns>,
    pub port_mappings: Vec<PortMapping>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Path of the pod's cgroup in each hierarchy, such as `/kubepods/besteffort/pod…`.
    pub cgroup_parent: String,
    pub sysctls: BTreeMap<String, String>,
    pub namespaces: Namespaces,
    /// Must be set if any container of the pod is privileged.
    pub privileged: bool,
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub supplemental_groups: Vec<i64>,
    /// True if supplementary groups that the image defines are ignored.
    pub strict_groups: bool,
    pub seccomp: Option<SecurityProfile>,
    pub selinux: Option<SelinuxLabel>,
    /// Name of the runtime handler; empty for the default.
    pub runtime_handler: String,
}

/// State of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SandboxState {
    Ready,
    #[default]
    NotReady,
}

/// Entry of a sandbox in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxSummary {
    pub id: String,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub attempt: u32,
    pub state: SandboxState,
    /// Time of creation in nanoseconds since 1970.
    pub created_at: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// Status of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxStatus {
    /// The fields that lists contain as well.
    pub summary: SandboxSummary,
    /// Addresses, primary IP family first; empty in the host network and after the sandbox was stopped.
    pub ips: Vec<String>,
}
