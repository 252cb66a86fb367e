//! `meta.k8s.io/v1`: tables for people and objects without content for controllers.

use std::sync::Arc;

use apiserver_meta::time;
use apiserver_registry::Resource;
use apiserver_schema::error::ApiError;
use serde_json::{Value, json};

use apiserver_cache::form::Include;

use crate::context::Context;

/// Returns `includeObject`, by default the metadata.
pub fn include(context: &Context) -> Result<Include, ApiError> {
    match context.query.get("includeObject") {
        None | Some("Metadata") => Ok(Include::Metadata),
        Some("None") => Ok(Include::None),
        Some("Object") => Ok(Include::Object),
        Some(other) => Err(ApiError::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be \
             'Metadata', 'Object', 'None', or empty"
        ))),
    }
}

/// Returns the part of its object that a row contains.
fn of_row(include: Include, object: &Value, meta: &str) -> Value {
    match include {
        Include::Metadata => metadata_only(object, meta),
        // A watcher that waits for the end of the first events needs this mark whatever the rows contain.
        Include::None if is_mark(object) => metadata_only(object, meta),
        Include::None => Value::Null,
        Include::Object => object.clone(),
    }
}

/// Returns the table of a `Scale`, which has columns of its own.
pub fn of_scale(context: &Context, scale: &Value, meta: &str) -> Result<Value, ApiError> {
    let include = include(context)?;
    let head = [("Name", "string"), ("Desired", "integer"), ("Available", "integer"), ("Age", "string")];
    let columns = head.map(|(name, kind)| {
        json!({"name": name, "type": kind, "format": "", "priority": 0,
               "description": format!("{name} of the scale")})
    });
    let metadata = &scale["metadata"];
    let age = time::age(metadata["creationTimestamp"].as_str(), context.server.ambient().now());
    let cells = json!([metadata["name"], scale["spec"]["replicas"], scale["status"]["replicas"], age]);
    Ok(json!({
        "kind": "Table",
        "apiVersion": meta,
        "metadata": {"resourceVersion": metadata["resourceVersion"]},
        "columnDefinitions": columns,
        "rows": [{"cells": cells, "object": of_row(include, scale, meta)}],
    }))
}

/// The settings for the rows of one answer.
#[derive(Clone)]
pub struct Rows {
    resource: Arc<Resource>,
    include: Include,
    now: jiff::Timestamp,
    /// apiVersion of the table.
    pub meta: &'static str,
}

impl Rows {
    /// Returns the rows that the client asks for.
    pub fn of(context: &Context, resource: &Arc<Resource>, meta: &'static str) -> Result<Self, ApiError> {
        let include = include(context)?;
        let now = context.server.ambient().now();
        Ok(Self { resource: Arc::clone(resource), include, now, meta })
    }

    /// Returns the part of the object that they contain besides their cells.
    pub fn include(&self) -> Include {
        self.include
    }

    /// Returns the columns that the cells belong to.
    pub fn columns(&self) -> Value {
        let columns = self.resource.columns.iter().map(|c| {
            json!({"name": c.name, "type": c.kind, "format": c.format, "description": c.description,
                   "priority": c.priority})
        });
        Value::Array(columns.collect())
    }

    /// Returns the row of an object.
    pub fn row(&self, object: &Value) -> Value {
        let cells = (self.resource.cells)(object, self.now);
        let mut row = json!({"cells": cells, "object": of_row(self.include, object, self.meta)});
        let Resource { group, plural, .. } = &*self.resource;
        if let Some(conditions) = apiserver_kinds::row_conditions(group, plural, object) {
            row["conditions"] = conditions;
        }
        row
    }

    /// Returns a table of one object. Later events of a watch name no columns.
    pub fn one(&self, object: &Value, columns: bool) -> Value {
        json!({
            "kind": "Table",
            "apiVersion": self.meta,
            "metadata": {"resourceVersion": apiserver_schema::meta::resource_version(object)},
            "columnDefinitions": if columns { self.columns() } else { Value::Null },
            "rows": [self.row(object)],
        })
    }

    /// Returns the same rows with the ages of another moment.
    pub fn at(&self, now: jiff::Timestamp) -> Self {
        Self { now, ..self.clone() }
    }
}

fn is_mark(object: &Value) -> bool {
    object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
}

/// `PartialObjectMetadata`.
pub fn metadata_only(object: &Value, meta: &str) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": meta, "metadata": object["metadata"]})
}
