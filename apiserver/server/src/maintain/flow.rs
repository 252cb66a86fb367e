//! FlowSchemas and PriorityLevelConfigurations: creates those of Kubernetes, deletes those of older servers,
//! and keeps the condition of each schema that tells whether its priority level exists.

use std::sync::Arc;
use std::time::Duration;

use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use serde_json::Value;

use crate::bootstrap::flow;
use crate::context::Context;
use crate::server::Server;
use crate::write;
use crate::write::delete_options::DeleteOptions;
use crate::write::{Part, Update, delete};
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
pub async fn ensure(server: &Arc<Server>) -> Result<(), ApiError> {
    let objects = flow::objects();
    let writes = objects.iter().map(|wanted| ensure_one(server, wanted));
    futures::future::try_join_all(writes).await?;
    for plural in [SCHEMAS, LEVELS] {
        let Some((resource, cache)) = served(server, plural) else { continue };
        for entry in cache.snapshot().objects.values() {
            let of_kind = |object: &Value| object["kind"] == resource.kind.as_str();
            let known = objects.iter().any(|o| of_kind(o) && meta::name(o) == entry.name());
            if known || !decoded(&entry.object()).is_some_and(|object| flow::is_outdated(&object)) {
                continue;
            }
            let context = Context::internal(Arc::clone(server), "");
            match delete::one(&context, &resource, "", entry.name(), &DeleteOptions::default()).await {
                Ok(_) => {}
                Err(error) if error.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Looks after them until the server ends.
pub async fn run(server: &Arc<Server>) {
    let mut due = tokio::time::Instant::now() + EVERY;
    loop {
        tokio::select! {
            () = server.notifications().flow.notified() => tokio::time::sleep(BATCH_DELAY).await,
            () = tokio::time::sleep_until(due) => {
                due = tokio::time::Instant::now() + EVERY;
                if let Err(error) = ensure(server).await {
                    tracing::warn!(%error, "cannot update the FlowSchemas of Kubernetes");
                }
            }
        }
        if let Err(error) = mark(server).await {
            tracing::warn!(%error, "FlowSchemas cannot be marked");
        }
    }
}

/// Sets the condition of each schema that tells whether its level exists.
async fn mark(server: &Arc<Server>) -> Result<(), ApiError> {
    let (Some((resource, schemas)), Some((_, levels))) = (served(server, SCHEMAS), served(server, LEVELS))
    else {
        return Ok(());
    };
    for entry in schemas.snapshot().objects.values() {
        let Some(schema) = decoded(&entry.object()) else { continue };
        if marked(&schema, &levels, "").is_none() {
            continue;
        }
        let now = time::rfc3339(server.ambient().now());
        let make = |current: &Value| Ok(marked(current, &levels, &now).unwrap_or_else(|| current.clone()));
        let context = Context::internal_to(Arc::clone(server), "", entry.name(), "status");
        match write::update(&context, &resource, Update::of(&context, Part::Status, &make)).await {
            Ok(_) => {}
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

fn served(server: &Server, plural: &str) -> Option<(Arc<Resource>, Arc<Cache>)> {
    let resource = server.objects().registry().lookup(GROUP, "v1", plural)?;
    Some((Arc::clone(resource), server.objects().cache(resource).ok()?))
}

fn decoded(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

async fn ensure_one(server: &Arc<Server>, wanted: &Value) -> Result<(), ApiError> {
    let (kind, name) = (meta::text(wanted, "/kind"), meta::name(wanted));
    let plural = if kind == "FlowSchema" { SCHEMAS } else { LEVELS };
    let Some((resource, cache)) = served(server, plural) else { return Ok(()) };
    let held = cache.get(name).and_then(|entry| decoded(&entry.object()));
    match flow::reconcile(held.as_ref(), wanted) {
        DefaultWrite::Nothing => Ok(()),
        DefaultWrite::Create(mut object) => {
            if let Some(condition) = object.pointer_mut("/status/conditions/0") {
                condition["lastTransitionTime"] = time::rfc3339(server.ambient().now()).into();
            }
            super::create(server, &resource, object).await.map(drop)
        }
        DefaultWrite::Update(_) | DefaultWrite::Recreate(_) => {
            let make = |current: &Value| {
                Ok(match flow::reconcile(Some(current), wanted) {
                    DefaultWrite::Update(new) => new,
                    _ => current.clone(),
                })
            };
            let context = Context::internal_to(Arc::clone(server), "", name, "");
            write::update(&context, &resource, Update::of(&context, Part::Main, &make)).await.map(drop)
        }
    }
}
