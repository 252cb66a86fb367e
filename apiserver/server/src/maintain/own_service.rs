//! The Service `kubernetes`, its EndpointSlice and its Endpoints, kept by all API servers together.
//!
//! Each server writes a key with a time to live under its address, as Kubernetes' lease reconciler
//! does, and sets the endpoints to the addresses found there. The address of a server that dies
//! goes with its key; one that ends in good order removes it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use apiserver_schema::error::ApiError;
use apiserver_schema::ordered;
use apiserver_schema::protobuf;
use apiserver_store::{Op, Range, Store, StoreError, Write, Written};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::OwnObjects;
use crate::addresses::Addresses;
use crate::errors;
use crate::limits;
use crate::notifications::Endpoint;

/// The prefix of the keys; their names are addresses.
const LEASES: &str = "/registry/masterleases/";
/// Seconds that an address counts without being renewed.
const TTL: u32 = 15;
const RENEW: Duration = Duration::from_secs(10);

/// Keeps the Service for the server that clients reach at `address`.
pub struct OwnService<'a> {
    pub own: &'a OwnObjects,
    pub addresses: &'a Addresses,
    /// Held while this server writes its endpoint.
    pub endpoint: &'a Mutex<Endpoint>,
    /// Cancelled when the end of the server is announced.
    pub draining: &'a CancellationToken,
    pub address: SocketAddr,
}

impl OwnService<'_> {
    /// Looks after them for ever, until the server ends.
    pub async fn run(&self) {
        let address = self.address;
        if address.ip().is_loopback() {
            tracing::warn!(
                "the Service kubernetes gets no endpoints, because pods cannot reach {}: give --advertise-address, or \
                 --node-ip to `hawser up`",
                address.ip()
            );
        }
        let mut ticks = tokio::time::interval(RENEW);
        loop {
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if let Err(error) = self.ensure().await {
                tracing::warn!(%error, "cannot update the Service kubernetes");
            }
        }
    }

    /// Writes the missing parts of the Service, and the present endpoints.
    pub async fn ensure(&self) -> Result<(), ApiError> {
        let address = self.address;
        let addresses = self.addresses.allocator()?.kubernetes_addresses();
        let service_address = addresses.iter().find(|a| a.is_ipv4() == address.is_ipv4());
        if let Some(service_address) = service_address.or(addresses.first()) {
            self.own.ensure_fields(service(*service_address, address.port())).await?;
        }
        // A shutdown withdraws the endpoint after this has ended, and nothing restores it then.
        let mut endpoint = self.endpoint.lock().await;
        // Endpoints cannot be on the loopback interface, so a server that only listens there has none.
        if address.ip().is_loopback() || self.draining.is_cancelled() {
            return Ok(());
        }
        renew(self.own.objects().store(), address.ip(), &mut endpoint).await.map_err(errors::store_error)?;
        reconcile(self.own, address).await
    }

    /// Takes this server's endpoint away. The last server's stays: an address that does not answer
    /// tells clients more than none.
    pub async fn withdraw(&self) {
        let address = self.address;
        if address.ip().is_loopback() {
            return;
        }
        let endpoint = self.endpoint.lock().await;
        let result = async {
            remove(self.own.objects().store(), address.ip(), &endpoint).await.map_err(errors::store_error)?;
            reconcile(self.own, address).await
        };
        if let Err(error) = result.await {
            tracing::warn!(%error, "this server's endpoint stays until its key expires");
        }
    }
}

/// Sets the endpoints to the servers that are alive. Another server may do the same from an older look and
/// write later, so each looks again after its write.
async fn reconcile(own: &OwnObjects, address: SocketAddr) -> Result<(), ApiError> {
    let mut addresses = alive(own.objects().store(), address).await?;
    for _ in 0..limits::CONFLICT_RETRIES {
        if addresses.is_empty() {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            tracing::info!(
                "no API server with an {family} address is known to be left; the endpoints of the Service kubernetes stay"
            );
            return Ok(());
        }
        own.ensure_fields(endpoints(&addresses, address.port())).await?;
        own.ensure_fields(slice(&addresses, address.port())).await?;
        let now = alive(own.objects().store(), address).await?;
        if now == addresses {
            break;
        }
        addresses = now;
    }
    Ok(())
}

fn key(address: IpAddr) -> String {
    format!("{LEASES}{address}")
}

/// Returns the value that Kubernetes stores for an address: Endpoints with that address alone.
fn value(address: IpAddr) -> Bytes {
    let object = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": {},
        "subsets": [{"addresses": [{"ip": address.to_string()}]}],
    });
    protobuf::to_envelope(&object).map_or_else(|_| Bytes::from(ordered::json_text(&object)), Bytes::from)
}

async fn renew(store: &dyn Store, address: IpAddr, endpoint: &mut Endpoint) -> Result<(), StoreError> {
    let (key, value) = (key(address), value(address));
    let mut expected = store.get(&key).await?.kv.map_or(0, |kv| kv.mod_revision);
    endpoint.shared = endpoint.written > 0 && expected > endpoint.written;
    for _ in 0..limits::CONFLICT_RETRIES {
        let op = Op::Put { value: value.clone(), ttl_seconds: TTL };
        match store.write(Write { key: key.clone(), expected, op }).await? {
            Written::Done { revision } => {
                endpoint.written = revision;
                return Ok(());
            }
            // It expired meanwhile, or another server has the same address.
            Written::Conflict { current, .. } => expected = current.map_or(0, |kv| kv.mod_revision),
        }
    }
    Ok(())
}

/// Removes the key, unless it is another server's as well.
async fn remove(store: &dyn Store, address: IpAddr, endpoint: &Endpoint) -> Result<(), StoreError> {
    let key = key(address);
    let Some(kv) = store.get(&key).await?.kv else { return Ok(()) };
    if endpoint.shared || kv.mod_revision > endpoint.written {
        tracing::info!(%address, "another API server has the same address, whose endpoint stays");
        return Ok(());
    }
    store.write(Write { key, expected: kv.mod_revision, op: Op::Delete }).await.map(drop)
}

/// Returns the addresses of the servers that are alive, of the family of `own`.
async fn alive(store: &dyn Store, own: SocketAddr) -> Result<BTreeSet<IpAddr>, ApiError> {
    let range = Range { prefix: LEASES.to_owned(), ..Range::default() };
    let page = store.list(range).await.map_err(errors::store_error)?;
    let addresses = page.kvs.iter().filter_map(|kv| kv.key.strip_prefix(LEASES)?.parse().ok());
    Ok(addresses.filter(|address: &IpAddr| address.is_ipv4() == own.is_ipv4()).collect())
}

fn service(cluster_ip: IpAddr, port: u16) -> Value {
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

fn endpoints(addresses: &BTreeSet<IpAddr>, port: u16) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|a| json!({"ip": a.to_string()})).collect();
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{
            "addresses": addresses,
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        }],
    })
}

fn slice(addresses: &BTreeSet<IpAddr>, port: u16) -> Value {
    let v4 = addresses.first().is_some_and(IpAddr::is_ipv4);
    let endpoint = |a: &IpAddr| json!({"addresses": [a.to_string()], "conditions": {"ready": true}});
    let endpoints: Vec<Value> = addresses.iter().map(endpoint).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": if v4 { "IPv4" } else { "IPv6" },
        "endpoints": endpoints,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    })
}
