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
use crate::token_issuer::TokenIssuer;

/// Makes the client of a controller from the name of its ServiceAccount in `kube-system`.
#[derive(Clone)]
pub struct Clients(pub Arc<dyn Fn(&str) -> Client + Send + Sync>);

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clients")
    }
}

/// Rates at which nodes that are not ready get the taints by which their pods are evicted, in each zone. If no node of
/// the cluster is ready, none gets one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvictionRates {
    /// Nodes per second of a healthy zone, and of one without a ready node.
    pub primary: f64,
    /// Nodes per second of an unhealthy zone that is large; the pods of a small one stay.
    pub secondary: f64,
    /// Number of nodes up to which a zone is small.
    pub large_zone: usize,
    /// Fraction of the nodes of a zone, and at least three, that are not ready in an unhealthy one.
    pub unhealthy: f64,
}

impl Default for EvictionRates {
    fn default() -> Self {
        Self {
            primary: limits::EVICTION_RATE,
            secondary: limits::EVICTION_RATE_UNHEALTHY,
            large_zone: limits::LARGE_ZONE,
            unhealthy: limits::UNHEALTHY_ZONE,
        }
    }
}

/// Settings that hold for all HorizontalPodAutoscalers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Autoscalers {
    /// Interval at which each is judged.
    pub period: Duration,
    /// Time for which recommendations of more replicas count.
    pub window: Duration,
    /// Deviation of a metric from its target that causes no change.
    pub tolerance: f64,
    /// Time after the start of a pod for which samples of its CPU count only while it is ready.
    pub cpu_initialization: Duration,
    /// Time after the start of a pod in which becoming unready means that it has never been ready.
    pub readiness_delay: Duration,
}

impl Default for Autoscalers {
    fn default() -> Self {
        Self {
            period: limits::HPA_PERIOD,
            window: limits::HPA_DOWNSCALE_WINDOW.unsigned_abs(),
            tolerance: limits::HPA_TOLERANCE,
            cpu_initialization: limits::HPA_CPU_INITIALIZATION.unsigned_abs(),
            readiness_delay: limits::HPA_READINESS_DELAY.unsigned_abs(),
        }
    }
}

/// Sizes of EndpointSlices, and the times for which changes are batched into one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slicing {
    /// Time for changes of Endpoints objects.
    pub endpoints_pause: Duration,
    /// Time for changes of the EndpointSlices of Services with a selector.
    pub slices_pause: Duration,
    /// Time for changes of the EndpointSlices that mirror Endpoints objects.
    pub mirroring_pause: Duration,
    /// Maximum number of endpoints in one EndpointSlice.
    pub per_slice: usize,
    /// Maximum number of addresses of a subset that are mirrored.
    pub mirrored_addresses: usize,
}

impl Default for Slicing {
    fn default() -> Self {
        Self {
            endpoints_pause: limits::ENDPOINTS_PAUSE,
            slices_pause: Duration::ZERO,
            mirroring_pause: Duration::ZERO,
            per_slice: limits::ENDPOINTS_PER_SLICE,
            mirrored_addresses: limits::MIRRORED_ADDRESSES,
        }
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
    /// Signs the tokens of Secrets of ServiceAccounts; `None` if they get none.
    pub token_issuer: Option<TokenIssuer>,
    /// Time without a use after which a generated token of a ServiceAccount is no longer accepted, and then deleted.
    pub legacy_token_period: Duration,
    /// Controllers that run.
    pub controllers: Selected,
    /// Clients of the controllers, which write as ServiceAccounts; `None` if all write as the manager's user.
    pub clients: Option<Clients>,
    /// Number of workers of a controller by its name, at least 1; those that are not here have their
    /// defaults, most of them [`limits::WORKERS`].
    pub workers: BTreeMap<&'static str, usize>,
    /// Interval after which every object is reconciled again, regardless of events.
    pub resync: Duration,
    /// Intervals of single controllers by their names, in place of that.
    pub resyncs: BTreeMap<&'static str, Duration>,
    pub slicing: Slicing,
    pub autoscalers: Autoscalers,
    /// Time without a heartbeat after which a node becomes `Unknown`.
    pub node_grace: Duration,
    /// Time after which a node that has never sent a heartbeat becomes `Unknown`.
    pub node_startup_grace: Duration,
    /// Rates at which the pods of nodes that are not ready are evicted.
    pub eviction: EvictionRates,
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
            token_issuer: None,
            legacy_token_period: limits::LEGACY_TOKEN_PERIOD,
            controllers: Selected::default(),
            clients: None,
            workers: BTreeMap::new(),
            resync: limits::RESYNC,
            resyncs: BTreeMap::from([("resourcequota-controller", limits::QUOTA_RESYNC)]),
            slicing: Slicing::default(),
            autoscalers: Autoscalers::default(),
            node_grace: limits::NODE_GRACE,
            node_startup_grace: limits::NODE_STARTUP_GRACE,
            eviction: EvictionRates::default(),
            terminated_pods: limits::TERMINATED_PODS,
            metrics: Metrics::default(),
            leader_election: None,
        }
    }
}
