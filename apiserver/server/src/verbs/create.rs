//! `create`: a new object.

use apiserver_apply::check_entries;
use apiserver_kinds::labels;
use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::{ApiError, FieldError};
use apiserver_schema::meta;
use apiserver_schema::ordered;
use apiserver_schema::schema;
use apiserver_schema::validation::{metadata, names};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::managed::{self, Tracking};
use super::update::{self, Part};
use super::{admin_access, decode};
use crate::admission;
use crate::admission::{Admission, Operation};
use crate::allocate::Reservation;
use crate::context::Context;
use crate::custom;
use crate::limits;
use crate::respond;
use crate::respond::Answer;
use crate::services;
use crate::storage;
use crate::storage::{Outcome, Stored};
use apiserver_cache::encoding;

/// Creates the object of the body.
pub async fn create(context: &Context, resource: &Resource, bytes: Bytes) -> Answer {
    managed::check_options(context, "CreateOptions")?;
    let mut object = decode::object(context, resource, bytes)?;
    decode::drop_repeated_owners(context, &mut object, false);
    let created = store(context, resource, object).await?;
    respond::object(context, resource, 201, created)
}

/// Prepares, admits, validates and stores a new object; answers with its encoding.
pub async fn store(context: &Context, resource: &Resource, object: Value) -> Result<Bytes, ApiError> {
    store_with(context, resource, object, Tracking::Update).await
}

/// [`store`], and whether the object has its managed fields already.
pub async fn store_with(
    context: &Context,
    resource: &Resource,
    mut object: Value,
    tracking: Tracking,
) -> Result<Bytes, ApiError> {
    let versioned = meta::resource_version(&object).parse::<u64>().is_ok_and(|version| version != 0);
    if versioned && !context.dry_run()? {
        // The store's own words, which Kubernetes passes on as they are.
        return Err(ApiError::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    // Clients do not write these, so nobody owns them.
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        meta::unset(&mut object, field);
    }
    let generated = meta::name(&object).is_empty() && !meta::generate_name(&object).is_empty();
    let shared = resource.behaviour.shared_labels.filter(|at| labels::shares_labels(&object, at));
    encoding::fill_in(resource, &mut object, context.server.ambient().now())?;
    managed::drop_empty(&mut object);
    encoding::prepare(resource, &mut object);
    if tracking == Tracking::Update {
        managed::update(context, resource, Part::Main, None, &mut object);
    }
    let admission = Admission { context, resource, subresource: "", operation: Operation::Create, old: None };
    // Quota and policies judge one object; only its generated name differs between attempts.
    let attempts = limits::NAME_RETRIES;
    admission::mutate(&admission, &mut object).await?;
    prepare(context, resource, &mut object);
    if let Some(warnings) = resource.behaviour.early_warnings {
        warnings(&object).into_iter().for_each(|warning| context.warn(warning));
    }
    let prepare_create = |object: &mut Value| {
        (resource.behaviour.prepare_create)(object);
        shared.into_iter().for_each(|at| labels::share_labels(object, at));
    };
    if !generated {
        prepare_create(&mut object);
        return try_store(&admission, object).await;
    }
    for attempt in 1..=attempts {
        let mut candidate = object.clone();
        let name = generated_name(meta::generate_name(&object), &context.server.ambient().name_suffix());
        meta::set(&mut candidate, "name", name);
        // Some defaults follow from the name.
        (resource.behaviour.default)(&mut candidate);
        // Labels of a Job's pods have its name, so this comes after the name.
        prepare_create(&mut candidate);
        match try_store(&admission, candidate).await {
            Err(error) if error.code == 409 && error.reason == "AlreadyExists" && attempt < attempts => {}
            other => return other,
        }
    }
    Err(ApiError::internal("no name could be generated"))
}

async fn try_store(admission: &Admission<'_>, mut object: Value) -> Result<Bytes, ApiError> {
    let (context, resource) = (admission.context, admission.resource);
    custom::may_create(resource)?;
    let name = meta::name(&object).to_owned();
    let generated = !meta::generate_name(&object).is_empty();
    if resource.custom.is_none() {
        schema::complete_status(&resource.schema, &mut object);
    }
    encoding::prepare(resource, &mut object);
    // Addresses are claimed first, so that the validated object is the stored one.
    let mut reservation = services::reserve(context, resource, &mut object, None).await?;
    let outcome = judge_and_put(admission, object, &name, reservation.as_mut()).await;
    services::settle(reservation, &outcome).await;
    match outcome? {
        Outcome::Done(bytes) | Outcome::Unchanged(bytes) => Ok(bytes),
        Outcome::Conflict(current) => Err(exists(resource, &name, generated, current)),
    }
}

async fn judge_and_put(
    admission: &Admission<'_>,
    mut object: Value,
    name: &str,
    reservation: Option<&mut Reservation>,
) -> Result<Outcome, ApiError> {
    let (context, resource) = (admission.context, admission.resource);
    let refused = admin_access::refused(context, resource, Part::Main, &object, None).await?;
    let mut errors: Vec<FieldError> = refused.into_iter().collect();
    errors.extend((resource.behaviour.validate)(&object));
    errors.extend(check_entries(&object));
    if errors.is_empty() && resource.custom.is_none() {
        // Besides the kind's own rules, a name is part of paths.
        errors = metadata::validate(&object, names::path_segment);
    }
    if !errors.is_empty() {
        return Err(update::invalid(resource, name, &errors));
    }
    if let Some(warnings) = &resource.behaviour.warnings {
        warnings(&object, None).into_iter().for_each(|warning| context.warn(warning));
    }
    admission::validate(admission, &object).await?;
    if resource.custom.is_none() {
        // Reading from the store applies defaults again: a Job gets the labels that were made for its pods.
        (resource.behaviour.default)(&mut object);
    }
    if context.dry_run()? {
        let namespace = meta::namespace(&object);
        if let current @ Some(_) = storage::fetch(&context.server, resource, namespace, name).await? {
            return Ok(Outcome::Conflict(current));
        }
        encoding::complete_kind(resource, &mut object);
        return Ok(Outcome::Unchanged(Bytes::from(ordered::json_text(&object))));
    }
    if let Some(reservation) = reservation {
        reservation.write_begins();
    }
    update::store(context, resource, object, 0).await
}

/// 409 for a name that is taken; `generated`: by a name that this server may have made, and another try
/// makes another one.
fn exists(resource: &Resource, name: &str, generated: bool, current: Option<Stored>) -> ApiError {
    let mut error = ApiError::already_exists(&resource.group, &resource.plural, name);
    if generated {
        error.message.push_str(", the server was not able to generate a unique name for the object");
        error = storage::retry_after(error, 1);
    }
    if current.is_some_and(|current| meta::deletion_timestamp(&current.object).is_some()) {
        error.message = format!("object is being deleted: {}", error.message);
    }
    error
}

/// Sets what the server decides about a new object.
fn prepare(context: &Context, resource: &Resource, object: &mut Value) {
    let ambient = context.server.ambient();
    meta::unset(object, "resourceVersion");
    if meta::generation(object) == 0 {
        meta::unset(object, "generation");
    }
    meta::set(object, "uid", ambient.uid());
    meta::set(object, "creationTimestamp", time::rfc3339(ambient.now()));
    if resource.behaviour.generation {
        meta::set(object, "generation", 1);
    }
    // A kubelet registers its node with its status.
    let with_status = context.internal || (resource.group.is_empty() && resource.kind == "Node");
    if resource.behaviour.status_subresource
        && !with_status
        && let Some(map) = object.as_object_mut()
        && map.contains_key("status")
    {
        map.insert("status".to_owned(), json!({}));
        if resource.kind == "ResourcePoolStatusRequest" {
            map.remove("status");
        }
    }
    // Only this kind needs no name.
    let unnamed = meta::name(object).is_empty() && meta::generate_name(object).is_empty();
    if unnamed && resource.group.is_empty() && resource.kind == "LimitRange" {
        meta::set(object, "name", ambient.uid());
    }
    if resource.group == "certificates.k8s.io" && resource.kind == "CertificateSigningRequest" {
        sign_in(context, object);
    }
}

/// Sets the author of a certificate request to the sender of the request, overwriting the client's values.
fn sign_in(context: &Context, request: &mut Value) {
    let Some(Value::Object(spec)) = request.get_mut("spec") else { return };
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    let identity = &context.identity;
    spec.insert("username".to_owned(), identity.user.clone().into());
    if !identity.uid.is_empty() {
        spec.insert("uid".to_owned(), identity.uid.clone().into());
    }
    if !identity.groups.is_empty() {
        spec.insert("groups".to_owned(), identity.groups.clone().into());
    }
    let extra: Map<String, Value> =
        identity.extra.iter().map(|(key, values)| (key.clone(), values.clone().into())).collect();
    if !extra.is_empty() {
        spec.insert("extra".to_owned(), Value::Object(extra));
    }
}

/// Generates a name of at most 63 bytes, for a base of any length.
fn generated_name(base: &str, suffix: &str) -> String {
    let room = 63 - suffix.len();
    let cut = (0..=base.len().min(room)).rev().find(|&i| base.is_char_boundary(i)).unwrap_or(0);
    format!("{}{suffix}", &base[..cut])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_bases_are_cut() {
        assert_eq!(generated_name("web-", "abcde"), "web-abcde");
        assert_eq!(generated_name(&"x".repeat(100), "abcde").len(), 63);
    }
}
