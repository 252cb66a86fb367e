//! What the server does without being asked: the contents of a new cluster, its own Service, and
//! compaction of the store.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use apiserver_api::error::ApiError;
use apiserver_api::meta;
use apiserver_api::registry::Resource;
use apiserver_store::Revision;
use serde_json::{Value, json};

use crate::allocate::{self, Allocator};
use crate::bootstrap::{self, Write};
use crate::context::Context;
use crate::limits;
use crate::server::Server;
use crate::storage::{self, Outcome};
use crate::verbs::create;

/// Pause after a bootstrap that the store did not take.
const RETRY: Duration = Duration::from_millis(200);
/// The Service `kubernetes` is looked after this often.
const OWN_SERVICE: Duration = Duration::from_secs(30);

/// Runs until the server stops.
pub async fn run(server: Arc<Server>) {
    let shutdown = server.shutdown().clone();
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = work(&server) => {}
    }
}

async fn work(server: &Arc<Server>) {
    server.caches().loaded().await;
    build_allocator(server);
    while let Err(error) = bootstrap_all(server).await {
        tracing::warn!(%error, "the cluster's own objects cannot be written, trying again");
        tokio::time::sleep(RETRY).await;
    }
    server.set_ready();
    tokio::join!(compact(server), keep_own_service(server));
}

fn build_allocator(server: &Arc<Server>) {
    let mut services = Vec::new();
    if let Some(cache) = server.caches().cache("", "v1", "services") {
        let decode = |entry: &Arc<crate::cache::Entry>| serde_json::from_slice(&entry.object()).ok();
        services.extend(cache.snapshot().objects.values().filter_map(decode));
    }
    let config = allocate::Config {
        service_cidrs: server.config().service_cidrs.clone(),
        node_ports: server.config().node_ports.clone(),
    };
    server.set_allocator(Allocator::new(config, services.iter(), server.ambient()));
}

/// Namespaces first, the rest at once, so that the store commits them together.
async fn bootstrap_all(server: &Arc<Server>) -> Result<(), ApiError> {
    let (namespaces, others): (Vec<Value>, Vec<Value>) =
        bootstrap::objects().into_iter().partition(|object| object["kind"] == "Namespace");
    for stage in [namespaces, others] {
        let writes = stage.iter().map(|object| ensure(server, object));
        futures::future::try_join_all(writes).await?;
    }
    if let Err(error) = own_service(server).await {
        // Looked after again and again; nothing else waits for it.
        tracing::warn!(%error, "the Service kubernetes cannot be kept");
    }
    // Roles count once the authorizer has them.
    server.fresh().await.map(drop)
}

async fn ensure(server: &Arc<Server>, wanted: &Value) -> Result<(), ApiError> {
    let (api_version, kind) = (meta::text(wanted, "/apiVersion"), meta::text(wanted, "/kind"));
    let Some(resource) = server.registry().by_kind(api_version, kind) else {
        tracing::debug!(kind, "a kind of the bootstrap is not served");
        return Ok(());
    };
    let (namespace, name) = (meta::namespace(wanted), meta::name(wanted));
    for _ in 0..limits::CONFLICT_RETRIES {
        let current = storage::fetch(server, resource, namespace, name).await?;
        let done = match bootstrap::reconcile(current.as_ref().map(|c| &c.object), wanted) {
            Write::Nothing => true,
            Write::Create(object) => create(server, resource, object).await?,
            Write::Update(object) => put(server, resource, object).await?,
            Write::Recreate(object) => {
                let expected = current.map_or(0, |c| c.revision);
                let removed = storage::remove(server, resource, namespace, name, expected).await?;
                removed.is_ok() && create(server, resource, object).await?
            }
        };
        if done {
            return Ok(());
        }
    }
    Err(storage::modified(resource, name))
}

/// `false` if somebody else was faster.
async fn create(server: &Arc<Server>, resource: &Arc<Resource>, object: Value) -> Result<bool, ApiError> {
    let context = Context::internal(Arc::clone(server), meta::namespace(&object));
    match create::store(&context, resource, object).await {
        Ok(_) => Ok(true),
        Err(error) if error.reason == "AlreadyExists" => Ok(false),
        Err(error) => Err(error),
    }
}

async fn put(server: &Arc<Server>, resource: &Arc<Resource>, object: Value) -> Result<bool, ApiError> {
    let expected: Revision = meta::resource_version(&object).parse().unwrap_or_default();
    Ok(matches!(storage::put(server, resource, object, expected).await?, Outcome::Done(_)))
}

async fn keep_own_service(server: &Arc<Server>) {
    let mut ticks = tokio::time::interval(OWN_SERVICE);
    loop {
        ticks.tick().await;
        if let Err(error) = own_service(server).await {
            tracing::warn!(%error, "the Service kubernetes cannot be kept");
        }
    }
}

/// The ServiceCIDR `kubernetes`, the Service of that name, its EndpointSlice and its Endpoints.
async fn own_service(server: &Arc<Server>) -> Result<(), ApiError> {
    keep_service_cidr(server).await?;
    let Some(address) = server.config().advertise else { return Ok(()) };
    let allocator = server.allocator()?;
    let service_address =
        allocator.kubernetes_addresses().into_iter().find(|a| a.is_ipv4() == address.is_ipv4());
    let service_address = service_address.or_else(|| allocator.kubernetes_addresses().first().copied());
    if let Some(service_address) = service_address {
        keep(server, own_service_object(service_address, address.port())).await?;
    }
    // Endpoints cannot be on the loopback interface, so a server that only listens there has none.
    if address.ip().is_loopback() {
        return Ok(());
    }
    keep(server, own_endpoints(address)).await?;
    keep(server, own_slice(address)).await
}

/// Says whence the addresses of Services come. What the flags say now wins over what they said
/// when the object was made.
async fn keep_service_cidr(server: &Arc<Server>) -> Result<(), ApiError> {
    let cidrs: Vec<String> = server.config().service_cidrs.iter().map(ToString::to_string).collect();
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready",
        "lastTransitionTime": apiserver_api::time::rfc3339(server.ambient().now()),
    });
    let wanted = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": cidrs},
        "status": {"conditions": [ready]},
    });
    let Some(resource) = server.registry().by_kind("networking.k8s.io/v1", "ServiceCIDR") else {
        return Ok(());
    };
    let Some(current) = storage::fetch(server, resource, "", "kubernetes").await? else {
        return create(server, resource, wanted).await.map(drop);
    };
    if current.object["spec"]["cidrs"] == wanted["spec"]["cidrs"] {
        return Ok(());
    }
    let mut new = current.object.clone();
    new["spec"]["cidrs"] = wanted["spec"]["cidrs"].clone();
    put(server, resource, new).await.map(drop)
}

fn own_service_object(cluster_ip: IpAddr, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP", "clusterIP": cluster_ip.to_string(), "sessionAffinity": "None",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}],
        },
    })
}

fn own_endpoints(address: SocketAddr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{
            "addresses": [{"ip": address.ip().to_string()}],
            "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}],
        }],
    })
}

fn own_slice(address: SocketAddr) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}],
    })
}

/// Creates an object, or sets in it what is wanted and leaves the rest.
async fn keep(server: &Arc<Server>, wanted: Value) -> Result<(), ApiError> {
    let (api_version, kind) = (meta::text(&wanted, "/apiVersion"), meta::text(&wanted, "/kind"));
    let Some(resource) = server.registry().by_kind(api_version, kind) else { return Ok(()) };
    for _ in 0..limits::CONFLICT_RETRIES {
        let current = storage::fetch(server, resource, meta::namespace(&wanted), meta::name(&wanted)).await?;
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
    Err(storage::modified(resource, meta::name(&wanted)))
}

/// Sets in `object` what `wanted` says; lists of equal length are merged item by item, so that
/// defaults stay.
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

/// Forgets what is older than one period.
async fn compact(server: &Arc<Server>) {
    let mut before: Revision = 0;
    loop {
        tokio::time::sleep(limits::COMPACT_EVERY).await;
        if before > 0
            && let Err(error) = server.store().compact(before).await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "the store cannot be compacted");
        }
        match server.store().revision().await {
            Ok(revision) => before = revision,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the store's revision is unknown");
            }
        }
    }
}
