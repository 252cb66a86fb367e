//! ConfigMaps, and what Secrets have in common with them.

use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, names, with_metadata};
use serde_json::{Value, json};

use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};

pub(crate) static KIND: Kind = Kind {
    group: "",
    plural: "configmaps",
    short_names: &["cm"],
    validate,
    validate_update,
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// All values of a ConfigMap or Secret together: 1 MiB.
pub(crate) const SIZE_LIMIT: usize = 1024 * 1024;

const FIXED: &str = "field is immutable when `immutable` is set";

pub(crate) fn entries<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a str)> {
    let map = object.get(field).and_then(Value::as_object);
    map.into_iter().flatten().map(|(key, value)| (key, value.as_str().unwrap_or_default()))
}

/// Bytes behind a base64 text.
pub(crate) fn decoded_length(text: &str) -> usize {
    text.trim_end_matches('=').len() * 3 / 4
}

/// Errors of a ConfigMap.
pub(crate) fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    let mut size = 0;
    for (key, value) in entries(object, "data") {
        size += value.len();
        errors.faults(&format!("data[{key}]"), key, names::config_key(key));
        if object.get("binaryData").is_some_and(|b| b.get(key).is_some()) {
            errors.invalid(format!("data[{key}]"), &json!(key), "duplicate of key present in binaryData");
        }
    }
    for (key, value) in entries(object, "binaryData") {
        size += decoded_length(value);
        errors.faults(&format!("binaryData[{key}]"), key, names::config_key(key));
    }
    if size > SIZE_LIMIT {
        errors.too_long("", SIZE_LIMIT);
    }
    errors.list()
}

pub(crate) fn frozen(new: &Value, old: &Value, fields: &[&str], errors: &mut Errors) {
    if old["immutable"] != true {
        return;
    }
    if new["immutable"] != true {
        errors.forbidden("immutable", FIXED);
    }
    // An entry with an empty value is not the same as none.
    let map =
        |object: &Value, field| object.get(field).and_then(Value::as_object).cloned().unwrap_or_default();
    for field in fields {
        if map(new, *field) != map(old, *field) {
            errors.forbidden(*field, FIXED);
        }
    }
}

/// An immutable ConfigMap stays as it is. Arguments: new, old.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::default();
    frozen(new, old, &["data", "binaryData"], &mut errors);
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("Data", "string", 0, "Number of entries"), AGE],
    cells: |object, now| {
        let entries = cells::count(object, "/data") + cells::count(object, "/binaryData");
        vec![cells::name(object), json!(entries), cells::age(object, now)]
    },
};
