//! The server: its parts, and its background tasks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use apiserver_kinds::enablement::{Enablement, EnablementError};
use apiserver_meta::ambient::Ambient;
use apiserver_registry::{Registry, Resource};
use apiserver_schema::error::ApiError;
use apiserver_store::{Revision, Store};
use ipnetwork::IpNetwork;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::allocate::Allocator;
use crate::allocate::blocks::{Block, Blocks};
use crate::build::Build;
use crate::circuit_breaker::CircuitBreaker;
use crate::clients::accounts::Accounts;
use crate::clients::connections::Connections;
use crate::clients::lanes::Lanes;
use crate::components::Components;
use crate::conversion;
use crate::custom;
use crate::custom::{CustomKinds, Documents};
use crate::decompressed::Unpacked;
use crate::errors;
use crate::errors::no_such_resource;
use crate::hooks::Hooks;
use crate::limits;
use crate::metrics::Metrics;
use crate::notifications::{Endpoint, Notifications};
use crate::store_metrics::Measured;
use crate::streams::{Kubelets, OwnAddresses};
use apiserver_auth::authentication::tokens::{BoundObjects, Issuer};
use apiserver_auth::authentication::{Authenticator, Bound};
use apiserver_auth::authorizer::{Authorizer, Mode};
use apiserver_auth::nodes;
use apiserver_cache::{Cache, Caches, Entry, NotFresh};

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
    #[error("the APIs to serve cannot be told")]
    Apis(#[from] EnablementError),
}

/// The API server. Requests are served by [`Server::service`]; [`Server::start`] runs the rest.
pub struct Server {
    config: ServerConfig,
    store: Arc<dyn Store>,
    registry: Registry,
    caches: Arc<Caches>,
    ambient: Ambient,
    authorizer: Arc<Authorizer>,
    authenticator: Option<Authenticator>,
    bound_objects: Arc<Bound>,
    allocator: OnceLock<Allocator>,
    blocks: Arc<Blocks>,
    hooks: Hooks,
    custom: Arc<CustomKinds>,
    store_breaker: CircuitBreaker,
    notifications: Arc<Notifications>,
    metrics: Metrics,
    unpacked: Unpacked,
    accounts: Arc<Accounts>,
    lanes: Lanes,
    connections: Arc<Connections>,
    /// The addresses that this server listens on.
    listeners: Mutex<Vec<SocketAddr>>,
    ready: watch::Sender<bool>,
    /// The end was announced: not ready any more.
    draining: CancellationToken,
    endpoint_turn: tokio::sync::Mutex<Endpoint>,
    /// New requests are refused and watches end.
    refusing: CancellationToken,
    /// Cancelled to stop everything.
    shutdown: CancellationToken,
}

impl Server {
    /// A server over `store`. Nothing runs until [`Server::start`].
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
        let authorizer = Arc::new(Authorizer::with_modes(&config.authorization));
        feed_authorizer(&caches, &authorizer);
        nodes::feed(&caches, authorizer.nodes());
        let blocks = Arc::new(Blocks::default());
        feed_blocks(&caches, &blocks);
        let notifications = Arc::new(Notifications::default());
        notifications.observe(&caches);
        let queue = Arc::clone(metrics.definitions());
        let custom = Arc::new(CustomKinds::new(Arc::clone(&caches), Arc::clone(&notifications), queue));
        custom::observe(&caches, &custom);
        let bound_objects = Arc::new(Bound::new(&caches));
        let authenticator = config.issuer.as_ref().map(|issuer| {
            let objects: Arc<dyn BoundObjects> = Arc::<Bound>::clone(&bound_objects);
            Authenticator::new(Arc::clone(issuer), objects, &ambient)
        });
        let in_flight = [config.reads_in_flight, config.writes_in_flight];
        Ok(Arc::new(Self {
            custom,
            store_breaker: CircuitBreaker::default(),
            notifications,
            unpacked: Unpacked::default(),
            accounts: Accounts::new(in_flight),
            lanes: Lanes::new(in_flight),
            connections: Connections::new(config.connections),
            listeners: Mutex::default(),
            config,
            store,
            registry,
            caches,
            ambient,
            authorizer,
            authenticator,
            bound_objects,
            allocator: OnceLock::new(),
            blocks,
            hooks: Hooks::default(),
            metrics,
            ready: watch::Sender::new(false),
            draining: CancellationToken::new(),
            endpoint_turn: tokio::sync::Mutex::default(),
            refusing: CancellationToken::new(),
            shutdown: CancellationToken::new(),
        }))
    }

    /// Ends watches and upkeep. Requests in flight are answered.
    pub fn stop(&self) {
        self.draining.cancel();
        self.refusing.cancel();
        self.shutdown.cancel();
    }

    /// New requests are refused, watches end after a whole event.
    pub fn refuse(&self) {
        self.draining.cancel();
        self.refusing.cancel();
    }

    /// Requests that are being worked on, watches and streams not counted.
    pub fn in_flight(&self) -> i64 {
        self.metrics.in_flight()
    }

    /// Returns the token that is cancelled when the end is announced.
    pub(crate) fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    /// Held while this server writes its endpoint of the Service `kubernetes`.
    pub(crate) fn endpoint_turn(&self) -> &tokio::sync::Mutex<Endpoint> {
        &self.endpoint_turn
    }

    /// Returns the token that is cancelled when requests are refused.
    pub(crate) fn refusing(&self) -> &CancellationToken {
        &self.refusing
    }

    /// Returns the notifications for the tasks that maintain the server's own objects.
    pub(crate) fn notifications(&self) -> &Notifications {
        &self.notifications
    }

    pub(crate) fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// The ServiceCIDRs.
    pub(crate) fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    pub(crate) fn shared_store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Waits until the server has what a new cluster needs and answers readiness with yes.
    pub async fn ready(&self) {
        let mut ready = self.ready.subscribe();
        // The sender lives in `self`, so the wait ends only with the value.
        let _ = ready.wait_for(|ready| *ready).await;
    }

    /// Returns true if [`Server::ready`] would return at once.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    pub(crate) fn set_ready(&self) {
        self.ready.send_replace(true);
    }

    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The built-in kinds.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The custom kinds.
    pub(crate) fn custom(&self) -> &Arc<CustomKinds> {
        &self.custom
    }

    /// A kind by its path, built in or custom, as this server knows it at this moment.
    pub fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let builtin = self.registry.lookup(group, version, plural).cloned();
        builtin.or_else(|| self.custom.kind(group, version, plural))
    }

    /// Does the same; a definition that was established before the call counts, provided that the store
    /// answers soon.
    pub(crate) async fn fresh_kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        if let Some(kind) = self.kind(group, version, plural) {
            return Some(kind);
        }
        // Groups of definitions have a dot; others do not depend on the store.
        if !group.contains('.') {
            return None;
        }
        self.fresh_soon().await;
        self.custom.kind(group, version, plural)
    }

    pub fn caches(&self) -> &Arc<Caches> {
        &self.caches
    }

    pub fn ambient(&self) -> &Ambient {
        &self.ambient
    }

    pub fn authorizer(&self) -> &Authorizer {
        &self.authorizer
    }

    pub fn authenticator(&self) -> Option<&Authenticator> {
        self.authenticator.as_ref()
    }

    pub fn issuer(&self) -> Option<&Issuer> {
        self.config.issuer.as_deref()
    }

    pub fn bound_objects(&self) -> Arc<dyn BoundObjects> {
        Arc::<Bound>::clone(&self.bound_objects)
    }

    /// Discovery and OpenAPI of the kinds served at this moment.
    pub(crate) fn documents(&self) -> Arc<Documents> {
        self.custom.documents(&self.registry, self.config.advertise)
    }

    /// Returns what a call of a conversion webhook needs.
    pub fn webhook_caller(&self) -> conversion::Caller<'_> {
        conversion::Caller { caches: &self.caches, metrics: &self.metrics, ambient: &self.ambient }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    /// OpenAPI documents that are being read.
    pub(crate) fn unpacked(&self) -> &Unpacked {
        &self.unpacked
    }

    /// Returns the accounts of the memory and the places that clients take at present.
    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// The places of requests in flight.
    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// The open connections.
    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    pub(crate) fn set_allocator(&self, allocator: Allocator) {
        // Only the bootstrap sets it, once.
        let _ = self.allocator.set(allocator);
    }

    /// Returns the allocator of addresses; 503 before the Services have been read.
    pub fn allocator(&self) -> Result<&Allocator, ApiError> {
        self.allocator.get().ok_or_else(|| {
            errors::retry_after(ApiError::new(503, "ServiceUnavailable", "the server is starting"), 1)
        })
    }

    /// Takes note of an address that this server listens on: no request is sent on to it.
    pub(crate) fn listens_on(&self, address: SocketAddr) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(address);
    }

    /// Returns the addresses at which this server itself is reached.
    pub(crate) fn own_addresses(&self) -> OwnAddresses {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        listeners.extend(self.config.advertise);
        let services =
            self.config.service_cidrs.iter().map(|range| range.iter().nth(1).unwrap_or(range.ip()));
        OwnAddresses { listeners, services: services.collect() }
    }

    /// Returns the connection to kubelets, 501 if there is none.
    pub fn kubelets(&self) -> Result<&Kubelets, ApiError> {
        self.config.kubelets.as_ref().ok_or_else(|| {
            ApiError::new(501, "NotImplemented", "this server has no credentials to call kubelets with")
        })
    }

    /// The cache of a kind.
    pub fn cache(&self, resource: &Resource) -> Result<Arc<Cache>, ApiError> {
        if resource.custom.is_some() {
            // Its definition may have been deleted since the request arrived.
            return self.caches.custom(resource).ok_or_else(no_such_resource);
        }
        self.caches
            .cache(&resource.group, &resource.version, &resource.plural)
            .cloned()
            .ok_or_else(|| ApiError::internal(format!("{} are not stored", resource.plural)))
    }

    /// Loads the objects of a kind that is only kept in memory on request; 503 or 504.
    pub(crate) async fn start_cache(&self, resource: &Resource) -> Result<(), ApiError> {
        // Its definition may change meanwhile, and then there is another cache. A caller whose cache is still
        // not live after all retries reports an error.
        for _ in 0..limits::CONFLICT_RETRIES {
            let cache = self.cache(resource)?;
            if !cache.is_lazy() || cache.is_live() {
                break;
            }
            self.caches.start(&cache).await.map_err(not_fresh)?;
        }
        Ok(())
    }

    /// Waits until the caches hold every write acknowledged before the call; 503 or 504.
    pub async fn fresh(&self) -> Result<Revision, ApiError> {
        self.caches.fresh().await.map_err(not_fresh)
    }

    /// Does the same if the store answers soon; for answers that can be given from memory otherwise.
    pub(crate) async fn fresh_soon(&self) {
        self.store_breaker.ask(self.fresh()).await;
    }

    /// Waits until the caches hold everything up to `revision`; 504.
    pub async fn reach(&self, revision: Revision) -> Result<(), ApiError> {
        self.caches
            .reach(revision)
            .await
            .map_err(|behind| errors::too_large(&format!("{}, current: {}", behind.asked, behind.current)))
    }
}

fn not_fresh(error: NotFresh) -> ApiError {
    match error {
        NotFresh::Store(error) => errors::store_error(error),
        NotFresh::Behind(behind) => {
            errors::too_large(&format!("{}, current: {}", behind.asked, behind.current))
        }
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

/// Roles and bindings reach the authorizer before the revision that changed them counts as seen.
fn feed_authorizer(caches: &Caches, authorizer: &Arc<Authorizer>) {
    let kinds = ["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"];
    let group = "rbac.authorization.k8s.io";
    for cache in caches.iter().filter(|c| c.resource.group == group) {
        let kind = cache.resource.kind.clone();
        if !kinds.contains(&kind.as_str()) {
            continue;
        }
        let authorizer = Arc::clone(authorizer);
        cache.observe(Box::new(move |old: Option<&Entry>, new: Option<&Entry>| match (old, new) {
            (_, Some(new)) => match serde_json::from_slice::<Value>(&new.object()) {
                Ok(object) => authorizer.apply(&kind, &object),
                Err(error) => tracing::warn!(%error, key = %new.key, "a role or binding cannot be decoded"),
            },
            (Some(old), None) => authorizer.remove(&kind, old.namespace(), old.name()),
            (None, None) => {}
        }));
    }
}

/// ServiceCIDRs reach the allocator before the revision that changed them counts as seen.
fn feed_blocks(caches: &Caches, blocks: &Arc<Blocks>) {
    let Some(cache) = caches.cache("networking.k8s.io", "v1", "servicecidrs") else { return };
    let blocks = Arc::clone(blocks);
    cache.observe(Box::new(move |old: Option<&Entry>, new: Option<&Entry>| match (old, new) {
        (_, Some(new)) => match serde_json::from_slice::<Value>(&new.object()) {
            Ok(object) => blocks.set(new.name(), Some(Block::of(&object))),
            Err(error) => tracing::warn!(%error, key = %new.key, "a ServiceCIDR cannot be decoded"),
        },
        (Some(old), None) => blocks.set(old.name(), None),
        (None, None) => {}
    }));
}
