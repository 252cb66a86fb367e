//! The addresses that a server gives to Services, and those at which it is reached itself.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use apiserver_cache::{Caches, Entry};
use apiserver_meta::networks::first_address;
use apiserver_schema::error::ApiError;
use ipnetwork::IpNetwork;
use serde_json::Value;

use crate::allocate::Allocator;
use crate::allocate::blocks::{Block, Blocks};
use crate::errors;
use crate::streams::OwnAddresses;

/// The addresses of Services and of the server.
pub struct Addresses {
    allocator: OnceLock<Allocator>,
    blocks: Arc<Blocks>,
    /// The addresses that this server listens on.
    listeners: Mutex<Vec<SocketAddr>>,
    advertise: Option<SocketAddr>,
    service_cidrs: Vec<IpNetwork>,
}

impl Addresses {
    /// Returns the addresses of these ranges, of a server that clients reach at `advertise`.
    pub fn new(caches: &Caches, service_cidrs: Vec<IpNetwork>, advertise: Option<SocketAddr>) -> Self {
        let blocks = Arc::new(Blocks::default());
        feed_blocks(caches, &blocks);
        Self { allocator: OnceLock::new(), blocks, listeners: Mutex::default(), advertise, service_cidrs }
    }

    /// Returns the ServiceCIDRs.
    pub fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    /// Sets the allocator, when the Services have been read.
    pub fn set_allocator(&self, allocator: Allocator) {
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
    pub fn listens_on(&self, address: SocketAddr) {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(address);
    }

    /// Returns the addresses at which this server itself is reached.
    pub fn own_addresses(&self) -> OwnAddresses {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        listeners.extend(self.advertise);
        let services = self.service_cidrs.iter().copied().filter_map(first_address);
        OwnAddresses { listeners, services: services.collect() }
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
