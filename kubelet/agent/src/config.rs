//! What a kubelet is told when it starts.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use apiserver_meta::identity::Identity;
use tokio::net::TcpListener;
use userspace_daemon::tls::ServingCertificate;

use crate::{eviction::Thresholds, pod::resolv::ClusterDns};

/// Settings of one kubelet.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the Node object; not empty.
    pub node_name: String,
    /// Addresses of the node; what the machine finds out where there are none.
    pub node_ips: Vec<IpAddr>,
    /// Further labels of the Node.
    pub node_labels: BTreeMap<String, String>,
    /// Where `kubepods` lies below each cgroup hierarchy: `/`, or `/x` beside other kubelets.
    pub cgroup_root: String,
    /// The cluster's name servers, if there are any.
    pub cluster_dns: ClusterDns,
    /// Pods on the node, finished ones not counted.
    pub max_pods: u32,
    /// Sandboxes and containers that start at the same time; twice the processors where it is zero.
    pub start_concurrency: usize,
    /// Kernel parameters that pods may set beside the safe ones, as names or patterns that end in `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Directory of the seccomp profiles that pods may name.
    pub seccomp_profiles: PathBuf,
    /// Below which the node says that it is under pressure.
    pub eviction_hard: Thresholds,
    /// Certificate of the node's server; a self-signed one where there is none.
    pub serving: Option<ServingCertificate>,
    /// Whose certificates the clients of the node's server show. Without it nobody is let in.
    pub client_authority: Option<ClientAuthority>,
}

/// Returns the user that a client certificate (DER) names, if it names one. The handshake has verified
/// the certificate before.
pub type Identify = fn(&[u8]) -> Option<Identity>;

/// The authority that signs certificates of clients, and the reader of their names. The reader is the
/// API server's own, so that the two never take one certificate for two users.
#[derive(Clone, Debug)]
pub struct ClientAuthority {
    /// Certificates of the authority.
    pub pem: String,
    pub identify: Identify,
}

impl Config {
    /// The defaults of Kubernetes for a node.
    pub fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.to_owned(),
            node_ips: Vec::new(),
            node_labels: BTreeMap::new(),
            cgroup_root: "/".to_owned(),
            cluster_dns: ClusterDns { servers: Vec::new(), domain: "cluster.local".to_owned() },
            max_pods: 110,
            start_concurrency: 0,
            allowed_unsafe_sysctls: Vec::new(),
            seccomp_profiles: PathBuf::from("/var/lib/kubelet/seccomp"),
            eviction_hard: Thresholds::default(),
            serving: None,
            client_authority: None,
        }
    }
}

/// Sockets of a kubelet; a simulated one has none.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Logs, exec, metrics over TLS; port 10250 by custom.
    pub node: Option<TcpListener>,
    /// `/healthz` in the clear; port 10248 on loopback by custom.
    pub health: Option<TcpListener>,
}
