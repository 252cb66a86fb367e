//! `delete` and `deletecollection`: grace, finalizers, propagation, preconditions.

use std::collections::VecDeque;
use std::sync::Arc;

use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use apiserver_schema::ordered;
use apiserver_store::Revision;
use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::check_place;
use super::list::Page;
use crate::admission;
use crate::admission::{Admission, Operation};
use crate::body;
use crate::context::Context;
use crate::limits;
use crate::negotiate;
use crate::respond;
use crate::respond::Answer;
use crate::services;
use crate::storage;
use crate::storage::Outcome;
use apiserver_cache::Entry;
use apiserver_cache::encoding;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// The options of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Seconds.
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub version: Option<String>,
    pub propagation: Option<Propagation>,
    pub dry_run: bool,
    /// The older field for the treatment of dependents.
    pub orphan: Option<bool>,
    /// True if admission has checked the deletion as an eviction; never set by the client.
    pub admitted: bool,
}

/// The treatment of the object's dependents.
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
    /// Reads the body, or the query where there is none. Errors are 400, 415 and 422.
    pub fn read(context: &Context, bytes: Bytes) -> Result<Self, ApiError> {
        let mut options = if bytes.is_empty() {
            Self::from_query(context)?
        } else {
            Self::from_value(&body::decode(&negotiate::content_type(&context.headers), bytes, "")?.value)?
        };
        if options.grace.is_some_and(|g| g < 0) {
            // The same as in Kubernetes: at once, but not forced.
            options.grace = Some(1);
        }
        Ok(options)
    }

    fn from_query(context: &Context) -> Result<Self, ApiError> {
        let query = &context.query;
        let orphan = query.get("orphanDependents").map(|_| query.flag("orphanDependents"));
        let dry: Vec<Value> = query.all("dryRun").map(Value::from).collect();
        Ok(Self {
            grace: query.integer("gracePeriodSeconds")?,
            orphan,
            propagation: propagation(query.all("propagationPolicy").next(), orphan)?,
            dry_run: dry_run(&dry)?,
            ..Self::default()
        })
    }

    /// Reads an object of kind `DeleteOptions`. Errors are 400 and 422.
    pub fn from_value(value: &Value) -> Result<Self, ApiError> {
        check_types(value).map_err(ApiError::bad_request)?;
        let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let orphan = value["orphanDependents"].as_bool();
        Ok(Self {
            orphan,
            grace: value["gracePeriodSeconds"].as_i64(),
            uid: text("/preconditions/uid"),
            version: text("/preconditions/resourceVersion"),
            propagation: propagation(text("/propagationPolicy").as_deref(), orphan)?,
            dry_run: dry_run(value["dryRun"].as_array().map(Vec::as_slice).unwrap_or_default())?,
            admitted: false,
        })
    }
}

fn dry_run(stages: &[Value]) -> Result<bool, ApiError> {
    if stages.iter().any(|stage| stage != "All") {
        return Err(refused(FieldError::not_supported("dryRun", &json!(stages), &["All"])));
    }
    Ok(!stages.is_empty())
}

/// The fields of the options: their checks, and Kubernetes' names of the fields and types.
const FIELDS: [(&str, Holds, &str, &str); 8] = [
    ("/gracePeriodSeconds", Value::is_i64, "DeleteOptions.gracePeriodSeconds", "int64"),
    ("/preconditions", Value::is_object, "DeleteOptions.preconditions", "v1.Preconditions"),
    ("/preconditions/uid", Value::is_string, "Preconditions.preconditions.uid", "types.UID"),
    (
        "/preconditions/resourceVersion",
        Value::is_string,
        "Preconditions.preconditions.resourceVersion",
        "string",
    ),
    ("/orphanDependents", Value::is_boolean, "DeleteOptions.orphanDependents", "bool"),
    ("/propagationPolicy", Value::is_string, "DeleteOptions.propagationPolicy", "v1.DeletionPropagation"),
    ("/dryRun", Value::is_array, "DeleteOptions.dryRun", "[]string"),
    ("/dryRun/0", Value::is_string, "DeleteOptions.dryRun", "string"),
];

/// Checks that a value is of the type that a field holds.
type Holds = fn(&Value) -> bool;

/// Nothing is deleted by options that mean something else: why they cannot be read.
fn check_types(options: &Value) -> Result<(), String> {
    if !options.is_object() && !options.is_null() {
        return Err(format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type \
             struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \
             \"json:\\\"kind,omitempty\\\"\" }}",
            type_of(options)
        ));
    }
    let text = |field: &str| options[field].as_str().unwrap_or_default();
    if !matches!(text("kind"), "" | "DeleteOptions") {
        let version = text("apiVersion");
        return Err(format!(
            "no kind {:?} is registered for version {:?} in scheme \
             \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\"",
            text("kind"),
            if version.is_empty() { "meta.k8s.io/v1" } else { version }
        ));
    }
    for (pointer, holds, field, wanted) in FIELDS {
        match options.pointer(pointer) {
            Some(value) if !value.is_null() && !holds(value) => {
                return Err(format!(
                    "json: cannot unmarshal {} into Go struct field {field} of type {wanted}",
                    type_of(value)
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the type as Go's JSON names it; numbers that are not integers are shown.
fn type_of(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if !number.is_i64() => format!("number {number}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
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
    // A client that cannot read the answer must not change anything.
    negotiate::wanted(&context.headers, resource)?;
    let options = DeleteOptions::read(context, bytes)?;
    warn_of_default(context, resource, &options);
    let namespace = context.info.namespace_of(resource);
    match one(context, resource, namespace, &context.info.name, &options).await? {
        Deleted::Gone(object) if !resource.behaviour.returns_deleted => {
            Ok(respond::success(200, resource, meta::name(&object), meta::uid(&object)))
        }
        Deleted::Gone(mut object) => {
            encoding::complete_kind(resource, &mut object);
            respond::object(context, resource, 200, Bytes::from(ordered::json_text(&object)))
        }
        Deleted::Waiting(bytes) => {
            // Only clients that ask in the older way are told that it is not done yet.
            let code = if options.orphan == Some(false) { 202 } else { 200 };
            respond::object(context, resource, code, bytes)
        }
    }
}

/// The result of a deletion.
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
    check_place(context, resource, namespace, name)?;
    let mut current = storage::require(&context.server, resource, namespace, name).await?;
    loop {
        preconditions(resource, &current.object, options)?;
        if !options.admitted {
            let (operation, old) = (Operation::Delete, Some(&current.object));
            let admission = Admission { context, resource, subresource: "", operation, old };
            admission::validate(&admission, &current.object).await?;
        }
        let newer = match plan(resource, &current.object, options, context.server.ambient().now()) {
            Plan::Wait => {
                let mut object = current.object;
                encoding::complete_kind(resource, &mut object);
                return Ok(Deleted::Waiting(Bytes::from(ordered::json_text(&object))));
            }
            Plan::Mark(marked) => {
                if options.dry_run {
                    return Ok(Deleted::Waiting(Bytes::from(ordered::json_text(&marked))));
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

/// 409 for an object that is not the one that the options mean.
pub(super) fn preconditions(
    resource: &Resource,
    current: &Value,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let name = meta::name(current);
    let check = |what: &str, wanted: &Option<String>, found: &str, perhaps: &str| match wanted {
        Some(wanted) if wanted != found => {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). \
                 The object might have been {perhaps}"
            );
            // Here Kubernetes has the kind where the resource is said elsewhere.
            Err(ApiError::conflict(&resource.group, &resource.kind, name, &why))
        }
        _ => Ok(()),
    };
    check("UID", &options.uid, meta::uid(current), "deleted and then recreated")?;
    check("ResourceVersion", &options.version, meta::resource_version(current), "modified")
}

/// The effect of a deletion on an object.
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
    let marked = meta::deletion_timestamp(object).is_some();
    if resource.behaviour.graceful_delete {
        if let Some(had) = pending_grace(object).filter(|_| marked) {
            // A later request can shorten the time of a pod that is being deleted, never extend it, and
            // changes nothing else.
            let Some(asked) = options.grace.filter(|asked| *asked < had) else { return Plan::Wait };
            set_propagation(resource, &mut new, options.propagation);
            shorten(&mut new, had, asked);
            return if asked == 0 && !is_held(&new) { Plan::Remove } else { Plan::Mark(new) };
        }
        let grace = grace_of_pod(object, options.grace);
        if !marked && grace > 0 {
            set_propagation(resource, &mut new, options.propagation);
            mark(&mut new, now, grace);
            return Plan::Mark(new);
        }
    }
    if marked && awaits_finalizing(resource, object) {
        return Plan::Wait;
    }
    set_propagation(resource, &mut new, options.propagation);
    if !marked && let Some(prepare) = &resource.behaviour.prepare_delete {
        prepare(&mut new, now);
    }
    if !is_held(&new) && !awaits_finalizing(resource, &new) {
        return Plan::Remove;
    }
    if !marked {
        if is_namespace(resource) || resource.behaviour.prepare_delete.is_some() {
            // Kinds that end in a way of their own have no grace, not even none, and do not count this as a
            // change.
            meta::set(&mut new, "deletionTimestamp", time::rfc3339(now));
        } else {
            mark(&mut new, now, 0);
        }
    } else if meta::deletion_grace_period_seconds(object) != Some(0) {
        meta::set(&mut new, "deletionGracePeriodSeconds", 0);
    }
    if is_namespace(resource) {
        new["status"]["phase"] = "Terminating".into();
    }
    if new == *object { Plan::Wait } else { Plan::Mark(new) }
}

fn is_namespace(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.kind == "Namespace"
}

/// Returns true if a namespace still has contents that its controller must delete. Other kinds may have a
/// field of that name, which means nothing.
fn awaits_finalizing(resource: &Resource, object: &Value) -> bool {
    is_namespace(resource) && !meta::list(object, "/spec/finalizers").is_empty()
}

/// The time that is left to a kubelet, if there is any.
fn pending_grace(object: &Value) -> Option<i64> {
    meta::deletion_grace_period_seconds(object).filter(|grace| *grace > 0)
}

fn shorten(object: &mut Value, had: i64, grace: i64) {
    let due = meta::deletion_timestamp(object).and_then(time::parse);
    if let Some(due) = due.and_then(|t| t.checked_sub(SignedDuration::from_secs(had - grace)).ok()) {
        meta::set(object, "deletionTimestamp", time::rfc3339(due));
    }
    meta::set(object, "deletionGracePeriodSeconds", grace);
}

/// Returns the grace period for the kubelet; 0 for a pod that does not run anywhere.
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

/// Returns the propagation of a deletion, with the default of the kind if none is requested: dependents of
/// Jobs and ReplicationControllers are orphaned, as before there was a choice. Events have none, and nobody
/// would remove their finalizers.
fn propagation_of(resource: &Resource, object: &Value, asked: Option<Propagation>) -> Option<Propagation> {
    if resource.custom.is_some() {
        return asked;
    }
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("" | "events.k8s.io", "Event") => None,
        ("batch", "Job") | ("", "ReplicationController") => {
            let chosen = meta::finalizers(object).iter().any(|f| matches!(*f, ORPHAN | FOREGROUND));
            asked.or_else(|| (!chosen).then_some(Propagation::Orphan))
        }
        _ => asked,
    }
}

fn set_propagation(resource: &Resource, object: &mut Value, asked: Option<Propagation>) {
    let Some(propagation) = propagation_of(resource, object, asked) else { return };
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

/// Warns a client that deletes Jobs without a propagation policy for their pods.
fn warn_of_default(context: &Context, resource: &Resource, options: &DeleteOptions) {
    if resource.group == "batch" && resource.kind == "Job" && options.propagation.is_none() {
        context.warn(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to \
             remove them or set propagationPolicy=Orphan to suppress this warning"
                .to_owned(),
        );
    }
}

fn is_held(object: &Value) -> bool {
    !meta::finalizers(object).is_empty()
}

/// Returns true if an object that was marked has nothing left to wait for.
pub fn is_finished(resource: &Resource, object: &Value) -> bool {
    meta::deletion_timestamp(object).is_some()
        && !is_held(object)
        && pending_grace(object).is_none()
        && !awaits_finalizing(resource, object)
}

/// Removes an object whose last finalizer an update took away.
pub async fn finish(
    context: &Context,
    resource: &Resource,
    object: &Value,
    expected: Revision,
) -> Result<Outcome, ApiError> {
    let (namespace, name) = (meta::namespace(object), meta::name(object));
    check_place(context, resource, namespace, name)?;
    match storage::remove(&context.server, resource, namespace, name, expected).await? {
        Ok(revision) => {
            services::released(&context.server, resource, object).await;
            let mut last = object.clone();
            meta::set(&mut last, "resourceVersion", revision.to_string());
            Ok(Outcome::Done(Bytes::from(ordered::json_text(&last))))
        }
        Err(newer) => Ok(Outcome::Conflict(newer)),
    }
}

/// Deletes the objects that the selectors choose: those of the page that a list would show.
pub async fn collection(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    let wanted = negotiate::wanted(&context.headers, resource)?;
    let options = DeleteOptions::read(context, bytes)?;
    warn_of_default(context, resource, &options);
    let cache = context.server.cache(resource)?;
    let mut page = match Page::read(context, resource, &cache).await? {
        Ok(page) => page,
        Err(expired) => return Ok(expired),
    };
    let wanted = wanted.of_list(resource)?;
    // Deleting takes a while, and deleted objects need not be held until the end.
    page.selected.entries.release(context.server.caches(), &cache, page.revision);
    let mut chosen = page.selected.entries.clone();
    let mut gone = VecDeque::new();
    loop {
        let some = chosen.fetch(usize::MAX, limits::DELETE_COLLECTION_PAGE).await;
        let some = some.map_err(storage::store_error)?;
        if some.is_empty() {
            break;
        }
        let deletions = some.iter().map(|entry| one_of_many(context, resource, entry, &options));
        for (entry, result) in some.iter().zip(futures::future::join_all(deletions).await) {
            match result {
                Ok(_) => gone.push_back(Arc::clone(&entry.key)),
                // It was deleted meanwhile.
                Err(error) if error.code == 404 => {}
                // It is another object of that name by now, and not of the client's choice.
                Err(error) if error.code == 409 && options.uid.is_none() && options.version.is_none() => {}
                Err(error) => return Err(error),
            }
        }
    }
    page.selected.entries = page.selected.entries.only(gone);
    page.answer(context, &cache, wanted).await
}

/// The object that was chosen, and no later one of its name.
fn one_of_many<'a>(
    context: &'a Context,
    resource: &'a Resource,
    entry: &'a Entry,
    options: &DeleteOptions,
) -> BoxFuture<'a, Result<Deleted, ApiError>> {
    let uid = options.uid.clone().unwrap_or_else(|| entry.uid().to_owned());
    let options = DeleteOptions { uid: Some(uid), ..options.clone() };
    Box::pin(async move { one(context, resource, entry.namespace(), entry.name(), &options).await })
}

#[cfg(test)]
#[path = "delete_tests.rs"]
mod tests;
