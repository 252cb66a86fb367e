//! `get`: one object as bytes.

use std::sync::Arc;

use apiserver_registry::Resource;
use bytes::Bytes;

use crate::context::Context;
use crate::errors;
use crate::list_options;
use crate::object_answer::object_answer;
use crate::respond::Answer;
use apiserver_cache::{Cache, Entry};

/// Answers from the store's own key where the newest state is asked for, else from the cache.
pub async fn get(context: &Context, resource: &Resource) -> Answer {
    let object = read(context, resource).await?;
    object_answer(context, resource, 200, object)
}

async fn read(context: &Context, resource: &Resource) -> Result<Bytes, apiserver_schema::error::ApiError> {
    let (server, info) = (&context.server, &context.info);
    let cache = server.objects().cache(resource)?;
    let short = resource.short_key(&info.namespace, &info.name);
    let missing = || errors::not_found(resource, &info.name);
    let cached = match list_options::revision_of_get(context.query.get("resourceVersion"))? {
        None => fresh(context, &cache, &short).await?,
        Some(least) => {
            match least {
                0 => server.objects().caches().loaded().await,
                least => server.objects().reach(least).await?,
            }
            let entry = cache.get(&short);
            if cache.is_live() {
                return Ok(entry.ok_or_else(missing)?.object());
            }
            // Its definition has just changed. The store's answer is the newest.
            None
        }
    };
    if let Some(entry) = cached {
        return Ok(entry.object());
    }
    let key = resource.key(&info.namespace, &info.name);
    let got = server.objects().store().get(&key).await.map_err(errors::store_error)?;
    let kv = got.kv.ok_or_else(missing)?;
    // Usually the cache has the same version encoded already.
    match cache.get(&short).filter(|entry| entry.revision == kv.mod_revision) {
        Some(entry) => Ok(entry.object()),
        None => server.objects().encoded(resource, &key, kv.mod_revision, &kv.value),
    }
}

/// Returns the newest state of an object from the cache, where asking the store for it costs a round trip: those
/// who read at the same time ask for one revision together, and a cache that has passed it has every
/// write that was acknowledged before any of them asked. Nothing where that does not answer the request:
/// the cache is behind, or has no such object.
async fn fresh(
    context: &Context,
    cache: &Arc<Cache>,
    short: &str,
) -> Result<Option<Arc<Entry>>, apiserver_schema::error::ApiError> {
    let server = &context.server;
    if !server.objects().store().shared() {
        return Ok(None);
    }
    let revision = server.objects().store().revision().await.map_err(errors::store_error)?;
    if server.objects().caches().passed() < revision {
        return Ok(None);
    }
    let entry = cache.get(short);
    // One that has just ceased to follow the store may have missed something.
    Ok(entry.filter(|_| cache.is_live()))
}
