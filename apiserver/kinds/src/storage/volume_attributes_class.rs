//! VolumeAttributesClasses.

use apiserver_registry::Written;
use apiserver_schema::error::FieldError;
use apiserver_schema::validation::{Errors, same, with_metadata};
use serde_json::Value;

use crate::kind::Kind;
use crate::shared::cells;
use crate::shared::columns::{AGE, Columns, NAME};
use crate::storage::storage_class;

pub(crate) static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "volumeattributesclasses",
    short_names: &["vac"],
    validate,
    validate_change: Some(validate_change),
    columns: COLUMNS,
    ..Kind::DEFAULT
};

/// Errors of a VolumeAttributesClass.
fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = with_metadata(object);
    storage_class::provisioner(object, "driverName", &mut errors);
    storage_class::parameters(object, &mut errors);
    if same(object.get("parameters"), None) {
        errors.required("parameters", "must contain at least one key/value pair");
    }
    errors.list()
}

/// A VolumeAttributesClass stays as it is. Arguments: new, old.
fn validate_change(new: &Value, old: &Value, _: Written) -> Vec<FieldError> {
    let mut errors = Errors::default();
    for field in ["driverName", "parameters"] {
        if !same(new.get(field), old.get(field)) {
            errors.forbidden(field, &format!("updates to {field} are forbidden."));
        }
    }
    errors.extend(validate(new));
    errors.list()
}

const COLUMNS: Columns = Columns {
    headers: &[NAME, ("DriverName", "string", 0, "Driver that the attributes are for"), AGE],
    cells: |object, now| {
        let key = "volumeattributesclass.alpha.kubernetes.io/is-default-class";
        vec![
            cells::marked(object, &[key]),
            cells::text_or(object, "/driverName", ""),
            cells::age(object, now),
        ]
    },
};
