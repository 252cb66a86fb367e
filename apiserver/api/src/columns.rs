//! Printer columns: what `kubectl get` shows of each kind.

use serde_json::{Value, json};

use crate::meta;
use crate::registry::{Cells, Column};
use crate::time;

/// The columns of a kind and what fills them.
#[derive(Clone, Copy)]
pub struct Layout {
    head: &'static [Head],
    /// Fills a row.
    pub cells: Cells,
}

/// A column: name, OpenAPI type, priority, description.
type Head = (&'static str, &'static str, u8, &'static str);

impl Layout {
    /// The headers.
    pub fn columns(&self) -> Vec<Column> {
        self.head
            .iter()
            .map(|&(name, kind, priority, description)| Column {
                name,
                kind,
                format: if name == "Name" { "name" } else { "" },
                priority,
                description,
            })
            .collect()
    }
}

const NAME: Head = ("Name", "string", 0, "Name of the object, unique within its namespace");
const AGE: Head = ("Age", "string", 0, "Time since the object was created");

const DEFAULT: Layout = Layout { head: &[NAME, AGE], cells: default_cells };

fn default_cells(object: &Value, now: jiff::Timestamp) -> Vec<Value> {
    vec![json!(meta::name(object)), age(object, now)]
}

fn age(object: &Value, now: jiff::Timestamp) -> Value {
    json!(time::age(meta::creation_timestamp(object), now))
}

/// The columns of a kind.
pub fn layout(_group: &str, _plural: &str) -> Layout {
    DEFAULT
}
