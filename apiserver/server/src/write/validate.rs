//! Stage `validate`: the rules of the kind and of all metadata, and the warnings about an object that passes them.

use apiserver_apply::check_entries;
use apiserver_cache::encoding;
use apiserver_registry::{Resource, Written};
use apiserver_schema::error::{ApiError, FieldError, FieldReason};
use apiserver_schema::meta;
use apiserver_schema::validation::{metadata, names};
use serde_json::Value;

use super::{Part, Write, admin_access};

/// Refuses an object that breaks rules, with all of them.
pub(super) async fn validate(write: &Write<'_>, object: &mut Value) -> Result<(), ApiError> {
    let (context, resource, part, old) = (write.context, write.resource, write.part, write.old());
    if old.is_some() {
        // Admission and what was retained of the old object may have brought zeros of their own.
        encoding::normalize_as(resource, object);
    }
    let refused = admin_access::refused(context, resource, part, object, old).await?;
    let mut errors: Vec<FieldError> = refused.into_iter().collect();
    match old {
        None => errors_of_new(resource, object, &mut errors),
        Some(old) => {
            errors.extend(errors_of_change(resource, part, object, old));
            for tolerated in errors.extract_if(.., |error| error.reason == FieldReason::Tolerated) {
                context.warn(format!("{}: {}", tolerated.field, tolerated.message));
            }
            errors.extend(check_entries(object));
        }
    }
    refuse(resource, meta::name(old.unwrap_or(object)), &errors)?;
    if part != Part::Status
        && let Some(warnings) = &resource.behaviour.warnings
    {
        warnings(object, old).into_iter().for_each(|warning| context.warn(warning));
    }
    Ok(())
}

fn errors_of_new(resource: &Resource, object: &Value, errors: &mut Vec<FieldError>) {
    errors.extend((resource.behaviour.validate)(object));
    errors.extend(check_entries(object));
    if errors.is_empty() && resource.custom.is_none() {
        // Besides the kind's own rules, a name is part of paths.
        *errors = metadata::validate(object, names::path_segment);
    }
}

fn errors_of_change(resource: &Resource, part: Part, new: &Value, old: &Value) -> Vec<FieldError> {
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

/// Returns 422 with the errors, if there are any.
pub(super) fn refuse(resource: &Resource, name: &str, errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(invalid(resource, name, errors))
}

/// 422 for an object of a kind.
fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> ApiError {
    let group = if resource.behaviour.errors_name_core_group { "" } else { &resource.group };
    ApiError::invalid(group, &resource.kind, name, errors)
}

/// Returns 422 for a field of the metadata that the client may not change: Kubernetes checks it for all
/// kinds, and then by the kind's own rules.
pub(super) fn immutable(resource: &Resource, name: &str, field: &str, value: &Value) -> ApiError {
    let error = FieldError::invalid(format!("metadata.{field}"), value, "field is immutable");
    let rounds = match resource.custom {
        Some(_) => 2,
        None => metadata::rounds_of_changes(&resource.group, &resource.plural),
    };
    invalid(resource, name, &vec![error; rounds])
}
