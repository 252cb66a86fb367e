//! The one task that drives all definitions: it accepts names, establishes kinds, and deletes the objects of
//! a definition that is being deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_registry::definition::{CLEANUP, Condition, GROUP, awaits_cleanup, reconcile, set_condition};
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_store::Range;
use serde_json::Value;
use tokio::time::Instant;

use super::OwnObjects;
use crate::custom::DEFINITIONS;
use crate::errors;
use crate::hooks::Hooks;
use crate::lifetime::Lifetime;
use crate::limits;
use crate::write::delete;

/// The time after which a definition is looked at again that could not be written, or whose objects are still
/// there.
const AGAIN: Duration = Duration::from_secs(1);

/// The definitions that are being deleted, by uid, with the time of the first look at their objects. Other
/// servers on the same store may not know of it then, and accept new objects for a moment longer: they have
/// until a later look.
#[derive(Default)]
struct Going(BTreeMap<String, Instant>);

impl Going {
    /// Returns the time at which the objects were first looked at.
    fn since(&mut self, uid: &str) -> Instant {
        *self.0.entry(uid.to_owned()).or_insert_with(Instant::now)
    }

    fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }
}

/// Runs until the server stops.
pub async fn run(own: OwnObjects, lifetime: Arc<Lifetime>) {
    let shutdown = lifetime.shutdown().clone();
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = drive(&own, lifetime.hooks()) => {}
    }
}

async fn drive(own: &OwnObjects, hooks: &Hooks) {
    let objects = own.objects();
    objects.caches().loaded().await;
    hooks.done("poststarthook/start-apiextensions-controllers");
    let mut later: BTreeMap<String, Instant> = BTreeMap::new();
    let mut going = Going::default();
    let queue = Arc::clone(objects.metrics().definitions());
    let mut due = Instant::now();
    loop {
        let taken = if later.is_empty() {
            objects.custom().next().await
        } else {
            tokio::select! {
                taken = objects.custom().next() => taken,
                () = tokio::time::sleep_until(due) => std::mem::take(&mut later),
            }
        };
        for (name, since) in taken {
            queue.taken(since);
            let done = look(own, &mut going, &name).await.unwrap_or_else(|error| {
                tracing::warn!(%error, %name, "a CustomResourceDefinition cannot be brought up to date");
                false
            });
            queue.done(!done);
            if done {
                later.remove(&name);
            } else {
                // Definitions that wait already do not wait longer because others keep coming.
                if later.is_empty() {
                    due = Instant::now() + AGAIN;
                }
                later.insert(name, Instant::now());
            }
        }
    }
}

/// Brings one definition up to date; `false` if that takes another look.
async fn look(own: &OwnObjects, going: &mut Going, name: &str) -> Result<bool, ApiError> {
    let objects = own.objects();
    let Some(resource) = objects.registry().lookup(GROUP, "v1", DEFINITIONS) else {
        return Ok(true);
    };
    let Some(current) = objects.fetch(resource, "", name).await? else { return Ok(true) };
    let definition = &current.object;
    if awaits_cleanup(definition) {
        return clean_up(own, going, resource, definition.clone()).await;
    }
    if meta::deletion_timestamp(definition).is_some() {
        return Ok(true);
    }
    // Names that others were granted count as soon as they are in the store.
    objects.fresh().await?;
    let group = meta::text(definition, "/spec/group");
    let others = objects.custom().taken(group, name, &definition["spec"]["names"]);
    match reconcile(definition, &others, objects.ambient().now()) {
        None => Ok(true),
        Some(new) => own.put(resource, new).await,
    }
}

/// Deletes the objects of a definition that is being deleted, and then removes its finalizer; returns `false`
/// if objects are left.
async fn clean_up(
    own: &OwnObjects,
    going: &mut Going,
    resource: &Resource,
    mut definition: Value,
) -> Result<bool, ApiError> {
    let objects = own.objects();
    let now = time::rfc3339(objects.ambient().now());
    let outcome = if meta::condition_is_true(&definition, "Established") {
        let (name, uid) = (meta::name(&definition), meta::uid(&definition).to_owned());
        // From here on this server refuses new objects, and those that it did not are in the store.
        objects.fresh().await?;
        if !objects.custom().created(name).await {
            return Ok(false);
        }
        let left = delete_objects(own, &definition).await?;
        let others_know = !objects.store().shared() || going.since(&uid).elapsed() >= AGAIN;
        if left == 0 && !others_know {
            return Ok(false);
        }
        if left == 0 {
            going.forget(&uid);
        }
        if left > 0 {
            let text = format!("CustomResource deletion is in progress, {left} objects are left");
            let progress = Condition::new("Terminating", true, "InstanceDeletionInProgress", &text);
            let before = definition.clone();
            set_condition(&mut definition, &progress, &now);
            if definition != before {
                own.put(resource, definition).await?;
            }
            return Ok(false);
        }
        Condition::new("Terminating", false, "InstanceDeletionCompleted", "removed all instances")
    } else {
        Condition::new("Terminating", false, "NeverEstablished", "resource was never established")
    };
    set_condition(&mut definition, &outcome, &now);
    let rest: Vec<String> =
        meta::finalizers(&definition).into_iter().filter(|f| *f != CLEANUP).map(str::to_owned).collect();
    meta::set_finalizers(&mut definition, rest);
    if !delete::is_finished(resource, &definition) {
        return own.put(resource, definition).await;
    }
    let expected = meta::resource_version(&definition).parse().unwrap_or_default();
    let removed = objects.remove(resource, "", meta::name(&definition), expected).await?;
    Ok(removed.is_ok())
}

/// Deletes what there is; gives how many objects still wait for their finalizers.
async fn delete_objects(own: &OwnObjects, definition: &Value) -> Result<usize, ApiError> {
    let objects = own.objects();
    let Some(known) = objects.custom().definition(meta::name(definition)) else { return Ok(0) };
    let Some(stored) = known.stored() else { return Ok(0) };
    let prefix = format!("{}/", stored.storage_prefix);
    let mut range =
        Range { prefix: prefix.clone(), limit: limits::DELETE_COLLECTION_PAGE, ..Range::default() };
    let mut left = 0;
    loop {
        let page = objects.store().list(range.clone()).await.map_err(errors::store_error)?;
        let places: Vec<(String, String)> = page
            .kvs
            .iter()
            .map(|kv| {
                let short = kv.key.strip_prefix(&prefix).unwrap_or_default();
                let (namespace, name) = short.split_once('/').unwrap_or(("", short));
                (namespace.to_owned(), name.to_owned())
            })
            .collect();
        let deletions = places.iter().map(|(namespace, name)| own.delete(&stored, namespace, name));
        for waits in futures::future::join_all(deletions).await {
            left += usize::from(waits?);
        }
        match page.kvs.last() {
            Some(last) if page.more => range.after.clone_from(&last.key),
            _ => return Ok(left),
        }
    }
}
