//! Settings that a kubelet is started with.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use apiserver_meta::identity::Identity;
use ipnetwork::IpNetwork;
use tokio::{net::TcpListener, sync::watch};
use userspace_daemon::tls::CertificateAndKey;

use crate::{certificates::Serving, eviction::Thresholds, own_pods::OwnPods, pod::resolv::ClusterDns};

/// Settings of one kubelet.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the Node object; must not be empty.
    pub node_name: String,
    /// Addresses of the node; detected from the machine if empty.
    pub node_ips: Vec<IpAddr>,
    /// Additional labels of the Node.
    pub node_labels: BTreeMap<String, String>,
    /// Parent of `kubepods` in each cgroup hierarchy: `/`, or `/x` when several kubelets share a machine.
    pub cgroup_root: String,
    /// The cluster's DNS servers, if there are any.
    pub cluster_dns: ClusterDns,
    /// Maximum number of pods on the node, not counting finished ones.
    pub max_pods: u32,
    /// Number of sandboxes and containers that may start at the same time; zero means twice the number of
    /// CPUs.
    pub start_concurrency: usize,
    /// Kernel parameters that pods may set in addition to the safe ones, as names or patterns that end in
    /// `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Directory of the seccomp profiles that pods may refer to.
    pub seccomp_profiles: PathBuf,
    /// Directory of the machine's logs, which `/logs/` serves.
    pub system_logs: PathBuf,
    /// Thresholds below which the node reports memory or disk pressure.
    pub eviction_hard: Thresholds,
    /// Certificate of the node's server; a self-signed one is generated if it is missing.
    pub serving: Option<CertificateAndKey>,
    /// Certificate of the node's server that is replaced while it runs; takes precedence over `serving`.
    pub rotated_serving: Option<Serving>,
    /// Authority that signs the certificates of the clients of the node's server. Without it all clients are
    /// refused.
    pub client_authority: Option<ClientAuthority>,
    /// Shows the kubelet's pods to others once it runs.
    pub own_pods: OwnPods,
    /// The ranges that the node's pods have addresses of; empty while they are not known, and if another component
    /// chooses addresses. A pod with an address outside of them gets a new sandbox.
    pub pod_ranges: watch::Receiver<Vec<IpNetwork>>,
}

/// Returns the user that a client certificate (DER) names, if it names one. The certificate has already been
/// verified by the TLS handshake.
pub type Identify = fn(&[u8]) -> Option<Identity>;

/// Certificate authority for clients, and the function that reads the user from their certificates. The
/// function is the API server's own, so that both derive the same user from a certificate.
#[derive(Clone, Debug)]
pub struct ClientAuthority {
    /// Certificates of the authority, in PEM.
    pub pem: String,
    pub identify: Identify,
}

impl Config {
    /// Returns the settings that Kubernetes uses by default.
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
            system_logs: PathBuf::from("/var/log"),
            eviction_hard: Thresholds::default(),
            serving: None,
            rotated_serving: None,
            client_authority: None,
            own_pods: OwnPods::default(),
            pod_ranges: watch::channel(Vec::new()).1,
        }
    }
}

/// Listening sockets of a kubelet; a simulated kubelet has none.
#[derive(Debug, Default)]
pub struct Listeners {
    /// Serves logs, exec and metrics over TLS; port 10250 by convention.
    pub node: Option<TcpListener>,
    /// Serves `/healthz` without TLS; port 10248 on loopback by convention.
    pub health: Option<TcpListener>,
}
