//! Background tasks of the server: the contents of a new cluster, the registration of its own APIs, its own
//! Service and Lease, the ranges of addresses, repair of allocations, and compaction of the store.

mod api_services;
mod cidrs;
mod compaction;
pub mod definitions;
mod events;
mod flow;
mod identity;
mod own_objects;
mod own_service;
mod repair;
mod token_uses;
mod trust;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use apiserver_auth::authentication::TokenUses;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use ipnetwork::IpNetwork;
use serde_json::Value;
use tokio::sync::Mutex;

use self::cidrs::ServiceCidrs;
use self::events::Recorder;
use self::own_service::OwnService;
use self::repair::Repair;
use crate::addresses::Addresses;
use crate::allocate;
use crate::allocate::Allocator;
use crate::bootstrap;
use crate::lifetime::Lifetime;
use crate::notifications::{Endpoint, Notifications};
use crate::objects::Objects;

pub use self::own_objects::OwnObjects;

/// Pause after a bootstrap that the store did not take.
const RETRY: Duration = Duration::from_millis(200);
/// The namespaces of the system are looked after this often.
const NAMESPACES: Duration = Duration::from_secs(60);
/// Ending takes no longer than this, even if the store does not answer.
const WITHDRAWAL: Duration = Duration::from_secs(5);

/// The handles of the tasks, and their settings; each task is given those that it uses.
pub struct Upkeep {
    pub own: OwnObjects,
    pub addresses: Arc<Addresses>,
    pub lifetime: Arc<Lifetime>,
    pub notifications: Arc<Notifications>,
    /// Uses of the tokens in Secrets; `None` if no tokens are accepted.
    pub token_uses: Option<Arc<TokenUses>>,
    /// Held while this server writes its endpoint of the Service `kubernetes`.
    pub endpoint: Arc<Mutex<Endpoint>>,
    pub settings: Settings,
}

/// The part of the server's configuration that the tasks carry out.
pub struct Settings {
    /// The endpoint of the Service `kubernetes`; without it that Service is not maintained.
    pub advertise: Option<SocketAddr>,
    /// Ranges of cluster addresses, at most one a family.
    pub service_cidrs: Vec<IpNetwork>,
    /// Range of node ports.
    pub node_ports: RangeInclusive<u16>,
    /// True if the roles by which machines join are bound.
    pub bootstrap_tokens: bool,
    /// Authorities whose client certificates are users, PEM.
    pub client_ca: String,
    /// The host's name, after which the Lease of this server is named; without it there is none.
    pub identity: Option<String>,
    /// Time between compactions of the store; zero for none.
    pub compaction_interval: Duration,
}

impl Upkeep {
    fn recorder(&self) -> Recorder {
        Recorder::new(self.own.clone(), self.settings.identity.as_deref())
    }

    /// Returns the keeper of the Service `kubernetes`; `None` if it is not maintained.
    fn own_service(&self) -> Option<OwnService<'_>> {
        let address = self.settings.advertise?;
        let (own, endpoint, draining) = (&self.own, &self.endpoint, self.lifetime.draining());
        Some(OwnService { own, addresses: &self.addresses, endpoint, draining, address })
    }
}

/// Runs until the server stops.
pub async fn run(upkeep: Upkeep) {
    let shutdown = upkeep.lifetime.shutdown().clone();
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = work(&upkeep) => {}
    }
}

async fn work(upkeep: &Upkeep) {
    let Upkeep { own, addresses, lifetime, notifications, settings, .. } = upkeep;
    let (objects, hooks) = (own.objects(), lifetime.hooks());
    objects.caches().loaded().await;
    hooks.done("poststarthook/crd-informer-synced");
    let config = allocate::Config {
        service_cidrs: settings.service_cidrs.clone(),
        node_ports: settings.node_ports.clone(),
    };
    build_allocator(objects, addresses, config);
    let recorder = upkeep.recorder();
    let cidrs = ServiceCidrs {
        own,
        recorder: &recorder,
        blocks: addresses.blocks(),
        flags: &settings.service_cidrs,
        hooks,
    };
    let mut repair = Repair::new(objects, addresses, &recorder, settings.node_ports.clone(), hooks);
    while let Err(error) = bootstrap_all(upkeep, &cidrs, &mut repair).await {
        tracing::warn!(%error, "the cluster's own objects cannot be written, trying again");
        tokio::time::sleep(RETRY).await;
    }
    // These are done when their task runs, as in Kubernetes, whether or not the store answers it.
    hooks.done("poststarthook/start-kube-apiserver-identity-lease-controller");
    hooks.done("poststarthook/start-cluster-authentication-info-controller");
    lifetime.set_ready();
    let (draining, service) = (lifetime.draining(), upkeep.own_service());
    tokio::join!(
        compaction::run(objects, settings.compaction_interval),
        compaction::age(objects.caches()),
        async {
            if let Some(service) = &service {
                service.run().await;
            }
        },
        async {
            if let Some(host) = &settings.identity {
                identity::run(own, host, draining).await;
            }
        },
        cidrs.run(),
        repair.watch(),
        ensure_namespaces(own),
        flow::run(own, &notifications.flow),
        api_services::run(own, &notifications.api_services),
        trust::run(own, &settings.client_ca, &notifications.trust, draining),
        async {
            if let Some(uses) = &upkeep.token_uses {
                token_uses::run(own, uses, draining).await;
            }
        },
    );
}

/// Withdraws the objects of an API server that shuts down in good order: its endpoint of the Service
/// `kubernetes`, and its Lease.
pub async fn withdraw(upkeep: &Upkeep) {
    let work = async {
        if let Some(service) = upkeep.own_service() {
            service.withdraw().await;
        }
        if let Some(host) = &upkeep.settings.identity {
            identity::record_end(&upkeep.recorder(), host).await;
            identity::withdraw(upkeep.own.objects(), host).await;
        }
    };
    if tokio::time::timeout(WITHDRAWAL, work).await.is_err() {
        tracing::warn!("the store did not take back this server's endpoint in time");
    }
}

fn build_allocator(objects: &Objects, addresses: &Addresses, config: allocate::Config) {
    let Some(kind) = objects.registry().by_kind("networking.k8s.io/v1", "IPAddress") else { return };
    let kind = (Arc::clone(kind), objects.cache(kind).ok());
    let blocks = Arc::clone(addresses.blocks());
    let allocator = Allocator::new(config, objects.shared_store(), kind, blocks, objects.ambient());
    addresses.set_allocator(allocator.counting_in(objects.metrics().clone()));
}

/// Namespaces first, the rest at once, so that the store commits them together.
async fn bootstrap_all(
    upkeep: &Upkeep,
    cidrs: &ServiceCidrs<'_>,
    repair: &mut Repair<'_>,
) -> Result<(), ApiError> {
    let (own, hooks) = (&upkeep.own, upkeep.lifetime.hooks());
    let (namespaces, others): (Vec<Value>, Vec<Value>) = bootstrap::objects(upkeep.settings.bootstrap_tokens)
        .into_iter()
        .partition(|object| object["kind"] == "Namespace");
    own.reconcile_all(&namespaces).await?;
    futures::future::try_join3(
        own.reconcile_all(&others),
        flow::ensure(own),
        api_services::ensure(own, true),
    )
    .await?;
    for hook in [
        "poststarthook/start-system-namespaces-controller",
        "poststarthook/rbac/bootstrap-roles",
        "poststarthook/scheduling/bootstrap-system-priority-classes",
        "poststarthook/priority-and-fairness-config-producer",
        "poststarthook/kube-apiserver-autoregistration",
        "autoregister-completion",
    ] {
        hooks.done(hook);
    }
    cidrs.ensure_default().await?;
    own.objects().fresh().await?;
    if upkeep.addresses.allocator().is_ok() {
        repair.run().await?;
    }
    if let Some(service) = upkeep.own_service()
        && let Err(error) = service.ensure().await
    {
        // Looked after again and again; nothing else waits for it.
        tracing::warn!(%error, "cannot update the Service kubernetes");
    }
    hooks.done("poststarthook/bootstrap-controller");
    // Roles count once the authorizer has them.
    own.objects().fresh().await.map(drop)
}

/// Recreates the system namespaces when one has been deleted.
async fn ensure_namespaces(own: &OwnObjects) {
    let namespaces: Vec<Value> =
        bootstrap::objects(false).into_iter().filter(|object| object["kind"] == "Namespace").collect();
    loop {
        tokio::time::sleep(NAMESPACES).await;
        for wanted in &namespaces {
            let cache = own.objects().caches().cache("", "v1", "namespaces");
            if cache.is_some_and(|cache| cache.get(meta::name(wanted)).is_some()) {
                continue;
            }
            if let Err(error) = own.reconcile(wanted).await {
                tracing::warn!(%error, name = meta::name(wanted), "cannot create a namespace");
            }
        }
    }
}
