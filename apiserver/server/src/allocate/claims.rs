//! Cluster addresses, claimed in the store (KEP-1880).
//!
//! An address belongs to whoever has created the IPAddress of its name: that is one write, which
//! succeeds once, whichever API server tries it.

use std::net::IpAddr;
use std::sync::Arc;

use apiserver_meta::ambient::Ambient;
use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::meta;
use apiserver_schema::ordered;
use apiserver_store::{Op, Revision, Store, StoreError, Write, Written};
use bytes::Bytes;
use serde_json::{Value, json};

use apiserver_cache::Cache;
use apiserver_cache::encoding;

/// Says that the allocator made an IPAddress.
pub const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// Its value.
pub const ALLOCATOR: &str = "ipallocator.k8s.io";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";

/// The addresses that Services hold.
#[derive(Clone)]
pub struct Claims {
    pub store: Arc<dyn Store>,
    /// IPAddress.
    pub kind: Arc<Resource>,
    /// Knows most addresses that are taken, so that few attempts fail.
    pub cache: Option<Arc<Cache>>,
    pub ambient: Ambient,
}

/// Returns the IPAddress of an address that a Service holds.
pub fn object(address: IpAddr, (namespace, name): (&str, &str), ambient: &Ambient) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {
            "name": address.to_string(), "uid": ambient.uid(),
            "creationTimestamp": time::rfc3339(ambient.now()),
            "labels": {
                FAMILY: if address.is_ipv4() { "IPv4" } else { "IPv6" },
                MANAGED_BY: ALLOCATOR,
            },
        },
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": namespace, "name": name}},
    })
}

/// Returns the Service that an IPAddress belongs to, as `NAMESPACE/NAME`; `None` if it is none.
pub fn owner(address: &Value) -> Option<String> {
    let parent = &address["spec"]["parentRef"];
    let text = |key: &str| parent[key].as_str().unwrap_or_default();
    (text("group").is_empty() && text("resource") == "services")
        .then(|| format!("{}/{}", text("namespace"), text("name")))
}

/// Returns `true` if the IPAddress has the labels that the allocator sets.
pub fn is_ours(address: &Value) -> bool {
    address["metadata"]["labels"][MANAGED_BY] == ALLOCATOR
}

impl Claims {
    fn key(&self, address: IpAddr) -> String {
        format!("{}/{address}", self.kind.storage_prefix)
    }

    /// Returns `true` if the address is known to be claimed. This may be behind the store by a moment.
    pub fn is_taken(&self, address: IpAddr) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.get(&address.to_string()).is_some())
    }

    /// Returns the addresses that are known to be held. They may be behind the store by a moment.
    pub fn known(&self) -> Vec<IpAddr> {
        let Some(cache) = &self.cache else { return Vec::new() };
        cache.snapshot().objects.values().filter_map(|entry| entry.name().parse().ok()).collect()
    }

    /// Claims an address; returns `false` if it is taken.
    pub async fn take(&self, address: IpAddr, owner: (&str, &str)) -> Result<bool, StoreError> {
        let object = object(address, owner, &self.ambient);
        let value = self.encode(&object)?;
        let op = Op::Put { value, ttl_seconds: 0 };
        let written = self.store.write(Write { key: self.key(address), expected: 0, op }).await?;
        Ok(matches!(written, Written::Done { .. }))
    }

    fn encode(&self, object: &Value) -> Result<Bytes, StoreError> {
        if !self.store.shared() {
            return Ok(Bytes::from(ordered::json_text(object)));
        }
        encoding::as_kubernetes(&self.kind, object).map_err(|error| StoreError::Broken {
            attempted: format!("encode the IPAddress {}", meta::name(object)),
            why: error.to_string(),
            cause: None,
        })
    }

    /// Returns the IPAddress of an address.
    pub async fn read(&self, address: IpAddr) -> Result<Option<(Value, Revision)>, StoreError> {
        let Some(kv) = self.store.get(&self.key(address)).await?.kv else { return Ok(None) };
        match encoding::read(&kv.value) {
            Ok(object) => Ok(Some((object, kv.mod_revision))),
            Err(error) => Err(StoreError::Broken {
                attempted: format!("read {}", kv.key),
                why: error.to_string(),
                cause: None,
            }),
        }
    }

    /// Removes the IPAddress if it is still at this revision.
    pub async fn remove(&self, address: IpAddr, revision: Revision) -> Result<bool, StoreError> {
        let write = Write { key: self.key(address), expected: revision, op: Op::Delete };
        Ok(matches!(self.store.write(write).await?, Written::Done { .. }))
    }

    /// Rewrites the IPAddress for an owner, replacing the one at this revision.
    pub async fn replace(
        &self,
        address: IpAddr,
        owner: (&str, &str),
        revision: Revision,
    ) -> Result<bool, StoreError> {
        let value = self.encode(&object(address, owner, &self.ambient))?;
        let op = Op::Put { value, ttl_seconds: 0 };
        let written = self.store.write(Write { key: self.key(address), expected: revision, op }).await?;
        Ok(matches!(written, Written::Done { .. }))
    }

    /// Gives an address back, if it belongs to this Service.
    pub async fn free(&self, address: IpAddr, service: &str) -> Result<(), StoreError> {
        // Only the owner and the repair write it, so the second look is the last.
        for _ in 0..2 {
            let Some((object, revision)) = self.read(address).await? else { return Ok(()) };
            if owner(&object).as_deref() != Some(service) || self.remove(address, revision).await? {
                return Ok(());
            }
        }
        Ok(())
    }
}
