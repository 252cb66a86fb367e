//! ControllerRevisions.

use apiserver_schema::error::FieldError;
use apiserver_schema::meta;
use apiserver_schema::validation::{Errors, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells::{self, NONE};
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "apps",
    plural: "controllerrevisions",
    validate,
    validate_update,
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Errors of a ControllerRevision.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    if object.get("data").is_none_or(Value::is_null) {
        errors.required("data", "data is mandatory");
    }
    errors.not_negative("revision", object.get("revision"));
    errors.list()
}

/// Validates that the data of a ControllerRevision does not change. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    errors.immutable("data", new, old);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[
        NAME,
        ("Controller", "string", 0, "Which object it is a revision of"),
        ("Revision", "string", 0, "Number of the revision"),
        AGE,
    ],
    cells: |object, now| {
        let controller = meta::controller_of(object).map_or(NONE.to_owned(), |owner| {
            let group = meta::text(owner, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
            let kind = meta::text(owner, "/kind").to_lowercase();
            let dot = if group.is_empty() { "" } else { "." };
            format!("{kind}{dot}{group}/{}", meta::text(owner, "/name"))
        });
        vec![
            cells::name(object),
            json!(controller),
            cells::number(object, "/revision"),
            cells::age(object, now),
        ]
    },
};
