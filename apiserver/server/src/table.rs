//! `meta.k8s.io/v1`: tables for people and objects without content for controllers.

use apiserver_api::error::ApiError;
use apiserver_api::registry::Resource;
use serde_json::{Value, json};

use crate::context::Context;

/// What a row carries beside its cells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Include {
    None,
    Metadata,
    Object,
}

impl Include {
    /// `includeObject`, by default the metadata.
    pub fn of(context: &Context) -> Result<Self, ApiError> {
        match context.query.get("includeObject") {
            None | Some("Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Object),
            Some(other) => {
                Err(ApiError::bad_request(format!("unrecognized includeObject value: \"{other}\"")))
            }
        }
    }
}

/// A table of objects; `metadata` is that of the list.
pub fn of(
    context: &Context,
    resource: &Resource,
    objects: &[Value],
    metadata: &Value,
) -> Result<Value, ApiError> {
    let include = Include::of(context)?;
    let now = context.server.ambient().now();
    Ok(json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns(resource),
        "rows": objects.iter().map(|object| row(resource, object, include, now)).collect::<Vec<_>>(),
    }))
}

/// The table of one watch event; the columns are named in the first alone.
pub fn event(
    resource: &Resource,
    object: &Value,
    include: Include,
    now: jiff::Timestamp,
    first: bool,
) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": apiserver_api::meta::resource_version(object)},
        "columnDefinitions": if first { Value::Array(columns(resource)) } else { Value::Null },
        "rows": [row(resource, object, include, now)],
    })
}

fn columns(resource: &Resource) -> Vec<Value> {
    let columns = resource.columns.iter().map(|c| {
        json!({"name": c.name, "type": c.kind, "format": c.format, "description": c.description,
               "priority": c.priority})
    });
    columns.collect()
}

fn row(resource: &Resource, object: &Value, include: Include, now: jiff::Timestamp) -> Value {
    let mut row = json!({"cells": (resource.cells)(object, now)});
    match include {
        Include::None => {}
        Include::Metadata => row["object"] = metadata_only(object),
        Include::Object => row["object"] = object.clone(),
    }
    row
}

/// `PartialObjectMetadata`.
pub fn metadata_only(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}
