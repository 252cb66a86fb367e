//! What a kubelet is told when it starts.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use tokio::net::TcpListener;

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
    /// Certificate authority of the clients of the node's server, PEM. Without it nobody is let in.
    pub client_ca: Option<String>,
}

/// A certificate chain and its key, both PEM.
#[derive(Clone)]
pub struct ServingCertificate {
    /// The server's own certificate first.
    pub chain: String,
    /// PKCS #8, PKCS #1 or SEC 1.
    pub key: String,
}

impl std::fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingCertificate").finish_non_exhaustive()
    }
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
            client_ca: None,
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
