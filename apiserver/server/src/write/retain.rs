//! Stage `retain`: what an update may not change comes back from the current object: metadata of the server, and
//! the part of the object that the request does not write.

use apiserver_cache::encoding;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use apiserver_schema::meta;
use apiserver_schema::schema;
use serde_json::Value;

use super::validate::{immutable, refuse};
use super::{Part, Write};
use crate::objects::Stored;

/// Restores the fields that the write may not change; does nothing for a new object.
pub(super) fn retain(write: &Write<'_>, new: &mut Value) -> Result<(), ApiError> {
    let Some(Stored { object: old, revision }) = write.current else { return Ok(()) };
    let (resource, part) = (write.resource, write.part);
    if part == Part::Main {
        refuse_deletion(resource, old, new)?;
    }
    encoding::normalize_sent(resource, new);
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"]
    {
        retain_metadata(old, new, field);
    }
    retain_part(resource, part, old, new);
    if part == Part::Status
        && let Some(retain_status) = resource.behaviour.retain_status
    {
        let subresource = write.context.info.subresource.as_str();
        refuse(resource, meta::name(old), &retain_status(new, old, subresource, write.now()))?;
    }
    if resource.custom.is_none() {
        schema::complete_status(&resource.schema, new);
    }
    meta::set(new, "resourceVersion", revision.to_string());
    Ok(())
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

/// Restores one field of the metadata.
pub(super) fn retain_metadata(old: &Value, new: &mut Value, field: &str) {
    match old["metadata"].get(field) {
        Some(value) => meta::set(new, field, value.clone()),
        None => meta::unset(new, field),
    }
}

/// Restores the part of the object that the request does not write.
fn retain_part(resource: &Resource, part: Part, old: &Value, new: &mut Value) {
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
                retain_metadata(old, new, field);
            }
        }
        _ => {}
    }
}
