//! The objects of a server: the store, the kinds that are served, and the watch caches. All reads and
//! writes of objects go through this handle.

mod stored;

use std::sync::Arc;
use std::time::Duration;

use apiserver_cache::{Cache, Caches, NotFresh};
use apiserver_meta::ambient::Ambient;
use apiserver_registry::{Registry, Resource};
use apiserver_schema::error::ApiError;
use apiserver_store::{Revision, Store};

use crate::circuit_breaker::CircuitBreaker;
use crate::conversion;
use crate::custom::CustomKinds;
use crate::errors;
use crate::errors::no_such_resource;
use crate::limits;
use crate::metrics::Metrics;
use crate::streams::Kubelets;

pub use stored::{Outcome, Stored, Terms};

/// The objects of a server, and the kinds that they are of.
pub struct Objects {
    store: Arc<dyn Store>,
    registry: Registry,
    caches: Arc<Caches>,
    custom: Arc<CustomKinds>,
    breaker: CircuitBreaker,
    ambient: Ambient,
    metrics: Metrics,
    /// The ways to the pods of webhooks.
    kubelets: Option<Kubelets>,
    conversions: conversion::Calls,
    event_ttl: Duration,
}

impl Objects {
    /// Returns the objects in `store`, with the built-in kinds of `registry` and the custom ones. Events live for
    /// `event_ttl`.
    pub fn new(
        store: Arc<dyn Store>,
        registry: Registry,
        caches: Arc<Caches>,
        custom: Arc<CustomKinds>,
        (ambient, metrics): (Ambient, Metrics),
        kubelets: Option<Kubelets>,
        event_ttl: Duration,
    ) -> Self {
        Self {
            store,
            registry,
            caches,
            custom,
            breaker: CircuitBreaker::default(),
            ambient,
            metrics,
            kubelets,
            conversions: conversion::Calls::default(),
            event_ttl,
        }
    }

    /// Returns the clock and the source of randomness.
    pub fn ambient(&self) -> &Ambient {
        &self.ambient
    }

    /// Returns the counters of what is done with objects.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the time for which an Event lives.
    pub fn event_ttl(&self) -> Duration {
        self.event_ttl
    }

    /// Returns the store, with what it is asked measured.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns the store, for a task.
    pub fn shared_store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the built-in kinds.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the custom kinds.
    pub fn custom(&self) -> &Arc<CustomKinds> {
        &self.custom
    }

    /// Returns a kind by its path, built in or custom, as this server knows it at this moment.
    pub fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let builtin = self.registry.lookup(group, version, plural).cloned();
        builtin.or_else(|| self.custom.kind(group, version, plural))
    }

    /// Does the same; a definition that was established before the call counts, provided that the store
    /// answers soon.
    pub async fn fresh_kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
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

    /// Returns the watch caches.
    pub fn caches(&self) -> &Arc<Caches> {
        &self.caches
    }

    /// Returns what a call of a conversion webhook needs.
    pub fn webhook_caller(&self) -> conversion::Caller<'_> {
        conversion::Caller {
            calls: &self.conversions,
            refusable: true,
            caches: &self.caches,
            kubelets: self.kubelets.as_ref(),
            metrics: &self.metrics,
            ambient: &self.ambient,
        }
    }

    /// Returns the cache of a kind.
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
    pub async fn start_cache(&self, resource: &Resource) -> Result<(), ApiError> {
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

    /// Waits as [`Self::fresh`] does, but gives up if the store does not answer soon; for answers that memory
    /// can give too.
    pub async fn fresh_soon(&self) {
        self.breaker.ask(self.fresh()).await;
    }

    /// Waits until the caches hold everything up to `revision`; 504.
    pub async fn reach(&self, revision: Revision) -> Result<(), ApiError> {
        self.caches
            .reach(revision)
            .await
            .map_err(|behind| errors::too_large(&format!("{}, current: {}", behind.asked, behind.current)))
    }
}

impl conversion::Host for Objects {
    fn webhook_caller(&self) -> conversion::Caller<'_> {
        Self::webhook_caller(self)
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
