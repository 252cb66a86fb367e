//! Stage `store`: the object is written if nobody has written it since it was read, unless nothing is to change.

use apiserver_apply::same_but_times;
use apiserver_cache::{Cache, encoding};
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::ordered;
use apiserver_store::Revision;
use bytes::Bytes;
use serde_json::Value;

use super::{Write, check_place, delete};
use crate::allocate::Reservation;
use crate::context::Context;
use crate::negotiate;
use crate::objects::{Outcome, Stored, Terms};
use crate::store_quota::Share;

/// Writes a new object, or one in the place of the current one; removes one whose last finalizer is gone. A dry
/// run writes nothing.
pub(super) async fn store(
    write: &Write<'_>,
    mut object: Value,
    reservation: Option<&mut Reservation>,
) -> Result<Outcome, ApiError> {
    let (context, resource) = (write.context, write.resource);
    match write.current {
        None => {
            if resource.custom.is_none() {
                // Each read applies defaults, so that those which depend on what the stage `prepare` made, such
                // as the labels of a Job, would otherwise appear only then.
                (resource.behaviour.default)(&mut object);
            }
            if context.dry_run()? {
                return untaken(context, resource, object).await;
            }
        }
        Some(Stored { object: old, .. }) => {
            restore_times(old, &mut object);
            if encoding::same(&object, old) || context.dry_run()? {
                return Ok(unchanged(resource, object));
            }
        }
    }
    if let Some(reservation) = reservation {
        reservation.write_begins();
    }
    let expected = write.current.map_or(0, |current| current.revision);
    if write.current.is_some() && delete::is_finished(resource, &object) {
        delete::finish(context, resource, &object, expected).await
    } else {
        put(context, resource, object, expected).await
    }
}

/// Returns the object that has the name of a new one already, if it is known to be there: nothing needs to be charged
/// for a create that will be refused.
pub(super) async fn taken(write: &Write<'_>, object: &Value) -> Result<Option<Stored>, ApiError> {
    let (objects, resource) = (write.context.server.objects(), write.resource);
    let (namespace, name) = (meta::namespace(object), meta::name(object));
    let is_known = |cache: &Cache| cache.get(&resource.short_key(namespace, name)).is_some();
    if write.current.is_some() || !objects.cache(resource).is_ok_and(|cache| is_known(&cache)) {
        return Ok(None);
    }
    objects.fetch(resource, namespace, name).await
}

/// Returns the outcome of a dry run of a create.
async fn untaken(context: &Context, resource: &Resource, object: Value) -> Result<Outcome, ApiError> {
    let (namespace, name) = (meta::namespace(&object), meta::name(&object));
    if let current @ Some(_) = context.server.objects().fetch(resource, namespace, name).await? {
        return Ok(Outcome::Conflict(current));
    }
    Ok(unchanged(resource, object))
}

fn unchanged(resource: &Resource, mut object: Value) -> Outcome {
    encoding::complete_kind(resource, &mut object);
    Outcome::Unchanged(Bytes::from(ordered::json_text(&object)))
}

/// Writes an object for a request. Only apply insists on the managed fields, because without them the fields
/// missing from the next configuration would be unknown.
async fn put(
    context: &Context,
    resource: &Resource,
    object: Value,
    expected: Revision,
) -> Result<Outcome, ApiError> {
    check_place(context, resource, meta::namespace(&object), meta::name(&object))?;
    let applies = context.info.verb == "patch" && negotiate::patch_type(&context.headers) == negotiate::APPLY;
    let terms = Terms { may_forget: !applies, share: Share::of(&context.info, &context.identity) };
    context.server.objects().put_on(resource, object, expected, terms).await
}

/// Restores the old times of the managed fields if these are otherwise unchanged, and so is everything else:
/// nothing has happened.
fn restore_times(old: &Value, new: &mut Value) {
    fn entries(object: &Value) -> &[Value] {
        meta::list(object, "/metadata/managedFields")
    }
    if entries(old) == entries(new) || !same_but_times(entries(old), entries(new)) {
        return;
    }
    let after = entries(new).to_vec();
    meta::set(new, "managedFields", entries(old).to_vec());
    if new != old {
        meta::set(new, "managedFields", after);
    }
}
