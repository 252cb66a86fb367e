//! Objects that the server writes in its own name: those of the bootstrap and those that its tasks maintain.

use std::sync::Arc;

use apiserver_auth::defaults::{self, DefaultWrite};
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_store::Revision;
use serde_json::Value;

use crate::context::OwnContexts;
use crate::errors;
use crate::limits;
use crate::objects::{Objects, Outcome};
use crate::write;
use crate::write::change::Make;
use crate::write::delete_options::DeleteOptions;
use crate::write::{Part, Tracking, Update, delete};

/// Reads objects, and writes them in the server's own name. Cheap to clone.
#[derive(Clone)]
pub struct OwnObjects {
    objects: Arc<Objects>,
    contexts: OwnContexts,
}

impl OwnObjects {
    /// Returns a writer of `objects`, whose writes are made in `contexts`.
    pub fn new(objects: Arc<Objects>, contexts: OwnContexts) -> Self {
        Self { objects, contexts }
    }

    /// Returns the objects, to read them.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Creates an object; returns `false` if it exists already.
    pub async fn create(&self, resource: &Resource, object: Value) -> Result<bool, ApiError> {
        let context = self.contexts.collection(meta::namespace(&object));
        match write::create(&context, resource, object, Tracking::Update).await {
            Ok(_) => Ok(true),
            Err(error) if error.reason == "AlreadyExists" => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes the object without a namespace that is called `name`; tries again when others write at the same time.
    pub async fn update(
        &self,
        resource: &Resource,
        name: &str,
        part: Part,
        make: Make<'_>,
    ) -> Result<(), ApiError> {
        let subresource = if part == Part::Status { "status" } else { "" };
        let context = self.contexts.object("", name, subresource);
        write::update(&context, resource, Update::of(&context, part, make)).await.map(drop)
    }

    /// Deletes an object; returns `true` if it is still there and waits for its finalizers.
    pub async fn delete(&self, resource: &Resource, namespace: &str, name: &str) -> Result<bool, ApiError> {
        let context = self.contexts.collection(namespace);
        match delete::one(&context, resource, namespace, name, &DeleteOptions::default()).await {
            Ok(delete::Deleted::Gone(_)) => Ok(false),
            Ok(delete::Deleted::Waiting(_)) => Ok(true),
            Err(error) if error.code == 404 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Stores an object as it is, if its resource version is still the one it was made from; returns `false` if it
    /// was changed meanwhile.
    pub async fn put(&self, resource: &Resource, object: Value) -> Result<bool, ApiError> {
        let expected: Revision = meta::resource_version(&object).parse().unwrap_or_default();
        Ok(matches!(self.objects.put(resource, object, expected).await?, Outcome::Done(_)))
    }

    /// Brings an object of the bootstrap up to date, as its kind is reconciled.
    pub async fn reconcile(&self, wanted: &Value) -> Result<(), ApiError> {
        let (api_version, kind) = (meta::text(wanted, "/apiVersion"), meta::text(wanted, "/kind"));
        let Some(resource) = self.objects.registry().by_kind(api_version, kind) else {
            tracing::debug!(kind, "a kind of the bootstrap is not served");
            return Ok(());
        };
        let (namespace, name) = (meta::namespace(wanted), meta::name(wanted));
        for _ in 0..limits::CONFLICT_RETRIES {
            let current = self.objects.fetch(resource, namespace, name).await?;
            let done = match defaults::reconcile(current.as_ref().map(|c| &c.object), wanted) {
                DefaultWrite::Nothing => true,
                DefaultWrite::Create(object) => self.create(resource, object).await?,
                DefaultWrite::Update(object) => self.put(resource, object).await?,
                DefaultWrite::Recreate(object) => {
                    let expected = current.map_or(0, |c| c.revision);
                    let removed = self.objects.remove(resource, namespace, name, expected).await?;
                    removed.is_ok() && self.create(resource, object).await?
                }
            };
            if done {
                return Ok(());
            }
        }
        Err(errors::modified(resource, name))
    }

    /// Brings several objects of the bootstrap up to date at once.
    pub async fn reconcile_all(&self, wanted: &[Value]) -> Result<(), ApiError> {
        futures::future::try_join_all(wanted.iter().map(|object| self.reconcile(object))).await.map(drop)
    }

    /// Creates an object, or sets the wanted fields in it and leaves the rest.
    pub async fn ensure_fields(&self, wanted: Value) -> Result<(), ApiError> {
        let (api_version, kind) = (meta::text(&wanted, "/apiVersion"), meta::text(&wanted, "/kind"));
        let Some(resource) = self.objects.registry().by_kind(api_version, kind) else { return Ok(()) };
        for _ in 0..limits::CONFLICT_RETRIES {
            let current = self.objects.fetch(resource, meta::namespace(&wanted), meta::name(&wanted)).await?;
            let done = match current {
                None => self.create(resource, wanted.clone()).await?,
                Some(current) => {
                    let mut new = current.object.clone();
                    overlay(&mut new, &wanted);
                    new == current.object || self.put(resource, new).await?
                }
            };
            if done {
                return Ok(());
            }
        }
        Err(errors::modified(resource, meta::name(&wanted)))
    }
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
