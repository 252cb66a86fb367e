//! Reads and writes of objects in the store: keys, encoding, and its errors as answers. Only
//! [`referred`](Objects::referred) reads a cache; all other results are those of the store.

use std::sync::Arc;
use std::time::Duration;

use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::ordered;
use apiserver_schema::ordered::Metadata;
use apiserver_store::limits::VALUE_BYTES;
use apiserver_store::{KeyValue, Op, Revision, StoreError, Write, Written};
use bytes::Bytes;
use serde_json::Value;
use tokio::task::JoinError;

use super::Objects;
use crate::conversion;
use crate::custom::Creating;
use crate::errors;
use crate::errors::store_error;
use crate::limits;
use crate::store_quota;
use crate::store_quota::Share;
use apiserver_cache::encoding;
use apiserver_cache::stored_version;
use apiserver_cache::{Cache, Entry};

/// An object as the store has it, with its resource version.
pub struct Stored {
    pub object: Value,
    pub revision: Revision,
}

/// The result of a conditional write.
pub enum Outcome {
    /// The object as it is now, encoded.
    Done(Bytes),
    /// Nothing was to be written: the object as it would be.
    Unchanged(Bytes),
    /// The object was changed meanwhile; the present one, if any.
    Conflict(Option<Stored>),
}

/// The terms of a write if the store is too small for it.
#[derive(Clone, Copy, Default)]
pub struct Terms {
    /// True if an object that is too large may be stored without its managed fields: a write should not fail
    /// because of the server's bookkeeping.
    pub may_forget: bool,
    /// The part of the store that the writer may fill.
    pub share: Share,
}

impl Objects {
    /// Returns the object at this moment.
    pub async fn fetch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Stored>, ApiError> {
        let got = self.store().get(&resource.key(namespace, name)).await.map_err(store_error)?;
        match got.kv {
            Some(kv) => self.decode(resource, &kv, self.webhook_caller()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns an object that another one refers to. If a request to the store costs a round trip the cache
    /// answers, as informers do in Kubernetes' admission; objects that it lacks are read from the store, so that
    /// only one that has just been deleted can be visible for a moment longer.
    pub async fn referred(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, ApiError> {
        if self.store().shared()
            && let Some(entry) = self.cache(resource)?.get(&resource.short_key(namespace, name))
        {
            return Ok(Some(entry.value(None)));
        }
        Ok(self.fetch(resource, namespace, name).await?.map(|stored| stored.object))
    }

    /// Returns the object at this moment, or 404.
    pub async fn require(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Stored, ApiError> {
        self.fetch(resource, namespace, name).await?.ok_or_else(|| errors::not_found(resource, name))
    }

    async fn decode(
        &self,
        resource: &Resource,
        kv: &KeyValue,
        caller: conversion::Caller<'_>,
    ) -> Result<Stored, ApiError> {
        let mut object = encoding::read(&kv.value)
            .map_err(|error| ApiError::internal(format!("{} cannot be decoded: {error}", kv.key)))?;
        if let Some(convert) = stored_version::from_stored(resource) {
            convert(&mut object);
        }
        conversion::convert(caller, resource, &mut object).await?;
        encoding::normalize_as(resource, &mut object);
        meta::set(&mut object, "resourceVersion", kv.mod_revision.to_string());
        Ok(Stored { object, revision: kv.mod_revision })
    }

    /// Writes an object for the server itself if its mod revision is `expected` (0: if it does not exist).
    pub async fn put(
        &self,
        resource: &Resource,
        object: Value,
        expected: Revision,
    ) -> Result<Outcome, ApiError> {
        self.put_on(resource, object, expected, Terms::default()).await
    }

    /// [`put`](Self::put) on a writer's terms.
    pub async fn put_on(
        &self,
        resource: &Resource,
        mut object: Value,
        expected: Revision,
        Terms { may_forget, share }: Terms,
    ) -> Result<Outcome, ApiError> {
        let key = resource.key(meta::namespace(&object), meta::name(&object));
        for field in ["resourceVersion", "selfLink"] {
            meta::unset(&mut object, field);
        }
        conversion::to_stored(self.webhook_caller(), resource, &mut object).await?;
        if let Some(convert) = stored_version::to_stored(resource) {
            convert(&mut object);
        }
        encoding::complete_kind(resource, &mut object);
        if meta::is_deeper(&object, limits::NESTING) {
            if may_forget {
                // Managed fields are nested some levels deeper than the fields that they name.
                meta::unset(&mut object, "managedFields");
            }
            if !may_forget || meta::is_deeper(&object, limits::NESTING) {
                return Err(ApiError::bad_request("exceeded max depth"));
            }
        }
        let (mut value, mut metadata) = self.encode(resource, &key, &object)?;
        if may_forget && value.len() > VALUE_BYTES && !object["metadata"]["managedFields"].is_null() {
            meta::unset(&mut object, "managedFields");
            (value, metadata) = self.encode(resource, &key, &object)?;
        }
        // Frees the decoded object before waiting, so that other requests can use its memory.
        drop(object);
        store_quota::check(self.store(), &key, value.len(), share).await?;
        let ttl_seconds = if resource.behaviour.expires { seconds(self.event_ttl()) } else { 0 };
        let op = Op::Put { value: value.clone(), ttl_seconds };
        let creating = if expected == 0 { self.custom().create(resource)? } else { None };
        let write = Write { key: key.clone(), expected, op };
        let written = match creating {
            None => self.store().write(write).await,
            Some(creating) => self.counted(creating, write).await,
        };
        match written.map_err(store_error)? {
            Written::Done { revision } if conversion::by_webhook(resource).is_some() => {
                let kv = KeyValue { key, value, create_revision: 0, mod_revision: revision };
                // The write is done, and is not refused any more.
                let caller = conversion::Caller { refusable: false, ..self.webhook_caller() };
                let stored = self.decode(resource, &kv, caller).await?;
                Ok(Outcome::Done(Bytes::from(ordered::json_text(&stored.object))))
            }
            Written::Done { revision } => {
                match metadata.filter(|_| stored_version::from_stored(resource).is_none()) {
                    Some(at) => Ok(Outcome::Done(Entry::answer_at(revision, &value, at))),
                    None => self.encoded(resource, &key, revision, &value).map(Outcome::Done),
                }
            }
            Written::Conflict { current, .. } => self.present(resource, current).await.map(Outcome::Conflict),
        }
    }

    /// Performs a write whose end its definition waits for, even if the request is cut off before: the store may
    /// still carry it out.
    async fn counted(&self, creating: Creating, write: Write) -> Result<Written, StoreError> {
        let (store, attempted) = (Arc::clone(self.shared_store()), format!("write {}", write.key));
        let work = tokio::spawn(async move {
            let written = store.write(write).await;
            drop(creating);
            written
        });
        let ended = |error: JoinError| StoreError::Unavailable { attempted, cause: Some(Box::new(error)) };
        work.await.unwrap_or_else(|error| Err(ended(error)))
    }

    /// Decodes the object that is stored instead of the expected one.
    async fn present(
        &self,
        resource: &Resource,
        current: Option<KeyValue>,
    ) -> Result<Option<Stored>, ApiError> {
        match current {
            Some(kv) => self.decode(resource, &kv, self.webhook_caller()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the bytes to store, and where their metadata begin if they are JSON of our own.
    fn encode(
        &self,
        resource: &Resource,
        key: &str,
        object: &Value,
    ) -> Result<(Bytes, Option<Metadata>), ApiError> {
        if !self.store().shared() {
            return Ok(encoding::exact_with_metadata(object));
        }
        encoding::as_kubernetes(resource, object)
            .map(|value| (value, None))
            .map_err(|error| ApiError::bad_request(format!("{key} cannot be encoded: {error}")))
    }

    /// Removes an object if its mod revision is `expected`; returns the present one otherwise.
    pub async fn remove(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        expected: Revision,
    ) -> Result<Result<Revision, Option<Stored>>, ApiError> {
        let write = Write { key: resource.key(namespace, name), expected, op: Op::Delete };
        match self.store().write(write).await.map_err(store_error)? {
            Written::Done { revision } => Ok(Ok(revision)),
            Written::Conflict { current, .. } => Ok(Err(self.present(resource, current).await?)),
        }
    }

    /// Stored bytes as an answer: in the version served, with the resource version.
    pub fn encoded(
        &self,
        resource: &Resource,
        key: &str,
        revision: Revision,
        stored: &Bytes,
    ) -> Result<Bytes, ApiError> {
        let cache = match self.cache(resource) {
            // A version that objects are stored in and that is not served has none.
            Err(_) if resource.custom.is_some() => {
                Arc::new(Cache::new(Arc::new(resource.clone()), stored_version::from_stored(resource)))
            }
            other => other?,
        };
        cache.answer(key, revision, stored).map_err(|error| ApiError::internal(error.to_string()))
    }
}

/// Whole seconds, at least one: none would be for ever.
fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1)
}
