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

use crate::context::Context;
use crate::custom::DEFINITIONS;
use crate::errors;
use crate::limits;
use crate::objects::Outcome;
use crate::server::Server;
use crate::write::delete;
use crate::write::delete_options::DeleteOptions;

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
pub async fn run(server: Arc<Server>) {
    let shutdown = server.lifetime().shutdown().clone();
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = drive(&server) => {}
    }
}

async fn drive(server: &Arc<Server>) {
    server.objects().caches().loaded().await;
    server.lifetime().hooks().done("poststarthook/start-apiextensions-controllers");
    let mut later: BTreeMap<String, Instant> = BTreeMap::new();
    let mut going = Going::default();
    let queue = Arc::clone(server.metrics().definitions());
    let mut due = Instant::now();
    loop {
        let taken = if later.is_empty() {
            server.objects().custom().next().await
        } else {
            tokio::select! {
                taken = server.objects().custom().next() => taken,
                () = tokio::time::sleep_until(due) => std::mem::take(&mut later),
            }
        };
        for (name, since) in taken {
            queue.taken(since);
            let done = look(server, &mut going, &name).await.unwrap_or_else(|error| {
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
async fn look(server: &Arc<Server>, going: &mut Going, name: &str) -> Result<bool, ApiError> {
    let Some(resource) = server.objects().registry().lookup(GROUP, "v1", DEFINITIONS) else {
        return Ok(true);
    };
    let Some(current) = server.objects().fetch(resource, "", name).await? else { return Ok(true) };
    let definition = &current.object;
    if awaits_cleanup(definition) {
        return clean_up(server, going, resource, definition.clone()).await;
    }
    if meta::deletion_timestamp(definition).is_some() {
        return Ok(true);
    }
    // Names that others were granted count as soon as they are in the store.
    server.objects().fresh().await?;
    let group = meta::text(definition, "/spec/group");
    let others = server.objects().custom().taken(group, name, &definition["spec"]["names"]);
    match reconcile(definition, &others, server.ambient().now()) {
        None => Ok(true),
        Some(new) => write(server, resource, new).await,
    }
}

/// Writes a definition if its resource version is still the one it was made from; returns `false` if it was
/// changed meanwhile.
async fn write(server: &Server, resource: &Resource, definition: Value) -> Result<bool, ApiError> {
    let expected = meta::resource_version(&definition).parse().unwrap_or_default();
    Ok(matches!(server.objects().put(resource, definition, expected).await?, Outcome::Done(_)))
}

/// Deletes the objects of a definition that is being deleted, and then removes its finalizer; returns `false`
/// if objects are left.
async fn clean_up(
    server: &Arc<Server>,
    going: &mut Going,
    resource: &Resource,
    mut definition: Value,
) -> Result<bool, ApiError> {
    let now = time::rfc3339(server.ambient().now());
    let outcome = if meta::condition_is_true(&definition, "Established") {
        let (name, uid) = (meta::name(&definition), meta::uid(&definition).to_owned());
        // From here on this server refuses new objects, and those that it did not are in the store.
        server.objects().fresh().await?;
        if !server.objects().custom().created(name).await {
            return Ok(false);
        }
        let left = delete_objects(server, &definition).await?;
        let others_know = !server.objects().store().shared() || going.since(&uid).elapsed() >= AGAIN;
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
                write(server, resource, definition).await?;
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
        return write(server, resource, definition).await;
    }
    let expected = meta::resource_version(&definition).parse().unwrap_or_default();
    let removed = server.objects().remove(resource, "", meta::name(&definition), expected).await?;
    Ok(removed.is_ok())
}

/// Deletes what there is; gives how many objects still wait for their finalizers.
async fn delete_objects(server: &Arc<Server>, definition: &Value) -> Result<usize, ApiError> {
    let kinds = server.objects().custom();
    let Some(known) = kinds.definition(meta::name(definition)) else { return Ok(0) };
    let Some(stored) = known.stored() else { return Ok(0) };
    let prefix = format!("{}/", stored.storage_prefix);
    let mut range =
        Range { prefix: prefix.clone(), limit: limits::DELETE_COLLECTION_PAGE, ..Range::default() };
    let mut left = 0;
    loop {
        let page = server.objects().store().list(range.clone()).await.map_err(errors::store_error)?;
        let places: Vec<(String, String)> = page
            .kvs
            .iter()
            .map(|kv| {
                let short = kv.key.strip_prefix(&prefix).unwrap_or_default();
                let (namespace, name) = short.split_once('/').unwrap_or(("", short));
                (namespace.to_owned(), name.to_owned())
            })
            .collect();
        let deletions = places.iter().map(|(namespace, name)| delete_one(server, &stored, namespace, name));
        for waits in futures::future::join_all(deletions).await {
            left += usize::from(waits?);
        }
        match page.kvs.last() {
            Some(last) if page.more => range.after.clone_from(&last.key),
            _ => return Ok(left),
        }
    }
}

/// Deletes one object; returns true if it is still there.
async fn delete_one(
    server: &Arc<Server>,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<bool, ApiError> {
    let context = Context::internal(Arc::clone(server), namespace);
    match delete::one(&context, resource, namespace, name, &DeleteOptions::default()).await {
        Ok(delete::Deleted::Gone(_)) => Ok(false),
        Ok(delete::Deleted::Waiting(_)) => Ok(true),
        Err(error) if error.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
