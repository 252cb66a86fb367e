//! `meta.k8s.io/v1`: tables for people and objects without content for controllers.

use apiserver_api::error::ApiError;
use apiserver_api::registry::Resource;
use apiserver_api::time;
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

/// The table of a `Scale`, which has columns of its own.
pub fn of_scale(context: &Context, scale: &Value) -> Result<Value, ApiError> {
    let include = Include::of(context)?;
    let head = [("Name", "string"), ("Desired", "integer"), ("Available", "integer"), ("Age", "string")];
    let columns = head.map(|(name, kind)| {
        let format = if name == "Name" { "name" } else { "" };
        json!({"name": name, "type": kind, "format": format, "priority": 0,
               "description": format!("{name} of the scale")})
    });
    let metadata = &scale["metadata"];
    let age = time::age(metadata["creationTimestamp"].as_str(), context.server.ambient().now());
    let cells = json!([metadata["name"], scale["spec"]["replicas"], scale["status"]["replicas"], age]);
    Ok(json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": metadata["resourceVersion"]},
        "columnDefinitions": columns,
        "rows": [carry(json!({"cells": cells}), scale, include)],
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
    carry(json!({"cells": (resource.cells)(object, now)}), object, include)
}

fn carry(mut row: Value, object: &Value, include: Include) -> Value {
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
