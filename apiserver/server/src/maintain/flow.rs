//! FlowSchemas and PriorityLevelConfigurations: creates those of Kubernetes, deletes those of older servers,
//! and keeps the condition of each schema that tells whether its priority level exists.

use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;
use tokio::sync::Notify;

use super::OwnObjects;
use crate::bootstrap::flow;
use crate::objects::Objects;
use crate::write::Part;
use apiserver_auth::defaults::DefaultWrite;
use apiserver_cache::Cache;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
/// They are looked after this often, as in Kubernetes.
const EVERY: Duration = Duration::from_secs(60);
/// Delay after a change, so that changes in quick succession are answered by one look.
const BATCH_DELAY: Duration = Duration::from_millis(100);

/// Writes missing and outdated objects. If there are none, the store is not asked.
pub async fn ensure(own: &OwnObjects) -> Result<(), ApiError> {
    let objects = flow::objects();
    let writes = objects.iter().map(|wanted| ensure_one(own, wanted));
    futures::future::try_join_all(writes).await?;
    for plural in [SCHEMAS, LEVELS] {
        let Some((resource, cache)) = served(own.objects(), plural) else { continue };
        for entry in cache.snapshot().objects.values() {
            let of_kind = |object: &Value| object["kind"] == resource.kind.as_str();
            let known = objects.iter().any(|o| of_kind(o) && meta::name(o) == entry.name());
            if known || !decoded(&entry.object()).is_some_and(|object| flow::is_outdated(&object)) {
                continue;
            }
            own.delete(&resource, "", entry.name()).await?;
        }
    }
    Ok(())
}

/// Looks after them until the server ends.
pub async fn run(own: &OwnObjects, changed: &Notify) {
    let mut due = tokio::time::Instant::now() + EVERY;
    loop {
        tokio::select! {
            () = changed.notified() => tokio::time::sleep(BATCH_DELAY).await,
            () = tokio::time::sleep_until(due) => {
                due = tokio::time::Instant::now() + EVERY;
                if let Err(error) = ensure(own).await {
                    tracing::warn!(%error, "cannot update the FlowSchemas of Kubernetes");
                }
            }
        }
        if let Err(error) = mark(own).await {
            tracing::warn!(%error, "FlowSchemas cannot be marked");
        }
    }
}

/// Sets the condition of each schema that tells whether its level exists.
async fn mark(own: &OwnObjects) -> Result<(), ApiError> {
    let objects = own.objects();
    let (Some((resource, schemas)), Some((_, levels))) = (served(objects, SCHEMAS), served(objects, LEVELS))
    else {
        return Ok(());
    };
    for entry in schemas.snapshot().objects.values() {
        let Some(schema) = decoded(&entry.object()) else { continue };
        if marked(&schema, &levels, "").is_none() {
            continue;
        }
        let now = time::rfc3339(objects.ambient().now());
        let make = |current: &Value| Ok(marked(current, &levels, &now).unwrap_or_else(|| current.clone()));
        match own.update(&resource, entry.name(), Part::Status, &make).await {
            Ok(()) => {}
            // It is gone, or was changed meanwhile and will be looked at again.
            Err(error) if matches!(error.code, 404 | 409) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the schema with the right condition; `None` if it has it.
fn marked(schema: &Value, levels: &Cache, now: &str) -> Option<Value> {
    let level = meta::text(schema, "/spec/priorityLevelConfiguration/name");
    let wanted = flow::dangling(level, levels.get(level).is_some(), now);
    let conditions = meta::list(schema, "/status/conditions");
    let same =
        |held: &Value| ["status", "reason", "message"].iter().all(|field| held[*field] == wanted[*field]);
    let place = conditions.iter().position(|condition| condition["type"] == "Dangling");
    if place.is_some_and(|place| same(&conditions[place])) {
        return None;
    }
    let mut conditions = conditions.to_vec();
    match place {
        Some(place) => conditions[place] = wanted,
        None => conditions.push(wanted),
    }
    let mut schema = schema.clone();
    if !schema["status"].is_object() {
        schema["status"] = Value::Object(serde_json::Map::new());
    }
    schema["status"]["conditions"] = Value::Array(conditions);
    Some(schema)
}

fn served(objects: &Objects, plural: &str) -> Option<(Arc<Resource>, Arc<Cache>)> {
    let resource = objects.registry().lookup(GROUP, "v1", plural)?;
    Some((Arc::clone(resource), objects.cache(resource).ok()?))
}

fn decoded(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

async fn ensure_one(own: &OwnObjects, wanted: &Value) -> Result<(), ApiError> {
    let (kind, name) = (meta::text(wanted, "/kind"), meta::name(wanted));
    let plural = if kind == "FlowSchema" { SCHEMAS } else { LEVELS };
    let Some((resource, cache)) = served(own.objects(), plural) else { return Ok(()) };
    let held = cache.get(name).and_then(|entry| decoded(&entry.object()));
    match flow::reconcile(held.as_ref(), wanted) {
        DefaultWrite::Nothing => Ok(()),
        DefaultWrite::Create(mut object) => {
            if let Some(condition) = object.pointer_mut("/status/conditions/0") {
                condition["lastTransitionTime"] = time::rfc3339(own.objects().ambient().now()).into();
            }
            own.create(&resource, object).await.map(drop)
        }
        DefaultWrite::Update(_) | DefaultWrite::Recreate(_) => {
            let make = |current: &Value| {
                Ok(match flow::reconcile(Some(current), wanted) {
                    DefaultWrite::Update(new) => new,
                    _ => current.clone(),
                })
            };
            own.update(&resource, name, Part::Main, &make).await
        }
    }
}
