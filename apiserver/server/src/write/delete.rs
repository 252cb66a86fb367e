//! The path of deletions: preconditions, admission, a plan by grace and finalizers, the store.

use apiserver_admission::Operation;
use apiserver_cache::encoding;
use apiserver_meta::{pods, time};
use apiserver_registry::{Dependents, Resource};
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::ordered;
use apiserver_store::Revision;
use bytes::Bytes;
use jiff::SignedDuration;
use serde_json::Value;

use super::delete_options::{DeleteOptions, Propagation};
use super::{check_place, reserve};
use crate::admission;
use crate::context::Context;
use crate::errors;
use crate::objects::Outcome;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

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
    let mut current = context.server.objects().require(resource, namespace, name).await?;
    loop {
        preconditions(resource, &current.object, options)?;
        if !options.admitted {
            let old = &current.object;
            let write = admission::described(context, resource, "", Operation::Delete, Some(old));
            apiserver_admission::validate(&write, old).await?;
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
                match context.server.objects().put(resource, marked, current.revision).await? {
                    Outcome::Done(bytes) | Outcome::Unchanged(bytes) => {
                        return Ok(Deleted::Waiting(bytes));
                    }
                    Outcome::Conflict(newer) => newer,
                }
            }
            Plan::Remove if options.dry_run => return Ok(Deleted::Gone(current.object)),
            Plan::Remove => {
                match context.server.objects().remove(resource, namespace, name, current.revision).await? {
                    Ok(revision) => {
                        reserve::released(context.server.addresses(), resource, &current.object).await;
                        meta::set(&mut current.object, "resourceVersion", revision.to_string());
                        return Ok(Deleted::Gone(current.object));
                    }
                    Err(newer) => newer,
                }
            }
        };
        current = newer.ok_or_else(|| errors::not_found(resource, name))?;
    }
}

/// 409 for an object that is not the one that the options mean.
pub fn preconditions(resource: &Resource, current: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
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
            return if asked == 0 && !has_finalizers(&new) { Plan::Remove } else { Plan::Mark(new) };
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
    if !has_finalizers(&new) && !awaits_finalizing(resource, &new) {
        return Plan::Remove;
    }
    if !marked {
        if resource.behaviour.spec_finalizers || resource.behaviour.prepare_delete.is_some() {
            // Kinds that end in a way of their own have no grace, not even none, and do not count this as a
            // change.
            meta::set(&mut new, "deletionTimestamp", time::rfc3339(now));
        } else {
            mark(&mut new, now, 0);
        }
    } else if meta::deletion_grace_period_seconds(object) != Some(0) {
        meta::set(&mut new, "deletionGracePeriodSeconds", 0);
    }
    if resource.behaviour.spec_finalizers {
        new["status"]["phase"] = "Terminating".into();
    }
    if new == *object { Plan::Wait } else { Plan::Mark(new) }
}

/// Returns `true` if a namespace still has contents that its controller must delete. Other kinds may have a
/// field of that name, which means nothing.
fn awaits_finalizing(resource: &Resource, object: &Value) -> bool {
    resource.behaviour.spec_finalizers && !meta::list(object, "/spec/finalizers").is_empty()
}

/// Returns the time that is left to a kubelet, if there is any.
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
    let ended = pods::is_final(meta::text(pod, "/status/phase"));
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

/// Returns the propagation of a deletion, with the default of the kind if none is requested.
fn propagation_of(resource: &Resource, object: &Value, asked: Option<Propagation>) -> Option<Propagation> {
    match resource.behaviour.dependents {
        Dependents::Absent => None,
        Dependents::Orphaned => {
            let chosen = meta::finalizers(object).iter().any(|f| matches!(*f, ORPHAN | FOREGROUND));
            asked.or_else(|| (!chosen).then_some(Propagation::Orphan))
        }
        Dependents::Deleted => asked,
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

fn has_finalizers(object: &Value) -> bool {
    !meta::finalizers(object).is_empty()
}

/// Returns `true` if an object that was marked has nothing left to wait for.
pub fn is_finished(resource: &Resource, object: &Value) -> bool {
    meta::deletion_timestamp(object).is_some()
        && !has_finalizers(object)
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
    match context.server.objects().remove(resource, namespace, name, expected).await? {
        Ok(revision) => {
            reserve::released(context.server.addresses(), resource, object).await;
            let mut last = object.clone();
            meta::set(&mut last, "resourceVersion", revision.to_string());
            Ok(Outcome::Done(Bytes::from(ordered::json_text(&last))))
        }
        Err(newer) => Ok(Outcome::Conflict(newer)),
    }
}

#[cfg(test)]
#[path = "delete_tests.rs"]
mod tests;
