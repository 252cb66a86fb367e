//! `update`: the one way in which existing objects change, for PUT, patches, status and scale.

use std::sync::{Mutex, PoisonError};

use apiserver_apply::check_entries;
use apiserver_kinds::certificates::certificate_signing_request::status as signing;
use apiserver_kinds::core::persistent_volume;
use apiserver_meta::time;
use apiserver_registry::{Resource, Written};
use apiserver_schema::error::{ApiError, FieldError, FieldReason};
use apiserver_schema::meta;
use apiserver_schema::ordered;
use apiserver_schema::schema;
use apiserver_schema::validation::metadata;
use apiserver_store::Revision;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use super::managed::{self, Tracking};
use super::{admin_access, apply, check_place, create, decode, delete, options, pods};
use crate::admission;
use crate::admission::{Admission, Operation};
use crate::allocate::Reservation;
use crate::context::Context;
use crate::custom::conversion::{by_webhook, settled};
use crate::negotiate;
use crate::respond;
use crate::respond::Answer;
use crate::services;
use crate::storage;
use crate::storage::{Outcome, Stored, Terms};
use crate::store_quota::Share;
use apiserver_cache::encoding;

/// The part of an object that a change may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the status.
    Main,
    /// The status, labels and annotations.
    Status,
    /// The whole object, as the caller made it: for subresources of one kind, such as `resize`.
    Whole,
    /// The same, of a change that follows from what admission has judged already: a Binding, an Eviction.
    Admitted,
}

/// Replaces an object by that of the body.
pub async fn update(context: &Context, resource: &Resource, part: Part, bytes: Bytes) -> Answer {
    managed::check_options(context, "UpdateOptions")?;
    let read = || -> Result<Value, ApiError> {
        let mut object = decode::object(context, resource, Bytes::clone(&bytes))?;
        decode::drop_repeated_owners(context, &mut object, false);
        Ok(object)
    };
    let object = read()?;
    name_matches(meta::name(&object), &context.info.name)?;
    // The object is rarely needed twice; a retry decodes it again.
    let decoded = Mutex::new(Some(object));
    let make = |old: &Value| {
        let first = decoded.lock().unwrap_or_else(PoisonError::into_inner).take();
        let object = first.map_or_else(read, Ok)?;
        same_uid(context, resource, old, &object)?;
        versioned(resource, &object)?;
        Ok(object)
    };
    match change(context, resource, part, &make).await {
        Err(error) if error.code == 404 && part == Part::Main && resource.behaviour.create_on_update => {
            apply::may_create(context)?;
            let mut object = read()?;
            same_uid(context, resource, &Value::Null, &object)?;
            // If nothing exists, no version of it can be meant.
            meta::unset(&mut object, "resourceVersion");
            let created = create::store(context, resource, object).await?;
            respond::object(context, resource, 201, created)
        }
        updated => respond::object(context, resource, 200, updated?),
    }
}

/// 400 for an object that has another name than the one asked for, or none.
pub(super) fn name_matches(found: &str, asked: &str) -> Result<(), ApiError> {
    if found.is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({asked} based on URL) was undeterminable: name must be provided"
        )));
    }
    if found != asked {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({asked})"
        )));
    }
    Ok(())
}

/// Makes a new object of the present one and stores it. Where the new object carries no resource
/// version, or still that of the object it was made from, other writers are retried against.
pub async fn change(
    context: &Context,
    resource: &Resource,
    part: Part,
    make: &(dyn Fn(&Value) -> Result<Value, ApiError> + Sync),
) -> Result<Bytes, ApiError> {
    change_with(context, resource, part, Tracking::of(context), make).await
}

/// Does what [`change`] does, with the given tracking of managed fields.
pub async fn change_with(
    context: &Context,
    resource: &Resource,
    part: Part,
    tracking: Tracking,
    make: &(dyn Fn(&Value) -> Result<Value, ApiError> + Sync),
) -> Result<Bytes, ApiError> {
    change_object(context, resource, &context.info.name, (part, tracking), make).await
}

/// Does what [`change_with`] does for an object whose name is in the body, as in `bindings`.
pub async fn change_object(
    context: &Context,
    resource: &Resource,
    name: &str,
    (part, tracking): (Part, Tracking),
    make: &(dyn Fn(&Value) -> Result<Value, ApiError> + Sync),
) -> Result<Bytes, ApiError> {
    let namespace = context.info.namespace_of(resource);
    check_place(context, resource, namespace, name)?;
    let require = || storage::require(&context.server, resource, namespace, name);
    let (mut current, mut guessed) = match guess(context, resource, namespace, name) {
        Some(cached) => (cached, true),
        None => (require().await?, false),
    };
    // Others may write at the same time for as long as they like: one of them gets on each time, and the
    // request's time is limited.
    loop {
        if resource.custom.is_none() {
            schema::round_resources(&resource.schema, &mut current.object);
        }
        let outcome = once(context, resource, (part, tracking), &current, make).await;
        // The result of a comparison in the store is true, however old its input was.
        let compared = matches!(outcome, Ok((Outcome::Done(_) | Outcome::Conflict(_), _)));
        if std::mem::take(&mut guessed) && !compared {
            let now = require().await?;
            if now.revision != current.revision {
                current = now;
                continue;
            }
        }
        match outcome? {
            (Outcome::Done(bytes) | Outcome::Unchanged(bytes), _) => return Ok(bytes),
            (Outcome::Conflict(None), _) => return Err(storage::not_found(resource, name)),
            (Outcome::Conflict(Some(_)), true) => return Err(storage::modified(resource, name)),
            (Outcome::Conflict(Some(newer)), false) => current = newer,
        }
    }
}

/// Returns the cached object, if a request to the store costs a round trip that the comparison of the write
/// makes unnecessary. It may be out of date: a refusal or no-op because of it is decided again on the stored
/// object. Services are not guessed, as each attempt may reserve addresses, nor are objects that a webhook
/// converts.
fn guess(context: &Context, resource: &Resource, namespace: &str, name: &str) -> Option<Stored> {
    let server = &context.server;
    if !server.store().shared() || services::is_service(resource) || by_webhook(resource).is_some() {
        return None;
    }
    let cache = server.cache(resource).ok()?;
    let entry = cache.get(&storage::short_key(resource, namespace, name))?;
    cache.is_live().then(|| {
        let mut object = entry.value(None);
        encoding::prepare(resource, &mut object);
        Stored { object, revision: entry.revision }
    })
}

/// One attempt, and whether the client insists on a version of its own.
async fn once(
    context: &Context,
    resource: &Resource,
    how: (Part, Tracking),
    current: &Stored,
    make: &(dyn Fn(&Value) -> Result<Value, ApiError> + Sync),
) -> Result<(Outcome, bool), ApiError> {
    let new = settled(context, resource, || make(&current.object)).await?;
    let pinned = pinned(context, resource, current, &new)?;
    Ok((attempt(context, resource, how, current, new).await?, pinned))
}

/// Checks that an object has the uid that the change names. A PUT names the object that it means to replace;
/// a patch would give the object another uid.
pub(super) fn same_uid(
    context: &Context,
    resource: &Resource,
    old: &Value,
    new: &Value,
) -> Result<(), ApiError> {
    let (had, has) = (meta::uid(old), meta::uid(new));
    if has.is_empty() || has == had {
        return Ok(());
    }
    let name = meta::name(old);
    if context.info.verb == "patch" {
        return Err(immutable(resource, name, "uid", &has.into()));
    }
    let key = storage::key(resource, meta::namespace(old), name);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: \
         Precondition failed: UID in precondition: {has}, UID in object meta: {had}"
    );
    Err(ApiError::conflict(&resource.group, &resource.plural, name, &why))
}

/// Returns 422 for a field of the metadata that the client may not change: Kubernetes checks it for all
/// kinds, and then by the kind's own rules.
fn immutable(resource: &Resource, name: &str, field: &str, value: &Value) -> ApiError {
    let error = FieldError::invalid(format!("metadata.{field}"), value, "field is immutable");
    let rounds = match resource.custom {
        Some(_) => 2,
        None => metadata::rounds_of_changes(&resource.group, &resource.plural),
    };
    invalid(resource, name, &vec![error; rounds])
}

/// Checks that a change has a resource version, for the kinds that require one.
pub fn versioned(resource: &Resource, new: &Value) -> Result<(), ApiError> {
    if !resource.behaviour.needs_version || !matches!(meta::resource_version(new), "" | "0") {
        return Ok(());
    }
    let error = FieldError::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
    // Here Kubernetes has the resource where the kind is said elsewhere.
    Err(ApiError::invalid(&resource.group, &resource.plural, meta::name(new), &[error]))
}

/// Checks uid and resource version; returns true if the client requires a version of its own.
fn pinned(context: &Context, resource: &Resource, current: &Stored, new: &Value) -> Result<bool, ApiError> {
    same_uid(context, resource, &current.object, new)?;
    match meta::resource_version(new) {
        "" | "0" => Ok(false),
        version => {
            let version: u64 =
                version.parse().map_err(|error| ApiError::new(500, "", options::unread(version, &error)))?;
            if Revision::try_from(version) != Ok(current.revision) {
                return Err(storage::modified(resource, meta::name(&current.object)));
            }
            Ok(true)
        }
    }
}

/// Refuses changes of fields that only a deletion sets.
fn refuse_deletion(resource: &Resource, old: &Value, new: &Value) -> Result<(), ApiError> {
    let given = |field: &str| new["metadata"].get(field).filter(|value| !value.is_null());
    let refused = |field: &str, value: &Value| Err(immutable(resource, meta::name(old), field, value));
    match given("deletionTimestamp") {
        Some(time) if meta::deletion_timestamp(old).is_none() => return refused("deletionTimestamp", time),
        _ => {}
    }
    const GRACE: &str = "deletionGracePeriodSeconds";
    match given(GRACE) {
        Some(grace) if old["metadata"].get(GRACE) != Some(grace) => refused(GRACE, grace),
        _ => Ok(()),
    }
}

async fn attempt(
    context: &Context,
    resource: &Resource,
    (part, tracking): (Part, Tracking),
    current: &Stored,
    mut new: Value,
) -> Result<Outcome, ApiError> {
    let (old, now) = (&current.object, context.server.ambient().now());
    encoding::fill_in(resource, &mut new, now)?;
    if part == Part::Main {
        refuse_deletion(resource, old, &new)?;
    }
    managed::drop_empty(&mut new);
    encoding::prepare_as_sent(resource, &mut new);
    keep_metadata(old, &mut new);
    keep_part(resource, part, old, &mut new);
    if part == Part::Status && resource.group == signing::GROUP && resource.kind == signing::KIND {
        let now = time::rfc3339(now);
        let approval = context.info.subresource == "approval";
        refuse(resource, meta::name(old), &signing::apply_status(&mut new, old, approval, &now))?;
    }
    if resource.custom.is_none() {
        schema::complete_status(&resource.schema, &mut new);
    }
    meta::set(&mut new, "resourceVersion", current.revision.to_string());
    match tracking {
        Tracking::Update if by_webhook(resource).is_some() => {
            let untracked = new;
            new = settled(context, resource, || {
                let mut tracked = untracked.clone();
                managed::update(context, resource, part, Some(old), &mut tracked);
                Ok(tracked)
            })
            .await?;
        }
        Tracking::Update => managed::update(context, resource, part, Some(old), &mut new),
        Tracking::Done => {}
        Tracking::Keep => keep_field(old, &mut new, "managedFields"),
    }
    encoding::prepare(resource, &mut new);
    let subresource = match (part, context.info.subresource.as_str()) {
        // The server writes statuses of its own without a request.
        (Part::Status, "") => "status",
        (_, named) => named,
    };
    let admission =
        Admission { context, resource, subresource, operation: Operation::Update, old: Some(old) };
    if part != Part::Admitted {
        admission::mutate(&admission, &mut new).await?;
    }
    prepare(resource, part, old, &mut new, now);
    count_generation(resource, part, old, &mut new);
    let mut reservation = if part == Part::Status {
        None
    } else {
        services::reserve(context, resource, &mut new, Some(old)).await?
    };
    let outcome = judge_and_put(&admission, part, current, new, reservation.as_mut()).await;
    services::settle(reservation, &outcome).await;
    outcome
}

/// Sets what a client may not choose in the part that it writes. A whole object was made by this server from
/// the old one.
fn prepare(resource: &Resource, part: Part, old: &Value, new: &mut Value, now: Timestamp) {
    match part {
        Part::Main => {
            (resource.behaviour.prepare_update)(new, old);
            if let Some(times) = &resource.behaviour.prepare_times {
                times(new, old, now);
            }
        }
        Part::Status => {
            (resource.behaviour.prepare_status)(new, old);
            if resource.group.is_empty() && resource.kind == "PersistentVolume" {
                persistent_volume::record_phase_time(new, old, &time::rfc3339(now));
            }
        }
        Part::Whole | Part::Admitted => {}
    }
}

async fn judge_and_put(
    admission: &Admission<'_>,
    part: Part,
    current: &Stored,
    mut new: Value,
    reservation: Option<&mut Reservation>,
) -> Result<Outcome, ApiError> {
    let (context, resource, old) = (admission.context, admission.resource, &current.object);
    // Admission and what the server keeps of the old object may have brought zeros of their own.
    encoding::prepare(resource, &mut new);
    let refused = admin_access::refused(context, resource, part, &new, Some(old)).await?;
    let mut errors: Vec<FieldError> = refused.into_iter().collect();
    errors.extend(errors_of(resource, part, &new, old));
    for tolerated in errors.extract_if(.., |error| error.reason == FieldReason::Tolerated) {
        context.warn(format!("{}: {}", tolerated.field, tolerated.message));
    }
    errors.extend(check_entries(&new));
    refuse(resource, meta::name(old), &errors)?;
    if part != Part::Status
        && let Some(warnings) = &resource.behaviour.warnings
    {
        warnings(&new, Some(old)).into_iter().for_each(|warning| context.warn(warning));
    }
    if part != Part::Admitted {
        admission::validate(admission, &new).await?;
    }
    managed::forget_new_times(old, &mut new);
    if encoding::same(&new, old) || context.dry_run()? {
        encoding::complete_kind(resource, &mut new);
        return Ok(Outcome::Unchanged(Bytes::from(ordered::json_text(&new))));
    }
    if let Some(reservation) = reservation {
        reservation.write_begins();
    }
    if delete::is_finished(resource, &new) {
        delete::finish(context, resource, &new, current.revision).await
    } else {
        store(context, resource, new, current.revision).await
    }
}

fn refuse(resource: &Resource, name: &str, errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(invalid(resource, name, errors))
}

/// 422 for an object of a kind. Events are of one kind, whichever group they are written to.
pub fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> ApiError {
    let group = if resource.kind == "Event" && resource.custom.is_none() { "" } else { &resource.group };
    ApiError::invalid(group, &resource.kind, name, errors)
}

/// Writes an object for a request. Only apply insists on the managed fields, because without them the fields
/// missing from the next configuration would be unknown.
pub async fn store(
    context: &Context,
    resource: &Resource,
    object: Value,
    expected: Revision,
) -> Result<Outcome, ApiError> {
    check_place(context, resource, meta::namespace(&object), meta::name(&object))?;
    let applies = context.info.verb == "patch" && negotiate::patch_type(&context.headers) == apply::MEDIA;
    let terms = Terms { may_forget: !applies, share: Share::of(&context.info, &context.identity) };
    storage::put_on(&context.server, resource, object, expected, terms).await
}

fn errors_of(resource: &Resource, part: Part, new: &Value, old: &Value) -> Vec<FieldError> {
    if part == Part::Main && resource.custom.is_none() {
        let own = errors_of_kind(resource, part, new, old);
        return metadata::with_rounds(&resource.group, &resource.plural, new, old, own);
    }
    let mut errors = metadata::validate_update(new, old);
    errors.extend(errors_of_kind(resource, part, new, old));
    if errors.iter().any(|error| error.field.starts_with("metadata.")) {
        // Kubernetes validates the metadata of every kind, and then again by the kind's own rules.
        let mut common = metadata::validate(new, |_| Vec::new());
        common.extend(metadata::validate_update(new, old));
        common.append(&mut errors);
        return common;
    }
    errors
}

fn errors_of_kind(resource: &Resource, part: Part, new: &Value, old: &Value) -> Vec<FieldError> {
    if part == Part::Status
        && let Some(check) = &resource.behaviour.validate_status
    {
        return check(new, old);
    }
    if let Some(check) = &resource.behaviour.validate_change {
        let written = if part == Part::Status { Written::Status } else { Written::Main };
        return check(new, old, written);
    }
    let mut errors = (resource.behaviour.validate)(new);
    if part == Part::Main {
        errors.extend((resource.behaviour.validate_update)(new, old));
    }
    errors
}

/// Restores the metadata that no update changes.
fn keep_metadata(old: &Value, new: &mut Value) {
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"]
    {
        keep_field(old, new, field);
    }
}

/// One field of the metadata as it was.
fn keep_field(old: &Value, new: &mut Value, field: &str) {
    match old["metadata"].get(field) {
        Some(value) => meta::set(new, field, value.clone()),
        None => meta::unset(new, field),
    }
}

fn keep_part(resource: &Resource, part: Part, old: &Value, new: &mut Value) {
    let copy = |new: &mut Value, field: &str| {
        let Some(map) = new.as_object_mut() else { return };
        match old.get(field) {
            Some(value) => map.insert(field.to_owned(), value.clone()),
            None => map.remove(field),
        };
    };
    match part {
        Part::Main if resource.behaviour.status_subresource => copy(new, "status"),
        Part::Status => {
            let fields: Vec<String> = old
                .as_object()
                .into_iter()
                .chain(new.as_object())
                .flat_map(|map| map.keys().cloned())
                .filter(|field| !matches!(field.as_str(), "status" | "metadata"))
                .collect();
            for field in fields {
                copy(new, &field);
            }
            if resource.custom.is_some() {
                // A write of the status of a custom resource keeps everything else.
                let version = meta::resource_version(new).to_owned();
                let managed = new["metadata"].get("managedFields").cloned();
                copy(new, "metadata");
                meta::set(new, "resourceVersion", version);
                if let Some(managed) = managed {
                    meta::set(new, "managedFields", managed);
                }
                return;
            }
            for field in ["ownerReferences", "finalizers"] {
                keep_field(old, new, field);
            }
            if resource.group.is_empty() && resource.kind == "Pod" {
                pods::keep_status(old, new);
            }
        }
        _ => {}
    }
}

/// The generation rises with every change outside metadata and a status that is a subresource, and with
/// one of the metadata that the kind counts.
fn count_generation(resource: &Resource, part: Part, old: &Value, new: &mut Value) {
    // Bindings and evictions do not change the desired state.
    if !resource.behaviour.generation || part == Part::Admitted {
        return;
    }
    let of = |object: &Value, field: &str| {
        object["metadata"][field].as_object().filter(|map| !map.is_empty()).cloned()
    };
    let counted = resource.behaviour.counted.filter(|_| part != Part::Status);
    if counted.is_some_and(|field| of(new, field) != of(old, field)) {
        return meta::set(new, "generation", meta::generation(old) + 1);
    }
    let changed = |a: &Value, b: &Value| {
        a.as_object().is_some_and(|map| {
            map.iter().any(|(key, value)| {
                let counts = match key.as_str() {
                    "metadata" => false,
                    "status" => !resource.behaviour.status_subresource,
                    _ => true,
                };
                counts && b.get(key) != Some(value)
            })
        })
    };
    if (changed(old, new) || changed(new, old)) && !same_outside(resource, old, new) {
        meta::set(new, "generation", meta::generation(old) + 1);
    }
}

/// Returns true if the objects are the same except for metadata, and for a status that is a subresource.
fn same_outside(resource: &Resource, old: &Value, new: &Value) -> bool {
    let mut other = new.clone();
    let mut keep = |field: &str| match (old.get(field), other.as_object_mut()) {
        (Some(value), Some(map)) => drop(map.insert(field.to_owned(), value.clone())),
        (None, Some(map)) => drop(map.remove(field)),
        _ => {}
    };
    keep("metadata");
    if resource.behaviour.status_subresource {
        keep("status");
    }
    encoding::same(&other, old)
}
