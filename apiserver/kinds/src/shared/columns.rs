//! Printer columns: what `kubectl get` shows of a kind.

use apiserver_registry::Column;
use serde_json::Value;

use crate::shared::cells;

/// The columns of a kind and what fills them.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    pub(crate) headers: &'static [Header],
    /// Fills a row.
    pub cells: fn(&Value, jiff::Timestamp) -> Vec<Value>,
}

impl Columns {
    /// The headers.
    pub fn columns(&self) -> Vec<Column> {
        self.headers
            .iter()
            .map(|&(name, kind, priority, description)| Column {
                name: name.into(),
                kind: kind.into(),
                format: if name == "Name" { "name".into() } else { "".into() },
                priority: priority.into(),
                description: description.into(),
            })
            .collect()
    }
}

/// A column: name, OpenAPI type, priority, description.
pub(crate) type Header = (&'static str, &'static str, u8, &'static str);

pub(crate) const NAME: Header = ("Name", "string", 0, "Name of the object, unique within its namespace");

pub(crate) const AGE: Header = ("Age", "string", 0, "Time since the object was created");

pub(crate) const CONTAINERS: Header = ("Containers", "string", 1, "Names of the containers of the template");

pub(crate) const IMAGES: Header = ("Images", "string", 1, "Images of the containers of the template");

pub(crate) const SELECTOR: Header = ("Selector", "string", 1, "Which pods belong to it");

/// The layout of kinds without one of their own, such as custom resource definitions, roles and limit ranges.
pub(crate) const DEFAULT: Columns =
    Columns { headers: &[NAME, ("Created At", "date", 0, "When the object was made")], cells: default_cells };

fn default_cells(object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
    vec![cells::name(object), object.pointer("/metadata/creationTimestamp").cloned().unwrap_or_default()]
}
