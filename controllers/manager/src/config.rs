//! Configuration of the controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use controllers_runtime::LeaderElection;
use ipnetwork::IpNetwork;
use kube::Client;

use crate::address_range::AddressRange;
use crate::authority::Signing;
use crate::limits;
use crate::metrics::Metrics;
use crate::selected::Selected;

/// Makes the client of a controller from the name of its ServiceAccount in `kube-system`.
#[derive(Clone)]
pub struct Clients(pub Arc<dyn Fn(&str) -> Client + Send + Sync>);

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clients")
    }
}

/// Typed and complete configuration of all controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Networks from which nodes get their `podCIDR`s: at most one IPv4 and one IPv6 network, the primary
    /// family first. If empty, the networks of nodes are not managed.
    pub cluster_cidrs: Vec<IpNetwork>,
    /// Prefix length of a node's IPv4 network.
    pub node_mask_ipv4: u8,
    /// Prefix length of a node's IPv6 network.
    pub node_mask_ipv6: u8,
    /// Networks of Services. A node's network never overlaps with them.
    pub service_cidrs: Vec<IpNetwork>,
    /// Addresses and DNS names of API servers, as their certificates have them; no node gets a certificate for
    /// one unless it is of the control plane. The addresses in the EndpointSlices of the Service `kubernetes` are
    /// added to these, but they are there only while their servers run.
    pub api_servers: BTreeSet<String>,
    /// Addresses of Services of type LoadBalancer. If empty, they get none.
    pub load_balancer_ranges: Vec<AddressRange>,
    /// Also give addresses to Services of type LoadBalancer without a class, not only to those of our class.
    pub load_balancer_classless: bool,
    /// Certificate in PEM of the authority that signed the API server's certificate, published in every
    /// namespace. If empty, nothing is published.
    pub root_ca: String,
    /// Authority of the signers of Kubernetes; `None` if certificate requests are not signed.
    pub signing: Option<Signing>,
    /// Controllers that run.
    pub controllers: Selected,
    /// Clients of the controllers, which write as ServiceAccounts; `None` if all write as the manager's user.
    pub clients: Option<Clients>,
    /// Number of workers of a controller by its name, at least 1; [`limits::WORKERS`] of those that are not here.
    pub workers: BTreeMap<&'static str, usize>,
    /// Time without a heartbeat after which a node becomes `Unknown`.
    pub node_grace: Duration,
    /// Time after which a node that has never sent a heartbeat becomes `Unknown`.
    pub node_startup_grace: Duration,
    /// Number of finished pods that are kept in the cluster.
    pub terminated_pods: usize,
    /// Filled while the controllers run.
    pub metrics: Metrics,
    /// Lease to hold while working; `None` for a single instance.
    pub leader_election: Option<LeaderElection>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster_cidrs: Vec::new(),
            node_mask_ipv4: 24,
            node_mask_ipv6: 64,
            service_cidrs: Vec::new(),
            api_servers: BTreeSet::new(),
            load_balancer_ranges: Vec::new(),
            load_balancer_classless: true,
            root_ca: String::new(),
            signing: None,
            controllers: Selected::default(),
            clients: None,
            workers: BTreeMap::new(),
            node_grace: limits::NODE_GRACE,
            node_startup_grace: limits::NODE_STARTUP_GRACE,
            terminated_pods: limits::TERMINATED_PODS,
            metrics: Metrics::default(),
            leader_election: None,
        }
    }
}
