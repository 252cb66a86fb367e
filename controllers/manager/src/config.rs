//! What the controllers are told at start.

use std::time::Duration;

use controllers_runtime::LeaderElection;
use ipnetwork::IpNetwork;

use crate::limits;

/// Typed and complete configuration of all controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Networks from which nodes get their `podCIDR`s: at most one IPv4 and one IPv6, the primary
    /// family first. Empty: nodes keep what they have.
    pub cluster_cidrs: Vec<IpNetwork>,
    /// Prefix length of a node's IPv4 network.
    pub node_mask_ipv4: u8,
    /// Prefix length of a node's IPv6 network.
    pub node_mask_ipv6: u8,
    /// Networks of Services; a node gets none that overlaps them.
    pub service_cidrs: Vec<IpNetwork>,
    /// PEM of the authority that signed the API server's certificate, published to every
    /// namespace. Empty: nothing is published.
    pub root_ca: String,
    /// Workers of each controller, at least 1.
    pub workers: usize,
    /// Silence after which a node is `Unknown`.
    pub node_grace: Duration,
    /// The same for a node that has never reported.
    pub node_startup_grace: Duration,
    /// How many finished pods are kept in the cluster.
    pub terminated_pods: usize,
    /// Which lease to hold before working; `None` for the only instance.
    pub leader_election: Option<LeaderElection>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_cidrs: Vec::new(),
            node_mask_ipv4: 24,
            node_mask_ipv6: 64,
            service_cidrs: Vec::new(),
            root_ca: String::new(),
            workers: limits::WORKERS,
            node_grace: limits::NODE_GRACE,
            node_startup_grace: limits::NODE_STARTUP_GRACE,
            terminated_pods: limits::TERMINATED_PODS,
            leader_election: None,
        }
    }
}
