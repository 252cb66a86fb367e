//! The server: its parts, and its background tasks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use apiserver_admission::Desks;
use apiserver_kinds::enablement::{Enablement, EnablementError};
use apiserver_meta::ambient::Ambient;
use apiserver_registry::Registry;
use apiserver_schema::error::ApiError;
use apiserver_store::Store;
use ipnetwork::IpNetwork;

use crate::access::Access;
use crate::addresses::Addresses;
use crate::build::Build;
use crate::clients::Clients;
use crate::components::Components;
use crate::custom;
use crate::custom::{CustomKinds, Documents};
use crate::decompressed::Unpacked;
use crate::lifetime::Lifetime;
use crate::limits;
use crate::metrics::Metrics;
use crate::notifications::{Endpoint, Notifications};
use crate::objects::Objects;
use crate::store_metrics::Measured;
use crate::streams::Kubelets;
use apiserver_auth::authentication::tokens::Issuer;
use apiserver_auth::authorizer::Mode;
use apiserver_cache::Caches;

/// The configuration of a server. Bounds that cannot be configured are in [`limits`].
#[derive(Clone)]
pub struct ServerConfig {
    /// The address at which clients in the cluster reach this server: the endpoint of the Service
    /// `kubernetes`. Without it that Service is not maintained.
    pub advertise: Option<SocketAddr>,
    /// Ranges of cluster addresses, at most one a family.
    pub service_cidrs: Vec<IpNetwork>,
    /// Range of node ports.
    pub node_ports: RangeInclusive<u16>,
    /// The built-in APIs that are served; by default those that are GA.
    pub apis: Enablement,
    /// The authorizers, in the order in which they are asked.
    pub authorization: Vec<Mode>,
    /// True if requests without credentials are accepted as those of `system:anonymous`.
    pub anonymous: bool,
    /// The addresses of the scheduler and the controllers, for `componentstatuses`.
    pub components: Components,
    /// Signs and checks ServiceAccount tokens; without it there are none.
    pub issuer: Option<Arc<Issuer>>,
    /// True if bootstrap tokens are accepted, and the roles by which machines join are bound.
    pub bootstrap_tokens: bool,
    /// Authorities whose client certificates are users, PEM: published in the ConfigMap
    /// `kube-system/extension-apiserver-authentication`.
    pub client_ca: String,
    /// The connection to kubelets; without it there are no logs and no exec.
    pub kubelets: Option<Kubelets>,
    /// The URL of the keys of ServiceAccount tokens, as published by discovery: reachable for pods, and under
    /// a name that the serving certificate has.
    pub jwks_uri: String,
    /// Reads at one time, watches not counted.
    pub reads_in_flight: usize,
    /// Writes at one time.
    pub writes_in_flight: usize,
    /// Connections at one time.
    pub connections: usize,
    /// A request that is not long running ends after this.
    pub request_timeout: Duration,
    /// A watch without a timeout lasts this long, and up to twice that.
    pub min_watch: Duration,
    /// Events live this long.
    pub event_ttl: Duration,
    /// Time between compactions of the store; zero for none.
    pub compaction_interval: Duration,
    /// The build information for `/version`.
    pub build: Build,
    /// The host's name, after which the Lease of this server is named; without it there is none.
    pub identity: Option<String>,
    /// The time for which the server goes on after the order to end, not ready: load balancers have this time
    /// to leave it.
    pub shutdown_delay: Duration,
    /// True if connections are accepted, and refused with 429, until the last request has ended.
    pub shutdown_send_retry_after: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            advertise: None,
            service_cidrs: vec![default_cidr()],
            node_ports: 30000..=32767,
            apis: Enablement::default(),
            authorization: Mode::DEFAULT.to_vec(),
            anonymous: true,
            components: Components::default(),
            issuer: None,
            bootstrap_tokens: false,
            client_ca: String::new(),
            kubelets: None,
            jwks_uri: String::new(),
            reads_in_flight: limits::READS_IN_FLIGHT,
            writes_in_flight: limits::WRITES_IN_FLIGHT,
            connections: limits::CONNECTIONS,
            request_timeout: limits::REQUEST_TIMEOUT,
            min_watch: limits::WATCH_MIN,
            event_ttl: limits::EVENT_TTL,
            compaction_interval: limits::COMPACT_EVERY,
            build: Build::default(),
            identity: None,
            shutdown_delay: Duration::ZERO,
            shutdown_send_retry_after: false,
        }
    }
}

/// `10.96.0.0/16`
fn default_cidr() -> IpNetwork {
    IpNetwork::V4(
        ipnetwork::Ipv4Network::new(std::net::Ipv4Addr::new(10, 96, 0, 0), 16)
            .expect("16 is a valid prefix length"),
    )
}

/// The configuration cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("the range of service addresses {0} is given twice for one family")]
    DuplicateFamily(IpNetwork),
    #[error("the range of node ports {0}-{1} is empty")]
    NodePorts(u16, u16),
    #[error("cannot apply --runtime-config")]
    Apis(#[from] EnablementError),
}

/// The API server. Requests are served by [`Server::service`]; [`Server::start`] runs the rest.
pub struct Server {
    config: ServerConfig,
    objects: Arc<Objects>,
    access: Access,
    clients: Clients,
    addresses: Arc<Addresses>,
    lifetime: Arc<Lifetime>,
    notifications: Arc<Notifications>,
    endpoint_turn: Arc<tokio::sync::Mutex<Endpoint>>,
    unpacked: Unpacked,
    quota_desks: Desks,
}

impl Server {
    /// Returns a server over `store`. Nothing runs until [`Server::start`].
    pub fn new(
        config: ServerConfig,
        store: Arc<dyn Store>,
        registry: Registry,
        ambient: Ambient,
    ) -> Result<Arc<Self>, ServerError> {
        check(&config)?;
        let registry = config.apis.apply(&registry)?;
        let metrics = Metrics::new();
        let store: Arc<dyn Store> = Arc::new(Measured::new(store, &registry, &metrics));
        let caches = Arc::new(Caches::new(&registry, Arc::clone(&store)));
        // Each of these follows the caches, in this order: rights change before anybody sees the objects.
        let (modes, issuer) = (&config.authorization, config.issuer.clone());
        let access = Access::new(&caches, modes, issuer, config.bootstrap_tokens, &ambient);
        let addresses = Arc::new(Addresses::new(&caches, config.service_cidrs.clone(), config.advertise));
        let notifications = Arc::new(Notifications::default());
        notifications.observe(&caches);
        let queue = Arc::clone(metrics.definitions());
        let custom = Arc::new(CustomKinds::new(Arc::clone(&caches), Arc::clone(&notifications), queue));
        custom::observe(&caches, &custom);
        let in_flight = [config.reads_in_flight, config.writes_in_flight];
        let kubelets = config.kubelets.clone();
        let objects =
            Objects::new(store, registry, caches, custom, (ambient, metrics), kubelets, config.event_ttl);
        Ok(Arc::new(Self {
            objects: Arc::new(objects),
            access,
            clients: Clients::new(in_flight, config.connections),
            addresses,
            lifetime: Arc::default(),
            notifications,
            endpoint_turn: Arc::default(),
            unpacked: Unpacked::default(),
            quota_desks: Desks::default(),
            config,
        }))
    }

    /// Returns the store, the kinds and the watch caches.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// Returns the authorizer, the authenticator and the issuer of tokens.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Returns what clients hold of this server, and what they may.
    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Returns the addresses of Services and of this server.
    pub(crate) fn addresses(&self) -> &Arc<Addresses> {
        &self.addresses
    }

    /// Returns the phase of this server's life.
    pub(crate) fn lifetime(&self) -> &Arc<Lifetime> {
        &self.lifetime
    }

    /// Requests that are being worked on, watches and streams not counted.
    pub fn in_flight(&self) -> i64 {
        self.metrics().in_flight()
    }

    /// Held while this server writes its endpoint of the Service `kubernetes`.
    pub(crate) fn endpoint_turn(&self) -> &Arc<tokio::sync::Mutex<Endpoint>> {
        &self.endpoint_turn
    }

    /// Returns the notifications for the tasks that maintain the server's own objects.
    pub(crate) fn notifications(&self) -> &Arc<Notifications> {
        &self.notifications
    }

    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    pub fn ambient(&self) -> &Ambient {
        self.objects.ambient()
    }

    /// Discovery and OpenAPI of the kinds served at this moment.
    pub(crate) fn documents(&self) -> Arc<Documents> {
        self.objects.custom().documents(self.objects.registry(), self.config.advertise)
    }

    pub fn metrics(&self) -> &Metrics {
        self.objects.metrics()
    }

    /// OpenAPI documents that are being read.
    pub(crate) fn unpacked(&self) -> &Unpacked {
        &self.unpacked
    }

    /// Returns the desks at which requests are charged to quotas.
    pub(crate) fn quota_desks(&self) -> &Desks {
        &self.quota_desks
    }

    /// Returns the connection to kubelets, 501 if there is none.
    pub fn kubelets(&self) -> Result<&Kubelets, ApiError> {
        self.config.kubelets.as_ref().ok_or_else(|| {
            ApiError::new(501, "NotImplemented", "this server has no credentials to call kubelets with")
        })
    }
}

fn check(config: &ServerConfig) -> Result<(), ServerError> {
    let mut families = BTreeMap::new();
    for cidr in &config.service_cidrs {
        if families.insert(cidr.is_ipv4(), cidr).is_some() {
            return Err(ServerError::DuplicateFamily(*cidr));
        }
    }
    if config.node_ports.is_empty() {
        return Err(ServerError::NodePorts(*config.node_ports.start(), *config.node_ports.end()));
    }
    Ok(())
}
