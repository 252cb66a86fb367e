//! Background tasks of the server: the contents of a new cluster, the registration of its own APIs, its own
//! Service and Lease, the ranges of addresses, repair of allocations, and compaction of the store.

mod api_services;
mod cidrs;
pub mod definitions;
mod events;
mod flow;
mod identity;
mod own_service;
mod repair;
mod trust;

use std::sync::Arc;
use std::time::Duration;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_store::Revision;
use serde_json::Value;

use crate::allocate;
use crate::allocate::Allocator;
use crate::bootstrap;
use crate::context::Context;
use crate::errors;
use crate::limits;
use crate::objects::Outcome;
use crate::server::Server;
use crate::write;
use crate::write::Tracking;
use apiserver_auth::defaults::{self, DefaultWrite};

/// Pause after a bootstrap that the store did not take.
const RETRY: Duration = Duration::from_millis(200);
/// The namespaces of the system are looked after this often.
const NAMESPACES: Duration = Duration::from_secs(60);
/// Ending takes no longer than this, even if the store does not answer.
const WITHDRAWAL: Duration = Duration::from_secs(5);

/// Runs until the server stops.
pub async fn run(server: Arc<Server>) {
    let shutdown = server.lifetime().shutdown().clone();
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = work(&server) => {}
    }
}

async fn work(server: &Arc<Server>) {
    server.objects().caches().loaded().await;
    server.lifetime().hooks().done("poststarthook/crd-informer-synced");
    build_allocator(server);
    let mut repair = repair::Repair::default();
    while let Err(error) = bootstrap_all(server, &mut repair).await {
        tracing::warn!(%error, "the cluster's own objects cannot be written, trying again");
        tokio::time::sleep(RETRY).await;
    }
    // These are done when their task runs, as in Kubernetes, whether or not the store answers it.
    server.lifetime().hooks().done("poststarthook/start-kube-apiserver-identity-lease-controller");
    server.lifetime().hooks().done("poststarthook/start-cluster-authentication-info-controller");
    server.lifetime().set_ready();
    tokio::join!(
        compact(server),
        age(server),
        own_service::run(server),
        identity::run(server),
        cidrs::run(server),
        repair::run(server, repair),
        ensure_namespaces(server),
        flow::run(server),
        api_services::run(server),
        trust::run(server),
    );
}

/// Withdraws the objects of an API server that shuts down in good order: its endpoint of the Service
/// `kubernetes`, and its Lease.
pub async fn withdraw(server: &Arc<Server>) {
    let work = async {
        own_service::withdraw(server).await;
        identity::tell_end(server).await;
        identity::withdraw(server).await;
    };
    if tokio::time::timeout(WITHDRAWAL, work).await.is_err() {
        tracing::warn!("the store did not take back this server's endpoint in time");
    }
}

fn build_allocator(server: &Arc<Server>) {
    let Some(kind) = server.objects().registry().by_kind("networking.k8s.io/v1", "IPAddress") else { return };
    let config = allocate::Config {
        service_cidrs: server.config().service_cidrs.clone(),
        node_ports: server.config().node_ports.clone(),
    };
    let cache = server.objects().cache(kind).ok();
    let blocks = Arc::clone(server.addresses().blocks());
    let kind = (Arc::clone(kind), cache);
    let allocator = Allocator::new(config, server.objects().shared_store(), kind, blocks, server.ambient());
    server.addresses().set_allocator(allocator.counting_in(server.metrics().clone()));
}

/// Namespaces first, the rest at once, so that the store commits them together.
async fn bootstrap_all(server: &Arc<Server>, repair: &mut repair::Repair) -> Result<(), ApiError> {
    let (namespaces, others): (Vec<Value>, Vec<Value>) = bootstrap::objects(server.config().bootstrap_tokens)
        .into_iter()
        .partition(|object| object["kind"] == "Namespace");
    ensure_each(server, &namespaces).await?;
    futures::future::try_join3(
        ensure_each(server, &others),
        flow::ensure(server),
        api_services::ensure(server, true),
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
        server.lifetime().hooks().done(hook);
    }
    cidrs::ensure_default(server).await?;
    server.objects().fresh().await?;
    if server.addresses().allocator().is_ok() {
        repair.run(server).await?;
    }
    if let Err(error) = own_service::ensure(server).await {
        // Looked after again and again; nothing else waits for it.
        tracing::warn!(%error, "cannot update the Service kubernetes");
    }
    server.lifetime().hooks().done("poststarthook/bootstrap-controller");
    // Roles count once the authorizer has them.
    server.objects().fresh().await.map(drop)
}

/// Recreates the system namespaces when one has been deleted.
async fn ensure_namespaces(server: &Arc<Server>) {
    let namespaces: Vec<Value> =
        bootstrap::objects(false).into_iter().filter(|object| object["kind"] == "Namespace").collect();
    loop {
        tokio::time::sleep(NAMESPACES).await;
        for wanted in &namespaces {
            let cache = server.objects().caches().cache("", "v1", "namespaces");
            if cache.is_some_and(|cache| cache.get(meta::name(wanted)).is_some()) {
                continue;
            }
            if let Err(error) = ensure(server, wanted).await {
                tracing::warn!(%error, name = meta::name(wanted), "cannot create a namespace");
            }
        }
    }
}

async fn ensure_each(server: &Arc<Server>, objects: &[Value]) -> Result<(), ApiError> {
    futures::future::try_join_all(objects.iter().map(|object| ensure(server, object))).await.map(drop)
}

async fn ensure(server: &Arc<Server>, wanted: &Value) -> Result<(), ApiError> {
    let (api_version, kind) = (meta::text(wanted, "/apiVersion"), meta::text(wanted, "/kind"));
    let Some(resource) = server.objects().registry().by_kind(api_version, kind) else {
        tracing::debug!(kind, "a kind of the bootstrap is not served");
        return Ok(());
    };
    let (namespace, name) = (meta::namespace(wanted), meta::name(wanted));
    for _ in 0..limits::CONFLICT_RETRIES {
        let current = server.objects().fetch(resource, namespace, name).await?;
        let done = match defaults::reconcile(current.as_ref().map(|c| &c.object), wanted) {
            DefaultWrite::Nothing => true,
            DefaultWrite::Create(object) => create(server, resource, object).await?,
            DefaultWrite::Update(object) => put(server, resource, object).await?,
            DefaultWrite::Recreate(object) => {
                let expected = current.map_or(0, |c| c.revision);
                let removed = server.objects().remove(resource, namespace, name, expected).await?;
                removed.is_ok() && create(server, resource, object).await?
            }
        };
        if done {
            return Ok(());
        }
    }
    Err(errors::modified(resource, name))
}

/// Creates an object; returns `false` if it exists already.
async fn create(server: &Arc<Server>, resource: &Arc<Resource>, object: Value) -> Result<bool, ApiError> {
    let context = Context::internal(Arc::clone(server), meta::namespace(&object));
    match write::create(&context, resource, object, Tracking::Update).await {
        Ok(_) => Ok(true),
        Err(error) if error.reason == "AlreadyExists" => Ok(false),
        Err(error) => Err(error),
    }
}

async fn put(server: &Arc<Server>, resource: &Arc<Resource>, object: Value) -> Result<bool, ApiError> {
    let expected: Revision = meta::resource_version(&object).parse().unwrap_or_default();
    Ok(matches!(server.objects().put(resource, object, expected).await?, Outcome::Done(_)))
}

/// Creates an object, or sets the wanted fields in it and leaves the rest.
async fn ensure_object(server: &Arc<Server>, wanted: Value) -> Result<(), ApiError> {
    let (api_version, kind) = (meta::text(&wanted, "/apiVersion"), meta::text(&wanted, "/kind"));
    let Some(resource) = server.objects().registry().by_kind(api_version, kind) else { return Ok(()) };
    for _ in 0..limits::CONFLICT_RETRIES {
        let current = server.objects().fetch(resource, meta::namespace(&wanted), meta::name(&wanted)).await?;
        let done = match current {
            None => create(server, resource, wanted.clone()).await?,
            Some(current) => {
                let mut new = current.object.clone();
                overlay(&mut new, &wanted);
                new == current.object || put(server, resource, new).await?
            }
        };
        if done {
            return Ok(());
        }
    }
    Err(errors::modified(resource, meta::name(&wanted)))
}

/// Sets in `object` the fields of `wanted`; lists of equal length are merged item by item, so that defaults
/// stay.
fn overlay(object: &mut Value, wanted: &Value) {
    match (object, wanted) {
        (Value::Object(object), Value::Object(wanted)) => {
            for (key, value) in wanted {
                overlay(object.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(object), Value::Array(wanted)) if object.len() == wanted.len() => {
            object.iter_mut().zip(wanted).for_each(|(o, w)| overlay(o, w));
        }
        (object, wanted) => *object = wanted.clone(),
    }
}

/// Drops old entries of the caches that no longer change, so that a burst leaves nothing behind.
async fn age(server: &Arc<Server>) {
    loop {
        tokio::time::sleep(limits::AGE_EVERY).await;
        server.objects().caches().age();
    }
}

/// The key under which the servers of one store agree which one compacts it, as Kubernetes' servers do.
const COMPACTION: &str = "compact_rev_key";

/// Compacts history older than one period. Of several servers over one store one does it: the one whose write
/// of the key succeeds.
async fn compact(server: &Arc<Server>) {
    let every = server.config().compaction_interval;
    if every.is_zero() {
        return std::future::pending().await;
    }
    let mut before: Revision = 0;
    let mut round = 0;
    loop {
        tokio::time::sleep(every).await;
        match compact_once(server, before, round).await {
            Ok((revision, next)) => (before, round) = (revision, next),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the store cannot be compacted");
            }
        }
    }
}

/// Compacts up to `before` if no other server has since `round`, the version of the key that was seen last;
/// returns the present revision and the version of the key.
async fn compact_once(
    server: &Arc<Server>,
    before: Revision,
    round: Revision,
) -> Result<(Revision, Revision), apiserver_store::StoreError> {
    let store = server.objects().store();
    if !store.shared() {
        if before > 0 {
            store.compact(before).await?;
            server.objects().caches().compacted(before);
        }
        return Ok((store.revision().await?, 0));
    }
    let value = before.to_string().into();
    let op = apiserver_store::Op::Put { value, ttl_seconds: 0 };
    let write = apiserver_store::Write { key: COMPACTION.to_owned(), expected: round, op };
    match store.write(write).await? {
        apiserver_store::Written::Done { revision } => {
            if before > 0 {
                store.compact(before).await?;
                server.objects().caches().compacted(before);
            }
            Ok((revision, revision))
        }
        // Another server was faster.
        apiserver_store::Written::Conflict { current, revision } => {
            let value = current.as_ref().and_then(|kv| std::str::from_utf8(&kv.value).ok());
            server.objects().caches().compacted(value.and_then(|value| value.parse().ok()).unwrap_or(0));
            Ok((revision, current.map_or(0, |kv| kv.mod_revision)))
        }
    }
}
