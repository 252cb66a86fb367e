//! `delete` and `deletecollection`: grace, finalizers, propagation, preconditions.

use apiserver_api::error::{ApiError, FieldError};
use apiserver_api::meta;
use apiserver_api::registry::Resource;
use apiserver_api::time;
use apiserver_store::Revision;
use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::options::ListOptions;
use super::view;
use crate::admission::{self, Admission, Operation};
use crate::body;
use crate::cache::Entry;
use crate::context::Context;
use crate::custom::choice;
use crate::encoding;
use crate::filter::Filter;
use crate::limits;
use crate::negotiate;
use crate::query::whole;
use crate::respond::{self, Answer};
use crate::services;
use crate::storage::{self, Outcome, Stored};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// How an object is to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Seconds.
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub version: Option<String>,
    pub propagation: Option<Propagation>,
    pub dry_run: bool,
    /// The older way to say how dependents are deleted.
    pub orphan: Option<bool>,
}

/// What becomes of the object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They stay.
    Orphan,
    /// They go afterwards.
    Background,
    /// They go before.
    Foreground,
}

impl DeleteOptions {
    /// Reads the body, or the query where there is none. Errors are 400 and 415.
    pub fn read(context: &Context, bytes: Bytes) -> Result<Self, ApiError> {
        let mut options = if bytes.is_empty() {
            Self::from_query(context)?
        } else {
            Self::from_value(&body::decode(&negotiate::content_type(&context.headers), bytes, "")?.value)?
        };
        let dry: Vec<&str> = context.query.all("dryRun").collect();
        if dry.iter().any(|value| *value != "All") {
            return Err(refused(FieldError::not_supported("dryRun", &json!(dry), &["All"])));
        }
        options.dry_run |= !dry.is_empty();
        if options.grace.is_some_and(|g| g < 0) {
            // As Kubernetes does: at once, but not forced.
            options.grace = Some(1);
        }
        Ok(options)
    }

    fn from_query(context: &Context) -> Result<Self, ApiError> {
        let query = &context.query;
        let orphan = query.get("orphanDependents").map(|_| query.flag("orphanDependents"));
        Ok(Self {
            grace: query.get("gracePeriodSeconds").map(whole).transpose()?,
            propagation: propagation(query.get("propagationPolicy"), orphan)?,
            orphan,
            ..Self::default()
        })
    }

    /// Reads an object of kind `DeleteOptions`.
    pub fn from_value(value: &Value) -> Result<Self, ApiError> {
        if let Some(kind) = value["kind"].as_str().filter(|k| !k.is_empty() && *k != "DeleteOptions") {
            return Err(ApiError::bad_request(format!(
                "the body of a delete must be DeleteOptions, not {kind}"
            )));
        }
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let dry_run = match value.get("dryRun").and_then(Value::as_array).map(Vec::as_slice) {
            None | Some([]) => false,
            Some(list) if list.iter().all(|v| v == "All") => true,
            Some(list) => {
                return Err(refused(FieldError::not_supported("dryRun", &json!(list), &["All"])));
            }
        };
        let grace = match value.get("gracePeriodSeconds") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_i64().ok_or_else(|| {
                ApiError::bad_request(format!("gracePeriodSeconds: Invalid value: {value}"))
            })?),
        };
        let orphan = value["orphanDependents"].as_bool();
        Ok(Self {
            grace,
            orphan,
            uid: text("/preconditions/uid"),
            version: text("/preconditions/resourceVersion"),
            propagation: propagation(text("/propagationPolicy").as_deref(), orphan)?,
            dry_run,
        })
    }
}

fn propagation(policy: Option<&str>, orphan: Option<bool>) -> Result<Option<Propagation>, ApiError> {
    let shown = json!(policy);
    match (policy, orphan) {
        (Some(_), Some(_)) => Err(refused(FieldError::invalid(
            "propagationPolicy",
            &shown,
            "orphanDependents and deletionPropagation cannot be both set",
        ))),
        (None, None) => Ok(None),
        (Some("Orphan"), None) | (None, Some(true)) => Ok(Some(Propagation::Orphan)),
        (Some("Background"), None) | (None, Some(false)) => Ok(Some(Propagation::Background)),
        (Some("Foreground"), None) => Ok(Some(Propagation::Foreground)),
        (Some(_), None) => Err(refused(FieldError::not_supported(
            "propagationPolicy",
            &shown,
            &["Foreground", "Background", "Orphan", "nil"],
        ))),
    }
}

/// 422 for an option.
fn refused(error: FieldError) -> ApiError {
    ApiError::invalid("meta.k8s.io", "DeleteOptions", "", &[error])
}

/// Deletes one object.
pub async fn delete(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    let options = DeleteOptions::read(context, bytes)?;
    let namespace = if resource.namespaced { context.info.namespace.as_str() } else { "" };
    match one(context, resource, namespace, &context.info.name, &options).await? {
        Deleted::Gone(object) if !resource.behaviour.graceful_delete => {
            Ok(respond::success(200, resource, meta::name(&object), meta::uid(&object)))
        }
        Deleted::Gone(mut object) => {
            encoding::complete_kind(resource, &mut object);
            respond::object(context, resource, 200, Bytes::from(object.to_string()))
        }
        Deleted::Waiting(bytes) => {
            // Only those who ask in the older way are told that it is not done yet.
            let code = if options.orphan == Some(false) { 202 } else { 200 };
            respond::object(context, resource, code, bytes)
        }
    }
}

/// How a deletion ended.
pub enum Deleted {
    /// The last state of the object.
    Gone(Value),
    /// It waits for its kubelet or its finalizers.
    Waiting(Bytes),
}

/// Deletes an object, or marks it as going; tries again when others write at the same time.
pub async fn one(
    context: &Context,
    resource: &Resource,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted, ApiError> {
    let mut current = storage::require(&context.server, resource, namespace, name).await?;
    loop {
        preconditions(resource, &current, options)?;
        let admission =
            Admission { context, resource, operation: Operation::Delete, old: Some(&current.object) };
        admission::validate(&admission, &current.object).await?;
        let newer = match plan(resource, &current.object, options, context.server.ambient().now()) {
            Plan::Wait => {
                let mut object = current.object;
                encoding::complete_kind(resource, &mut object);
                return Ok(Deleted::Waiting(Bytes::from(object.to_string())));
            }
            Plan::Mark(marked) => {
                if options.dry_run {
                    return Ok(Deleted::Waiting(Bytes::from(marked.to_string())));
                }
                match storage::put(&context.server, resource, marked, current.revision).await? {
                    Outcome::Done(bytes) | Outcome::Unchanged(bytes) => {
                        return Ok(Deleted::Waiting(bytes));
                    }
                    Outcome::Conflict(newer) => newer,
                }
            }
            Plan::Remove if options.dry_run => return Ok(Deleted::Gone(current.object)),
            Plan::Remove => {
                match storage::remove(&context.server, resource, namespace, name, current.revision).await? {
                    Ok(revision) => {
                        services::released(&context.server, resource, &current.object).await;
                        meta::set(&mut current.object, "resourceVersion", revision.to_string());
                        return Ok(Deleted::Gone(current.object));
                    }
                    Err(newer) => newer,
                }
            }
        };
        current = newer.ok_or_else(|| storage::not_found(resource, name))?;
    }
}

fn preconditions(resource: &Resource, current: &Stored, options: &DeleteOptions) -> Result<(), ApiError> {
    let name = meta::name(&current.object);
    let check = |what: &str, wanted: &Option<String>, found: &str| match wanted {
        Some(wanted) if wanted != found => {
            let why = format!(
                "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
            );
            Err(ApiError::conflict(&resource.group, &resource.plural, name, &why))
        }
        _ => Ok(()),
    };
    check("UID", &options.uid, meta::uid(&current.object))?;
    check("ResourceVersion", &options.version, meta::resource_version(&current.object))
}

/// What a deletion does to an object.
#[derive(Debug, PartialEq)]
enum Plan {
    Remove,
    /// The object with its marks.
    Mark(Value),
    /// It is on its way already.
    Wait,
}

fn plan(resource: &Resource, object: &Value, options: &DeleteOptions, now: jiff::Timestamp) -> Plan {
    let mut new = object.clone();
    set_propagation(&mut new, options.propagation);
    let grace = if resource.behaviour.graceful_delete { grace_of_pod(object, options.grace) } else { 0 };
    let marked = meta::deletion_timestamp(object).is_some();
    if marked {
        if grace > 0
            || (resource.behaviour.graceful_delete && options.grace.is_none() && pending_grace(object))
        {
            return shorten(object, new, grace);
        }
    } else if grace > 0 {
        mark(&mut new, now, grace);
        return Plan::Mark(new);
    }
    if !marked && let Some(prepare) = &resource.behaviour.prepare_delete {
        prepare(&mut new, now);
    }
    let namespace = resource.group.is_empty() && resource.kind == "Namespace";
    if is_held(&new) || (namespace && !meta::list(&new, "/spec/finalizers").is_empty()) {
        if !marked {
            mark(&mut new, now, 0);
        } else if meta::deletion_grace_period_seconds(object) != Some(0) {
            meta::set(&mut new, "deletionGracePeriodSeconds", 0);
        }
        if namespace {
            new["status"]["phase"] = "Terminating".into();
        }
        return if new == *object { Plan::Wait } else { Plan::Mark(new) };
    }
    Plan::Remove
}

fn pending_grace(object: &Value) -> bool {
    meta::deletion_grace_period_seconds(object).is_some_and(|grace| grace > 0)
}

/// A pod that goes already goes sooner if asked to, never later.
fn shorten(object: &Value, mut new: Value, grace: i64) -> Plan {
    let had = meta::deletion_grace_period_seconds(object).unwrap_or(0);
    if grace >= had || grace == 0 {
        return if new == *object { Plan::Wait } else { Plan::Mark(new) };
    }
    let due = meta::deletion_timestamp(object).and_then(time::parse);
    if let Some(due) = due.and_then(|t| t.checked_sub(SignedDuration::from_secs(had - grace)).ok()) {
        meta::set(&mut new, "deletionTimestamp", time::rfc3339(due));
    }
    meta::set(&mut new, "deletionGracePeriodSeconds", grace);
    Plan::Mark(new)
}

/// How long the kubelet has; 0 for a pod that none runs.
fn grace_of_pod(pod: &Value, asked: Option<i64>) -> i64 {
    let no_node = meta::text(pod, "/spec/nodeName").is_empty();
    let ended = matches!(meta::text(pod, "/status/phase"), "Failed" | "Succeeded");
    if no_node || ended {
        return 0;
    }
    let own = pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
    asked.or(own).unwrap_or(30).max(0)
}

fn mark(object: &mut Value, now: jiff::Timestamp, grace: i64) {
    let due = now.checked_add(SignedDuration::from_secs(grace)).unwrap_or(now);
    meta::set(object, "deletionTimestamp", time::rfc3339(due));
    meta::set(object, "deletionGracePeriodSeconds", grace);
    let generation = meta::generation(object);
    if generation > 0 {
        meta::set(object, "generation", generation + 1);
    }
}

fn set_propagation(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let mut finalizers: Vec<String> = meta::finalizers(object)
        .into_iter()
        .filter(|f| !matches!(*f, ORPHAN | FOREGROUND))
        .map(str::to_owned)
        .collect();
    match propagation {
        Propagation::Orphan => finalizers.push(ORPHAN.to_owned()),
        Propagation::Foreground => finalizers.push(FOREGROUND.to_owned()),
        Propagation::Background => {}
    }
    meta::set_finalizers(object, finalizers);
}

fn is_held(object: &Value) -> bool {
    !meta::finalizers(object).is_empty()
}

/// Whether an object that was marked has nothing left to wait for.
pub fn is_finished(object: &Value) -> bool {
    meta::deletion_timestamp(object).is_some()
        && !is_held(object)
        && !pending_grace(object)
        && meta::list(object, "/spec/finalizers").is_empty()
}

/// Removes an object whose last finalizer an update took away.
pub async fn finish(
    context: &Context,
    resource: &Resource,
    object: &Value,
    expected: Revision,
) -> Result<Outcome, ApiError> {
    let (namespace, name) = (meta::namespace(object), meta::name(object));
    match storage::remove(&context.server, resource, namespace, name, expected).await? {
        Ok(revision) => {
            services::released(&context.server, resource, object).await;
            let mut last = object.clone();
            meta::set(&mut last, "resourceVersion", revision.to_string());
            Ok(Outcome::Done(Bytes::from(last.to_string())))
        }
        Err(newer) => Ok(Outcome::Conflict(newer)),
    }
}

/// Deletes all objects that the selectors choose.
pub async fn collection(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    let options = DeleteOptions::read(context, bytes)?;
    let cache = context.server.cache(resource)?;
    let filter = Filter::parse(&cache, &context.info.namespace, "", &context.query)?;
    let list = ListOptions::read(&context.query)?;
    let view = view::view(&context.server, &cache, &view::asked(&list)?).await?;
    let chosen = choice::select(&context.server, resource, &filter, &view, "", list.limit).await?;
    let chosen = chosen.entries.collect::<Vec<_>>();
    let mut items = Vec::with_capacity(chosen.len());
    for page in chosen.chunks(limits::DELETE_COLLECTION_PAGE) {
        let mut deletions = Vec::with_capacity(page.len());
        for entry in page {
            deletions.push(one_of_many(context, resource, entry, &options));
        }
        for (entry, result) in page.iter().zip(futures::future::join_all(deletions).await) {
            match result {
                Ok(_) => items.push(serde_json::from_slice::<Value>(&entry.object()).unwrap_or(Value::Null)),
                // Somebody else was faster, or it is another object of that name by now.
                Err(error) if error.code == 404 || error.code == 409 => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(respond::json(
        200,
        &json!({
            "kind": format!("{}List", resource.kind), "apiVersion": resource.api_version(),
            "metadata": {"resourceVersion": view.revision.to_string()}, "items": items,
        }),
    ))
}

/// The object that was chosen, and no later one of its name.
fn one_of_many<'a>(
    context: &'a Context,
    resource: &'a Resource,
    entry: &'a Entry,
    options: &DeleteOptions,
) -> BoxFuture<'a, Result<Deleted, ApiError>> {
    let options = DeleteOptions { uid: Some(entry.uid().to_owned()), ..options.clone() };
    Box::pin(async move { one(context, resource, entry.namespace(), entry.name(), &options).await })
}

#[cfg(test)]
#[path = "delete_tests.rs"]
mod tests;
